"""Streams made on demand, for tests of whoever consumes one."""

from fractions import Fraction

import numpy as np
import torch
from media import numbered_frame

from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.core.frames import FrameInfo, FrameStream, MappedStream


class Stub(FrameStream):
    """Frames made on demand by `make(index)`; counts what was pulled and knows whether it was closed."""

    stage = "stub"

    def __init__(self, n_frames, size=(128, 128), fps=Fraction(25), make=None, hook=None):
        self.info = FrameInfo(size[0], size[1], fps, n_frames)
        flat = np.full((size[1], size[0], 3), 128, np.uint8)
        self._make, self._hook = make or (lambda i: flat), hook
        self.pulled, self.closed = 0, 0

    def generate(self, ctx, n):
        try:
            for start in range(0, self.info.n_frames, n):
                if self._hook:
                    self._hook(start)
                indices = range(start, min(start + n, self.info.n_frames))
                self.pulled += len(indices)
                yield torch.from_numpy(np.stack([self._make(i) for i in indices])), None
        finally:
            self.closed += 1


def numbered(n_frames, size=(128, 96), fps=Fraction(25), **kwargs):
    return Stub(n_frames, size, fps, make=lambda i: numbered_frame(*size, i), **kwargs)


def as_nv12(stream, matrix):
    """The stream's RGB converted, as a stream of layout nv12."""
    return MappedStream(
        stream,
        "NV12",
        lambda ctx, chunk: rgb_to_nv12(chunk.frames, matrix),
        layout="nv12",
        matrix=matrix,
        range="limited",
    )
