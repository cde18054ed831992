"""Which voices there are: one list over all engines, and the engine behind a name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .espeak_engine import EspeakEngine
from .kokoro_engine import KokoroEngine, kokoro_files
from .piper_engine import INSTALL, JOE, PiperEngine, piper_files
from .sample_engine import SAMPLE_VOICE, SAMPLES, SampleEngine
from .speech_engine import LOADED, MAX_VOICES, Chunk, SpeechEngine, VoiceCache

__all__ = [
    "INSTALL",
    "JOE",
    "LOADED",
    "MAX_VOICES",
    "SAMPLES",
    "SAMPLE_VOICE",
    "Chunk",
    "EspeakEngine",
    "KokoroEngine",
    "PiperEngine",
    "SampleEngine",
    "SpeechEngine",
    "VoiceCache",
    "all_engines",
    "kokoro_files",
    "piper_files",
]


def all_engines(roots: Iterable[Path] = ()) -> tuple[SpeechEngine, ...]:
    """Return the engines over the files under `roots`, in the order their voices are offered. Loads nothing."""
    roots = list(roots)
    return SampleEngine(), PiperEngine(piper_files(roots)), KokoroEngine(kokoro_files(roots)), EspeakEngine()
