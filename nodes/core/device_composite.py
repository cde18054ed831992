"""Composite and NV12 in one pass where the crops are: crop resized, blended, converted, spliced into a ready frame.

Only the part of a frame that a crop can touch is worked on. `Plates` hold, for every avatar frame, the background
already as NV12, and the RGB pixels and mask of that part (`roi`): a rectangle of one size for the whole avatar, sides
multiples of 16, corner on even pixels. The numbers are those of `blend.composite` followed by `color.rgb_to_nv12`,
within 1 level; 2x2 blocks that the mask does not touch keep the background's bytes.

Torch operations anywhere, one Triton kernel on an NVIDIA card. Seam mode "colour match" is not done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .blend import clamp_box
from .color import coefficients, rgb_to_nv12, torch_luma_chroma
from .kernel_ops import why_not

_STEP = 16


@dataclass(frozen=True, eq=False)
class Plates:
    """What does not change when the avatar speaks, for N avatar frames of width x height, on one device.

    nv12 uint8 (N, H*3/2, W); rgb uint8 (N, h, w, 3) and weight uint8 (N, h, w) of the roi; corner int32 (N, 2) x, y of
    the roi in the frame, even; boxes int32 (N, 4) x1, y1, x2, y2 in the frame, may leave it.
    """

    nv12: Tensor
    rgb: Tensor
    weight: Tensor
    corner: Tensor
    boxes: Tensor
    matrix: str
    range: str = "limited"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the frames."""
        return self.nv12.shape[2], self.nv12.shape[1] * 2 // 3

    @property
    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.nv12, self.rgb, self.weight))

    def to(self, device: str | torch.device) -> Plates:
        moved = (t.to(device) for t in (self.nv12, self.rgb, self.weight, self.corner, self.boxes))
        return Plates(*moved, self.matrix, self.range)


def make_plates(
    frames: Sequence[np.ndarray],
    boxes: Sequence[Sequence[int]],
    crops: Sequence[Sequence[int]],
    masks: Sequence[np.ndarray],
    matrix: str,
    color_range: str = "limited",
) -> Plates:
    """Prepare avatar frames, on the CPU.

    Args:
        frames: uint8 (H, W, 3) RGB, even sides.
        boxes: face box of each, x1, y1, x2, y2.
        crops: crop geometry of each, eight numbers as `blend.crop_geometry` gives them.
        masks: uint8 (rows, columns) over the crop square of each.

    Raises:
        ValueError: no frames, unequal numbers of them, odd sides, or a box outside its frame.
    """
    counts = {len(frames), len(boxes), len(crops), len(masks)}
    if len(counts) != 1 or not len(frames):
        raise ValueError(
            f"frames, boxes, crops and masks must be as many, at least one; got {sorted(counts)}"
        )
    height, width = frames[0].shape[:2]
    roi = roi_size(boxes, width, height)
    nv12 = np.stack([rgb_to_nv12(frame[None], matrix, color_range)[0] for frame in frames])
    parts = [
        plate_parts(frame, box, crop, mask, roi)
        for frame, box, crop, mask in zip(frames, boxes, crops, masks, strict=True)
    ]
    pixels, weights, corners = (np.stack(part) for part in zip(*parts, strict=True))
    return Plates(
        torch.from_numpy(nv12),
        torch.from_numpy(pixels),
        torch.from_numpy(weights),
        torch.from_numpy(corners),
        torch.tensor(np.array(boxes)[:, :4].astype(np.int32)),
        matrix,
        color_range,
    )


def roi_size(boxes: Sequence[Sequence[int]], width: int, height: int) -> tuple[int, int]:
    """Return width and height of a part that holds any of `boxes` from an even corner: multiples of 16, or the frame's.

    ValueError if a box lies outside its frame.
    """
    visible = [clamp_box(tuple(int(v) for v in box[:4]), width, height, 1) for box in boxes]
    return tuple(
        min(limit, -(-(max(v[i + 2] - v[i] for v in visible) + 1) // _STEP) * _STEP)
        for i, limit in ((0, width), (1, height))
    )


def plate_parts(
    frame: np.ndarray, box: Sequence[int], crop: Sequence[int], mask: np.ndarray, roi: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pixels (h, w, 3) and weight (h, w) of the roi of one frame, uint8, and its corner x, y (int32)."""
    height, width = frame.shape[:2]
    roi_w, roi_h = roi
    x1, y1, x2, y2 = clamp_box(tuple(int(v) for v in box[:4]), width, height, 1)
    x, y = min(x1, width - roi_w) // 2 * 2, min(y1, height - roi_h) // 2 * 2
    weight = np.zeros((roi_h, roi_w), np.uint8)
    part = mask[y1 - int(crop[1]) : y2 - int(crop[1]), x1 - int(crop[0]) : x2 - int(crop[0])]
    if part.shape != (y2 - y1, x2 - x1):
        raise ValueError(f"the mask of box {tuple(box)} covers {part.shape} of {(y2 - y1, x2 - x1)} pixels")
    weight[y1 - y : y2 - y, x1 - x : x2 - x] = part
    return frame[y : y + roi_h, x : x + roi_w], weight, np.array([x, y], np.int32)


def composite_nv12(faces: Tensor, plates: Plates, index: Tensor, usable: Tensor | None = None) -> Tensor:
    """Blend generated crops into their frames.

    Args:
        faces: uint8 (n, S, S, 3) RGB, on the plates' device.
        plates: of the avatar.
        index: int64 (n,) avatar frame of each crop, on that device too.
        usable: bool (n,); a frame whose crop is not usable stays as it is.

    Returns:
        uint8 (n, H*3/2, W) NV12. Nothing waits for the device.

    Raises:
        ValueError: shapes or devices that do not fit.
    """
    n = faces.shape[0]
    if faces.dtype != torch.uint8 or faces.ndim != 4 or faces.shape[3] != 3 or tuple(index.shape) != (n,):
        raise ValueError(
            f"crops must be uint8 (n, S, S, 3) with an index (n,), got {faces.dtype} {tuple(faces.shape)} "
            f"and {tuple(index.shape)}"
        )
    if not faces.device == index.device == plates.nv12.device:
        raise ValueError(
            f"crops are on {faces.device}, index on {index.device}, plates on {plates.nv12.device}: move them together"
        )
    if usable is None:
        usable = torch.ones(n, dtype=torch.bool, device=faces.device)
    blend = _blend_torch if why_not(faces.device) else _blend_triton
    return blend(faces.contiguous(), plates, index, usable)


def _blend_triton(faces: Tensor, plates: Plates, index: Tensor, usable: Tensor) -> Tensor:
    from .composite_kernel import launch

    out = plates.nv12.index_select(0, index)
    launch(faces, plates, index, usable, out, coefficients(plates.matrix, plates.range))
    return out


def _blend_torch(faces: Tensor, plates: Plates, index: Tensor, usable: Tensor) -> Tensor:
    out = plates.nv12.index_select(0, index)
    weight = plates.weight[index].int() * usable[:, None, None].int()
    scaled = _resize(faces, plates, index)
    total = scaled * weight[..., None] + plates.rgb[index].int() * (255 - weight[..., None]) + 128
    rgb = (total + (total >> 8)) >> 8
    splice(out, rgb, weight > 0, plates.corner[index], plates.matrix, plates.range)
    return out


def splice(
    frames: Tensor, rgb: Tensor, changed: Tensor, corner: Tensor, matrix: str, color_range: str
) -> None:
    """Write the changed 2x2 blocks of a part into NV12 frames, in place; all others keep their bytes.

    Args:
        frames: uint8 (n, H*3/2, W).
        rgb: int32 (n, h, w, 3) in 0..255, even sides.
        changed: bool (n, h, w).
        corner: (n, 2) x, y of the part in each frame, even.
        matrix: see `color.coefficients`.
        color_range: likewise.
    """
    luma, chroma = torch_luma_chroma(rgb, matrix, color_range)
    n, h, w, _ = rgb.shape
    height = frames.shape[1] * 2 // 3
    touched = changed.view(n, h // 2, 2, w // 2, 2).any(4).any(2)
    lines = torch.arange(h, device=rgb.device)
    columns = torch.arange(w, device=rgb.device)
    x, y = (corner[:, i].long()[:, None] for i in (0, 1))
    frame = torch.arange(n, device=rgb.device)[:, None, None]
    at = (frame, (y + lines)[:, :, None], (x + columns)[:, None, :])
    every = touched.repeat_interleave(2, 1).repeat_interleave(2, 2)
    frames[at] = torch.where(every, luma, frames[at])
    at = (frame, (height + y // 2 + lines[: h // 2])[:, :, None], (x + columns)[:, None, :])
    both = touched.repeat_interleave(2, 2)
    frames[at] = torch.where(both, chroma.reshape(n, h // 2, w), frames[at])


def _resize(faces: Tensor, plates: Plates, index: Tensor) -> Tensor:
    """Crops in the roi's pixels, int32 (n, h, w, 3), as cv2.resize with INTER_LINEAR; edge pixels outside the box."""
    side = faces.shape[1]
    h, w = plates.rgb.shape[1:3]
    boxes, corner = plates.boxes[index].float(), plates.corner[index].float()

    def taps(count: int, axis: int) -> tuple[Tensor, Tensor, Tensor]:
        scale = side / (boxes[:, axis + 2] - boxes[:, axis])
        offset = torch.arange(count, device=faces.device) + (corner[:, axis] - boxes[:, axis])[:, None]
        place = ((offset + 0.5) * scale[:, None] - 0.5).clamp(0, side - 1)
        low = place.floor()
        return low.long(), (low.long() + 1).clamp(max=side - 1), place - low

    y0, y1, fy = taps(h, 1)
    x0, x1, fx = taps(w, 0)
    frame = torch.arange(len(faces), device=faces.device)[:, None, None]
    fx, fy = fx[:, None, :, None], fy[:, :, None, None]

    def line(y: Tensor) -> Tensor:
        left, right = (faces[frame, y[:, :, None], x[:, None, :]].float() for x in (x0, x1))
        return left + (right - left) * fx

    top = line(y0)
    return (top + (line(y1) - top) * fy).round().int()
