"""How speech moves brows and lids: strengths per video frame from loudness and pitch, as sound comes in.

A heuristic: a raised voice raises the brows, a low and loud one draws them together, a loud one narrows the eyes. All are
against the speaker's own running mean, and smoothed over 0.2 s. They depend on the samples alone, not on how they
were cut, and hear nothing behind the frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..core.audio import SPEECH_RATE
from ..core.timeline import frame_to_sample

_WINDOW = 640
"""Samples in which the pitch is sought: three periods of the lowest voice."""
_LAGS = SPEECH_RATE // 400, SPEECH_RATE // 70
_VOICED = 0.5
"""Least normalised autocorrelation of a voiced frame; 2000 frames of white noise stay below 0.21."""
_QUIET_DB = -50.0
_MEAN_SECONDS, _SMOOTH_SECONDS = 4.0, 0.2
_PITCH_RANGE, _LOUD_RANGE = 0.5, 12.0
"""Octaves above or below the mean pitch, and dB above the mean loudness, that count as full strength."""
_KEPT = 4096


@dataclass(frozen=True)
class Strengths:
    """0..1 each: brows raised, brows drawn together, eyes narrowed."""

    brow_raise: float = 0.0
    brow_furrow: float = 0.0
    squint: float = 0.0


class Prosody:
    """Takes sound as it comes, 16 kHz mono float32; gives the strengths of every frame it completes.

    One thread feeds it and another may ask; a frame that was not fed yet must not be asked for.
    """

    def __init__(self, fps: Fraction) -> None:
        self._fps = fps
        self._held, self._first = np.zeros(0, np.float32), 0
        self._made: dict[int, Strengths] = {}
        self._slow, self._fast = (
            1 - math.exp(-1 / (float(fps) * s)) for s in (_MEAN_SECONDS, _SMOOTH_SECONDS)
        )
        self._mean_db: float | None = None
        self._mean_pitch: float | None = None
        self._now = Strengths()
        self.frames = 0
        """Frames known so far."""

    def feed(self, block: np.ndarray) -> None:
        """Take the next samples (n,)."""
        held = np.concatenate([self._held, block])
        while (end := frame_to_sample(self.frames + 1, SPEECH_RATE, self._fps)) <= self._first + len(held):
            self._add(held[: end - self._first])
            # The window of the next frame may reach back into this one.
            cut = max(
                0, min(frame_to_sample(self.frames, SPEECH_RATE, self._fps), end - _WINDOW) - self._first
            )
            held, self._first = held[cut:], self._first + cut
        self._held = held.copy()

    def finish(self, n_frames: int) -> None:
        """Say that the sound has ended; what is missing of `n_frames` is heard as far as it goes."""
        while self.frames < n_frames:
            self._add(self._held)

    def at(self, frame: int) -> Strengths:
        """Return the strengths of a frame, one of the last 4096."""
        return self._made[frame]

    def _add(self, heard: np.ndarray) -> None:
        """Measure the newest frame, `heard` is the sound up to its end."""
        start = frame_to_sample(self.frames, SPEECH_RATE, self._fps) - self._first
        own = heard[max(0, start) :]
        loudness = _decibel(own)
        wanted = Strengths()
        if loudness > _QUIET_DB:
            self._mean_db = _follow(self._mean_db, loudness, self._slow)
            loud = _share(loudness - self._mean_db, _LOUD_RANGE)
            turn = self._turn(heard[-_WINDOW:])
            wanted = Strengths(_share(turn, _PITCH_RANGE), _share(-turn, _PITCH_RANGE) * loud, loud)
        now = zip(_parts(self._now), _parts(wanted), strict=True)
        self._now = Strengths(*(old + (new - old) * self._fast for old, new in now))
        self._made[self.frames] = self._now
        self._made.pop(self.frames - _KEPT, None)
        self.frames += 1  # last: whoever asks in another thread goes by this

    def _turn(self, window: np.ndarray) -> float:
        """Return octaves that the pitch lies above the speaker's mean, 0 for a frame without voice."""
        pitch = pitch_hz(window)
        if pitch is None:
            return 0.0
        octave = math.log2(pitch)
        self._mean_pitch = _follow(self._mean_pitch, octave, self._slow)
        return octave - self._mean_pitch


def pitch_hz(window: np.ndarray) -> float | None:
    """Return the pitch in 70..400 Hz of 16 kHz samples (n,) by autocorrelation, None where there is no voice."""
    shortest, longest = _LAGS
    if len(window) < 2 * longest:
        return None
    x = window.astype(np.float64) - window.mean(dtype=np.float64)
    size = 1 << (2 * len(x) - 1).bit_length()
    product = np.fft.irfft(np.abs(np.fft.rfft(x, size)) ** 2)[: longest + 2]
    energy = np.cumsum(np.concatenate([[0.0], x * x]))
    lags = np.arange(shortest - 1, longest + 2)
    norm = np.sqrt((energy[len(x) - lags]) * (energy[-1] - energy[lags]))
    likeness = np.divide(product[lags], norm, out=np.zeros(len(lags)), where=norm > 1e-12)
    inner = likeness[1:-1]
    peaks = (inner >= likeness[:-2]) & (inner > likeness[2:]) & (inner >= max(_VOICED, 0.9 * inner.max()))
    return None if not peaks.any() else SPEECH_RATE / float(lags[1:-1][np.argmax(peaks)])


def _parts(strengths: Strengths) -> Iterable[float]:
    return strengths.brow_raise, strengths.brow_furrow, strengths.squint


def _follow(mean: float | None, value: float, share: float) -> float:
    return value if mean is None else mean + (value - mean) * share


def _share(value: float, full: float) -> float:
    return min(1.0, max(0.0, value / full))


def _decibel(samples: np.ndarray) -> float:
    rms = math.sqrt(float(np.square(samples, dtype=np.float64).mean())) if len(samples) else 0.0
    return 20 * math.log10(max(rms, 1e-6))
