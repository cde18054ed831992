"""Networks with recipe weights, built once."""

from __future__ import annotations

import pytest
import torch
from parity.recipe import build, reduced_config

from talkinghead.nodes.musetalk.model import build_nets
from talkinghead.nodes.musetalk.unet import UNet2DCondition
from talkinghead.nodes.musetalk.vae import AutoencoderKL
from talkinghead.nodes.musetalk.whisper import WhisperEncoder


@pytest.fixture(scope="session")
def unet_reduced():
    return build(UNet2DCondition, reduced_config().unet)


@pytest.fixture(scope="session")
def vae_reduced():
    return build(AutoencoderKL, reduced_config().vae)


@pytest.fixture(scope="session")
def whisper():
    return build(WhisperEncoder, reduced_config().whisper)


@pytest.fixture(scope="session")
def nets_reduced(unet_reduced, vae_reduced, whisper):
    """The three as the loader builds them; recipe seeds are those of the unprefixed keys."""
    parts = {"whisper": whisper, "unet": unet_reduced, "vae": vae_reduced}
    state = {f"{part}.{k}": v for part, net in parts.items() for k, v in net.state_dict().items()}
    return build_nets(reduced_config(), state, "recipe")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield
