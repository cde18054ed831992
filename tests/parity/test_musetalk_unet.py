"""UNet against the reference tensors: outputs, every traced module, half precision, the full size."""

from __future__ import annotations

import copy

import pytest
import torch
from parity.recipe import ATOL_FP32, assert_half_precision, build, golden, max_error

from talkinghead.nodes.core.parity_measure import record
from talkinghead.nodes.musetalk.config import OFFICIAL
from talkinghead.nodes.musetalk.unet import UNet2DCondition
from talkinghead.nodes.musetalk.whisper import positional_encoding

pytestmark = pytest.mark.usefixtures("no_grad")


def with_positions(tokens: torch.Tensor) -> torch.Tensor:
    return tokens + positional_encoding(*tokens.shape[1:], dtype=tokens.dtype)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_reduced(unet_reduced, layout):
    data = golden("unet_reduced")
    unet = copy.deepcopy(unet_reduced).to(memory_format=layout)
    latent, tokens = data["latent_in"], with_positions(data["audio_in"])
    assert max_error(unet(latent, tokens), data["out"]) <= ATOL_FP32
    for timestep in (7, torch.tensor(7), torch.tensor([7])):
        assert max_error(unet(latent[:1], tokens[:1], timestep), data["out_t7_item0"]) <= ATOL_FP32


def test_timestep_may_differ_within_a_batch(unet_reduced):
    data = golden("unet_reduced")
    latent, tokens = (
        data["latent_in"][:1].repeat(2, 1, 1, 1),
        with_positions(data["audio_in"])[:1].repeat(2, 1, 1),
    )
    both = unet_reduced(latent, tokens, torch.tensor([7, 0]))
    assert max_error(both[:1], data["out_t7_item0"]) <= ATOL_FP32
    assert max_error(both[1:], data["out"][:1]) <= ATOL_FP32


def test_reduced_trace(unet_reduced):
    data = golden("unet_reduced_trace")
    names = [key.removeprefix("act.") for key in data if key.startswith("act.")]
    tokens = with_positions(data["audio_in"])
    seen = record(unet_reduced, names, lambda: unet_reduced(data["latent_in"], tokens))
    assert len(names) == 18
    errors = {name: max_error(seen[name], data[f"act.{name}"]) for name in names}
    assert max(errors.values()) <= ATOL_FP32, errors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(unet_reduced, dtype):
    data = golden("unet_reduced_trace")
    unet = copy.deepcopy(unet_reduced).to(dtype)
    out = unet(data["latent_in"].to(dtype), with_positions(data["audio_in"].to(dtype)))
    assert out.dtype == dtype
    assert_half_precision(out, data["out"], dtype)


def test_full_size():
    unet = build(UNet2DCondition, OFFICIAL.unet)  # 3.4 GB, seconds
    data = golden("unet_full")
    assert max_error(unet(data["latent_in"], with_positions(data["audio_in"])), data["out"]) <= ATOL_FP32
    silent = torch.zeros_like(data["audio_in"][:1])
    assert max_error(unet(data["latent_in"][:1], silent), data["out_zero_audio"]) <= ATOL_FP32
