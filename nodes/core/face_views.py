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
MAX_GROWTH = 1.7
"""Larger over smaller side of two boxes, above which they are not one face a few frames apart."""
_NEARER = 1e-4
_COLOUR_COUNTS = 5.0
"""What a difference in colour takes off a likeness; two people in one light differ by 0.02 and more, one by 0.005."""
_INNER = 0.8
"""Share of a box's side that shows a face and little background."""
_EVEN = 0.012
"""Deviation from steady motion over the face's width that is as often motion as the detector's noise."""
_WINDOW, _STEP = 0.6, 0.45
"""Side and distance of the windows in which small faces are looked for, over the picture's shorter side."""


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


def shift_between(area: np.ndarray, face: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the highest likeness of a face thumbnail with any part of a larger area, and how far from the area's middle
    that part is: float64 (2,) x, y in thumbnail pixels with fractions, infinite where it may lie outside."""
    import cv2

    nowhere = np.full(2, np.inf)
    if min(area.std(), face.std()) < _MIN_DEVIATION:
        return 0.0, nowhere
    values = cv2.matchTemplate(area, face, cv2.TM_CCOEFF_NORMED).astype(np.float64)
    away = np.arange(len(values)) - (len(values) - 1) / 2
    values -= _NEARER * (
        away[:, None] ** 2 + away**2
    )  # along an even shade every place is alike: none is a shift
    y, x = np.unravel_index(values.argmax(), values.shape)
    if not (0 < y < values.shape[0] - 1 and 0 < x < values.shape[1] - 1):
        return float(values[y, x]), nowhere
    peak = np.array([_peak(values[y, x - 1 : x + 2]), _peak(values[y - 1 : y + 2, x])])
    return float(values[y, x]), np.array([x, y]) + peak - (values.shape[0] - 1) / 2


def _peak(values: np.ndarray) -> float:
    """Return the place of the parabola's top through three values, the middle one the highest: -0.5..0.5."""
    bend = values[0] - 2 * values[1] + values[2]
    return 0.0 if bend == 0 else float((values[0] - values[2]) / 2 / bend)


@dataclass(frozen=True, eq=False)
class Look:
    """What a face looks like: `patch`, the thumbnail of its box's middle, which has little background in it, and `colour`
    float64 (3,), the shares of R, G, B, 0..1."""

    patch: np.ndarray
    colour: np.ndarray


def make_look(view: View, box: Sequence[float]) -> Look:
    """Return the look of a box's area."""
    return Look(thumbnail(view, _inner(box)), _colour(view, box))


def look_likeness(view: View, box: Sequence[float], looks: Sequence[Look]) -> float:
    """Return how much a box's area is like the most similar of `looks`, grey and colour: at most 1. A flat area says
    nothing against."""
    area, colour = thumbnail(view, _inner(box), SEARCH_SIDE), _colour(view, box)
    return max(
        (1.0 if min(area.std(), look.patch.std()) < _MIN_DEVIATION else best_likeness(area, look.patch))
        - _COLOUR_COUNTS * float(np.abs(colour - look.colour).max())
        for look in looks
    )


def _inner(box: Sequence[float]) -> np.ndarray:
    box = np.asarray(box, np.float64)
    middle = np.tile((box[:2] + box[2:]) / 2, 2)
    return middle + _INNER * (box - middle)


def _colour(view: View, box: Sequence[float]) -> np.ndarray:
    """Return the mean shares of R, G, B in the middle of a box."""
    import cv2

    x1, y1, x2, y2 = (float(v) for v in box)
    size = [max(2, round(d / 2 / f)) for d, f in zip((x2 - x1, y2 - y1), view.factor, strict=True)]
    centre = [c / 2 / f - 0.5 for c, f in zip((x1 + x2, y1 + y2), view.factor, strict=True)]
    mean = cv2.getRectSubPix(view.proxy, tuple(size), tuple(centre)).reshape(-1, 3).mean(0) + 1
    return mean / mean.sum()


def one_place(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two boxes can be one face a few frames apart: near each other and of like size."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    sides = [float((box[2:] - box[:2]).max()) for box in (a, b)]
    if min(sides) <= 0 or max(sides) > MAX_GROWTH * min(sides):
        return False
    shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    union = sum((box[2:] - box[:2]).prod() for box in (a, b)) - shared
    shift = np.linalg.norm((a[:2] + a[2:] - b[:2] - b[2:]) / 2)
    return shared / union >= _MIN_IOU or shift <= _MAX_SHIFT * max(sides)


def shared_part(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the area two boxes share over that of the smaller one, 0..1."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    smaller = min(float(np.clip(box[2:] - box[:2], 0, None).prod()) for box in (a, b))
    return float(shared) / smaller if smaller > 0 else 0.0


def shots(knots: Sequence[int], boxes: np.ndarray, lost: set[int]) -> list[list[int]]:
    """Return positions in `knots` grouped into stretches without a lost frame or a jump of the box between."""
    groups = [[0]]
    for at in range(1, len(knots)):
        broken = any(i in lost for i in range(knots[at - 1] + 1, knots[at]))
        if broken or not one_place(boxes[at - 1], boxes[at]):
            groups.append([])
        groups[-1].append(at)
    return groups


def smoothed(times: np.ndarray, values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return values (K, ...) averaged half and half with the line between their neighbours: [1 2 1]/4 at equal steps.

    The ends stay, and so does any steady motion, also at unequal steps. weights: (K,) 0..1, 0 leaves a row as it is.
    """
    out = values.copy()
    if len(times) > 2:
        weight = 1.0 if weights is None else weights[1:-1].reshape(-1, *[1] * (values.ndim - 1))
        out[1:-1] -= (values[1:-1] - _lines(times, values)) / 2 * weight
    return out


def evenness(times: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return for points (K, P, 2) the part of each row's deviation from steady motion that is the detector's noise and
    not the face's own motion or growth: (K,) 0..1."""
    even = np.ones(len(times))
    if len(times) > 2:
        middle = points.mean(1)
        size = np.sqrt(((points - middle[:, None]) ** 2).sum(2).mean(1))
        width = np.maximum(np.ptp(points[..., 0], axis=1), 1e-9)
        place = np.concatenate([middle, size[:, None]], axis=1)
        away = np.abs(place[1:-1] - _lines(times, place)).max(1) / width[1:-1]
        even[1:-1] = 1 / (1 + (away / _EVEN) ** 4)
    return even


def _lines(times: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return where the lines between the neighbours of all rows but the first and last pass their times."""
    share = (times[1:-1] - times[:-2]) / (times[2:] - times[:-2])
    share = share.reshape(-1, *[1] * (values.ndim - 1))
    return values[:-2] * (1 - share) + values[2:] * share


def interpolated(times: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return values (K, D) at `wanted` times, linear between and constant outside: (len(wanted), D)."""
    right = np.clip(np.searchsorted(times, wanted), 1, max(1, len(times) - 1))
    if len(times) == 1:
        return np.repeat(values, len(wanted), axis=0)
    t0, t1 = times[right - 1], times[right]
    share = np.clip((wanted - t0) / (t1 - t0), 0, 1)[:, None]
    return values[right - 1] * (1 - share) + values[right] * share


def nearest(known: np.ndarray, count: int) -> np.ndarray:
    """Return for each of 0..count-1 the nearest of `known`, sorted and not empty; between two the earlier one."""
    at = np.arange(count)
    after = np.searchsorted(known, at).clip(max=len(known) - 1)
    before = (after - 1).clip(0)
    return known[np.where(at - known[before] <= known[after] - at, before, after)]


def windows(width: int, height: int) -> list[tuple[int, int, int]]:
    """Return squares that cover a picture and overlap by a quarter: left, top, side; for faces too small to be seen in
    the whole."""
    side = max(1, round(_WINDOW * min(width, height)))
    starts = []
    for length in (width, height):
        count = 1 + int(np.ceil((length - side) / max(1, round(_STEP * min(width, height)))))
        starts.append(np.linspace(0, length - side, count).round().astype(int).tolist())
    return [(x, y, side) for y in starts[1] for x in starts[0]]
