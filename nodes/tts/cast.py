"""Who speaks in a script: speakers mapped to voices and engines, sounds to clips, all checked before the first word."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..core.audio import AudioClip, mono_blocks
from ..core.report import Report
from . import engines
from .glossary import Glossary
from .languages import LANGUAGES
from .sample_engine import SampleEngine
from .speech_engine import SpeechEngine
from .tags import NARRATOR, Event, Sound, Style, Utterance


@dataclass(frozen=True)
class SpeechOptions:
    """How a script is spoken.

    Args:
        voice: the narrator's, a name of `list_voices`.
        voices: speaker of [speaker:..] -> voice; upper and lower case are the same.
        speed: 0.5..2; 1 is the voices' own pace.
        seed: any integer; other intonations with the voices that draw numbers.
        normalize: apply the text rules (extra tts); else only what cannot be said is taken out.
        language, wording, glossary: of the text rules, see `normalize_text`.
        tags: read the inline tags; else brackets are text.
        sounds: name in [sfx:..] as written -> clip, found and checked by the caller.
        n_changes: changes of the text rules that the report lists, the rest is counted; 0 for none, None for all.
    """

    voice: str
    voices: Mapping[str, str] = field(default_factory=dict)
    speed: float = 1.0
    seed: int = 0
    normalize: bool = True
    language: str = "auto"
    wording: Collection[str] = ()
    glossary: Glossary | None = None
    tags: bool = True
    sounds: Mapping[str, AudioClip] = field(default_factory=dict)
    n_changes: int | None = 20

    def __post_init__(self) -> None:
        low, high = engines.MIN_SPEED, engines.MAX_SPEED
        if not low <= self.speed <= high:
            raise ValueError(f"speed {self.speed} is outside {low}..{high}; 1 is the voices' own pace")


@dataclass(frozen=True)
class Role:
    """A speaker's voice and the engine that has it."""

    voice: str
    engine: SpeechEngine


class Cast:
    """Everyone and everything that is heard in a script, at one sample rate: the highest of the voices in it."""

    def __init__(self, events: list[Event], options: SpeechOptions, roots: Iterable[Path]) -> None:
        said = [e for e in events if isinstance(e, Utterance)]
        speakers = list(dict.fromkeys(e.style.speaker for e in said))
        given = {name.strip().casefold(): voice for name, voice in options.voices.items()}
        given[NARRATOR] = options.voice
        missing = [s for s in speakers if s.casefold() not in given]
        if missing:
            there = ", ".join(repr(n) for n in options.voices) or "none"
            raise ValueError(
                f"no voice for the speaker {missing[0]!r} (speakers with a voice: {there}); give one in Speak Dialogue, on "
                'the command line by --dialogue "A=VOICE,B=VOICE"'
            )
        roots = list(roots)
        voices = dict.fromkeys(given[s.casefold()] for s in speakers)
        roles = {voice: Role(voice, engines.engine_for(voice, roots)) for voice in voices}
        self._roles = {s: roles[given[s.casefold()]] for s in speakers}
        self.roles = tuple(roles.values())
        self._words = {voice: [] for voice in voices}
        for event in said:
            self._words[given[event.style.speaker.casefold()]] += event.text.split()
        names = dict.fromkeys(e.name for e in events if isinstance(e, Sound))
        lost = [n for n in names if n not in options.sounds]
        if lost:
            raise ValueError(f"no sound {lost[0]!r} for [sfx:{lost[0]}]; put the file in the input folder")
        self._sounds = {name: options.sounds[name] for name in names}
        self.sample_rate = max((r.engine.sample_rate(r.voice) for r in self.roles), default=0)

    @property
    def language(self) -> str:
        """The language that all voices share, "en" if they share none: for a text that gives no sign of its own."""
        spoken = {language[:2] for r in self.roles for language in r.engine.languages(r.voice)}
        return spoken.pop() if len(spoken) == 1 and spoken <= set(LANGUAGES) else "en"

    @property
    def reads_text(self) -> bool:
        """Whether anyone says the script's own words."""
        return any(role.engine.reads_text for role in self.roles)

    def role(self, style: Style) -> Role:
        return self._roles[style.speaker]

    def sound(self, name: str, report: Report) -> np.ndarray:
        """Return a sound as float32 (n,) at the cast's rate; the report is told what is wrong with it."""
        return np.concatenate(list(mono_blocks(self._sounds[name], self.sample_rate, report)))

    def tell(self, report: Report, options: SpeechOptions) -> None:
        """Note who speaks, and which of the wishes a voice cannot follow."""
        report.fact("voices", ", ".join(f"{s or 'narrator'}: {r.voice}" for s, r in self._roles.items()))
        for role in self.roles:
            engine = role.engine
            if engine.reads_text and not engine.seeded and options.seed:
                report.warn(f"the voice {role.voice!r} has one reading: seed {options.seed} has no effect")
            if isinstance(engine, SampleEngine) and self._words[role.voice] != engine.sentence().split():
                report.warn(f"the voice {role.voice!r} always says {engine.sentence()!r}")
            if not engine.reads_text and options.speed != 1:
                report.warn(f"the voice {role.voice!r} is a recording: speed {options.speed:g} has no effect")
