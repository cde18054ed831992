"""The one gain of a take that is there whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .blocks import gain_of
from .limiter import PeakFinder, PeakShares
from .loudness import MAKEUP_DB, MAX_GAIN_DB, KWeighting, PowerMeter, gain_to

STEPS = 8
NEAR_LU = 0.02


class GainSearch:
    """Finds the gain with which `blocks`, float32 (channels, n), leave the limiter at `target` LUFS.

    A limiter takes loudness away. How much is told from the peaks and the K-weighted power of every millisecond, found
    once: within 0.05 LU of what it is on speech. `ceiling_dbtp` None: no limiter.
    """

    def __init__(
        self, blocks: Sequence[np.ndarray], rate: int, target: float, ceiling_dbtp: float | None
    ) -> None:
        self._ceiling, self._target = ceiling_dbtp, target
        channels, length = len(blocks[0]), max(1, round(rate / 1000))
        self._rate, weighting, powers = rate / length, KWeighting(rate, channels), _Rows(length)
        for block in blocks:
            powers.add(weighting.feed(block), np.mean)
        self._powers = powers.finish(np.mean)
        self._plain = gain_to(target, self._loudness(0.0, limited=False))
        self._most = min(MAX_GAIN_DB, self._plain + MAKEUP_DB)
        if ceiling_dbtp is not None:
            self._peaks = self._found(blocks, length, gain_of(ceiling_dbtp - 1 - self._most))

    def _found(self, blocks: Sequence[np.ndarray], length: int, floor: float) -> np.ndarray:
        finder, peaks = PeakFinder(len(blocks[0]), floor), _Rows(length)
        for block in blocks:
            peaks.add(finder.feed(block)[0], np.max)
        peaks.add(finder.finish()[0], np.max)
        return peaks.finish(np.max)

    def gain(self) -> float:
        """Return the gain in dB."""
        gain, slope = self._plain, 1.0
        before: tuple[float, float] | None = None
        for _ in range(STEPS):
            missing = gain_to(self._target, self._loudness(gain, self._ceiling is not None))
            if abs(missing) < NEAR_LU:
                break
            if before is not None:
                # Of every dB of gain the limiter leaves about the same share.
                slope = min(1.0, max(0.25, (before[1] - missing) / (gain - before[0])))
            before, gain = (gain, missing), min(gain + missing / slope, self._most)
            if gain == before[0]:
                break
        return gain

    def _loudness(self, gain_db: float, limited: bool) -> float:
        factor, meter = gain_of(gain_db), PowerMeter(self._rate)
        gains = np.full(len(self._powers), factor)
        if limited:
            shares = PeakShares(self._rate, self._ceiling)
            made = np.concatenate([shares.feed(self._peaks * np.float32(factor)), shares.finish()], axis=1)
            gains *= 1 - made[0]
        meter.feed(self._powers * np.square(gains))
        return meter.integrated()


class _Rows:
    """One value for every `length` consecutive values."""

    def __init__(self, length: int) -> None:
        self._length, self._left, self._made = length, np.zeros(0, np.float32), []

    def add(self, values: np.ndarray, kind: Callable[..., np.ndarray]) -> None:
        held = np.concatenate([self._left, values])
        whole = len(held) // self._length * self._length
        self._left = held[whole:].copy()
        self._made.append(kind(held[:whole].reshape(-1, self._length), axis=1))

    def finish(self, kind: Callable[..., np.ndarray]) -> np.ndarray:
        """Return all values; the last one is of a row filled up with zeros."""
        self.add(np.zeros(-len(self._left) % self._length, np.float32), kind)
        return np.concatenate(self._made)
