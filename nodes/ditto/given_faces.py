"""Registration without a detector: the crop that a given face box stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..avatars.build import Box
from ..core.face_views import nearest
from .crop import CROP_SCALE, CROP_SHIFT, FaceBox, crop_matrices
from .eyes import NO_EYE_BALL
from .register import Registered

OPEN_EYES = (0.9, 0.9)
"""Openness of open eyes, 0.84 to 0.94 measured on the demo presenters: a box does not tell it."""
_EXTENT, _MIDDLE = 1.47, 0.19
"""Side of the square around brows, chin and temples, and its middle below the nose, in half heights of the box. Measured
on the demo presenters; crops then differ from those of found landmarks by 2 % in size and 1 % in place."""


def crop_of_box(box: Box) -> np.ndarray:
    """Return c2o (3,3) float32 of an upright face whose box has the tip of the nose at half height and its lower edge
    just below the chin, as MuseTalk's boxes are."""
    x1, y1, x2, y2 = box
    half = (y2 - y1) / 2
    side = CROP_SCALE * _EXTENT * half
    centre = (x1 + x2) / 2 + CROP_SHIFT[0] * side, (y1 + y2) / 2 + _MIDDLE * half + CROP_SHIFT[1] * side
    return crop_matrices(FaceBox(centre, (side, side), 0.0)).c2o


def given(boxes: Sequence[Box | None]) -> Callable[[np.ndarray], Registered]:
    """Return what registers frames by `boxes`: one for all, or one (or None) a frame. Eyes count as open.

    ValueError, when called, for another number of boxes, or none at all.
    """

    def register(frames: np.ndarray) -> Registered:
        n = len(frames)
        placed = list(boxes) * n if len(boxes) == 1 else list(boxes)
        if len(placed) != n:
            raise ValueError(f"{n} frames and {len(placed)} boxes; give one box, or None, for each frame")
        found = np.array([box is not None for box in placed])
        if not found.any():
            raise ValueError("no frame has a face; give a box as x1,y1,x2,y2")
        c2o = np.stack([crop_of_box(placed[i]) for i in nearest(np.flatnonzero(found), n)])
        eyes = np.tile(np.float32(OPEN_EYES), (n, 1))
        return Registered(c2o, found, eyes, np.tile(np.float32(NO_EYE_BALL), (n, 1)))

    return register
