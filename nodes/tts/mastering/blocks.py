"""What the stages of mastering are made of: filters that carry their state, delays, short-time energy.

Sound is float32 (channels, n). A stage takes blocks with `feed` and gives what it can be sure of, later blocks give the
rest and `finish` the end: in all exactly as many samples as came in, at their own places. NumPy
alone: scipy.signal takes 0.5 s to import, scipy.fft and ndimage 0.15 s, a minute of sound 0.4 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

DIRECT = 1 << 16
"""Up to so many products are summed directly, which is faster than an FFT there."""


class Stage(Protocol):
    """A step of mastering on blocks float32 (channels, n)."""

    def feed(self, block: np.ndarray) -> np.ndarray: ...

    def finish(self) -> np.ndarray: ...


def to_db(power: np.ndarray | float, floor: float = -200.0) -> np.ndarray:
    """Return 10 log10 of a power (mean square), not below `floor` dB."""
    return 10 * np.log10(np.maximum(power, 10 ** (floor / 10)))


def gain_of(db: float) -> float:
    """Return the factor on samples of `db` decibels."""
    return 10 ** (db / 20)


def half_sine(taps: int) -> np.ndarray:
    """Return a smoothing kernel float64 (taps,), positive and of sum 1, that turns a step into a raised cosine.

    A running sum of sin is 1 - cos, so a step smoothed by it moves by (1 - cos(pi t / T)) / 2.
    """
    lobe = np.sin(np.pi * (np.arange(taps) + 0.5) / taps)
    return lobe / lobe.sum()


def without_rounding(share: np.ndarray) -> np.ndarray:
    """Return a smoothed share with 0 for what an FFT leaves where nothing was: sound there stays bit for bit."""
    share[np.abs(share) < 1e-6] = 0
    return share


@lru_cache(maxsize=256)
def fast_length(n: int) -> int:
    """Return the least length from `n` on with no prime factor over 5, which an FFT is fast on."""
    best, fives = 1 << (n - 1).bit_length(), 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << max(0, (-(-n // odd) - 1).bit_length()))
            odd *= 3
        fives *= 5
    return best


class Fir:
    """Convolution over blocks: out[n] = sum of kernel[k] * in[n + ahead - k], zeros outside the sound.

    A symmetric kernel with `ahead` = (taps - 1) / 2 does not shift the sound; what is given lags `ahead` samples behind
    what was fed until `finish`. `before` (channels, taps - 1) stands for the zeros in front of the sound.
    """

    def __init__(
        self,
        kernels: Sequence[np.ndarray],
        channels: int,
        ahead: int = 0,
        before: np.ndarray | None = None,
    ) -> None:
        self._kernels = [np.asarray(k, np.float64) for k in kernels]
        self._taps, self._ahead = len(self._kernels[0]), ahead
        self._channels, self._skip, self._spectra = channels, ahead, (0, [])
        self._before = before

    def feed(self, block: np.ndarray) -> list[np.ndarray]:
        """Return one array (channels, m) per kernel, of the type of `block`: float32 or float64."""
        before = np.zeros((len(block), self._taps - 1), block.dtype) if self._before is None else self._before
        held = np.concatenate([before, block], axis=1)
        self._before = held[:, held.shape[1] - self._taps + 1 :].copy()
        made = self._convolved(held)
        skip = min(self._skip, block.shape[1])
        self._skip -= skip
        return [m[:, skip:] for m in made]

    def finish(self) -> list[np.ndarray]:
        dtype = np.float32 if self._before is None else self._before.dtype
        return self.feed(np.zeros((self._channels, self._ahead), dtype))

    def _convolved(self, held: np.ndarray) -> list[np.ndarray]:
        n = held.shape[1] - self._taps + 1
        if n == 0 or not held.any():
            return [np.zeros((len(held), n), held.dtype) for _ in self._kernels]
        if self._taps * n <= DIRECT:
            return [
                np.stack([np.convolve(row, k.astype(held.dtype), "valid") for row in held])
                for k in self._kernels
            ]
        size = fast_length(held.shape[1])
        if self._spectra[0] != size:
            complex_type = np.complex64 if held.dtype == np.float32 else np.complex128
            self._spectra = size, [np.fft.rfft(k, size).astype(complex_type) for k in self._kernels]
        spectrum = np.fft.rfft(held, size)
        valid = slice(self._taps - 1, held.shape[1])
        # NumPy before 2.0 gives float64 for float32.
        made = [np.fft.irfft(spectrum * s, size)[:, valid] for s in self._spectra[1]]
        return [m.astype(held.dtype, copy=False) for m in made]


class Queue:
    """Samples that wait, (rows, n), first in first out."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._parts: list[np.ndarray] = []
        self.n = 0

    def push(self, block: np.ndarray) -> None:
        if block.shape[-1]:
            self._parts.append(block)
            self.n += block.shape[-1]

    def take(self, n: int) -> np.ndarray:
        """Return the oldest `n` samples; as many must be there."""
        if not self._parts:
            return np.zeros((self.rows, 0), np.float32)
        joined = self.peek()
        self._parts = [joined[..., n:]] if n < self.n else []
        self.n -= n
        return joined[..., :n]

    def peek(self) -> np.ndarray:
        """Return all that waits, and keep it."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts, axis=-1)]
        return self._parts[0]


def take_together(*queues: Queue) -> list[np.ndarray]:
    """Return what all queues hold, as many samples of each."""
    n = min(q.n for q in queues)
    return [q.take(n) for q in queues]


class Hops:
    """Cuts sound into hops of about a millisecond and measures each; a gain per hop is cheap to decide.

    `length` is in samples; durations turn into hops with `count`.
    """

    def __init__(self, rate: int) -> None:
        self.rate, self.length = rate, max(1, round(rate / 1000))
        self._left: np.ndarray | None = None

    def count(self, seconds: float) -> int:
        return max(1, round(seconds * self.rate / self.length))

    def power(self, block: np.ndarray) -> np.ndarray:
        """Return the mean square of every hop that `block` (k, n) completes, float64 (k, hops)."""
        held = block if self._left is None else np.concatenate([self._left, block], axis=1)
        whole = held.shape[1] // self.length
        self._left = held[:, whole * self.length :].copy()
        cut = held[:, : whole * self.length].reshape(len(held), whole, self.length)
        return np.einsum("chs,chs->ch", cut, cut, dtype=np.float64) / self.length

    def rest(self) -> np.ndarray:
        """Return the mean square of the last, shorter hop, (k, 1), or (k, 0) if there is none."""
        if self._left is None or not self._left.shape[1]:
            return np.zeros((0 if self._left is None else len(self._left), 0))
        return np.square(self._left, dtype=np.float64).mean(axis=1, keepdims=True)


class Reference:
    """The level that speech has had lately: the loudest 50 ms, forgotten at DECAY dB/s, known LOOK seconds ahead.

    Thresholds relative to it do not depend on how loud the take is, and a first /s/ is weighed against the vowel behind
    it. In dB per hop, -200 for silence.
    """

    WINDOW, LOOK, DECAY = 0.05, 0.25, 3.0

    def __init__(self, hops: Hops) -> None:
        half = hops.count(self.WINDOW) // 2
        self._mean = Fir([np.full(2 * half + 1, 1 / (2 * half + 1))], 1, half)
        self._fall = self.DECAY * hops.length / hops.rate
        self._skip, self._last = hops.count(self.LOOK), -200.0
        self._look = self._skip

    def feed(self, power: np.ndarray) -> np.ndarray:
        """Take hop powers (hops,), return the reference (m,) of the next m hops."""
        return self._follow(self._mean.feed(power[None])[0][0])

    def finish(self) -> np.ndarray:
        return np.concatenate([self._follow(self._mean.finish()[0][0]), self._follow(np.zeros(self._look))])

    def _follow(self, power: np.ndarray) -> np.ndarray:
        levels = np.concatenate([[self._last], to_db(power)])
        fallen = self._fall * np.arange(len(levels))
        made = np.maximum.accumulate(levels + fallen) - fallen
        self._last = float(made[-1])
        skip = min(self._skip, len(power))
        self._skip -= skip
        return made[1 + skip :]


class Shape:
    """A value in 0..1 per hop as a smooth curve of samples, (1, n): every step becomes a raised cosine of `seconds`.

    With `ahead` = 0 a step's curve starts where the step is, with 0.5 its middle lies there, with 1 it ends there.
    """

    def __init__(self, hops: Hops, seconds: float, ahead: float) -> None:
        taps = max(1, round(seconds * hops.rate))
        self._fir, self._length = Fir([half_sine(taps)], 1, round(ahead * (taps - 1))), hops.length

    def feed(self, values: np.ndarray) -> np.ndarray:
        return without_rounding(self._fir.feed(np.repeat(values.astype(np.float32), self._length)[None])[0])

    def finish(self) -> np.ndarray:
        return without_rounding(self._fir.finish()[0])
