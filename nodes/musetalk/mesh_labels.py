"""Face-parsing labels without a parsing network: polygons of the face mesh in BiSeNet's classes.

`masks.mode_mask` takes them like the parser's. They are smoother than parsed ones and know no hair, hands or glasses in
front of the face. Source: spec/libraries.md section 4, classes of spec/musetalk.md 2.5.
"""

from __future__ import annotations

import numpy as np

from ..core import mesh_points as points
from .masks import LIPS, NOSE, PARSER_SIDE, SKIN

LEFT_EYE, RIGHT_EYE = 4, 5
"""Of the picture's left and right."""
MOUTH, UPPER_LIP, LOWER_LIP = LIPS
_FRACTION_BITS = 4
# Later ones lie on top. The whole mouth goes below the lips, so that crossed inner lips leave no hole of skin.
_POLYGONS = (
    (SKIN, points.FACE_OVAL),
    (NOSE, points.NOSE),
    (LEFT_EYE, points.LEFT_EYE),
    (RIGHT_EYE, points.RIGHT_EYE),
    (MOUTH, points.LIPS),
    (UPPER_LIP, points.UPPER_LIP),
    (LOWER_LIP, points.LOWER_LIP),
)


def mesh_labels(mesh: np.ndarray, crop: tuple[int, ...]) -> np.ndarray:
    """Return the label map of the crop square, uint8 (512, 512): 0 background, 1 skin, 4/5 eyes, 10 nose, 11 mouth, 12/13
    lips.

    Args:
        mesh: (468, 2) in pixels of the frame; what lies outside the square is cut off.
        crop: the eight numbers of `core.blend.crop_geometry`.

    ValueError for another mesh, one that is not finite, or an empty square.
    """
    import cv2

    mesh = np.asarray(mesh, np.float64)
    if mesh.shape != (468, 2) or not np.isfinite(mesh).all():
        raise ValueError(
            f"a face mesh must be finite (468, 2), got {mesh.shape}: only the light detector has one"
        )
    x_s, y_s, x_e, y_e = crop[:4]
    if x_e <= x_s or y_e <= y_s:
        raise ValueError(f"crop square {tuple(crop[:4])} is empty; crop_geometry gives x1 < x2 and y1 < y2")
    # Box coordinates have pixel centres at +0.5, fillPoly at 0.
    scaled = (mesh - (x_s, y_s)) * (PARSER_SIDE / (x_e - x_s), PARSER_SIDE / (y_e - y_s)) - 0.5
    far = 8 * PARSER_SIDE  # keeps the fixed-point coordinates in range for a wild mesh
    fixed = np.rint(scaled.clip(-far, far) * (1 << _FRACTION_BITS)).astype(np.int32)
    labels = np.zeros((PARSER_SIDE, PARSER_SIDE), np.uint8)
    for label, polygon in _POLYGONS:
        cv2.fillPoly(labels, [fixed[polygon]], int(label), shift=_FRACTION_BITS)
    return labels
