"""True peak: measured at 8 times the rate (ITU-R BS.1770-4, annex 2, asks for 4), and a limiter that holds it.

The limiter sees peaks 5 ms ahead and moves its gain in raised cosines, so it neither clips nor clicks, and holds the
gain for 30 ms, so it does not follow the waveform of a low voice.
"""

from __future__ import annotations

import math

import numpy as np

from .blocks import Fir, Queue, gain_of, half_sine, take_together, without_rounding

CEILING_DBTP = -1.0
OVERSAMPLING = 8
"""At 4, speech at 16 kHz under 20 dB of limiting stood 0.1 dB over the limit for a meter that has 8."""
HALF_TAPS = 16
"""Samples on either side of an interpolated one; the interpolation is flat up to 0.9 of the highest frequency."""
AHEAD_S, HOLD_S = 0.005, 0.03
MARGIN_DB = 0.08
"""Kept below the ceiling for other meters' interpolation."""


def _phases() -> np.ndarray:
    """Return kernels (OVERSAMPLING - 1, 2 * HALF_TAPS) that give the values an eighth, a quarter, ... behind a sample."""
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
    """The largest magnitude in every sample and the values between it and the next; channels together.

    `feed` gives float32 (1, m), which lags by HALF_TAPS samples until `finish`. Between samples it looks only where
    more than `floor` may be found, which saves most of the time: elsewhere the sample itself is given.
    """

    ROW = 545
    """With the samples around it 576, a fast length for an FFT."""

    def __init__(self, channels: int, floor: float = 0.0) -> None:
        kernels = _phases()
        self.floor, self._channels = floor, channels
        self._most = float(np.abs(kernels).sum(axis=1).max())
        """How far an interpolated value may lie above the largest sample around it."""
        self._size = self.ROW + 2 * HALF_TAPS - 1
        self._spectra = np.fft.rfft(kernels, self._size).astype(np.complex64)
        self._before, self._skip = np.zeros((channels, 2 * HALF_TAPS - 1), np.float32), HALF_TAPS

    def feed(self, block: np.ndarray) -> np.ndarray:
        around, n = self._before.shape[1], block.shape[1]
        held = np.concatenate([self._before, block], axis=1)
        self._before = held[:, n:].copy()
        if not n:
            return np.zeros((1, 0), np.float32)
        held = np.pad(held, ((0, 0), (0, -n % self.ROW)))
        rows = np.lib.stride_tricks.sliding_window_view(held, self.ROW + around, axis=1)[:, :: self.ROW]
        largest = np.abs(held[:, HALF_TAPS - 1 :][:, : rows.shape[1] * self.ROW])
        largest = largest.reshape(self._channels, -1, self.ROW)
        near = np.maximum(rows.max(axis=2), -rows.min(axis=2)) * self._most > self.floor
        largest[near] = np.maximum(largest[near], self._between(rows[near]))
        found = largest.reshape(self._channels, -1)[:, :n].max(axis=0, keepdims=True)
        skip = min(self._skip, n)
        self._skip -= skip
        return found[:, skip:]

    def finish(self) -> np.ndarray:
        return self.feed(np.zeros((self._channels, HALF_TAPS), np.float32))

    def _between(self, rows: np.ndarray) -> np.ndarray:
        """Return the largest of the values behind every sample of rows (k, ROW + taps - 1) as (k, ROW)."""
        spectrum = np.fft.rfft(rows, axis=1)
        largest = np.zeros((len(rows), self.ROW), np.float32)
        for kernel in self._spectra:
            values = np.fft.irfft(spectrum * kernel, self._size, axis=1)[:, 2 * HALF_TAPS - 1 :][
                :, : self.ROW
            ]
            np.maximum(largest, np.abs(values), out=largest)
        return largest


def _running_maximum(values: np.ndarray, window: int) -> np.ndarray:
    """Return the largest of every `window` consecutive values (n,), as (n - window + 1,)."""
    n = len(values) - window + 1
    rows = np.pad(values, (0, -len(values) % window)).reshape(-1, window)
    # A window is the end of one row and the start of the next.
    start = np.maximum.accumulate(rows, axis=1).ravel()
    end = np.maximum.accumulate(rows[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.maximum(end[:n], start[window - 1 : window - 1 + n])


class PeakShares:
    """From peaks to what has to go: `feed` takes peaks at a gain, (n,), and gives shares 0..1, float32 (1, m).

    A sample gives up the largest share that is needed from HOLD_S before it to AHEAD_S behind it, smoothed over
    AHEAD_S: at a peak the smoothed share is the needed one.
    """

    def __init__(self, rate: int, ceiling_dbtp: float = CEILING_DBTP) -> None:
        self.ceiling = np.float32(gain_of(ceiling_dbtp - MARGIN_DB))
        """What peaks are brought to."""
        ahead, hold = max(1, round(AHEAD_S * rate)), round(HOLD_S * rate)
        self._window, self._ahead = hold + ahead + 1, ahead
        # From `ahead` before the sound: a peak in its first samples meets a gain that has come down already.
        self._needed = np.zeros(hold + ahead, np.float32)
        self._smooth = Fir([half_sine(ahead + 1)], 1, ahead)

    def feed(self, peaks: np.ndarray) -> np.ndarray:
        needed = np.concatenate([self._needed, 1 - self.ceiling / np.maximum(peaks, self.ceiling)])
        self._needed = needed[max(0, len(needed) - self._window + 1) :]
        n = len(needed) - self._window + 1
        if n < 1:
            return np.zeros((1, 0), np.float32)
        largest = _running_maximum(needed, self._window)
        return without_rounding(self._smooth.feed(largest[None])[0])

    def finish(self) -> np.ndarray:
        return self.feed(np.zeros(self._ahead, np.float32))


class Limiter:
    """Holds the true peak under `ceiling_dbtp`. Sound that stays below it passes unchanged, bit for bit."""

    def __init__(self, rate: int, channels: int, ceiling_dbtp: float = CEILING_DBTP) -> None:
        self._shares = PeakShares(rate, ceiling_dbtp)
        self._peaks = PeakFinder(channels, self._shares.ceiling)
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
