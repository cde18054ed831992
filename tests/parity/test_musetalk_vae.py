"""VAE against the reference tensors: moments, decoder, every traced module, half precision, the full size."""

from __future__ import annotations

import copy

import pytest
import torch
from parity.recipe import ATOL_FP32, assert_half_precision, build, golden, max_error

from talkinghead.nodes.core.parity_measure import record
from talkinghead.nodes.musetalk.config import OFFICIAL
from talkinghead.nodes.musetalk.model import to_rgb_uint8
from talkinghead.nodes.musetalk.vae import AutoencoderKL

pytestmark = pytest.mark.usefixtures("no_grad")


def check_against(vae: AutoencoderKL, data: dict) -> None:
    mean, logvar = vae.encode(data["image_in"])
    assert max_error(mean, data["mean"]) <= ATOL_FP32
    assert max_error(logvar, data["logvar"]) <= ATOL_FP32
    scale = vae.config.scaling_factor
    sample = scale * (mean + (logvar / 2).exp() * data["noise_seed77"])
    assert max_error(sample, data["upstream_encode_seed77"]) <= ATOL_FP32
    assert max_error(vae.decode(data["z_in"]), data["decoded"]) <= ATOL_FP32
    picture = to_rgb_uint8(vae.decode(data["decode_latents_in"] / scale)).flip(-1)
    assert max_error(picture, data["decode_latents_bgr_u8"]) <= 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_reduced(vae_reduced, layout):
    check_against(copy.deepcopy(vae_reduced).to(memory_format=layout), golden("vae_reduced"))


def test_reduced_trace(vae_reduced):
    data = golden("vae_reduced_trace")
    names = [key.removeprefix("act.") for key in data if key.startswith("act.")]

    def both():
        mean, logvar = vae_reduced.encode(data["image_in"])
        assert max_error(torch.cat([mean, logvar], 1), data["moments"]) <= ATOL_FP32
        assert max_error(vae_reduced.decode(data["z_in"]), data["decoded"]) <= ATOL_FP32

    seen = record(vae_reduced, names, both)
    assert len(names) == 16
    errors = {name: max_error(seen[name], data[f"act.{name}"]) for name in names}
    assert max(errors.values()) <= ATOL_FP32, errors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(vae_reduced, dtype):
    data = golden("vae_reduced_trace")
    vae = copy.deepcopy(vae_reduced).to(dtype)
    assert_half_precision(vae.decode(data["z_in"].to(dtype)), data["decoded"], dtype)


def test_full_size():
    check_against(build(AutoencoderKL, OFFICIAL.vae), golden("vae_full"))


def test_both_ways_of_upsampling_agree(vae_reduced):
    """The CPU adds the kernel's taps up first; exported graphs and GPUs repeat the pixels."""
    block = vae_reduced.decoder.up_blocks[0].upsamplers[0]
    x = torch.randn(2, 128, 6, 6, generator=torch.Generator().manual_seed(1))
    plain = block.conv(torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
    assert max_error(block(x), plain) <= 1e-5
