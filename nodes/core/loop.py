"""Does a clip's end meet its start? Then it can loop; otherwise it is played forward and back.

RMS values are in 0..1 of full scale, over a proxy of the picture whose longest side is PROXY_SIDE. Source of the
limit 0.015 between last and first pose: spec/system.md 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .timeline import CYCLES

PROXY_SIDE = 96
LOCK_RMS = 0.015
LIVELY_RMS = 0.05
"""A clip in lively motion has steps above LOCK_RMS everywhere: its seam may be as big as they are, up to this."""
_ORDINARY = 1.25
AUTO_CYCLES = ("auto", *CYCLES)


@dataclass(frozen=True)
class LoopCheck:
    """locked: the last frame flows into the first. boundary_rms: step over the seam; typical_rms: median step between
    neighbours. best_end: how many frames to keep for the best seam (n if the clip is locked as it is)."""

    locked: bool
    boundary_rms: float
    typical_rms: float
    best_end: int


def check_loop(frame: Callable[[int], np.ndarray], n: int, boxes: np.ndarray | None = None) -> LoopCheck:
    """Compare the seam of a clip with its other steps.

    Args:
        frame: index -> uint8 (H,W,3) RGB; each index is asked for once, in order.
        n: frames of the clip, at least 1.
        boxes: (n,4) face boxes x1,y1,x2,y2 in pixels. The upper half of the face is then compared on its own as
            well, for a small face's jump drowns in a quiet background; the mouth is painted over anyway.

    ValueError if n is below 1 or the boxes are not n.
    """
    if n < 1:
        raise ValueError(f"a clip needs at least one frame, this one has {n}")
    if boxes is not None and np.shape(boxes) != (n, 4):
        raise ValueError(f"boxes have shape {np.shape(boxes)}, must be ({n}, 4)")
    if n == 1:
        return LoopCheck(True, 0.0, 0.0, 1)
    area = None if boxes is None else _face_area(np.asarray(boxes, np.float64))
    proxies = [_proxies(frame(i), area) for i in range(n)]
    steps = [_rms(a, b) for a, b in zip(proxies, proxies[1:], strict=False)]
    typical = float(np.median(steps))
    # A cut in the first half would throw away more than it mends.
    ends = {end: _rms(proxies[end - 1], proxies[0]) for end in range(max(2, (n + 1) // 2), n + 1)}
    # Where a head sways fastest its steps are above the median: those on both sides of the seam count as well.
    usual = {end: max(typical, min(steps[0], steps[end - 2])) for end in ends}
    fitting = [end for end, seam in ends.items() if _is_locked(seam, usual[end])]
    best = max(fitting) if fitting else min(ends, key=lambda end: (ends[end], -end))
    return LoopCheck(n in fitting, ends[n], typical, best)


def choose_cycle(
    wanted: str, frame: Callable[[int], np.ndarray], n: int, boxes: np.ndarray | None = None
) -> str:
    """Return still, loop or pingpong for a clip of `n` frames.

    One frame is always still. "auto" looks at the frames (`check_loop`): loop where they are locked, else pingpong.
    ValueError for an unknown word.
    """
    if wanted not in AUTO_CYCLES:
        raise ValueError(f"cycle {wanted!r} is unknown; use one of {', '.join(AUTO_CYCLES)}")
    if n == 1:
        return "still"
    if wanted != "auto":
        return wanted
    return "loop" if check_loop(frame, n, boxes).locked else "pingpong"


def _is_locked(seam: float, usual: float) -> bool:
    return seam < LOCK_RMS or seam <= min(_ORDINARY * usual, LIVELY_RMS)


def _face_area(boxes: np.ndarray) -> tuple[float, float, float, float]:
    """Return what the upper halves of all boxes cover: the camera's view, so that a head that moves is seen to."""
    x1, y1 = boxes[:, 0].min(), boxes[:, 1].min()
    x2, y2 = boxes[:, 2].max(), ((boxes[:, 1] + boxes[:, 3]) / 2).max()
    return x1, y1, x2, y2


def _proxies(picture: np.ndarray, area: tuple[float, float, float, float] | None) -> tuple[np.ndarray, ...]:
    """Return the whole picture and the face's area, small, uint8."""
    if area is None:
        return (_small(picture),)
    height, width = picture.shape[:2]
    x1, y1 = max(0, int(area[0])), max(0, int(area[1]))
    x2, y2 = min(width, int(np.ceil(area[2]))), min(height, int(np.ceil(area[3])))
    if x1 >= x2 or y1 >= y2:
        return (_small(picture),)
    return _small(picture), _small(picture[y1:y2, x1:x2])


def _small(picture: np.ndarray) -> np.ndarray:
    import cv2

    scale = PROXY_SIDE / max(picture.shape[:2])
    if scale >= 1:
        return picture.copy()
    size = [max(1, round(side * scale)) for side in picture.shape[1::-1]]
    return cv2.resize(np.ascontiguousarray(picture), size, interpolation=cv2.INTER_AREA)


def _rms(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> float:
    steps = [x.astype(np.float32) - y for x, y in zip(a, b, strict=True)]
    return max(float(np.sqrt(np.mean(np.square(d)))) / 255 for d in steps)
