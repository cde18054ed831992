"""A sentence as it is said: tidied, joined to a neighbour when it is a fragment, and the marks it must have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .languages import ARTICLES, COMMON, PLAIN, SURE
from .rules import Change
from .split import MAX_PART, MIN_WORDS, TAG, count_words, end_of, start_of


@dataclass(frozen=True)
class Sentence:
    """One sentence: as written, as said, its language, what changed, and whether a paragraph ends with it."""

    source: str
    text: str
    language: str
    changes: tuple[Change, ...] = ()
    dropped: tuple[str, ...] = ()
    ends_paragraph: bool = False


def with_stop(text: str) -> str:
    """Return a headline with a full stop: engines do not stop at a new line."""
    tail = re.search(rf"(?:\s*{TAG.pattern})*\s*$", text)
    return f"{text[: tail.start()]}.{tail[0]}"


def tidy(text: str) -> str:
    """Return `text` with single spaces and no stray marks; tags stay as they are."""
    tags = TAG.findall(text)
    text = TAG.sub("\ufffc", text)
    for pattern, new in _TIDY:
        text = pattern.sub(new, text)
    parts = iter(tags)
    return re.sub("\ufffc", lambda _: next(parts), text).strip()


_TIDY = [
    (re.compile(p), new)
    for p, new in (
        (r"\s+", " "),
        (r"\s+([,.;:!?])", r"\1"),
        (r"\.(?:\s*,)+", ","),
        (r"([;:!?,])(?:\s*,)+", r"\1"),
        (r",+\s*([.;:!?])", r"\1"),
        (r"([!?])\.(?=\s|$)", r"\1"),
        (r"(?:—\s*)?,\s*—|—\s*,", "—"),
        (r"^([\s\ufffc]*)[,;:.—]+\s*", r"\1"),
        (r"([¿¡])\s+", r"\1"),
        (r"(?<=[\w.!?])\s*,\s*$", ""),
    )
]


def with_capital(text: str, source: str, cut: bool = False) -> str:
    """Return a full sentence with a capital where its first word was a number, a sign or what was left out (cut)."""
    first = re.search(r"[^\W_]", TAG.sub(lambda m: " " * len(m[0]), text))
    if first is None or not first[0].islower() or not re.search(r"[.!?…][\"'»”’)]*\s*$", TAG.sub("", source)):
        return text
    start = re.search(r"[^\s\"'“‘«(¿¡—–*_-]", TAG.sub("", source))
    written = start and re.match(r"\S+", TAG.sub("", source)[start.start() :])[0]
    if (
        start is None
        or start[0].isalpha()
        and not (cut and start[0].isupper() or re.match(r"[A-Z]{1,3}[$€]", written))
    ):
        return text
    return text[: first.start()] + first[0].upper() + text[first.end() :]


def merge_fragments(sentences: Iterator[Sentence]) -> Iterator[Sentence]:
    """Yield the sentences, those under three words joined to a neighbour and silent ones to the one before."""
    held: Sentence | None = None
    for sentence in sentences:
        if held is None:
            held = sentence
        elif not has_words(held) or not has_words(sentence):
            held = _silent(held, sentence)
        elif _belong(held, sentence):
            held = _joined(held, sentence)
        else:
            yield held
            held = sentence
    if held is not None and has_words(held):
        yield held


def has_words(sentence: Sentence) -> bool:
    """Return whether there is anything to say in a sentence besides its tags."""
    return bool(re.search(r"\w", TAG.sub("", sentence.text)))


def _silent(first: Sentence, second: Sentence) -> Sentence:
    """Return two sentences of which one only has tags, or nothing."""
    return replace(
        first,
        source=f"{first.source} {second.source}",
        text=f"{first.text} {second.text}".strip(),
        language=second.language if has_words(second) else first.language,
        changes=first.changes + second.changes,
        dropped=first.dropped + second.dropped,
        ends_paragraph=second.ends_paragraph
        if has_words(second)
        else first.ends_paragraph or second.ends_paragraph,
    )


def _belong(first: Sentence, second: Sentence) -> bool:
    if first.ends_paragraph or first.language != second.language:
        return False
    if first.text.endswith("]") or second.text.startswith("["):  # a pause or a speaker between them is meant
        return False
    if len(first.text) + len(second.text) >= MAX_PART:
        return False
    short = count_words(second.text) < MIN_WORDS and second.ends_paragraph
    return count_words(first.text) < MIN_WORDS or short


_OPENING = {
    "en": frozenset(
        """read watch listen stay see visit call meanwhile still however also next later earlier elsewhere officials police
        details updates tune join follow click look wait come go find learn check thanks thank welcome sorry here there
        another every each many most several few both rain snow winds skies temperatures highs lows neither either once twice today tonight tomorrow yesterday""".split()
    ),
    "es": frozenset(
        """buenas buenos buen buena gracias lea leer vea ver escuche siga sigue sigan además mientras también después luego
        entonces así aún todavía hoy ayer mañana feliz felices bienvenidos bienvenidas hasta adiós hola atención quédese
        quédense volvemos seguimos ahora aquí allí otro otra cada varios varias muchos muchas todo todos toda todas""".split()
    ),
}
"""Words that start a sentence and are no names."""
_DAYS_EN = SURE["en"] - ARTICLES - {"breaking", "yesterday", "tomorrow"} | {"i", "may", "march", "will"}


def _small(text: str, language: str) -> str:
    """Return what follows a comma without the capital of its first word, but for names, I and capitals."""
    word = re.match(r"[¡¿\"“«‘(—\s]*([^\W\d_]+)(?=\s|[^\w'’-]|$)(?:\s+([^\W\d_]))?", text)
    if word is None or word[1] == word[1].upper() and len(word[1]) > 1:
        return text
    lower = word[1].lower()
    known = PLAIN[language] | _OPENING[language]
    named = (
        language == "en"
        and lower in _DAYS_EN
        or bool(word[2] and word[2].isupper() and lower not in COMMON[language])
    )
    if lower not in known or named:
        return text
    at = word.start(1)
    return text[:at] + text[at].lower() + text[at + 1 :]


def _joined(first: Sentence, second: Sentence) -> Sentence:
    """Return a fragment and its neighbour as one; a full stop between them becomes a comma, other marks stay."""
    left, right = first.text, second.text
    if left.endswith("."):
        left = left[:-1] + ","
        right = _small(right, first.language)
        right = right[:-1] + "." if right.endswith(":") and second.ends_paragraph else right
    changes = (*first.changes, *second.changes)
    if left != first.text:
        before = f"{end_of(first.text)} {start_of(second.text)}"
        after = f"{end_of(left)} {start_of(right)}"
        changes += (Change("fragment", before, after, "fewer than 3 words lose their melody alone"),)
    return replace(
        second,
        source=f"{first.source} {second.source}",
        text=f"{left} {right}",
        changes=changes,
        dropped=first.dropped + second.dropped,
    )
