"""What is done to the sound of a voice engine: its pitch, its rate, its level.

**Pitch**, in semitones, for engines that have no control for it: the engine speaks slower (or faster) by the ratio, and
the sound is resampled by it. Pace and length are those asked for, without the artefacts of cutting and overlapping. The
formants move with the pitch, so a voice gets smaller or larger: a colour for emphasis, not another key.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.audio import need
from .speech_engine import Chunk

LEVEL_DBFS = -20.0
"""RMS of the loud parts of a voice among others; peaks of speech are 9-14 dB above."""
MAX_GAIN_DB = 18.0
_FRAME_S = 0.05
_LOUD_DB = 15.0


def ratio_of(semitones: float) -> float:
    """Return the ratio of frequencies: 2 for 12 semitones."""
    return 2.0 ** (semitones / 12.0)


def shift_pitch(chunk: Chunk, ratio: float) -> Chunk:
    """Return `chunk` played `ratio` times as fast: its frequencies times, its length and times divided by it."""
    if ratio == 1.0 or not len(chunk.audio):
        return chunk
    soxr = need("soxr", "soxr", "the pitch of a voice")
    audio = soxr.resample(chunk.audio, chunk.sample_rate * ratio, chunk.sample_rate, "HQ")
    phonemes = chunk.phonemes and tuple((s, a / ratio, b / ratio) for s, a, b in chunk.phonemes)
    return replace(chunk, audio=audio, phonemes=phonemes)


def resample_chunk(chunk: Chunk, sample_rate: int) -> Chunk:
    """Return `chunk` at another rate; its times stay."""
    if chunk.sample_rate == sample_rate or not len(chunk.audio):
        return replace(chunk, sample_rate=sample_rate)
    soxr = need("soxr", "soxr", "resampling a voice")
    return replace(
        chunk, audio=soxr.resample(chunk.audio, chunk.sample_rate, sample_rate, "HQ"), sample_rate=sample_rate
    )


def gain_to_level(audio: np.ndarray, sample_rate: int) -> float:
    """Return the gain that brings the loud parts of mono speech to LEVEL_DBFS, at most 18 dB; 1 for silence.

    Loud are the 50 ms stretches within 15 dB of the loudest: pauses and how long they are do not count.
    """
    size = max(1, round(_FRAME_S * sample_rate))
    count = max(1, len(audio) // size)
    frames = np.array_split(audio.astype(np.float64), count)
    power = np.array([np.mean(f**2) for f in frames if len(f)])
    if not power.size or not power.max() > 0:
        return 1.0
    loud = power[power >= power.max() * 10 ** (-_LOUD_DB / 10)].mean()
    gain_db = LEVEL_DBFS - 10 * np.log10(loud)
    return float(10 ** (np.clip(gain_db, -MAX_GAIN_DB, MAX_GAIN_DB) / 20))
