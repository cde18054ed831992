"""Every line of the tables as a broadcaster would say it, English and Spanish; and a line that is said stays as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("unicode_rbnf", reason="the extra `tts` is not installed")
pytest.importorskip("sentencex", reason="the extra `tts` is not installed")

from talkinghead.nodes.tts.text import normalize_text

DATA = Path(__file__).parent / "data"


def rows(language: str) -> list[tuple[str, str]]:
    lines = (DATA / f"text_{language}.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if not line.startswith("##")]


TABLE = [(language, *row) for language in ("en", "es", "en-GB", "es-MX") for row in rows(language)]


def test_the_tables_are_long_and_every_line_once():
    for language in ("en", "es"):
        sources = [source for source, _ in rows(language)]
        assert len(sources) >= 200
        assert len(set(sources)) == len(sources)


@pytest.mark.parametrize(("language", "source", "said"), TABLE, ids=[f"{a}-{b}" for a, b, _ in TABLE])
def test_line(language, source, said):
    done = normalize_text(source, language)
    assert done.text == said
    assert not re.search(r"[\d$€£%&°@]", said)
    assert normalize_text(said, language).text == said, "what is said already changes"


@pytest.mark.parametrize("language", ["en", "es"])
def test_every_difference_in_words_is_among_the_changes(language):
    for source, said in rows(language):
        done = normalize_text(source, language)
        words = set(re.findall(r"\w+", said.lower())) - set(re.findall(r"\w+", source.lower()))
        listed = set(re.findall(r"\w+", " ".join(c.after for c in done.changes).lower()))
        assert words <= listed, f"{source!r}: {words - listed} came from nowhere"
        for change in done.changes:
            assert change.rule
            assert change.reason
            assert change.before != change.after
