"""Ditto's geometry drawn into a frame: where the crop lies, what of it is put back, where the face is in it."""

from __future__ import annotations

import numpy as np

from ..avatars.preview import BOX, CROP, line_width, tint
from ..core.packet import DittoReader
from .avatar_options import DittoAvatarOptions
from .crop import CROP_SIZE
from .putback import feather_mask, touched_part, warp_into


def draw_frame(picture: np.ndarray, reader: DittoReader, index: int) -> None:
    """Draw what the packet has of frame `index` into its `picture`, uint8 (H, W, 3), in place."""
    draw_crop(picture, reader.c2o[index].numpy(), _options(reader))


def draw_crop(picture: np.ndarray, c2o: np.ndarray, options: DittoAvatarOptions) -> None:
    """Draw a crop, the mask it is put back with, and the face's square that `options` made it of."""
    import cv2

    height, width = picture.shape[:2]
    part = touched_part(c2o, CROP_SIZE, width, height)
    x1, y1, x2, y2 = part
    if x1 < x2 and y1 < y2:
        tint(picture[y1:y2, x1:x2], warp_into(feather_mask(), c2o, part).clip(0, 1))
    line = line_width(picture)
    for square, colour in ((_WHOLE, CROP), (face_square(options), BOX)):
        corners = square @ c2o[:2, :2].T + c2o[:2, 2]
        cv2.polylines(picture, [np.rint(corners).astype(np.int32)], True, colour, line)


def face_square(options: DittoAvatarOptions) -> np.ndarray:
    """Return the corners (4, 2) of the square around the landmarks, in pixels of an upright crop."""
    half = CROP_SIZE / 2 / options.crop_scale
    centre = CROP_SIZE * (0.5 - np.array([options.shift_x, options.shift_y]))
    return centre + half * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])


def _options(reader: DittoReader) -> DittoAvatarOptions:
    """Return the options a packet was made with; an import has none of its own."""
    return DittoAvatarOptions.from_dict(reader.packet.info.options)


_WHOLE = np.array([[0, 0], [CROP_SIZE, 0], [CROP_SIZE, CROP_SIZE], [0, CROP_SIZE]], np.float64)
