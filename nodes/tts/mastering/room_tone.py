"""Room tone: a quiet bed under the take, so that pauses are not holes."""

from __future__ import annotations

import math

import numpy as np

from .blocks import Fir, gain_of
from .filters import impulse_response

LEVEL_DBFS = -52.0
CORNER_HZ = 1000.0
"""The noise falls by 6 dB per octave above: rooms are dull, white noise hisses."""


def tone_response(rate: int, level_dbfs: float) -> np.ndarray:
    """Return the impulse response, float64 (taps,), that makes the tone of white noise of power 1: one pole."""
    keep = math.exp(-2 * math.pi * CORNER_HZ / rate)
    # Its power on white noise is 1 / (1 - keep^2), which is brought to the level.
    return impulse_response(np.array([[gain_of(level_dbfs) * math.sqrt(1 - keep * keep), 0, 0, 1, -keep, 0]]))


class RoomTone:
    """Adds noise of `level_dbfs` RMS, each channel its own. The same seed gives the same samples, however cut."""

    def __init__(self, rate: int, channels: int, level_dbfs: float = LEVEL_DBFS, seed: int = 0) -> None:
        self._noise = [np.random.default_rng([seed, channel]) for channel in range(channels)]
        kernel = tone_response(rate, level_dbfs)
        # As if it had been running.
        self._fir = Fir([kernel], channels, before=self._white(len(kernel) - 1))

    def feed(self, block: np.ndarray) -> np.ndarray:
        if not block.shape[1]:
            return block
        return block + self._fir.feed(self._white(block.shape[1]))[0].astype(np.float32)

    def finish(self) -> np.ndarray:
        return np.zeros((len(self._noise), 0), np.float32)

    def _white(self, n: int) -> np.ndarray:
        return np.stack([g.standard_normal(n, np.float32) for g in self._noise]).astype(np.float64)
