"""Copies between host and device that hold up neither: to the host through pinned buffers in turn, on their own stream.

The producer says `send` and goes on; whoever encodes waits for that copy alone. Frames that are on the host already
pass as they are.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")
UNDER_WAY = 2
"""Batches that a card is given before the host looks at the first."""


class Arriving:
    """Frames under way to the host: `take` waits for them, `release` gives their buffer back."""

    def __init__(
        self, frames: torch.Tensor, arrived: torch.cuda.Event | None, release: Callable[[], None] | None
    ) -> None:
        self._frames, self._arrived, self._release = frames, arrived, release

    def take(self) -> np.ndarray:
        """Return the frames; valid until `release`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._frames.numpy()

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None


class HostCopies:
    """Copies chunks to the host; at most `depth` CUDA chunks are under way or in use at a time.

    depth: chunks that the consumer may hold at once (its queue, the one it works on) and one being sent.
    """

    def __init__(self, depth: int) -> None:
        self._free: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        for _ in range(depth):
            self._free.put(None)
        self._stream: torch.cuda.Stream | None = None

    def send(self, frames: torch.Tensor) -> Arriving:
        """Start the copy of uint8 `frames`; waits for a buffer to be released if all are in use."""
        if frames.device.type != "cuda":
            return Arriving(frames.cpu(), None, None)
        buffer = self._free.get()
        if buffer is None or buffer.shape[0] < frames.shape[0] or buffer.shape[1:] != frames.shape[1:]:
            buffer = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True)
        if self._stream is None:
            self._stream = torch.cuda.Stream(frames.device)
        self._stream.wait_stream(torch.cuda.current_stream(frames.device))
        with torch.cuda.stream(self._stream):
            # Of a short last chunk the head of the buffer.
            buffer[: frames.shape[0]].copy_(frames, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        # torch must not give the memory to others before the side stream has read it.
        frames.record_stream(self._stream)
        return Arriving(buffer[: frames.shape[0]], arrived, lambda: self._free.put(buffer))


def one_ahead(batches: Iterator[T | None], device: torch.device) -> Iterator[T | None]:
    """On a card: yield a batch when the next one has been started, so that the card never waits for the host; or when
    None says that there is no next one yet. None is passed on."""
    if device.type != "cuda":
        yield from batches
        return
    waiting: T | None = None
    for batch in batches:
        if waiting is not None:
            yield waiting
        if batch is None:
            yield None
        waiting = batch
    if waiting is not None:
        yield waiting


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor of the host to `device`; on a CUDA device without waiting for what is queued there.

    Through page-locked memory, which torch keeps until the copy is done: from other memory the driver may wait.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
