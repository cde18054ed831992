"""Smoothing along time: moving averages as upstream has them, and Savitzky-Golay for the rigid pose.

Series are (frames, ...) float32. Every value is a sum in one fixed order, so it does not depend on how a series was
chunked. Sources: spec/ditto.md sections 6 and 9; Savitzky and Golay 1964 (least-squares polynomial in a sliding window).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

WINDOW, ORDER = 5, 2
N_BINS = 66
RIGID = slice(1, 1 + 3 * N_BINS + 3)
"""Columns of a motion vector with pitch, yaw, roll (as logits) and translation: all but scale and expression."""
POSE = slice(0, RIGID.stop)
"""The same with the scale: what upstream's moving average smooths."""


def moving_average(series: Tensor, width: int) -> Tensor:
    """Return the mean over frames i - width // 2 .. i + width // 2, fewer at the ends.

    An even width is that of the next odd number, as upstream has it. A width below 2 changes nothing.
    """
    half = width // 2
    if width < 2 or len(series) < 2:
        return series.clone()
    return _averages(series, half, 0, len(series))


def average_range(series: Tensor, width: int, first: int, end: int) -> Tensor:
    """Return rows first..end-1 of `moving_average(series, width)` without making the others."""
    if width < 2:
        return series[first:end].clone()
    return _averages(series, width // 2, first, end)


def _averages(series: Tensor, half: int, first: int, end: int) -> Tensor:
    n, total = len(series), torch.zeros_like(series[first:end])
    count = total.new_zeros(end - first)
    for offset in range(-half, half + 1):
        lo, hi = max(first, -offset), min(end, n - offset)
        if lo < hi:
            total[lo - first : hi - first] += series[lo + offset : hi + offset]
            count[lo - first : hi - first] += 1
    return total / count.reshape(-1, *[1] * (series.ndim - 1))


def smooth_source(
    infos: Mapping[str, Tensor], width: int = 13, skip: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Average every series (frames, ...) of a template video's key points, but those named in `skip`."""
    kept = set(skip)
    return {
        name: series.clone() if name in kept else moving_average(series, width)
        for name, series in infos.items()
    }


@lru_cache(maxsize=32)
def _fit(window: int, order: int) -> np.ndarray:
    """Row i: weights that give the value at i of the polynomial fitted to a window; float64 (window, window)."""
    at = np.linspace(-1, 1, window) if window > 1 else np.zeros(1)
    powers = at[:, None] ** np.arange(order + 1)
    return powers @ np.linalg.pinv(powers)


class SavitzkyGolay:
    """Least-squares polynomial smoothing of a series that comes in pieces; the pieces change nothing.

    Inside, each frame is the middle of its own window. The first and last window // 2 frames lie on the polynomial of the
    first or last whole window. A series shorter than a window is fitted as a whole.

    Args:
        window: frames, odd, 3 or more. order: of the polynomial, below the window.

    Raises:
        ValueError: a window or order that does not fit.
    """

    def __init__(self, window: int = WINDOW, order: int = ORDER) -> None:
        if window < 3 or window % 2 == 0 or not 0 <= order < window:
            raise ValueError(
                f"window {window} and order {order}: give an odd window of 3 or more and an order of 0..window - 1"
            )
        self.window, self.order, self.half = window, order, window // 2
        self._held: Tensor | None = None
        self._settled = False

    def feed(self, series: Tensor) -> Tensor:
        """Take the next frames (k, ...); return those that are settled: all so far but the last window // 2."""
        held = series if self._held is None else torch.cat([self._held, series])
        first = int(self._settled)  # the middle of a held whole window was returned before
        count = len(held) - self.window + 1 - first
        if count < 1:
            self._held = held
            return held[:0]
        weights = _fit(self.window, self.order)
        middles = sum(
            held[first + i : first + i + count] * float(w) for i, w in enumerate(weights[self.half])
        )
        if not self._settled:
            middles = torch.cat([_weighted(held[: self.window], weights[: self.half]), middles])
        self._held, self._settled = held[-self.window :].clone(), True
        return middles

    def finish(self) -> Tensor:
        """Return the frames still owed and forget the series. ValueError if none was fed."""
        held, settled = self._held, self._settled
        self._held, self._settled = None, False
        if held is None:
            raise ValueError("no frames were fed: feed a series before finishing it")
        if settled:
            return _weighted(held, _fit(self.window, self.order)[self.half + 1 :])
        return _weighted(held, _fit(len(held), min(self.order, len(held) - 1))) if len(held) else held


class PoseSmoother:
    """Savitzky-Golay on the rigid pose of motion vectors (k, 202 or more) that come in pieces.

    Scale and expression pass untouched: a plosive closes the lips for two frames and must stay as sharp as it is.
    """

    def __init__(self, window: int = WINDOW, order: int = ORDER) -> None:
        self._filter = SavitzkyGolay(window, order)
        self._raw: Tensor | None = None

    def feed(self, motion: Tensor) -> Tensor:
        """Take the next frames; return those that are settled, window // 2 frames behind."""
        self._raw = motion if self._raw is None else torch.cat([self._raw, motion])
        return self._with(self._filter.feed(motion[:, RIGID]))

    def finish(self) -> Tensor:
        """Return the frames still owed. ValueError if none was fed."""
        return self._with(self._filter.finish())

    def _with(self, pose: Tensor) -> Tensor:
        out, self._raw = self._raw[: len(pose)].clone(), self._raw[len(pose) :].clone()
        out[:, RIGID] = pose
        return out


def smooth_pose(motion: Tensor, window: int = WINDOW, order: int = ORDER) -> Tensor:
    """Return motion vectors (frames, 265) with pitch, yaw, roll and translation smoothed, all else untouched."""
    smoother = PoseSmoother(window, order)
    return torch.cat([smoother.feed(motion), smoother.finish()])


def _weighted(window: Tensor, weights: np.ndarray) -> Tensor:
    """Return a row for each row of `weights`, summed over the window in order."""
    return torch.stack(
        [sum(frame * float(w) for frame, w in zip(window, row, strict=True)) for row in weights]
    )
