"""One face followed through a clip: key frames, frames in doubt, frames without the face, interpolation.

The detector sees key frames on a small proxy. Between two of them the face's area is compared with theirs, and the
detector looks where it differs or has moved otherwise than steadily, so a frame without the face, a nod or a cut is
found wherever it lies. Where other people are near (core.face_people), every frame is looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import face_views as views
from .face_parts import CloseUps
from .face_people import Crowd
from .faces import (
    LARGEST,
    N_MESH,
    N_POINTS,
    Face,
    FaceChoice,
    FaceDetector,
    FaceTrack,
    choose_face,
)
from .report import FrameList

PROXY_SIDE = 480
STRIDE = 4
_SAME = 0.85
"""Likeness above which an area between two key frames needs no look of its own; a false alarm costs one detection."""
_OFF, _OFF_SHARE = 1.5, 0.02
"""Pixels, and share of the face's side, that a face may be off its interpolated place without a look of its own."""
_HELD = 0.8
"""Likeness above which a face is taken to be there although the detector misses it."""


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
        frame: index -> uint8 (H, W, 3) RGB; called once for each index, in order. Where no face is found at all, a few
            of them once more, and where one is found then, all once more in order.
        detector: sees key frames, and every frame where the face may not be what it is in the key frames around it.
        choice: which face, in the first frame that has one; after that the one at the same place.
        stride: key frames are 0, stride, 2 * stride, ... and the last. 1 = every frame.
        proxy_side: the detector sees frames whose longest side is at most this; 0 = full size (the exact path). In
            larger frames without any face it also looks for small ones, in parts of the frame at full size.
        check: called before each detection; it raises to stop the work.
        smooth: average each key frame with its neighbours in the same shot, but for motion.

    A clip without any face comes back with `found` all False. ValueError for a choice that is not there, no frames or
    a stride below 1.
    """
    if n_frames < 1 or stride < 1 or proxy_side < 0:
        raise ValueError(
            f"{n_frames} frames, stride {stride}, proxy side {proxy_side}: at least 1, 1 and 0 are needed"
        )
    follower = _Follower(detector, choice, check)
    _follow(follower, n_frames, frame, stride, proxy_side)
    if not follower.has_face and proxy_side:
        close = CloseUps(detector, check)
        if any(close.is_there(frame(i), proxy_side) for i in close.probes(n_frames)):
            follower = _Follower(close, choice, check)
            _follow(follower, n_frames, frame, stride, 0)
    return follower.track(n_frames, smooth)


def _follow(
    follower: _Follower, n_frames: int, frame: Callable[[int], np.ndarray], stride: int, proxy_side: int
) -> None:
    before: views.View | None = None
    for key in views.key_frames(n_frames, stride):
        first = 0 if before is None else before.index + 1
        seen = [views.make_view(i, frame(i), proxy_side) for i in range(first, key + 1)]
        follower.stretch(before, seen[:-1], seen[-1])
        before = seen[-1]


class _Follower:
    """The state of one pass: where the face was seen (`knots`), where it was missed (`held`) or is not (`lost`)."""

    def __init__(self, detector: FaceDetector, choice: FaceChoice, check: Callable[[], None] | None) -> None:
        self._detector, self._choice, self._check = detector, choice, check
        self._knots: dict[int, Face] = {}
        self._patches: dict[int, np.ndarray] = {}
        self._held: set[int] = set()
        self._lost: set[int] = set()
        self._others: set[int] = set()
        self._crowd: Crowd | None = None
        self._faces: dict[int, list[Face]] = {}
        self._most = 0

    @property
    def has_face(self) -> bool:
        return bool(self._knots)

    def stretch(self, before: views.View | None, between: list[views.View], key: views.View) -> None:
        """Take in one key frame and the frames between it and the one before."""
        self._faces = {} if before is None else {before.index: self._faces[before.index]}
        faces = self._detect(key)
        if self._crowd is None:
            self._begin(before, between, key)
        elif (at := self._steady(before, key, faces)) is not None:
            for view in self._doubtful(before, between, key, faces[at]):
                self._file(view, self._detect(view))
            self._file(key, faces)
        else:
            for view in [*between, key]:
                self._file(view, self._detect(view))
        for view in [*([before] if before else []), *between, key]:
            if view.index in self._faces:
                self._judge(view)

    def _begin(self, before: views.View | None, between: list[views.View], key: views.View) -> None:
        """Choose the face in the key frame and follow it backwards, or, without any there, look for the first one."""
        if faces := self._detect(key):
            face = choose_face(faces, self._choice)
            self._enter(key, face)
            self._crowd = Crowd(key, faces, face)
            for view in reversed(between):
                self._file(view, self._detect(view))
            self._crowd = Crowd(key, faces, face)
            return
        for view in between:
            faces = self._detect(view)
            if self._crowd is None and faces:
                face = choose_face(faces, self._choice)
                self._enter(view, face)
                self._crowd = Crowd(view, faces, face)
            elif self._crowd is not None:
                self._file(view, faces)
        if self._crowd is not None:
            self._file(key, [])

    def _steady(self, before: views.View, key: views.View, faces: list[Face]) -> int | None:
        """Return which face is plainly the one of the frame before, None where that asks for a look in between."""
        last = self._knots.get(before.index)
        if last is None:
            return None
        near = [at for at, face in enumerate(faces) if views.one_place(last.box, face.box)]
        if len(near) != 1:
            return None
        box = faces[near[0]].box
        if self._crowd.anybody_near(key, faces, box):
            return None
        if self._crowd.anybody_near(before, self._faces[before.index], last.box):
            return None
        if not self._crowd.looks_right(key, box):
            return None
        return near[0]

    def _doubtful(
        self, before: views.View, between: list[views.View], key: views.View, last: Face
    ) -> list[views.View]:
        """Return the frames that want a look of their own; of those that have had one, what was seen is in `_faces`."""
        known = {
            before.index: (self._knots[before.index].box, self._patches[before.index]),
            key.index: (last.box, views.thumbnail(key, last.box)),
        }
        left, looked = list(between), []
        while True:
            more = [view for view in left if _is_off(view, known)]
            if not more:
                return sorted(looked, key=lambda view: view.index)
            looked += more
            left = [view for view in left if view not in more]
            for view in more:
                line = _line_box(view.index, known, (before.index, key.index))
                faces = self._detect(view)
                near = [face for face in faces if views.one_place(line, face.box)]
                if len(near) != 1 or self._crowd.anybody_near(view, faces, near[0].box):
                    for other in left:
                        self._detect(other)
                    return between
                known[view.index] = (near[0].box, views.thumbnail(view, near[0].box))

    def _detect(self, view: views.View) -> list[Face]:
        """Return the faces of a frame; a second call within the stretch costs nothing."""
        if view.index not in self._faces:
            if self._check is not None:
                self._check()
            self._faces[view.index] = [_scaled(f, view.factor) for f in self._detector.detect(view.proxy)]
            self._most = max(self._most, len(self._faces[view.index]))
        return self._faces[view.index]

    def _enter(self, view: views.View, face: Face) -> None:
        self._knots[view.index] = face
        self._patches[view.index] = views.thumbnail(view, face.box)

    def _file(self, view: views.View, faces: list[Face]) -> None:
        """Give one frame's faces to their owners, in order of time."""
        face = self._crowd.take(view, faces)
        if face is None and self._most == 1 and len(faces) == 1:
            # Elsewhere. Where two people have been seen that may be the other one; where one has, it may be a cut.
            if self._crowd.looks_right(view, faces[0].box):
                face = faces[0]
                self._crowd.replace(view, face)
        if face is not None:
            self._enter(view, face)

    def _judge(self, view: views.View) -> None:
        """Enter a frame that was looked at as held or lost, unless the face was seen."""
        for drawer in (self._held, self._lost):
            drawer.discard(view.index)
        if view.index not in self._knots:
            is_held = bool(self._knots) and self._resembles(view)
            (self._held if is_held else self._lost).add(view.index)
            if self._faces[view.index] and not is_held:
                self._others.add(view.index)

    def _nearest(self, index: int) -> list[int]:
        """Return the nearest knots before and after a frame, one or two."""
        before, after = (
            [k for k in self._knots if k < index],
            [k for k in self._knots if k > index],
        )
        return [f(side) for f, side in ((max, before), (min, after)) if side]

    def _resembles(self, view: views.View) -> bool:
        """Return whether the face of the nearest knots is still near its place there, and nobody in front of it."""
        for k in self._nearest(view.index):
            box = self._knots[k].box
            if any(views.shared_part(box, other.box) > 0 for other in self._faces[view.index]):
                continue
            area = views.thumbnail(view, box, views.SEARCH_SIDE)
            if views.best_likeness(area, self._patches[k]) >= _HELD:
                return True
        return False

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
        owner = views.nearest(knots, n_frames)
        cuts = [
            knots[g[0]]
            for g in groups[1:]
            if self._most == 1 and not self._lost.intersection(range(knots[g[0] - 1], knots[g[0]]))
        ]
        for group in groups:
            times = knots[group].astype(np.float64)
            own = rows[group]
            if smooth:
                points = own[:, 4 : 4 + 2 * N_POINTS].reshape(len(own), N_POINTS, 2)
                own = views.smoothed(times, own, views.evenness(times, points))
            mine = np.flatnonzero((owner >= knots[group[0]]) & (owner <= knots[group[-1]]))
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
        if isinstance(self._detector, CloseUps):
            width = np.median([face.box[2] - face.box[0] for face in self._knots.values()])
            notes.append(
                f"the face is {width:.0f} px wide, too small to be seen in whole frames: looked for in parts of them"
            )
        if self._most > 1:
            x, y = self._knots[min(self._knots)].centre
            notes.append(f"{self._most} faces in the picture; the one at {x:.0f},{y:.0f} is followed")
        if others := self._others & self._lost:
            frames = FrameList()
            frames.add(0, np.isin(np.arange(len(held)), sorted(others)))
            notes.append(f"faces in frames {frames} are not taken: somebody else's, or partly covered")
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


def _line_box(index: int, known: dict[int, tuple], ends: tuple[int, int]) -> np.ndarray:
    """Return the box between those of two known frames."""
    share = (index - ends[0]) / (ends[1] - ends[0])
    a, b = (np.asarray(known[k][0]) for k in ends)
    return a * (1 - share) + b * share


def _is_off(view: views.View, known: dict[int, tuple]) -> bool:
    """Return whether the face, as a thumbnail shows it, is not where the line between the nearest known frames has it.

    known: index -> box, thumbnail. The offsets from both ends are weighted so that errors of their boxes cancel.
    """
    left, right = max(k for k in known if k < view.index), min(k for k in known if k > view.index)
    box = _line_box(view.index, known, (left, right))
    area = views.thumbnail(view, box, views.SEARCH_SIDE)
    (like_a, a), (like_b, b) = (views.shift_between(area, known[k][1]) for k in (left, right))
    if max(like_a, like_b) < _SAME:
        return True
    share = (view.index - left) / (right - left)
    shift = (a * (1 - share) + b * share) * (box[2:] - box[:2]) / views.PATCH_SIDE
    return not np.linalg.norm(shift) <= max(_OFF, _OFF_SHARE * float((box[2:] - box[:2]).max()))


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
    return values[views.nearest(np.flatnonzero(found), len(found))]


def _frames(count: int) -> str:
    return "the one frame" if count == 1 else f"any of {count} frames"
