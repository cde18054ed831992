"""MediaPipe's 478-point mesh (468 and two irises of five) around its networks: blaze_face.onnx and face_mesh.onnx.

Pictures are uint8 (H, W, 3) RGB. A box network gives the square that the mesh is found in, turned so that the eyes are
level. Upstream scales a box's x by the picture's height and y by its width, which is harmless for the square crops that
it looks at; here every axis has its own. Source: spec/ditto.md 6.5 and 14.12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core.face_mesh import CROP_SCALE, NMS_IOU, blaze_anchors, blaze_candidates, merge_overlapping

BLAZE_SIDE, N_ANCHORS = 128, 896
MESH_SIDE, N_MESH = 256, 478

BlazeNet = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(1, 128, 128, 3) -> regressors (1, 896, 16), classificators (1, 896, 1)."""
MeshNet = Callable[[np.ndarray], np.ndarray]
"""(1, 256, 256, 3) -> 1434 numbers: x, y, z of 478 points in pixels of the input."""


@dataclass(frozen=True)
class Roi:
    """The square that the mesh is found in: centre (x, y) and side in pixels, angle in radians of the line of the eyes."""

    centre: tuple[float, float]
    side: float
    angle: float

    @property
    def axes(self) -> np.ndarray:
        """Return (2, 2): what a step to the right and one down in the square are in the picture."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        return np.array([[cos, sin], [-sin, cos]])


def blaze_input(picture: np.ndarray) -> np.ndarray:
    """Return the picture as the box network takes it: (1, 128, 128, 3) float32 in -1..1, its aspect not kept."""
    import cv2

    small = cv2.resize(np.ascontiguousarray(picture), (BLAZE_SIDE, BLAZE_SIDE))
    return (small.astype(np.float32) / 127.5 - 1)[None]


def blaze_faces(regressors: np.ndarray, classificators: np.ndarray) -> np.ndarray:
    """Return the faces, best first: (n, 17) score, box x1, y1, x2, y2, six key points, as shares of width and height.

    Overlapping candidates are one, their mean weighted by score; the score is their plain mean. ValueError for outputs
    of other shapes.
    """
    if regressors.size != 16 * N_ANCHORS or classificators.size != N_ANCHORS:
        raise ValueError(
            f"the box network gave {regressors.shape} and {classificators.shape}, expected (1, {N_ANCHORS}, 16) and "
            f"(1, {N_ANCHORS}, 1): it is another network"
        )
    rows = blaze_candidates(
        classificators.ravel(), regressors.reshape(-1, 16), blaze_anchors(N_ANCHORS), BLAZE_SIDE
    )
    rows[:, 1:] /= BLAZE_SIDE
    merged = merge_overlapping(rows, NMS_IOU, mean_score=True)
    return np.stack(merged) if merged else rows


def mesh_roi(box: np.ndarray, left: np.ndarray, right: np.ndarray) -> Roi:
    """Return the square around a box (x1, y1, x2, y2) in pixels, turned as the line from one eye to the other.

    left, right: x, y in any unit that is the same along both axes.
    """
    low, high = np.asarray(box[:2], np.float64), np.asarray(box[2:4], np.float64)
    across = np.asarray(right, np.float64) - np.asarray(left, np.float64)
    centre = (low + high) / 2
    angle = float(np.arctan2(across[1], across[0]))
    return Roi(tuple(centre.tolist()), CROP_SCALE * float((high - low).max()), angle)


def mesh_input(picture: np.ndarray, roi: Roi) -> np.ndarray:
    """Return the square as the mesh network takes it: (1, 256, 256, 3) float32 in 0..1, black outside the picture."""
    import cv2

    y, x = np.mgrid[:MESH_SIDE, :MESH_SIDE]
    places = (np.stack([x, y], -1) - MESH_SIDE / 2) @ (roi.side / MESH_SIDE * roi.axes) + roi.centre
    # To 1/32 of a pixel, as OpenCV 4.10's warpAffine, which the reference was made with; 5.0's does not round.
    places = (np.floor(places * 32 + 0.5) / 32).astype(np.float32)
    fixed, rest = cv2.convertMaps(places[..., 0], places[..., 1], cv2.CV_16SC2)
    square = cv2.remap(np.ascontiguousarray(picture), fixed, rest, cv2.INTER_LINEAR)
    return (square.astype(np.float32) / 255)[None]


def mesh_points(output: np.ndarray, roi: Roi) -> np.ndarray:
    """Return the points (478, 3), float32, of the mesh network's output: x, y, z in pixels. ValueError for others."""
    if output.size != 3 * N_MESH:
        raise ValueError(
            f"the mesh network gave {output.shape}, expected {3 * N_MESH} numbers: another network"
        )
    raw = np.asarray(output, np.float64).reshape(N_MESH, 3) / MESH_SIDE
    flat = (raw[:, :2] - 0.5) * roi.side @ roi.axes + roi.centre
    return np.concatenate([flat, raw[:, 2:] * roi.side], 1).astype(np.float32)


def find_mesh(picture: np.ndarray, blaze: BlazeNet, mesh: MeshNet) -> np.ndarray | None:
    """Return the best face's points (478, 3): x / width, y / height, z / width, float32; None without a face."""
    height, width = picture.shape[:2]
    faces = blaze_faces(*blaze(blaze_input(picture)))
    if not len(faces):
        return None
    size = np.array([width, height], np.float64)
    box, eyes = (faces[0, 1:5].reshape(2, 2) * size).ravel(), faces[0, 5:9].reshape(2, 2) * size
    roi = mesh_roi(box, *eyes)
    if not roi.side > 0:
        return None
    return mesh_points(mesh(mesh_input(picture, roi)), roi) / np.array([width, height, width], np.float32)
