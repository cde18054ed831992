"""Sentences, fragments and parts: where a script is cut, and nothing of it is dropped.

`split_sentences` cuts a text into sentences (sentencex, corrected for what it gets wrong), `merge_fragments` joins
those under three words to a neighbour, `split_text` cuts what is longer than an engine can take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..core.audio import MissingPackage
from .glossary import Glossary, default_glossary
from .languages import COMMON, FUNCTION_EN, PLAIN
from .numbers import INSTALL
from .short_forms import goes_on

MAX_PART = 400
"""Characters handed to an engine at once. Engines stop near 510 phonemes, and spelled-out text has about one a letter."""
MIN_WORDS = 3
"""Sentences with fewer words are joined to a neighbour: on their own they lose their melody and their attack."""

_SENTENCE_END = re.compile(r"(?:\w{3,}|[)\]\"'»”’])[.!?…。！？।؟]+[)\]\"'»”’]*(?=\s)|[。！？।](?=\S)")
_CLAUSE_END = re.compile(r"[,;:–—](?=\s)|[、，；：](?=\S)")
TAG = re.compile(r"\[[^\[\]\n]*\]")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*|\n(?=[ \t]*(?:[-*•–—]\s|\d{1,2}[.)]\s))")
_CONTINUES = {
    "en": r"(?:Eastern|Central|Mountain|Pacific|ET|EST|EDT|PT|PST|PDT|CT|GMT|UTC|BST|CET|local)\b",
    "es": r"(?:hora|en|y|del?|GMT)\b",
}
_MERIDIEM = re.compile(r"\b[ap]\.\s?m\.\s*$", re.IGNORECASE)
_ABBREVIATED = re.compile(
    r"(?:\b(?:[Aa]pprox|[Aa]prox|[Aa]pt|Amb|Adm|Cpl|Det|Insp|Sec|Qtr|Ch|ch|Prop|Ft|Mt|incl|Para|para|vis|[Ee]xt|[Ff]ig|ss|[Tt]emp|núms|Núms|ene|feb|mar|abr|jun|jul|ago|sep|oct|nov|dic|lun|mié|jue|vie|sáb|dom|Excm[oa]|Ilm[oa]|dept|est|incl|ca|cf|Fig|Nos|Vol|vol|Ed|pp|núm|Núm|pág|págs|arts?|Arts?|apdo|Apdo|cap|Gral|Lic|Ing|Dña"
    r"|Gob|Dip|Cnel|Avda|avda|ctra|tel|Tel|Uds?|Vds?|Sto|Sta|Mons|EE|UU|JJ|CC|FF|RR|DD|HH|SS|MM|AA|OO|p|ej|Jan|Feb|Mar|Apr|Aug|Sept?"
    r"|Oct|Nov|Dec|Mon|Tues?|Wed|Thurs?|Fri|Sat|Sun|n|[A-ZÁÉÍÓÚÑ])\.)[ºª]?\s*$"
)
_ANSWER = re.compile(
    r"(?<=(?<!\w)[Nn]o\.)(?=\s+[^\W\d_a-záéíóúñü]|\s+[¿¡])"
    r"|(?:(?<=\bsaid no\.)|(?<=\bsays no\.)|(?<=\bis no\.)|(?<=\bwas no\.)|(?<=\bvoted no\.)|(?<=\bdijo no\.))(?=\s+\d)"
)
"""After the answer "No.", which sentencex takes for the short form of "number"."""
_LOWER = re.compile(r"\s*[\"'“‘«(]?[^\W\d_A-ZÁÉÍÓÚÑÜ¿¡]")


def _segment(language: str, text: str) -> list[str]:
    try:
        import sentencex
    except ImportError as e:
        raise MissingPackage(f"cutting a text into sentences needs the extra 'tts' ({e}): {INSTALL}") from e
    module: Any = sentencex
    return [s for s in module.segment(language, text) if s]


def split_sentences(
    text: str, language: str = "en", glossary: Glossary | None = None
) -> Iterator[tuple[str, bool]]:
    """Yield (sentence, ends its paragraph); joined by spaces the sentences hold all of `text` but white space.

    The short forms of the glossary (the pack's own by default) end no sentence in front of a name or a number.

    A blank line or a list item ends a sentence whether it has a full stop or not; a single new line does not.
    Tags ([pause:0.5]) do not end one either and stay with the sentence they stand in front of or inside.
    """
    short = frozenset((glossary or default_glossary()).abbreviations[language])
    for paragraph in _PARAGRAPH.split(text):
        sentences = list(_sentences(paragraph, language, short))
        for i, sentence in enumerate(sentences):
            yield sentence, i == len(sentences) - 1


def _sentences(paragraph: str, language: str, short: frozenset[str]) -> Iterator[str]:
    hidden = TAG.sub(lambda m: "\ufffc" * len(m[0]), paragraph)
    held, at = "", 0
    for piece in (
        p
        for s in _segment(language, hidden)
        for part in _ANSWER.split(s)
        for over in _OVER.split(part)
        for p in _more_ends(over, language, short)
    ):
        piece, at = paragraph[at : at + len(piece)], at + len(piece)
        if held and not _continues(held, piece, language, short):
            closing = _CLOSING.match(piece)[0]
            yield _one_line(held + closing)
            held, piece = "", piece[len(closing) :]
        held += piece
    if held.strip():
        yield _one_line(held)


_CLOSING = re.compile(r"(?:\s*\[/[^\[\]\n]*\])*")


def _one_line(text: str) -> str:
    """Return `text` with single spaces, but for those in tags: a file may have two in its name."""
    return re.sub(rf"({TAG.pattern})|\s+", lambda m: m[1] or " ", text).strip()


_OVER = re.compile(
    r"(?<=\b[Ee]tc\.)(?=\s+[A-ZÁÉÍÓÚÑ¿¡])|(?<=\b[ad]\. C\.)(?=\s+[A-ZÁÉÍÓÚÑ¿¡])|(?<=\b[ad]\.C\.)(?=\s+[A-ZÁÉÍÓÚÑ¿¡])"
    r"|(?:(?<=[A-Z]\.[A-Z]\.)|(?<=\b(?:UU|OO|AA|HH|MM|CC)\.))(?=\s+[A-ZÁÉÍÓÚÑ][a-záéíóúñ]*\s+[a-záéíóúñ])"
)
"""After a short form that may end a sentence; sentencex takes it for one that never does."""


def _ends_with_short_form(before: str, after: str, language: str) -> bool:
    """Return whether a sentence ends with a short form: in Washington, D.C. The city slept; in EE. UU. El año."""
    if re.search(r"\b(?:[Ee]tc|[ad]\.\s?C)\.$", before):
        return bool(re.match(r"\s*[A-ZÁÉÍÓÚÑ¿¡]", after)) and not re.match(r"\s*C\.", after)
    if not re.search(r"(?:[A-Z]\.[A-Z]|\b(?:UU|OO|AA|HH|MM|CC))\.$", before):
        return False
    word = re.match(r"\s*([A-ZÁÉÍÓÚÑ][a-záéíóúñ]*)\s+[a-záéíóúñ]", after)
    return word is not None and word[1].lower() in COMMON[language] | FUNCTION_EN


def _more_ends(piece: str, language: str, short: frozenset[str]) -> Iterator[str]:
    """Yield a piece of sentencex cut where a short form ends a sentence that it took for one."""
    at = 0
    for stop in re.finditer(r"(?<=\w)\.(?=\s+[A-ZÁÉÍÓÚÑ¿¡])", piece):
        before, after = piece[max(at, stop.end() - 40) : stop.end()], piece[stop.end() : stop.end() + 40]
        if goes_on(before, after, language, short) is False:
            yield piece[at : stop.end()]
            at = stop.end()
    yield piece[at:]


def _continues(before: str, after: str, language: str, short: frozenset[str]) -> bool:
    """Return whether a cut of sentencex is inside a sentence."""
    bare, rest = TAG.sub("", before).rstrip(), TAG.sub("", after)
    if not re.search(r"\w", bare) or not re.search(r"\w", rest):
        return True  # only marks, tags or emoji: nothing to say by itself
    if re.match(r"[A-ZÁÉÍÓÚÑ]\.", rest) and re.search(r"[A-ZÁÉÍÓÚÑ]\.$", bare):  # D-N.Y.
        return True
    if _ends_with_short_form(bare, rest, language):
        return False
    if re.search(r"\b[ad]\.\s*$", bare) and re.match(r"\s*C\.", rest):  # a. C., d. C.
        return True
    on = goes_on(bare, rest, language, short)
    if on is not None:
        return on
    if _MERIDIEM.search(bare):
        return bool(re.match(rf"\s*{_CONTINUES[language]}", rest)) or bool(_LOWER.match(rest))
    if _ABBREVIATED.search(bare):
        if re.search(r"(?<!\w)[A-ZÁÉÍÓÚÑ](?:-[A-ZÁÉÍÓÚÑ])+\.\s*$", bare):  # at three P-M. She left.
            return bool(_LOWER.match(rest))
        if not re.search(r"(?<![\w.])[A-ZÁÉÍÓÚÑ]\.\s*$", bare):
            return True
        word = re.match(r"\s*([^\W\d_]+)", rest)  # J. Smith, but: Plan B. It failed.
        return word is None or word[1].lower() not in PLAIN[language]
    if re.search(r"(?:[A-Z]\.){2,}$", bare):  # U.S. troops, but: in the U.S. He left.
        return bool(_LOWER.match(rest))
    return bool(re.search(r"[.…]$", bare)) and bool(_LOWER.match(rest))


def count_words(text: str) -> int:
    """Return the number of words, tags not counted."""
    return sum(bool(re.search(r"\w", w)) for w in TAG.sub(" ", text).split())


def end_of(text: str, n: int = 20) -> str:
    """Return the last words of `text`, about `n` characters of them: no word and no tag is cut."""
    return "".join(_some(_PIECE.findall(text)[::-1], n)[::-1]).strip()


def start_of(text: str, n: int = 20) -> str:
    """Return the first words of `text`, about `n` characters of them: no word and no tag is cut."""
    return "".join(_some(_PIECE.findall(text), n)).strip()


def _some(pieces: list[str], n: int) -> list[str]:
    """Return the first pieces, of `n` characters together, or the first word if it is longer."""
    length, count = 0, 0
    for piece in pieces:
        length += len(piece)
        if length > n and "".join(pieces[:count]).strip():
            break
        count += 1
    return pieces[:count]


_PIECE = re.compile(rf"{TAG.pattern}|\s+|(?:(?!{TAG.pattern})\S)+")


def split_text(text: str, limit: int = MAX_PART) -> Iterator[str]:
    """Yield `text` in parts of at most `limit` characters; joined by spaces they hold every word of it.

    Cut after a sentence if one ends in reach, else after a clause, else between words; a longer "word"
    is cut where it reaches the limit.
    """
    text = text.strip()
    while len(text) > limit:
        head = text[: limit + 1]
        ends = [m.end() for m in _SENTENCE_END.finditer(head) if m.end() <= limit] or [
            m.end() for m in _CLAUSE_END.finditer(head) if m.end() <= limit
        ]
        at = ends[-1] if ends else head.rfind(" ")
        at = at if at > 0 else limit
        yield text[:at].rstrip()
        text = text[at:].lstrip()
    if text:
        yield text
