"""Registration's detectors and landmarks against their goldens; networks are stored or seeded outputs there.

Float32 on the CPU always.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.face_mesh import blaze_anchors
from ..core.parity_measure import Result, Tolerance, close, exact, some
from . import detect as boxes
from . import eyes, landmarks, mesh478
from .parity_recipe import DittoGoldens, seeded

_PIXELS, _SHARES = Tolerance(1e-3), Tolerance(1e-5)
_BLOB = Tolerance(4 / 255 + 1e-6)


def detect(goldens: DittoGoldens) -> Iterator[Result]:
    """Every step of the registration that is no network."""
    data = {key: value.numpy() for key, value in goldens.tensors("detect").items()}
    described = goldens.json("detect")
    yield from _boxes(data, described)
    yield from _landmarks(data)
    yield from _mesh(data, described)
    yield from _eyes(data)


def _boxes(data: dict[str, np.ndarray], described: dict[str, Any]) -> Iterator[Result]:
    outputs, found, blobs, first = _detector_outputs(described), {}, {}, {}
    for name in some([key for key in described if key.endswith("blob") or "x" in key[4:]], "detect's sizes"):
        if not name.startswith("det.") or "blob" not in described[name]:
            continue
        height, width = map(int, name.removeprefix("det.").split("x"))
        picture = _picture(height, width)
        blob, _ = boxes.detector_input(picture)
        rows, points = boxes.find_faces(picture, lambda _: outputs)
        found |= {
            f"{name} boxes": (rows, data[f"{name}.det"]),
            f"{name} points": (points, data[f"{name}.kps"]),
        }
        blobs[name] = (blob[:, :, 5::32, 7::32] * 128 / 255, data[f"{name}.blob_sub"] * 128 / 255)
        best = rows[boxes.largest(rows, 1)[0]]
        first[name] = (best, np.array(described[name]["largest_area_box_first"]))
        sizes = {
            "rows": (len(rows), described[name]["n"]),
            "blob": (list(blob.shape), described[name]["blob"]),
        }
        yield exact(f"detect.sizes {height}x{width}", sizes)
    rows, _ = boxes.find_faces(_picture(300, 400), lambda _: outputs)
    first["two by area"] = (rows[boxes.largest(rows, 2)], data["det.max2_area.det"])
    first["two by area and place"] = (rows[boxes.largest(rows, 2, (200, 150))], data["det.max2.det"])
    yield close("detect.boxes", found, _PIXELS)
    yield close("detect.inputs", blobs, _BLOB)
    yield close("detect.largest", first, _PIXELS)
    nothing = [np.zeros_like(value) for value in outputs]
    rows, points = boxes.find_faces(_picture(300, 400), lambda _: nothing)
    yield exact(
        "detect.none", {"shapes": ([list(rows.shape), [0, *points.shape[1:]]], described["det.none"])}
    )


def _detector_outputs(described: dict[str, Any]) -> list[np.ndarray]:
    """The nine outputs that the goldens are made of."""
    shapes = boxes.output_shapes()
    scores, reach = ([np.zeros(shape, np.float32) for shape in shapes[kind]] for kind in ("scores", "boxes"))
    points = [
        0.5 * seeded(f"det.kps{stride}", shape).numpy()
        for stride, shape in zip(boxes.STRIDES, shapes["kps"], strict=True)
    ]
    for hot in some(described["det.outputs"]["hot"], "detect's candidates"):
        at = boxes.STRIDES.index(hot["stride"])
        scores[at][hot["row"], 0], reach[at][hot["row"]] = hot["score"], hot["ltrb"]
    return [*scores, *reach, *points]


def _landmarks(data: dict[str, np.ndarray]) -> Iterator[Result]:
    matrices, points, blobs = {}, {}, {}
    picture = _picture(300, 400)
    for case in some(_cases(data, "lmk106."), "detect's 106-point cases"):
        matrix = landmarks.matrix_106(data[f"{case}.box"])
        blob = landmarks.input_106(picture, matrix)
        matrices[case] = (matrix, data[f"{case}.M"])
        blobs[case] = (blob[:, :, 3::12, 5::12] / 255, data[f"{case}.blob_sub"] / 255)
        points[case] = (landmarks.points_106(data["lmk106.raw"], matrix), data[f"{case}.pts"])
    blob = landmarks.input_203(_picture(224, 224))
    blobs["203"] = (blob[:, :, 3::16, 5::16], data["lmk203.input_sub"])
    points["203"] = (landmarks.points_203(data["lmk203.raw"], data["lmk203.M_c2o"]), data["lmk203.pts"])
    points["203 in the crop"] = (landmarks.points_203(data["lmk203.raw"]), data["lmk203.pts_noM"])
    yield close("detect.squares", matrices, _PIXELS)
    yield close("detect.landmarks", points, _PIXELS)
    yield close("detect.landmark_inputs", blobs, _BLOB)


def _mesh(data: dict[str, np.ndarray], described: dict[str, Any]) -> Iterator[Result]:
    regressors, scores = _blaze_outputs(described)
    picture, raw = _picture(512, 512), data["mesh.raw"]
    rois, points, blobs = {}, {}, {}
    anchors = np.concatenate([blaze_anchors(mesh478.N_ANCHORS), np.ones((mesh478.N_ANCHORS, 2))], 1)
    yield close("detect.anchors", {"anchors": (anchors, data["blaze.anchors"])}, _SHARES)
    faces = mesh478.blaze_faces(regressors, scores)
    # Upstream's rows: the box in pixels of the input, key points as shares, the score last.
    rows = np.concatenate([faces[:, 1:5] * mesh478.BLAZE_SIDE, faces[:, 5:], faces[:, :1]], 1)
    yield close("detect.blaze", {"faces": (rows, data["blaze.detections"])}, _PIXELS)
    blaze = mesh478.blaze_input(picture)
    yield close(
        "detect.blaze_input",
        {"input": (blaze[:, 3::16, 5::16] * 127.5 / 255, data["blaze.input_sub"] * 127.5 / 255)},
        _BLOB,
    )
    for case in some(_cases(data, "roi."), "detect's squares"):
        given = described[case]
        roi = mesh478.mesh_roi(np.array(given["bbox"]), *np.array(given["keypoints"]))
        rois[case] = ([*roi.centre, roi.side, roi.side, roi.angle], data[case])
    for case in some(_cases(data, "mesh."), "detect's meshes"):
        x, y, side, _, angle = data[f"{case}.roi"].tolist()
        roi = mesh478.Roi((x, y), side, angle)
        points[case] = (mesh478.mesh_points(raw, roi), data[f"{case}.points"])
        blobs[case] = (mesh478.mesh_input(picture, roi)[:, 5::16, 7::16], data[f"{case}.input_sub"])
    whole = mesh478.find_mesh(picture, lambda _: (regressors, scores), lambda _: raw)
    yield close("detect.roi", rois, _PIXELS)
    yield close("detect.mesh", points, _PIXELS)
    yield close("detect.mesh_input", blobs, Tolerance(1e-6))
    yield close("detect.mesh_whole", {"512": (whole, data["lmk478.512"][0])}, _SHARES)


def _blaze_outputs(described: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    count = mesh478.N_ANCHORS
    regressors = 4 * seeded("blaze.boxes", (1, count, 16)).numpy()
    scores = np.full((1, count, 1), -8, np.float32)
    for row, (score, size) in described["blaze"]["rows"].items():
        scores[0, int(row), 0], regressors[0, int(row), 2:4] = score, size
    return regressors, scores


def _eyes(data: dict[str, np.ndarray]) -> Iterator[Result]:
    opened, balls, ways = {}, {}, {}
    for i, points in enumerate(some(data["eye.lmk"], "detect's eyes")):
        widths = np.linalg.norm(eyes.eye_axes(points), axis=1)
        opened[str(i)] = (eyes.eye_open(points), data["eye.open"][i])
        balls[str(i)] = (eyes.eye_ball(points), data["eye.ball"][i])
        ways[str(i)] = (eyes.iris_ways(points).T / widths, data["eye.ball_direc"][i])
    yield close("detect.eye_open", opened, _SHARES)
    yield close("detect.eye_ball", balls, _SHARES)
    yield close("detect.eye_ways", ways, _SHARES)


def _picture(height: int, width: int) -> np.ndarray:
    """The goldens' picture, uint8 (H, W, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    board = (x // 8 + y // 8) % 2 * 220 + 10
    return np.stack([x * 255 // (width - 1), y * 255 // (height - 1), board], -1).astype(np.uint8)


def _cases(data: dict[str, np.ndarray], prefix: str) -> list[str]:
    """Names `prefix`caseN of the arrays."""
    found = {".".join(key.split(".")[:2]) for key in data if key.startswith(f"{prefix}case")}
    return sorted(found)
