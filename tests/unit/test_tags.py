"""Inline tags: what they become, what is refused, and that a script read by sentence is the script read whole."""

from __future__ import annotations

import re

import pytest

from talkinghead.nodes.tts.tags import (
    MAX_DEPTH,
    NAMES,
    Pause,
    Sound,
    Style,
    TagReader,
    Utterance,
    check_tags,
    fit_engine,
    is_tag,
    read_tags,
    tag_spans,
)


def events(text):
    return read_tags(text)[0]


class TestEvents:
    def test_plain_text_is_one_utterance(self):
        assert read_tags("Hello,\n  world.") == ([Utterance("Hello, world.")], [])
        assert read_tags("") == ([], [])

    @pytest.mark.parametrize(
        ("tag", "seconds"),
        [
            ("[pause]", 0.5),
            ("[pause:0.5]", 0.5),
            ("[pause:1]", 1),
            ("[pause:1.5s]", 1.5),
            ("[pause:300ms]", 0.3),
            ("[PAUSE:0,25]", 0.25),
            ("[pause: 2 s]", 2),
        ],
    )
    def test_pauses(self, tag, seconds):
        assert events(f"One {tag} two") == [Utterance("One"), Pause(seconds), Utterance("two")]

    @pytest.mark.parametrize(
        ("tag", "style"),
        [
            ("rate:0.9", Style(rate=0.9)),
            ("rate:slow", Style(rate=0.85)),
            ("rate:90%", Style(rate=0.9)),
            ("rate:1.2x", Style(rate=1.2)),
            ("pitch:+2", Style(pitch=2)),
            ("pitch:-3.5", Style(pitch=-3.5)),
            ("pitch:−1st", Style(pitch=-1)),
            ("pitch:low", Style(pitch=-2)),
            ("volume:-6dB", Style(volume_db=-6)),
            ("volume:loud", Style(volume_db=4)),
            ("emphasis", Style(0.9, 1, 2)),
            ("emphasis:strong", Style(0.8, 2, 4)),
            ("emphasis:reduced", Style(1.1, -1, -3)),
            ("lang:es", Style(language="es")),
            ("lang:es-MX", Style(language="es-mx")),
        ],
    )
    def test_spans(self, tag, style):
        name = tag.partition(":")[0]
        assert events(f"It is [{tag}]very[/{name}] good.") == [
            Utterance("It is"),
            Utterance("very", style, joined=True),
            Utterance("good.", joined=True),
        ]

    def test_nested_styles_add_up_within_the_limits(self):
        text = "[rate:0.8][pitch:2]a [rate:0.5][pitch:11][volume:-20][volume:-20]b[/volume][/volume][/pitch][/rate] c[/pitch][/rate] d"
        assert [e.style for e in events(text)] == [Style(0.8, 2), Style(0.5, 12, -30), Style(0.8, 2), Style()]

    def test_speakers_of_a_dialogue(self):
        text = (
            "Narrator. [speaker:Anna]Hi, Bob. [rate:0.9]How [speaker:Bob]are[/rate] you?[/speaker] The end."
        )
        assert [(e.style.speaker, e.style.rate, e.text) for e in events(text)] == [
            ("", 1.0, "Narrator."),
            ("Anna", 1.0, "Hi, Bob."),
            ("Anna", 0.9, "How"),
            ("Bob", 0.9, "are"),
            ("Bob", 1.0, "you?"),
            ("", 1.0, "The end."),
        ]

    @pytest.mark.parametrize(
        ("tag", "sound"),
        [
            ("[sfx:door.wav]", Sound("door.wav")),
            ("[sfx:door.wav:-6]", Sound("door.wav", -6)),
            ("[sfx: my  door.wav : +3.5 ]", Sound("my  door.wav", 3.5)),
            ("[sfx:sounds/café 2.wav]", Sound("sounds/café 2.wav")),
            (
                "[sfx:../../secret.wav]",
                Sound("../../secret.wav"),
            ),  # named here, refused by whoever opens files
            ("[sfx:C:\\a.wav]", Sound("C:\\a.wav")),
        ],
    )
    def test_sounds_are_only_named(self, tag, sound):
        assert events(f"Knock. {tag} Who?") == [Utterance("Knock."), sound, Utterance("Who?")]

    def test_joined_says_whether_a_sentence_goes_on(self):
        got = [
            e.joined
            for e in events("One. [rate:1.1]Two[/rate] three[rate:1.1], four.[/rate] Five. [speaker:A]Six")
        ]
        assert got == [False, False, True, True, False, False]


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[puase:0.5]", r"\[puase:0.5\] is not known; did you mean \[pause\]\?"),
            ("[pasue]", r"did you mean \[pause\]\?"),
            ("[tone:quote]x[/tone]", r"\[tone:quote\] is not known; .*The tags are pause, rate"),
            ("[note:see below]", "round brackets"),
            ("x[/tone]", "is not known"),
            ("[pause :1]", r"has spaces in its name; write \[pause:...\]"),
            ("[pause:abc]", "'abc' is not a number; give seconds between 0.05 and 10"),
            ("[pause:0.01]", r"0.01 is outside 0.05..10 seconds"),
            ("[pause:11]", r"11 is outside 0.05..10 seconds"),
            ("[pause:20000ms]", r"20000 is outside 50..10000 milliseconds"),
            ("[pause:-1]", "outside"),
            ("[pause:nan]", "is not a number"),
            ("[pause:1e3]", "is not a number"),
            ("[rate:3]x[/rate]", r"3 is outside 0.5..2 times"),
            ("[rate]x[/rate]", "'' is not a number"),
            ("[pitch:13]x[/pitch]", "outside -12..12 semitones"),
            ("[volume:99]x[/volume]", "outside -30..12 dB"),
            ("[emphasis:huge]x[/emphasis]", "'huge' is no emphasis; use moderate, strong, reduced"),
            ("[speaker]x", "needs a name"),
            ("[speaker: ]x", "needs a name"),
            ("[sfx]", "needs the name of a sound file"),
            ("[sfx:]", "needs the name of a sound file"),
            ("[sfx:a.wav:40]", "40 is outside -30..12 dB"),
            ("[lang]x[/lang]", "needs a language"),
            ("[lang:1]x[/lang]", "needs a language"),
            ("x[/rate]", r"closes what is not open; put \[rate:...\] before it"),
            ("[rate:0.9][pitch:1]x[/rate]", r"closes what is not open; close \[pitch\] first"),
            ("x[/pause]", "stands alone and is not closed"),
            ("[emphasis]" * (MAX_DEPTH + 1) + "x", f"{MAX_DEPTH} tags are open already"),
        ],
    )
    def test_errors_name_the_tag_and_the_way_out(self, text, message):
        with pytest.raises(ValueError, match=message) as e:
            check_tags(f"Some words. {text} More.")
        assert "tag [" in str(e.value)

    @pytest.mark.parametrize(
        "text", ["[sic]", "[applause]", "[1]", "[...]", "[Voice over, softly]", "[]", "[ ]", "[a\nb]", "[x"]
    )
    def test_other_brackets_are_text(self, text):
        got, warnings = read_tags(f"He {text} left.")
        assert len(got) == 1
        assert got[0].text.startswith("He")
        assert not set("[]") & set(got[0].text)
        assert bool(warnings) == bool(re.fullmatch(r"\[[^\[\]\n]*\]", text))

    def test_unclosed_tags_hold_and_are_named(self):
        got, warnings = read_tags("[rate:0.9]One. Two.")
        assert got == [Utterance("One. Two.", Style(rate=0.9))]
        assert warnings == ["[rate] is not closed: it holds to the end of the text"]

    def test_names(self):
        assert all(is_tag(f"[{n}]") for n in NAMES)
        assert tag_spans("a [pause:1] b [sic] [/rate]") == [(2, 11), (20, 27)]


class TestStream:
    TEXT = (
        "One. [rate:0.9]Two [speaker:Anna]three.",
        "Four![/rate] [sfx:a.wav]",
        "[emphasis]Five[/emphasis] six. [pause]",
        "[lang:es]Siete.",
    )

    def test_by_sentence_equals_whole(self):
        whole, warnings = read_tags(" ".join(self.TEXT))
        parts, again = read_tags(self.TEXT)
        assert warnings == again

        def flat(found):
            """Utterances of one style in a row are one, wherever the feed was cut."""
            out = []
            for e in found:
                if isinstance(e, Utterance) and out and isinstance(out[-1], tuple) and out[-1][1] == e.style:
                    out[-1] = (f"{out[-1][0]} {e.text}", e.style)
                else:
                    out.append((e.text, e.style) if isinstance(e, Utterance) else e)
            return out

        assert flat(parts) == flat(whole)

    def test_lazily(self):
        reader = TagReader()
        feed = reader.feed("One [pause:1] two [oops:1]")
        assert next(feed) == Utterance("One")
        assert next(feed) == Pause(1)
        with pytest.raises(ValueError, match="oops"):
            list(feed)

    def test_long_utterances_fit_the_engine(self):
        words = "word " * 200
        got = list(fit_engine(events(f"[rate:0.9]{words}[/rate][pause:1]end"), 100))
        said = [e for e in got if isinstance(e, Utterance)]
        assert all(len(e.text) <= 100 for e in said)
        assert " ".join(e.text for e in said).split() == [*words.split(), "end"]
        assert [e.joined for e in said] == [False, *[True] * (len(said) - 2), False]
        assert {e.style.rate for e in said[:-1]} == {0.9}
        assert got[-2] == Pause(1)
