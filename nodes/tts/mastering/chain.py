"""Stages one behind the other, and what goes in: blocks of a fixed grid, cleaned of what is not a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .blocks import Queue, Stage

LIMIT = 16.0
"""Samples beyond this (24 dB over full scale) are cut: nothing that is sound lies there."""


class Chain:
    """Several stages as one."""

    def __init__(self, stages: Sequence[Stage], channels: int) -> None:
        self._stages, self._channels = list(stages), channels

    def feed(self, block: np.ndarray) -> np.ndarray:
        return self._through(block, 0)

    def finish(self) -> np.ndarray:
        rest = [np.zeros((self._channels, 0), np.float32)]
        rest += [self._through(stage.finish(), i + 1) for i, stage in enumerate(self._stages)]
        return np.concatenate(rest, axis=1)

    def _through(self, block: np.ndarray, first: int) -> np.ndarray:
        for stage in self._stages[first:]:
            block = stage.feed(block)
        return block


class Grid:
    """Cuts blocks of any size into blocks of one size, counted from the first sample.

    What a filter gives differs in the last bit with the sizes it is fed: on the grid a sound that comes in pieces gives
    the same samples as one that comes whole.
    """

    def __init__(self, rate: int, channels: int, seconds: float) -> None:
        self.size = 1 << round(math.log2(rate * seconds))
        self._queue = Queue(channels)

    def feed(self, block: np.ndarray) -> list[np.ndarray]:
        self._queue.push(block)
        return [self._queue.take(self.size) for _ in range(self._queue.n // self.size)]

    def finish(self) -> list[np.ndarray]:
        return [self._queue.take(self._queue.n)] if self._queue.n else []


class Cleaner:
    """Makes samples usable and counts what was wrong with them, for `lines`."""

    def __init__(self, rate: int) -> None:
        self._rate, self._start = rate, 0
        self._bad = self._first_bad = self._cut = self._flat = 0

    def feed(self, block: np.ndarray) -> np.ndarray:
        """Return float32 (channels, n): NaN and Inf as 0, at most LIMIT. A copy only where something was wrong."""
        finite = np.isfinite(block)
        if not finite.all():
            if not self._bad:
                self._first_bad = self._start + int(np.argmin(finite.all(axis=0)))
            self._bad += int((~finite).sum())
            block = np.where(finite, block, np.float32(0))
        size = np.abs(block)
        if size.max(initial=0) > LIMIT:
            self._cut += int((size > LIMIT).sum())
            block = np.clip(block, -LIMIT, LIMIT)
        if size.max(initial=0) > 0.98:
            # Three samples alike at full scale: the top of the wave is missing.
            same = (block[:, 2:] == block[:, 1:-1]) & (block[:, 1:-1] == block[:, :-2]) & (size[:, 2:] > 0.98)
            self._flat += int(same.sum())
        self._start += block.shape[1]
        return block

    def lines(self) -> list[str]:
        """Say what was wrong so far, a line for each kind."""
        lines = []
        if self._bad:
            at = self._first_bad / self._rate
            lines.append(f"{self._bad} NaN or Inf samples set to 0, first at {self._first_bad} ({at:.3f} s)")
        if self._cut:
            lines.append(
                f"{self._cut} samples beyond {LIMIT:g} times full scale cut to it; scale the sound to -1..1"
            )
        if self._flat:
            lines.append(
                f"the sound came in clipped ({self._flat} samples lie flat at full scale), which mastering cannot "
                "undo; lower the level where it was made"
            )
        return lines
