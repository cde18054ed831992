"""Long fricatives in front of a pause: "yesss" becomes "yes".

Speech models hold a last /s/ far longer than people do. Its first 65 ms stay as they are, a raised cosine of 25 ms
takes it down by 30 dB, and there it stays until just before the next sound. Nothing is cut out: times do not move.
A fricative within words, one in front of the closure of a stop ("last"), and noise longer than any fricative stay.
"""

from __future__ import annotations

import numpy as np

from .blocks import Queue, Shape, gain_of, take_together
from .sibilance import SibilanceMeter

CAP_S = 0.065
RELEASE_S = 0.025
FLOOR_DB = -30.0
"""How far down the rest of the fricative and the pause are taken, and how far under the speech a pause lies."""
SHARE_DB = 10.0
"""A fricative has at least this share of its energy in the band: a tone at 9 kHz is none."""
PAUSE_S = 0.12
"""The shortest pause: closures of stops last up to 0.1 s."""
LONGEST_S = 0.6
"""What goes on for longer is not a fricative: noise, applause, music."""
BRIDGE_S = 0.02
"""Shorter gaps within a fricative, or between it and the pause, do not end it."""
CLOSURE_DB = 8.0
"""Down and up again by this much is the closure of a stop: in "tests" the last /s/ starts behind it."""
GUARD_S = 0.06
"""All is up again this long before the next loud sound: an /h/ or /f/ in front of a vowel is as low as a pause."""
SILENT_DB = -70.0


class TerminalFricatives:
    """Shortens fricatives in front of a pause to `cap_s` and the release. `shortened` counts them."""

    def __init__(self, rate: int, channels: int, cap_s: float = CAP_S) -> None:
        self._meter = SibilanceMeter(rate, channels)
        hops = self._meter.hops
        self._shape = Shape(hops, RELEASE_S, ahead=0.0)
        self._finder = _Finder(hops.count, cap_s)
        self._dry, self._share = Queue(channels), Queue(1)

    @property
    def shortened(self) -> int:
        return self._finder.found

    def feed(self, block: np.ndarray) -> np.ndarray:
        self._dry.push(block)
        self._decide(self._finder.feed(self._meter.feed(block)[1]))
        return self._given()

    def finish(self) -> np.ndarray:
        self._decide(self._finder.feed(self._meter.finish()[1]))
        self._decide(self._finder.finish())
        self._share.push(self._shape.finish())
        return self._given()

    def _decide(self, down: np.ndarray) -> None:
        self._share.push(self._shape.feed(down * (1 - gain_of(FLOOR_DB))))

    def _given(self) -> np.ndarray:
        dry, share = take_together(self._dry, self._share)
        return dry * (1 - share) if share.any() else dry


class _Finder:
    """Finds the hops that are to be taken down, from levels (4, hops); what it gives lags by `_lag` hops."""

    def __init__(self, count, cap_s: float) -> None:
        self._cap, self._pause, self._longest = count(cap_s), count(PAUSE_S), count(LONGEST_S)
        self._bridge = count(BRIDGE_S)
        self._back = count(RELEASE_S) + count(GUARD_S)
        self._lag = self._longest + self._bridge + self._pause + self._back
        self._hop, self._given = 0, 0
        self._start: int | None = None
        self._last = self._quiet = 0
        self._high, self._low = (
            0.0,
            None,
        )  # of the band within the fricative: its most, and its least behind that
        self._down: list[list[int | None]] = []
        self.found = 0

    def feed(self, levels: np.ndarray) -> np.ndarray:
        band, low, whole, reference = levels
        pause = (whole < reference + FLOOR_DB) | (whole < SILENT_DB)
        fricative = (band > low) & (band > whole - SHARE_DB)
        kinds = np.where(pause, 0, np.where(fricative, 1, 2))
        for kind, level in zip(kinds.tolist(), band.tolist(), strict=True):
            if kind == 1:
                self._in_fricative(level)
            else:
                (self._in_pause if kind == 0 else self._in_other)()
            self._hop += 1
        return self._made(self._hop - self._lag)

    def finish(self) -> np.ndarray:
        """Take the end of the sound for a pause."""
        if self._start is not None:
            self._close()
        return self._made(self._hop)

    def _in_fricative(self, level: float) -> None:
        self._end_pause()
        if self._low is not None:
            self._low = min(self._low, level)
        elif level < self._high - CLOSURE_DB:
            self._low = level
        opened = self._low is not None and level > self._low + CLOSURE_DB
        if self._start is None or opened or self._hop - self._last > self._bridge:
            self._start, self._high, self._low = self._hop, level, None
        self._high = max(self._high, level)
        self._last, self._quiet = self._hop, 0

    def _in_pause(self) -> None:
        self._quiet += 1
        if self._start is not None and self._quiet >= self._pause:
            self._close()

    def _in_other(self) -> None:
        self._end_pause()
        self._quiet = 0
        if self._start is not None and self._hop - self._last > self._bridge:
            self._start = None

    def _close(self) -> None:
        if self._cap < self._last + 1 - self._start <= self._longest:
            self._down.append([self._start + self._cap, None])
            self.found += 1
        self._start = None

    def _end_pause(self) -> None:
        if self._down and self._down[-1][1] is None:
            self._down[-1][1] = self._hop - self._back

    def _made(self, until: int) -> np.ndarray:
        """Return 1 for the hops that are taken down and 0 for the others, up to `until`."""
        made = np.zeros(max(0, until - self._given))
        for start, end in self._down:
            stop = until if end is None else end
            made[max(0, start - self._given) : max(0, stop - self._given)] = 1
        self._given = max(self._given, until)
        self._down = [span for span in self._down if span[1] is None or span[1] > self._given]
        return made
