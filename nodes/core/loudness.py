"""How loud every video frame's own stretch of sound is, of a clip and of sound that is still arriving.

Loudness is RMS of 16 kHz mono, full scale 1, from the start of a frame to the start of the next. It depends on the samples
alone, not on how they were cut into blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice

import numpy as np

from .audio import SPEECH_RATE, AudioClip, mono_blocks
from .report import Report
from .timeline import frame_count, frame_to_sample


def frame_energies(audio: AudioClip, fps: Fraction, report: Report | None = None) -> Iterator[float]:
    """Yield the RMS of every frame that covers `audio`; `report` is told what is wrong with the sound, if given."""
    n_frames = frame_count(audio.n_samples, audio.sample_rate, fps)
    return frame_rms(mono_blocks(audio, SPEECH_RATE, report or Report()), fps, n_frames)


def frame_rms(blocks: Iterable[np.ndarray], fps: Fraction, n_frames: int | None = None) -> Iterator[float]:
    """Yield the loudness of every frame.

    Args:
        blocks: 16 kHz mono float32 (n,), cut anywhere.
        n_frames: frames to give; those behind the sound are silent. None: as many as the sound covers.

    Returns:
        RMS of the samples from the start of a frame to the start of the next, of what is there of the last one.
    """
    return islice(_every_rms(blocks, _FrameCutter(fps), n_frames), n_frames)


def _every_rms(blocks: Iterable[np.ndarray], cutter: _FrameCutter, n_frames: int | None) -> Iterator[float]:
    for block in blocks:
        yield from cutter.feed(block)
    yield from cutter.finish(n_frames)


class _FrameCutter:
    """Cuts samples into frames and measures each that is whole."""

    def __init__(self, fps: Fraction) -> None:
        self._fps = fps
        self._held, self._first = np.zeros(0, np.float32), 0
        self.frames = 0
        """Frames measured so far."""

    def feed(self, block: np.ndarray) -> list[float]:
        """Return the RMS of the frames that `block`, float32 (n,), completes."""
        held = np.concatenate([self._held, block]) if len(self._held) else block
        made = []
        while (end := frame_to_sample(self.frames + 1, SPEECH_RATE, self._fps)) <= self._first + len(held):
            made.append(_rms(held[: end - self._first]))
            held, self._first = held[end - self._first :], end
            self.frames += 1
        # A copy: a slice would keep the block alive, and its owner may fill it anew.
        self._held = held.copy()
        return made

    def finish(self, n_frames: int | None) -> list[float]:
        """Return the RMS of the frames that are left of `n_frames`, None for those the sound covers."""
        made = [_rms(self._held)] if len(self._held) else []
        if n_frames is not None:
            left = max(0, n_frames - self.frames)
            made = (made + [0.0] * left)[:left]
        self.frames += len(made)
        return made


class LiveLoudness(Iterator[float]):
    """Loudness of sound that arrives: one thread feeds it, another takes the frames in order.

    Taking never waits. Whoever takes must know that the frame is there: from who feeds, which tells by `frames` and by
    what it hands over itself. Memory is that of the frames that were fed and not taken.
    """

    def __init__(self, fps: Fraction) -> None:
        self._cutter = _FrameCutter(fps)
        self._ready: deque[float] = deque()
        self._ended = False

    @property
    def frames(self) -> int:
        """Frames whose loudness is known so far."""
        return self._cutter.frames

    def feed(self, block: np.ndarray) -> None:
        """Take the next 16 kHz mono samples, float32 (n,)."""
        self._ready.extend(self._cutter.feed(block))

    def finish(self, n_frames: int) -> None:
        """Say that the sound has ended and has `n_frames` frames."""
        self._ready.extend(self._cutter.finish(n_frames))
        self._ended = True

    def __next__(self) -> float:
        ended = self._ended  # looked at first: what was fed before the end is there then
        if self._ready:
            return self._ready.popleft()
        if ended:
            raise StopIteration
        raise RuntimeError(
            f"the loudness of frame {self.frames} was asked for before its sound came; feed it first"
        )


def _rms(samples: np.ndarray) -> float:
    return math.sqrt(float(np.square(samples, dtype=np.float64).mean())) if len(samples) else 0.0
