"""True peak: measured at 4 times the rate (ITU-R BS.1770-4, annex 2), and a limiter that holds it.

The limiter sees peaks 5 ms ahead and moves its gain in raised cosines, so it neither clips nor clicks, and holds the
gain for 30 ms, so it does not follow the waveform of a low voice.
"""

from __future__ import annotations

import math

import numpy as np

from .blocks import Fir, Queue, gain_of, half_sine, take_together, without_rounding

CEILING_DBTP = -1.0
OVERSAMPLING = 4
HALF_TAPS = 16
"""Samples on either side of an interpolated one; the interpolation is flat up to 0.9 of the highest frequency."""
AHEAD_S, HOLD_S = 0.005, 0.03
MARGIN_DB = 0.06
"""Kept below the ceiling for other meters' interpolation."""


def _phases() -> np.ndarray:
    """Return kernels (3, 2 * HALF_TAPS) that give the values a quarter, half and three quarters behind a sample."""
    taps = 2 * HALF_TAPS
    at = np.arange(taps) - (HALF_TAPS - 1)  # of the samples, from the one the fraction starts at
    rows = []
    for step in range(1, OVERSAMPLING):
        d = at - step / OVERSAMPLING
        window = np.i0(7.0 * np.sqrt(np.maximum(0, 1 - (d / HALF_TAPS) ** 2))) / np.i0(7.0)
        row = np.sinc(d) * window
        rows.append((row / row.sum())[::-1])
    return np.array(rows)


class PeakFinder:
    """The largest magnitude in every sample and the three values between it and the next; channels together.

    `feed` gives float32 (1, m), which lags by HALF_TAPS samples until `finish`.
    """

    def __init__(self, channels: int) -> None:
        self._fir = Fir(list(_phases()), channels, HALF_TAPS)
        self._dry = Queue(channels)

    def feed(self, block: np.ndarray) -> np.ndarray:
        self._dry.push(block)
        return self._largest(self._fir.feed(block))

    def finish(self) -> np.ndarray:
        return self._largest(self._fir.finish())

    def _largest(self, between: list[np.ndarray]) -> np.ndarray:
        largest = np.abs(self._dry.take(between[0].shape[1]))
        for values in between:
            np.maximum(largest, np.abs(values), out=largest)
        return largest.max(axis=0, keepdims=True)


class PeakShares:
    """From peaks to what has to go: `feed` takes peaks at a gain, (n,), and gives shares 0..1, float32 (1, m).

    A sample gives up the largest share that is needed from HOLD_S before it to AHEAD_S behind it, smoothed over AHEAD_S:
    at a peak the smoothed share is the needed one.
    """

    def __init__(self, rate: int, ceiling_dbtp: float = CEILING_DBTP) -> None:
        self._ceiling = np.float32(gain_of(ceiling_dbtp - MARGIN_DB))
        ahead, hold = max(1, round(AHEAD_S * rate)), round(HOLD_S * rate)
        self._window, self._ahead = hold + ahead + 1, ahead
        # From `ahead` before the sound: a peak in its first samples meets a gain that has come down already.
        self._needed = np.zeros(hold + ahead, np.float32)
        self._smooth = Fir([half_sine(ahead + 1)], 1, ahead)

    def feed(self, peaks: np.ndarray) -> np.ndarray:
        from scipy.ndimage import maximum_filter1d

        needed = np.concatenate([self._needed, 1 - self._ceiling / np.maximum(peaks, self._ceiling)])
        self._needed = needed[max(0, len(needed) - self._window + 1) :]
        n = len(needed) - self._window + 1
        if n < 1:
            return np.zeros((1, 0), np.float32)
        largest = maximum_filter1d(needed, self._window, mode="constant")[self._window // 2 :][:n]
        return without_rounding(self._smooth.feed(largest[None])[0])

    def finish(self) -> np.ndarray:
        return self.feed(np.zeros(self._ahead, np.float32))


class Limiter:
    """Holds the true peak under `ceiling_dbtp`. Sound that stays below it passes unchanged, bit for bit."""

    def __init__(self, rate: int, channels: int, ceiling_dbtp: float = CEILING_DBTP) -> None:
        self._peaks, self._shares = PeakFinder(channels), PeakShares(rate, ceiling_dbtp)
        self._dry, self._share = Queue(channels), Queue(1)
        self.deepest_db = 0.0
        """The most that was taken away so far."""

    def feed(self, block: np.ndarray) -> np.ndarray:
        self._dry.push(block)
        self._share.push(self._shares.feed(self._peaks.feed(block)[0]))
        return self._given()

    def finish(self) -> np.ndarray:
        self._share.push(self._shares.feed(self._peaks.finish()[0]))
        self._share.push(self._shares.finish())
        return self._given()

    def _given(self) -> np.ndarray:
        dry, share = take_together(self._dry, self._share)
        deepest = float(share.max(initial=0))
        if deepest <= 0:
            return dry
        self.deepest_db = max(self.deepest_db, -20 * math.log10(1 - deepest))
        return dry * (1 - share)
