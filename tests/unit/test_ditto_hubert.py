"""Speech rows: windows in pieces, counts, and the encoder through onnxruntime on a graph with its tensors' names."""

from __future__ import annotations

import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio, MissingPackage
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.timeline import frame_count
from talkinghead.nodes.ditto.hubert import (
    OFFLINE,
    ONLINE,
    ChunkRule,
    HubertEncoder,
    SpeechRows,
    clip_rows,
    silence_rows,
)


class Recorder:
    """Frame k of a window is [mean, first sample] of samples 320 k .. 320 k + 399."""

    def __init__(self) -> None:
        self.windows: list[np.ndarray] = []

    def __call__(self, window: np.ndarray) -> np.ndarray:
        assert window.dtype == np.float32
        self.windows.append(window)
        spans = [window[320 * k : 320 * k + 400] for k in range((len(window) - 400) // 320 + 1)]
        return np.array([[span.mean(), span[0]] for span in spans], np.float32)


def sound(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, n).astype(np.float32)


def rows_of(samples: np.ndarray, rule: ChunkRule, step: int | None = None) -> torch.Tensor:
    stream = SpeechRows(Recorder(), rule, width=2)
    pieces = range(0, len(samples), step or max(1, len(samples)))
    made = [stream.feed(samples[i : i + (step or len(samples))]) for i in pieces]
    return torch.cat([*made, stream.finish()]) if made else stream.finish()


@pytest.mark.parametrize("rule", [OFFLINE, ONLINE, ChunkRule(2, 4, 1), ChunkRule(0, 3, 0)])
@pytest.mark.parametrize("n", [0, 1, 639, 640, 641, 3200, 20001])
def test_pieces_change_nothing_and_rows_cover_the_sound(rule, n):
    wanted = rows_of(sound(n), rule)
    assert wanted.shape == (-(-n // 640), 2)
    for step in (320, 1999):
        assert torch.equal(rows_of(sound(n), rule, step), wanted)


@pytest.mark.parametrize("rule", [OFFLINE, ONLINE])
def test_a_row_hears_its_own_frame(rule):
    """Row k is the mean of encoder frames that start 640 k (online) or 640 k - 80 (offline) into the sound."""
    samples, shift = sound(16000), 0 if rule.online else -80
    rows = rows_of(samples, rule)
    padded = np.concatenate([np.zeros(80, np.float32), samples, np.zeros(80, np.float32)])
    for k in range(25):
        at = 640 * k + shift + 80
        assert rows[k, 1].item() == pytest.approx((padded[at] + padded[at + 320]) / 2, abs=1e-6)


def test_rows_come_as_soon_as_their_window_is_full():
    for rule, samples in ((ONLINE, 6480 - 1920), (OFFLINE, 6480 - 2000)):
        stream = SpeechRows(Recorder(), rule, width=2)
        assert len(stream.feed(sound(samples - 1))) == 0
        assert len(stream.feed(sound(1))) == 5
        assert [len(stream.feed(sound(640))) for _ in range(5)] == [0, 0, 0, 0, 5]


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
@pytest.mark.parametrize("frames", [7, 28, 35])
def test_a_clip_gives_a_row_a_frame(rate, frames):
    """ceil(seconds * 25) in doubles gives one too many for 7, 28 and 56 frames of 16 kHz."""
    for extra in (0, 1):
        clip = MemoryAudio(sound(frames * rate // 25 + extra), rate)
        recorder = Recorder()
        rows = torch.cat(
            list(clip_rows(clip, lambda w, r=recorder: r(w).repeat(512, axis=1), report=Report()))
        )
        assert len(rows) == frame_count(clip.n_samples, rate, Fraction(25)) == frames + extra
        assert len(recorder.windows) == -(-len(rows) // 5)


def test_a_long_clip_is_never_held():
    clip = MemoryAudio(sound(16000 * 40), 16000)
    parts = [len(part) for part in clip_rows(clip, lambda w: np.zeros((20, 1024), np.float32))]
    assert sum(parts) == 1000
    assert max(parts) == 5


@pytest.mark.parametrize("count", [1, 5, 55, 56, 70])
def test_silence_has_any_count(count):
    """Upstream counts rows in doubles and stops for an overlap of 55 or 56."""
    recorder = Recorder()
    rows = silence_rows(recorder, count)
    assert rows.shape == (count, 2)
    assert len(recorder.windows) == 1
    assert not recorder.windows[0].any()


def test_an_encoder_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"gave \(3, 2\) for 6480 samples, 14 frames or more are needed"):
        silence_rows(lambda w: np.zeros((3, 2), np.float32), 5)
    with pytest.raises(ValueError, match=r"gave \(20, 768\), not rows of 1024"):
        SpeechRows(lambda w: np.zeros((20, 768), np.float32)).feed(sound(6480))
    with pytest.raises(ValueError, match="at least one current row"):
        ChunkRule(3, 0, 2)


def test_the_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        MissingPackage, match="Ditto's speech encoder needs 'onnxruntime'.*pip install onnxruntime"
    ):
        HubertEncoder(tmp_path / "hubert.onnx")


def test_cuda_comes_first_and_without_tf32(monkeypatch, tmp_path):
    """A double of onnxruntime with CUDA that records how it is opened."""
    opened = []

    class Session:
        def __init__(self, path, providers, provider_options):
            opened.append((path, dict(zip(providers, provider_options, strict=True))))

        def get_providers(self):
            return list(opened[-1][1])

        def get_inputs(self):
            return [SimpleNamespace(name="input_values", type="tensor(float)")]

        def get_outputs(self):
            return [SimpleNamespace(name="encoding_out", type="tensor(float)")]

    there = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    double = SimpleNamespace(get_available_providers=lambda: there, InferenceSession=Session)
    monkeypatch.setitem(sys.modules, "onnxruntime", double)
    path = tmp_path / "hubert.onnx"
    path.write_bytes(b"graph")
    assert HubertEncoder(path).providers == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert opened == [(str(path), {"CUDAExecutionProvider": {"use_tf32": "0"}, "CPUExecutionProvider": {}})]


def write_graph(path, input_name="input_values", output_name="encoding_out", dtype="FLOAT", scale=1 / 400):
    """A graph with HuBERT's tensors: 1024 means of 400 samples every 320."""
    onnx = pytest.importorskip("onnx")
    kind = getattr(onnx.TensorProto, dtype)
    numpy_type = np.float32 if dtype == "FLOAT" else np.float16
    kernel = np.full((1024, 1, 400), scale, numpy_type)
    helper = onnx.helper
    nodes = [
        helper.make_node("Unsqueeze", [input_name, "axis"], ["wave"]),
        helper.make_node("Conv", ["wave", "kernel"], ["frames"], strides=[320]),
        helper.make_node("Squeeze", ["frames", "first"], ["flat"]),
        helper.make_node("Transpose", ["flat"], [output_name], perm=[1, 0]),
    ]
    graph = helper.make_graph(
        nodes,
        "hubert",
        [helper.make_tensor_value_info(input_name, kind, [1, "n"])],
        [helper.make_tensor_value_info(output_name, kind, ["t", 1024])],
        [
            onnx.numpy_helper.from_array(kernel, "kernel"),
            onnx.numpy_helper.from_array(np.array([1]), "axis"),
            onnx.numpy_helper.from_array(np.array([0]), "first"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="module")
def hubert_file(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    return write_graph(tmp_path_factory.mktemp("hubert") / "hubert.onnx")


def test_through_onnxruntime(hubert_file):
    encoder = HubertEncoder(hubert_file, ["CPUExecutionProvider"])
    assert encoder.providers == ("CPUExecutionProvider",)
    assert {n: len(encoder(sound(n))) for n in (3240, 6400, 6480, 12960)} == {
        3240: 9,
        6400: 19,
        6480: 20,
        12960: 40,
    }
    clip = MemoryAudio(sound(20000), 16000)
    made = torch.cat(list(clip_rows(clip, encoder)))
    assert made.shape == (32, 1024)
    assert torch.allclose(made[:, :1], rows_of(sound(20000), OFFLINE)[:, :1], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input_name": "audio"}, "inputs audio and the outputs encoding_out: it is not Ditto's HuBERT"),
        ({"output_name": "out"}, "the outputs out: it is not Ditto's HuBERT"),
        ({"dtype": "FLOAT16"}, r"is tensor\(float16\): HuBERT must be float32"),
    ],
)
def test_other_graphs_are_refused(tmp_path, hubert_file, options, said):
    with pytest.raises(ValueError, match=said):
        HubertEncoder(write_graph(tmp_path / "other.onnx", **options))


def test_damaged_and_missing_files(tmp_path, hubert_file):
    with pytest.raises(ValueError, match=r"no file .*absent\.onnx"):
        HubertEncoder(tmp_path / "absent.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"not a graph")
    with pytest.raises(ValueError, match=r"broken\.onnx cannot be opened as ONNX"):
        HubertEncoder(tmp_path / "broken.onnx")
    with pytest.raises(ValueError, match="no provider MoonExecutionProvider"):
        HubertEncoder(hubert_file, ["MoonExecutionProvider"])
    endless = HubertEncoder(write_graph(tmp_path / "endless.onnx", scale=np.inf))
    with pytest.raises(ValueError, match="numbers that are not finite"):
        endless(sound(6480))
