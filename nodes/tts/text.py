"""`normalize_text` and `stream_text`: a script as a broadcaster would say it, in words, with a list of what changed.

The eight broadcast rules: U1 decimals and percent, U2 currency and units after the number, U3 indices, U4 acronyms
and initialisms, U8 breaths are always on; U5 (lone exclamations), U6 (quotations) and U7 (a noun before foreign
brands) change the wording and are asked for in `wording`. Inline tags (tags.py) pass through as they are. English
and Spanish; spans of the other language inside a text follow that language's rules.

A text goes sentence by sentence: `stream_text` yields each as soon as it is known, and the whole is their sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ..core.report import Report
from .amount_rules import money_rules, percent_rules, unit_rules
from .code_rules import code_rules
from .date_rules import date_rules
from .degree_rules import degree_rules
from .detection import language_of
from .fraction_rules import fraction_rules, power_rules
from .glossary import Glossary, default_glossary
from .house_rules import house_rules
from .languages import COMMON, Locale, find_locale, sibling
from .market_rules import market_rules, scaled_units
from .name_rules import abbreviation_rules, acronym_rules, brand_rules, fixed_rules, index_rules
from .number_rules import between_rules, plain_rules
from .ordinal_rules import order_rules, roman_rules
from .place_rules import party_rules, street_rules
from .rules import Change, Draft, Rule
from .sentences import Sentence, merge_fragments, tidy, with_capital, with_stop
from .short_number_rules import short_number_rules
from .spans import Span, language_spans
from .split import TAG, split_sentences
from .sport_rules import sport_rules
from .stage_rules import stage_rules, without_directions
from .symbol_rules import dropped_rules, punctuation_rules, symbol_rules
from .tags import check_tags, tag_spans
from .telephone_rules import telephone_rules
from .time_rules import time_rules
from .web_rules import address_rules
from .wording_rules import onset_rules, pace, quote_rules

WORDING = ("U5", "U6", "U7")
_SHOWN = 10
_Stage = Callable[[Locale], "Iterable[Rule]"]


@dataclass(frozen=True)
class NormalizedText:
    """A script as it is said. `text` goes to a voice, `diff()` to the reader."""

    sentences: tuple[Sentence, ...]
    language: str

    @property
    def text(self) -> str:
        """The sentences, with a blank line between paragraphs."""
        parts = [s.text + ("\n\n" if s.ends_paragraph else " ") for s in self.sentences]
        return "".join(parts).strip()

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(c for s in self.sentences for c in s.changes)

    @property
    def dropped(self) -> tuple[str, ...]:
        """What is not spoken: long addresses, stage directions, emoji, control characters."""
        return tuple(d for s in self.sentences for d in s.dropped)

    def diff(self) -> str:
        """Return one line per change, in reading order."""
        return "\n".join(str(c) for c in self.changes)


def normalize_text(
    text: str,
    language: str = "auto",
    wording: Collection[str] = (),
    glossary: Glossary | None = None,
    report: Report | None = None,
    mark_languages: bool = False,
    poll: Callable[[], object] = lambda: None,
) -> NormalizedText:
    """Return `text` in words.

    language: "en", "es", with a country if it matters ("en-GB": day first; "es-MX": decimal point), or "auto".
    wording: the rules that change words, of "U5", "U6", "U7". report is told which language "auto"
    took, with a warning for a weak guess, and what is not spoken.
    mark_languages puts [lang:..] tags around the spans of the other language, for a script with a voice for each.
    poll is called before each sentence: what it raises ends the work.
    Raises ValueError for a text without a word to say, an unknown language or rule, or a wrong tag, and
    MissingPackage without unicode-rbnf and sentencex.
    """
    locale = find_locale(language_of(text, language, report))
    made = []
    for sentence in stream_text(text, locale.tag, wording, glossary, mark_languages):
        poll()
        made.append(sentence)
    sentences = tuple(made)
    done = NormalizedText(sentences, locale.language)
    if report is not None:
        for warning in check_tags(without_directions(text, glossary or default_glossary())):
            report.warn(warning)
        if done.dropped:
            more = " ..." if len(done.dropped) > _SHOWN else ""
            report.warn(f"not spoken: {' '.join(done.dropped[:_SHOWN])}{more}")
    return done


def stream_text(
    text: str,
    language: str = "auto",
    wording: Collection[str] = (),
    glossary: Glossary | None = None,
    mark_languages: bool = False,
) -> Iterator[Sentence]:
    """Yield the sentences of `normalize_text` one by one, each when its own words are done.

    Tags and arguments are checked before the first one, so no error comes late.
    """
    if unknown := sorted(set(wording) - set(WORDING)):
        raise ValueError(f"{unknown[0]!r} is no rule that can be asked for; choose of {', '.join(WORDING)}")
    known, text = glossary or default_glossary(), _bounded(text)
    check_tags(without_directions(text, known))
    if not re.search(r"\w", TAG.sub(" ", text)):
        raise _nothing(text)
    ways = _Ways(
        find_locale(language_of(text, language)),
        frozenset(wording),
        known,
        mark_languages,
    )
    return _stream(text, ways)


_MAX_SENTENCE = 4000
"""Characters that the rules see at once: some cost the square of it, 50,000 of one sentence took 25 s."""
_REPEATED = re.compile(r"([^\w\s\[\]])(?:[ \t]?\1){5,}")


def _bounded(text: str) -> str:
    """Return `text` without what is no text (halves of UTF-16 pairs), rows of one mark (-----) cut to five of it."""
    return _REPEATED.sub(r"\1\1\1\1\1", re.sub("[\ud800-\udfff]", "\x1a", text))


def _parts(sentence: str) -> Iterator[tuple[str, bool]]:
    """Yield parts of at most _MAX_SENTENCE characters, cut between words and outside of tags, and whether it is the last."""
    while len(sentence) > _MAX_SENTENCE:
        at = sentence.rfind(" ", 1, _MAX_SENTENCE) + 1 or _MAX_SENTENCE
        at = (
            next((t.start() for t in TAG.finditer(sentence) if t.start() < at < t.end()), at) or _MAX_SENTENCE
        )
        yield sentence[:at], False
        sentence = sentence[at:]
    yield sentence, True


def _nothing(text: str) -> ValueError:
    return ValueError(f"there is nothing to say in {text[:60]!r}; give a text with at least one word")


@dataclass(frozen=True)
class _Ways:
    """How a script is normalised: what is the same for all of its sentences."""

    locale: Locale
    wording: frozenset[str]
    glossary: Glossary
    mark_languages: bool


def _stream(text: str, ways: _Ways) -> Iterator[Sentence]:
    said = False
    for sentence in merge_fragments(_normalized(text, ways)):
        said = True
        paced, breaths = pace(sentence.text, sentence.language)
        yield replace(sentence, text=paced, changes=sentence.changes + breaths)
    if not said:
        raise _nothing(text)


def _normalized(text: str, ways: _Ways) -> Iterator[Sentence]:
    languages: tuple[str, ...] = ()
    sentences = split_sentences(text, ways.locale.language, ways.glossary)
    cut = [(part, ends and last) for source, ends in sentences for part, last in _parts(source)]
    for i, (source, ends) in enumerate(cut):
        done, languages = _normalize_sentence(source, ways, languages)
        if ends and i < len(cut) - 1 and re.search(r"[^\W_]\s*$", TAG.sub("", done.text)):
            done = replace(done, text=with_stop(done.text))
        yield replace(done, ends_paragraph=ends)


def _normalize_sentence(
    source: str, ways: _Ways, languages: tuple[str, ...]
) -> tuple[Sentence, tuple[str, ...]]:
    """Return a sentence in words, and the [lang] tags open at its end; `languages` are those open at its start."""
    locale = ways.locale
    text, changes = source, ()
    spans, after = _spans(text, locale, languages)
    if ways.mark_languages and not languages and not _LANG_TAG.search(text):
        text = _marked(text, spans, locale)
        spans, _ = _spans(text, locale, languages)
    if ways.wording & {"U5", "U6"}:
        text, changes = _apply(text, spans, ways, [lambda at: _wording_rules(at, ways.wording)])
        spans, _ = _spans(text, locale, languages)
    dropped: list[str] = []
    drops = [*stage_rules(ways.glossary, dropped.append), *dropped_rules(dropped.append)]
    stages = [lambda _: drops, lambda at: _rules(at, ways.glossary, "U7" in ways.wording)]
    text, more = _apply(text, spans, ways, stages)
    said = with_capital(tidy(text), source, bool(dropped))
    return Sentence(source, said, _main_language(spans, locale), changes + more, tuple(dropped)), after


def _marked(text: str, spans: list[Span], locale: Locale) -> str:
    """Return `text` with tags around what is not in the language of the script."""
    parts = (text[s.start : s.end] for s in spans)
    return "".join(
        p if s.language == locale.language else f"[lang:{s.language}]{p}[/lang]"
        for s, p in zip(spans, parts, strict=True)
    )


def _apply(text: str, spans: list[Span], ways: _Ways, stages: list[_Stage]) -> tuple[str, tuple[Change, ...]]:
    """Return `text` after the rules of each stage, every span by those of its own language."""
    draft = Draft(text, tag_spans(without_directions(text, ways.glossary)))
    for stage in stages:
        for span in spans:
            if span.language in COMMON:
                for rule in stage(sibling(ways.locale, span.language)):
                    draft.apply(rule, span.start, span.end)
    return draft.result()


@lru_cache(maxsize=16)
def _rules(locale: Locale, glossary: Glossary, nouns: bool) -> tuple[Rule, ...]:
    """Return the rules of a locale; an earlier one has the first claim."""
    return (
        *address_rules(locale),
        *index_rules(locale, glossary),
        *fixed_rules(locale, glossary),
        *brand_rules(locale, glossary, nouns),
        *market_rules(locale),
        *sport_rules(locale),
        *house_rules(locale),
        *street_rules(locale),
        *money_rules(locale),
        *percent_rules(locale),
        *date_rules(locale),
        *time_rules(locale),
        *telephone_rules(locale),
        *short_number_rules(locale),
        scaled_units(locale),
        *degree_rules(locale),
        *unit_rules(locale),
        *fraction_rules(locale),
        *order_rules(locale),
        *roman_rules(locale, glossary),
        *code_rules(locale, glossary),
        *between_rules(locale),
        *power_rules(locale),
        *plain_rules(locale),
        *(() if locale.is_es else party_rules(glossary)),
        *abbreviation_rules(locale, glossary),
        *acronym_rules(locale, glossary),
        *symbol_rules(locale),
        *punctuation_rules(locale),
    )


@lru_cache(maxsize=16)
def _wording_rules(locale: Locale, wording: frozenset[str]) -> tuple[Rule, ...]:
    return (
        *(onset_rules(locale) if "U5" in wording else ()),
        *(quote_rules(locale) if "U6" in wording else ()),
    )


_LANG_TAG = re.compile(r"\[(?P<close>/)?lang(?::(?P<value>[^\[\]]*))?\]", re.IGNORECASE)


def _spans(text: str, locale: Locale, languages: tuple[str, ...]) -> tuple[list[Span], tuple[str, ...]]:
    """Return the language spans of a sentence, recognised or as [lang] tags say, and the tags open at its end."""
    spans: list[Span] = []

    def add(start: int, end: int) -> None:
        if start == end:
            return
        if languages:
            spans.append(Span(start, end, languages[-1].partition("-")[0].lower()))
        else:
            found = language_spans(text[start:end], locale.language)
            spans.extend(Span(start + s.start, start + s.end, s.language) for s in found)

    at = 0
    for tag in _LANG_TAG.finditer(text):
        add(at, tag.start())
        languages = languages[:-1] if tag["close"] else (*languages, tag["value"].strip())
        at = tag.start()
    add(at, len(text))
    return spans, languages


def _main_language(spans: list[Span], locale: Locale) -> str:
    length: dict[str, int] = {}
    for span in spans:
        if span.language in COMMON:
            length[span.language] = length.get(span.language, 0) + span.end - span.start
    return max(length, key=length.__getitem__) if length else locale.language
