"""What every voice engine answers to, the sound it gives, and the one store of voices that are in memory."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

MAX_VOICES = 4
"""Voice files in memory at once, of all engines together: a Piper voice takes 0.15 GB, a Kokoro model up to 0.9."""


@dataclass(frozen=True)
class Chunk:
    """A stretch of speech: audio float32 mono (n,) and where its phonemes lie.

    phonemes are (symbol, start, end) in seconds from the chunk's start, or None if the engine has no
    timings; text is the part of the script it came from (one part may give several chunks).
    """

    audio: np.ndarray
    sample_rate: int
    phonemes: tuple[tuple[str, float, float], ...] | None
    text: str


class SpeechEngine(Protocol):
    """Turns text into Chunks. The same arguments give the same samples; no global generator is used.

    `reads_text` False: a recording that always says the same. `seeded` False: every seed gives the same samples.
    `speeds` are the paces the engine can speak at itself.
    """

    reads_text: bool
    seeded: bool
    speeds: tuple[float, float]

    def voices(self) -> list[str]:
        """Return the names to offer. Loads nothing."""

    def has(self, voice: str) -> bool:
        """Return whether the engine can speak as `voice`: those of `voices`, and what is made up of them."""

    def languages(self, voice: str) -> tuple[str, ...]:
        """Return the languages a voice was made for, as "en"; empty if nobody says."""

    def sample_rate(self, voice: str) -> int:
        """Return the rate in Hz without loading the voice. MissingPackage if its package is not there."""

    def files(self, voice: str) -> tuple[Path, ...]:
        """Return the files that a voice is read from; none for one that is part of a package."""

    def synthesize(
        self, text: str, voice: str, speed: float = 1.0, seed: int = 0, language: str | None = None
    ) -> Iterator[Chunk]:
        """Yield speech as it is ready, sentence by sentence where the engine cuts its text.

        `language` ("es") is that of the text, for engines that can follow it; None is the voice's own.
        """


class VoiceCache:
    """Keeps the `limit` most recently used voices, whatever `load(key)` makes of them."""

    def __init__(self, limit: int = MAX_VOICES) -> None:
        self._limit, self._held = limit, OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, load: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._held:
                while len(self._held) >= self._limit:  # before loading: never limit + 1 in memory
                    self._held.popitem(last=False)
                self._held[key] = load()
            self._held.move_to_end(key)
            return self._held[key]

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def __len__(self) -> int:
        return len(self._held)


LOADED = VoiceCache()


def number_of(seed: int, *parts: object) -> int:
    """Return 64 bits that follow from `seed`, any integer, and what else tells two draws apart."""
    text = " ".join(map(str, (int(seed), *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
