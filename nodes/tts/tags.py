"""Inline tags: what a script says about how it is spoken.

| tag | effect |
|---|---|
| [pause], [pause:0.5], [pause:300ms] | silence, 0.05..10 s (default 0.5) |
| [rate:0.9] ... [/rate] | pace 0.5..2; also slow (0.85), fast (1.15) |
| [pitch:+2] ... [/pitch] | semitones -12..12; also low (-2), high (+2) |
| [volume:-3] ... [/volume] | dB -30..12; also soft (-6), loud (+4) |
| [emphasis] ... [/emphasis] | rate 0.9, pitch +1, volume +2 together; :strong doubles it, :reduced takes back |
| [speaker:Anna] | what follows is Anna's, until the next one; [/speaker] gives back to the narrator |
| [lang:es] ... [/lang] | language of a span, for the text rules and the voice |
| [sfx:door.wav], [sfx:door.wav:-6] | a sound from the input folder, with a gain in dB |

A tag with a colon or a closing tag that is not in the table, or a bracketed word that is nearly a tag's name, raises
ValueError: it is found before anything is rendered, and a pause that silently is none, or a tag read aloud
on air, costs more than a second start. Other brackets ([sic]) are text; `TagReader.warnings` names them.
The text rules leave out stage directions ([LIVE SHOT], [applause]) before: see stage_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from .split import MAX_PART, TAG, split_text

DEFAULT_PAUSE_S = 0.5
PAUSE_S, RATE, PITCH, VOLUME_DB = (0.05, 10.0), (0.5, 2.0), (-12.0, 12.0), (-30.0, 12.0)
MAX_DEPTH = 16
"""Tags open at once; a script never needs as many."""
NARRATOR = ""
_WORDS = {
    "rate": {"slow": 0.85, "fast": 1.15, "normal": 1.0},
    "pitch": {"low": -2.0, "high": 2.0, "normal": 0.0},
    "volume": {"soft": -6.0, "loud": 4.0, "normal": 0.0},
}
_EMPHASIS = {
    "moderate": (0.9, 1.0, 2.0),
    "strong": (0.8, 2.0, 4.0),
    "reduced": (1.1, -1.0, -3.0),
}
_SPANS = ("rate", "pitch", "volume", "emphasis", "lang")
NAMES = ("pause", *_SPANS, "speaker", "sfx")
_FORM = re.compile(r"\[(?P<close>/)?(?P<name>[A-Za-z_]+)(?::(?P<value>[^\[\]\n]*))?\]")


@dataclass(frozen=True)
class Style:
    """How a stretch is spoken: pace factor, semitones, dB, speaker ("" is the narrator), language (None: the text's)."""

    rate: float = 1.0
    pitch: float = 0.0
    volume_db: float = 0.0
    speaker: str = NARRATOR
    language: str | None = None


@dataclass(frozen=True)
class Utterance:
    """Text in one style. `joined` says that it goes on where the one before stopped, inside a sentence."""

    text: str
    style: Style = field(default_factory=Style)
    joined: bool = False


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Sound:
    """A sound by name, as written; whoever plays it finds the file and checks that it lies in the input folder."""

    name: str
    gain_db: float = 0.0


Event = Utterance | Pause | Sound


def is_tag(text: str) -> bool:
    """Return whether a bracketed text is a tag; ValueError if it only looks like one."""
    match = _FORM.fullmatch(text)
    if match is None:
        if (
            ":" in text
            and (start := re.match(r"\[/?\s*([A-Za-z_]+)\s*:", text))
            and start[1].lower() in NAMES
        ):
            raise ValueError(f"tag {text} has spaces in its name; write [{start[1].lower()}:...]")
        return False
    name = match["name"].lower()
    if name in NAMES:
        return True
    near = [n for n in get_close_matches(name, NAMES, 1, 0.8) if abs(len(n) - len(name)) < 2]
    if match["close"] or match["value"] is not None or near:
        hint = f"did you mean [{near[0]}]? " if near else ""
        raise ValueError(
            f"tag {text} is not known; {hint}The tags are {', '.join(NAMES)}. "
            "Text that is to be said goes in round brackets"
        )
    return False


def check_tags(text: str) -> list[str]:
    """Return the warnings of a script; ValueError for the first tag that is unknown, out of range or not open."""
    return read_tags(text)[1]


def tag_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every tag in `text`; ValueError as `is_tag`."""
    return [m.span() for m in TAG.finditer(text) if is_tag(m[0])]


def unobeyed(text: str) -> str | None:
    """Return a warning about the tags of a text that is spoken without obeying them, None if it has none."""
    found = list(dict.fromkeys(m[0] for m in TAG.finditer(text) if _names_a_tag(m[0])))
    if not found:
        return None
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"tags are read as words here: {' '.join(found[:3])}{more}; to obey them set normalize (command line: "
        "--normalize, or --tags without the text rules)"
    )


def _names_a_tag(text: str) -> bool:
    match = _FORM.fullmatch(text)
    return match is not None and match["name"].lower() in NAMES


class TagReader:
    """Reads a script piece by piece, sentences as they come, and keeps what is open between them.

    Fed whole or sentence by sentence it gives the same words in the same styles, pauses and sounds between them; an
    utterance ends where its feed does, and `joined` never reaches over it.
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, Style]] = []
        self._style = Style()
        self.warnings: list[str] = []

    def feed(self, text: str) -> Iterator[Event]:
        """Yield the events of `text`: utterances, pauses and sounds in order."""
        at, joined = 0, False
        for match in TAG.finditer(text):
            if not is_tag(match[0]):
                self._warn(f"{match[0]} is not a tag: its words are said")
                continue
            said = self._said(text[at : match.start()], joined)
            if said is not None:
                yield said
                joined = not re.search(r"[.!?…][\"'»”’)]*\s*$", said.text)
            at = match.end()
            event = self._take(match[0])
            if event is not None:
                yield event
                joined = False
        said = self._said(text[at:], joined)
        if said is not None:
            yield said

    def close(self) -> None:
        """Note the tags that were never closed; they hold to the end."""
        for name, _ in self._open:
            self._warn(f"[{name}] is not closed: it holds to the end of the text")
        self._open.clear()

    def _said(self, text: str, joined: bool) -> Utterance | None:
        text = " ".join(text.replace("[", " ").replace("]", " ").split())
        return Utterance(text, self._style, joined) if re.search(r"\w", text) else None

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def _take(self, tag: str) -> Event | None:
        match = _FORM.fullmatch(tag)
        name, value = match["name"].lower(), (match["value"] or "").strip()
        if match["close"]:
            self._shut(name, tag)
            return None
        if name == "pause":
            return Pause(_seconds(value, tag))
        if name == "sfx":
            return _sound(value, tag)
        if name == "speaker":
            if not value:
                raise ValueError(
                    f"tag {tag} needs a name: [speaker:Anna]; [/speaker] gives back to the narrator"
                )
            self._style = replace(self._style, speaker=value)
            return None
        if len(self._open) >= MAX_DEPTH:
            raise ValueError(f"tag {tag}: {MAX_DEPTH} tags are open already; close them first")
        self._open.append((name, self._style))
        self._style = _styled(self._style, name, value, tag)
        return None

    def _shut(self, name: str, tag: str) -> None:
        if name in ("pause", "sfx"):
            raise ValueError(f"tag {tag}: [{name}] stands alone and is not closed")
        if name == "speaker":
            self._style = replace(self._style, speaker=NARRATOR)
            return
        if not self._open or self._open[-1][0] != name:
            inner = f"; close [{self._open[-1][0]}] first" if any(n == name for n, _ in self._open) else ""
            raise ValueError(f"tag {tag} closes what is not open{inner or f'; put [{name}:...] before it'}")
        before = self._open.pop()[1]
        self._style = replace(before, speaker=self._style.speaker)


def read_tags(sentences: str | Iterable[str]) -> tuple[list[Event], list[str]]:
    """Return (events, warnings) of a script, whole or as its sentences."""
    reader = TagReader()
    events = [e for s in ([sentences] if isinstance(sentences, str) else sentences) for e in reader.feed(s)]
    reader.close()
    return events, reader.warnings


def fit_engine(events: Iterable[Event], limit: int = MAX_PART) -> Iterator[Event]:
    """Yield the events with utterances of more than `limit` characters cut at word borders, nothing dropped."""
    for event in events:
        if not isinstance(event, Utterance):
            yield event
            continue
        for i, part in enumerate(split_text(event.text, limit)):
            yield replace(event, text=part, joined=event.joined or i > 0)


def _number(value: str, limits: tuple[float, float], unit: str, tag: str) -> float:
    if not re.fullmatch(r"[-+−]?\d{1,6}(?:[.,]\d{1,6})?", value):
        raise ValueError(
            f"tag {tag}: {value!r} is not a number; give {unit} between {limits[0]:g} and {limits[1]:g}"
        )
    number = float(value.replace(",", ".").replace("−", "-"))
    if not limits[0] <= number <= limits[1]:
        raise ValueError(f"tag {tag}: {value} is outside {limits[0]:g}..{limits[1]:g} {unit}")
    return number


def _seconds(value: str, tag: str) -> float:
    if not value:
        return DEFAULT_PAUSE_S
    thousandths = value.lower().endswith("ms")
    bare = re.sub(r"\s*m?s$", "", value.lower())
    if not thousandths:
        return _number(bare, PAUSE_S, "seconds", tag)
    return _number(bare, (PAUSE_S[0] * 1000, PAUSE_S[1] * 1000), "milliseconds", tag) / 1000


def _sound(value: str, tag: str) -> Sound:
    name, colon, gain = value.rpartition(":")
    if not colon or not re.fullmatch(r"[-+−]?\d{1,6}(?:[.,]\d{1,6})?", gain.strip()):
        name, gain = value, ""
    name = name.strip()
    if not name:
        raise ValueError(f"tag {tag} needs the name of a sound file: [sfx:door.wav]")
    return Sound(name, _number(gain.strip(), VOLUME_DB, "dB", tag) if gain else 0.0)


def _styled(style: Style, name: str, value: str, tag: str) -> Style:
    """Return `style` inside one more tag. Rates multiply, pitch and volume add up, within their limits."""
    if name == "lang":
        language = value.lower()
        if not re.fullmatch(r"[a-z]{2,3}(?:-[a-z0-9]{2,4})?", language):
            raise ValueError(f"tag {tag} needs a language such as en or es: [lang:es]")
        return replace(style, language=language)
    if name == "emphasis":
        level = value.lower() or "moderate"
        if level not in _EMPHASIS:
            raise ValueError(f"tag {tag}: {value!r} is no emphasis; use {', '.join(_EMPHASIS)}")
        rate, pitch, volume = _EMPHASIS[level]
    else:
        limits, unit = {"rate": (RATE, "times"), "pitch": (PITCH, "semitones"), "volume": (VOLUME_DB, "dB")}[
            name
        ]
        number = _WORDS[name].get(value.lower())
        if number is None:
            bare = re.sub(r"\s*(?:st|semitones?|db|x)$", "", value, flags=re.IGNORECASE)
            if name == "rate" and bare.endswith("%"):
                bare = str(_number(bare[:-1], (RATE[0] * 100, RATE[1] * 100), "percent", tag) / 100)
            number = _number(bare, limits, unit, tag)
        rate, pitch, volume = (
            (number, 0, 0) if name == "rate" else (1, number, 0) if name == "pitch" else (1, 0, number)
        )
    return replace(
        style,
        rate=_within(style.rate * rate, RATE),
        pitch=_within(style.pitch + pitch, PITCH),
        volume_db=_within(style.volume_db + volume, VOLUME_DB),
    )


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
