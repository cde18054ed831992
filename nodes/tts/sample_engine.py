"""The recorded sample sentence: the voice that needs no extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.audio import AudioClip, mono_blocks, open_audio
from .speech_engine import Chunk

SAMPLE_VOICE = "sample sentence"
SAMPLES = Path(__file__).parent / "samples"


class SampleEngine:
    """Says one recorded sentence whatever it is asked."""

    reads_text = False
    seeded = False
    speeds = (1.0, 1.0)

    def __init__(self, folder: Path = SAMPLES) -> None:
        self._sound, self._text = folder / "sample_sentence.flac", folder / "sample_sentence.txt"

    def voices(self) -> list[str]:
        return [SAMPLE_VOICE]

    def has(self, voice: str) -> bool:
        return voice == SAMPLE_VOICE

    def languages(self, voice: str) -> tuple[str, ...]:
        return ("en",)

    def sample_rate(self, voice: str) -> int:
        return self._clip().sample_rate

    def sentence(self) -> str:
        """Return the words that are heard."""
        return self._text.read_text(encoding="utf-8").strip()

    def files(self, voice: str) -> tuple[Path, ...]:
        return ()

    def synthesize(
        self, text: str, voice: str, speed: float = 1.0, seed: int = 0, language: str | None = None
    ) -> Iterator[Chunk]:
        clip = self._clip()
        audio = np.concatenate(list(mono_blocks(clip, clip.sample_rate)))
        yield Chunk(audio, clip.sample_rate, None, self.sentence())

    def _clip(self) -> AudioClip:
        if not self._sound.is_file() or not self._text.is_file():
            raise ValueError(
                f"{self._sound} or its .txt is missing; reinstall the pack, or choose another voice"
            )
        return open_audio(self._sound)
