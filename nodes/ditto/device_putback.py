"""Put-back and NV12 in one pass where the faces are: warped, blended, converted, spliced into a ready frame.

The rule is that of `putback.put_back` followed by `color.rgb_to_nv12`. Only the part of a frame that a face can touch is
worked on (`roi`: one size for the whole avatar, sides multiples of 16 or the frame's, corner on even pixels); 2x2 blocks
that the mask does not touch keep the background's bytes. Torch operations, on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.color import rgb_to_nv12
from ..core.device_composite import roi_size, splice
from .putback import feather_mask, touched_part, warp_into

_ABOVE = 2.0**-10


@dataclass(frozen=True, eq=False)
class FacePlates:
    """What does not change when the avatar speaks, for N source frames of width x height, on one device.

    nv12 uint8 (N, H*3/2, W); rgb uint8 (N, h, w, 3) and weight float32 (N, h, w) in 0..1 of the roi; corner int32 (N, 2)
    x, y of the roi in the frame, even; to_face float32 (N, 2, 3): pixel of the roi -> place in the face as grid_sample
    counts it; pixels float32 (h * w, 3): x, y, 1 of the roi's pixels.
    """

    nv12: Tensor
    rgb: Tensor
    weight: Tensor
    corner: Tensor
    to_face: Tensor
    pixels: Tensor
    matrix: str
    range: str = "limited"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the frames."""
        return self.nv12.shape[2], self.nv12.shape[1] * 2 // 3

    @property
    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.nv12, self.rgb, self.weight, self.corner, self.to_face, self.pixels

    def to(self, device: str | torch.device) -> FacePlates:
        return FacePlates(*(t.to(device) for t in self._tensors), self.matrix, self.range)


def make_face_plates(
    frames: Sequence[np.ndarray],
    c2o: Sequence[np.ndarray],
    side: int,
    matrix: str,
    color_range: str = "limited",
) -> FacePlates:
    """Prepare source frames, on the CPU.

    Args:
        frames: uint8 (H, W, 3) RGB, even sides.
        c2o: of each, the (3, 3) map from its face to the frame.
        side: of the faces, in pixels.
        matrix: see `color.coefficients`.
        color_range: likewise.

    Raises:
        ValueError: no frames, unequal numbers of them, odd sides, or a face outside its frame.
    """
    if len(frames) != len(c2o) or not len(frames):
        raise ValueError(
            f"{len(frames)} frames and {len(c2o)} crop matrices: give one for each, at least one"
        )
    height, width = frames[0].shape[:2]
    boxes = [touched_part(m, side, width, height) for m in c2o]
    roi = roi_size(boxes, width, height)
    parts = [plate_parts(frame, m, side, roi) for frame, m in zip(frames, c2o, strict=True)]
    rgb, weights, corners, maps = (torch.from_numpy(np.stack(part)) for part in zip(*parts, strict=True))
    nv12 = np.stack([rgb_to_nv12(frame[None], matrix, color_range)[0] for frame in frames])
    return FacePlates(
        torch.from_numpy(nv12), rgb, weights, corners, maps, pixels_of(roi), matrix, color_range
    )  # fmt: skip


def plate_parts(
    frame: np.ndarray, c2o: np.ndarray, side: int, roi: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return of one frame what `FacePlates` holds: rgb and weight of its roi, corner, to_face. See `make_face_plates`."""
    height, width = frame.shape[:2]
    roi_w, roi_h = roi
    box = touched_part(c2o, side, width, height)
    x, y = min(box[0], width - roi_w) // 2 * 2, min(box[1], height - roi_h) // 2 * 2
    weight = warp_into(feather_mask(side, side), c2o, (x, y, x + roi_w, y + roi_h)).clip(0, 1)
    pixels = np.ascontiguousarray(frame[y : y + roi_h, x : x + roi_w])
    return pixels, weight, np.array([x, y], np.int32), _to_face(c2o, (x, y), side)


def pixels_of(roi: tuple[int, int]) -> Tensor:
    """Return x, y, 1 of the pixels of a roi of this width and height: float32 (h * w, 3)."""
    xs, ys = torch.meshgrid(torch.arange(roi[0]), torch.arange(roi[1]), indexing="xy")
    return torch.stack([xs, ys, torch.ones_like(xs)], -1).reshape(-1, 3).float()


def _to_face(c2o: np.ndarray, corner: tuple[int, int], side: int) -> np.ndarray:
    """The inverse of c2o for the roi's own pixels, scaled to -1..1 over the face's outer edges; (2, 3) float32."""
    whole = np.vstack([c2o[:2].astype(np.float64), [0, 0, 1]])
    shift = np.array([[1, 0, corner[0]], [0, 1, corner[1]], [0, 0, 1]], np.float64)
    edges = np.array([[2 / side, 0, 1 / side - 1], [0, 2 / side, 1 / side - 1], [0, 0, 1]])
    return (edges @ np.linalg.inv(whole) @ shift)[:2].astype(np.float32)


def put_back_nv12(faces: Tensor, plates: FacePlates, index: Tensor, usable: Tensor | None = None) -> Tensor:
    """Blend rendered faces into their frames.

    Args:
        faces: crops uint8 (n, S, S, 3), or (n, 3, S, S) in 0..1, finite; on the plates' device.
        plates: of the avatar.
        index: int64 (n,) source frame of each face, on that device too.
        usable: bool (n,); a frame whose face is not usable stays as it is.

    Returns:
        uint8 (n, H*3/2, W) NV12. Nothing waits for the device.

    Raises:
        ValueError: shapes or devices that do not fit.
    """
    rgb, changed = blend_part(faces, plates, index, usable)
    out = plates.nv12.index_select(0, index)
    splice(out, rgb, changed, plates.corner[index], plates.matrix, plates.range)
    return out


def blend_part(
    faces: Tensor, plates: FacePlates, index: Tensor, usable: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the roi with the faces in it, int32 (n, h, w, 3), and which of its pixels they change, bool (n, h, w).

    Arguments and errors as those of `put_back_nv12`.
    """
    n = len(faces)
    if not _are_faces(faces) or tuple(index.shape) != (n,):
        raise ValueError(
            f"faces must be uint8 (n, S, S, 3) or (n, 3, S, S) with an index (n,), got {faces.dtype} "
            f"{tuple(faces.shape)} and {tuple(index.shape)}"
        )
    if not faces.device == index.device == plates.nv12.device:
        raise ValueError(
            f"faces are on {faces.device}, index on {index.device}, plates on {plates.nv12.device}: move them together"
        )
    h, w = plates.rgb.shape[1:3]
    # Sums and not a matrix product: TF32 would move the places by a quarter of a pixel.
    maps = plates.to_face[index][:, None]
    places = (maps * plates.pixels[:, None]).sum(-1).unflatten(1, (h, w))
    levels = _levels(faces)
    warped = F.grid_sample(levels, places, mode="bilinear", padding_mode="zeros", align_corners=False)
    warped = warped.permute(0, 2, 3, 1)
    weight = plates.weight[index]
    if usable is not None:
        weight = weight * usable[:, None, None]
    share = weight[..., None]
    blended = share * warped + (1 - share) * plates.rgb[index]
    return blended.clamp(0, 255).int(), weight > 0


def _are_faces(faces: Tensor) -> bool:
    if faces.dtype == torch.uint8:
        return faces.ndim == 4 and faces.shape[3] == 3 and faces.shape[1] == faces.shape[2]
    return faces.ndim == 4 and faces.shape[1] == 3 and faces.shape[2] == faces.shape[3]


def _levels(faces: Tensor) -> Tensor:
    """Faces as (n, 3, S, S) float32 in 0..255."""
    if faces.dtype != torch.uint8:
        return faces.float().clamp(0, 1) * 255
    # Whole levels: where a face is flat, the last bit of the sampling's weights would decide whether the cut-off takes one.
    return faces.permute(0, 3, 1, 2).float() + _ABOVE
