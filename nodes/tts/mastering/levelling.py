"""The one gain of a take that is there whole."""

from __future__ import annotations

from collections.abc import Sequence

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
        weighting, finder = KWeighting(rate, channels), PeakFinder(channels)
        self._rate = rate / length
        powers = [weighting.feed(block).astype(np.float32) for block in blocks]
        self._powers = _cut(powers, length).mean(axis=1, dtype=np.float64)
        if ceiling_dbtp is not None:
            peaks = [finder.feed(block)[0] for block in blocks] + [finder.finish()[0]]
            self._peaks = _cut(peaks, length).max(axis=1)

    def gain(self) -> float:
        """Return the gain in dB."""
        gain = gain_to(self._target, self._loudness(0.0, limited=False))
        most, slope = min(MAX_GAIN_DB, gain + MAKEUP_DB), 1.0
        before: tuple[float, float] | None = None
        for _ in range(STEPS):
            missing = gain_to(self._target, self._loudness(gain, self._ceiling is not None))
            if abs(missing) < NEAR_LU:
                break
            if before is not None:
                # Of every dB of gain the limiter leaves about the same share.
                slope = min(1.0, max(0.25, (before[1] - missing) / (gain - before[0])))
            before, gain = (gain, missing), min(gain + missing / slope, most)
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


def _cut(parts: list[np.ndarray], length: int) -> np.ndarray:
    """Return consecutive values as rows of `length`, the last one filled with zeros."""
    whole = np.concatenate(parts)
    return np.pad(whole, (0, -len(whole) % length)).reshape(-1, length)
