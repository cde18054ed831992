"""What a take measures before and after mastering, and what its picture is drawn from. Memory does not grow with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .blocks import Queue, to_db
from .limiter import PeakFinder
from .loudness import LoudnessMeter

COLUMNS = 960
FRAME_S = 0.04


@dataclass(frozen=True)
class Levels:
    """lufs: integrated. Peaks, RMS and crest factor (peak over RMS) in dB; -inf and a crest of 0 for silence."""

    lufs: float
    true_peak_dbtp: float
    peak_dbfs: float
    rms_dbfs: float
    crest_db: float
    offset: float
    """Mean of the samples of the channel where it is largest, full scale 1."""

    def __str__(self) -> str:
        if math.isinf(self.peak_dbfs):
            return "silence"
        lufs = "below -70 LUFS" if math.isinf(self.lufs) else f"{self.lufs:.1f} LUFS"
        return f"{lufs}, true peak {self.true_peak_dbtp:.1f} dBTP, crest factor {self.crest_db:.1f} dB"


class LevelMeter:
    """Measures blocks float32 (channels, n)."""

    def __init__(self, rate: int, channels: int) -> None:
        self._loudness, self._finder = LoudnessMeter(rate, channels), PeakFinder(channels)
        self._true_peak = self._peak = self._squares = 0.0
        self._sums = np.zeros(channels)
        self._n = 0
        self.trace = Trace(rate, channels)

    def feed(self, block: np.ndarray) -> None:
        self._loudness.feed(block)
        self._peak = max(self._peak, float(np.abs(block).max(initial=0)))
        self._finder.floor = max(self._peak, self._true_peak)
        self._true_peak = max(self._true_peak, float(self._finder.feed(block).max(initial=0)))
        self._squares += float(np.einsum("cn,cn->", block, block, dtype=np.float64))
        self._sums += block.sum(axis=1, dtype=np.float64)
        self._n += block.size
        self.trace.feed(block)

    def lufs(self) -> float:
        """Return the integrated loudness so far."""
        return self._loudness.integrated()

    def finish(self) -> Levels:
        self._true_peak = max(self._true_peak, float(self._finder.finish().max(initial=0)))
        rms = math.sqrt(self._squares / self._n) if self._n else 0.0
        peak, rms_db = _decibel(self._peak), _decibel(rms)
        crest = peak - rms_db if rms else 0.0
        offsets = self._sums * len(self._sums) / max(1, self._n)
        offset = float(max(offsets, key=abs))
        lufs = self._loudness.integrated()
        return Levels(lufs, _decibel(self._true_peak), peak, rms_db, crest, offset)


def _decibel(value: float) -> float:
    return 20 * math.log10(value) if value > 0 else -math.inf


class Trace:
    """The outline of a waveform in at most 2 * COLUMNS columns, and its mean spectrum."""

    def __init__(self, rate: int, channels: int) -> None:
        self.rate, self.n = rate, 0
        self._size = 1 << round(math.log2(FRAME_S * rate))
        self._window = np.hanning(self._size).astype(np.float32)
        self._power, self._frames = np.zeros(self._size // 2 + 1), 0
        self._mono, self._waiting = Queue(1), Queue(1)
        self._columns, self._width = np.zeros((2, 0), np.float32), 64

    def feed(self, block: np.ndarray) -> None:
        mono = block.mean(axis=0, dtype=np.float32)[None]
        self.n += block.shape[1]
        self._mono.push(mono)
        self._waiting.push(mono)
        self._add_frames(self._mono.n // self._size)
        while self._waiting.n >= self._width:
            self._add_columns()

    def outline(self) -> np.ndarray:
        """Return the lowest and highest sample of every column, float32 (2, columns); the last may be shorter."""
        if not self._waiting.n:
            return self._columns
        rest = self._waiting.peek()
        return np.concatenate([self._columns, [[rest.min()], [rest.max()]]], axis=1)

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (Hz, dB), both (bins,): mean power, where a full-scale sine reads 0 dB."""
        power, frames = self._power, self._frames
        if self._mono.n:
            rest = np.pad(self._mono.peek()[0], (0, self._size - self._mono.n))
            power = power + np.square(np.abs(np.fft.rfft(rest * self._window)), dtype=np.float64)
            frames += 1
        scale = (2 / self._window.sum()) ** 2 / max(1, frames)
        return np.fft.rfftfreq(self._size, 1 / self.rate), to_db(power * scale)

    def _add_frames(self, frames: int) -> None:
        if frames:
            cut = self._mono.take(frames * self._size).reshape(frames, self._size)
            spectra = np.fft.rfft(cut * self._window, axis=1)
            self._power += np.square(np.abs(spectra)).sum(axis=0, dtype=np.float64)
            self._frames += frames

    def _add_columns(self) -> None:
        """Add the columns there is room for; when it is used up, two columns become one."""
        columns = min(2 * COLUMNS - self._columns.shape[1], self._waiting.n // self._width)
        cut = self._waiting.take(columns * self._width).reshape(columns, self._width)
        held = np.concatenate([self._columns, [cut.min(axis=1), cut.max(axis=1)]], axis=1)
        if held.shape[1] == 2 * COLUMNS:
            held = np.stack([held[0].reshape(-1, 2).min(axis=1), held[1].reshape(-1, 2).max(axis=1)])
            self._width *= 2
        self._columns = held
