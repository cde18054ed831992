"""Wardrobe node at the chain's beginning: the crop."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from .crop import same_crop, subject_crop
from .limits import (
    ALIGN,
    ALIGN_LIMIT,
    BAD_LENGTHS,
    CROP_MODES,
    FRAME_RULES,
    OVERFLOWS,
    PAD_FRACTION,
    PAD_FRACTION_LIMIT,
    PAD_LIMIT_PX,
)
from .plan import BoxRules
from .socket_nodes import CATEGORY, StitchSocket, choice_input, full_input, whole_input


class SubjectCrop(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeSubjectCrop",
            display_name="Wardrobe Subject Crop",
            category=CATEGORY,
            description=(
                "Cuts the same number of pixels round a subject out of every frame, at a size the sampler can take. "
                "Crop first and track inside the crop: a tracker's mask is 288x288 cells whatever the picture's size."
            ),
            inputs=[
                full_input(
                    "images", "The full frames; FRAMES need a quarter of the memory of IMAGE or less."
                ),
                io.Mask.Input(
                    "mask", tooltip="Roughly what will be painted, in all frames; one mask serves all."
                ),
                choice_input(
                    "mode",
                    CROP_MODES,
                    (
                        "static: one box for the clip, the default, for a presenter who stays. tracked: a box of "
                        "constant size that moves only where it is forced to."
                    ),
                ),
                io.Int.Input(
                    "align",
                    default=ALIGN,
                    min=2,
                    max=ALIGN_LIMIT,
                    step=2,
                    tooltip="Pixels that width and height are multiples of, even. 32 is a token of MiniMax H3; Wan needs 16.",
                ),
                io.Float.Input(
                    "pad_fraction",
                    default=PAD_FRACTION,
                    min=0.0,
                    max=PAD_FRACTION_LIMIT,
                    step=0.01,
                    tooltip="Room on each side as a share of the subject; 0.12 shows the model what it paints against.",
                ),
                whole_input("pad_px", 0, (0, PAD_LIMIT_PX), "Room on each side in pixels, on top of that."),
                choice_input(
                    "overflow",
                    OVERFLOWS,
                    (
                        "If the box is larger than the picture, after giving up its room: pad repeats the edge (1080 "
                        "becomes 1088), shrink cuts the mask and says by how much, error stops."
                    ),
                ),
                choice_input(
                    "frame_rule",
                    FRAME_RULES,
                    "Numbers of frames the model takes: 17k+5 MiniMax H3, 4k+1 Wan, 8k+1 LTX; none: any.",
                ),
                choice_input(
                    "on_bad_length",
                    BAD_LENGTHS,
                    (
                        "For other numbers: error names the nearest ones; trim leaves the last frames as they are; "
                        "repeat_last repeats the last frame, which the compositor drops again."
                    ),
                ),
                io.Boolean.Input(
                    "wrap",
                    default=False,
                    optional=True,
                    tooltip="For tracked: the box ends where it begins, for a loop. Off: it may end anywhere.",
                ),
                StitchSocket.Input(
                    "stitch",
                    optional=True,
                    tooltip=(
                        "Of another Subject Crop of this clip: cut the same boxes out of these images and this mask. The "
                        "settings above have no say then."
                    ),
                ),
            ],
            outputs=[
                io.Image.Output("IMAGE", display_name="images"),
                io.Mask.Output("MASK", display_name="mask"),
                StitchSocket.Output("STITCH", display_name="stitch"),
                io.Int.Output("WIDTH", display_name="width"),
                io.Int.Output("HEIGHT", display_name="height"),
                io.Int.Output("FRAMES", display_name="frames"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(
        cls,
        images,
        mask: torch.Tensor,
        mode: str,
        align: int,
        pad_fraction: float,
        pad_px: int,
        overflow: str,
        frame_rule: str,
        on_bad_length: str,
        wrap: bool = False,
        stitch=None,
    ) -> io.NodeOutput:
        ctx = ComfyContext()
        rules = BoxRules(align, pad_fraction, pad_px, overflow)
        if stitch is None:
            crop = subject_crop(images, mask, rules, mode, frame_rule, on_bad_length, wrap, ctx)
        else:
            crop = same_crop(images, mask, stitch, ctx)
        width, height = crop.stitch.size
        for note in crop.notes:
            ctx.warn(note)
        x, y = crop.stitch.boxes[0, :2]
        ctx.report.fact("crop", f"{crop.stitch.frames} frames of {width}x{height}, the first at {x},{y}")
        if stitch is not None:
            ctx.report.fact("boxes", "those of stitch")
        ctx.report.fact("source", "{} frames of {}x{}".format(*[crop.stitch.source[i] for i in (0, 2, 1)]))
        return io.NodeOutput(
            crop.images, crop.mask, crop.stitch, width, height, crop.stitch.frames, ctx.report.text()
        )


NODES = [SubjectCrop]
