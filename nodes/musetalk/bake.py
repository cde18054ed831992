"""Building a MuseTalk avatar packet: frames and face boxes in, latents, masks and geometry out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from ..core.blend import clamp_box, crop_geometry, face_crop, mouth_mask
from ..core.frames import RunContext
from ..core.packet import AvatarInfo, AvatarPacket, write_packet
from .handle import MuseTalkModel

BATCH = 8
PREVIEW_SIDE = 256
MAX_FRAMES = 1500


def build_avatar(
    ctx: RunContext,
    model: MuseTalkModel,
    frames: np.ndarray,
    boxes: Sequence[tuple[int, int, int, int] | None],
    root: Path,
    avatar_id: str,
    fps: Fraction,
    cycle: str,
    source: dict | None = None,
) -> AvatarPacket:
    """Encode `frames` (N,H,W,3) uint8 RGB and write the packet `root / avatar_id`; return it opened.

    `boxes` has one (x1,y1,x2,y2) in pixels for each frame, or None where there is no face (that frame is
    shown untouched); a box may leave the frame and is clamped. `source` (name, sha256) is kept for the record.
    Raises ValueError for sizes that do not fit together.
    """
    n, height, width = frames.shape[:3]
    if len(boxes) != n or not 1 <= n <= MAX_FRAMES:
        raise ValueError(
            f"{n} frames and {len(boxes)} boxes; give one box for each of 1..{MAX_FRAMES} frames"
        )
    if all(b is None for b in boxes):
        raise ValueError("no frame has a face box; give one as x1,y1,x2,y2")
    # A frame without a face borrows a neighbour's box, so that every index stays in place.
    filled = _fill([None if b is None else clamp_box(b, width, height) for b in boxes])
    crops = [crop_geometry(b) for b in filled]
    masks = [mouth_mask(c) for c in crops]
    info = AvatarInfo(
        id=avatar_id,
        engine="musetalk",
        size=(width, height),
        fps=fps,
        n_frames=n,
        cycle="still" if n == 1 else cycle,
        model={"name": model.checkpoint, "sha256": model.identity, "config": _plain(model.config)},
        source=source
        or {"name": "frames", "sha256": hashlib.sha256(np.ascontiguousarray(frames)).hexdigest()},
    )
    tensors = {
        "frames.safetensors": {"frames": torch.from_numpy(np.ascontiguousarray(frames))},
        "latents.safetensors": {"latents": _latents(ctx, model, frames, filled)},
        "geometry.safetensors": {
            "boxes": torch.tensor(filled, dtype=torch.int32),
            "crops": torch.tensor(crops, dtype=torch.int32),
            "found": torch.tensor([b is not None for b in boxes]),
            "mask": torch.from_numpy(np.concatenate([m.ravel() for m in masks])),
            "mask_offsets": torch.tensor(np.cumsum([0] + [m.size for m in masks]), dtype=torch.int64),
            "mask_shapes": torch.tensor([m.shape for m in masks], dtype=torch.int32),
        },
    }
    return write_packet(root, info, tensors, _preview(frames[0]))


def _latents(ctx: RunContext, model: MuseTalkModel, frames: np.ndarray, boxes: list) -> torch.Tensor:
    nets, size, out = ctx.load(model), model.config.crop_size, []
    for start in range(0, len(frames), BATCH):
        ctx.check_cancelled()
        faces = [
            face_crop(f, b, size) for f, b in zip(frames[start : start + BATCH], boxes[start:], strict=False)
        ]
        out.append(nets.encode_crops(torch.from_numpy(np.stack(faces)).to(ctx.device)).half().cpu())
        ctx.tick(min(start + BATCH, len(frames)), len(frames))
    return torch.cat(out)


def _fill(boxes: list) -> list[tuple[int, int, int, int]]:
    known = [i for i, b in enumerate(boxes) if b is not None]
    return [boxes[min(known, key=lambda k: abs(k - i))] for i in range(len(boxes))]


def _plain(config: object) -> dict:
    # Through JSON, so that what is compared later equals what is read back.
    return json.loads(json.dumps(asdict(config) if is_dataclass(config) else config))


def _preview(frame: np.ndarray) -> bytes:
    import cv2

    scale = PREVIEW_SIDE / max(frame.shape[:2])
    small = cv2.resize(frame, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else frame
    return cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR))[1].tobytes()
