"""Motion that was made before: kept by what it was made of, the last used within a bound, for all runs of the process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator

import torch
from torch import Tensor

Key = tuple[Hashable, Hashable]
"""What is known of a motion before its sound is read, and the sound's content: hashing a minute of 48 kHz takes 7 ms."""
MAX_BYTES = 64 << 20
"""40 minutes of the official model's motion: 265 numbers at 25 fps are 26.5 kB a second."""


class MotionCache:
    """Keeps whole motions, at most `max_bytes` of them. Any thread may call.

    Two runs that make the same at the same time both make it; the second one replaces the first with the same numbers.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[Key, Tensor] = OrderedDict()  # the last used ones at the end
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        with self._lock:
            return self._bytes()

    def may_have(self, known: Hashable) -> bool:
        """Return whether a motion is kept whose key begins with `known`: else its content need not be looked at."""
        with self._lock:
            return any(key[0] == known for key in self._kept)

    def get(self, key: Key) -> Tensor | None:
        """Return the motion float32 (n, C) at 25 fps, on the CPU: never write to it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Key, motion: Tensor) -> None:
        """Keep a motion; the least recently used ones make room. One that is larger than the bound is not kept."""
        if motion.nbytes > self.max_bytes:
            return
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = motion
            while self._bytes() > self.max_bytes:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def recorded(self, pieces: Iterable[Tensor], key: Callable[[], Key]) -> Iterator[Tensor]:
        """Yield `pieces` and keep them as one motion when they have ended; what outgrows the bound is let go.

        `key` is called at the end.
        """
        held: list[Tensor] = []
        size = 0
        for piece in pieces:
            size += piece.nbytes
            if size <= self.max_bytes:
                held.append(piece.clone())
            else:
                held.clear()
            yield piece
        if held:
            self.put(key(), torch.cat(held))

    def _bytes(self) -> int:
        return sum(motion.nbytes for motion in self._kept.values())


MOTIONS = MotionCache()
"""The process's own."""
