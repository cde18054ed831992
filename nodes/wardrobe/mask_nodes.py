"""Wardrobe nodes that make pixel masks: what is painted, its alpha, masks in time, mouths."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import Avatar, ComfyContext
from ..core.images import mask_box, parse_box
from .checks import check_images, check_mask, problem
from .infill import mask_infill
from .limits import (
    FEATHER_MODES,
    FEATHER_PX,
    GAP_LIMIT,
    INFILL_MODES,
    SHAPE_LIMIT_PX,
    STRIDE_LIMIT,
)
from .masks import pixel_mask, subtract_occluders
from .mouth import INNER, PRESETS, plate_masks
from .socket_nodes import CATEGORY, StitchSocket, choice_input, threshold_input, whole_input

MAX_MASK_BYTES = 8 << 30


class SubtractOccluders(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeSubtractOccluders",
            display_name="Wardrobe Subtract Occluders",
            category=CATEGORY,
            description=(
                "Grows the garment's mask and then takes the hands out of it; never the other way round, which would "
                "swallow the hands again. Both results are 0 or 1."
            ),
            inputs=[
                io.Mask.Input("mask", tooltip="The garment, of the crop; one mask serves all frames."),
                io.Mask.Input(
                    "occluders", tooltip="Hands, hair, a microphone: what lies on the garment and must stay."
                ),
                whole_input(
                    "grow_px",
                    0,
                    (-SHAPE_LIMIT_PX, SHAPE_LIMIT_PX),
                    "Pixels the garment grows, a disc: at least Pixel Mask's feather, 8 swallow the old hem. Below 0 it shrinks.",
                ),
                whole_input(
                    "clearance_px",
                    0,
                    (0, SHAPE_LIMIT_PX),
                    (
                        "Pixels kept free round the hands. 0, because it shows as a ring of the old garment and eats "
                        "the gaps between fingers from both sides: at 3 gaps of 3 to 6 px are gone."
                    ),
                ),
                threshold_input(),
                io.Boolean.Input(
                    "keep_holes",
                    default=True,
                    tooltip="Holes of the garment (skin in a cut-out) are not grown over. On, so that skin stays skin.",
                ),
            ],
            outputs=[
                io.Mask.Output("PAINT", display_name="paint"),
                io.Mask.Output("OCCLUDERS", display_name="occluders"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(cls, mask, occluders, grow_px, clearance_px, threshold, keep_holes) -> io.NodeOutput:
        done = subtract_occluders(
            mask, occluders, grow_px, clearance_px, threshold, keep_holes, ComfyContext()
        )
        return io.NodeOutput(done.paint, done.occluders, done.report)


class PixelMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobePixelMask",
            display_name="Wardrobe Pixel Mask",
            category=CATEGORY,
            description=(
                "Makes the compositor's alpha of what is painted: exactly 0 outside, soft to the inside only, full in "
                "slits and straps. For the sampler use Wardrobe Latent Mask. Nothing here fills holes or gaps."
            ),
            inputs=[
                io.Mask.Input("mask", tooltip="What is painted, from Subtract Occluders."),
                whole_input(
                    "feather_px",
                    FEATHER_PX,
                    (0, SHAPE_LIMIT_PX),
                    "Pixels from the outline to full alpha. 4 hides a seam and leaves a hand's edge alone.",
                ),
                choice_input(
                    "feather_mode",
                    FEATHER_MODES,
                    "inward: hands stay 100 % source (a blur puts up to 0.64 on them). hard: 0 or 1.",
                ),
                io.Boolean.Input(
                    "keep_thin",
                    default=True,
                    tooltip="Parts too thin for the feather get alpha 1. On: without it slits of 3 to 6 px are lost.",
                ),
                threshold_input(),
                StitchSocket.Input(
                    "stitch",
                    optional=True,
                    tooltip=(
                        "From Subject Crop, for a crop larger than the picture (1080 wide, align 32): the picture's edge is "
                        "no outline. Without it a feather fades there."
                    ),
                ),
                io.Mask.Input(
                    "occluders",
                    optional=True,
                    tooltip=(
                        "The hands from Subtract Occluders: no feather along them, so that no line of the old garment is left "
                        "round the fingers. Of the full frames too, with the stitch."
                    ),
                ),
            ],
            outputs=[io.Mask.Output("MASK", display_name="alpha")],
        )

    @classmethod
    def execute(cls, mask, feather_px, feather_mode, keep_thin, threshold, stitch=None, occluders=None) -> io.NodeOutput:
        ctx = ComfyContext()
        return io.NodeOutput(pixel_mask(mask, feather_px, feather_mode, keep_thin, threshold, ctx, stitch, occluders))


class MaskInfill(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeMaskInfill",
            display_name="Wardrobe Mask Infill",
            category=CATEGORY,
            description=(
                "Repairs frames that a tracker lost, or makes the frames between those it looked at, by moving their "
                "neighbours' masks with the picture. Never over a cut."
            ),
            inputs=[
                io.Mask.Input(
                    "mask", tooltip="A mask for every picture; those that are not trusted may be anything."
                ),
                io.Image.Input("images", tooltip="The pictures it is of."),
                whole_input(
                    "stride",
                    4,
                    (1, STRIDE_LIMIT),
                    "For infill: every how many frames one is trusted, from the first. The tracker's interval.",
                ),
                choice_input(
                    "mode",
                    INFILL_MODES,
                    (
                        "stabilise: only frames whose area is 30 % off what their neighbours say are replaced. infill: all "
                        "but the trusted ones are made."
                    ),
                ),
                whole_input(
                    "max_gap",
                    4,
                    (1, GAP_LIMIT),
                    "Most frames in a row that may be made. 4 is what a tracker with interval 4 blanks.",
                ),
            ],
            outputs=[
                io.Mask.Output("MASK", display_name="mask"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(cls, mask, images, stride: int, mode: str, max_gap: int) -> io.NodeOutput:
        done = mask_infill(mask, images, stride, mode, max_gap, ComfyContext())
        return io.NodeOutput(done.mask, done.report)


class MouthMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeMouthMask",
            display_name="Mouth Mask",
            category=CATEGORY,
            description=(
                "Masks the mouth in every frame of a plate, from an avatar, a face mask or a box. It belongs to the plate's "
                "frames, not to the speech's: on other frames it would carry nostrils over."
            ),
            inputs=[
                choice_input(
                    "preset",
                    PRESETS,
                    "lips: an ellipse that ends below the nose. lower face box: a soft rectangle over lips and chin.",
                ),
                io.Float.Input(
                    "inner",
                    default=INNER,
                    min=0.0,
                    max=0.95,
                    step=0.01,
                    tooltip="For lips: share of the radius with full alpha; 0.6 is MuseTalk's, the rest is the soft edge.",
                ),
                io.String.Input(
                    "box",
                    default="",
                    tooltip='Face box "x1,y1,x2,y2" in pixels, for all frames of `images`; empty: from avatar or face.',
                ),
                Avatar.Input(
                    "avatar", optional=True, tooltip="A MuseTalk avatar: its boxes, frame by frame."
                ),
                io.Image.Input(
                    "images", optional=True, tooltip="The plate, for its size and number of frames."
                ),
                io.Mask.Input(
                    "face", optional=True, tooltip="The face in every plate frame; its bounds are the box."
                ),
            ],
            outputs=[io.Mask.Output("MASK", display_name="mask")],
        )

    @classmethod
    def validate_inputs(cls, box: str) -> bool | str:
        try:
            if box.strip():
                parse_box(box)
        except ValueError as e:
            return str(e)
        return True

    @classmethod
    def execute(
        cls, preset: str, inner: float, box: str, avatar=None, images=None, face=None
    ) -> io.NodeOutput:
        boxes, size = _mouth_boxes(box, avatar, images, face)
        needed = 4 * len(boxes) * size[0] * size[1]
        if needed > MAX_MASK_BYTES:
            got = f"{len(boxes)} frames of {size[0]}x{size[1]}, {needed / 2**30:.1f} GB"
            raise problem(
                "Mouth Mask", "the plate", got, f"at most {MAX_MASK_BYTES >> 30} GB; take a shorter plate"
            )
        return io.NodeOutput(plate_masks(boxes, size, preset, inner))


def _mouth_boxes(box: str, avatar, images, face) -> tuple[list, tuple[int, int]]:
    """Return the face box of every plate frame (None: no face) and the plate's width and height."""
    if avatar is not None:
        with avatar.open() as reader:
            boxes, found = getattr(reader, "boxes", None), getattr(reader, "found", None)
            if boxes is None:
                raise problem("Mouth Mask", "avatar", f"one of {avatar.info.engine}", "a MuseTalk avatar")
            pairs = zip(boxes.tolist(), found.tolist(), strict=True)
            return [b if ok else None for b, ok in pairs], tuple(avatar.info.size)
    if face is not None:
        face = check_mask("Mouth Mask", "face", face)
        return [mask_box(f) for f in face], (face.shape[2], face.shape[1])
    if images is None or not box.strip():
        raise problem("Mouth Mask", "box", repr(box), "an avatar, a face mask, or a box together with images")
    check_images("Mouth Mask", "images", images)
    return [parse_box(box)] * len(images), (images.shape[2], images.shape[1])


NODES = [SubtractOccluders, PixelMask, MaskInfill, MouthMask]
