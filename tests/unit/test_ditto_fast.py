"""The fast form of Ditto's rendering gives the plain one's numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ditto_model_parts import tiny_modules
from ditto_parts import TINY, inputs, tiny_nets
from torch import nn

from talkinghead.nodes.ditto.fast import FastNets, _RepeatedConv, fold_batch_norms
from talkinghead.nodes.ditto.stages import ditto_stage


@pytest.fixture(scope="module")
def nets():
    return tiny_nets()


@pytest.fixture(scope="module")
def eight():
    given = inputs(TINY, 8)
    return {name: given[name] for name in ("volume", "kp_source", "kp_driving")}


def test_faces_are_those_of_the_plain_networks(nets, eight):
    fast = FastNets(nets)
    with torch.inference_mode():
        plain = nets(*eight.values())
        assert (fast(*eight.values()) - plain).abs().max() <= 2e-5
        alone = torch.cat([fast(*(v[i : i + 1] for v in eight.values())) for i in range(8)])
    assert (alone - plain).abs().max() <= 2e-5
    assert plain.std(0).max() > 0.01  # eight different faces


def test_the_stage_offers_it(eight):
    _, stage = ditto_stage(tiny_modules(), torch.device("cpu"))
    function, reason = stage.fast_form()
    assert reason is None
    with torch.inference_mode():
        got, wanted = function(**eight), stage(**eight)
    assert got.keys() == wanted.keys()
    difference = (got["crops"].int() - wanted["crops"].int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() <= 1e-3


@pytest.mark.parametrize("scale", [1, 2, 3, 4, 8])
def test_a_convolution_of_repeated_pixels(scale):
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(5, 3, 3, 3, generator=g), torch.randn(5, generator=g)
    x = torch.randn(2, 3, 6, 7, generator=g)
    wanted = F.relu(F.conv2d(F.interpolate(x, scale_factor=scale, mode="nearest"), weight, bias, padding=1))
    got = _RepeatedConv(weight, bias, scale)(x)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 1e-5


def test_folding_leaves_the_original_as_it_was_and_shares_the_rest(nets):
    before = {key: value.clone() for key, value in nets.warp.state_dict().items()}
    folded = fold_batch_norms(nets.warp)
    after = nets.warp.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    kinds = {type(module) for module in folded.modules()}
    assert not kinds & {nn.BatchNorm2d, nn.BatchNorm3d}
    dense, plain = folded.dense_motion_network, nets.warp.dense_motion_network
    assert dense.mask.weight.data_ptr() == plain.mask.weight.data_ptr()
    assert dense.grid.data_ptr() == plain.grid.data_ptr()
    assert dense.compress.weight.data_ptr() != plain.compress.weight.data_ptr()


def test_half_precision_stays_half_and_close(eight):
    half = tiny_nets(torch.float16)
    fast = FastNets(half)
    assert {p.dtype for p in fast.parameters()} == {torch.float16}
    volume, *kp = eight.values()
    with torch.inference_mode():
        plain, got = (run(volume.half(), *kp).float() for run in (half, fast))
        exact = tiny_nets()(volume, *kp)
    assert got.dtype == torch.float32
    assert (got - exact).norm() <= 1.5 * (plain - exact).norm()
