"""Wardrobe node that keeps masks on disk."""

from __future__ import annotations

import weakref
from pathlib import Path

import folder_paths
import torch
from comfy_api.latest import io

from ..comfy_nodes import ComfyContext, input_path, input_stamp
from .checks import check_images, check_mask, problem
from .limits import CACHE_MODES, THRESHOLD
from .mask_file import (
    NODE,
    SUFFIX,
    MaskFileError,
    content_key,
    folder_below,
    read_mask,
    read_mask_video,
    write_mask,
    write_mask_video,
)
from .socket_nodes import CATEGORY, choice_input, threshold_input


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
                    "mask",
                    lazy=True,
                    optional=True,
                    tooltip="From the tracker; asked for only if there is no mask yet. Not needed with `file`.",
                ),
                io.String.Input(
                    "key",
                    default="",
                    tooltip="What is tracked, and all that decides about it: words, threshold, interval, model. Change it with them.",
                ),
                choice_input(
                    "mode",
                    CACHE_MODES,
                    "auto: from disk if it is there. refresh: track anew and replace it. bypass: no disk.",
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
                threshold_input(
                    "Brightness from which a pixel of `file` is inside; it matters for lossy videos such as H.264.",
                    optional=True,
                ),
            ],
            outputs=[
                io.Mask.Output("MASK", display_name="mask"),
                io.String.Output("PATH", display_name="path"),
                io.Boolean.Output("HIT", display_name="hit"),
            ],
        )

    @classmethod
    def validate_inputs(cls, subfolder: str, key: str, mode: str, file: str = "") -> bool | str:
        try:
            _cache_folder(subfolder)
            if None not in (key, mode, file):  # linked ones are known later
                _check_key(key, mode, file)
        except ValueError as e:
            return str(e)
        return True

    @classmethod
    def fingerprint_inputs(cls, mode: str, file: str = "", **_) -> str | float:
        # NaN equals nothing: a refresh runs every time.
        return float("nan") if mode == "refresh" else input_stamp(file) if file else ""

    @classmethod
    def check_lazy_status(
        cls, images, key: str, mode: str, subfolder: str, file: str = "", **given
    ) -> list[str]:
        _check_key(key, mode, file)
        # A link that is not evaluated yet comes as None, no link at all not.
        if given.get("mask", given) is not None or file:
            return []
        return [] if mode == "auto" and _stored(images, key, subfolder)[1] is not None else ["mask"]

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
        _check_key(key, mode, file)
        shape = tuple(check_images(NODE, "images", images).shape[:3])
        if file:
            path = input_path(file)
            return io.NodeOutput(read_mask_video(path, shape, threshold, ctx), str(path), False)
        path, made = (None, None) if mode == "bypass" else _stored(images, key, subfolder)
        hit = mode == "auto" and made is not None
        if not hit and mask is None:
            raise problem(NODE, "mask", "not connected", "the tracker's mask: there is none on disk yet")
        if not hit:
            made = (check_mask(NODE, "mask", mask, shape[0], (shape[2], shape[1])) >= THRESHOLD).float()
        if path is None:
            return io.NodeOutput(made, "", False)
        _keep(path, made, hit, save_video, ctx)
        return io.NodeOutput(made, str(path), hit)


def _check_key(key: str, mode: str, file: str) -> None:
    """Raise ValueError for an empty key: two caches on the same pictures would give out each other's masks."""
    if not key.strip() and mode != "bypass" and not file:
        wanted = "what is tracked and how, such as dress | sam3.1 | 0.25: masks of the same pictures with one key are one mask"
        raise problem(NODE, "key", "empty", f"{wanted} (mode bypass needs none)")


def _keep(path: Path, mask: torch.Tensor, hit: bool, save_video: bool, ctx: ComfyContext) -> None:
    """Write what is not there yet. ValueError if the disk refuses: ComfyUI still holds the tracker's mask then."""
    video = path.with_suffix(".mkv")
    try:
        if not hit:
            write_mask(path, mask, path.stem, ctx)
        if save_video and not (hit and video.is_file()):
            write_mask_video(video, mask, ctx=ctx)
    except OSError as e:
        wanted = "a folder that can be written; mode bypass goes on without, the tracker does not run again"
        raise problem(NODE, "subfolder", f"{path.parent} ({e.strerror or e})", wanted) from e


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
    except (OSError, MaskFileError):
        return path, None  # tracked anew; whether the folder can be written shows then


def _cache_folder(subfolder: str) -> Path:
    return folder_below(Path(folder_paths.get_output_directory()), subfolder)


NODES = [MaskCache]
