"""Texts that nobody writes end as soon as others: the rules see at most _MAX_SENTENCE characters at once."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("unicode_rbnf", reason="the extra `tts` is not installed")
pytest.importorskip("sentencex", reason="the extra `tts` is not installed")

from talkinghead.nodes.tts import text as text_module
from talkinghead.nodes.tts.split import TAG
from talkinghead.nodes.tts.text import normalize_text


@pytest.mark.parametrize("unit", ["word ", "alpha [pause:0.5] beta ", "x", "1", "a-", "[sfx:my file.wav] b "])
def test_parts_are_the_whole(unit):
    sentence = unit * (20_000 // len(unit))
    parts = list(text_module._parts(sentence))
    assert "".join(part for part, _ in parts) == sentence
    assert max(len(part) for part, _ in parts) <= text_module._MAX_SENTENCE
    assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
    # No part ends within a tag.
    assert sum(len(TAG.findall(part)) for part, _ in parts) == len(TAG.findall(sentence))


def test_nothing_is_lost_in_a_sentence_without_an_end():
    done = normalize_text("alpha [pause:0.5] beta " * 900, "en")
    assert (done.text.casefold().count("alpha"), done.text.count("[pause:0.5]")) == (900, 900)


@pytest.mark.parametrize("rows", ["." * 60_000, ". " * 60_000, "—" * 60_000, "-" * 60_000, "!" * 60_000])
def test_rows_of_marks(rows):
    assert re.findall(r"\w+", normalize_text(f"alpha {rows} beta", "en").text.casefold()) == [
        "alpha",
        "beta",
    ]


def test_numbers_beyond_all_names_are_read_by_their_digits():
    assert normalize_text("1" * 5000, "en").text.casefold().count("one") == 5000


def test_half_a_pair_of_utf_16_is_dropped():
    assert normalize_text("\ud800 hello there", "en").text.casefold() == "hello there"


def test_the_user_s_stop_is_asked_for_at_every_sentence():
    asked = []

    def stop():
        asked.append(1)
        if len(asked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        normalize_text("This is one sentence. " * 50, "en", poll=stop)
    assert len(asked) == 3
