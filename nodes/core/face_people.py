"""The people of a clip, told apart: every face that is seen is given to one of them, by place, motion and looks.

core.face_track follows the first of them. A face between two people goes to the one it fits best, so that somebody who
walks past is himself also while he covers the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from . import face_views as views
from .faces import Face

_RECENT = 4
"""Looks and places kept besides the first look."""
_MOST_PEOPLE = 12
_MIN_LIKENESS = 0.55
"""Likeness asked of a face that has somebody beside it, or was out of sight: else it is covered, or somebody else."""
_OTHER = 0.25
"""Likeness below which the only face in the picture is somebody else, though it stands at the place. Measured: one face
in other light or tilted 0.4 and more, another skin 0 to 0.2."""
_CLOSE = 2.0
"""Distance of two boxes' middles over the larger side, below which people may cover or be taken for each other."""
_REACH, _REACH_GROWTH, _MAX_REACH = 0.5, 0.1, 1.5
"""Distance from where a person is expected, over the box's side: at once, more for each frame unseen, at most."""
_MAX_AHEAD = 12
"""Frames for which a motion is expected to go on."""
_STILL = 0.12
"""Distance over the box's side within which somebody sits still, and need not be watched."""
_LOOKS_COUNT, _UNSEEN_COUNTS = 2.0, 0.3
"""What a likeness of 0 costs, and not having been seen just before, against 1 for a side's length of distance."""


@dataclass
class _Person:
    first: views.Look
    looks: list[views.Look] = field(default_factory=list)
    seen: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Frames and boxes, the newest last."""

    def note(self, index: int, box: Sequence[float], look: views.Look | None) -> None:
        self.seen = [*self.seen[-_RECENT:], (index, np.asarray(box, np.float64))]
        if look is not None:
            self.looks = [*self.looks[1 - _RECENT :], look]

    @property
    def box(self) -> np.ndarray:
        return self.seen[-1][1]

    @property
    def is_still(self) -> bool:
        return len(self.seen) > 1 and all(_distance(self.box, box) < _STILL for _, box in self.seen)

    def expected(self, index: int) -> np.ndarray:
        """Return the box where steady motion would have brought it by frame `index`."""
        (t0, a), (t1, b) = self.seen[0], self.seen[-1]
        if t0 == t1:
            return b
        shift = (b[:2] + b[2:] - a[:2] - a[2:]) / 2 / (t1 - t0)
        return b + np.tile(shift * np.clip(index - t1, -_MAX_AHEAD, _MAX_AHEAD), 2)

    def away(self, index: int, box: np.ndarray) -> float | None:
        """Return how far `box` is from where this person may be, in sides; None when it is out of reach.

        Somebody out of sight may also have stopped anywhere between the last place and the expected one.
        """
        sides = [float((b[2:] - b[:2]).max()) for b in (self.box, box)]
        if min(sides) <= 0 or max(sides) > views.MAX_GROWTH * min(sides):
            return None
        unseen = max(0, abs(index - self.seen[-1][0]) - 1)
        goal = _middle(self.expected(index))
        start = _middle(self.box) if unseen else goal
        way, middle = goal - start, _middle(box)
        share = np.clip((middle - start) @ way / max(way @ way, 1e-9), 0, 1)
        distance = float(np.linalg.norm(middle - start - share * way)) / max(sides)
        reach = min(_REACH + _REACH_GROWTH * unseen, _MAX_REACH)
        if distance > reach and not (unseen == 0 and views.one_place(self.box, box)):
            return None
        return distance

    def likeness(self, view: views.View, box: np.ndarray) -> float:
        return views.look_likeness(view, box, [self.first, *self.looks])


class Crowd:
    """Who has been seen, in frames that are handed over in order (forwards or backwards); the first is followed."""

    def __init__(self, view: views.View, faces: Sequence[Face], chosen: Face) -> None:
        self._people: list[_Person] = []
        self._last = view.index
        self._meet(view, chosen)
        for face in faces:
            if face is not chosen:
                self._meet(view, face)

    @property
    def is_alone(self) -> bool:
        """Whether nobody but the followed person has been seen."""
        return len(self._people) == 1

    def anybody_near(self, view: views.View, faces: Sequence[Face], box: Sequence[float]) -> bool:
        """Return whether somebody else than the owner of `box`, one of `faces`, is close to it or may just be there, and
        does not sit still."""
        sitting = [person.box for person in self._people[1:] if person.is_still]
        others = [
            face.box
            for face in faces
            if face.box != box and not any(_distance(face.box, seat) < _STILL for seat in sitting)
        ]
        for person in self._people[1:]:
            if not person.is_still and abs(view.index - person.seen[-1][0]) <= _MAX_AHEAD:
                others += [person.box, person.expected(view.index)]
        return any(_distance(box, other) < _CLOSE for other in others)

    def looks_right(self, view: views.View, box: Sequence[float]) -> bool:
        """Return whether the area looks like the followed person."""
        return self._people[0].likeness(view, np.asarray(box)) >= _MIN_LIKENESS

    def take(self, view: views.View, faces: Sequence[Face]) -> Face | None:
        """Give each face of the next frame to somebody; return that of the followed person, None if it is not there."""
        owners = self._owners(view, faces)
        for at, face in enumerate(faces):
            if at in owners:
                beside = any(_distance(face.box, other.box) < _CLOSE for other in faces if other is not face)
                look = None if beside else views.make_look(view, face.box)
                self._people[owners[at]].note(view.index, face.box, look)
            elif len(faces) > 1 or not self.is_alone:
                self._meet(view, face)
        self._last = view.index
        return next((faces[at] for at, owner in owners.items() if owner == 0), None)

    def replace(self, view: views.View, face: Face) -> None:
        """Say that `face` is the followed person, elsewhere: the motion begins anew."""
        self._people[0].seen = []
        self._people[0].note(view.index, face.box, views.make_look(view, face.box))

    def _owners(self, view: views.View, faces: Sequence[Face]) -> dict[int, int]:
        """Return the person of each face that has one, both as positions."""
        costs = []
        for at, face in enumerate(faces):
            box = np.asarray(face.box, np.float64)
            for who, person in enumerate(self._people):
                distance = person.away(view.index, box)
                if distance is None:
                    continue
                alike, is_unseen = person.likeness(view, box), person.seen[-1][0] != self._last
                if who == 0 and alike < self._asked(view, faces, face, is_unseen):
                    continue
                costs.append((distance + _LOOKS_COUNT * (1 - alike) + _UNSEEN_COUNTS * is_unseen, at, who))
        owners: dict[int, int] = {}
        for _, at, who in sorted(costs):
            if at not in owners and who not in owners.values():
                owners[at] = who
        return owners

    def _asked(self, view: views.View, faces: Sequence[Face], face: Face, is_unseen: bool) -> float:
        """Return the likeness to the followed person that is asked of a face near the expected place."""
        if self.is_alone and len(faces) == 1:
            return _OTHER
        return _MIN_LIKENESS if is_unseen or self.anybody_near(view, faces, face.box) else _OTHER

    def _meet(self, view: views.View, face: Face) -> None:
        if len(self._people) == _MOST_PEOPLE:
            oldest = min(self._people[1:], key=lambda person: person.seen[-1][0])
            self._people.remove(oldest)
        person = _Person(views.make_look(view, face.box))
        person.note(view.index, face.box, None)
        self._people.append(person)


def _middle(box: np.ndarray) -> np.ndarray:
    return (box[:2] + box[2:]) / 2


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the distance of two boxes' middles over the larger one's side."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    side = max(float((box[2:] - box[:2]).max()) for box in (a, b))
    return float(np.linalg.norm(_middle(a) - _middle(b))) / max(side, 1e-9)
