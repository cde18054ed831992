"""Upstream's own networks for the registration, its ONNX files through onnxruntime.

Both of its sets serve: ditto_onnx has all five, ditto_pytorch/aux_models the detector and the landmarks under
InsightFace's names, and a landmark203 with more outputs. Its 478 points for eyes are MediaPipe's face_landmarker.task there,
which only MediaPipe's own runtime reads; without blaze_face and face_mesh the pack's 468-point mesh takes their place and the
irises are taken to lie in the middle of the eyes. det_10g and 2d106det are InsightFace's, for non-commercial use.
Source: spec/ditto.md 1, 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.faces import LARGEST, FaceDetector, choose_face
from ..core.models import MissingModel, find_file, missing_text
from ..core.onnx_session import CPU, agrees, open_session
from .detect import INPUT_SIDE, RetinaNet, find_faces, output_shapes
from .landmarks import LANDMARK_SIZE, N_203, SIDE_106, Net, find_106, find_203
from .mesh478 import BLAZE_SIDE, MESH_SIDE, N_ANCHORS, N_MESH, find_mesh
from .official import ONNX_HOMES

_PURPOSE = "the exact face path"
_FETCH = "`talkinghead models download ditto-faces` fetches it"

Mesh = Callable[[np.ndarray], np.ndarray | None]
"""A face's crop, uint8 (512, 512, 3) RGB -> mesh points (478, 3), or (468, 2) without irises; None: no face is seen."""


@dataclass(frozen=True, eq=False)
class ExactFaces:
    """The networks, each as a function. `name` is recorded in packets and part of their content key."""

    name: str
    retina: RetinaNet
    net_106: Net
    net_203: Net
    mesh: Mesh

    def boxes(self, picture: np.ndarray) -> np.ndarray:
        """Return the detector's boxes, (n, 5) x1, y1, x2, y2, score, best first."""
        return find_faces(picture, self.retina)[0]

    def landmarks(self, picture: np.ndarray, box: Sequence[float]) -> np.ndarray:
        """Return the 203 landmarks of the face in a detector's box."""
        return self.follow(picture, find_106(picture, box, self.net_106))

    def follow(self, picture: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the 203 landmarks of the face around `points`, its 106 or the 203 of the frame before."""
        return find_203(picture, points, self.net_203)


@dataclass(frozen=True)
class _File:
    """A network file: its names, best first; its input with a batch of one; its outputs in the order they are wanted.

    outputs: name in ditto_onnx -> shape with the batch, None for a size that any will do for. places: where those
    outputs stand in a file that names them otherwise.
    """

    names: tuple[str, ...]
    input: tuple[int, ...]
    outputs: dict[str, tuple[int | None, ...]]
    places: tuple[int, ...]


def _retina_outputs() -> dict[str, tuple[int | None, ...]]:
    """The declared counts of det_10g are those of another input size: only the widths are held against it."""
    kinds = output_shapes().items()
    return {f"{kind}{i + 1}": (None, shape[1]) for kind, shapes in kinds for i, shape in enumerate(shapes)}


FILES = {
    "detector": _File(
        ("insightface_det.onnx", "det_10g.onnx"),
        (1, 3, INPUT_SIDE, INPUT_SIDE),
        _retina_outputs(),
        tuple(range(9)),
    ),
    "landmarks106": _File(
        ("landmark106.onnx", "2d106det.onnx"), (1, 3, SIDE_106, SIDE_106), {"fc1": (1, None)}, (0,)
    ),
    "landmarks203": _File(
        ("landmark203.onnx",),
        (1, 3, LANDMARK_SIZE, LANDMARK_SIZE),
        {"landmarks": (1, 2 * N_203)},
        (2,),
    ),
    "blaze": _File(
        ("blaze_face.onnx",),
        (1, BLAZE_SIDE, BLAZE_SIDE, 3),
        {"regressors": (1, N_ANCHORS, 16), "classificators": (1, N_ANCHORS, 1)},
        (0, 1),
    ),
    "mesh": _File(
        ("face_mesh.onnx",), (1, MESH_SIDE, MESH_SIDE, 3), {"Identity": (1, 1, 1, 3 * N_MESH)}, (0,)
    ),
}
_NEEDED = ("detector", "landmarks106", "landmarks203")
_WITH_IRISES = ("blaze", "mesh")


def find_exact(roots: Sequence[Path]) -> dict[str, Path | None]:
    """Return the file of every key of FILES, None for those that are not there."""
    return {
        key: find_file([f"{folder}/{name}" for folder in ONNX_HOMES for name in file.names], roots)
        for key, file in FILES.items()
    }


def open_exact(
    roots: Sequence[Path], light: Callable[[], FaceDetector], providers: Sequence[str] | None = CPU
) -> ExactFaces:
    """Open upstream's networks.

    Args:
        roots: model folders. light: opens the detector whose mesh serves where blaze_face and face_mesh are not there;
            asked only then. providers: of onnxruntime, in order; None takes CUDA where it is there.

    Raises:
        MissingModel: names the files that are needed and not there. MissingPackage: onnxruntime is not installed.
        ValueError: a file is damaged or of another network.
    """
    found = find_exact(roots)
    missing = [key for key in _NEEDED if found[key] is None]
    if missing:
        # The last name is that of the set which the catalogue fetches.
        said = missing_text([f"ditto/{FILES[key].names[-1]}" for key in missing], roots)
        raise MissingModel(
            f"{said}, or put ditto_onnx's {', '.join(FILES[key].names[0] for key in missing)} there"
        )
    keys = _NEEDED + (_WITH_IRISES if all(found[key] for key in _WITH_IRISES) else ())
    nets = {key: OnnxNet(found[key], FILES[key], providers) for key in keys}
    if "mesh" in nets:
        name, mesh = "ditto-478-1", partial(find_mesh, blaze=nets["blaze"], mesh=nets["mesh"].first)
    else:
        name, mesh = "ditto-468-1", partial(_largest_mesh, detector=light())
    return ExactFaces(name, nets["detector"], nets["landmarks106"].first, nets["landmarks203"].first, mesh)


def _largest_mesh(crop: np.ndarray, detector: FaceDetector) -> np.ndarray | None:
    faces = [face for face in detector.detect(crop) if face.mesh is not None]
    return choose_face(faces, LARGEST).mesh if faces else None


class OnnxNet:
    """One file: (1, ...) float32 -> its outputs in the order of `file.outputs`. ValueError for another network."""

    def __init__(self, path: Path, file: _File, providers: Sequence[str] | None = CPU) -> None:
        self._path = path
        self._session = open_session(path, _PURPOSE, _FETCH, providers)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self._names = _pick(outputs, file)
        fits = len(inputs) == 1 and inputs[0].type == "tensor(float)" and agrees(inputs[0].shape, file.input)
        if not fits or not self._names:
            shown = [
                ", ".join(f"{v.name} {v.type} {v.shape}" for v in values) for values in (inputs, outputs)
            ]
            wanted = ", ".join(f"{name} {list(shape)}" for name, shape in file.outputs.items())
            raise ValueError(
                f"{path} is another network: inputs {shown[0]}, outputs {shown[1]}; {file.names[0]} takes float "
                f"{list(file.input)} and gives {wanted}".replace("None", "n")
            )
        self._input = inputs[0].name

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        results = self._session.run(self._names, {self._input: values})
        if not all(np.isfinite(result).all() for result in results):
            raise ValueError(
                f"{self._path} gave values that are not finite: the file is damaged, fetch it again"
            )
        return tuple(results)

    def first(self, values: np.ndarray) -> np.ndarray:
        """Return the first of the outputs."""
        return self(values)[0]


def _pick(outputs: Sequence[Any], file: _File) -> list[str]:
    """Return the names of the wanted outputs, by name, else by place; none if they are not there."""
    by_name = {output.name: output for output in outputs}
    if all(name in by_name for name in file.outputs):
        chosen = [by_name[name] for name in file.outputs]
    elif len(outputs) > max(file.places):
        chosen = [outputs[place] for place in file.places]
    else:
        return []
    fits = [
        output.type == "tensor(float)" and _fits(output.shape, shape)
        for output, shape in zip(chosen, file.outputs.values(), strict=True)
    ]
    return [output.name for output in chosen] if all(fits) else []


def _fits(shape: Sequence | None, wanted: tuple[int | None, ...]) -> bool:
    """As `agrees`; a shape that is not declared, and a batch axis more, will do."""
    return not shape or agrees(shape, wanted) or agrees(shape, (1, *wanted))
