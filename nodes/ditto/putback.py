"""A rendered face back into its frame: feathered mask, affine warp, blend inside the part of the frame it touches.

Frames uint8 (H, W, 3) RGB; faces float32 (S, S, 3) in 0..255. The rule is upstream's: mask and face are warped
bilinearly with black outside, and the blend is cut off, not rounded. Source: spec/ditto.md 12.
"""

from __future__ import annotations

import numpy as np

from ..core.packet_schema import CROP_SIDE

_INNER = 0.9


def feather_mask(
    width: int = 512, height: int = 512, inner: tuple[float, float] = (_INNER, _INNER)
) -> np.ndarray:
    """Return (height, width) float32: 1 inside the middle part, ramps to 0 at the edges, round corners.

    Args:
        width: of the mask, in pixels.
        height: of the mask, in pixels.
        inner: share of the width and the height that is 1.

    Raises:
        ValueError: a share that leaves no middle part.
    """
    across, down = _ramp(width, inner[0]), _ramp(height, inner[1])
    outside = np.hypot(1 - across[None, :], 1 - down[:, None])
    # Outside a corner both ramps are below 1; elsewhere one is 1 and the distance is the other's alone.
    return (1 - outside.clip(0, 1)).astype(np.float32)


def _ramp(size: int, inner: float) -> np.ndarray:
    """Return (size,): 0 at both ends, 1 in the middle `inner` of it."""
    full = int(size * inner)
    if not 0 < full <= size:
        raise ValueError(
            f"a mask of {size} pixels with {inner:g} of it full has no middle: give a share above 0 to 1"
        )
    start = (size - full) // 2
    values = np.ones(size)
    values[:start] = np.linspace(0, 1, start)
    values[start + full :] = np.linspace(1, 0, size - start - full)
    return values


def from_face(c2o: np.ndarray, side: int) -> np.ndarray:
    """Return the map (3, 3) from a face of `side` pixels to the frame, of one from its crop of CROP_SIDE pixels.

    Both cover the same square: pixel edges fall on pixel edges, centres do not.
    """
    k = CROP_SIDE / side
    grow = np.array([[k, 0, (k - 1) / 2], [0, k, (k - 1) / 2], [0, 0, 1]])
    return c2o.astype(np.float64) @ grow


def touched_part(c2o: np.ndarray, side: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 of the frame that a warped square of `side` pixels can change; empty outside the frame."""
    corners = np.array([[-1, -1], [side, -1], [side, side], [-1, side]], np.float64)
    moved = corners @ c2o[:2, :2].T.astype(np.float64) + c2o[:2, 2]
    low, high = np.floor(moved.min(0)).astype(int) - 1, np.ceil(moved.max(0)).astype(int) + 2
    x1, y1 = (int(np.clip(v, 0, limit)) for v, limit in zip(low, (width, height), strict=True))
    x2, y2 = (int(np.clip(v, 0, limit)) for v, limit in zip(high, (width, height), strict=True))
    return x1, y1, max(x1, x2), max(y1, y2)


def warp_into(picture: np.ndarray, c2o: np.ndarray, part: tuple[int, int, int, int]) -> np.ndarray:
    """Return `picture` warped by `c2o`, as far as it falls into `part` of the frame: (y2 - y1, x2 - x1, ...)."""
    import cv2

    x1, y1, x2, y2 = part
    matrix = c2o[:2].astype(np.float64).copy()
    matrix[:, 2] -= (x1, y1)
    return cv2.warpAffine(
        picture, matrix, (x2 - x1, y2 - y1), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT
    )


def put_back(frame: np.ndarray, face: np.ndarray, c2o: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return a copy of `frame` with the face in it.

    Args:
        frame: uint8 (H, W, 3).
        face: float32 (S, S, 3) in 0..255.
        c2o: (3, 3), from the face to the frame.
        mask: float32 (S, S) in 0..1 (`feather_mask`).

    Raises:
        ValueError: face and mask are not squares of one size.
    """
    out = frame.copy()
    put_into(out, face, c2o, mask)
    return out


def put_into(frame: np.ndarray, face: np.ndarray, c2o: np.ndarray, mask: np.ndarray) -> None:
    """Put the face into `frame` itself; arguments and errors as those of `put_back`."""
    side = len(mask)
    if mask.shape != (side, side) or face.shape != (side, side, 3):
        raise ValueError(f"face {face.shape} and mask {mask.shape} must be (S, S, 3) and (S, S) of one size")
    part = touched_part(c2o, side, frame.shape[1], frame.shape[0])
    x1, y1, x2, y2 = part
    if x1 < x2 and y1 < y2:
        weight = warp_into(mask, c2o, part).clip(0, 1)
        pixels = warp_into(np.ascontiguousarray(face, np.float32), c2o, part)
        frame[y1:y2, x1:x2] = blended(frame[y1:y2, x1:x2], pixels, weight)


def blended(background: np.ndarray, pixels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return `background`, uint8 (h, w, 3), with `pixels` over it by `weight`; cut off to whole levels.

    Args:
        background: not changed.
        pixels: float32 (h, w, 3) in 0..255; used as scratch.
        weight: float32 (h, w) in 0..1.
    """
    import cv2

    # numpy would spread the one channel over three in a loop of three.
    share = cv2.merge([weight] * 3)
    pixels *= share
    np.subtract(1, share, out=share)
    share *= background
    pixels += share
    return pixels.astype(np.uint8)
