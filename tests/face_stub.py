"""A detector that is told what is in the picture: a named double for tests that are not about finding faces.

It sees a face wherever a filled square of pure `MARK` colour lies: the square's bounds are the detector's box, and the
68 points are laid out in it so that MuseTalk's box of them is the square itself (nose point in the middle of its height).
"""

from __future__ import annotations

import cv2
import numpy as np

from talkinghead.nodes.core.faces import Face

MARK = (255, 0, 255)


class MarkDetector:
    """Counts its calls in `calls`."""

    name = "mark-stub"

    def __init__(self) -> None:
        self.calls = 0

    def detect(self, picture: np.ndarray) -> list[Face]:
        self.calls += 1
        # Proxies are scaled by areas: an edge pixel may be mixed.
        close = (np.abs(picture.astype(int) - MARK).max(2) < 60).astype(np.uint8)
        n, _, stats, _ = cv2.connectedComponentsWithStats(close)
        boxes = [(x, y, x + w, y + h) for x, y, w, h, area in stats[1:n] if area >= 64]
        return sorted((face_at(tuple(map(float, b))) for b in boxes), key=lambda f: f.centre)


def face_at(box: tuple[float, float, float, float]) -> Face:
    """Return a Face of score 0.9 whose MuseTalk box, without margin, is `box`."""
    x1, y1, x2, y2 = box
    points = np.empty((68, 2), np.float32)
    points[:] = (x1 + x2) / 2, (y1 + y2) / 2
    points[0], points[16], points[8] = (x1, (y1 + y2) / 2), (x2, (y1 + y2) / 2), ((x1 + x2) / 2, y2)
    return Face(box, 0.9, points)


def marked(width: int, height: int, *boxes: tuple[int, int, int, int], level: int = 90) -> np.ndarray:
    """Return a picture, uint8 (H, W, 3), with a face of the double in each box."""
    frame = np.full((height, width, 3), level, np.uint8)
    for x1, y1, x2, y2 in boxes:
        frame[max(0, y1) : y2, max(0, x1) : x2] = MARK
    return frame
