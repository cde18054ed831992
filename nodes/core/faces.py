"""Faces in pictures: what a detector gives, which face is meant, and the track of a face through a clip.

Pictures are uint8 (H, W, 3) RGB, positions x,y in pixels from the left upper corner, boxes (x1, y1, x2, y2); a box may
leave the picture. The 68 points are in iBUG order: 0..16 jaw from the left of the picture, 27..35 nose, 36..47 eyes,
48..67 mouth. Detectors: core.face_mesh and musetalk.exact_faces; tracks are made by core.face_track.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

DETECTORS = ("light", "exact")
"""Kinds of face tools. light: BlazeFace and FaceMesh, a few MB, any CPU. exact: the networks that an engine's upstream uses."""
N_POINTS = 68
N_MESH = 468
_MAX_INDEX = 99


@dataclass(frozen=True, eq=False)
class Face:
    """One face of one picture.

    box: of the detector, (x1, y1, x2, y2) pixels, may leave the picture. score: 0..1. points: float32 (68, 2).
    mesh: float32 (468, 2) where the detector has one.
    """

    box: tuple[float, float, float, float]
    score: float
    points: np.ndarray
    mesh: np.ndarray | None = None

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def area(self) -> float:
        """Pixels of the box, 0 for an empty one."""
        return max(0.0, self.box[2] - self.box[0]) * max(0.0, self.box[3] - self.box[1])


class FaceDetector(Protocol):
    """Finds faces. `name` ("mesh-1", "dwpose-1") is recorded in packets and part of their content key."""

    name: str

    def detect(self, picture: np.ndarray) -> list[Face]:
        """Return the faces of a uint8 (H, W, 3) RGB picture, left to right by the middle of their boxes."""
        ...


@dataclass(frozen=True)
class FaceChoice:
    """Which of several faces is meant: kind "largest", "index" (from the left) or "nearest" (to `point`, x,y)."""

    kind: str = "largest"
    index: int = 0
    point: tuple[float, float] | None = None


LARGEST = FaceChoice()


def parse_choice(text: str) -> FaceChoice:
    """Return the choice of "largest", an index from the left ("0", "1") or a point "x,y" in pixels ("320,240").

    ValueError says what is allowed.
    """
    words = text.strip().lower()
    if words in ("largest", "auto", ""):
        return LARGEST
    if re.fullmatch(r"\d+", words) and int(words) <= _MAX_INDEX:
        return FaceChoice("index", index=int(words))
    number = r"(-?\d{1,5}(?:\.\d{1,6})?)"
    if found := re.fullmatch(rf"{number}\s*[,;x ]\s*{number}", words):
        return FaceChoice("nearest", point=(float(found[1]), float(found[2])))
    raise ValueError(
        f"face {text[:40]!r} is not a choice; give largest, a number from the left (0..{_MAX_INDEX}) or a point x,y in pixels"
    )


def choose_face(faces: Sequence[Face], choice: FaceChoice) -> Face:
    """Return the face that is meant. ValueError with the count when there is none or not that many."""
    if not faces:
        raise ValueError("no face was found: give a picture with a visible face, or a box as x1,y1,x2,y2")
    ordered = left_to_right(faces)
    if choice.kind == "index":
        if choice.index >= len(ordered):
            count = "1 face was" if len(ordered) == 1 else f"{len(ordered)} faces were"
            raise ValueError(
                f"face {choice.index} was asked for and {count} found; "
                f"from the left they are 0..{len(ordered) - 1}, or use largest"
            )
        return ordered[choice.index]
    if choice.kind == "nearest":
        x, y = choice.point
        return min(ordered, key=lambda f: (f.centre[0] - x) ** 2 + (f.centre[1] - y) ** 2)
    if choice.kind != "largest":
        raise ValueError(f"kind of choice {choice.kind!r} is unknown; use largest, index or nearest")
    return max(ordered, key=lambda f: f.area)


def left_to_right(faces: Sequence[Face]) -> list[Face]:
    """Return the faces by the middle of their boxes, ties from above: the order an index counts in."""
    return sorted(faces, key=lambda f: (f.centre[0], f.centre[1]))


@dataclass(frozen=True, eq=False)
class FaceTrack:
    """One face through N frames, in full-resolution pixels.

    found: bool (N,), False exactly where the face is not in the frame; rows of those are copies of the nearest found.
    boxes: float32 (N, 4) of the detector. points: float32 (N, 68, 2). mesh: float32 (N, 468, 2) or None.
    held: bool (N,), the face is there, the detector missed it, and the row is interpolated. notes: for the report.
    """

    found: np.ndarray
    boxes: np.ndarray
    points: np.ndarray
    mesh: np.ndarray | None
    held: np.ndarray
    notes: tuple[str, ...] = ()
