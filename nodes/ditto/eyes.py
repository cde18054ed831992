"""How far the eyes are open and where they look, from points of MediaPipe's face mesh.

Points are (468 or 478, 2 or 3); only ratios count, so any unit will do that is the same along every axis. "Left" is the
eye at the picture's left, as the goldens name it. Source: spec/ditto.md 6.5.
"""

from __future__ import annotations

import numpy as np

_CORNERS = np.array([[33, 133], [263, 362]])
"""Outer and inner corner, left eye and right eye."""
_LIDS = np.array([[[145, 159], [144, 160], [153, 158]], [[374, 386], [373, 387], [380, 385]]])
"""Three pairs of points across each eye, lower and upper lid."""
_IRISES = np.array([468, 473])
_TINY = 1e-8


def eye_open(points: np.ndarray) -> np.ndarray:
    """Return (2,) float32: the sum of three heights of the left and of the right eye over its width; 0 is shut.

    In two dimensions a turned head narrows the width and not the heights, so the same eye counts as more open.
    """
    points = np.asarray(points, np.float64)
    heights = np.linalg.norm(points[_LIDS[..., 0]] - points[_LIDS[..., 1]], axis=-1).sum(1)
    return (heights / (np.linalg.norm(eye_axes(points), axis=1) + _TINY)).astype(np.float32)


def eye_axes(points: np.ndarray) -> np.ndarray:
    """Return (2, 2 or 3): from the inner to the outer corner of each eye."""
    return points[_CORNERS[:, 0]] - points[_CORNERS[:, 1]]


def iris_ways(points: np.ndarray) -> np.ndarray:
    """Return (2, 3): from the middle of each eye's corners to its iris. points: (478, 3)."""
    return points[_IRISES] - points[_CORNERS].mean(1)


def eye_ball(points: np.ndarray) -> np.ndarray:
    """Return (6,) float32: x left, x right, y left, y right, z left, z right of (unit(way) - unit(axis)) * |way|.

    way: of `iris_ways`, axis: of `eye_axes`. points: (478, 3). An iris in the very middle gives 0, where upstream divides
    by 0.
    """
    points = np.asarray(points, np.float64)
    ways, axes = iris_ways(points), eye_axes(points)
    axes = axes / (np.linalg.norm(axes, axis=1, keepdims=True) + _TINY)
    return (ways - axes * np.linalg.norm(ways, axis=1, keepdims=True)).T.ravel().astype(np.float32)


NO_EYE_BALL = np.zeros(6, np.float32)
"""Of a mesh without irises: they are taken to lie in the middle of the eyes."""
