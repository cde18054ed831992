"""Which points of the 468-point face mesh make the 68 iBUG points, the face's outline, lips, eyes and nose.

Indices are those of MediaPipe's canonical face model. "Left" is the picture's left for a face that looks into the
camera upright. Outlines are closed polygons without a repeated last point.
"""

from __future__ import annotations

import numpy as np

JAW = (162, 234, 93, 58, 172, 136, 149, 148, 152, 377, 378, 365, 397, 288, 323, 454, 389)
BROWS = (71, 63, 105, 66, 107, 336, 296, 334, 293, 301)
NOSE_BRIDGE = (168, 197, 5, 4)
NOSTRILS = (75, 97, 2, 326, 305)
EYES = (33, 160, 158, 133, 153, 144, 362, 385, 387, 263, 373, 380)
OUTER_LIPS = (61, 39, 37, 0, 267, 269, 291, 405, 314, 17, 84, 181)
INNER_LIPS = (78, 82, 13, 312, 308, 317, 14, 87)
IBUG_68 = np.array(JAW + BROWS + NOSE_BRIDGE + NOSTRILS + EYES + OUTER_LIPS + INNER_LIPS)
"""Mesh index of each of the 68 points. Point 29, which halves MuseTalk's box, is the mesh's 5."""

FACE_OVAL = np.array(
    (10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377)
    + (152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109)
)
_OUTER_UPPER = (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291)
_OUTER_LOWER = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291)
_INNER_UPPER = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
_INNER_LOWER = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
UPPER_LIP = np.array(_OUTER_UPPER + _INNER_UPPER[::-1])
LOWER_LIP = np.array(_OUTER_LOWER + _INNER_LOWER[::-1])
LIPS = np.array(_OUTER_UPPER + _OUTER_LOWER[-2:0:-1])
LEFT_EYE = np.array((33, 7, 163, 144, 145, 153, 154, 155, 133, 173, 157, 158, 159, 160, 161, 246))
RIGHT_EYE = np.array((362, 382, 381, 380, 374, 373, 390, 249, 263, 466, 388, 387, 386, 385, 384, 398))
EYE_CORNERS = (33, 263)
"""Outer corners: the line that shows the head's roll."""
NOSE = np.array(
    (168, 193, 245, 188, 174, 236, 198, 209, 49, 48, 64, 98, 97, 2)
    + (326, 327, 294, 278, 279, 429, 420, 456, 399, 412, 465, 417)
)


def ibug_points(mesh: np.ndarray) -> np.ndarray:
    """Return the 68 points, float32 (68, 2), of a mesh (468, 2). ValueError for another shape."""
    if mesh.shape != (468, 2):
        raise ValueError(f"a face mesh must be (468, 2), got {mesh.shape}")
    return mesh[IBUG_68].astype(np.float32)
