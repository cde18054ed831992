"""Building a MuseTalk avatar packet: a stream of frames and their faces in; latents, masks and geometry out.

Frames go to the packet's file as they are decoded and are mapped from there, so a long clip is never whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..avatars.build import (
    BATCH,
    Box,
    check_length,
    describe_info,
    fill_frames,
    plain_config,
    speaking,
)
from ..core.blend import clamp_box, crop_geometry, face_crop, lower_face_mask, mouth_mask
from ..core.frames import FrameStream, RunContext, TensorStream
from ..core.loop import choose_cycle
from ..core.packet import AvatarInfo, AvatarPacket, PacketDraft, check_new_place, preview_jpeg
from .handle import MuseTalkModel
from .masks import blend_mask, crop_square, mode_mask
from .mesh_labels import mesh_labels
from .options import AvatarOptions

MAX_UPSCALE = 2
_NETWORK_SIDE = 256


@dataclass(frozen=True, eq=False)
class Faces:
    """Faces of N frames: boxes (x1, y1, x2, y2) or None, and what their finder knew of them.

    points: float32 (N, 68, 2) or None. mesh: float32 (N, 468, 2) or None. labels: parser of a crop square, uint8 RGB
    (side, side, 3) -> BiSeNet classes (512, 512), or None. notes: for the report.
    """

    boxes: Sequence[Box | None]
    points: np.ndarray | None = None
    mesh: np.ndarray | None = None
    labels: Callable[[np.ndarray], np.ndarray] | None = None
    notes: tuple[str, ...] = ()


FindFaces = Callable[[np.ndarray], Faces]
"""Called with the mapped frames, uint8 (N, H, W, 3) RGB: read only what is needed, never write."""


def build_avatar(
    ctx: RunContext,
    model: MuseTalkModel,
    frames: np.ndarray,
    boxes: Sequence[Box | None],
    root: Path,
    avatar_id: str,
    fps: Fraction,
    cycle: str,
    source: dict | None = None,
    options: AvatarOptions | None = None,
) -> AvatarPacket:
    """Build from `frames` (N,H,W,3) uint8 RGB in memory and one given box, or None, for each. See `bake`."""
    stream = TensorStream(torch.from_numpy(np.ascontiguousarray(frames)), fps)
    return bake(ctx, model, stream, lambda _: Faces(boxes), root, avatar_id, cycle, source, options)


def bake(
    ctx: RunContext,
    model: MuseTalkModel,
    stream: FrameStream,
    find: FindFaces,
    root: Path,
    avatar_id: str,
    cycle: str = "auto",
    source: Mapping[str, Any] | None = None,
    options: AvatarOptions | None = None,
) -> AvatarPacket:
    """Write the packet `root / avatar_id` of `stream` (RGB) and return it opened.

    Args:
        find: gives every frame its face; one without is shown untouched (or as `options.missing` says). A found box
            may leave the frame and is clamped.
        cycle: still, loop, pingpong, or auto (still for one frame, loop where the end meets the start).
        source: name and sha256 of where the frames come from, kept for the record; by default their own hash.
        options: masks and geometry; by default those that suit the model.

    Raises:
        ValueError: no frame has a face, a frame has none and `missing` is "error", sizes that do not fit.
    """
    info, options = stream.info, options or AvatarOptions.default_for(model.version)
    check_length(stream)
    check_new_place(root, avatar_id)
    with PacketDraft(root) as draft:
        frames = draft.frames(info.n_frames, info.height, info.width)
        digest = fill_frames(ctx, stream, frames, draft)
        faces = find(frames)
        for note in faces.notes:
            ctx.warn(note)
        boxes, found = _usable(ctx, faces.boxes, frames.shape, options)
        crops = [crop_geometry(b, options.expand) for b in boxes]
        draft.tensors("latents.safetensors", {"latents": _latents(ctx, model, frames, boxes)})
        masks = _masks(ctx, options, frames, crops, faces)
        draft.tensors("geometry.safetensors", _geometry(boxes, crops, found, masks, faces.points))
        _warn_if_soft(ctx, model, boxes)
        cycle = choose_cycle(cycle, frames.__getitem__, info.n_frames, np.array(boxes))
        preview = preview_jpeg(frames[0])
        del frames  # Windows does not rename a folder whose files are mapped
        made = AvatarInfo(
            id=avatar_id,
            engine="musetalk",
            size=(info.width, info.height),
            fps=info.fps,
            n_frames=info.n_frames,
            cycle=cycle,
            model={"name": model.checkpoint, "sha256": model.identity, "config": plain_config(model.config)},
            source=dict(source or {"name": "frames", "sha256": digest}),
            options=options.to_dict(),
        )
        ctx.report.fact(
            "avatar", f"{root / avatar_id}, {describe_info(made)}, face box {boxes[found.index(True)]}"
        )
        ctx.release_avatars()
        return draft.finish(made, preview)


def _usable(
    ctx, boxes: Sequence[Box | None], shape: tuple, options: AvatarOptions
) -> tuple[list[Box], list[bool]]:
    """Return a box inside the frame for every frame, and which frames are to speak.

    A frame without a face borrows its neighbour's box, so that every index stays in place.
    """
    n, height, width = shape[:3]
    if len(boxes) != n:
        raise ValueError(f"{n} frames and {len(boxes)} boxes; give one box, or None, for each frame")
    if all(b is None for b in boxes):
        raise ValueError("no frame has a face; give a picture with a visible face, or a box as x1,y1,x2,y2")
    inside: list[Box | None] = [None] * n
    for i, box in enumerate(boxes):
        try:
            inside[i] = None if box is None else clamp_box(box, width, height)
        except ValueError:
            # A face that leaves the picture is one more frame without; a box that fits nowhere is a mistake.
            if all(b is None or b == box for b in boxes):
                raise
    known = [i for i, b in enumerate(inside) if b is not None]
    if not known:
        clamp_box(next(b for b in boxes if b is not None), width, height)
    filled = [inside[min(known, key=lambda k: abs(k - i))] for i in range(n)]
    found = [b is not None for b in inside]
    return filled, speaking(ctx, found, options.missing)


def _latents(ctx: RunContext, model: MuseTalkModel, frames: np.ndarray, boxes: list[Box]) -> torch.Tensor:
    nets, size, out = ctx.load(model), model.config.crop_size, []
    for start in range(0, len(frames), BATCH):
        ctx.check_cancelled()
        batch = zip(frames[start : start + BATCH], boxes[start : start + BATCH], strict=True)
        faces = np.stack([face_crop(f, b, size) for f, b in batch])
        out.append(nets.encode_crops(torch.from_numpy(faces).to(ctx.device)).half().cpu())
        ctx.tick(min(start + BATCH, len(frames)), len(frames))
    return torch.cat(out)


def _masks(ctx, options: AvatarOptions, frames: np.ndarray, crops: list, faces: Faces) -> list[np.ndarray]:
    """Return the blend mask of every frame: uint8 over its crop square."""
    if not options.needs_parsing:
        draw = mouth_mask if options.mask == "mouth" else lower_face_mask
        return [draw(crop) for crop in crops]
    if faces.labels is None and faces.mesh is None:
        raise ValueError(
            f"mask {options.mask!r} needs a parsed face, and this one is only a box; let the face be found, "
            "or use mask mouth or lower face"
        )
    out = []
    for i, crop in enumerate(crops):
        ctx.check_cancelled()
        parsed = (
            faces.labels(crop_square(frames[i], crop)) if faces.labels else mesh_labels(faces.mesh[i], crop)
        )
        whole = mode_mask(parsed, options.mask, options.cheeks)
        out.append(blend_mask(whole, crop, options.blur, options.upper_ratio))
    return out


def _geometry(boxes, crops, found, masks, points: np.ndarray | None) -> dict[str, torch.Tensor]:
    tensors = {
        "boxes": torch.tensor(boxes, dtype=torch.int32),
        "crops": torch.tensor(crops, dtype=torch.int32),
        "found": torch.tensor(found),
        "mask": torch.from_numpy(np.concatenate([m.ravel() for m in masks])),
        "mask_offsets": torch.tensor(np.cumsum([0] + [m.size for m in masks]), dtype=torch.int64),
        "mask_shapes": torch.tensor([m.shape for m in masks], dtype=torch.int32),
    }
    if points is not None:
        tensors["points"] = torch.from_numpy(np.ascontiguousarray(points, np.float32))
    return tensors


def _warn_if_soft(ctx: RunContext, model: MuseTalkModel, boxes: list[Box]) -> None:
    side = max(max(x2 - x1, y2 - y1) for x1, y1, x2, y2 in boxes)
    drawn = max(_NETWORK_SIDE, model.config.crop_size)
    if side > MAX_UPSCALE * drawn:
        ctx.warn(
            f"the face is {side} px, {side / drawn:.1f} times the {drawn} px the network draws: it will look soft; "
            f"scale the pictures down by {side / (MAX_UPSCALE * drawn):.1f}, or keep mask mouth"
        )
