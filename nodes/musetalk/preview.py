"""An avatar shown as pictures: where the box lies, what the mask covers, where the landmarks are."""

from __future__ import annotations

import numpy as np

from ..core.packet import AvatarPacket

BOX, CROP, POINT, MASK = (64, 220, 64), (250, 200, 60), (70, 170, 255), (255, 60, 90)
_TINT = 0.45


def avatar_overlay(avatar: AvatarPacket, start: int = 0, count: int = 1) -> np.ndarray:
    """Return avatar frames `start` .. `start + count - 1` with their geometry drawn in, uint8 (count, H, W, 3) RGB.

    Green: the box the network fills. Yellow: the crop square of the mask. Red tint: the mask, as strong as it blends.
    Blue: the 68 landmarks, if the face was found by a detector. A frame without a face is left as it is. ValueError
    for frames the avatar does not have.
    """
    n = avatar.info.n_frames
    if not 0 <= start < n or count < 1:
        raise ValueError(f"frames {start}..{start + count - 1} are not in the avatar; it has 0..{n - 1}")
    with avatar.open() as reader:
        out = np.stack([reader.frame(i).numpy() for i in range(start, min(n, start + count))])
        for i, picture in enumerate(out, start):
            if reader.found[i]:
                points = None if reader.points is None else reader.points[i].numpy()
                draw_geometry(
                    picture,
                    reader.boxes[i].tolist(),
                    reader.crops[i].tolist(),
                    reader.mask(i).numpy(),
                    points,
                )
    return out


def draw_geometry(picture: np.ndarray, box, crop, mask: np.ndarray | None, points: np.ndarray | None) -> None:
    """Draw box, crop square, mask (uint8 over the square) and points (68, 2) into `picture` in place."""
    import cv2

    height, width = picture.shape[:2]
    if mask is not None:
        x_s, y_s, x_e, y_e = crop[:4]
        x1, y1, x2, y2 = max(0, x_s), max(0, y_s), min(width, x_e), min(height, y_e)
        weight = mask[y1 - y_s : y2 - y_s, x1 - x_s : x2 - x_s, None] * np.float32(_TINT / 255)
        area = picture[y1:y2, x1:x2]
        area[...] = np.rint(area * (1 - weight) + np.array(MASK, np.float32) * weight)
    line = max(1, round(max(height, width) / 500))
    for (x1, y1, x2, y2), colour in ((crop[:4], CROP), (box, BOX)):
        cv2.rectangle(picture, (x1, y1), (x2 - 1, y2 - 1), colour, line)
    for x, y in () if points is None else points:
        cv2.circle(picture, (round(float(x)), round(float(y))), line, POINT, -1, cv2.LINE_AA)
