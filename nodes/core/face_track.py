"""One face followed through a clip: key frames, frames in doubt, frames without the face, interpolation.

The detector sees key frames on a small proxy. Between two of them the face's area is compared with theirs, and the
detector looks where it differs, so a frame without the face, or a cut, is found wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import face_views as views
from .faces import LARGEST, N_MESH, N_POINTS, Face, FaceChoice, FaceDetector, FaceTrack, choose_face
from .report import FrameList

PROXY_SIDE = 480
STRIDE = 4
_SAME = 0.85
"""Likeness above which an area between two key frames needs no look of its own; a false alarm costs one detection."""
_HELD = 0.8
"""Likeness above which a face is taken to be there although the detector misses it."""
_SAME_PERSON = 0.6
"""Likeness asked of the only face in the picture when it stands elsewhere: the same person after a cut."""


def track_face(
    n_frames: int,
    frame: Callable[[int], np.ndarray],
    detector: FaceDetector,
    choice: FaceChoice = LARGEST,
    stride: int = STRIDE,
    proxy_side: int = PROXY_SIDE,
    check: Callable[[], None] | None = None,
    smooth: bool = True,
) -> FaceTrack:
    """Follow one face through a clip.

    Args:
        n_frames: at least 1.
        frame: index -> uint8 (H, W, 3) RGB; called once for each index, in order.
        detector: sees key frames, and every frame where the face may not be what it is in the key frames around it.
        choice: which face, in the first frame that has one; after that the one at the same place.
        stride: key frames are 0, stride, 2 * stride, ... and the last. 1 = every frame.
        proxy_side: the detector sees frames whose longest side is at most this; 0 = full size (the exact path).
        check: called before each detection; it raises to stop the work.
        smooth: average each key frame with its neighbours in the same shot.

    A clip without any face comes back with `found` all False. ValueError for a choice that is not there, no frames or
    a stride below 1.
    """
    if n_frames < 1 or stride < 1 or proxy_side < 0:
        raise ValueError(
            f"{n_frames} frames, stride {stride}, proxy side {proxy_side}: at least 1, 1 and 0 are needed"
        )
    follower = _Follower(detector, choice, check)
    before: views.View | None = None
    for key in views.key_frames(n_frames, stride):
        first = 0 if before is None else before.index + 1
        seen = [views.make_view(i, frame(i), proxy_side) for i in range(first, key + 1)]
        follower.stretch(before, seen[:-1], seen[-1])
        before = seen[-1]
    return follower.track(n_frames, smooth)


class _Follower:
    """The state of one pass: where the face was seen (`knots`), where it was missed (`held`) or is not (`lost`)."""

    def __init__(self, detector: FaceDetector, choice: FaceChoice, check: Callable[[], None] | None) -> None:
        self._detector, self._choice, self._check = detector, choice, check
        self._knots: dict[int, Face] = {}
        self._patches: dict[int, np.ndarray] = {}
        self._held: set[int] = set()
        self._lost: set[int] = set()
        self._key_faces: list[Face] = []
        self._most = 0

    def stretch(self, before: views.View | None, between: list[views.View], key: views.View) -> None:
        """Take in one key frame and the frames between it and the one before."""
        faces_before, self._key_faces = self._key_faces, self._detect(key)
        self._file(key, self._key_faces)
        ends = [] if before is None else [self._knots.get(before.index), self._knots.get(key.index)]
        if len(ends) == 2 and all(ends) and views.one_place(ends[0].box, ends[1].box):
            doubtful = [
                view
                for view in between
                if self._likeness(view, self._line_box(view.index, before.index, key.index)) < _SAME
            ]
            for view in doubtful:
                self._file(view, self._detect(view))
            if self._lost.intersection(view.index for view in doubtful):
                # Beside a frame without the face there is nothing to interpolate to.
                for view in between:
                    if view not in doubtful:
                        self._file(view, self._detect(view))
            return
        # One end has no face, or another shot's: every frame is looked at, from the end that has it.
        backwards = before is None or before.index not in self._knots
        for view in reversed(between) if backwards else between:
            self._file(view, self._detect(view))
        # A face that was too far away for the key frame alone may now be next to one that is known.
        for view, faces in ((before, faces_before), (key, self._key_faces)):
            if view is not None and view.index not in self._knots:
                self._file(view, faces)

    def _detect(self, view: views.View) -> list[Face]:
        if self._check is not None:
            self._check()
        faces = [_scaled(face, view.factor) for face in self._detector.detect(view.proxy)]
        self._most = max(self._most, len(faces))
        return faces

    def _file(self, view: views.View, faces: list[Face]) -> None:
        """Enter one frame and what was detected in it as seen, held or lost."""
        for drawer in (self._held, self._lost):
            drawer.discard(view.index)
        face = self._match(view, faces)
        if face is not None:
            self._knots[view.index] = face
            self._patches[view.index] = views.thumbnail(view, face.box)
        elif self._knots and self._resembles(view):
            self._held.add(view.index)
        else:
            self._lost.add(view.index)

    def _match(self, view: views.View, faces: list[Face]) -> Face | None:
        if not faces:
            return None
        if not self._knots:
            return choose_face(faces, self._choice)
        near = [
            (np.hypot(*np.subtract(face.centre, self._knots[k].centre)), at)
            for k in self._nearest(view.index)
            for at, face in enumerate(faces)
            if views.one_place(self._knots[k].box, face.box)
        ]
        if near:
            return faces[min(near)[1]]
        # Elsewhere. Where two people have been seen that may be the other one; where one has, it may be a cut.
        patch = views.thumbnail(view, faces[0].box)
        known = max(views.likeness(patch, self._patches[k]) for k in self._nearest(view.index))
        return faces[0] if self._most == 1 and known >= _SAME_PERSON else None

    def _nearest(self, index: int) -> list[int]:
        """Return the nearest knots before and after a frame, one or two."""
        before, after = (
            [k for k in self._knots if k < index],
            [k for k in self._knots if k > index],
        )
        return [f(side) for f, side in ((max, before), (min, after)) if side]

    def _likeness(self, view: views.View, box: Sequence[float]) -> float:
        patch = views.thumbnail(view, box)
        return max(views.likeness(patch, self._patches[k]) for k in self._nearest(view.index))

    def _resembles(self, view: views.View) -> bool:
        """Return whether the face of the nearest knots is still near its place there."""
        near = self._nearest(view.index)
        areas = [views.thumbnail(view, self._knots[k].box, views.SEARCH_SIDE) for k in near]
        return any(
            views.best_likeness(area, self._patches[k]) >= _HELD for k, area in zip(near, areas, strict=True)
        )

    def _line_box(self, index: int, left: int, right: int) -> np.ndarray:
        share = (index - left) / (right - left)
        a, b = (np.asarray(self._knots[k].box) for k in (left, right))
        return a * (1 - share) + b * share

    def track(self, n_frames: int, smooth: bool) -> FaceTrack:
        """Return what was seen as rows for every frame."""
        knots = np.array(sorted(self._knots), int)
        if not len(knots):
            empty = np.zeros(n_frames, bool)
            boxes, points = np.zeros((n_frames, 4), np.float32), np.zeros((n_frames, N_POINTS, 2), np.float32)
            return FaceTrack(empty, boxes, points, None, empty.copy(), (f"no face in {_frames(n_frames)}",))
        faces = [self._knots[k] for k in knots]
        has_mesh = all(face.mesh is not None for face in faces)
        rows = np.stack([_row(face, has_mesh) for face in faces])
        values = np.empty((n_frames, rows.shape[1]))
        groups = views.shots(knots.tolist(), rows[:, :4], self._lost)
        # Frames up to halfway to the next shot belong to a shot; of a lost stretch that is its nearest found frame.
        owner = np.abs(np.arange(n_frames)[:, None] - knots[None]).argmin(1)
        cuts = [
            knots[g[0]]
            for g in groups[1:]
            if not self._lost.intersection(range(knots[g[0] - 1], knots[g[0]]))
        ]
        for group in groups:
            times = knots[group].astype(np.float64)
            own = views.smoothed(times, rows[group]) if smooth else rows[group]
            mine = np.flatnonzero((owner >= group[0]) & (owner <= group[-1]))
            values[mine] = views.interpolated(times, own, mine.astype(np.float64))
        found, held = np.ones(n_frames, bool), np.zeros(n_frames, bool)
        found[sorted(self._lost)] = False
        held[sorted(self._held)] = True
        values = _without_lost(values, found).astype(np.float32)
        mesh = values[:, 4 + 2 * N_POINTS :].reshape(n_frames, N_MESH, 2) if has_mesh else None
        points = values[:, 4 : 4 + 2 * N_POINTS].reshape(n_frames, N_POINTS, 2)
        return FaceTrack(found, values[:, :4], points, mesh, held, self._notes(held, cuts))

    def _notes(self, held: np.ndarray, cuts: list[int]) -> tuple[str, ...]:
        notes = []
        if self._most > 1:
            x, y = self._knots[min(self._knots)].centre
            notes.append(f"{self._most} faces in the picture; the one at {x:.0f},{y:.0f} is followed")
        if held.any():
            frames = FrameList()
            frames.add(0, held)
            notes.append(
                f"face not detected, place interpolated, in frames {frames} ({held.sum()} of {len(held)})"
            )
        if cuts:
            frames = FrameList()
            frames.add(0, np.isin(np.arange(len(held)), cuts))
            notes.append(f"the face jumps at frames {frames}: taken for the same person after a cut")
        return tuple(notes)


def _scaled(face: Face, factor: tuple[float, float]) -> Face:
    """Return a face of the proxy in full-resolution pixels."""
    if factor == (1.0, 1.0):
        return face
    box = tuple(float(v) for v in np.asarray(face.box) * (factor * 2))
    mesh = None if face.mesh is None else (face.mesh * factor).astype(np.float32)
    return Face(box, face.score, (face.points * factor).astype(np.float32), mesh)


def _row(face: Face, has_mesh: bool) -> np.ndarray:
    parts = [np.asarray(face.box, np.float64), face.points.ravel()]
    return np.concatenate([*parts, face.mesh.ravel()] if has_mesh else parts).astype(np.float64)


def _without_lost(values: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return rows in which those of lost frames are copies of the nearest found one."""
    known = np.flatnonzero(found)
    nearest = known[np.abs(np.arange(len(found))[:, None] - known[None]).argmin(1)]
    return values[nearest]


def _frames(count: int) -> str:
    return "the one frame" if count == 1 else f"any of {count} frames"
