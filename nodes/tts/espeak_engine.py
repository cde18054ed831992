"""espeak-ng, the last resort: robotic, but small, without a model file, and in most languages.

Its library comes with the package espeakng-loader, or from the system. It is loaded into this process when it speaks,
and unloaded after each text: it keeps the phase of its oscillators, so a text would sound by a few samples different
after another one. That takes 4 ms. It keeps one state for all: one text at a time.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..core.audio import MissingPackage
from .speech_engine import Chunk

PREFIX = "espeak: "
OFFERED = ("en-us", "en-gb", "es", "es-419")
INSTALL = "pip install espeakng-loader"
SAMPLE_RATE = 22050
WORDS_A_MINUTE = 175
_NAMES = {"en-gb": "en"}
"""What the library calls a language of `OFFERED` by another name."""
_SYSTEM = ("libespeak-ng.so.1", "libespeak-ng.dylib", "libespeak-ng.dll")
_VOICE = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]+)*(?:\+\w{1,12})?")
_SYNCHRONOUS, _UTF8, _RATE = 2, 1, 1
_EVENTS_IPA_NO_EXIT = 0x8003
"""Phoneme events, named in IPA; without its data the library gives an error instead of ending the process."""
_END, _PHONEME = 0, 7
_LOCK = threading.Lock()


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class EspeakEngine:
    """Voices by espeak's own names, with a variant if wanted: "espeak: es-419+f2"."""

    reads_text = True
    seeded = False
    speeds = (0.46, 2.5)

    def voices(self) -> list[str]:
        return [f"{PREFIX}{name}" for name in OFFERED] if espeak_there() else []

    def has(self, voice: str) -> bool:
        return voice.startswith(PREFIX) and bool(_VOICE.fullmatch(voice.removeprefix(PREFIX)))

    def languages(self, voice: str) -> tuple[str, ...]:
        return (re.split(r"[-+]", voice.removeprefix(PREFIX))[0],)

    def sample_rate(self, voice: str) -> int:
        with _speaking_as(voice.removeprefix(PREFIX)):
            return SAMPLE_RATE

    def files(self, voice: str) -> tuple[Path, ...]:
        return ()

    def synthesize(
        self, text: str, voice: str, speed: float = 1.0, seed: int = 0, language: str | None = None
    ) -> Iterator[Chunk]:
        """Yield one Chunk. A `language` other than the voice's own is spoken in that language's, if espeak knows it."""
        name = voice.removeprefix(PREFIX)
        if language and language[:2].lower() != self.languages(voice)[0]:
            other = language.partition("-")[0].lower()  # it knows few countries
            if _knows(other):
                name = other
        yield _say(text, name, speed)


def espeak_there() -> bool:
    """Return whether espeak-ng's library can be loaded. The package is looked up, not imported."""
    return find_spec("espeakng_loader") is not None or _system_there()


@lru_cache(maxsize=1)
def _system_there() -> bool:
    library = _system_library()
    if library is not None:
        _unload(library)
    return library is not None


def _system_library() -> Any:
    for name in _SYSTEM:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@contextmanager
def _speaking_as(name: str) -> Iterator[Any]:
    """Give the library, fresh, with its voice set; MissingPackage if there is none, ValueError for an unknown voice."""
    with _LOCK:
        library, data = _load()
        try:
            rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data, _EVENTS_IPA_NO_EXIT)
            if rate != SAMPLE_RATE:
                raise ValueError(
                    f"espeak-ng does not start ({rate}); its data should be in {data or 'the system'}"
                )
            language, plus, variant = name.partition("+")
            if library.espeak_SetVoiceByName(f"{_NAMES.get(language, language)}{plus}{variant}".encode()):
                raise ValueError(f"espeak-ng has no voice {name!r}; use one as en-us or es")
            yield library
        finally:
            library.espeak_Terminate()
            _unload(library)


def _knows(name: str) -> bool:
    try:
        with _speaking_as(name):
            return True
    except ValueError:
        return False


def _load() -> tuple[Any, bytes | None]:
    try:
        import espeakng_loader

        data = espeakng_loader.get_data_path().encode()
        return _own_copy(espeakng_loader.get_library_path()), data
    except (ImportError, OSError) as e:
        library = _system_library()
        if library is None:
            raise MissingPackage(f"an espeak voice needs espeak-ng ({e}): {INSTALL}") from e
        return library, None


def _own_copy(path: str) -> Any:
    """Load a library from a file of our own: what others hold open (Kokoro's package does) is never unloaded."""
    if os.name != "posix":
        return ctypes.CDLL(path)
    try:
        with tempfile.NamedTemporaryFile(suffix=Path(path).suffix) as copy:
            shutil.copyfile(path, copy.name)
            return ctypes.CDLL(copy.name)
    except OSError:  # no room, or a temporary folder without libraries allowed
        return ctypes.CDLL(path)


def _unload(library: Any) -> None:
    import _ctypes

    close = getattr(_ctypes, "dlclose", None) or getattr(_ctypes, "FreeLibrary", None)
    if close is not None:
        close(library._handle)


def _say(text: str, name: str, speed: float) -> Chunk:
    parts: list[np.ndarray] = []
    marks: list[tuple[int, str]] = []

    def collect(wave: Any, count: int, events: Any) -> int:
        if wave and count > 0:
            parts.append(np.ctypeslib.as_array(wave, (count,)).copy())
        index = 0
        while events[index].type != _END:
            if events[index].type == _PHONEME:
                marks.append((events[index].sample, events[index].name.decode("utf-8", "ignore")))
            index += 1
        return 0

    callback, data = _CALLBACK(collect), text.encode("utf-8", "ignore")
    with _speaking_as(name) as library:
        library.espeak_SetParameter(_RATE, round(WORDS_A_MINUTE * speed), 0)
        library.espeak_SetSynthCallback(callback)
        library.espeak_Synth(data, ctypes.c_size_t(len(data) + 1), 0, 1, 0, _UTF8, None, None)
    audio = np.concatenate([np.zeros(0, np.int16), *parts]).astype(np.float32) / np.float32(32768)
    return Chunk(audio, SAMPLE_RATE, _timings(marks, len(audio)), text)


def _timings(marks: list[tuple[int, str]], n_samples: int) -> tuple[tuple[str, float, float], ...] | None:
    """Return the phonemes of espeak's marks, each to the start of the next; a pause has the name "_"."""
    starts = [start for start, _ in marks]
    return (
        tuple(
            (name or "_", start / SAMPLE_RATE, end / SAMPLE_RATE)
            for (start, name), end in zip(marks, [*starts[1:], n_samples], strict=True)
        )
        or None
    )
