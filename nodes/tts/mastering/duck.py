"""Two speakers: the second one is turned down while the first one speaks."""

from __future__ import annotations

import numpy as np

from .blocks import Fir, Hops, Queue, Reference, Shape, gain_of, take_together, to_db

DEPTH_DB = 12.0
BELOW_DB = 30.0
"""What lies this far under the first speaker's level is a pause."""
SILENT_DB = -60.0
ATTACK_S, HOLD_S, RELEASE_S = 0.06, 0.35, 0.25
"""Down before the first word starts, up again when a pause is longer than those within a sentence."""


class Ducker:
    """Mixes two sounds of the same length: `other` goes down by `depth_db` while `main` speaks.

    The gain moves in raised cosines only, so it adds nothing that is heard. `feed` takes blocks of both, float32
    (channels, n), and gives their mix, which lags by 0.31 s until `finish`.
    """

    def __init__(self, rate: int, channels: int, depth_db: float = DEPTH_DB) -> None:
        self._hops, self._depth = Hops(rate), 1 - gain_of(-depth_db)
        half = self._hops.count(0.005)
        self._mean = Fir([np.full(2 * half + 1, 1 / (2 * half + 1))], 1, half)
        self._reference = Reference(self._hops)
        self._down = Shape(self._hops, ATTACK_S, ahead=1.0)
        self._up = Shape(self._hops, RELEASE_S, ahead=0.0)
        self._hold, self._since = self._hops.count(HOLD_S), 1 << 40
        self._powers, self._references = Queue(1), Queue(1)
        self._main, self._other = Queue(channels), Queue(channels)
        self._downs, self._ups = Queue(1), Queue(1)

    def feed(self, main: np.ndarray, other: np.ndarray) -> np.ndarray:
        self._main.push(main)
        self._other.push(other)
        self._measure(self._hops.power(main))
        return self._given()

    def finish(self) -> np.ndarray:
        self._measure(self._hops.rest())
        self._powers.push(self._mean.finish()[0])
        self._references.push(self._reference.finish()[None])
        self._decide()
        self._downs.push(self._down.finish())
        self._ups.push(self._up.finish())
        return self._given()

    def _measure(self, power: np.ndarray) -> None:
        whole = power.sum(axis=0)
        self._powers.push(self._mean.feed(whole[None])[0])
        self._references.push(self._reference.feed(whole)[None])
        self._decide()

    def _decide(self) -> None:
        power, reference = take_together(self._powers, self._references)
        level = to_db(power[0])
        speaks = (level > reference[0] - BELOW_DB) & (level > SILENT_DB)
        # Hops since the last one with speech; one that speaks is 0 behind itself.
        at = np.arange(len(speaks))
        last = np.maximum.accumulate(np.where(speaks, at, -self._since - 1)) if len(at) else at
        if len(at):
            self._since = int(at[-1] - last[-1])
        held = (at - last <= self._hold).astype(np.float32)
        self._downs.push(self._down.feed(held))
        self._ups.push(self._up.feed(held))

    def _given(self) -> np.ndarray:
        main, other, down, up = take_together(self._main, self._other, self._downs, self._ups)
        return main + other * (1 - np.float32(self._depth) * np.maximum(down, up))
