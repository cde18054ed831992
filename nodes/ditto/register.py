"""Registration of a source: where the face's crop lies in every frame, and how its eyes are.

Two ways. light, the default: the pack's own detector and tracker; the crop's box is that of the 68 points, which like
upstream's 203 run from the brows to the chin and from temple to temple, eyes and mouth by their corners. exact: upstream's
networks in upstream's order. Source: spec/ditto.md 6; a frame without a face, which upstream fails on (14.10), is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.face_views import nearest
from ..core.faces import DETECTORS, FaceChoice, FaceDetector
from .crop import crop_matrices, face_box
from .exact_faces import ExactFaces
from .exact_track import ExactTrack
from .eyes import NO_EYE_BALL, eye_open

_STRIDE = 2
"""Key frames of the light way: a blink lasts 0.1 s and longer, and between two key frames it would not be seen."""

Frames = Callable[[int], np.ndarray]


@dataclass(frozen=True, eq=False)
class Registered:
    """What `register` finds in N frames.

    c2o: float32 (N, 3, 3), from the crop of 512 pixels to the frame. found: bool (N,), False where the face is not in the
    frame; the rows of those are copies of the nearest found one. eye_open: float32 (N, 2), eye_ball: float32 (N, 6), see
    `eyes`. notes: for the report.
    """

    c2o: np.ndarray
    found: np.ndarray
    eye_open: np.ndarray
    eye_ball: np.ndarray
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DittoFaceTools:
    """One of the two: `light`, a detector with a mesh, or `exact`, upstream's networks."""

    light: FaceDetector | None = None
    exact: ExactFaces | None = None

    def __post_init__(self) -> None:
        if (self.light is None) == (self.exact is None):
            raise ValueError("face tools are either a light detector or the exact networks")

    @property
    def name(self) -> str:
        """Recorded in packets and part of their content key."""
        return (self.exact or self.light).name


def open_ditto_face_tools(kind: str, roots: Sequence[Path]) -> DittoFaceTools:
    """Return the tools of `kind` (core.faces.DETECTORS) from the model folders `roots`.

    ValueError names a file that is missing and where it is looked for, ImportError a package.
    """
    from ..core.face_mesh import load_mesh_detector
    from ..core.models import find_light_model

    def light() -> FaceDetector:
        return load_mesh_detector(lambda name: find_light_model(name, roots))

    if kind not in DETECTORS:
        raise ValueError(f"detector {kind!r} is unknown; use one of {', '.join(DETECTORS)}")
    if kind == "light":
        return DittoFaceTools(light())
    from .exact_faces import open_exact

    return DittoFaceTools(exact=open_exact(roots, light))


def register(
    n_frames: int,
    frame: Frames,
    tools: DittoFaceTools,
    choice: FaceChoice,
    check: Callable[[], None] | None = None,
) -> Registered:
    """Register one face.

    Args:
        n_frames: at least 1. frame: index -> uint8 (H, W, 3) RGB, all of one size, asked in order; by the light way a few
            once more where no face is found at all.
        tools: of `open_ditto_face_tools`.
        choice: which face, in the first frame that has one; it is followed from there.
        check: called before each detection; it raises to stop the work.

    Raises:
        ValueError: no frame has a face, or the chosen one is not there; a network gave what it should not.
    """
    if n_frames < 1:
        raise ValueError(f"{n_frames} frames cannot be registered: give 1 or more")
    if tools.light is not None:
        return _register_light(n_frames, frame, tools.light, choice, check)
    return _register_exact(n_frames, frame, tools.exact, choice, check)


def _register_light(
    n_frames: int,
    frame: Frames,
    detector: FaceDetector,
    choice: FaceChoice,
    check: Callable[[], None] | None,
) -> Registered:
    from ..core.face_track import track_face

    track = track_face(n_frames, frame, detector, choice, _STRIDE, check=check)
    if not track.found.any():
        raise ValueError(_no_face(n_frames))
    if track.mesh is None:
        raise ValueError(f"the detector {detector.name} has no face mesh: the eyes cannot be read")
    c2o = np.stack([crop_matrices(face_box(points)).c2o for points in track.points])
    opened = np.stack([eye_open(mesh) for mesh in track.mesh])
    balls = np.tile(NO_EYE_BALL, (n_frames, 1))
    return Registered(c2o, track.found, opened, balls, track.notes)


def _register_exact(
    n_frames: int,
    frame: Frames,
    nets: ExactFaces,
    choice: FaceChoice,
    check: Callable[[], None] | None,
) -> Registered:
    track, faces = ExactTrack(nets, choice), []
    for i in range(n_frames):
        if check is not None:
            check()
        faces.append(track.step(frame(i)))
    found = np.array([face is not None for face in faces])
    if not found.any():
        raise ValueError(_no_face(n_frames))
    has_eyes = np.array([face is not None and face.eye_open is not None for face in faces])
    if not has_eyes.any():
        raise ValueError(
            f"the face mesh sees no face in the crops of {_frames(n_frames)}, so the eyes cannot be read: use the light "
            "detector, or a picture that shows the face from the front"
        )
    eyes = [faces[i] for i in nearest(np.flatnonzero(has_eyes), n_frames)]
    return Registered(
        np.stack([faces[i].c2o for i in nearest(np.flatnonzero(found), n_frames)]),
        found,
        np.stack([face.eye_open for face in eyes]),
        np.stack([face.eye_ball for face in eyes]),
        track.notes(),
    )


def _no_face(n_frames: int) -> str:
    return f"no face was found in {_frames(n_frames)}; give a picture with a visible face"


def _frames(count: int) -> str:
    return "the one frame" if count == 1 else f"any of {count} frames"
