"""One face followed through a clip by upstream's networks: the detector once, then each frame's landmarks from the last's.

Upstream never looks again and fails, or follows nothing, once the face is gone. Here the mesh that reads the eyes has to see
a face in the crop; where it does not, the detector is asked, and where that sees none either, the frame has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.face_views import one_place
from ..core.faces import Face, FaceChoice, choose_face
from ..core.report import FrameList
from .crop import crop_matrices, crop_picture, face_box
from .exact_faces import ExactFaces
from .eyes import NO_EYE_BALL, eye_ball, eye_open
from .mesh478 import N_MESH

_LEAST = 1.0
"""Pixels that landmarks extend at least: of what is no face they may lie in one point."""


@dataclass(frozen=True, eq=False)
class FrameFace:
    """The face of one frame: c2o float32 (3, 3), eye_open (2,), eye_ball (6,); None where the mesh saw no face."""

    c2o: np.ndarray
    eye_open: np.ndarray | None
    eye_ball: np.ndarray | None


class _Seen(NamedTuple):
    points: np.ndarray
    face: FrameFace


class ExactTrack:
    """Give it the frames of a clip in order."""

    def __init__(self, nets: ExactFaces, choice: FaceChoice) -> None:
        """choice: which face, in the first frame that has one."""
        self._nets, self._choice = nets, choice
        self._points: np.ndarray | None = None
        self._box: Sequence[float] | None = None
        self._most = 0
        self._index = -1
        self._jumps, self._others, self._blind = FrameList(), FrameList(), FrameList()

    def step(self, picture: np.ndarray) -> FrameFace | None:
        """Return the face of the next frame, uint8 (H, W, 3) RGB; None if it is not there.

        ValueError for a choice that is not there, or a network that gives what it should not.
        """
        self._index += 1
        seen = None
        if self._points is not None:
            seen = self._look(picture, self._nets.follow(picture, self._points))
            if seen is not None and seen.face.eye_open is None:
                seen = None
        if seen is None:
            seen = self._detect(picture)
        if seen is None:
            self._points = None
            return None
        self._points = seen.points
        self._box = [*seen.points.min(0).tolist(), *seen.points.max(0).tolist()]
        if seen.face.eye_open is None:
            self._blind.add(self._index, (True,))
        return seen.face

    def notes(self) -> tuple[str, ...]:
        """Return what the report should say."""
        notes = []
        if self._most > 1:
            notes.append(f"{self._most} faces in the picture; one of them is followed")
        if self._others:
            notes.append(f"faces in frames {self._others} are not taken: somebody else's")
        if self._blind:
            notes.append(
                f"the face mesh sees no face in the crops of frames {self._blind}: the eyes are those of the nearest frame"
            )
        if self._jumps:
            notes.append(f"the face jumps at frames {self._jumps}: taken for the same person after a cut")
        return tuple(notes)

    def _detect(self, picture: np.ndarray) -> _Seen | None:
        box = self._choose(self._nets.boxes(picture))
        if box is None:
            return None
        return self._look(picture, self._nets.landmarks(picture, box))

    def _choose(self, rows: np.ndarray) -> Sequence[float] | None:
        """Return the box of the face that is meant."""
        if not len(rows):
            return None
        self._most = max(self._most, len(rows))
        # Nothing that chooses looks at the points.
        faces = [Face(tuple(row[:4].tolist()), float(row[4]), np.zeros((0, 2), np.float32)) for row in rows]
        if self._box is None:
            return choose_face(faces, self._choice).box
        near = [face for face in faces if one_place(self._box, face.box)]
        if not near and self._most > 1:
            self._others.add(self._index, (True,))
            return None
        if not near:
            self._jumps.add(self._index, (True,))
            return faces[0].box
        x, y = (self._box[0] + self._box[2]) / 2, (self._box[1] + self._box[3]) / 2
        return choose_face(near, FaceChoice("nearest", point=(x, y))).box

    def _look(self, picture: np.ndarray, points: np.ndarray) -> _Seen | None:
        """Return what the crop around 203 landmarks shows; None where they are no face's."""
        if not np.ptp(points, axis=0).max() >= _LEAST:
            return None
        matrices = crop_matrices(face_box(points))
        mesh = self._nets.mesh(crop_picture(picture, matrices))
        if mesh is None:
            return _Seen(points, FrameFace(matrices.c2o, None, None))
        ball = eye_ball(mesh) if len(mesh) == N_MESH else NO_EYE_BALL
        return _Seen(points, FrameFace(matrices.c2o, eye_open(mesh), ball))
