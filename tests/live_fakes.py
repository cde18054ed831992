"""A stream as a session opens it, without a network: numbered frames for as much sound as has come."""

import math
import threading
import time
from fractions import Fraction

import numpy as np
import torch
from media import numbered_frame

from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.core.frames import FrameChunk, FrameInfo
from talkinghead.nodes.core.live_session import LiveStream

SIZE = (128, 96)
RATE = 16000


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


class FakeStream:
    """`open` is a session's OpenStream. `hook(first frame)` runs before each batch; `picture(index)` is RGB of any size."""

    def __init__(self, batch=8, hook=None, fail_open=None, picture=None, size=SIZE):
        self._batch, self._hook, self._fail_open, self._size = batch, hook, fail_open, size
        self._picture = picture or (lambda i: numbered_frame(*size, i))
        self.batches, self.closed_in, self.threads = 0, None, set()

    def open(self, audio, is_cancelled, report):
        if self._fail_open:
            raise self._fail_open
        self._fps = Fraction(25)
        report.fact("engine", "fake")
        return LiveStream(
            FrameInfo(*self._size, self._fps, None, "nv12", "bt601", "limited"), self._run(audio)
        )

    def _run(self, audio):
        self.threads.add(threading.current_thread())
        try:
            yield from self._chunks(audio)
        finally:
            self.closed_in = threading.current_thread()

    def _chunks(self, audio):
        heard, made = 0, 0
        for block in audio.blocks():
            heard += len(block)
            ready = int(heard * self._fps / RATE)
            while made + self._batch <= ready:
                yield self._chunk(made, self._batch)
                made += self._batch
        rest = math.ceil(heard * self._fps / RATE) - made
        for start in range(made, made + rest, self._batch):
            yield self._chunk(start, min(self._batch, made + rest - start))

    def _chunk(self, start, count):
        if self._hook:
            self._hook(start)
        frames = np.stack([self._picture(i) for i in range(start, start + count)])
        frames = torch.from_numpy(rgb_to_nv12(frames, "bt601"))
        self.batches += 1
        return FrameChunk(self.batches - 1, start, count, frames, False)
