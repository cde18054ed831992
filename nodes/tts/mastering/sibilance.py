"""How loud the sibilants' band is, what voiced sounds are made of, and the speech around, for every millisecond."""

from __future__ import annotations

import numpy as np

from .blocks import Fir, Hops, Queue, Reference, take_together, to_db
from .filters import Splitter

WINDOW_S = 0.005


class SibilanceMeter:
    """Measures blocks of sound, channels together.

    `feed` and `finish` give (band, levels): the sound in 4.8-8.2 kHz, float32 (channels, n), and float64 (4, hops) in
    dB: the band, all below 3 kHz, the whole sound, and the reference (see `blocks.Reference`), each with its own lag.
    """

    def __init__(self, rate: int, channels: int) -> None:
        self.hops = Hops(rate)
        self._split, self._channels = Splitter(rate, channels), channels
        half = self.hops.count(WINDOW_S) // 2
        self._mean = Fir([np.full(2 * half + 1, 1 / (2 * half + 1))], 3, half)
        self._reference = Reference(self.hops)
        self._dry, self._powers, self._references = Queue(channels), Queue(3), Queue(1)

    def feed(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._dry.push(block)
        band = self._split_power(*self._split.feed(block))
        return band, self._measured()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        band = self._split_power(*self._split.finish())
        self._add(self.hops.rest())
        self._powers.push(self._mean.finish()[0])
        self._references.push(self._reference.finish()[None])
        return band, self._measured()

    def _split_power(self, band: np.ndarray, low: np.ndarray) -> np.ndarray:
        self._add(self.hops.power(np.concatenate([band, low, self._dry.take(band.shape[1])])))
        return band

    def _add(self, power: np.ndarray) -> None:
        powers = power.reshape(3, self._channels, power.shape[1]).sum(axis=1)
        self._powers.push(self._mean.feed(powers)[0])
        self._references.push(self._reference.feed(powers[2])[None])

    def _measured(self) -> np.ndarray:
        powers, references = take_together(self._powers, self._references)
        return np.concatenate([to_db(powers), references])
