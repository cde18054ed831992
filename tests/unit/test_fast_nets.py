"""The fast form of the networks gives the plain one's pictures: folding, phases, statistics, fallbacks."""

import os
import subprocess
import sys
from dataclasses import replace

import kernel_cases
import pytest
import torch
import torch.nn.functional as F
from support import ROOT
from torch import nn

from talkinghead.nodes.core.kernel_ops import why_not
from talkinghead.nodes.core.rows import Grid, Norm, TorchOps, phase_kernels
from talkinghead.nodes.musetalk.config import EMBEDDED, UNetConfig, VAEConfig
from talkinghead.nodes.musetalk.fast import FastNets, PlainNets, fast_nets
from talkinghead.nodes.musetalk.fast_unet import FastUNet
from talkinghead.nodes.musetalk.fast_vae import FastDecoder
from talkinghead.nodes.musetalk.model import load_embedded
from talkinghead.nodes.musetalk.unet import UNet2DCondition
from talkinghead.nodes.musetalk.vae import AutoencoderKL


@pytest.fixture(scope="module")
def nets():
    return load_embedded()


def given(nets, n, seed=0):
    torch.manual_seed(seed)
    side = nets.config.latent_size
    latents = torch.randn(n, 2 * nets.config.latent_channels, side, side)
    return latents, torch.randn(n, nets.config.n_tokens, nets.config.whisper.d_model)


def test_four_small_kernels_equal_repeated_pixels_and_a_large_one():
    torch.manual_seed(0)
    x, kernel = torch.randn(2, 5, 6, 7, dtype=torch.float64), torch.randn(4, 5, 3, 3, dtype=torch.float64)
    wanted = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), kernel, padding=1)
    edge = F.pad(x, (1, 1, 1, 1))
    for phase, small in enumerate(phase_kernels(kernel)):
        i, j = phase // 2, phase % 2
        got = F.conv2d(edge[:, :, i : i + 7, j : j + 8], small)
        assert torch.allclose(got, wanted[:, :, i::2, j::2], atol=1e-12)


@pytest.mark.parametrize("size", [(4, 4), (8, 12), (24, 24), (3, 5)])
def test_statistics_of_tiles_merge_to_group_normalisation(size):
    """A mean a thousand times the spread: sums of squares in float32 would lose it."""
    torch.manual_seed(1)
    ops, grid = TorchOps(), Grid(2, *size)
    module = nn.GroupNorm(4, 12).requires_grad_(False)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    image, bias = torch.randn(2, 12, *size) + 1000, torch.randn(12) * 5
    wanted = module((image + bias[:, None, None]).double().float())
    rows = grid.pack(image)
    scale, shift = ops.scale_shift(ops.sums(rows, grid), Norm.of(module), bias, grid)
    got = grid.unpack(ops.apply(rows, scale, shift, grid, silu=False))
    exact = nn.GroupNorm(4, 12).double().requires_grad_(False)
    exact.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    exact = exact((image + bias[:, None, None]).double()).float()
    assert (got - exact).abs().max() <= 2 * (wanted - exact).abs().max() + 2e-3


def test_tiles_divide_a_picture():
    for height, width in ((32, 32), (24, 24), (4, 4), (5, 7), (256, 256)):
        grid = Grid(3, height, width)
        assert grid.tiles * grid.tile == height * width
        assert grid.tile <= 128
        assert grid.tile & (grid.tile - 1) == 0


def test_fast_nets_equal_the_plain_ones(nets):
    fast, inputs = fast_nets(nets, TorchOps()), given(nets, 3)
    assert isinstance(fast, FastNets)
    assert fast.reason is None
    with torch.no_grad():
        wanted = nets(*inputs)
    assert (fast(*inputs) - wanted).abs().max() < 1e-4 * wanted.abs().max()
    pixels, finite = fast.pixels(*inputs)
    assert pixels.dtype == torch.uint8
    assert (pixels.int() - nets.predict(*inputs).int()).abs().max() <= 1
    assert finite.tolist() == [True] * 3


def test_the_decoder_takes_the_latents_the_unet_gives(nets):
    fast, inputs = fast_nets(nets, TorchOps()), given(nets, 2)
    assert torch.equal(fast.decode(fast.latents(*inputs))[0], fast.pixels(*inputs)[0])


def test_a_frame_does_not_depend_on_its_neighbours(nets):
    fast, (latents, tokens) = fast_nets(nets, TorchOps()), given(nets, 4)
    together = fast(latents, tokens)
    for row in range(4):
        assert torch.allclose(
            together[row : row + 1], fast(latents[row : row + 1], tokens[row : row + 1]), atol=1e-5
        )


def test_a_broken_frame_is_named_and_breaks_no_other(nets):
    fast, (latents, tokens) = fast_nets(nets, TorchOps()), given(nets, 3)
    whole = fast.pixels(latents, tokens)[0]
    latents[1, 0, 0, 0] = float("nan")
    pixels, finite = fast.pixels(latents, tokens)
    assert finite.tolist() == [True, False, True]
    assert torch.equal(pixels[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("attends", [True, False])
def test_other_shapes_of_unet(attends):
    """Three levels, two layers, 1x1 shortcuts everywhere: the official network's kinds of block, small."""
    torch.manual_seed(2)
    kind = "CrossAttn" if attends else ""
    config = UNetConfig(
        block_out_channels=(16, 32, 32),
        down_block_types=(f"{kind}DownBlock2D", f"{kind}DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", f"{kind}UpBlock2D", f"{kind}UpBlock2D"),
        norm_num_groups=8,
        cross_attention_dim=24,
        attention_head_dim=4,
    )
    unet = UNet2DCondition(config).eval().requires_grad_(False)
    for parameter in unet.parameters():  # no weight at its initial one or zero
        parameter.add_(torch.randn_like(parameter) * 0.02)
    sample, tokens = torch.randn(2, 8, 16, 8), torch.randn(2, 6, 24)
    wanted = unet(sample, tokens)
    got = FastUNet(unet, TorchOps())(sample, tokens)
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_other_shapes_of_decoder():
    torch.manual_seed(3)
    vae = (
        AutoencoderKL(VAEConfig(block_out_channels=(8, 16, 24), norm_num_groups=8))
        .eval()
        .requires_grad_(False)
    )
    for parameter in vae.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.02)
    latents = torch.randn(2, 4, 6, 4)
    wanted = vae.decode(latents / vae.config.scaling_factor)
    got, finite = FastDecoder(vae, TorchOps())(latents)
    assert finite is None
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_without_a_card_the_plain_modules_run_and_say_why(nets):
    fast, inputs = fast_nets(nets), given(nets, 2)
    assert isinstance(fast, PlainNets)
    assert "NVIDIA" in fast.reason
    assert "cpu" in fast.reason
    with torch.no_grad():
        assert torch.equal(fast(*inputs), nets(*inputs))
        pixels, finite = fast.pixels(*inputs)
    assert torch.equal(pixels, nets.predict(*inputs))
    assert finite.all()


def test_reasons_name_what_is_missing(monkeypatch):
    card = torch.device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "8.0" in why_not(card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in why_not(card)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert why_not(card) is None


def test_weights_of_fp32_stay_plain(nets, monkeypatch):
    monkeypatch.setattr("talkinghead.nodes.musetalk.fast.why_not", lambda device: None)
    assert "fp16" in fast_nets(nets).reason


def test_the_kernels_by_tritons_interpreter(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    program = "import runpy, sys; sys.path.append('tests'); runpy.run_path('tests/kernel_cases.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode == kernel_cases.CANNOT:
        pytest.skip(f"no interpreter for the kernels: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_embedded_config_is_what_these_tests_take_it_for():
    assert replace(EMBEDDED).vae.block_out_channels == (16, 24, 48, 64)  # odd widths: masks in the kernels
