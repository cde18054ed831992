"""How much of the old garment is left in the ring inside the paint's border, where a feather and clearance show it."""

from __future__ import annotations

import numpy as np

from .distance import bounds, inside_distance
from .repaste import local_mean

RING_PX = 3
_CORE_PX = 6
_REACH_PX = 24
_MIN_CONTRAST = 0.05


def old_colour_ring(source: np.ndarray, result: np.ndarray, alpha: np.ndarray) -> tuple[int, int]:
    """Return (pixels that kept the old colour, pixels compared) of the ring within 3 px of the paint's outline.

    source, result: float32 (H,W,3) in 0..1; alpha: float32 (H,W), above 0 is paint. Both colours of a pixel are means over
    the paint more than 6 px from its outline, within 24 px: the source's is the old garment, the result's the new one. A
    pixel is compared where the source showed the old garment (nearer to it than half the way between both colours), and kept
    it if the result is nearer to the old colour than to the new one. Where there is no such paint near, or both colours are
    alike (less than 0.05 apart in RGB), nothing is compared: a garment with a pattern in both colours says little here.
    """
    inside = alpha > 0
    area = bounds(inside, 1)
    if area is None:
        return 0, 0
    distance = inside_distance(inside[area])
    core, ring = distance > _CORE_PX, (distance > 0) & (distance <= RING_PX)
    old, known = local_mean(source[area], core, _REACH_PX)
    new, _ = local_mean(result[area], core, _REACH_PX)
    apart = ((new - old) ** 2).sum(2)
    before, shown = source[area], result[area]
    compared = ring & known & (apart > _MIN_CONTRAST**2) & (((before - old) ** 2).sum(2) < apart / 4)
    nearer = ((shown - old) ** 2).sum(2) < ((shown - new) ** 2).sum(2)
    return int((compared & nearer).sum()), int(compared.sum())
