"""Loudness by ITU-R BS.1770-4 / EBU R 128, and the gain that brings a take to a target.

Integrated loudness in LUFS: K-weighting, blocks of 400 ms that overlap by 75 %, gates at -70 LUFS and 10 LU under the
mean. One channel counts once, so dual mono reads 3 LU more than mono.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from .blocks import Fir, Queue, gain_of
from .filters import impulse_response

TARGET_LUFS = -16.0
FOLLOWING_DB = 40.0
"""The most that a moving gain raises: a take that needs more is, as far as is known yet, noise."""
MAKEUP_DB = 9.0
"""The most that a moving gain gives back of what the limiter takes."""
_ABSOLUTE, _RELATIVE = -70.0, -10.0
_BINS, _BIN_LU = 11000, 0.01
"""-70..+40 LUFS; blocks louder than that count in the last bin."""
RISE_DB, FALL_DB = 0.1, 1.0
"""Largest steps of a moving gain per 100 ms."""


def k_weighting(rate: int) -> np.ndarray:
    """Return the two sections (2, 6) of the K filter at `rate` Hz.

    The analogue shelf and high-pass whose bilinear transform at 48 kHz is the table of BS.1770-4, annex 1.
    """
    shelf_hz, shelf_db, shelf_q = 1681.974450955533, 3.999843853973347, 0.7071752369554196
    pass_hz, pass_q = 38.13547087602444, 0.5003270373238773
    k = math.tan(math.pi * shelf_hz / rate)
    top = 10 ** (shelf_db / 20)
    middle = top**0.4996667741545416
    a0 = 1 + k / shelf_q + k * k
    shelf = [top + middle * k / shelf_q + k * k, 2 * (k * k - top), top - middle * k / shelf_q + k * k]
    shelf = [v / a0 for v in (*shelf, a0, 2 * (k * k - 1), 1 - k / shelf_q + k * k)]
    k = math.tan(math.pi * pass_hz / rate)
    a0 = 1 + k / pass_q + k * k
    return np.array([shelf, [1, -2, 1, 1, 2 * (k * k - 1) / a0, (1 - k / pass_q + k * k) / a0]])


@lru_cache(maxsize=32)
def k_response(rate: int) -> np.ndarray:
    """Return the impulse response of the K filter at `rate` Hz, float64 (taps,), 0.1 s long."""
    return impulse_response(k_weighting(rate))


class KWeighting:
    """`feed` gives the K-weighted power of every sample, summed over the channels, float64 (n,)."""

    def __init__(self, rate: int, channels: int) -> None:
        self._fir = Fir([k_response(rate)], channels)

    def feed(self, block: np.ndarray) -> np.ndarray:
        weighted = self._fir.feed(block.astype(np.float64))[0]
        return np.square(weighted, out=weighted).sum(axis=0)


class PowerMeter:
    """Integrated loudness of K-weighted power, `rate` values a second. Its memory does not grow with the sound."""

    def __init__(self, rate: float) -> None:
        self._rate, self._waiting, self._hop, self._last = rate, Queue(1), 0, []
        self._counts, self._powers = np.zeros(_BINS), np.zeros(_BINS)
        self._n, self._sum = 0, 0.0

    def feed(self, power: np.ndarray, each: Callable[[], None] | None = None) -> None:
        """Take the power of the next samples, (n,); `each` is called after every 100 ms that are whole."""
        self._n, self._sum = self._n + len(power), self._sum + float(power.sum())
        self._waiting.push(power[None])
        while self._waiting.n >= (need := self._hop_end(self._hop + 1) - self._hop_end(self._hop)):
            self._add(float(self._waiting.take(need).mean()))
            if each is not None:
                each()

    def integrated(self) -> float:
        """Return LUFS of what was fed; -inf if nothing of it is louder than -70 LUFS, or less than 0.1 s came.

        Of less than 0.4 s all is one block.
        """
        if self._hop < 4:
            power = self._sum / self._n if self._hop else 0.0
            return loudness if (loudness := _lufs(power)) > _ABSOLUTE else -math.inf
        loud = self._counts > 0
        if not loud.any():
            return -math.inf
        gate = _lufs(self._powers[loud].sum() / self._counts[loud].sum()) + _RELATIVE
        kept = slice(min(_BINS - 1, max(0, math.ceil((gate - _ABSOLUTE) / _BIN_LU))), None)
        return _lufs(self._powers[kept].sum() / self._counts[kept].sum())

    def _hop_end(self, hop: int) -> int:
        return int(hop * self._rate // 10)

    def _add(self, power: float) -> None:
        self._hop += 1
        self._last = [*self._last[-3:], power]
        mean = sum(self._last) / 4
        loudness = _lufs(mean)
        if self._hop >= 4 and loudness > _ABSOLUTE:
            at = min(_BINS - 1, int((loudness - _ABSOLUTE) / _BIN_LU))
            self._counts[at] += 1
            self._powers[at] += mean


class LoudnessMeter(PowerMeter):
    """Integrated loudness of blocks float32 (channels, n)."""

    def __init__(self, rate: int, channels: int) -> None:
        super().__init__(rate)
        self._weighting = KWeighting(rate, channels)

    def feed(self, block: np.ndarray, each: Callable[[], None] | None = None) -> None:
        super().feed(self._weighting.feed(block), each)


def _lufs(power: float) -> float:
    return -0.691 + 10 * math.log10(power) if power > 0 else -math.inf


def gain_to(target: float, loudness: float) -> float:
    """Return the gain in dB from `loudness` to `target`, both LUFS: 0 for silence, at most FOLLOWING_DB."""
    return min(FOLLOWING_DB, target - loudness) if math.isfinite(loudness) else 0.0


class Gain:
    """The same gain for all samples; `factor` may be set between runs."""

    def __init__(self, channels: int, db: float) -> None:
        self._factor, self._channels = np.float32(gain_of(db)), channels

    def feed(self, block: np.ndarray) -> np.ndarray:
        return block * self._factor

    def finish(self) -> np.ndarray:
        return np.zeros((self._channels, 0), np.float32)


class FollowingGain:
    """Gain towards `target` LUFS by the loudness of all that was heard and of `ahead_s` seconds to come.

    For sound whose end is not known yet. Behind the first sound the gain rises by at most 1 dB/s and falls by 10 dB/s,
    so a take of even loudness lies on the target from its first word, and one that changes comes near it.
    """

    def __init__(self, rate: int, channels: int, target: float, ahead_s: float) -> None:
        self._meter, self._target = LoudnessMeter(rate, channels), target
        self._own, self._makeup = LoudnessMeter(rate, channels), 0.0
        self._rate, self._ahead = rate, max(3, math.ceil(ahead_s * 10) - 1)
        self._dry, self._gains = Queue(channels), []
        self._measured = self._decided = self._given = 0
        self._first: int | None = None

    def feed(self, block: np.ndarray) -> np.ndarray:
        self._dry.push(block)
        self._meter.feed(block, self._measure)
        return self._scaled()

    def finish(self) -> np.ndarray:
        loudness, end = self._meter.integrated(), self._given * self._rate // 10 + self._dry.n
        while self._decided * self._rate // 10 < end:
            self._decide(loudness)
        return self._scaled()

    def limited_to(self, lufs: float) -> None:
        """Take what a limiter leaves of all that was given: the gain makes up for what it takes."""
        if math.isfinite(lufs):
            self._makeup = min(MAKEUP_DB, max(0.0, self._own.integrated() - lufs))

    def _measure(self) -> None:
        loudness = self._meter.integrated()
        if self._first is None and math.isfinite(loudness):
            self._first = self._measured - 3  # a block has four hops
        self._measured += 1
        if self._measured > self._ahead:
            self._decide(loudness)

    def _decide(self, loudness: float) -> None:
        gain = gain_to(self._target + self._makeup, loudness)
        if self._first is not None and self._decided > max(0, self._first):
            gain = min(max(gain, self._gains[-1] - FALL_DB), self._gains[-1] + RISE_DB)
        self._gains += [gain] if self._gains else [gain, gain]
        self._decided += 1

    def _scaled(self) -> np.ndarray:
        """Return the samples of all hops that are decided; the gain moves over a hop from the last one's to its own."""
        made = [np.zeros((self._dry.rows, 0), np.float32)]
        while self._given < self._decided and self._dry.n:
            start, end = (h * self._rate // 10 for h in (self._given, self._given + 1))
            samples = self._dry.take(min(end - start, self._dry.n))
            db = np.linspace(*self._gains[:2], end - start, endpoint=False)[: samples.shape[1]]
            made.append(samples * (10 ** (db / 20)).astype(np.float32))
            self._given, self._gains = self._given + 1, self._gains[1:]
        scaled = np.concatenate(made, axis=1)
        self._own.feed(scaled)
        return scaled
