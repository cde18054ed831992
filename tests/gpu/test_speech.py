"""Speech features on a card: as on the CPU, and the host waits for nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.musetalk.whisper import log_mel

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def sound():
    seconds = np.arange(35 * 16000, dtype=np.float32) / 16000
    return MemoryAudio(0.3 * np.sin(2 * np.pi * (200 + 40 * seconds) * seconds, dtype=np.float32), 16000)


def test_mel_is_that_of_the_cpu(sound):
    audio = torch.from_numpy(sound.samples[:, :480_000].copy())
    here, there = log_mel(audio), log_mel(audio.cuda()).cpu()
    print("largest difference", float((here - there).abs().max()))
    assert (here - there).abs().max() <= 1e-3


def test_features_wait_for_nothing(sound):
    model, ctx = MuseTalkModel(), RunContext("cuda")
    speech = Speech(model, sound, Fraction(25))
    list(speech.windows(ctx, 8))  # libraries make their plans and workspaces
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = list(speech.windows(ctx, 8))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wanted = list(speech.windows(RunContext("cpu"), 8))
    assert len(made) == len(wanted) == -(-35 * 25 // 8)
    difference = (torch.cat(made).cpu() - torch.cat(wanted)).abs().max()
    print("largest difference of the tokens", float(difference))
    assert difference <= 0.05
