"""Which language a text is taken for: a table of headlines, and what is said when there is little to go by."""

from __future__ import annotations

from pathlib import Path

import pytest

from talkinghead.nodes.core.report import Report
from talkinghead.nodes.tts.detection import detect, language_of
from talkinghead.nodes.tts.spans import language_spans

DATA = Path(__file__).parent / "data" / "headlines.tsv"
HEADLINES = [
    tuple(line.split("\t"))
    for line in DATA.read_text(encoding="utf-8").splitlines()
    if not line.startswith("##")
]
OTHER = {"en": "es", "es": "en"}


def test_the_table_is_long_both_ways():
    languages = [language for language, _ in HEADLINES]
    assert min(languages.count("en"), languages.count("es")) >= 40
    assert len(set(HEADLINES)) == len(HEADLINES)


@pytest.mark.parametrize(("language", "text"), HEADLINES, ids=[text for _, text in HEADLINES])
def test_headline(language, text):
    assert detect(text, OTHER[language]).language == language, "even where the other one is the default"
    assert not [
        s
        for s in language_spans(text, language)
        if s.language != language and any(map(str.isdigit, text[s.start : s.end]))
    ]


@pytest.mark.parametrize("text", ["", "42", "Madrid Barcelona", "José Peña", "CNN", "[pause:0.5]"])
def test_without_evidence_it_is_the_default_and_said_so(text):
    for default in ("en", "es"):
        found = detect(text, default)
        assert found.language == default
        assert not found.sure
        assert {"en": "English", "es": "Spanish"}[default] in found.warning()


def test_the_report_says_what_was_taken_and_how_sure():
    report = Report()
    assert language_of("The market fell today.", "auto", report) == "en"
    assert report.facts["language"].startswith("en (recognised: English ")
    assert not report.warnings
    assert language_of("Zaragoza", "auto", report, "es") == "es"
    assert len(report.warnings) == 1
    report = Report()
    assert language_of("Zaragoza", "es-MX", report) == "es-MX"
    assert not report.facts
    assert not report.warnings


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Up 3,500 today", "en"),
        ("Ventas 3.500", "es"),
        ("Inflation 2.5%", "en"),
        ("Inflación 2,5 %", "es"),
        ("UNESCO 1.º", "es"),
        ("UNESCO 1st", "en"),
    ],
)
def test_the_way_numbers_are_written_counts(text, language):
    assert detect(text, OTHER[language]).language == language


def test_a_name_in_the_other_language_changes_no_number():
    assert [s.language for s in language_spans("El Niño cost San José $3,500 in 2026.", "en")] == ["en"]
    assert [
        s.language for s in language_spans("The Last of Us vende 3.500 copias de su Black Friday.", "es")
    ] == ["es"]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("es", 'El presidente dijo "We will not go back" en Washington.'),
        ("es", "El ministro de Exteriores: «The door is open to all of them and we will wait»."),
        ("en", 'The mayor said "no vamos a volver nunca más" in Miami.'),
    ],
)
def test_what_is_quoted_weighs_less_than_the_words_around_it(language, text):
    assert detect(text, OTHER[language]).language == language


def test_a_quotation_with_nothing_around_it_counts_in_full():
    assert detect('"We will not go back," dijo.', "es").language == "en"
