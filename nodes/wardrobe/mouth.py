"""Masks of the mouth on the plate, MuseTalk's and by hand: the lips alone, nothing of the nose.

Coordinates belong to the plate (the picture that is pasted onto), frame by frame of it: indexed by the frame of speech,
a mask wanders off the face, and with it the nostrils of another moment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..core.mouth import INNER, mouth_ellipse
from .checks import check_choice, check_range, problem

NODE = "Mouth Mask"
PRESETS = ("lips", "lower face box")
_BOX, _BOX_SIDE, _KERNEL, _SIGMA = (181, 280, 331, 410), 512, 31, 5.0


def mouth_alpha(width: int, height: int, preset: str = PRESETS[0], inner: float = INNER) -> np.ndarray:
    """Return the alpha of a face crop, float32 (height, width).

    lips: an ellipse, in units of a 256 px crop centre (127, 196) and radii 66 and 38; 1 inside `inner` of the radius,
    cosine to 0 at the edge, exactly 0 in rows up to 158 and from 234 on. lower face box: x 181..331, y 280..410 of 512
    with a Gaussian of 31x31, sigma 5, which bleeds 15 px beyond it: cut at the box.
    """
    check_choice(NODE, "preset", preset, PRESETS)
    check_range(NODE, "inner", inner, 0.0, 0.95)
    if min(width, height) < 16:
        raise problem(NODE, "the face", f"{width}x{height}", "at least 16x16 px")
    if preset == PRESETS[0]:
        return mouth_ellipse(width, height, inner).astype(np.float32)
    return _lower_face(width, height)


def plate_masks(
    boxes: Sequence[tuple[int, int, int, int] | None],
    size: tuple[int, int],
    preset: str = PRESETS[0],
    inner: float = INNER,
) -> torch.Tensor:
    """Return the MASK (T,H,W) of a plate of `size` (width, height).

    boxes: the face box x1,y1,x2,y2 in pixels of each plate frame, None where there is no face (mask 0). What leaves the
    frame is cut off.
    """
    width, height = size
    masks = torch.zeros(len(boxes), height, width)
    drawn: dict[tuple[int, int], torch.Tensor] = {}
    for t, box in enumerate(boxes):
        if box is None:
            continue
        x1, y1, x2, y2 = (int(v) for v in box)
        if (x2 - x1, y2 - y1) not in drawn:
            drawn[x2 - x1, y2 - y1] = torch.from_numpy(mouth_alpha(x2 - x1, y2 - y1, preset, inner))
        left, top, right, bottom = max(0, x1), max(0, y1), min(width, x2), min(height, y2)
        if left < right and top < bottom:
            alpha = drawn[x2 - x1, y2 - y1]
            masks[t, top:bottom, left:right] = alpha[top - y1 : bottom - y1, left - x1 : right - x1]
    return masks


def _lower_face(width: int, height: int) -> np.ndarray:
    import cv2

    mask = np.zeros((_BOX_SIDE, _BOX_SIDE), np.float32)
    x1, y1, x2, y2 = _BOX
    mask[y1:y2, x1:x2] = 1
    soft = cv2.GaussianBlur(mask, (_KERNEL, _KERNEL), _SIGMA) * mask
    if (width, height) == (_BOX_SIDE, _BOX_SIDE):
        return soft
    scaled = cv2.resize(soft, (width, height), interpolation=cv2.INTER_LINEAR)
    # Cut once more: between the last pixel inside and the first outside it would fade over the box's edge.
    y, x = np.ogrid[0:height, 0:width]
    x, y = (x + 0.5) / width * _BOX_SIDE, (y + 0.5) / height * _BOX_SIDE
    return scaled * ((x >= x1) & (x < x2) & (y >= y1) & (y < y2))
