"""The 106 and the 203 landmarks around their networks: what goes in, and where what comes out lies in the picture.

Pictures are uint8 (H, W, 3) RGB, points (n, 2) x, y in pixels of the picture. A network is passed in as a function from
its input to its output. The 106-point network sees BGR, as InsightFace's detector does (see `detect`).
Source: spec/ditto.md 6.3, 6.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .crop import (
    LANDMARK_SCALE,
    LANDMARK_SHIFT,
    LANDMARK_SIZE,
    crop_matrices,
    crop_picture,
    face_box,
    move_points,
)

SIDE_106 = 192
SCALE_106 = 1.5
"""Side of the square that the 106 points are found in, over the longer side of the face's box."""
N_106, N_203 = 106, 203

Net = Callable[[np.ndarray], np.ndarray]


def matrix_106(box: Sequence[float]) -> np.ndarray:
    """Return the map from the picture to the 106-point network's square, float64 (2, 3); the box lies in its middle.

    box: x1, y1, x2, y2; further numbers are passed over. ValueError for a box without extent.
    """
    x1, y1, x2, y2 = (float(v) for v in box[:4])
    longer = max(x2 - x1, y2 - y1)
    if not longer > 0:
        raise ValueError(f"a face box of {x2 - x1:g}x{y2 - y1:g} pixels has no extent: nothing to look at")
    scale, half = SIDE_106 / (SCALE_106 * longer), SIDE_106 / 2
    return np.array([[scale, 0, half - scale * (x1 + x2) / 2], [0, scale, half - scale * (y1 + y2) / 2]])


def input_106(picture: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the square as the network takes it: (1, 3, 192, 192) float32, 0..255, blue first, black outside."""
    import cv2

    square = cv2.warpAffine(np.ascontiguousarray(picture), matrix, (SIDE_106, SIDE_106))
    return np.ascontiguousarray(square[..., ::-1].astype(np.float32).transpose(2, 0, 1)[None])


def points_106(output: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the points (106, 2), float32, of the network's output, its last 106 pairs in -1..1. ValueError for fewer."""
    pairs = np.asarray(output, np.float64).reshape(-1, 2) if output.size % 2 == 0 else output[:0]
    if len(pairs) < N_106:
        raise ValueError(f"the {N_106}-point network gave {output.shape}: it is another network")
    placed = (pairs[-N_106:] + 1) * (SIDE_106 / 2)
    return ((placed - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T).astype(np.float32)


def find_106(picture: np.ndarray, box: Sequence[float], net: Net) -> np.ndarray:
    """Return the 106 landmarks (106, 2) of the face in `box`; errors as `matrix_106` and `points_106`."""
    matrix = matrix_106(box)
    return points_106(net(input_106(picture, matrix)), matrix)


def input_203(crop: np.ndarray) -> np.ndarray:
    """Return a crop of 224 pixels as the network takes it: (1, 3, 224, 224) float32 RGB in 0..1."""
    return np.ascontiguousarray((crop.astype(np.float32) / 255)[None].transpose(0, 3, 1, 2))


def points_203(output: np.ndarray, c2o: np.ndarray | None = None) -> np.ndarray:
    """Return the points (203, 2), float32, of the network's output, 0..1 in the crop.

    c2o: of the crop; without it the points are those of the crop. ValueError for another number of points.
    """
    if output.size != 2 * N_203:
        raise ValueError(f"the {N_203}-point network gave {output.shape}: it is another network")
    points = np.asarray(output, np.float32).reshape(N_203, 2) * LANDMARK_SIZE
    return points if c2o is None else move_points(points, c2o)


def find_203(picture: np.ndarray, points: np.ndarray, net: Net) -> np.ndarray:
    """Return the 203 landmarks of the face around `points`: its 106, or the 203 of the frame before."""
    matrices = crop_matrices(face_box(points, LANDMARK_SCALE, LANDMARK_SHIFT), LANDMARK_SIZE)
    return points_203(net(input_203(crop_picture(picture, matrices, LANDMARK_SIZE))), matrices.c2o)
