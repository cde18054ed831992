"""Crop geometry of Ditto: an upright square around a face, from its landmarks, and the pixels inside it.

Points are (n, 2) x, y in pixels of the picture; matrices 3x3 float32, o2c from the picture to the crop, c2o back.
Source: spec/ditto.md 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.packet_schema import CROP_SIDE as CROP_SIZE

CROP_SCALE, CROP_SHIFT = 2.3, (0.0, -0.125)
"""Side of the crop / extent of the landmarks; shift of its centre in sides, along and down the face."""
LANDMARK_SCALE, LANDMARK_SHIFT, LANDMARK_SIZE = 1.5, (0.0, -0.1), 224
"""The same for the crop that the 203 landmarks are found in, and its side in pixels."""
NETWORK_SIZE = 256
_TOO_SHORT = 1e-3

# Number of landmarks -> the points whose mean is the left eye, the right eye, the mouth.
_FEATURES: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    203: ((0, 6, 12, 18), (24, 30, 36, 42), (48, 66)),
    106: ((33, 35, 40, 39), (87, 89, 94, 93), (52, 61)),
    101: ((39, 42, 45, 48), (51, 54, 57, 60), (75, 81)),
    68: ((36, 39), (42, 45), (48, 54)),
    9: ((2, 3), (0, 1), (5, 6)),
    5: ((0,), (1,), (3, 4)),
}


@dataclass(frozen=True)
class FaceBox:
    """A rectangle that stands upright in the face: centre (x, y), size (width, height) in pixels, angle in radians."""

    centre: tuple[float, float]
    size: tuple[float, float]
    angle: float

    def corners(self, upright: bool = False) -> np.ndarray:
        """Return (4, 2): top left, top right, bottom right, bottom left; `upright` leaves the angle out."""
        w, h = self.size
        corners = np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 2
        if not upright:
            sin, cos = np.sin(self.angle), np.cos(self.angle)
            corners = corners @ np.array([[cos, sin], [-sin, cos]])
        return corners + self.centre


@dataclass(frozen=True)
class CropMatrices:
    """Affine maps between the picture and the crop, (3, 3) float32."""

    o2c: np.ndarray
    c2o: np.ndarray


def eyes_and_mouth(points: np.ndarray, by_mouth: bool = True) -> np.ndarray:
    """Return (2, 2): the middle of the eyes and of the mouth, which give the face's upright axis.

    Args:
        points: 203, 106, 101, 68, 9 or 5 landmarks; any other count above 101 is read as 101.
        by_mouth: False takes the left eye, and a point from it at a right angle to the line between the eyes.

    Raises:
        ValueError: another number of points.
    """
    count = len(points)
    known = _FEATURES.get(count, _FEATURES[101] if count > 101 else None)
    if known is None:
        raise ValueError(
            f"{count} landmarks are unknown: give {', '.join(map(str, sorted(_FEATURES)))} points"
        )
    points = np.asarray(points, np.float64)
    left, right, mouth = (points[list(indices)].mean(0) for indices in known)
    if by_mouth:
        return np.stack([(left + right) / 2, mouth])
    across = right - left
    return np.stack([left, left + np.array([-across[1], across[0]])])


def face_box(
    points: np.ndarray,
    scale: float = CROP_SCALE,
    shift: tuple[float, float] = CROP_SHIFT,
    square: bool = True,
    by_mouth: bool = True,
) -> FaceBox:
    """Return the rectangle around landmarks.

    Args:
        points: (n, 2), see `eyes_and_mouth`.
        scale: size / extent of the points along the face's axes.
        shift: of the centre, in sizes, along the face's axes.
        square: both sides are the longer one.
        by_mouth: see `eyes_and_mouth`.
    """
    axis = eyes_and_mouth(points, by_mouth)
    points = np.asarray(points, np.float64)
    down = axis[1] - axis[0]
    length = float(np.linalg.norm(down))
    down = np.array([0.0, 1.0]) if length <= _TOO_SHORT else down / length
    along = np.array([down[1], -down[0]])
    angle = float(np.arccos(np.clip(along[0], -1, 1)))
    mean = points.mean(0)
    placed = (points - mean) @ np.stack([along, down], 1)
    low, high = placed.min(0), placed.max(0)
    size = high - low
    if square:
        size = np.full(2, size.max())
    size = size * scale
    middle = (low + high) / 2
    # Upstream scales the shift by the width in x and the height in y of the picture, also where the face is turned.
    centre = mean + along * middle[0] + down * middle[1] + size * (along * shift[0] + down * shift[1])
    return FaceBox(tuple(centre.tolist()), tuple(size.tolist()), -angle if along[1] < 0 else angle)


def crop_matrices(box: FaceBox, side: int = CROP_SIZE, rotate: bool = True) -> CropMatrices:
    """Return the maps that put a square box onto a crop of `side` pixels. ValueError for a box without extent."""
    width = box.size[0]
    if not width > 0:
        raise ValueError(f"a face {width} pixels wide cannot be cropped: the landmarks lie in one point")
    s = side / width
    sin, cos = (np.sin(box.angle), np.cos(box.angle)) if rotate else (0.0, 1.0)
    cx, cy = box.centre
    o2c = np.array(
        [
            [s * cos, s * sin, side / 2 - s * (cos * cx + sin * cy)],
            [-s * sin, s * cos, side / 2 - s * (cos * cy - sin * cx)],
            [0, 0, 1],
        ],
        np.float32,
    )
    return CropMatrices(o2c, np.linalg.inv(o2c.astype(np.float64)).astype(np.float32))


def move_points(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return points (n, 2) mapped by a 3x3 affine matrix, float32."""
    return (points @ matrix[:2, :2].T + matrix[:2, 2]).astype(np.float32)


def crop_picture(
    picture: np.ndarray, matrices: CropMatrices, side: int = CROP_SIZE, extend: bool = False
) -> np.ndarray:
    """Return the crop (side, side, 3) of a uint8 RGB picture: bilinear.

    Outside the picture it is black, as upstream has it, or with `extend` the picture's edge goes on.
    """
    import cv2

    return cv2.warpAffine(
        np.ascontiguousarray(picture),
        matrices.o2c[:2],
        (side, side),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE if extend else cv2.BORDER_CONSTANT,
    )


def network_input(crop: np.ndarray, side: int = NETWORK_SIZE) -> np.ndarray:
    """Return a crop as the extractors take it: (1, 3, side, side) float32 in 0..1, shrunk by area."""
    import cv2

    if crop.shape[:2] != (side, side):
        crop = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray((crop.astype(np.float32) / 255)[None].transpose(0, 3, 1, 2))


def working_size(height: int, width: int, longest: int = 1920) -> tuple[int, int]:
    """Return height and width that a source is worked on at: no side above `longest` (-1: no limit), both even.

    ValueError for a size that leaves nothing.
    """
    if 0 < longest < max(height, width):
        long_side = max(height, width)
        height, width = height * longest // long_side, width * longest // long_side
    if height < 2 or width < 2:
        raise ValueError(f"a source of {width}x{height} pixels is too small: at least 2x2 are needed")
    return height // 2 * 2, width // 2 * 2


def mirror_index(i: int, n: int) -> int:
    """Return the source frame of output frame `i`: 0..n-1, n-1..0 and so on, the ends twice, as upstream."""
    turn, place = divmod(i, n)
    return n - 1 - place if turn % 2 else place
