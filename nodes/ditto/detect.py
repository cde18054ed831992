"""Ditto's face detector around its network: InsightFace's RetinaFace head (det_10g.onnx, insightface_det.onnx).

Pictures are uint8 (H, W, 3) RGB, boxes (x1, y1, x2, y2), points x, y in pixels of the picture. The network is passed in
as a function from its input to nine arrays: scores, boxes, key points of the strides 8, 16, 32. InsightFace's networks
were trained on BGR pictures read as RGB; upstream hands them an RGB picture whose channels its blob swaps, so what they
see is BGR. Kept: the weights are used to it as users know them. Source: spec/ditto.md 6.2 and 14.11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

INPUT_SIDE = 512
STRIDES = (8, 16, 32)
ANCHORS = 2
"""Anchors in every cell of a stride."""
N_POINTS = 5
MIN_SCORE, NMS_IOU = 0.5, 0.4

RetinaNet = Callable[[np.ndarray], Sequence[np.ndarray]]
"""(1, 3, 512, 512) float32 -> per stride 8, 16, 32: scores (n, 1); the same for boxes (n, 4), then points (n, 10)."""


def output_shapes() -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the shapes of the nine outputs, without a batch axis: scores, boxes and kps of every stride."""
    counts = [ANCHORS * (INPUT_SIDE // stride) ** 2 for stride in STRIDES]
    widths = {"scores": 1, "boxes": 4, "kps": 2 * N_POINTS}
    return {name: tuple((n, width) for n in counts) for name, width in widths.items()}


def detector_input(picture: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the picture as the network takes it, (1, 3, 512, 512), and input pixels per pixel of the picture.

    It lies in the left upper corner at its own aspect, black beside it; -1..1, blue first.
    """
    import cv2

    height, width = picture.shape[:2]
    # Fractions are cut off: the scale is that of the whole number of rows.
    if height > width:
        size = max(1, int(INPUT_SIDE / (height / width))), INPUT_SIDE
    else:
        size = INPUT_SIDE, max(1, int(INPUT_SIDE * (height / width)))
    canvas = np.zeros((INPUT_SIDE, INPUT_SIDE, 3), np.uint8)
    canvas[: size[1], : size[0]] = cv2.resize(np.ascontiguousarray(picture), size)
    values = (canvas[..., ::-1].astype(np.float32) - 127.5) / 128.0
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None]), size[1] / height


def find_faces(picture: np.ndarray, net: RetinaNet) -> tuple[np.ndarray, np.ndarray]:
    """Return the faces of a picture, best score first: boxes with score (n, 5), points (n, 5, 2), float32."""
    values, scale = detector_input(picture)
    rows, points = decode(net(values))
    rows[:, :4] /= scale
    keep = suppress(rows)
    return rows[keep], points[keep] / np.float32(scale)


def decode(outputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return candidates of a score of MIN_SCORE or more, best first: rows (n, 5), points (n, 5, 2), input pixels.

    ValueError for outputs of other shapes.
    """
    wanted = [shape for shapes in output_shapes().values() for shape in shapes]
    # The official files give rows, a fresh export may put a batch axis in front.
    flat = [value.reshape(value.shape[-2:]) if value.ndim > 1 else value for value in outputs]
    if [value.shape for value in flat] != wanted:
        raise ValueError(
            f"the face detector gave {[v.shape for v in outputs]}, expected {wanted}: it is another network"
        )
    rows, points = [], []
    for i, stride in enumerate(STRIDES):
        scores, boxes, offsets = (np.asarray(flat[i + 3 * kind], np.float32) for kind in range(3))
        kept = np.flatnonzero(scores[:, 0] >= MIN_SCORE)
        cells = kept // ANCHORS
        side = INPUT_SIDE // stride
        middle = np.stack([cells % side, cells // side], 1).astype(np.float32) * stride
        reach = boxes[kept] * stride
        rows.append(np.concatenate([middle - reach[:, :2], middle + reach[:, 2:], scores[kept]], 1))
        points.append(middle[:, None] + offsets[kept].reshape(-1, N_POINTS, 2) * stride)
    found, places = np.concatenate(rows), np.concatenate(points)
    order = np.argsort(-found[:, 4], kind="stable")
    return found[order], places[order]


def suppress(rows: np.ndarray, iou: float = NMS_IOU) -> list[int]:
    """Return the rows (n, 5; best first) that no better one overlaps by more than `iou`.

    Sides count a pixel more than their difference, as in boxes of whole pixels.
    """
    low, high = rows[:, :2], rows[:, 2:4]
    areas = (high - low + 1).prod(1)
    left, kept = np.arange(len(rows)), []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(int(best))
        shared = np.minimum(high[best], high[left]) - np.maximum(low[best], low[left]) + 1
        shared = shared.clip(0, None).prod(1)
        left = left[shared / (areas[best] + areas[left] - shared) <= iou]
    return kept


def largest(rows: np.ndarray, count: int, middle: tuple[float, float] | None = None) -> np.ndarray:
    """Return the indices of the `count` largest boxes of (n, 4 or more), largest first.

    middle: x, y in whole pixels; boxes lose twice the squared distance of their middle from it, in pixels of area.
    """
    values = (rows[:, 2:4] - rows[:, :2]).prod(1)
    if middle is not None:
        away = (rows[:, :2] + rows[:, 2:4]) / 2 - np.asarray(middle, np.float32)
        values = values - 2 * (away**2).sum(1)
    return np.argsort(-values, kind="stable")[:count]
