"""Growing, shrinking and opening of masks by exact Euclidean discs, and the distances they rest on.

Masks are bool (H,W) in numpy. Distances are in pixels between pixel centres, so the outermost pixel of a mask has 1.
The frame's edge counts as inside: a garment that leaves the picture has no outline there.
"""

from __future__ import annotations

import numpy as np


def bounds(mask: np.ndarray, margin: int = 0) -> tuple[slice, slice] | None:
    """Return rows and columns that hold the mask and `margin` pixels round it, within the frame; None if empty."""
    rows = np.flatnonzero(mask.any(1))
    if not rows.size:
        return None
    columns = np.flatnonzero(mask.any(0))
    height, width = mask.shape
    return (
        slice(max(0, int(rows[0]) - margin), min(height, int(rows[-1]) + 1 + margin)),
        slice(max(0, int(columns[0]) - margin), min(width, int(columns[-1]) + 1 + margin)),
    )


def inside_distance(mask: np.ndarray) -> np.ndarray:
    """Return float32 (H,W): distance of each inside pixel to the nearest outside one, 0 outside, inf without an outside."""
    distance = np.zeros(mask.shape, np.float32)
    area = bounds(mask, 1)  # the ring round the bounds holds the nearest outside pixel of every inside one
    if area is not None:
        distance[area] = _transform(mask[area])
    return distance


def outside_distance(mask: np.ndarray) -> np.ndarray:
    """Return float32 (H,W): distance of each pixel to the nearest inside one, 0 inside, inf for an empty mask."""
    return _transform(~mask)


def grow(mask: np.ndarray, px: float) -> np.ndarray:
    """Return the mask grown by a disc of radius `px` (distance <= px), or shrunk for a negative one."""
    if px == 0:
        return mask.copy()
    if px < 0:
        return inside_distance(mask) > -px
    grown = np.zeros_like(mask)
    area = bounds(mask, int(np.ceil(px)))
    if area is not None:
        grown[area] = outside_distance(mask[area]) <= px
    return grown


def opened(mask: np.ndarray, px: float, distance: np.ndarray | None = None) -> np.ndarray:
    """Return the part of the mask that a disc of radius `px` can reach without leaving it.

    `distance`: its `inside_distance`, where that is at hand.
    """
    distance = inside_distance(mask) if distance is None else distance
    return grow(distance > px, px) & mask


def signed_distance(mask: np.ndarray) -> np.ndarray:
    """Return float32 (H,W): positive inside, negative outside, the outline half-way between pixels.

    A mask that is empty or full has no outline: -/+ the frame's diagonal then.
    """
    far = float(np.hypot(*mask.shape))
    inside = np.minimum(_transform(mask), far)
    outside = np.minimum(_transform(~mask), far)
    return np.where(mask, inside - 0.5, 0.5 - outside).astype(np.float32)


def _transform(mask: np.ndarray) -> np.ndarray:
    """Return the exact distance of every True pixel to the nearest False one; inf where there is none."""
    import cv2

    if mask.all():  # OpenCV gives a made-up number
        return np.full(mask.shape, np.inf, np.float32)
    return cv2.distanceTransform(mask.view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
