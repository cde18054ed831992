"""The ellipse of the lips in a face crop, for masks of any engine."""

from __future__ import annotations

import numpy as np

CROP_SIDE = 256
CENTRE = (127.0, 196.0)
RADII = (66.0, 38.0)
"""In pixels of a crop of 256x256. Rows up to 158 and from 234 on lie outside: the nostrils are above."""
INNER = 0.6


def mouth_ellipse(width: int, height: int, inner: float = INNER) -> np.ndarray:
    """Return float64 (height, width): 1 inside `inner` of the ellipse's radius, cosine to exactly 0 at its edge.

    width, height: of the face box in pixels, scaled from 256x256 by pixel centres.
    """
    y, x = np.ogrid[0:height, 0:width]
    x = (x + 0.5) / width * CROP_SIDE - 0.5
    y = (y + 0.5) / height * CROP_SIDE - 0.5
    radius = np.hypot((x - CENTRE[0]) / RADII[0], (y - CENTRE[1]) / RADII[1])
    fade = ((radius - inner) / (1 - inner)).clip(0, 1)
    return (1 + np.cos(np.pi * fade)) / 2
