"""Wardrobe nodes beside the chain: masks in time, masks kept on disk, proofs, mouths."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import folder_paths
import torch
from comfy_api.latest import io, ui

from ..comfy_nodes import Avatar, ComfyContext, input_path, input_stamp
from ..core.images import mask_box, parse_box
from .checks import check_images, check_mask, problem
from .ghost import ghost_check
from .infill import mask_infill
from .limits import CACHE_MODES, GHOST_PX, INFILL_MODES, THRESHOLD
from .mask_file import (
    SUFFIX,
    MaskFileError,
    content_key,
    read_mask,
    read_mask_video,
    write_mask,
    write_mask_video,
)
from .measure import measure
from .mouth import INNER, PRESETS, plate_masks
from .socket_nodes import CATEGORY, StitchSocket, full_input

MAX_MASK_BYTES = 8 << 30


class MaskCache(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeMaskCache",
            display_name="Wardrobe Mask Cache",
            category=CATEGORY,
            description=(
                "Keeps a tracker's mask in the output folder and gives it back for the same pictures without running the "
                "tracker. It knows the pictures and `key` only: write every setting of the tracker into `key`."
            ),
            inputs=[
                io.Image.Input(
                    "images", tooltip="The pictures the mask is of; all their pixels are its name."
                ),
                io.Mask.Input(
                    "mask", lazy=True, tooltip="From the tracker; asked for only if there is no mask yet."
                ),
                io.String.Input(
                    "key",
                    default="",
                    tooltip="Everything that decides about the mask: words, threshold, interval, model. Change it with them.",
                ),
                io.Combo.Input(
                    "mode",
                    options=list(CACHE_MODES),
                    default=CACHE_MODES[0],
                    tooltip="auto: from disk if it is there. refresh: track anew and replace it. bypass: no disk.",
                ),
                io.String.Input(
                    "subfolder",
                    default="wardrobe_masks",
                    tooltip="Folder of the files below ComfyUI's output folder.",
                ),
                io.Boolean.Input(
                    "save_video",
                    default=False,
                    optional=True,
                    tooltip="Also write a lossless gray .mkv (FFV1) to look at or to load elsewhere. Off: it is larger.",
                ),
                io.String.Input(
                    "file",
                    default="",
                    optional=True,
                    tooltip="A mask video in ComfyUI's input folder to take instead of `mask`; empty: none.",
                ),
                io.Float.Input(
                    "threshold",
                    default=THRESHOLD,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    optional=True,
                    tooltip="Brightness from which a pixel of `file` is inside; it matters for lossy videos such as H.264.",
                ),
            ],
            outputs=[
                io.Mask.Output("MASK", display_name="mask"),
                io.String.Output("PATH", display_name="path"),
                io.Boolean.Output("HIT", display_name="hit"),
            ],
        )

    @classmethod
    def validate_inputs(cls, subfolder: str) -> bool | str:
        try:
            _cache_folder(subfolder)
        except ValueError as e:
            return str(e)
        return True

    @classmethod
    def fingerprint_inputs(cls, mode: str, file: str = "", **_) -> str | float:
        # NaN equals nothing: a refresh runs every time.
        return float("nan") if mode == "refresh" else input_stamp(file) if file else ""

    @classmethod
    def check_lazy_status(
        cls, images, key: str, mode: str, subfolder: str, mask=None, file: str = "", **_
    ) -> list[str]:
        if mask is not None or file or (mode == "auto" and _stored(images, key, subfolder)[1] is not None):
            return []
        return ["mask"]

    @classmethod
    def execute(
        cls,
        images,
        key: str,
        mode: str,
        subfolder: str,
        mask=None,
        save_video: bool = False,
        file: str = "",
        threshold: float = THRESHOLD,
    ) -> io.NodeOutput:
        ctx = ComfyContext()
        shape = tuple(check_images("Mask Cache", "images", images).shape[:3])
        if file:
            return io.NodeOutput(
                read_mask_video(input_path(file), shape, threshold, ctx), str(input_path(file)), False
            )
        path, kept = (None, None) if mode == "bypass" else _stored(images, key, subfolder)
        if mode == "auto" and kept is not None:
            return io.NodeOutput(kept, str(path), True)
        if mask is None:
            raise problem(
                "Mask Cache", "mask", "not connected", "the tracker's mask: there is none on disk yet"
            )
        mask = check_mask("Mask Cache", "mask", mask, shape[0], (shape[2], shape[1]))
        made = (mask >= THRESHOLD).float()
        if path is None:
            return io.NodeOutput(made, "", False)
        write_mask(path, made, path.stem, ctx)
        if save_video:
            write_mask_video(path.with_suffix(".mkv"), made, ctx=ctx)
        return io.NodeOutput(made, str(path), False)


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
                io.Int.Input(
                    "stride",
                    default=4,
                    min=1,
                    max=64,
                    tooltip="For infill: every how many frames one is trusted, from the first. The tracker's interval.",
                ),
                io.Combo.Input(
                    "mode",
                    options=list(INFILL_MODES),
                    default=INFILL_MODES[0],
                    tooltip=(
                        "stabilise: only frames whose area is 30 % off what their neighbours say are replaced. infill: all "
                        "but the trusted ones are made."
                    ),
                ),
                io.Int.Input(
                    "max_gap",
                    default=4,
                    min=1,
                    max=16,
                    tooltip="Most frames in a row that may be made. 4 is what a tracker with interval 4 blanks.",
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


class Metrics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeMetrics",
            display_name="Wardrobe Metrics",
            category=CATEGORY,
            description=(
                "Measures a result against its source: pixels changed where none may be, PSNR, SSIM, flicker, seam, loop "
                "jump. The picture shows where anything changed. About 0.2 s a frame at 1080x1920."
            ),
            inputs=[
                full_input("source", "The full frames that were cropped."),
                full_input("result", "The full frames at the end."),
                StitchSocket.Input(
                    "stitch",
                    optional=True,
                    tooltip="From Subject Crop; mask and occluders then lie in the crop.",
                ),
                io.Mask.Input(
                    "mask", tooltip="Alpha, over the crop (connect stitch) or over the full frames."
                ),
                io.Mask.Input("occluders", optional=True, tooltip="Hands, to count their changed pixels."),
                io.Boolean.Input(
                    "loop",
                    default=False,
                    tooltip="Also measure the step from the last frame to the first; off, for clips are not loops.",
                ),
            ],
            outputs=[
                io.String.Output("JSON", display_name="json"),
                io.Image.Output("HEAT", display_name="heat"),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, source, result, mask, loop: bool, stitch=None, occluders=None) -> io.NodeOutput:
        found, heat = measure(source, result, mask, stitch, occluders, loop, ComfyContext())
        text = json.dumps(found.as_dict(), indent=1)
        return io.NodeOutput(text, heat, ui=ui.PreviewText(text))


class GhostCheck(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeGhostCheck",
            display_name="Wardrobe Ghost Check",
            category=CATEGORY,
            description=(
                "Finds hands in the result where the source has none. No mask keeps a model from painting a second hand on "
                "the garment, so track hands in the result too and compare."
            ),
            inputs=[
                io.Mask.Input("occluders_source", tooltip="Hands tracked in the source."),
                io.Mask.Input("occluders_result", tooltip="Hands tracked in the result with the same words."),
                io.Int.Input(
                    "tolerance_px",
                    default=GHOST_PX,
                    min=0,
                    max=64,
                    tooltip="Pixels by which hands may be larger; 4 is a tracker's jitter.",
                ),
                io.Int.Input(
                    "min_px",
                    default=0,
                    min=0,
                    max=1_000_000,
                    optional=True,
                    tooltip="Connected parts of at most so many pixels are ignored; 0 ignores nothing.",
                ),
            ],
            outputs=[
                io.Boolean.Output("OK", display_name="ok"),
                io.String.Output("REPORT", display_name="report"),
                io.Mask.Output("MASK", display_name="ghosts"),
            ],
        )

    @classmethod
    def execute(cls, occluders_source, occluders_result, tolerance_px: int, min_px: int = 0) -> io.NodeOutput:
        found = ghost_check(occluders_source, occluders_result, tolerance_px, min_px, ComfyContext())
        return io.NodeOutput(found.ok, found.report, found.mask)


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
                io.Combo.Input(
                    "preset",
                    options=list(PRESETS),
                    default=PRESETS[0],
                    tooltip="lips: an ellipse that ends below the nose. lower face box: a soft rectangle over lips and chin.",
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


_named: list[tuple[weakref.ref, int, str, str]] = []
"""Names of the last pictures: the lazy check and the run ask for the same one, at 9 ms a frame."""


def _name(images: torch.Tensor, key: str) -> str:
    version = 0 if images.is_inference() else images._version  # made in inference mode they count no changes
    for ref, old, known, name in _named:
        if ref() is images and version == old and known == key:
            return name
    name = content_key(images, key, ComfyContext())
    _named[:] = [(weakref.ref(images), version, key, name), *_named[:3]]
    return name


def _stored(images: torch.Tensor, key: str, subfolder: str) -> tuple[Path, torch.Tensor | None]:
    """Return where the mask of these pictures lies, and the mask, None if there is no whole one."""
    path = _cache_folder(subfolder) / (_name(images, key) + SUFFIX)
    try:
        return path, read_mask(path, path.stem, tuple(images.shape[:3]))
    except (FileNotFoundError, NotADirectoryError, MaskFileError):
        return path, None


def _cache_folder(subfolder: str) -> Path:
    root = Path(folder_paths.get_output_directory()).resolve()
    try:
        folder = (root / subfolder.strip()).resolve()
    except (OSError, ValueError):
        folder = root.parent
    if not subfolder.strip() or not folder.is_relative_to(root):
        raise problem("Mask Cache", "subfolder", repr(subfolder), "a folder below ComfyUI's output folder")
    return folder


NODES = [MaskCache, MaskInfill, Metrics, GhostCheck, MouthMask]
