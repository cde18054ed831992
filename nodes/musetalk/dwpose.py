"""Landmarks as upstream finds them: DWPose-l on the whole frame, without a person box.

The network is passed in as `run(batch) -> (simcc_x, simcc_y)`: batch float32 (1, 3, 384, 288) normalised RGB, results
(1, 133, 576) and (1, 133, 768), one value per half pixel. Points are x,y. Frames are RGB uint8 (H, W, 3). A frame wider
than 3:4 is shown to the network whole with black bands. Source: spec/musetalk.md section 4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

INPUT_WIDTH, INPUT_HEIGHT = 288, 384
N_POINTS = 133
FACE = slice(23, 91)
"""The 68 face points, iBUG order, among the 133 whole-body points."""
BINS_PER_PIXEL = 2.0
PADDING = 1.25
MEAN_RGB = np.array([123.675, 116.28, 103.53], np.float32)
STD_RGB = np.array([58.395, 57.12, 57.375], np.float32)

Run = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _mirror_pairs() -> np.ndarray:
    """Return for every point the one in its place in a mirrored picture."""
    pairs = [(i, i + 1) for i in range(1, 16, 2)]  # eyes to ankles
    pairs += [(17, 20), (18, 21), (19, 22)]  # feet
    # Face, relative to point 23: jaw, brows, nostrils, eyes, outer and inner lips.
    face = [(i, 16 - i) for i in range(8)] + [(17 + i, 26 - i) for i in range(5)] + [(31, 35), (32, 34)]
    face += [(36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46)]
    face += [(48, 54), (49, 53), (50, 52), (55, 59), (56, 58), (60, 64), (61, 63), (65, 67)]
    pairs += [(23 + a, 23 + b) for a, b in face]
    pairs += [(91 + i, 112 + i) for i in range(21)]  # hands
    order = np.arange(N_POINTS)
    for a, b in pairs:
        order[a], order[b] = b, a
    return order


MIRROR_PAIRS = _mirror_pairs()


def whole_image_box(width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale (width, height in pixels) of the frame as the network sees it, float32 (2,) each."""
    center = np.array([width / 2, height / 2], np.float32)
    w, h = np.float32(width) * np.float32(PADDING), np.float32(height) * np.float32(PADDING)
    aspect = INPUT_WIDTH / INPUT_HEIGHT
    scale = (w, w / aspect) if w > h * aspect else (h * aspect, h)
    return center, np.array(scale, np.float32)


def warp_matrix(center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the affine map from the frame to the network's input: float64 (2, 3), uniform scale, centre to centre."""
    factor = INPUT_WIDTH / float(scale[0])
    shift = np.array([INPUT_WIDTH / 2, INPUT_HEIGHT / 2]) - factor * np.asarray(center, np.float64)
    return np.array([[factor, 0.0, shift[0]], [0.0, factor, shift[1]]])


def warp(frame: np.ndarray) -> np.ndarray:
    """Return the frame on the network's canvas, uint8 (384, 288, 3), bilinear, black outside."""
    import cv2

    matrix = warp_matrix(*whole_image_box(frame.shape[1], frame.shape[0]))
    return cv2.warpAffine(frame, matrix, (INPUT_WIDTH, INPUT_HEIGHT), flags=cv2.INTER_LINEAR)


def normalise(picture: np.ndarray) -> np.ndarray:
    """Return the network's input of a warped RGB picture: float32 (1, 3, 384, 288)."""
    values = (picture.astype(np.float32) - MEAN_RGB) / STD_RGB
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def flip_average(plain: np.ndarray, mirrored: np.ndarray, reverse: bool) -> np.ndarray:
    """Return the mean of a pass (133, bins) and the pass on the mirrored picture, paired points swapped.

    `reverse` turns the mirrored bins round: true for x, false for y.
    """
    other = mirrored[MIRROR_PAIRS]
    return (plain + (other[:, ::-1] if reverse else other)) * np.float32(0.5)


def decode_simcc(simcc_x: np.ndarray, simcc_y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points (K, 2) in pixels of the network's input and their scores (K,), the smaller of the two peaks.

    A point whose score is 0 or less is (-0.5, -0.5), as upstream leaves it.
    """
    points = np.stack([simcc_x.argmax(1), simcc_y.argmax(1)], 1).astype(np.float32)
    scores = np.minimum(simcc_x.max(1), simcc_y.max(1))
    points[scores <= 0] = -1
    return points / np.float32(BINS_PER_PIXEL), scores


def to_image(points: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return points of the network's input as points of a width x height frame, float64."""
    center, scale = whole_image_box(width, height)
    return points / np.array([INPUT_WIDTH, INPUT_HEIGHT]) * scale + center - 0.5 * scale


def face_points(points: np.ndarray) -> np.ndarray:
    """Return the 68 face points of 133, int32, fractions cut off toward zero."""
    return points[FACE].astype(np.int32)


def find_points(frame: np.ndarray, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the whole-body points (133, 2) of an RGB frame in its pixels, and their scores.

    The network runs twice, on the picture and on its mirror image. ValueError if its results have other sizes.
    """
    batch = normalise(warp(frame))
    passes = [run(batch), run(np.ascontiguousarray(batch[..., ::-1]))]
    bins = int(INPUT_WIDTH * BINS_PER_PIXEL), int(INPUT_HEIGHT * BINS_PER_PIXEL)
    for results in passes:
        for values, n in zip(results, bins, strict=True):
            if values.shape != (1, N_POINTS, n):
                raise ValueError(f"DWPose gave {values.shape}, expected (1, {N_POINTS}, {n}): another model?")
    (x, y), (mirrored_x, mirrored_y) = passes
    mean_x = flip_average(x[0], mirrored_x[0], reverse=True)
    points, scores = decode_simcc(mean_x, flip_average(y[0], mirrored_y[0], reverse=False))
    return to_image(points, frame.shape[1], frame.shape[0]), scores
