"""A cadence as a small picture: how loud every frame is, where the thresholds lie, and what was chosen.

Each column shows a stretch of frames of equal length: above, from the lowest to the highest loudness in decibels as a
bar; below, the share of each choice as a stack of colours. Its size and its memory do not depend on the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .cadence import SAID, Cadence, FramePlan, StrideMix, plan_frames
from .report import Report

WIDTH, HEIGHT = 960, 240
FLOOR_DB = -72.0
"""The bottom of the envelope: quieter than noise at -60 dBFS."""
CHOICES = ("dense", "2", "3", "rest", "no face")
COLOURS = ((226, 92, 74), (236, 170, 62), (92, 176, 116), (74, 108, 164), (120, 120, 120))
"""RGB of CHOICES: warm is more work."""
_BACK, _BAR, _QUIET, _LINE, _INK = (
    (24, 26, 30),
    (196, 200, 208),
    (98, 102, 112),
    (210, 90, 130),
    (226, 228, 232),
)
_TOP, _BAND = 22, 40


@dataclass(frozen=True)
class CadencePicture:
    """picture: uint8 RGB (HEIGHT, WIDTH, 3). mix: what was counted while it was drawn."""

    picture: np.ndarray
    mix: StrideMix


def draw_cadence(cadence: Cadence, report: Report | None = None) -> CadencePicture:
    """Plan `cadence` once and draw the plan. `report` is told what is wrong with the sound, if given."""
    n, mix = cadence.n_frames, StrideMix()
    columns = min(WIDTH, n)
    low, high = np.full(columns, np.inf), np.full(columns, -np.inf)
    chosen = np.zeros((columns, len(CHOICES)))
    heard: list[float] = []
    energies = _noted(cadence.energies(report), heard)
    for plan in plan_frames(energies, cadence.options, cadence.fps):
        at = plan.frame * columns // n
        level = _decibel(heard.pop(0))
        low[at], high[at] = min(low[at], level), max(high[at], level)
        chosen[at, choice_of(plan)] += 1
        mix.add(plan)
    picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    picture[:] = _BACK
    spans = [(c * WIDTH // columns, (c + 1) * WIDTH // columns) for c in range(columns)]
    _envelope(picture, spans, low, high, cadence.options.rms_threshold)
    _band(picture, spans, chosen)
    _legend(picture, mix, cadence.fps)
    return CadencePicture(picture, mix)


def choice_of(plan: FramePlan) -> int:
    """Return the index into CHOICES of what becomes of a frame."""
    if plan.stride:
        return plan.stride - 1
    return 3 if plan.weight == 0 else 4


def _noted(energies: Iterable[float], heard: list[float]) -> Iterable[float]:
    for rms in energies:
        heard.append(rms)
        yield rms


def _decibel(rms: float) -> float:
    return max(FLOOR_DB, 20 * math.log10(rms)) if rms > 0 else FLOOR_DB


def _row(level: float) -> int:
    """Row of a level in dB: 0 dB at the top of the envelope, FLOOR_DB at its bottom."""
    height = HEIGHT - _TOP - _BAND
    return _TOP + round((height - 1) * min(1.0, level / FLOOR_DB))


def _envelope(picture: np.ndarray, spans: list, low: np.ndarray, high: np.ndarray, threshold: float) -> None:
    limits = {_decibel(threshold): _LINE, _decibel(threshold / 2): _QUIET}
    for (left, right), a, b in zip(spans, low, high, strict=True):
        bottom = HEIGHT - _BAND
        picture[_row(b) : bottom, left:right] = _QUIET
        picture[_row(b) : _row(a) + 1, left:right] = _BAR
    for level, colour in limits.items():
        if level > FLOOR_DB:
            picture[_row(level), ::4] = colour
            picture[_row(level), 1::4] = colour


def _band(picture: np.ndarray, spans: list, chosen: np.ndarray) -> None:
    top, height = HEIGHT - _BAND + 4, _BAND - 4
    for (left, right), counts in zip(spans, chosen, strict=True):
        ends = np.rint(np.cumsum(counts) / counts.sum() * height).astype(int)
        for colour, start, end in zip(COLOURS, [0, *ends], ends, strict=False):
            picture[top + start : top + end, left:right] = colour


def _legend(picture: np.ndarray, mix: StrideMix, fps: Fraction) -> None:
    import cv2

    def write(text: str, x: int, colour: tuple[int, int, int]) -> int:
        cv2.putText(picture, text, (x, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.42, colour, 1, cv2.LINE_AA)
        return x + cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.42, 1)[0][0] + 18

    x = write(f"{mix.frames} frames, {float(mix.frames / fps):.1f} s, {mix.keys} keys", 8, _INK)
    for (name, share), colour in zip(mix.shares().items(), COLOURS, strict=False):
        if share:
            x = write(f"{SAID[name]} {100 * share:.0f} %", x, colour)
