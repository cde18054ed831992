"""The fused kernels and the fast networks on a card: parity with torch, capture, memory."""

import gc

import pytest
import torch
from kernel_cases import check_composite, check_convolutions, check_kernels

from talkinghead.nodes.core.bench import likeness, record
from talkinghead.nodes.core.kernel_ops import CONV_CAPABILITY, why_not
from talkinghead.nodes.musetalk import fast_fp8
from talkinghead.nodes.musetalk.fast import FastNets, fast_nets
from talkinghead.nodes.musetalk.model import load_embedded

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if reason := why_not(torch.device("cuda")):
        pytest.skip(reason)


def given(nets, n, seed=0):
    torch.manual_seed(seed)
    side = nets.config.latent_size
    latents = torch.randn(n, 2 * nets.config.latent_channels, side, side)
    tokens = torch.randn(n, nets.config.n_tokens, nets.config.whisper.d_model)
    return latents.to("cuda", nets.weights_dtype), tokens.to("cuda", nets.weights_dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_mean_what_torch_says(dtype):
    assert check_kernels("cuda", dtype, [(4, 4, 24), (16, 16, 64), (32, 32, 320), (64, 64, 128)]) > 60


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp8_convolutions_mean_what_torch_says(dtype):
    if torch.cuda.get_device_capability() < CONV_CAPABILITY:
        pytest.skip("the e4m3 convolution needs compute capability 9.0")
    assert check_convolutions("cuda", dtype) == 27


def test_fp8_layers_keep_the_embedded_pictures(monkeypatch):
    if torch.cuda.get_device_capability() < CONV_CAPABILITY:
        pytest.skip("the e4m3 convolution needs compute capability 9.0")
    monkeypatch.setattr(fast_fp8, "_quick", lambda slot: True)
    nets = load_embedded(torch.float16).cuda()
    fast, exact = fast_nets(nets), load_embedded().cuda()
    outcome = fast_fp8.quantise(fast)
    assert outcome.layers
    latents, tokens = fast_fp8.calibration_inputs(nets)
    with torch.no_grad():
        wanted = exact(latents.float(), tokens.float())
    assert likeness(fast(latents, tokens), wanted, peak=2.0)[1] >= 44.9  # there the weights were fp16's


def test_composite_means_what_torch_says():
    check_composite("cuda")


def test_fast_nets_against_fp32():
    exact, nets = load_embedded().cuda(), load_embedded(torch.float16).cuda()
    fast, inputs = fast_nets(nets), given(nets, 5)
    assert isinstance(fast, FastNets)
    with torch.no_grad():
        wanted = exact(*(t.float() for t in inputs))
    cosine, psnr = likeness(fast(*inputs), wanted, peak=2.0)
    assert cosine >= 0.9999
    assert psnr >= 50
    pixels, finite = fast.pixels(*inputs)
    assert finite.all()
    assert (pixels.int() - exact.predict(*(t.float() for t in inputs)).int()).abs().max() <= 4


def test_a_broken_frame_is_named():
    nets = load_embedded(torch.float16).cuda()
    fast, (latents, tokens) = fast_nets(nets), given(nets, 3)
    whole = fast.pixels(latents, tokens)[0]
    latents[1, 0, 0, 0] = float("nan")
    pixels, finite = fast.pixels(latents, tokens)
    assert finite.tolist() == [True, False, True]
    assert torch.equal(pixels[[0, 2]], whole[[0, 2]])


def test_a_captured_call_gives_the_same_bytes_for_new_inputs():
    nets = load_embedded(torch.float16).cuda()
    fast, (latents, tokens) = fast_nets(nets), given(nets, 4)
    replay = record(lambda: fast.pixels(latents, tokens), torch.device("cuda"))
    fresh = given(nets, 4, seed=7)
    latents.copy_(fresh[0])
    tokens.copy_(fresh[1])
    replay.kept[0].zero_()
    replay()
    assert torch.equal(replay.kept[0], fast.pixels(*fresh)[0])


def test_calls_leave_cudnn_and_memory_as_they_were():
    nets = load_embedded(torch.float16).cuda()
    inputs = given(nets, 4)
    fast_nets(nets).pixels(*inputs)  # libraries take their workspaces once
    gc.collect()
    before = torch.cuda.memory_allocated(), torch.backends.cudnn.benchmark
    for _ in range(3):
        fast = fast_nets(nets)
        for _ in range(100):
            fast.pixels(*inputs)
    del fast
    gc.collect()
    assert torch.cuda.memory_allocated() <= before[0] * 1.02
    assert torch.backends.cudnn.benchmark == before[1]
