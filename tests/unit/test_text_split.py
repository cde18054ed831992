"""Sentences, fragments and parts; the glossary and what it refuses."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("unicode_rbnf", reason="the extra `tts` is not installed")
pytest.importorskip("sentencex", reason="the extra `tts` is not installed")

from talkinghead.nodes.tts.glossary import default_glossary, load_glossary, pronounceable
from talkinghead.nodes.tts.split import count_words, split_sentences, split_text
from talkinghead.nodes.tts.text import normalize_text


def cut(text, language="en"):
    return [s for s, _ in split_sentences(text, language)]


class TestSentences:
    @pytest.mark.parametrize(
        ("language", "text", "sentences"),
        [
            ("en", "Dr. Smith left. He ran.", ["Dr. Smith left.", "He ran."]),
            ("en", "It is at 3 p.m. Eastern today. He left.", ["It is at 3 p.m. Eastern today.", "He left."]),
            ("en", "He came at 3 p.m. He left.", ["He came at 3 p.m.", "He left."]),
            (
                "en",
                "U.S. troops left. The U.S. economy grew.",
                ["U.S. troops left.", "The U.S. economy grew."],
            ),
            ("en", "J. K. Rowling wrote it. She won.", ["J. K. Rowling wrote it.", "She won."]),
            ("en", "We need Plan B. It failed.", ["We need Plan B.", "It failed."]),
            ("en", "No. We will not.", ["No.", "We will not."]),
            ("en", "It cost approx. 5 euros. Fine.", ["It cost approx. 5 euros.", "Fine."]),
            ("en", "On Nov. 30 he left. She too.", ["On Nov. 30 he left.", "She too."]),
            ("en", "He said “Go. Now.” Then left.", ["He said “Go. Now.”", "Then left."]),
            ("en", "Really?! Yes! Well… maybe.", ["Really?!", "Yes!", "Well… maybe."]),
            ("en", "He paid $3.50 for v1.2.3. Done.", ["He paid $3.50 for v1.2.3.", "Done."]),
            ("en", "A line\nwrapped here.\nNext one.", ["A line wrapped here.", "Next one."]),
            ("en", "Headline\n\nBody text.", ["Headline", "Body text."]),
            ("en", "- one\n- two\n1. three", ["- one", "- two", "1. three"]),
            ("en", "It ends on Sun. Residents must go.", ["It ends on Sun.", "Residents must go."]),
            ("en", "The Jan. Treasury report is out.", ["The Jan. Treasury report is out."]),
            (
                "en",
                "Winds veer, then W. Rain comes. It costs approx. It is late.",
                ["Winds veer, then W.", "Rain comes.", "It costs approx.", "It is late."],
            ),
            (
                "en",
                "Atty. Gen. Bondi took Rte. 66 to Ste. 300.",
                ["Atty. Gen. Bondi took Rte. 66 to Ste. 300."],
            ),
            ("en", "It hit 20 mi. W of L.A. at noon.", ["It hit 20 mi. W of L.A. at noon."]),
            (
                "es",
                "El Cte. Pérez y el exp. 12/24. Está en la Avda. La calle arde.",
                ["El Cte. Pérez y el exp. 12/24.", "Está en la Avda.", "La calle arde."],
            ),
            ("es", "El Sr. García llegó. ¿Qué? ¡Ya!", ["El Sr. García llegó.", "¿Qué?", "¡Ya!"]),
            (
                "es",
                "A las 3 p. m. y a las 5 a. m. de hoy. Fin.",
                ["A las 3 p. m. y a las 5 a. m. de hoy.", "Fin."],
            ),
            ("es", "En el 79 d. C. hubo fuego. Fin.", ["En el 79 d. C. hubo fuego.", "Fin."]),
            ("es", "EE. UU. ganó. Bien.", ["EE. UU. ganó.", "Bien."]),
            ("es", "Dijo «Vamos.» Y se fue.", ["Dijo «Vamos.»", "Y se fue."]),
            ("en", "今日は。元気です。", ["今日は。", "元気です。"]),
            ("en", "यह है। वह है।", ["यह है।", "वह है।"]),
            (
                "en",
                "Hello. [pause:0.5] World. [sfx:my door. Now.wav] End.",
                ["Hello.", "[pause:0.5] World.", "[sfx:my door. Now.wav] End."],
            ),
            (
                "en",
                "[rate:0.9]One here. Two here.[/rate] Three.",
                ["[rate:0.9]One here.", "Two here.[/rate]", "Three."],
            ),
        ],
    )
    def test_table(self, language, text, sentences):
        assert cut(text, language) == sentences
        assert "".join(cut(text, language)).replace(" ", "") == "".join(text.split())

    def test_ends_of_paragraphs(self):
        assert list(split_sentences("One dog. Two cats.\n\nThree cows.")) == [
            ("One dog.", False),
            ("Two cats.", True),
            ("Three cows.", True),
        ]

    def test_nothing(self):
        assert cut("") == []
        assert cut(" \n\n ") == []

    def test_words_are_counted_without_tags_and_marks(self):
        assert count_words("[rate:0.9]Yes, [pause:1] no — 3!") == 3


class TestFragments:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("No. We will not go.", "No, we will not go."),
            ("No. No. No. We stay here.", "No, no, no. We stay here."),
            ("We will all win it. Again.", "We will all win it, again."),
            ("Really! We will win it.", "Really! We will win it."),
            ("Yes.", "Yes."),
            ("Yes.\n\nWe will win it.", "Yes.\n\nWe will win it."),
            ("Paris. Anna is there now.", "Paris, Anna is there now."),
        ],
    )
    def test_under_three_words_join_a_neighbour(self, text, said):
        done = normalize_text(text, "en")
        assert done.text == said
        assert len(done.sentences) == 1 + said.count("\n\n") + said.count(". ")

    def test_no_word_is_lost_or_moved(self):
        text = "Go. Stop now. One two three four. Ah. Five six seven. Oh no. Eight."
        done = normalize_text(text, "en")
        assert (
            done.text.lower().replace(",", "").replace(".", "").split()
            == text.lower().replace(".", "").split()
        )
        assert all(count_words(s.text) >= 3 for s in done.sentences)
        assert " ".join(s.source for s in done.sentences) == text


class TestParts:
    @pytest.mark.parametrize("limit", [7, 100, 400, 510])
    def test_row_37_word_borders_and_nothing_dropped(self, limit):
        text = ("seven words without any stop at all " * 25).strip()
        parts = list(split_text(text, limit))
        assert " ".join(parts) == text
        assert all(0 < len(p) <= limit for p in parts)
        assert len(parts) >= len(text) // limit

    def test_other_scripts_end_their_sentences_too(self):
        assert list(split_text("今日はいい。元気です。", 8)) == ["今日はいい。", "元気です。"]


class TestGlossary:
    def test_the_users_file_adds_and_wins(self, tmp_path):
        path = tmp_path / "mío ñ.json"
        path.write_text(
            json.dumps(
                {
                    "version": 1,
                    "words": {"any": ["MIT"], "es": ["BOE"]},
                    "spell": ["NASA"],
                    "say": {"en": {"Nvidia": "en-vidia"}},
                    "abbreviations": {"en": {"Ret.": "Retired"}},
                    "indices": [{"name": "TOPIX 7", "say": {"en": "Topix seven"}}],
                    "brands": [{"name": "Acme", "noun": {"es": "la firma"}, "say": {"es": "Akme"}}],
                    "rulers": ["Harald"],
                }
            ),
            encoding="utf-8-sig",
        )
        glossary = load_glossary([path])

        def said(text, language="en", wording=()):
            return normalize_text(text, language, wording, glossary).text

        assert said("MIT, NASA, CEO") == "MIT, N-A-S-A, C-E-O"
        assert said("El BOE, la UE", "es") == "El BOE, la U-E"
        assert said("Nvidia and Gen. Lee, Ret. now") == "en-vidia and General Lee, Retired now"
        assert said("The TOPIX 7 rose.") == "The Topix seven index rose."
        assert said("Acme gana.", "es") == "Akme gana."
        assert said("Acme gana.", "es", ["U7"]) == "La firma Akme gana."
        assert said("Harald V sings") == "Harald the fifth sings"
        assert normalize_text("MIT, NASA", "en").text == "M-I-T, NASA"  # the pack's own is as it was

    def test_a_short_form_of_the_user_ends_a_sentence_only_where_one_begins(self, tmp_path):
        (tmp_path / "g").write_text(
            json.dumps({"abbreviations": {"es": {"Jef.": "jefe"}, "en": {"Brn.": "Baron"}}}), encoding="utf-8"
        )
        glossary = load_glossary([tmp_path / "g"])
        text = "El Jef. Ruiz habló. El Jef. no. Vino el Jef. La calle está mal. Habló el Jef."
        want = "El jefe Ruiz habló. El jefe no. Vino el jefe. La calle está mal. Habló el jefe."
        assert normalize_text(text, "es", glossary=glossary).text == want
        text, want = "We met Brn. Lee and Brn. 5. He left.", "We met Baron Lee and Baron five, he left."
        assert normalize_text(text, "en", glossary=glossary).text == want

    def test_the_later_file_wins(self, tmp_path):
        for name, said in (("a", "one"), ("b", "two")):
            (tmp_path / name).write_text(json.dumps({"say": {"en": {"SQL": said}}}))
        assert load_glossary([tmp_path / "a", tmp_path / "b"]).say["en"]["SQL"] == "two"
        assert default_glossary().say["en"]["SQL"] == "sequel"

    def test_a_word_of_the_pack_is_spelled_when_asked(self, tmp_path):
        assert load_glossary() is default_glossary()
        (tmp_path / "g").write_text('{"spell": ["NASA"]}')
        assert load_glossary([tmp_path / "g"]).is_word("NASA", "en") is False

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is not JSON"),
            ("[]", "the top level must be an object"),
            ('{"version": 2}', "version 2; this pack reads version 1"),
            ('{"word": []}', "has no field 'word'; the fields are abbreviations, brands"),
            ('{"spell": "MIT"}', "spell must be a list of words"),
            ('{"spell": [3]}', "spell must be a list of words"),
            ('{"words": ["MIT"]}', "words must be an object"),
            ('{"words": {"fr": []}}', "words has no 'fr'; it takes en, es, any"),
            ('{"say": {"en": {"a": 1}}}', "'a' must map a word to what is said"),
            ('{"say": {"en": {"": "x"}}}', "'' must map a word to what is said"),
            ('{"brands": {}}', "brands must be a list of objects"),
            ('{"brands": [{"noun": {}}]}', "every entry needs a name"),
            ('{"brands": [{"name": "A", "nouns": {}}]}', "has no 'nouns'; it takes name, say, noun"),
            ('{"indices": [{"name": "A", "say": {"xx": "b"}}]}', "has no 'xx'; it takes en, es"),
        ],
    )
    def test_what_is_wrong_is_named(self, text, message, tmp_path):
        path = tmp_path / "g.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"g\.json") as e:
            load_glossary([path])
        assert message in str(e.value)

    def test_a_file_that_cannot_be_read(self, tmp_path):
        with pytest.raises(ValueError, match="gone.json cannot be read"):
            load_glossary([tmp_path / "gone.json"])
        (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match="bad.json cannot be read"):
            load_glossary([tmp_path / "bad.json"])

    @pytest.mark.parametrize(
        ("capitals", "word"),
        [
            ("UNAM", True),
            ("IMAX", True),
            ("HSBC", False),
            ("AARP", False),
            ("YMCA", False),
            ("BBVA", False),
            ("FOMC", False),
            ("LGBT", False),
            ("ERTE", True),
            ("TSMC", False),
        ],
    )
    def test_what_can_be_said(self, capitals, word):
        assert pronounceable(capitals) is word
