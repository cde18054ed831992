"""The one gain of a take that is there whole, and why it may miss the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from .blocks import gain_of
from .limiter import PeakFinder, PeakShares
from .loudness import KWeighting, PowerMeter, k_response
from .room_tone import tone_response

NEAR_LU, OFF_LU = 0.02, 0.3
"""Where the search ends, and from where on the target counts as missed."""
MAX_GAIN_DB = 70.0
SILENT_LUFS = -86.0
"""What is quieter is the rounding noise of 16 bits (white: -91 LUFS with dither), not speech: it keeps its level."""
FEW_DB = 9.0
"""Up to this much above the gain without a limiter, peaks are looked for at once: enough for speech."""
SMALLEST_DB, LARGEST_DB, PASSES, REFINED = 0.5, 3.0, 64, 12
"""Steps towards the target, how many there are at most, and how many more between two of them."""


class Miss(Enum):
    """Why no gain brings a take to its target."""

    SHORT = "shorter than 0.1 s"
    SILENT = "silent"
    GAIN = "more than MAX_GAIN_DB needed"
    PEAKS = "the limiter takes what the gain adds"
    TONE = "the room tone alone is louder"


@dataclass(frozen=True)
class Level:
    """gain_db: of all samples. lufs: what leaves the limiter, as estimated; missed: why that is not the target."""

    gain_db: float
    lufs: float
    missed: Miss | None = None


class GainSearch:
    """Finds the gain with which `blocks`, float32 (channels, n), leave the limiter at `target` LUFS.

    A limiter takes loudness away, and the more a take's peaks stand out, the more gain it needs: a door slam over low
    speech 30 dB, of which speech keeps all. How much is told from the peaks and the K-weighted power of every
    millisecond, found once: within 0.05 LU of what is measured behind the limiter. `ceiling_dbtp` None: no limiter.
    `tone_dbfs`: the room tone, which is added behind the gain and counts.
    """

    def __init__(
        self,
        blocks: Sequence[np.ndarray],
        rate: int,
        target: float,
        ceiling_dbtp: float | None,
        tone_dbfs: float | None = None,
    ) -> None:
        self._blocks, self._target, self._ceiling = blocks, target, ceiling_dbtp
        channels, self._length = len(blocks[0]), max(1, round(rate / 1000))
        weighting, powers = KWeighting(rate, channels), _Rows(self._length)
        self._rate = rate / self._length
        for block in blocks:
            powers.add(weighting.feed(block), np.mean)
        self._powers, self._n = powers.finish(np.mean), sum(block.shape[1] for block in blocks)
        self._tone = 0.0 if tone_dbfs is None else channels * _tone_power(rate, tone_dbfs)
        self._peaks, self._exact_to = np.zeros(0, np.float32), -math.inf

    def found(self) -> Level:
        """Return the lowest gain found at the target, or the one that comes nearest to it."""
        if self._n < int(self._rate * self._length) // 10:
            return Level(0.0, -math.inf, Miss.SHORT)
        loudness = self._without_limits()
        if loudness < SILENT_LUFS:
            return Level(0.0, loudness, Miss.SILENT)
        self._plain = self._target - loudness
        tried = self._approached(min(MAX_GAIN_DB, self._plain))
        nearest = min(abs(over) for _, over in tried)
        # Out of reach, a gain that is as good and lower squeezes less.
        alike = NEAR_LU if nearest <= OFF_LU else OFF_LU
        gain, over = min(t for t in tried if abs(t[1]) <= nearest + alike)
        if abs(over) <= OFF_LU:
            return Level(gain, self._target + over)
        if over > 0:
            return Level(gain, self._target + over, Miss.TONE)
        # Where the limiter takes less than half of what the gain adds, more gain would help.
        still = gain == MAX_GAIN_DB and over - self._over(gain - LARGEST_DB) > LARGEST_DB / 2
        return Level(gain, self._target + over, Miss.GAIN if still else Miss.PEAKS)

    def _without_limits(self) -> float:
        """Return the loudness of the take as it is; one under the gate of -70 LUFS is measured at a higher gain."""
        loudness = self._loudness(self._powers)
        if loudness > -40:
            return loudness
        return self._loudness(self._powers * gain_of(MAX_GAIN_DB) ** 2) - MAX_GAIN_DB

    def _approached(self, gain: float) -> list[tuple[float, float]]:
        """Return (gain in dB, LU over the target) of all gains that were tried, from `gain` on.

        Steps that are no larger than what is missing do not jump over the lowest gain: of a dB of gain the limiter
        leaves a part. Between the two gains around the target the secant is followed.
        """
        over = self._over(gain)
        tried, way = [(gain, over)], -1 if over > 0 else 1
        while over * way < -NEAR_LU and len(tried) < PASSES:
            step = min(LARGEST_DB, max(SMALLEST_DB, abs(over)))
            gain = min(MAX_GAIN_DB, max(-MAX_GAIN_DB, gain + way * step))
            if gain == tried[-1][0]:
                return tried
            over = self._over(gain)
            tried.append((gain, over))
        if len(tried) > 1:
            self._refine(tried)
        return tried

    def _refine(self, tried: list[tuple[float, float]]) -> None:
        (low, under), (high, over) = sorted(tried[-2:])
        for _ in range(REFINED):
            if min(abs(under), abs(over)) < NEAR_LU or not under < 0 < over:
                return
            # A secant that stays away from both ends, so that the interval shrinks.
            gain = low + (high - low) * min(0.9, max(0.1, under / (under - over)))
            value = self._over(gain)
            tried.append((gain, value))
            low, under, high, over = (gain, value, high, over) if value < 0 else (low, under, gain, value)

    def _over(self, gain_db: float) -> float:
        """Return by how many LU what leaves the limiter at this gain is over the target."""
        factor = gain_of(gain_db)
        powers = self._powers * factor**2 + self._tone
        if self._ceiling is not None:
            if gain_db > self._exact_to:
                self._find_peaks(gain_db)
            shares = PeakShares(self._rate, self._ceiling)
            share = np.concatenate([shares.feed(self._peaks * np.float32(factor)), shares.finish()], axis=1)
            powers *= np.square(1 - share[0])
        return max(-200.0, self._loudness(powers)) - self._target

    def _loudness(self, powers: np.ndarray) -> float:
        meter = PowerMeter(self._rate)
        meter.feed(powers)
        return meter.integrated()

    def _find_peaks(self, gain_db: float) -> None:
        """Find the peaks of every millisecond, exactly where the limiter sees them at gains up to `_exact_to`."""
        few = self._plain + FEW_DB
        self._exact_to = few if gain_db <= few else MAX_GAIN_DB
        finder = PeakFinder(len(self._blocks[0]), gain_of(self._ceiling - 1 - self._exact_to))
        peaks = _Rows(self._length)
        for block in self._blocks:
            peaks.add(finder.feed(block)[0], np.max)
        peaks.add(finder.finish()[0], np.max)
        self._peaks = peaks.finish(np.max)


def _tone_power(rate: int, level_dbfs: float) -> float:
    """Return the K-weighted power of a channel of room tone."""
    return float(np.square(np.convolve(tone_response(rate, level_dbfs), k_response(rate))).sum())


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
