"""The light face detector: BlazeFace boxes and a 468-point mesh, MediaPipe's tflite files through OpenCV's dnn module.

Two box networks look at each picture: the short-range one (128 pixels, 896 anchors) is made for close-ups, the
full-range one (192 pixels, 2304 anchors) finds faces down to about a twentieth of the longer side. Facts about the
files: spec/libraries.md section 4. Networks want RGB, boxes in [-1, 1], the mesh in [0, 1].
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .faces import N_MESH, Face, left_to_right
from .mesh_points import EYE_CORNERS, ibug_points

SHORT_RANGE, FULL_RANGE = "face_detection_short_range.tflite", "face_detection_full_range.tflite"
LANDMARK = "face_landmark.tflite"
MIN_SCORE = 0.5
MIN_PRESENCE = 0.5
"""Below this the mesh network itself says that its crop holds no face."""
NMS_IOU = 0.3
CROP_SCALE = 1.5
"""Side of the mesh network's crop over the longer side of the box."""
_MESH_SIDE = 192
_MESH_PASSES = 2
# Grid cells of the anchors, anchors in each, by their total, with the input's side.
_GRIDS = {896: (128, ((16, 2), (8, 6))), 2304: (192, ((48, 1),))}
_INSTALL = "pip install 'opencv-python>=5'"


class MeshDetector:
    """`FaceDetector` on tflite files; the networks are read at construction and shared between threads by a lock."""

    name = "mesh-1"

    def __init__(self, detector_paths: Path | Sequence[Path], landmark_path: Path) -> None:
        """Read the networks. ValueError for a file of another kind, ImportError where OpenCV cannot read tflite.

        detector_paths: one or more BlazeFace files, short or full range in any order.
        """
        paths = [detector_paths] if isinstance(detector_paths, str | Path) else list(detector_paths)
        if not paths:
            raise ValueError("no BlazeFace file was given; at least one is needed")
        self._lock = threading.Lock()
        self._boxes = [_BoxNet(Path(path)) for path in paths]
        self._mesh = _MeshNet(Path(landmark_path))

    def detect(self, picture: np.ndarray) -> list[Face]:
        """Return the faces of a uint8 (H, W, 3) RGB picture of any size, left to right."""
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
            raise ValueError(
                f"a picture must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}"
            )
        picture = np.ascontiguousarray(picture)
        with self._lock:
            found = np.concatenate([net.candidates(picture) for net in self._boxes])
            faces = [self._face(picture, row) for row in merge_overlapping(found)]
        return left_to_right(_distinct([face for face in faces if face is not None]))

    def _face(self, picture: np.ndarray, row: np.ndarray) -> Face | None:
        """Fit the mesh to one candidate (score, box, key points). A second look, at the crop the first mesh asks for,
        makes the points independent of how the box happened to lie."""
        score, box = float(row[0]), row[1:5]
        centre, angle = (box[:2] + box[2:]) / 2, _roll(row[5:7], row[7:9])
        side = CROP_SCALE * float((box[2:] - box[:2]).max())
        for _ in range(_MESH_PASSES):
            mesh, presence = self._mesh.points(picture, centre, side, angle)
            if presence < MIN_PRESENCE:
                return None
            centre, side, angle = _crop_of(mesh)
        return Face(tuple(float(v) for v in box), score, ibug_points(mesh), mesh.astype(np.float32))


def load_mesh_detector(find: Callable[[str], Path]) -> MeshDetector:
    """Return the detector of the files that `find` names (it raises for a missing one), one per process and set of files."""
    paths = tuple(Path(find(name)) for name in (SHORT_RANGE, FULL_RANGE, LANDMARK))
    key = tuple((str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in paths)
    with _CACHE_LOCK:
        if key not in _CACHE:
            _CACHE.clear()  # a replaced file leaves no second set in memory
            _CACHE[key] = MeshDetector(paths[:2], paths[2])
        return _CACHE[key]


_CACHE: dict[tuple, MeshDetector] = {}
_CACHE_LOCK = threading.Lock()


class _BoxNet:
    """One BlazeFace file."""

    def __init__(self, path: Path) -> None:
        self._net, self._names = _read_net(path)
        for self.side in (192, 128):  # the other way round OpenCV warns
            try:
                scores, _ = self._run(np.zeros((self.side, self.side, 3), np.uint8))
            except Exception:  # the importer's shapes do not fit this side
                continue
            if _GRIDS.get(scores.size, (0, ()))[0] == self.side:
                self._anchors = blaze_anchors(scores.size)
                return
        raise ValueError(
            f"{path.name} is not a BlazeFace detector of 896 or 2304 anchors: use {SHORT_RANGE} or {FULL_RANGE}; "
            f"if it is that, OpenCV {_cv2().__version__} reads it wrongly: {_INSTALL}"
        )

    def _run(self, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import cv2

        self._net.setInput(cv2.dnn.blobFromImage(square, 1 / 127.5, None, (127.5,) * 3))
        outputs = self._net.forward(self._names)
        # Bound by shape: the names differ from file to file.
        by_width = {out.shape[-1]: out for out in outputs if out.ndim == 3}
        if 1 not in by_width or 16 not in by_width:
            raise ValueError(f"outputs {[o.shape for o in outputs]}, expected (1, K, 1) and (1, K, 16)")
        return by_width[1].ravel(), by_width[16].reshape(-1, 16)

    def candidates(self, picture: np.ndarray) -> np.ndarray:
        """Return (K, 17): score, box, six key points (the eyes first) in the picture's pixels, not merged."""
        import cv2

        height, width = picture.shape[:2]
        scale = self.side / max(height, width)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        square = np.zeros((self.side, self.side, 3), np.uint8)
        left, top = (self.side - size[0]) // 2, (self.side - size[1]) // 2
        square[top : top + size[1], left : left + size[0]] = small
        logits, offsets = self._run(square)
        found = blaze_candidates(logits, offsets, self._anchors, self.side)
        points = found[:, 1:].reshape(len(found), 8, 2)
        found[:, 1:] = ((points - (left, top)) * (width / size[0], height / size[1])).reshape(len(found), 16)
        return found


class _MeshNet:
    """The face-mesh file."""

    def __init__(self, path: Path) -> None:
        self._net, self._names = _read_net(path)
        try:
            self._run(np.zeros((_MESH_SIDE, _MESH_SIDE, 3), np.uint8))
        except Exception as error:
            raise ValueError(
                f"{path.name} is not the {N_MESH}-point face mesh ({error}): use {LANDMARK}; "
                f"if it is that, OpenCV {_cv2().__version__} reads it wrongly: {_INSTALL}"
            ) from error

    def _run(self, square: np.ndarray) -> tuple[np.ndarray, float]:
        import cv2

        self._net.setInput(cv2.dnn.blobFromImage(square, 1 / 255))
        outputs = {out.size: out for out in self._net.forward(self._names)}
        if set(outputs) != {3 * N_MESH, 1}:
            raise ValueError(f"outputs of {sorted(outputs)} values, expected {3 * N_MESH} and 1")
        return outputs[3 * N_MESH].reshape(N_MESH, 3)[:, :2], float(_sigmoid(outputs[1].ravel())[0])

    def points(
        self, picture: np.ndarray, centre: np.ndarray, side: float, angle: float
    ) -> tuple[np.ndarray, float]:
        """Return the mesh (468, 2) in the picture's pixels and its presence 0..1, out of a square `side` wide around
        `centre`, turned by `angle` radians."""
        import cv2

        factor = _MESH_SIDE / max(side, 1.0)
        shrink = 1.0
        if factor < 0.5:  # bilinear warps alias below one half
            shrink = factor
            picture = cv2.resize(picture, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
        rotation = _rotation(angle)
        turn = factor / shrink * rotation
        # Box coordinates have pixel centres at +0.5, warpAffine at 0.
        shift = _MESH_SIDE / 2 - 0.5 - turn @ (np.asarray(centre) * shrink - 0.5)
        matrix = np.concatenate([turn, shift[:, None]], axis=1)
        square = cv2.warpAffine(
            picture, matrix, (_MESH_SIDE,) * 2, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        raw, presence = self._run(square)
        return (raw - _MESH_SIDE / 2) @ rotation / factor + centre, presence


def merge_overlapping(rows: np.ndarray, iou: float = NMS_IOU, mean_score: bool = False) -> list[np.ndarray]:
    """Return one row per face: the mean, weighted by score, of all candidates that overlap the best one by `iou`.

    rows: (K, 17), score first, box next. A mean moves less from frame to frame than the best row alone. The score is the
    best one's, or with `mean_score` the plain mean of all.
    """
    rows = rows[np.argsort(-rows[:, 0], kind="stable")]
    merged = []
    while len(rows):
        near = box_iou(rows[0, 1:5], rows[:, 1:5]) >= iou
        near[0] = True
        group = rows[near]
        mean = (group * group[:, :1]).sum(0) / group[:, 0].sum()
        mean[0] = group[:, 0].mean() if mean_score else group[0, 0]
        merged.append(mean)
        rows = rows[~near]
    return merged


def box_iou(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return intersection over union of one box with each of (K, 4): (K,), 0..1."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.clip(high - low, 0, None).prod(1)
    areas = [np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1) for b in (box, boxes)]
    return shared / np.maximum(areas[0] + areas[1] - shared, 1e-9)


def _distinct(faces: list[Face]) -> list[Face]:
    """Drop a face whose mesh another, better one already has: two boxes too far apart to merge can lead to one face."""
    kept: list[Face] = []
    for face in sorted(faces, key=lambda f: -f.score):
        size = np.ptp(face.points, axis=0).max()
        if all(np.abs(face.points - other.points).mean() > 0.2 * size for other in kept):
            kept.append(face)
    return kept


def _crop_of(mesh: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return centre, side and angle of the crop that a mesh asks for."""
    angle = _roll(mesh[EYE_CORNERS[0]], mesh[EYE_CORNERS[1]])
    turn = _rotation(angle)
    upright = mesh @ turn.T
    low, high = upright.min(0), upright.max(0)
    return (low + high) / 2 @ turn, CROP_SCALE * float((high - low).max()), angle


def _roll(left_eye: np.ndarray, right_eye: np.ndarray) -> float:
    return float(np.arctan2(right_eye[1] - left_eye[1], right_eye[0] - left_eye[0]))


def _rotation(angle: float) -> np.ndarray:
    """Return the matrix that brings a line at `angle` (x right, y down) level."""
    return np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])


def blaze_anchors(count: int) -> np.ndarray:
    """Return the middles of the 896 or 2304 anchors, float64 (K, 2) x, y in 0..1."""
    parts = []
    for cells, each in _GRIDS[count][1]:
        y, x = np.divmod(np.arange(cells * cells), cells)
        parts.append(np.repeat((np.stack([x, y], 1) + 0.5) / cells, each, axis=0))
    return np.concatenate(parts)


def blaze_candidates(logits: np.ndarray, offsets: np.ndarray, anchors: np.ndarray, side: int) -> np.ndarray:
    """Return (n, 17) of BlazeFace's outputs (K,) and (K, 16): score, box, six key points in pixels of its input.

    Those with a score of MIN_SCORE or more, in the order of the anchors, not merged.
    """
    scores = _sigmoid(logits)
    rows = np.flatnonzero(scores >= MIN_SCORE)
    values = offsets[rows].astype(np.float64).reshape(-1, 8, 2)  # centre, size, key points
    places = anchors[rows] * side
    half, middle = values[:, 1] / 2, values[:, 0] + places
    points = np.concatenate(
        [(middle - half)[:, None], (middle + half)[:, None], values[:, 2:] + places[:, None]], axis=1
    )
    return np.concatenate([scores[rows, None], points.reshape(len(rows), 16)], axis=1)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -80, 80)))


def _read_net(path: Path):
    """Return the network of a tflite file and the names of its outputs."""
    cv2 = _cv2()
    if not path.is_file():
        raise ValueError(f"no face model {path}: `talkinghead models download face-light` fetches it")
    read = getattr(cv2.dnn, "readNetFromTFLite", None)
    if read is None:
        raise ImportError(f"OpenCV {cv2.__version__} reads no tflite files: {_INSTALL}")
    # OpenCV 5's new engine loses the second output of these files, and reading from memory always takes that engine.
    engine = getattr(cv2.dnn, "ENGINE_CLASSIC", None)
    try:
        with _plain_name(path) as name:
            net = read(name) if engine is None else read(name, engine)
    except (cv2.error, TypeError) as error:
        raise ValueError(
            f"{path.name} ({path.stat().st_size} bytes) cannot be read as a tflite network by OpenCV "
            f"{cv2.__version__}; fetch it again, and if it is whole: {_INSTALL}"
        ) from error
    return net, net.getUnconnectedOutLayersNames()


def _cv2():
    try:
        import cv2
    except ImportError as error:
        raise ImportError(f"finding faces needs OpenCV: {_INSTALL}") from error
    return cv2


@contextmanager
def _plain_name(path: Path) -> Iterator[str]:
    """Yield a name of the file in ASCII, of a temporary copy if need be: on Windows OpenCV opens no other."""
    if str(path).isascii():
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(shutil.copyfile(path, Path(folder) / "network.tflite"))
