"""Sound that arrives while it is used: one producer pushes it, one consumer takes it as 16 kHz mono, on any threads.

Bounded: a producer that is ahead waits. The values that come out are those `audio.mono_blocks` gives for the whole
sound, however it is cut into pushes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Protocol

import numpy as np

from .audio import (
    MAX_CHANNELS,
    MAX_RATE,
    MIN_RATE,
    SPEECH_RATE,
    AudioClip,
    MonoMix,
    as_float,
    mono_blocks,
    resample_blocks,
    resampled_length,
)
from .report import Report

POLL_S = 0.05
"""A consumer that waits asks this often whether it should stop."""
_SAMPLE_TYPES = ("float32", "int16")


class Sound(Protocol):
    """What live speech listens to; `LiveAudio` is one."""

    sample_rate: int

    @property
    def taken(self) -> int:
        """Samples at `sample_rate` that stand behind the blocks given so far, all of them at the end."""

    @property
    def waits(self) -> bool:
        """Whether the next block is not there yet."""

    def blocks(self, poll: Callable[[], None] | None = None) -> Iterator[np.ndarray]: ...

    @property
    def notes(self) -> list[str]: ...


class LiveAudio:
    """A queue of sound with a known rate (Hz) and channel count, and a length that is known when it ends.

    Args:
        sample_rate: 1000..768000 Hz. 16 kHz passes without a resampler, which is about 40 ms late.
        channels: 1..64; they are averaged.
        max_seconds: what may wait in the queue, at least 0.1. A push that is longer waits until the queue is empty.
    """

    def __init__(self, sample_rate: int, channels: int = 1, max_seconds: float = 10.0) -> None:
        if sample_rate != int(sample_rate) or not MIN_RATE <= sample_rate <= MAX_RATE:
            raise ValueError(f"sample rate {sample_rate} is not a whole number in {MIN_RATE}..{MAX_RATE} Hz")
        if channels != int(channels) or not 1 <= channels <= MAX_CHANNELS:
            raise ValueError(f"{channels} channels are outside 1..{MAX_CHANNELS}")
        if not 0.1 <= max_seconds <= 3600:
            raise ValueError(f"max_seconds {max_seconds} is outside 0.1..3600; 10 suits a network client")
        self.sample_rate, self.channels = int(sample_rate), int(channels)
        self._most = int(max_seconds * sample_rate)
        self._mix = MonoMix("live sound", self.sample_rate)
        self._queue: deque[np.ndarray] = deque()
        self._queued = self._pushed = self._taken = 0
        self._ended = self._claimed = self._deserted = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._more, self._room = threading.Condition(self._lock), threading.Condition(self._lock)

    @property
    def pushed(self) -> int:
        """Samples of a channel that came in so far."""
        return self._pushed

    @property
    def taken(self) -> int:
        """Samples of a channel that the consumer has got so far; what it sees of them at 16 kHz may lag behind."""
        return self._taken

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def waits(self) -> bool:
        """Whether the consumer's next block is not there yet."""
        with self._lock:
            return not self._queue and not self._ended

    @property
    def queued_seconds(self) -> Fraction:
        """Sound that waits for the consumer."""
        return Fraction(self._queued, self.sample_rate)

    @property
    def notes(self) -> list[str]:
        """What was wrong with the sound so far, a line for each kind of fault."""
        return self._mix.lines()

    def push(self, samples: np.ndarray, timeout: float | None = None) -> bool:
        """Append sound; waits while the queue is full.

        Args:
            samples: float32 within -1..1 or int16, (n,) for one channel or (channels, n); copied. NaN and Inf become 0,
                what is beyond full scale is clipped, both are noted.
            timeout: seconds to wait for room; None waits for ever.

        Returns:
            False if there was no room in time: nothing of `samples` was taken.

        Raises:
            ValueError: another shape or type; or the sound has ended, failed, or lost its consumer.
        """
        block = self._checked(samples)
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while True:
                self._refuse_late()
                if not self._queued or self._queued + block.shape[1] <= self._most:
                    break
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._room.wait(left)
            if block.shape[1]:
                # A copy: the producer may fill its buffer anew.
                self._queue.append(self._mix.feed(block).copy())
                self._queued += block.shape[1]
                self._pushed += block.shape[1]
                self._more.notify()
        return True

    def end(self) -> None:
        """Say that no more sound comes; a second time does nothing."""
        with self._lock:
            self._ended = True
            self._more.notify_all()
            self._room.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the sound with an error: the consumer's next pull raises it, what is queued is dropped."""
        with self._lock:
            self._error = self._error or error
            self._ended = True
            self._queue.clear()
            self._queued = 0
            self._more.notify_all()
            self._room.notify_all()

    def blocks(self, poll: Callable[[], None] | None = None) -> Iterator[np.ndarray]:
        """Yield the sound as mono 16 kHz float32 (n,) blocks while it arrives, `resampled_length` samples in all.

        `poll` is called before every block and at least every 50 ms of waiting, in the consumer's thread; what it raises
        ends the iteration. Raises what `fail` was given, and ValueError for a second consumer: the sound is not kept.
        """
        with self._lock:
            if self._claimed:
                raise ValueError("this live sound has a consumer already; make a LiveAudio for each")
            self._claimed = True
        return self._blocks(poll or (lambda: None))

    def _blocks(self, poll: Callable[[], None]) -> Iterator[np.ndarray]:
        given = 0
        try:
            for block in resample_blocks(self._arriving(poll), self.sample_rate, SPEECH_RATE):
                if self._ended and not self._queued:
                    block = block[: max(0, self._length() - given)]
                if len(block):
                    given += len(block)
                    yield block
            if given < self._length():
                yield np.zeros(self._length() - given, np.float32)
        finally:
            with self._lock:
                self._deserted = True
                self._queue.clear()
                self._queued = 0
                self._room.notify_all()

    def _length(self) -> int:
        return resampled_length(self._taken, self.sample_rate) if self._taken else 0

    def _arriving(self, poll: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield what is queued as one block, at most a second of it unless one push was longer."""
        while True:
            poll()
            with self._lock:
                if not self._queue and not self._ended:
                    self._more.wait(POLL_S)
                if self._error is not None:
                    raise self._error
                if not self._queue:
                    if self._ended:
                        return
                    continue
                parts = [self._queue.popleft()]
                count = len(parts[0])
                while self._queue and count + len(self._queue[0]) <= self.sample_rate:
                    parts.append(self._queue.popleft())
                    count += len(parts[-1])
                self._queued -= count
                self._taken += count
                self._room.notify_all()
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _checked(self, samples: np.ndarray) -> np.ndarray:
        data = np.asarray(samples)
        if data.dtype.name not in _SAMPLE_TYPES:
            raise ValueError(
                f"live sound is {' or '.join(_SAMPLE_TYPES)}, not {data.dtype}; convert it first"
            )
        if data.ndim == 1 and self.channels == 1:
            data = data[None]
        if data.ndim != 2 or data.shape[0] != self.channels:
            wanted = "(n,) or (1, n)" if self.channels == 1 else f"({self.channels}, n)"
            raise ValueError(
                f"live sound of {self.channels} channels is shaped {wanted}, not {samples.shape}"
            )
        return as_float(data)

    def _refuse_late(self) -> None:
        if self._error is not None:
            raise ValueError(f"the live sound has failed ({self._error}); start another one") from self._error
        if self._ended:
            raise ValueError("the live sound has ended; start another one for more")
        if self._deserted:
            raise ValueError("nobody listens to the live sound any more: its consumer has stopped")


class ClipSound:
    """A clip whose sound comes as if it were live: to compare the two rules, and to test."""

    waits = False

    def __init__(self, clip: AudioClip) -> None:
        self.clip, self.sample_rate, self.taken = clip, clip.sample_rate, 0
        self._report = Report()

    def blocks(self, poll: Callable[[], None] | None = None) -> Iterator[np.ndarray]:
        given = 0
        self.taken = 0
        for block in mono_blocks(self.clip, SPEECH_RATE, self._report):
            if poll:
                poll()
            given += len(block)
            self.taken = min(self.clip.n_samples, given * self.sample_rate // SPEECH_RATE)
            yield block
        self.taken = self.clip.n_samples

    @property
    def notes(self) -> list[str]:
        return list(self._report.warnings)
