"""What a run has to tell its user: warnings, facts and timings, collected while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .stage_thread import rank


class Report:
    """Collects warnings (each text once, counted), facts (name -> value) and seconds per stage.

    Stages write to the report of their RunContext, from any thread; the node shows `text()`, the command line prints
    `as_dict()` with `--json`. Stages that run at the same time add up to more seconds than the run takes. Warnings are
    shown in the order they came in, those of a stage in a thread of its own before those of its consumer.
    """

    def __init__(self) -> None:
        self.warnings: dict[str, int] = {}
        self.facts: dict[str, object] = {}
        self.seconds: dict[str, float] = {}
        self._ranks: dict[str, int] = {}
        self._lock = threading.Lock()

    def warn(self, message: str) -> None:
        with self._lock:
            self.warnings[message] = self.warnings.get(message, 0) + 1
            self._ranks.setdefault(message, rank())

    def fact(self, name: str, value: object) -> None:
        with self._lock:
            self.facts[name] = value

    def spent(self, stage: str, seconds: float) -> None:
        """Add `seconds` to `stage`."""
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to `stage`, also when it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent(stage, time.perf_counter() - began)

    def text(self) -> str:
        """Return the report as plain lines: facts, timings, then warnings."""
        with self._lock:
            lines = [f"{name}: {value}" for name, value in self.facts.items()]
            if self.seconds:
                lines.append("seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in self.seconds.items()))
            for message in self._ordered():
                times = self.warnings[message]
                lines.append(f"warning: {message}" + (f" (x{times})" if times > 1 else ""))
        return "\n".join(lines)

    def as_dict(self) -> dict:
        with self._lock:
            return {
                **self.facts,
                "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
                "warnings": self._ordered(),
            }

    def _ordered(self) -> list[str]:
        # What two threads say comes in a different order in every run.
        return sorted(self.warnings, key=lambda message: -self._ranks.get(message, 0))


class FrameList:
    """Frame numbers that grow in order, kept and written as ranges: "3, 7-9 and 2 more ranges"."""

    SHOWN = 20

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []

    def add(self, start: int, flags: Iterable[bool]) -> None:
        """Add every frame `start + i` whose flag i is true."""
        for frame, flag in enumerate(flags, start):
            if not flag:
                continue
            if self._ranges and self._ranges[-1][1] == frame - 1:
                self._ranges[-1][1] = frame
            else:
                self._ranges.append([frame, frame])

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __str__(self) -> str:
        shown = [str(a) if a == b else f"{a}-{b}" for a, b in self._ranges[: self.SHOWN]]
        more = len(self._ranges) - self.SHOWN
        return ", ".join(shown) + (f" and {more} more ranges" if more > 0 else "")
