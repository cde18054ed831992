"""Log-mel, whisper states, windows and positions against the reference tensors."""

from __future__ import annotations

import pytest
import torch
from parity.recipe import ATOL_FP32, ATOL_LOG_MEL, golden, golden_metadata, max_error

from talkinghead.nodes.musetalk.whisper import log_mel, positional_encoding

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture(scope="module")
def data():
    return golden("audio_whisper")


@pytest.fixture(scope="module")
def mel(data):
    return log_mel(data["pcm16"].float()[None] / 32768)


@pytest.fixture(scope="module")
def states(whisper, mel):
    with torch.no_grad():
        return whisper(mel)[0]


def test_log_mel(data, mel):
    assert mel.shape == (1, 80, 3000)
    assert mel.dtype == torch.float32
    n = data["log_mel"].shape[1]
    assert max_error(mel[0, :, :n], data["log_mel"]) <= ATOL_LOG_MEL
    fill = float(golden_metadata("audio_whisper")["fill_value_log_mel_cols_336_2999"])
    assert (mel[0, :, n:] - fill).abs().max() <= ATOL_LOG_MEL


def test_log_mel_floor_is_per_piece(data, mel):
    speech = data["pcm16"].float()[None] / 32768
    both = log_mel(torch.cat([speech * 0.01, speech]))
    assert torch.equal(both[1:], mel)
    assert both[0].max() - both[0].min() <= 2.0 + 1e-6  # 8 decades / 4


def test_exact_piece_and_padding_agree(data, mel):
    piece = torch.zeros(1, 480_000)
    piece[0, :51_200] = data["pcm16"].float() / 32768
    assert torch.equal(log_mel(piece), mel)


def test_hidden_states(data, states):
    assert states.shape == (1500, 5, 384)
    assert max_error(states[data["hidden_rows_index"]], data["hidden_rows"]) <= ATOL_FP32


@pytest.mark.parametrize("fps", [25, 30])
def test_windows(data, states, fps):
    rows = int(51_200 / 16_000 * 50)
    for frame, expected in zip(data[f"chunk_fps{fps}_index"].tolist(), data[f"chunk_fps{fps}"], strict=True):
        start = frame * 50 // fps - 4
        window = [
            states[r] if 0 <= r < rows else torch.zeros_like(states[0]) for r in range(start, start + 10)
        ]
        assert max_error(torch.cat(window), expected) <= ATOL_FP32


def test_positional_encoding(data):
    # One float32 step of a phase up to 49: exp and sin of CPUs differ in the last bit (an Intel Xeon: 1.9e-6 from the
    # machine that wrote the reference).
    assert max_error(positional_encoding(50, 384), data["pe_first_50"]) <= 2.0**-18
    assert max_error(positional_encoding(5000, 384)[4999], data["pe_row_4999"]) <= ATOL_FP32
    chunk = data["chunk_fps25"][data["chunk_fps25_index"].tolist().index(40)]
    half = chunk.half() + positional_encoding(50, 384, dtype=torch.float16)
    assert torch.equal(half, data["pe_half_applied"])


@pytest.mark.parametrize("shape", [(51_200,), (1, 480_001)])
def test_log_mel_refuses_what_is_not_a_piece(shape):
    with pytest.raises(ValueError, match="log_mel"):
        log_mel(torch.zeros(shape))


def test_encoder_refuses_another_length(whisper):
    with pytest.raises(ValueError, match="3000"):
        whisper(torch.zeros(1, 80, 100))
