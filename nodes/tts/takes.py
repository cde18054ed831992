"""`takes`: a script as speech, piece by piece while it is made: the first sentence first, the next prepared ahead.

    text rules | inline tags | parts an engine can take | engine | pitch, volume, pauses | pieces

The pieces are one sound: mono, at one rate, put one behind the other they are the whole, sample for sample, whoever
takes them and however fast. Memory does not grow with the script. What the tags ask for is done so: rate by the
engine; pitch by the engine's pace and resampling (voice_sound.py); volume by a gain; emphasis by these three. A pause
takes the place of the one between two sentences. Where several voices speak, each is brought to one level by a gain that
its first piece gives and all of its pieces get. Else the level is the engine's: `join_takes` or mastering sets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.audio import MemoryAudio
from ..core.live_audio import LiveAudio
from ..core.report import Report
from .cast import Cast, Role, SpeechOptions
from .detection import language_of
from .engines import PAUSE_S, PEAK, clean_text
from .mastering.joins import settle_ends
from .sentences import Sentence
from .speech_engine import Chunk, number_of
from .split import TAG
from .tags import Event, Pause, Sound, TagReader, Utterance, fit_engine, read_tags, unobeyed
from .text import stream_text
from .voice_sound import gain_to_level, ratio_of, resample_chunk, shift_pitch

if TYPE_CHECKING:
    from ..core.frames import RunContext

__all__ = ["SpeechOptions", "Take", "join_takes", "push_takes", "sounds_in", "speakers_in", "takes"]

MAX_PAUSES_S = 3600.0
"""Of all pauses of a script: silence is memory in a node's AUDIO, 0.1 MB a second."""
PARAGRAPH_S = 0.5
"""Silence between two paragraphs, PAUSE_S between two sentences."""
_SHOWN = 20
"""Dropped signs that a report names."""
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_ROUND = str.maketrans("[]", "()")


class Take(MemoryAudio):
    """A piece of speech, mono, with the pause before it: what is said, by whom, in which voice, and its phonemes.

    speaker is "" for the narrator, voice "" for a sound or a pause; phonemes are (symbol, start, end) in seconds from
    the piece's start, None where the engine has no timings.
    """

    def __init__(
        self, samples: np.ndarray, sample_rate: int, said: Utterance, voice: str, phonemes=None
    ) -> None:
        super().__init__(samples, sample_rate, voice or said.text or "pause")
        self.text, self.speaker, self.voice, self.phonemes = said.text, said.style.speaker, voice, phonemes


def speakers_in(text: str) -> list[str]:
    """Return who speaks in a script, in reading order, "" for the narrator; ValueError for a wrong tag."""
    return list(dict.fromkeys(e.style.speaker for e in read_tags(text)[0] if isinstance(e, Utterance)))


def sounds_in(text: str) -> list[str]:
    """Return the names of a script's sounds as written, in reading order; ValueError for a wrong tag."""
    return list(dict.fromkeys(e.name for e in read_tags(text)[0] if isinstance(e, Sound)))


def takes(
    text: str,
    options: SpeechOptions,
    roots: Iterable[Path] = (),
    report: Report | None = None,
    ctx: RunContext | None = None,
) -> Iterator[Take]:
    """Yield a script as pieces of speech while the next one is made ahead.

    Args:
        text: the script, with tags if `options.tags`.
        roots: folders of voice files.
        report: told the voices, what the text rules changed, what is not spoken. ctx: cancel, overlap, and its report
            if there is no other.

    Raises:
        ValueError: at the call, before anything is spoken: a wrong tag, a speaker or sound that is not mapped, an unknown
            voice, nothing to say. While it speaks: a voice that gives no sound.
        MissingPackage: at the call: a package of a voice or of the text rules.
    """
    if ctx is None:
        from ..core.frames import RunContext

        ctx = RunContext()
    report = report or ctx.report
    if not options.tags:
        if ignored := unobeyed(text):
            report.warn(ignored)
        text = text.translate(_ROUND)
    events, warnings = read_tags(text)
    silence = sum(e.seconds for e in events if isinstance(e, Pause))
    if silence > MAX_PAUSES_S:
        raise ValueError(f"the pauses make {silence:g} s of silence; {MAX_PAUSES_S:g} s at most")
    cast = Cast(events, options, roots)
    if not re.search(r"\w", TAG.sub(" ", text)) and cast.reads_text or not cast.roles:
        raise ValueError(f"there is nothing to say in {text[:60]!r}; give a text with at least one word")
    changes = _Changes(report, options.n_changes)
    if options.normalize and cast.reads_text:
        options = replace(options, language=language_of(text, options.language, report, cast.language))
    script = _script(text, options, changes, cast.reads_text)
    for warning in warnings:
        report.warn(warning)
    cast.tell(report, options)
    return _ahead(ctx, lambda: _Speaker(cast, options, report).pieces(script, changes))


def _ahead(ctx: RunContext, make: Callable[[], Iterator[Take]]) -> Iterator[Take]:
    from ..core.overlap import ahead

    return ahead(ctx, make, 1, "speech")


def join_takes(pieces: Iterable[Take], peak: float | None = PEAK) -> MemoryAudio:
    """Return pieces as one clip, its largest sample `peak` (None leaves the level); ValueError for silence."""
    held = list(pieces)
    if not held:
        raise ValueError("there are no pieces to join: the script gave none")
    audio = np.concatenate([p.samples for p in held], axis=1)
    loudest = float(np.abs(audio).max())
    if not 0 < loudest < np.inf:
        raise ValueError(
            f"the script gave no sound (largest sample {loudest}); try other words or another voice"
        )
    if peak is not None:
        audio = audio * np.float32(peak / loudest)
    return MemoryAudio(audio, held[0].sample_rate, "speech")


def push_takes(pieces: Iterable[MemoryAudio], sound: LiveAudio) -> None:
    """Push pieces into a live sound as they come, at its rate, and end it; an error fails it and is raised.

    Waits where the listener is slow. Stops the making of pieces when the listener has gone.
    """
    try:
        for piece in pieces:
            if piece.sample_rate != sound.sample_rate:
                raise ValueError(
                    f"speech of {piece.sample_rate} Hz does not fit a live sound of {sound.sample_rate} Hz"
                )
            sound.push(np.repeat(piece.samples, sound.channels, 0))
        sound.end()
    except BaseException as e:
        sound.fail(e)
        raise
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


class _Changes:
    """What the text rules did, the first `n_lines` of them (None: all) and the number of all."""

    def __init__(self, report: Report, n_lines: int | None) -> None:
        self._report, self._n_lines, self._lines, self._dropped = report, n_lines, [], []
        self._count = self._drops = 0

    def add(self, sentence: Sentence) -> None:
        self._count += len(sentence.changes)
        self._drops += len(sentence.dropped)
        room = None if self._n_lines is None else self._n_lines - len(self._lines)
        self._lines += map(str, sentence.changes[:room])
        self._dropped += sentence.dropped[: _SHOWN - len(self._dropped)]

    def tell(self) -> None:
        if self._count and self._n_lines != 0:
            left = self._count - len(self._lines)
            more = [f"and {left} more; Normalize Text lists all"] if left else []
            self._report.fact("changed", "\n".join([f"{self._count} places", *self._lines, *more]))
        if self._drops:
            more = " ..." if self._drops > _SHOWN else ""
            self._report.warn(f"not spoken: {' '.join(self._dropped)}{more}")


def _script(text: str, options: SpeechOptions, changes: _Changes, reads_text: bool) -> Iterator[Sentence]:
    """Return the sentences of a script as they are said; the first one is made at once, so its errors come here."""
    if options.normalize and reads_text:
        sentences = stream_text(text, options.language, options.wording, options.glossary)
        return _noted(chain([next(sentences)], sentences), changes)
    return iter([Sentence(p, p, "", (), (), True) for p in _PARAGRAPH.split(text) if p.strip()])


def _noted(sentences: Iterator[Sentence], changes: _Changes) -> Iterator[Sentence]:
    for sentence in sentences:
        changes.add(sentence)
        yield sentence


class _Speaker:
    """Speaks a script: one pass, from the first sentence to the last."""

    def __init__(self, cast: Cast, options: SpeechOptions, report: Report) -> None:
        self._cast, self._options, self._report = cast, options, report
        self._rate = cast.sample_rate
        self._gap, self._asked = 0.0, False
        self._turn: str | None = None
        self._count = 0
        self._gains: dict[str, float] = {} if len(cast.roles) > 1 else {cast.roles[0].voice: 1.0}

    def pieces(self, script: Iterable[Sentence], changes: _Changes) -> Iterator[Take]:
        reader, before, heard = TagReader(), None, False
        for sentence in script:
            if before is not None:
                self._between(PARAGRAPH_S if before.ends_paragraph else PAUSE_S)
            before = sentence
            for event in fit_engine(reader.feed(sentence.text)):
                for piece in self._perform(event, sentence.language or None):
                    heard = True
                    yield piece
        changes.tell()
        if not heard:
            raise ValueError("the voices gave no sound; try other words or another voice")
        if self._asked and self._gap:
            yield Take(self._silence(), self._rate, Utterance(""), "")

    def _perform(self, event: Event, language: str | None) -> Iterator[Take]:
        if isinstance(event, Pause):
            self._gap = event.seconds + (self._gap if self._asked else 0.0)
            self._asked = True
        elif isinstance(event, Sound):
            gain = np.float32(10 ** (event.gain_db / 20))
            chunk = Chunk(self._cast.sound(event.name, self._report) * gain, self._rate, None, event.name)
            yield self._take(chunk, Utterance(event.name), "")
        else:
            yield from self._say(event, language)

    def _between(self, seconds: float) -> None:
        """Have a pause of `seconds` before what comes, unless the script asked for one here."""
        if not self._asked:
            self._gap = max(self._gap, seconds)

    def _say(self, said: Utterance, language: str | None) -> Iterator[Take]:
        role = self._cast.role(said.style)
        same_turn, self._turn = self._turn == said.style.speaker, said.style.speaker
        if not same_turn and self._count:
            # Without text rules a paragraph is one sentence, whoever speaks in it.
            self._between(PAUSE_S)
        if not role.engine.reads_text:
            if same_turn:  # a recording is heard once, however long the turn
                return
        elif not self._options.normalize:
            said = replace(said, text=self._cleaned(said.text))
            if not said.text:
                return
        first = True
        for chunk in self._spoken(role, said, language):
            if not len(chunk.audio):
                continue
            if not first:
                self._between(PAUSE_S)
            first = False
            yield self._take(chunk, replace(said, text=chunk.text), role.voice)

    def _cleaned(self, text: str) -> str:
        """Return what can be said of a part, "" for nothing."""
        try:
            return clean_text(text, self._report)
        except ValueError:
            self._report.warn(f"not spoken: {text[:60]}")
            return ""

    def _spoken(self, role: Role, said: Utterance, language: str | None) -> Iterator[Chunk]:
        """Yield an utterance in its style, at the cast's rate, its ends at zero."""
        style, engine = said.style, role.engine
        ratio = ratio_of(style.pitch) if engine.reads_text else 1.0
        wanted = self._options.speed * style.rate / ratio
        low, high = engine.speeds
        speed = min(max(wanted, low), high)
        if engine.reads_text and abs(speed - wanted) > 1e-9:
            self._report.warn(
                f"the voice {role.voice!r} speaks at {low:g}..{high:g} times its pace; {wanted:.3g} was asked"
            )
        language = style.language or language
        self._check_language(role, language)
        seed = number_of(self._options.seed, self._count)
        self._count += 1
        for chunk in engine.synthesize(said.text, role.voice, speed, seed, language):
            if not np.isfinite(chunk.audio).all():
                raise ValueError(f"voice {role.voice!r} gave no finite sound for {said.text[:60]!r}")
            chunk = resample_chunk(shift_pitch(chunk, ratio), self._rate)
            if role.voice not in self._gains and chunk.audio.any():
                self._gains[role.voice] = gain_to_level(chunk.audio, self._rate)
            gain = self._gains.get(role.voice, 1.0) * 10 ** (style.volume_db / 20)
            yield replace(chunk, audio=settle_ends(chunk.audio[None], self._rate)[0] * np.float32(gain))

    def _check_language(self, role: Role, language: str | None) -> None:
        spoken = role.engine.languages(role.voice)
        if role.engine.reads_text and language and spoken and language[:2] not in {s[:2] for s in spoken}:
            self._report.warn(
                f"the voice {role.voice!r} is for {', '.join(spoken)}; text in {language} may sound foreign"
            )

    def _silence(self) -> np.ndarray:
        return np.zeros(round(self._gap * self._rate), np.float32)

    def _take(self, chunk: Chunk, said: Utterance, voice: str) -> Take:
        """Return a piece with the pause that is due before it."""
        silence = self._silence()
        self._gap, self._asked = 0.0, False
        offset = len(silence) / self._rate
        phonemes = chunk.phonemes and tuple((s, a + offset, b + offset) for s, a, b in chunk.phonemes)
        samples = np.concatenate([silence, chunk.audio]).astype(np.float32, copy=False)
        return Take(samples, self._rate, said, voice, phonemes)
