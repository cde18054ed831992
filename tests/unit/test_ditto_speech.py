"""Speech rows of a clip: the same in any batch and wherever the sound ends, of both encoders; memory; faults."""

from __future__ import annotations

import sys
import weakref
from fractions import Fraction
from types import SimpleNamespace

import ditto_speaker as speaker
import numpy as np
import pytest
import torch
from ditto_speaker import SpeakerContext, SpeakerModel, clip

from talkinghead.nodes.core.audio import MemoryAudio, MissingPackage
from talkinghead.nodes.core.frames import RunCancelled
from talkinghead.nodes.ditto.hubert import OFFLINE, SpeechRows
from talkinghead.nodes.ditto.speech import ENCODER_BATCH, DittoSpeech, open_encoder

FPS, MODEL = Fraction(25), SpeakerModel()


def rows_of(audio, ctx=None, fps=FPS, model=MODEL):
    return list(DittoSpeech(model, audio, fps).rows(ctx or SpeakerContext()))


def test_rows_are_those_of_windows_taken_one_by_one():
    made = torch.cat(rows_of(clip(7.1)))
    net = speaker.modules().speech
    with torch.inference_mode():
        single = SpeechRows(lambda w: net(torch.from_numpy(w)[None])[0].numpy(), OFFLINE, speaker.WIDTH)
        wanted = torch.cat([single.feed(speaker.sound(7.1)), single.finish()])
    assert made.shape == wanted.shape == (178, speaker.WIDTH)
    assert torch.allclose(made, wanted, atol=1e-5)


def test_what_comes_later_changes_no_row():
    """Bit for bit: the batch is filled up with silence, so a row is the same wherever the sound ends."""
    samples = speaker.sound(8)
    whole = torch.cat(rows_of(MemoryAudio(samples, 16000)))
    for seconds in (1, 3.3, 6.5):
        part = torch.cat(rows_of(MemoryAudio(samples[: int(seconds * 16000)], 16000)))
        heard = int(seconds * 25) - 5  # rows whose windows lie within the shorter sound
        assert torch.equal(part[:heard], whole[:heard])


@pytest.mark.parametrize("fps", [FPS, Fraction(30000, 1001), Fraction(60)])
@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
def test_rows_do_not_depend_on_the_rate_of_the_video(fps, rate):
    audio = clip(Fraction(11, 5), rate)
    speech = DittoSpeech(MODEL, audio, fps)
    assert sum(len(part) for part in speech.rows(SpeakerContext())) == speech.n_rows == 55
    assert speech.n_frames == speech.known == -(-audio.n_samples * fps.numerator // (rate * fps.denominator))
    assert len(list(speech.energies())) == speech.n_frames
    assert speech.ends_at(speech.n_frames)
    assert not speech.ends_at(speech.n_frames - 1)


def test_windows_are_encoded_in_whole_batches_and_timed(monkeypatch):
    seen = []
    real = speaker.modules().speech.forward
    monkeypatch.setattr(speaker.modules().speech, "forward", lambda x: seen.append(tuple(x.shape)) or real(x))
    ctx = SpeakerContext()
    parts = rows_of(clip(10), ctx)
    assert seen == [(ENCODER_BATCH, 6480)] * 4
    assert max(len(part) for part in parts) == 5 * ENCODER_BATCH
    assert ctx.report.seconds["speech features"] > 0


def test_a_second_reading_is_the_same_and_a_stop_is_heard():
    speech = DittoSpeech(MODEL, clip(4), FPS)
    first, second = (torch.cat(list(speech.rows(SpeakerContext()))) for _ in range(2))
    assert torch.equal(first, second)
    with pytest.raises(RunCancelled):
        list(speech.rows(SpeakerContext(is_cancelled=lambda: True)))
    with pytest.raises(ValueError, match="are for live speech"):
        next(speech.rows(SpeakerContext(), silence=70))


def fake_runtime(opened):
    """A double of onnxruntime: frames are the means of 400 samples every 320."""

    class Session:
        def __init__(self, path, providers, provider_options):
            opened.append(weakref.ref(self))
            self.providers = providers

        def get_providers(self):
            return self.providers

        def get_inputs(self):
            return [SimpleNamespace(name="input_values", type="tensor(float)")]

        def get_outputs(self):
            return [SimpleNamespace(name="encoding_out", type="tensor(float)")]

        def run(self, names, feeds):
            wave = feeds["input_values"]
            assert wave.shape == (1, 6480)
            assert wave.dtype == np.float32
            means = [wave[0, 320 * k : 320 * k + 400].mean() for k in range(20)]
            return [np.repeat(np.array(means, np.float32)[:, None], 1024, 1)]

    there = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return SimpleNamespace(get_available_providers=lambda: there, InferenceSession=Session)


@pytest.fixture
def hubert(tmp_path):
    path = tmp_path / "hubert.onnx"
    path.write_bytes(b"graph")
    return SpeakerModel("official", hubert=path, config=SimpleNamespace(speech_width=1024))


def test_hubert_is_opened_once_a_run_and_closed_with_it(monkeypatch, hubert):
    opened: list = []
    monkeypatch.setitem(sys.modules, "onnxruntime", fake_runtime(opened))
    ctx = SpeakerContext()
    made = torch.cat(rows_of(clip(5), ctx, model=hubert))
    assert made.shape == (125, 1024)
    assert len(opened) == 1
    assert opened[0]() is None
    assert ctx.report.facts["speech encoder"] == "HuBERT on CPU"
    samples = np.concatenate([np.zeros(80, np.float32), speaker.sound(5), np.zeros(400, np.float32)])
    pairs = [
        (samples[640 * k :][:400].mean() + samples[640 * k + 320 :][:400].mean()) / 2 for k in range(125)
    ]
    assert torch.allclose(made[:, 7], torch.tensor(np.array(pairs, np.float32)), atol=1e-6)


def test_hubert_runs_where_the_model_does(monkeypatch, hubert):
    opened: list = []
    monkeypatch.setitem(sys.modules, "onnxruntime", fake_runtime(opened))
    ctx = SpeakerContext()
    ctx.device = torch.device("cuda")
    with open_encoder(ctx, hubert, ENCODER_BATCH) as encoder:
        assert encoder.batch is None
        assert opened[0]().providers == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_without_onnxruntime_it_is_named(monkeypatch, hubert):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackage, match="Ditto's speech encoder needs 'onnxruntime'"):
        rows_of(clip(1), model=hubert)
