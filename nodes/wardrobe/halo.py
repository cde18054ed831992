"""How much of the old garment is left in the ring inside the paint's border, where a feather and clearance show it."""

from __future__ import annotations

import numpy as np

from .distance import bounds, inside_distance
from .repaste import local_mean

RING_PX = 3
_CORE_PX = 10
"""Deeper than a mask usually grows (8 px), so that the colours are the garment's and not the wall's behind its hem."""
_REACH_PX = 24
_MIN_CONTRAST = 0.05
_SAME = 0.3
"""Dark hair beside a burgundy dress is 0.38 of the way to blue off."""


def old_colour_ring(source: np.ndarray, result: np.ndarray, alpha: np.ndarray) -> tuple[int, int]:
    """Return (pixels that kept the old colour, pixels compared) of the ring within 3 px of the paint's outline.

    source, result: float32 (H,W,3) in 0..1; alpha: float32 (H,W), above 0 is paint. Both colours of a pixel are means over
    the paint more than 10 px from its outline, within 24 px: the source's is the old garment, the result's the new one. A
    pixel is compared where the source showed the old garment (nearer to it than 0.3 of the way between both colours), and kept
    it if it went less than half of that way. Where there is no such paint near, or both colours are alike (less than 0.05
    apart in RGB), nothing is compared: a garment with a pattern in both colours says little here.
    """
    inside = alpha > 0
    area = bounds(inside, 1)
    if area is None:
        return 0, 0
    distance = inside_distance(inside[area])
    core, ring = distance > _CORE_PX, (distance > 0) & (distance <= RING_PX)
    old, known = local_mean(source[area], core, _REACH_PX)
    new, _ = local_mean(result[area], core, _REACH_PX)
    way = new - old
    apart = (way * way).sum(2)
    before, shown = source[area], result[area]
    compared = ring & known & (apart > _MIN_CONTRAST**2) & (((before - old) ** 2).sum(2) < _SAME**2 * apart)
    went = ((shown - before) * way).sum(2)
    return int((compared & (went < apart / 2)).sum()), int(compared.sum())
