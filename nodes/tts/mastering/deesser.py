"""The de-esser: where the sibilants' band is loud against the speech around it, that band alone is turned down.

All else passes unchanged, bit for bit where nothing is turned down: what is taken away is a smooth share of a
linear-phase band.
"""

from __future__ import annotations

import numpy as np

from .blocks import Queue, Shape, gain_of, take_together
from .sibilance import SibilanceMeter

MAX_DB = 7.0
BELOW_DB = 9.0
"""A band this far under the level of the speech is left alone; as loud as the speech it is turned down by MAX_DB."""
SILENT_DB = -70.0
SMOOTH_S = 0.008


class DeEsser:
    """Turns the band 4.8-8.2 kHz down by 0..`max_db` dB where it dominates."""

    def __init__(self, rate: int, channels: int, max_db: float = MAX_DB) -> None:
        self._meter, self._max_db = SibilanceMeter(rate, channels), max_db
        self._shape = Shape(self._meter.hops, SMOOTH_S, ahead=0.5)
        self._dry, self._band, self._share = Queue(channels), Queue(channels), Queue(1)
        self.deepest_db = 0.0
        """The most that was taken away so far."""

    def feed(self, block: np.ndarray) -> np.ndarray:
        self._dry.push(block)
        self._decide(*self._meter.feed(block))
        return self._given()

    def finish(self) -> np.ndarray:
        self._decide(*self._meter.finish())
        self._share.push(self._shape.finish())
        return self._given()

    def _decide(self, band: np.ndarray, levels: np.ndarray) -> None:
        self._band.push(band)
        loud, low, _, reference = levels
        over = np.clip((loud - reference + BELOW_DB) / BELOW_DB, 0, 1)
        down = np.where((loud > low) & (reference > SILENT_DB), over * self._max_db, 0)
        self.deepest_db = max(self.deepest_db, float(down.max(initial=0)))
        self._share.push(self._shape.feed(1 - gain_of(-down)))

    def _given(self) -> np.ndarray:
        dry, band, share = take_together(self._dry, self._band, self._share)
        return dry - share * band if share.any() else dry
