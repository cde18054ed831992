"""Upstream's own way to landmarks and masks: DWPose-l as ONNX on the whole frame, BiSeNet for parsing.

DWPose says nothing about whether there is a face; upstream asks S3FD. Here another `FaceDetector` is asked (BlazeFace
stands in for S3FD), and its box is the fallback where the landmarks make none. Source: spec/musetalk.md sections 4, 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..core.checkpoint import load_state
from ..core.faces import Face, FaceDetector, left_to_right
from ..core.onnx_session import CPU, agrees, open_session
from .bisenet import N_CLASSES, BiSeNet
from .dwpose import BINS_PER_PIXEL, INPUT_HEIGHT, INPUT_WIDTH, N_POINTS, face_points, find_points
from .masks import parser_input
from .model import load_strict, on_meta

REGION_SCALE = 3.0
"""Side of the square a person is looked for in, over the longer side of the face's box, when there are several."""
_INPUT = (3, INPUT_HEIGHT, INPUT_WIDTH)
_OUTPUTS = {
    "simcc_x": (N_POINTS, int(INPUT_WIDTH * BINS_PER_PIXEL)),
    "simcc_y": (N_POINTS, int(INPUT_HEIGHT * BINS_PER_PIXEL)),
}


class DwposeDetector:
    """`FaceDetector` whose points are DWPose's.

    With one face the whole picture is shown to the network, exactly as upstream does: give it the frames at full
    size (track_face's proxy_side=0) and each of them (stride=1, smooth=False) for upstream's numbers. With several faces
    each gets the square around it, where upstream mixes the people.
    """

    name = "dwpose-1"

    def __init__(self, onnx_path: Path, presence: FaceDetector, providers: Sequence[str] = CPU) -> None:
        """Open the network.

        onnx_path: dw-ll_ucoco_384.onnx. presence: says where faces are. providers: of onnxruntime, in order.
        ImportError without onnxruntime; ValueError for another file or a provider that is not there.
        """
        self._presence = presence
        self._session, self._input = _open_session(Path(onnx_path), providers)

    def detect(self, picture: np.ndarray) -> list[Face]:
        """Return the faces of a uint8 (H, W, 3) RGB picture, left to right; the mesh is the presence detector's."""
        seen = self._presence.detect(picture)
        if len(seen) <= 1:
            return [replace(face, points=self._points(picture)) for face in seen]
        faces = []
        for face in seen:
            x1, y1, x2, y2 = _region(face, picture.shape[1], picture.shape[0])
            points = self._points(np.ascontiguousarray(picture[y1:y2, x1:x2]))
            faces.append(replace(face, points=points + np.array([x1, y1], np.float32)))
        return left_to_right(faces)

    def _points(self, picture: np.ndarray) -> np.ndarray:
        points, _ = find_points(picture, self._run)
        return face_points(points).astype(np.float32)

    def _run(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        results = self._session.run(list(_OUTPUTS), {self._input: batch})
        if not all(np.isfinite(values).all() for values in results):
            raise ValueError("DWPose gave values that are not finite; fetch the ONNX again")
        return tuple(results)


class BisenetParser:
    """Labels of a face square by upstream's parser, in float32 as upstream runs it."""

    def __init__(self, source: Path | str | nn.Module, device: str | torch.device = "cpu") -> None:
        """source: 79999_iter.pth, or the network itself. ValueError names a file that is damaged or of another network."""
        if not isinstance(source, nn.Module):
            path = Path(source)
            state = {key: value.clone() for key, value in load_state(path).items()}  # not views into the file
            source = on_meta(BiSeNet, N_CLASSES)
            load_strict(source, state, path.name, torch.float32)
        self._device = torch.device(device)
        self._net = source.eval().requires_grad_(False).to(self._device)

    def labels(self, square: np.ndarray) -> np.ndarray:
        """Return the classes 0..18 of a square, uint8 (S, S, 3) RGB (masks.crop_square) -> uint8 (512, 512)."""
        if square.dtype != np.uint8 or square.ndim != 3 or square.shape[2] != 3 or 0 in square.shape:
            raise ValueError(
                f"a face square must be uint8 (side, side, 3), got {square.dtype} {square.shape}"
            )
        batch = torch.from_numpy(parser_input(np.ascontiguousarray(square)))[None]
        with torch.inference_mode():
            return self._net.labels(batch.to(self._device))[0].cpu().numpy()


def _region(face: Face, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the part inside the picture of the square around a face, whole pixels, never empty."""
    half = REGION_SCALE / 2 * max(face.box[2] - face.box[0], face.box[3] - face.box[1])
    x, y = face.centre
    x1, y1 = (int(np.clip(c - half, 0, size - 1)) for c, size in ((x, width), (y, height)))
    x2, y2 = (int(np.clip(np.ceil(c + half), 1, size)) for c, size in ((x, width), (y, height)))
    return x1, y1, max(x2, x1 + 1), max(y2, y1 + 1)


def _open_session(path: Path, providers: Sequence[str]):
    """Return the session and the name of its input, everything checked that a wrong file could have otherwise."""
    session = open_session(
        path, "the exact face path", "`talkinghead models download dwpose` fetches it", providers
    )
    inputs = session.get_inputs()
    outputs = {out.name: out.shape for out in session.get_outputs()}
    fits = len(inputs) == 1 and inputs[0].type == "tensor(float)" and agrees(inputs[0].shape, (1, *_INPUT))
    if not fits or not all(agrees(outputs.get(name), (1, *shape)) for name, shape in _OUTPUTS.items()):
        raise ValueError(
            f"{path.name} is another network: inputs {[(i.name, i.type, i.shape) for i in inputs]}, outputs {outputs}; "
            f"dw-ll_ucoco_384.onnx takes float (batch, 3, 384, 288) and gives simcc_x (batch, 133, 576) and simcc_y "
            f"(batch, 133, 768)"
        )
    return session, inputs[0].name
