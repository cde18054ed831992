"""Which stretches of a sentence are in the other language."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .detection import outweighed, weighed_words
from .languages import ARTICLES, SURE

_RUN = 2.0
"""Evidence that makes a stretch of two words or more a span: one plain word of it, or four that are in names too."""
_GUESS = 1.0
"""Evidence of spelling alone, which makes no span: an abbreviation or a third language looks like anything."""
_FLIP = 2.0
"""Evidence beyond twice the sentence's own that makes all of it the other language: one plain word."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a sentence that are in one language."""

    start: int
    end: int
    language: str


def language_spans(text: str, base: str) -> list[Span]:
    """Return the spans of a sentence, in order, covering all of it; `base` is the language of the script.

    A sentence with far more evidence for the other language is in that one. Inside a sentence a span of the other
    language is a stretch with at least two of its words and none of the sentence's own, or one word that can be
    nothing else (a day, a month). Numbers and names belong to the words around them.
    """
    other = "es" if base == "en" else "en"
    words = list(weighed_words(text))
    fair = outweighed(text, words)
    theirs = sum(weight for _, language, weight in fair if language == other)
    ours = sum(weight for _, language, weight in fair if language == base)
    if theirs > 2 * ours + _FLIP:
        base, other = other, base
    spans: list[Span] = []
    at = 0
    for start, end in _runs(words, base, other):
        if start > at:
            spans.append(Span(at, start, base))
        spans.append(Span(start, end, other))
        at = end
    if at < len(text) or not spans:
        spans.append(Span(at, len(text), base))
    return spans


def _runs(words: list[tuple[re.Match, str, float]], base: str, other: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the stretches in `other`, trimmed to their first and last known word."""
    run: list[tuple[re.Match, float]] = []
    for match, language, weight in [*words, (None, base, 0.0)]:
        if language == other:
            run.append((match, weight))
            continue
        if run:
            sure = any(m[0].lower() in SURE[other] - ARTICLES and w >= _RUN for m, w in run)
            known = len(run) > 1 and max(w for _, w in run) > _GUESS
            if sure or known and sum(w for _, w in run) >= _RUN:
                yield run[0][0].start(), run[-1][0].end()
        run = []
