"""Motion as a small picture: the head's angles above, how far the lips move below, over time.

Each column shows a stretch of frames of equal length, from the lowest to the highest value in it. Its size and its memory do
not depend on the length.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch

from ..core.cadence import Cadence, CadenceOptions
from ..core.frames import RunContext
from ..core.timeline import fps_text
from .drive import ANGLES, LIPS, present
from .geometry import as_degrees
from .motion_plan import Motion
from .motion_run import MotionRun

WIDTH, HEIGHT = 960, 320
COLOURS = ((226, 92, 74), (92, 176, 116), (96, 148, 226))
"""RGB of pitch, yaw and roll."""
LIP_COLOUR = (236, 170, 62)
_BACK, _ZERO, _INK = (24, 26, 30), (70, 74, 82), (226, 228, 232)
_TOP, _BAND = 22, 90
_LEAST_DEGREES, _LEAST_LIPS = 5.0, 0.01
"""What the full height shows at least, so that a still head looks still."""


@dataclass(frozen=True)
class MotionPicture:
    """picture: uint8 RGB (HEIGHT, WIDTH, 3). degrees: lowest and highest of each angle. lips: the largest movement."""

    picture: np.ndarray
    degrees: dict[str, tuple[float, float]]
    lips: float


class _Curve:
    """Lowest and highest value of each column."""

    def __init__(self, columns: int) -> None:
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def add(self, at: np.ndarray, values: np.ndarray) -> None:
        np.minimum.at(self.low, at, values)
        np.maximum.at(self.high, at, values)

    @property
    def least(self) -> float:
        return float(self.low.min())

    @property
    def most(self) -> float:
        return float(self.high.max())


def draw_motion(
    ctx: RunContext, motion: Motion, cadence: Cadence | CadenceOptions | None = None
) -> MotionPicture:
    """Pull `motion` once and draw it, as it is rendered: smoothed, edited, at its cadence.

    Lips are drawn as the root mean square of how far their key points' expression is from the avatar's own.

    Raises:
        ValueError: live motion, which is over once it was pulled.
    """
    if motion.is_live:
        raise ValueError("live motion can be pulled once only, so it is rendered and not drawn")
    n = motion.n_frames
    columns = min(WIDTH, n)
    angles, lips = {name: _Curve(columns) for name in ANGLES}, _Curve(columns)
    run = MotionRun(ctx, motion, motion.plan_options(cadence))
    with closing(run.posed()) as frames:
        for posed in frames:
            at = (np.arange(posed.start, posed.start + len(posed.avatar)) * columns) // n
            for name, curve in angles.items():
                curve.add(at, getattr(posed.pose, name).nan_to_num().numpy())
            lips.add(at, _lip_movement(posed.pose.exp, run.sources.exp[posed.avatar]).numpy())
            ctx.check_cancelled()
    start = {name: float(as_degrees(getattr(run.sources, name)[:1])[0]) for name in ANGLES}
    picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    picture[:] = _BACK
    spans = [(c * WIDTH // columns, (c + 1) * WIDTH // columns) for c in range(columns)]
    reach = _angle_curves(picture, spans, angles, start)
    _lip_curve(picture, spans, lips)
    _legend(picture, motion, angles, reach, lips)
    shown = {name: (curve.least, curve.most) for name, curve in angles.items()}
    return MotionPicture(picture, shown, lips.most)


def _lip_movement(exp: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    moved = (exp - own).unflatten(1, (-1, 3))
    lips = moved[:, list(present(LIPS, moved.shape[1]))].flatten(1)
    return lips.square().mean(1).sqrt().nan_to_num() if lips.shape[1] else exp.new_zeros(len(exp))


def _angle_curves(
    picture: np.ndarray, spans: list, angles: dict[str, _Curve], start: dict[str, float]
) -> float:
    """Draw the angles against those of the avatar's first frame, in the middle; return the degrees of half the height."""
    turns = [abs(v - start[name]) for name, c in angles.items() for v in (c.least, c.most)]
    reach = max(_LEAST_DEGREES, *turns)
    middle, half = (_TOP + HEIGHT - _BAND) // 2, (HEIGHT - _BAND - _TOP) // 2 - 2
    picture[middle] = _ZERO
    for (name, curve), colour in zip(angles.items(), COLOURS, strict=True):
        rows = [middle - np.rint((v - start[name]) / reach * half) for v in (curve.high, curve.low)]
        _trace(picture, spans, *rows, colour)
    return reach


def _lip_curve(picture: np.ndarray, spans: list, lips: _Curve) -> None:
    full, bottom = max(_LEAST_LIPS, lips.most), HEIGHT - 4
    rows = bottom - np.rint(lips.high / full * (_BAND - 12))
    _trace(picture, spans, rows, np.full(len(rows), bottom), LIP_COLOUR)


def _trace(
    picture: np.ndarray, spans: list, top: np.ndarray, bottom: np.ndarray, colour: tuple[int, int, int]
) -> None:
    """Fill each column between two rows, and up to where the one before ended, so that a curve has no gaps."""
    last = None
    for (left, right), a, b in zip(spans, top.astype(int), bottom.astype(int), strict=True):
        low, high = (a, b) if last is None else (min(a, last[1]), max(b, last[0]))
        picture[low : high + 1, left:right] = colour
        last = a, b


def _legend(
    picture: np.ndarray, motion: Motion, angles: dict[str, _Curve], reach: float, lips: _Curve
) -> None:
    import cv2

    def write(text: str, x: int, colour: tuple[int, int, int]) -> int:
        cv2.putText(picture, text, (x, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.42, colour, 1, cv2.LINE_AA)
        return x + cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.42, 1)[0][0] + 18

    seconds = float(motion.n_frames / motion.fps)
    x = write(f"{motion.n_frames} frames, {fps_text(motion.fps)} fps, {seconds:.1f} s", 8, _INK)
    for (name, curve), colour in zip(angles.items(), COLOURS, strict=True):
        x = write(f"{name} {curve.least:.0f}..{curve.most:.0f}", x, colour)
    x = write(f"+-{reach:.0f} degrees", x, _INK)
    write(f"lips {lips.most:.3f}", x, LIP_COLOUR)
