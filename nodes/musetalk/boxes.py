"""The face box MuseTalk was trained on, from 68 landmarks, with upstream's fallbacks.

Points are (68, 2) x,y in pixels in iBUG order (29 = the nose point), boxes (x1, y1, x2, y2) with x2, y2 exclusive.
The nose point is the middle of the box: the crop's black half begins there, so the upper edge mirrors the chin
around it. Source: spec/musetalk.md section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..avatars.build import Box

N_POINTS = 68
_NOSE = 29
NO_FACE = (0.0, 0.0, 0.0, 0.0)
"""What upstream's list of boxes holds for a frame without a face."""
DEFAULT_MARGIN = 10
"""Pixels v1.5 adds below the chin; v1.0 adds none."""


@dataclass(frozen=True)
class FaceBox:
    """A box and where it came from: the landmarks, or the detector when theirs is not usable."""

    box: Box
    from_detector: bool


def face_box(
    points: np.ndarray, detector_box: Sequence[int] | None, bbox_shift: int = 0, whole_pixels: bool = True
) -> FaceBox | None:
    """Return the box of one frame, or None where the detector finds no face (the landmarks are then ignored).

    Args:
        points: (68, 2); fractions are cut off toward zero, as upstream does.
        detector_box: the best detection, clipped at 0 and cut to whole pixels, or None.
        bbox_shift: pixels the nose point is moved down before the extremes are taken, v1.0's dial for how far
            the mouth opens. v1.5 keeps it 0.
        whole_pixels: upstream cuts every point first and doubles the cut nose, so its upper edge jumps by 2 pixels
            on a still, noisy face. False rounds the finished box instead.

    The box may leave the frame on the right and below. ValueError if `points` has another shape.
    """
    if detector_box is None:
        return None
    marks = _whole_pixels(points) if whole_pixels else np.array(points, np.float64)
    marks[_NOSE, 1] += bbox_shift  # in place: the extremes below see the moved point
    (x1, _), (x2, y2) = marks.min(0).tolist(), marks.max(0).tolist()
    y1 = max(0, 2 * marks[_NOSE, 1].item() - y2)
    x1, y1, x2, y2 = (round(v) for v in (x1, y1, x2, y2))
    if y2 - y1 <= 0 or x2 - x1 <= 0 or x1 < 0:
        return FaceBox(tuple(int(v) for v in detector_box), True)
    return FaceBox((x1, y1, x2, y2), False)


def add_margin(box: Box, frame_height: int, extra_margin: int = DEFAULT_MARGIN) -> Box:
    """Return v1.5's box: `extra_margin` pixels more below, cut at the frame's lower edge."""
    x1, y1, x2, y2 = box
    return x1, y1, x2, min(y2 + extra_margin, frame_height)


def shift_range(points: Sequence[np.ndarray]) -> tuple[int, int]:
    """Return upstream's advice for bbox_shift as (pixels up, pixels down), from the frames that have a face.

    Mean distances of the nose point to its neighbours on the bridge, cut to whole pixels; both are negative
    for a face upside down. ValueError without a frame (upstream divides by zero).
    """
    if not len(points):
        raise ValueError("no frame has a face: the range of bbox_shift cannot be estimated")
    rows = [_whole_pixels(p)[_NOSE - 1 : _NOSE + 2, 1].tolist() for p in points]
    up = sum(low - nose for _, nose, low in rows) / len(rows)
    down = sum(nose - high for high, nose, _ in rows) / len(rows)
    return int(up), int(down)


def range_text(points: Sequence[np.ndarray], bbox_shift: int = 0) -> str:
    """Return `shift_range` in upstream's words. ValueError without a frame."""
    up, down = shift_range(points)
    return f"[ -{up}~{down} ] , the current value: {bbox_shift}"


def _whole_pixels(points: np.ndarray) -> np.ndarray:
    marks = np.asarray(points).astype(np.int32)
    if marks.shape != (N_POINTS, 2):
        raise ValueError(f"face landmarks must be ({N_POINTS}, 2), got {marks.shape}: points 23..90 of 133")
    return marks
