"""The three ways a face gets its box: found by a detector, given as a box, given as masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.faces import DETECTORS, FaceChoice, FaceDetector, FaceTrack
from ..core.frames import RunContext
from .bake import Faces, FindFaces
from .boxes import Box, add_margin, face_box
from .options import AvatarOptions

_KEY_FRAMES = {"stride": 4, "proxy_side": 480, "smooth": True}
_EVERY_FRAME = {"stride": 1, "proxy_side": 0, "smooth": False}
DWPOSE, FACE_PARSING = "faces/dw-ll_ucoco_384.onnx", "faces/79999_iter.pth"


@dataclass(frozen=True, eq=False)
class FaceTools:
    """A detector, and for parser masks what labels a crop square (None: the detector's mesh does).

    is_exact: upstream's numbers are wanted: every frame at its full size, nothing smoothed, whole pixels.
    """

    detector: FaceDetector
    labels: Callable[[np.ndarray], np.ndarray] | None = None
    is_exact: bool = False


def open_face_tools(kind: str, roots: Sequence[Path], with_labels: bool = True) -> FaceTools:
    """Return the tools of `kind` (DETECTORS; exact: DWPose and BiSeNet) from the model folders `roots`.

    `with_labels` also opens the face parser (exact only). ValueError names a file that is missing and how to get it,
    ImportError a package.
    """
    from ..core.face_mesh import load_mesh_detector
    from ..core.models import find_light_model, need_file

    if kind not in DETECTORS:
        raise ValueError(f"detector {kind!r} is unknown; use one of {', '.join(DETECTORS)}")
    light = load_mesh_detector(lambda name: find_light_model(name, roots))
    if kind == "light":
        return FaceTools(light)
    from .exact_faces import BisenetParser, DwposeDetector

    detector = DwposeDetector(need_file([DWPOSE], roots), light)
    labels = BisenetParser(need_file([FACE_PARSING], roots)).labels if with_labels else None
    return FaceTools(detector, labels, is_exact=True)


def finder(ctx: RunContext, tools: FaceTools, choice: FaceChoice, options: AvatarOptions) -> FindFaces:
    """Return what finds the chosen face in every frame and turns it into the network's boxes.

    Raises, when called, ValueError where no frame has a face or the chosen one is not there.
    """

    from ..core.face_track import track_face

    def find(frames: np.ndarray) -> Faces:
        with ctx.report.timed("face detection"):
            track = track_face(
                len(frames),
                lambda i: frames[i],
                tools.detector,
                choice,
                check=ctx.check_cancelled,
                **(_EVERY_FRAME if tools.is_exact else _KEY_FRAMES),
            )
        if not track.found.any():
            raise ValueError(
                f"no face was found in {len(frames)} frame{'s' * (len(frames) > 1)}; give a picture with a visible "
                "face, or its box as x1,y1,x2,y2"
            )
        boxes = boxes_of(track, frames.shape[1], options, tools.is_exact)
        return Faces(boxes, track.points, track.mesh, tools.labels, track.notes)

    return find


def boxes_of(track: FaceTrack, height: int, options: AvatarOptions, exact: bool = False) -> list[Box | None]:
    """Return the network's box of every frame of `track`: upstream's rule, its margin below the chin.

    `exact` also cuts every point to whole pixels as upstream does.
    """
    out: list[Box | None] = []
    for found, points, detected in zip(track.found, track.points, track.boxes, strict=True):
        box = None
        if found:
            fallback = tuple(max(0, int(v)) for v in detected)
            box = face_box(points, fallback, options.bbox_shift, exact).box
            box = add_margin(box, height, options.extra_margin)
        out.append(box)
    return out


def given(boxes: Sequence[Box | None]) -> FindFaces:
    """Return what gives the frames `boxes`: one for all, or one a frame."""

    def find(frames: np.ndarray) -> Faces:
        return Faces(list(boxes) * len(frames) if len(boxes) == 1 else list(boxes))

    return find
