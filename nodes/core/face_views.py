"""What following a face needs besides a detector: proxies, thumbnails that tell one area from another, interpolation.

core.face_track uses it. Boxes are (x1, y1, x2, y2) in full-resolution pixels; a likeness is a normalised
correlation, -1..1, which knows neither brightness nor contrast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PATCH_SIDE = 24
SEARCH_SIDE = 30
"""A quarter more: a face that moved by an eighth of its width is still found, and painting it there is no great fault."""
_MIN_DEVIATION = 2.0
"""Levels; a flatter area is like nothing."""
_MIN_IOU = 0.3
_MAX_SHIFT = 0.5
"""Distance of two boxes' middles over their side within which they are one face; two people are further apart."""
_MAX_GROWTH = 1.7


@dataclass(frozen=True, eq=False)
class View:
    """One frame as the detector sees it: `proxy` uint8 (h, w, 3), `gray` uint8 (h, w), `factor` = full size over proxy,
    x and y."""

    index: int
    proxy: np.ndarray
    gray: np.ndarray
    factor: tuple[float, float]


def make_view(index: int, picture: np.ndarray, proxy_side: int) -> View:
    """Return the frame with its longest side brought down to `proxy_side` (0 = as it is). ValueError for no picture."""
    import cv2

    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(
            f"frame {index} must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}"
        )
    height, width = picture.shape[:2]
    scale = proxy_side / max(height, width) if proxy_side else 1.0
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    factor = width / picture.shape[1], height / picture.shape[0]
    return View(index, picture, cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), factor)


def key_frames(n_frames: int, stride: int) -> list[int]:
    """Return 0, stride, 2 * stride, ... and the last frame."""
    keys = list(range(0, n_frames, stride))
    return keys if keys[-1] == n_frames - 1 else [*keys, n_frames - 1]


def thumbnail(view: View, box: Sequence[float], side: int = PATCH_SIDE) -> np.ndarray:
    """Return the area of a box, float32 (side, side) grey; a larger side shows its surroundings at the same scale."""
    import cv2

    share = side / PATCH_SIDE
    x1, y1, x2, y2 = (float(v) for v in box)
    size = [max(2, round(share * d / f)) for d, f in zip((x2 - x1, y2 - y1), view.factor, strict=True)]
    # getRectSubPix counts from pixel centres.
    centre = [c / 2 / f - 0.5 for c, f in zip((x1 + x2, y1 + y2), view.factor, strict=True)]
    area = cv2.getRectSubPix(view.gray, tuple(size), tuple(centre))
    return cv2.resize(area, (side, side), interpolation=cv2.INTER_AREA).astype(np.float32)


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """Return the normalised correlation of two thumbnails of one size; 0 where one of them is flat."""
    a, b = a - a.mean(), b - b.mean()
    if min(a.std(), b.std()) < _MIN_DEVIATION:
        return 0.0
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def best_likeness(area: np.ndarray, face: np.ndarray) -> float:
    """Return the highest likeness of a face thumbnail with any part of a larger area."""
    import cv2

    if min(area.std(), face.std()) < _MIN_DEVIATION:
        return 0.0
    return float(cv2.matchTemplate(area, face, cv2.TM_CCOEFF_NORMED).max())


def one_place(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two boxes can be one face a few frames apart: near each other and of like size."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    sides = [float((box[2:] - box[:2]).max()) for box in (a, b)]
    if min(sides) <= 0 or max(sides) > _MAX_GROWTH * min(sides):
        return False
    shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    union = sum((box[2:] - box[:2]).prod() for box in (a, b)) - shared
    shift = np.linalg.norm((a[:2] + a[2:] - b[:2] - b[2:]) / 2)
    return shared / union >= _MIN_IOU or shift <= _MAX_SHIFT * max(sides)


def shots(knots: Sequence[int], boxes: np.ndarray, lost: set[int]) -> list[list[int]]:
    """Return positions in `knots` grouped into stretches without a lost frame or a jump of the box between."""
    groups = [[0]]
    for at in range(1, len(knots)):
        broken = any(i in lost for i in range(knots[at - 1] + 1, knots[at]))
        if broken or not one_place(boxes[at - 1], boxes[at]):
            groups.append([])
        groups[-1].append(at)
    return groups


def smoothed(times: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values (K, ...) averaged half and half with the line between their neighbours: [1 2 1]/4 at equal steps.

    The ends stay, and so does any steady motion, also at unequal steps.
    """
    out = values.copy()
    if len(times) > 2:
        share = (times[1:-1] - times[:-2]) / (times[2:] - times[:-2])
        share = share.reshape(-1, *[1] * (values.ndim - 1))
        out[1:-1] = (values[1:-1] + values[:-2] * (1 - share) + values[2:] * share) / 2
    return out


def interpolated(times: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return values (K, D) at `wanted` times, linear between and constant outside: (len(wanted), D)."""
    right = np.clip(np.searchsorted(times, wanted), 1, max(1, len(times) - 1))
    if len(times) == 1:
        return np.repeat(values, len(wanted), axis=0)
    t0, t1 = times[right - 1], times[right]
    share = np.clip((wanted - t0) / (t1 - t0), 0, 1)[:, None]
    return values[right - 1] * (1 - share) + values[right] * share
