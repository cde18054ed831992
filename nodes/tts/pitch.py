"""Pitch of speech in semitones, for engines that have no control for it.

The engine speaks slower (or faster) by the ratio, and the sound is resampled by it: pace and length are those asked
for, without the artefacts of cutting and overlapping. The formants move with the pitch, so a voice gets smaller or
larger; up to 3 semitones that is hardly noticed.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.audio import need
from .speech_engine import Chunk


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
