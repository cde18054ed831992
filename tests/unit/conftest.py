"""A MuseTalk of toy size with random weights: the real code, 32 pixels wide, in milliseconds."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.musetalk import handle as handle_module
from talkinghead.nodes.musetalk.bake import build_avatar
from talkinghead.nodes.musetalk.config import MuseTalkConfig, UNetConfig, VAEConfig, WhisperConfig
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.model import MuseTalkNets, save_nets

TINY = MuseTalkConfig(
    name="tiny",
    crop_size=32,
    whisper=WhisperConfig(d_model=32, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=64),
    unet=UNetConfig(
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=2,
    ),
    vae=VAEConfig(block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4),
)


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        save_nets(MuseTalkNets(TINY), folder)
    return folder


@pytest.fixture
def tiny_model(tiny_weights, monkeypatch):
    """A handle on random weights, in the place of the embedded ones."""
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", tiny_weights)
    return MuseTalkModel()


@pytest.fixture(scope="session")
def ditto_weights(tmp_path_factory):
    from ditto_model_parts import tiny_modules

    from talkinghead.nodes.ditto.model import save_modules

    folder = tmp_path_factory.mktemp("ditto-tiny")
    save_modules(tiny_modules(), folder, torch.float32)
    return folder


@pytest.fixture
def ditto_model(ditto_weights, monkeypatch):
    """A handle on a Ditto of toy size, in the place of the embedded one."""
    from talkinghead.nodes.ditto import handle

    monkeypatch.setattr(handle, "EMBEDDED_DIR", ditto_weights)
    return handle.DittoModel()


@pytest.fixture
def tone():
    """Return a function: seconds -> a mono 16 kHz tone with a swell, as an AudioClip."""

    def make(seconds, rate=16000, hz=220.0):
        t = np.arange(round(seconds * rate)) / rate
        return MemoryAudio(
            (0.4 * np.sin(2 * np.pi * hz * t) * (1 + np.sin(7 * t)) / 2).astype(np.float32), rate
        )

    return make


@pytest.fixture
def avatar(tiny_model, tmp_path):
    """Return a function: colour -> a small looped avatar packet of that colour."""

    def make(
        name="red", colour=(200, 40, 40), n=5, size=(96, 80), boxes=None, fps=Fraction(25), cycle="loop"
    ):
        frames = np.empty((n, size[1], size[0], 3), np.uint8)
        frames[:] = colour
        frames += np.arange(n, dtype=np.uint8)[:, None, None, None]
        boxes = [(20, 10, 70, 70)] * n if boxes is None else boxes
        return build_avatar(RunContext(), tiny_model, frames, boxes, tmp_path / "avatars", name, fps, cycle)

    return make
