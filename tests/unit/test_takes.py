"""A script as pieces of speech: order, pauses, styles, speakers, sounds, streaming, memory. Rows 35-39."""

import re
import threading
import time
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from speech_fakes import RATE, ToneEngine

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunContext, StageError
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.timeline import frame_count
from talkinghead.nodes.musetalk.stream import stream_musetalk
from talkinghead.nodes.tts import engines
from talkinghead.nodes.tts.engines import PAUSE_S
from talkinghead.nodes.tts.master import MasterOptions, master, master_takes
from talkinghead.nodes.tts.sample_engine import SAMPLE_VOICE, SampleEngine
from talkinghead.nodes.tts.takes import (
    SpeechOptions,
    join_takes,
    push_takes,
    sounds_in,
    speakers_in,
    takes,
)

WORD = 160
"""Samples of a word at RATE."""
PAUSE, PARAGRAPH = 1600, 4000


@pytest.fixture
def tone(monkeypatch):
    engine = ToneEngine()
    others = {SAMPLE_VOICE: SampleEngine()}
    monkeypatch.setattr(engines, "engine_for", lambda voice, roots=(): others.get(voice, engine))
    engine.others = others
    return engine


def spoken(text, ctx=None, report=None, **options):
    return list(
        takes(text, SpeechOptions(**{"voice": "tone", "normalize": False, **options}), (), report, ctx)
    )


def lengths(pieces):
    return [p.n_samples for p in pieces]


def whole(pieces):
    return np.concatenate([p.samples[0] for p in pieces])


class TestPauses:
    def test_between_sentences_and_paragraphs(self, tone):
        pieces = spoken("Zero one two. Three four five.\n\nSix seven eight.", normalize=True)
        assert lengths(pieces) == [3 * WORD, PAUSE + 3 * WORD, PARAGRAPH + 3 * WORD]
        assert not pieces[-1].samples[0, :PARAGRAPH].any()
        assert pieces[-1].phonemes == (("a", 0.5, pytest.approx(0.56)),)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("one [pause:0.1] two", [WORD, 800 + WORD]),
            ("one [pause:0.1][pause:300ms] two", [WORD, 3200 + WORD]),
            ("[pause:1] one", [RATE + WORD]),
            ("one [pause:1]", [WORD, RATE]),
            ("one [rate:fast][/rate] two", [WORD, WORD]),
        ],
    )
    def test_asked_for(self, tone, text, expected):
        assert lengths(spoken(text)) == expected

    def test_takes_the_place_of_the_one_between_sentences(self, tone):
        text = "One two three. [pause:0.1] Four five six. Seven eight nine."
        assert lengths(spoken(text, normalize=True)) == [3 * WORD, 800 + 3 * WORD, PAUSE + 3 * WORD]


class TestStyle:
    def test_rate_and_speed_go_to_the_engine(self, tone):
        spoken("one [rate:0.8]two[/rate]", speed=1.5)
        assert [a[2] for a in tone.asked] == [1.5, pytest.approx(1.2)]

    @pytest.mark.parametrize("semitones", [-12, -3, 2, 12])
    def test_pitch_moves_by_its_semitones_and_keeps_the_length(self, tone, semitones):
        tone.rate = 48000
        text = "word " * 50
        plain, shifted = (whole(spoken(t))[500:-500] for t in (text, f"[pitch:{semitones}]{text}[/pitch]"))
        peaks = [np.argmax(np.abs(np.fft.rfft(x, 1 << 20))) for x in (plain, shifted)]
        assert len(shifted) == pytest.approx(len(plain), abs=2)
        assert peaks[1] / peaks[0] == pytest.approx(2 ** (semitones / 12), rel=0.003)

    def test_volume_and_emphasis(self, tone):
        plain, loud, strong = spoken("a [volume:6]a[/volume] [emphasis]a[/emphasis]")
        assert np.abs(loud.samples).max() / np.abs(plain.samples).max() == pytest.approx(10**0.3, rel=0.01)
        assert strong.n_samples == pytest.approx(WORD / 0.9, abs=1)
        assert np.abs(strong.samples).max() > 1.15 * np.abs(plain.samples).max()

    def test_beyond_an_engine_it_is_said(self, tone):
        tone.speeds = (0.5, 2.0)
        report = Report()
        spoken("[pitch:12]a[/pitch]", report=report, speed=0.5)
        assert tone.asked[0][2] == 0.5
        assert "speaks at 0.5..2 times its pace; 0.25 was asked" in report.text()


class TestSpeakers:
    TEXT = "Hello. [speaker:Ana]Yes please. [speaker:BOB]No.[/speaker] Well."

    def test_each_has_a_voice_whatever_the_case(self, tone):
        pieces = spoken(self.TEXT, voices={"ana": "tone a", "Bob": "tone b"})
        assert [(p.speaker, p.voice, p.text) for p in pieces] == [
            ("", "tone", "Hello."),
            ("Ana", "tone a", "Yes please."),
            ("BOB", "tone b", "No."),
            ("", "tone", "Well."),
        ]
        assert speakers_in(self.TEXT) == ["", "Ana", "BOB"]

    def test_without_a_voice_nothing_is_spoken(self, tone):
        with pytest.raises(
            ValueError, match=r"no voice for the speaker 'BOB' \(speakers with a voice: 'Ana'\); give one"
        ):
            takes(self.TEXT, SpeechOptions("tone", {"Ana": "tone"}, normalize=False))
        assert not tone.asked

    def test_voices_of_other_rates_and_levels_become_one_sound(self, tone, monkeypatch):
        quiet = ToneEngine(16000, 0.02)
        monkeypatch.setattr(
            engines, "engine_for", lambda voice, roots=(): quiet if voice == "tone q" else tone
        )
        text = f"{'word ' * 20}. [speaker:Q]{'word ' * 20}.[/speaker]"
        one, two = spoken(text, voices={"q": "tone q"})
        assert one.sample_rate == two.sample_rate == 16000
        pause = round(PAUSE_S * 16000)
        assert (one.n_samples, two.n_samples) == (20 * 320, pause + 20 * 320)
        levels = [np.sqrt(np.mean(p.samples[:, -20 * 320 :] ** 2)) for p in (one, two)]
        assert levels[0] == pytest.approx(levels[1], rel=0.05)
        assert levels[0] == pytest.approx(0.1, rel=0.1)

    def test_a_recording_is_heard_once_a_turn(self, tone):
        clip = SampleEngine()._clip()
        n, pause = clip.n_samples, round(PAUSE_S * clip.sample_rate)
        report = Report()
        text = "One two three. Four five six. [speaker:B]Seven. Eight.[/speaker] Nine."
        pieces = spoken(text, voice=SAMPLE_VOICE, voices={"B": SAMPLE_VOICE}, normalize=True, report=report)
        assert lengths(pieces) == [n, pause + n, pause + n]
        assert "always says 'Good evening." in report.text()
        report = Report()
        assert len(spoken(SampleEngine().sentence(), voice=SAMPLE_VOICE, report=report)) == 1
        assert not report.warnings


class TestSounds:
    CLIP = MemoryAudio(np.full((2, 400), 0.5, np.float32), RATE)

    def test_stand_where_they_are_written(self, tone):
        text = "one [sfx:my bell.wav:-6] two"
        pieces = spoken(text, sounds={"my bell.wav": self.CLIP})
        assert lengths(pieces) == [WORD, 400, WORD]
        assert pieces[1].samples[0, 200] == pytest.approx(0.5 * 10 ** (-6 / 20))
        assert (pieces[1].text, pieces[1].voice) == ("my bell.wav", "")
        assert sounds_in(text) == ["my bell.wav"]

    def test_one_that_is_not_there_stops_all(self, tone):
        with pytest.raises(ValueError, match=r"no sound 'x.wav' for \[sfx:x.wav\]"):
            takes("one [sfx:x.wav]", SpeechOptions("tone", normalize=False))
        assert not tone.asked


class TestErrors:
    @pytest.mark.parametrize("text", ["", " \n", "...", "[pause:1]"])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_nothing_to_say(self, tone, text, normalize):
        with pytest.raises(ValueError, match="nothing to say"):
            takes(text, SpeechOptions("tone", normalize=normalize))

    def test_only_emoji(self, tone):  # row 39
        with pytest.raises(ValueError, match="nothing to say"):
            takes("😀", SpeechOptions("tone"))

    @pytest.mark.parametrize("speed", [0.49, 2.01, float("nan")])
    def test_speed(self, speed):
        with pytest.raises(ValueError, match=r"outside 0\.5\.\.2"):
            SpeechOptions("tone", speed=speed)

    def test_wrong_tags_are_found_before_a_word_is_spoken(self, tone):
        with pytest.raises(ValueError, match="pausse"):
            takes("a [pausse:1] b", SpeechOptions("tone"))
        assert lengths(spoken("a [pausse:1] b", tags=False)) == [3 * WORD]
        assert "(pausse:1)" in tone.asked[0][0]

    def test_a_voice_that_breaks_comes_after_the_pieces_before(self, tone, monkeypatch):
        monkeypatch.setattr(
            tone,
            "synthesize",
            lambda text, *a: ToneEngine.synthesize(tone, text, *a) if "x" not in text else 1 / 0,
        )
        stream = takes("a [pause:1] b [pause:1] x", SpeechOptions("tone", normalize=False))
        assert [next(stream).text for _ in range(2)] == ["a", "b"]
        with pytest.raises(StageError, match="division") as e:
            next(stream)
        assert isinstance(e.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("level", [np.nan, np.inf])
    def test_no_finite_sound(self, tone, level):
        tone.level = level
        with pytest.raises(StageError, match="no finite sound"), np.errstate(invalid="ignore"):
            spoken("a")

    def test_silence_is_an_error_when_joined(self, tone):
        tone.level = 0
        with pytest.raises(ValueError, match="gave no sound"):
            join_takes(spoken("a"))


SCRIPT = (
    "Rates rose 42.5 % to $3.5B [pause:0.3] on Monday. [speaker:B]Really, is that so?[/speaker] "
    "[emphasis]Yes[/emphasis], said NASA.\n\nThe S&P 500 fell. hoy es Monday, 13999 € at 3:00."
)


def test_pauses_have_a_limit_in_all(tone):
    with pytest.raises(ValueError, match="the pauses make 3610 s of silence; 3600 s at most"):
        takes("a" + " [pause:10]" * 361 + " b", SpeechOptions("tone", normalize=False))
    assert not tone.asked


def test_a_sound_that_is_not_finite_is_told(tone):
    report = Report()
    broken = MemoryAudio(np.array([0.1, np.nan, 0.1], np.float32), RATE, "broken.wav")
    spoken("a [sfx:b.wav]", report=report, sounds={"b.wav": broken})
    assert any("NaN" in warning or "finite" in warning for warning in report.warnings), report.warnings


class TestStreaming:
    def options(self, **more):
        return SpeechOptions("tone", {"B": "tone b"}, **more)

    def test_streamed_equals_whole_and_one_thread(self, tone):
        one = whole(takes(SCRIPT, self.options(), ctx=RunContext(overlap=False)))
        two = whole(takes(SCRIPT, self.options(), ctx=RunContext(overlap=True)))
        np.testing.assert_array_equal(one, two)
        live = LiveAudio(RATE)
        producer = threading.Thread(target=push_takes, args=(takes(SCRIPT, self.options()), live))
        producer.start()
        heard = np.concatenate(list(live.blocks()))
        producer.join()
        assert live.pushed == len(one)
        assert len(heard) == 2 * len(one)

    def test_mastered_while_it_is_spoken_equals_mastered_whole(self, tone):
        options = MasterOptions(lookahead_s=1.0)
        text = " ".join(["One sentence of some words here."] * 40)
        expected = master(
            whole(takes(text, self.options())), RATE, replace(options, pause_s=0.0, join_reach_s=None)
        )
        pieces = list(master_takes(takes(text, self.options()), options))
        assert len(pieces) > 10
        np.testing.assert_array_equal(whole(pieces), expected.samples[0])
        live = LiveAudio(RATE)
        producer = threading.Thread(target=push_takes, args=(iter(pieces), live))
        producer.start()
        heard = sum(len(block) for block in live.blocks())
        producer.join()
        assert (live.pushed, heard) == (expected.samples.shape[1], 2 * expected.samples.shape[1])

    def test_mastering_that_is_closed_closes_the_speaker(self, tone):
        before = threading.active_count()
        pieces = master_takes(takes(SCRIPT, self.options()), MasterOptions(lookahead_s=0.4, target_lufs=None))
        next(pieces)
        assert threading.active_count() == before + 1
        pieces.close()
        assert threading.active_count() == before
        assert list(master_takes(iter([]))) == []

    def test_a_presenter_speaks_while_the_script_is_spoken(self, tone, tiny_model, avatar):
        packet, live = avatar(), LiveAudio(RATE)
        script = " ".join(f"This is sentence number {i}." for i in range(12))
        clip = MemoryAudio(whole(takes(script, self.options())), RATE)
        producer = threading.Thread(target=push_takes, args=(takes(script, self.options()), live))
        producer.start()
        streamed = list(stream_musetalk(RunContext(), tiny_model, packet, live))
        producer.join(10)
        by_clip = list(stream_musetalk(RunContext(), tiny_model, packet, clip, features="live"))
        frames, expected = (torch.cat([torch.as_tensor(c.frames) for c in x]) for x in (streamed, by_clip))
        assert len(frames) == frame_count(clip.n_samples, RATE, Fraction(25))
        assert torch.equal(frames, expected)
        assert not producer.is_alive()

    def test_the_first_one_comes_first_and_the_next_one_is_made_ahead(self, tone):
        stream = takes(" ".join(f"This is number {i}." for i in range(50)), self.options())
        before = threading.active_count()
        next(stream)
        assert threading.active_count() == before + 1
        for _ in range(200):
            if len(tone.asked) == 2:
                break
            time.sleep(0.01)
        assert len(tone.asked) == 2  # the first, and the next one without being asked for
        stream.close()
        assert len(tone.asked) == 2
        assert threading.active_count() == before

    def test_seed(self, tone):  # row 35
        before = np.random.get_state()[1].copy()
        one, two, again = (whole(takes(SCRIPT, self.options(seed=s))) for s in (1, 2, 1))
        np.testing.assert_array_equal(one, again)
        assert len(one) == len(two)
        assert not np.array_equal(one, two)
        assert len({a[3] for a in tone.asked[: len(tone.asked) // 3]}) > 3  # sentences do not sound alike
        np.testing.assert_array_equal(np.random.get_state()[1], before)

    def test_memory_is_flat_over_200_sentences(self, tone):
        tone.rate = 48000

        def peak(count):
            text = " ".join(f"This is sentence {i} of the 4.5 % test." for i in range(count))
            tracemalloc.start()
            n = sum(p.n_samples for p in takes(text, self.options(), ctx=RunContext(overlap=False)))
            tone.asked.clear()
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return most, n

        peak(3)
        (few, n_few), (many, n_many) = peak(20), peak(200)
        assert n_many > 9 * n_few
        assert many - few < 1 << 20, (
            f"{few >> 10} KiB, {many >> 10} KiB; the speech has {n_many * 4 >> 10} KiB"
        )

    def test_a_listener_that_leaves_stops_the_speaker(self, tone):
        live = LiveAudio(RATE, max_seconds=0.1)
        listener = live.blocks()
        failed = []

        def produce():
            try:
                push_takes(takes(". ".join(["one two three"] * 400), self.options()), live)
            except ValueError as e:
                failed.append(str(e))

        producer = threading.Thread(target=produce)
        producer.start()
        next(listener)
        listener.close()
        producer.join(10)
        assert "nobody listens" in failed[0]
        assert len(tone.asked) < 400
        with pytest.raises(ValueError, match="does not fit"):
            push_takes(takes("one", self.options()), LiveAudio(16000))


class TestText:
    def test_numbers_and_mixed_language_all_reach_the_voice(self, tone):  # row 38
        report = Report()
        spoken(SCRIPT, normalize=True, voices={"B": "tone b"}, report=report)
        said = " ".join(a[0] for a in tone.asked)
        for words in (
            "forty-two point five percent",
            "three point five billion dollars",
            "S and P five hundred",
        ):
            assert words in said
        for words in ("thirteen thousand nine hundred ninety-nine euros", "hoy es", "Monday"):
            assert words in said
        assert not any(c.isdigit() for c in said)
        assert "'42.5 %' -> 'forty-two point five percent'" in report.facts["changed"]

    @pytest.mark.parametrize(
        ("language", "words"),
        [
            (
                "en",
                [
                    "forty-two point five percent",
                    "thirteen thousand",
                    "seventy point three",
                    "three o'clock",
                    "five hundred",
                ],
            ),
            (
                "es",
                [
                    "cuarenta y dos coma cinco por ciento",
                    "trece mil",
                    "setenta coma tres",
                    "tres en punto",
                    "quinientos",
                ],
            ),
        ],
    )
    def test_the_sentence_of_row_38(self, tone, language, words):
        text = "42,5 % … 13999 € … 70.3 … 3:00 … S&P 500 … hoy es Monday"
        list(takes(text, SpeechOptions("tone", language=language)))
        heard = " ".join(a[0] for a in tone.asked)
        assert all(w in heard for w in [*words, "hoy es", "Monday"])
        assert not re.search(r"[\d%€&…]", heard)

    def test_spanish(self, tone):
        tone.language = "es"
        report = Report()
        spoken("La tasa subió un 42,5 % hasta 13999 € a las 3:00.", normalize=True, report=report)
        said = tone.asked[0]
        assert "cuarenta y dos coma cinco por ciento" in said[0]
        assert said[4] == "es"
        assert not report.warnings
        tone.language = "en"
        spoken("La tasa subió un 42,5 % hasta 13999 €.", normalize=True, report=report)
        assert "is for en; text in es may sound foreign" in report.text()

    def test_what_cannot_be_said_is_dropped_with_a_warning(self, tone):  # row 39
        for normalize in (False, True):
            report = Report()
            spoken("button 😀 kitten https://example.org/z?a=1", normalize=normalize, report=report)
            (line,) = report.warnings
            assert "😀" in line
            assert "example.org" in line
            assert tone.asked[-1][0].split()[:2] == ["button", "kitten"]

    @pytest.mark.parametrize("normalize", [False, True])
    def test_long_text_is_cut_at_words_and_nothing_is_dropped(self, tone, normalize):  # row 37
        text = ("seven words without any stop at all " * 25).strip()
        spoken(text, normalize=normalize)
        assert len(tone.asked) > 1
        assert all(len(a[0]) <= 400 for a in tone.asked)
        said = " ".join(a[0] for a in tone.asked).replace(",", "").rstrip(".").lower()
        assert said == text

    def test_a_report_names_the_first_changes_and_counts_all(self, tone):
        report = Report()
        spoken(" ".join(f"It rose {i}.5 % now." for i in range(2, 42)), normalize=True, report=report)
        lines = report.facts["changed"].splitlines()
        assert len(lines) == 22
        assert lines[-1] == f"and {int(lines[0].split()[0]) - 20} more; Normalize Text lists all"

    @pytest.mark.parametrize(("n_changes", "n_lines"), [(None, 41), (3, 5), (0, 0)])
    def test_a_report_names_as_many_changes_as_asked_for(self, tone, n_changes, n_lines):
        report = Report()
        text = " ".join(f"It rose {i}.5 % now." for i in range(2, 42))
        options = SpeechOptions("tone", normalize=True, language="en", n_changes=n_changes)
        list(takes(text, options, report=report))
        assert len(report.facts.get("changed", "").splitlines()) == n_lines

    @pytest.mark.parametrize(
        ("language", "word"),
        [("en", "seven words without any stop at all"), ("es", "palabras sin punto alguno que la corte")],
    )
    def test_900_characters_without_a_stop_in_either_language(self, tone, language, word):  # row 37
        text = " ".join([word] * (900 // len(word) + 1))
        assert len(text) >= 900
        pieces = list(takes(text, SpeechOptions("tone", language=language)))
        assert [p.text for p in pieces] == [a[0] for a in tone.asked]
        assert len(pieces) > 1
        assert all(len(a[0]) <= 400 for a in tone.asked)
        assert re.findall(r"\w+", " ".join(a[0] for a in tone.asked).lower()) == text.split()

    @pytest.mark.parametrize("language", ["en", "es"])
    def test_a_text_without_a_sign_is_in_the_language_of_the_voice(self, tone, monkeypatch, language):
        monkeypatch.setattr(type(tone), "languages", lambda self, voice: (language,))
        report = Report()
        list(takes("Madrid", SpeechOptions("tone"), report=report))
        assert report.facts["language"].startswith(language)
        assert "weak evidence" in report.text()

    @pytest.mark.parametrize("normalize", [False, True])
    def test_tags_that_are_not_obeyed_are_named(self, tone, normalize):
        report = Report()
        options = SpeechOptions("tone", normalize=normalize, tags=False, language="en")
        list(takes("One two [pause:1] three [sic] four.", options, report=report))
        [warning] = [w for w in report.warnings if "tags" in w]
        assert warning.startswith("tags are read as words here: [pause:1]; to obey them set normalize")
