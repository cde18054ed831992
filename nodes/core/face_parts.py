"""Faces too small to be seen in a whole picture, looked for in parts of it at full size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import face_views as views
from .faces import Face, FaceDetector, left_to_right

_PROBES = 8
_SAME_BOX = 0.3
"""Overlap of two parts' boxes, over the smaller one, above which they are one face."""


class CloseUps:
    """A detector that sees a picture in overlapping squares, for faces too small to be seen in the whole."""

    def __init__(self, detector: FaceDetector, check: Callable[[], None] | None) -> None:
        self.name, self._detector, self._check = detector.name, detector, check

    @staticmethod
    def probes(n_frames: int) -> list[int]:
        """Return the frames of a clip in which a small face is looked for before all are followed."""
        return np.unique(np.linspace(0, n_frames - 1, _PROBES).round().astype(int)).tolist()

    def is_there(self, picture: np.ndarray, proxy_side: int) -> bool:
        """Return whether parts show a face; not asked of a picture that proxies of `proxy_side` show in full."""
        return max(picture.shape[:2]) > proxy_side and bool(self.detect(picture))

    def detect(self, picture: np.ndarray) -> list[Face]:
        """Return the faces of a uint8 (H, W, 3) picture, left to right, each once."""
        faces: list[Face] = []
        for left, top, side in views.windows(picture.shape[1], picture.shape[0]):
            if self._check is not None:
                self._check()
            part = np.ascontiguousarray(picture[top : top + side, left : left + side])
            faces += [_moved(face, (left, top)) for face in self._detector.detect(part)]
        kept: list[Face] = []
        for face in sorted(faces, key=lambda f: -f.score):
            if all(views.shared_part(face.box, other.box) < _SAME_BOX for other in kept):
                kept.append(face)
        return left_to_right(kept)


def _moved(face: Face, by: tuple[int, int]) -> Face:
    """Return a face of a part in the whole picture's pixels; `by` is the part's left upper corner."""
    shift = np.asarray(by, np.float32)
    box = tuple(float(v) for v in np.asarray(face.box) + np.tile(shift, 2))
    mesh = None if face.mesh is None else face.mesh + shift
    return Face(box, face.score, face.points + shift, mesh)
