"""MuseTalk's geometry drawn into a frame: where the box lies, what the mask covers, where the landmarks are."""

from __future__ import annotations

import numpy as np

from ..avatars.preview import BOX, CROP, POINT, line_width, tint
from ..core.packet import MuseTalkReader


def draw_frame(picture: np.ndarray, reader: MuseTalkReader, index: int) -> None:
    """Draw what the packet has of frame `index` into its `picture`, uint8 (H, W, 3), in place."""
    points = None if reader.points is None else reader.points[index].numpy()
    box, crop = reader.boxes[index].tolist(), reader.crops[index].tolist()
    draw_geometry(picture, box, crop, reader.mask(index).numpy(), points)


def draw_geometry(picture: np.ndarray, box, crop, mask: np.ndarray | None, points: np.ndarray | None) -> None:
    """Draw box, crop square, mask (uint8 over the square) and points (68, 2) into `picture` in place."""
    import cv2

    height, width = picture.shape[:2]
    if mask is not None:
        x_s, y_s, x_e, y_e = crop[:4]
        x1, y1, x2, y2 = max(0, x_s), max(0, y_s), min(width, x_e), min(height, y_e)
        tint(picture[y1:y2, x1:x2], mask[y1 - y_s : y2 - y_s, x1 - x_s : x2 - x_s] / np.float32(255))
    line = line_width(picture)
    for (x1, y1, x2, y2), colour in ((crop[:4], CROP), (box, BOX)):
        cv2.rectangle(picture, (x1, y1), (x2 - 1, y2 - 1), colour, line)
    for x, y in () if points is None else points:
        cv2.circle(picture, (round(float(x)), round(float(y))), line, POINT, -1, cv2.LINE_AA)
