"""Speech as a clip: any sound, in memory or in a file, read in blocks and brought to 16 kHz mono.

Samples are float32 with full scale 1.0, shaped (channels, n). A clip knows its exact length before it is
read, delivers exactly that many samples every time it is read, and is never held whole in memory when it
comes from a file. What was wrong with a file stands in `clip.notes` and reaches the report of the run.
"""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .interrupt import is_interrupt
from .report import Report

BLOCK = 65536
SPEECH_RATE = 16000
PIECE = 30 * SPEECH_RATE
"""Whisper hears 30 s at a time."""
MIN_RATE, MAX_RATE = 1000, 768000
MAX_CHANNELS = 64

_INT_SCALE = {"int16": 2.0**-15, "int32": 2.0**-31}
_FLOATS = ("float16", "float32", "float64")


class MissingPackage(ImportError):
    """A package that this step needs is not installed; the message says how to install it."""


def need(module: str, package: str, purpose: str) -> ModuleType:
    """Import `module` where it is used; raise MissingPackage with the install line if it is not there."""
    try:
        return import_module(module)
    except ImportError as e:
        raise MissingPackage(
            f"{purpose} needs {module!r}, which does not import ({e}): pip install {package}"
        ) from e


class AudioClip(ABC):
    """Sound of known rate (Hz), channel count and length in samples. `notes` lists what was wrong with it."""

    def __init__(self, sample_rate: int, channels: int, n_samples: int, name: str) -> None:
        if not (MIN_RATE <= sample_rate <= MAX_RATE and sample_rate == int(sample_rate)):
            raise ValueError(
                f"{name}: sample rate {sample_rate} is not a whole number in {MIN_RATE}..{MAX_RATE} Hz"
            )
        if n_samples < 1:
            raise ValueError(f"{name} has no samples; give at least one")
        if not 1 <= channels <= MAX_CHANNELS:
            raise ValueError(
                f"{name} has {channels} channels, 1..{MAX_CHANNELS} are possible; samples are shaped (channels, n)"
            )
        self.sample_rate, self.channels = int(sample_rate), int(channels)
        self.n_samples, self.name = int(n_samples), name
        self.notes: list[str] = []

    @property
    def seconds(self) -> Fraction:
        return Fraction(self.n_samples, self.sample_rate)

    @abstractmethod
    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        """Yield float32 (channels, size) blocks, the last one shorter; they sum to exactly `n_samples`.

        Every call starts from the first sample. Blocks may be views: do not write into them.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hex SHA-256 that changes when the sound changes."""


class MemoryAudio(AudioClip):
    """A clip over samples in memory: numpy or torch, (T,), (C,T) or (1,C,T).

    float16/32/64 are taken as they are, int16/int32 are scaled to 1.0. The samples are converted block by
    block, neither copied nor changed. Raises ValueError for other types or shapes, and for a batch above 1.
    """

    def __init__(self, waveform: Any, sample_rate: int, name: str = "audio") -> None:
        data = as_array(waveform, name)
        if data.ndim == 3:
            if data.shape[0] != 1:
                raise ValueError(
                    f"{name} is a batch of {data.shape[0]} clips; give one at a time (split the batch)"
                )
            data = data[0]
        if data.ndim == 1:
            data = data[None]
        if data.ndim != 2:
            raise ValueError(f"{name} is shaped {data.shape}; give (T,), (C,T) or (1,C,T)")
        super().__init__(sample_rate, data.shape[0], data.shape[1], name)
        self._data = data

    @property
    def samples(self) -> np.ndarray:
        """All samples, float32 (channels, n); not a copy where they are float32 already."""
        return as_float(self._data)

    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        for i in range(0, self.n_samples, positive(size)):
            yield as_float(self._data[:, i : i + size])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.sample_rate} Hz, {self.channels} channels".encode())
        for block in self.blocks():
            digest.update(np.ascontiguousarray(block))
        return digest.hexdigest()


def as_array(waveform: Any, name: str) -> np.ndarray:
    """Return samples of any kind that `as_float` scales rightly; ValueError naming the kinds for another one."""
    if hasattr(waveform, "detach"):  # a torch tensor; torch itself is not needed here
        waveform = waveform.detach().cpu()
        if str(waveform.dtype) == "torch.bfloat16":  # numpy has no such type
            waveform = waveform.float()
        waveform = waveform.numpy()
    data = np.asarray(waveform)
    if data.dtype.name not in _INT_SCALE and data.dtype.name not in _FLOATS:
        raise ValueError(f"{name} holds {data.dtype}; give one of {', '.join((*_FLOATS, *_INT_SCALE))}")
    return data


def as_float(data: np.ndarray) -> np.ndarray:
    """Return samples as float32 of full scale 1.0; float32 as it is."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf and is caught as such
        out = data.astype(np.float32, copy=False)
    return out * np.float32(_INT_SCALE[data.dtype.name]) if data.dtype.name in _INT_SCALE else out


def positive(size: int) -> int:
    if size < 1:
        raise ValueError(f"a block needs at least one sample, not {size}")
    return size


def from_comfy(audio: Any) -> MemoryAudio:
    """Return the clip in a ComfyUI AUDIO: {"waveform": (1,C,T), "sample_rate"}; ValueError if it holds none."""
    if audio is None:
        raise ValueError("no audio is connected; wire an AUDIO, such as Load Audio or Speak")
    waveform, rate = _parts(audio)
    return MemoryAudio(waveform, rate)


def is_empty(audio: Any) -> bool:
    """Say whether a ComfyUI AUDIO has no samples, which is how some loaders say that a clip has no sound."""
    return 0 in getattr(_parts(audio)[0], "shape", ())


def _parts(audio: Any) -> tuple[Any, Any]:
    try:
        return audio["waveform"], audio["sample_rate"]
    except Exception as e:  # some packs hand over lazy mappings that raise whatever their reader raises
        if is_interrupt(e):
            raise
        raise ValueError(
            f"AUDIO without a usable 'waveform' and 'sample_rate' ({type(e).__name__}: {e})"
        ) from e


def open_audio(path: str | os.PathLike) -> AudioClip:
    """Open any sound file, or the sound of a video, without reading it into memory.

    soundfile reads what it can (wav, flac, ogg, mp3, ...), PyAV the rest. A length that the header cannot
    be trusted for is counted by decoding once. Of a damaged or cut file, what decodes is kept, holes become
    silence, and `notes` say so. ValueError: no such file, no sound in it, nothing decodes.
    """
    from .audio_file import open_file

    return open_file(Path(path))


def rebatch(blocks: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Cut consecutive blocks anew along their last axis: `size` each, the last one shorter."""
    held: list[np.ndarray] = []
    count = 0
    for block in blocks:
        while count + block.shape[-1] >= size:
            take = size - count
            yield np.concatenate([*held, block[..., :take]], axis=-1) if held else block[..., :take]
            held, count, block = [], 0, block[..., take:]
        if block.shape[-1]:
            held.append(block)
            count += block.shape[-1]
    if held:
        yield np.concatenate(held, axis=-1)


def resampled_length(n_samples: int, sample_rate: int, rate: int = SPEECH_RATE) -> int:
    """Return the samples a clip has at `rate`: n * rate / sample_rate, half rounded up, and at least one."""
    return max(1, (2 * n_samples * rate + sample_rate) // (2 * sample_rate))


class MonoMix:
    """Makes clean mono of blocks of one sound; counts what it had to repair. `name` and rate (Hz) are for `lines`."""

    def __init__(self, name: str, sample_rate: int) -> None:
        self._name, self._rate, self._start = name, sample_rate, 0
        self._bad, self._first_bad, self._hot, self._peak = 0, 0, 0, 0.0

    def feed(self, block: np.ndarray) -> np.ndarray:
        """Return the mean (n,) of the next float32 (channels, n) block: NaN and Inf as 0, at most full scale.

        May be a view of the block.
        """
        with np.errstate(over="ignore"):
            mono = self._mean(block)
        loudest = float(np.abs(mono).max(initial=0))
        if loudest > 1.0:
            self._hot, self._peak = self._hot + int((np.abs(mono) > 1).sum()), max(self._peak, loudest)
            mono = mono.clip(-1, 1)
        self._start += block.shape[1]
        return mono

    def _mean(self, block: np.ndarray) -> np.ndarray:
        finite = np.isfinite(block)
        if not finite.all():
            if not self._bad:
                self._first_bad = self._start + int(np.argmin(finite.all(axis=0)))
            self._bad += int((~finite).sum())
            block = np.where(finite, block, np.float32(0))
        if len(block) == 1:
            return block[0]
        # In float64, so that equal channels give themselves, however many. numpy's mean adds in an order that depends
        # on the memory layout.
        mono = block[0].astype(np.float64)
        for channel in block[1:]:
            mono += channel
        return (mono / len(block)).astype(np.float32)

    def lines(self) -> list[str]:
        """Say what was repaired so far, a line for each kind."""
        lines = []
        if self._bad:
            at = self._first_bad / self._rate
            lines.append(
                f"{self._name}: {self._bad} NaN or Inf samples set to 0, first at {self._first_bad} ({at:.3f} s)"
            )
        if self._hot:
            lines.append(
                f"{self._name}: {self._hot} samples above full scale clipped to 1, loudest {self._peak:.4g}; "
                "scale the sound to -1..1 if this is audible"
            )
        return lines


def tell(lines: Iterable[str], report: Report | None) -> None:
    """Warn of each line: in the report, or in the log without one."""
    for line in lines:
        report.warn(line) if report is not None else logging.getLogger(__name__).warning(line)


def mono_blocks(
    clip: AudioClip, rate: int = SPEECH_RATE, report: Report | None = None
) -> Iterator[np.ndarray]:
    """Yield the clip as mono float32 (n,) blocks at `rate` Hz, `resampled_length` samples in all.

    Channels are averaged. NaN and Inf become 0 and what lies above full scale is clipped, each with one
    warning (to the log without a report) when the clip ends. soxr HQ; a clip at `rate` passes unchanged, as
    views of the clip's own samples: do not write into the blocks.
    """
    mix, left = MonoMix(clip.name, clip.sample_rate), resampled_length(clip.n_samples, clip.sample_rate, rate)
    try:
        for block in resample_blocks(map(mix.feed, clip.blocks(BLOCK)), clip.sample_rate, rate):
            if len(block) and left:
                yield block[:left]
                left -= min(left, len(block))
        if left:
            yield np.zeros(left, np.float32)
    finally:
        tell([*clip.notes, *mix.lines()], report)


def resample_blocks(blocks: Iterable[np.ndarray], sample_rate: int, rate: int) -> Iterator[np.ndarray]:
    """Yield mono float32 (n,) blocks at `rate` Hz, some of them empty; their sum may be off by a few samples.

    soxr HQ: the values do not depend on how the sound is cut, and come about 40 ms late.
    """
    if sample_rate == rate:
        yield from blocks
        return
    stream = need("soxr", "soxr", "resampling sound").ResampleStream(sample_rate, rate, 1, "float32", "HQ")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def pieces(
    clip: AudioClip, piece_samples: int = PIECE, rate: int = SPEECH_RATE, report: Report | None = None
) -> Iterator[np.ndarray]:
    """Yield the mono clip at `rate` Hz in consecutive pieces (piece_samples,), the last one shorter."""
    return rebatch(mono_blocks(clip, rate, report), positive(piece_samples))
