"""Room tone: a quiet bed under the take, so that pauses are not holes."""

from __future__ import annotations

import math

import numpy as np

from .blocks import gain_of

LEVEL_DBFS = -52.0
CORNER_HZ = 1000.0
"""The noise falls by 6 dB per octave above: rooms are dull, white noise hisses."""


class RoomTone:
    """Adds noise of `level_dbfs` RMS, each channel its own. The same seed gives the same samples, however cut."""

    def __init__(self, rate: int, channels: int, level_dbfs: float = LEVEL_DBFS, seed: int = 0) -> None:
        keep = math.exp(-2 * math.pi * CORNER_HZ / rate)
        # One pole on white noise: its power is (1 - keep)^2 / (1 - keep^2), which is brought to the level.
        self._b = np.array([gain_of(level_dbfs) * math.sqrt(1 - keep * keep)])
        self._a = np.array([1.0, -keep])
        self._noise = [np.random.default_rng([seed, channel]) for channel in range(channels)]
        # As if it had been running: the state of a first-order filter is keep * its last output.
        self._state = np.array([[keep * gain_of(level_dbfs) * g.standard_normal()] for g in self._noise])

    def feed(self, block: np.ndarray) -> np.ndarray:
        from scipy.signal import lfilter

        if not block.shape[1]:
            return block
        white = np.stack([g.standard_normal(block.shape[1], np.float32) for g in self._noise])
        tone, self._state = lfilter(self._b, self._a, white.astype(np.float64), zi=self._state)
        return block + tone.astype(np.float32)

    def finish(self) -> np.ndarray:
        return np.zeros((len(self._noise), 0), np.float32)
