"""Turns on a device: whoever asks first goes first, so that no run starves another."""

from __future__ import annotations

import threading
from collections import deque
from functools import cache


class FairLock:
    """A reentrant lock that is handed over in the order in which threads asked for it.

    `threading.Lock` goes to whoever runs when it is free: a thread that gives it back and asks again at once mostly
    gets it again, and one that waits may wait for all of a run.
    """

    def __init__(self) -> None:
        self._inner = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> FairLock:
        me = threading.get_ident()
        with self._inner:
            if self._owner == me:
                self._depth += 1
                return self
            if self._owner is None:
                self._owner, self._depth = me, 1
                return self
            mine = me, threading.Lock()
            mine[1].acquire()
            self._waiting.append(mine)
        try:
            mine[1].acquire()
        except BaseException:  # Ctrl-C while waiting
            self._give_up(mine)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with self._inner:
            if self._owner != threading.get_ident():
                raise RuntimeError("a turn can only be ended by the thread that has it")
            self._depth -= 1
            if not self._depth:
                self._hand_over()

    @property
    def waiting(self) -> int:
        """Threads that are in the queue."""
        with self._inner:
            return len(self._waiting)

    def _hand_over(self) -> None:
        if not self._waiting:
            self._owner = None
            return
        self._owner, gate = self._waiting.popleft()
        self._depth = 1
        gate.release()

    def _give_up(self, mine: tuple[int, threading.Lock]) -> None:
        with self._inner:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:  # it was handed over meanwhile
                self._hand_over()


@cache
def device_turn(device: str) -> FairLock:
    """Return the one lock for batches on `device`: its type and index, such as "cpu:0"."""
    return FairLock()
