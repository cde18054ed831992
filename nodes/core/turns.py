"""Turns on a device: whoever asks first goes first, so that no run starves another."""

from __future__ import annotations

import threading
from collections import deque
from functools import cache


class FairLock:
    """Gives turns in the order in which threads ask: `with lock.turn(): ...`. A thread that has it may ask again inside.

    `threading.Lock` goes to whoever runs when it is free: a thread that gives it back and asks again at once mostly
    gets it again, and one that waits may wait for all of a run.
    """

    def __init__(self) -> None:
        self._inner = threading.Lock()
        self._held: list[Turn] = []  # those of the thread that has it, the outermost first
        self._queue: deque[Turn] = deque()

    def turn(self) -> Turn:
        """Return a context manager that waits for a turn and has it while the block runs."""
        return Turn(self)

    @property
    def waiting(self) -> int:
        """Threads that are in the queue."""
        with self._inner:
            return len(self._queue)

    def _ask(self, turn: Turn) -> bool:
        """Return whether `turn` has begun; else it is in the queue and its gate opens when it does."""
        with self._inner:
            if self._held and self._held[-1].thread != turn.thread:
                self._queue.append(turn)
                return False
            self._held.append(turn)
            return True

    def _end(self, turn: Turn) -> None:
        """End a turn, or give it up. A Ctrl-C may cut this short anywhere: a second time it does what is left."""
        with self._inner:
            if turn in self._held:
                self._held.remove(turn)
            if turn in self._queue:
                self._queue.remove(turn)
            if not self._held and self._queue:
                self._held.append(self._queue[0])
            if self._queue and self._held[0] is self._queue[0]:
                if self._queue[0].gate.locked():
                    self._queue[0].gate.release()
                self._queue.popleft()


class Turn:
    """One use of a FairLock."""

    def __init__(self, lock: FairLock) -> None:
        self._lock, self.thread, self.gate = lock, threading.get_ident(), threading.Lock()
        self.gate.acquire()

    def __enter__(self) -> None:
        try:
            if not self._lock._ask(self):
                self.gate.acquire()
        except BaseException:
            self._lock._end(self)
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self._lock._end(self)
        except BaseException:
            self._lock._end(self)
            raise


@cache
def device_turns(device: str) -> FairLock:
    """Return the one lock for batches on `device`: its type and index, such as "cpu:0"."""
    return FairLock()
