"""LMDM and its sampling against upstream's numbers, with the recipe's weights."""

from __future__ import annotations

import pytest
import torch
from parity.lmdm_recipe import (
    REL_L2_FP32,
    build_lmdm,
    described,
    golden,
    inputs,
    rel_l2,
    seeded,
)

from talkinghead.nodes.ditto.audio2motion import MotionSampler
from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.ditto.schedule import MotionNoise, ddim_steps, sample
from talkinghead.nodes.musetalk.model import on_meta

NETS = golden("nets")


@pytest.fixture(scope="module")
def lmdm() -> LMDM:
    return build_lmdm()


@pytest.fixture(scope="module")
def step999(lmdm):
    """One step of two rows at time 999."""
    with torch.inference_mode():
        return lmdm(*inputs(2), torch.tensor([999, 999]))


def test_keys_order_and_shapes():
    net = on_meta(LMDM, LMDMConfig())
    entries = described("manifest_lmdm")
    own = [(key, list(value.shape)) for key, value in net.state_dict().items()]
    assert own == [(entry["key"], entry["shape"]) for entry in entries["keys"]]
    assert all(p.is_meta for p in net.parameters())
    buffers = {entry["key"] for entry in entries["keys"] if entry["kind"] == "buffer"}
    assert buffers == {key for key, _ in own} - set(dict(net.named_parameters(remove_duplicate=False)))
    assert sum(value.numel() for value in net.state_dict().values()) == entries["n_elements"]


def test_recipe_reproduces_the_probes(lmdm):
    probes = described("weight_probes")
    probes = probes.get("lmdm", probes)
    seen = 0
    for key, value in lmdm.state_dict().items():
        found = probes.get(key) or probes.get(f"lmdm.{key}")
        assert value.flatten()[0].item() == pytest.approx(found[0], abs=3e-7)
        assert value.flatten()[-1].item() == pytest.approx(found[1], abs=3e-7)
        assert value.double().norm().item() == pytest.approx(found[3], rel=1e-6)
        seen += 1
    assert seen == 249


def check(actual, name, every=None):
    expected = NETS[name]
    if every is not None:
        actual = torch.stack([row.reshape(-1)[::every] for row in actual])
    assert rel_l2(actual, expected) <= REL_L2_FP32
    assert (actual - expected).abs().max() <= (5e-3 if "t19.pred_noise" in name else 1e-3)


def test_one_step(step999):
    pred_noise, x_start = step999
    check(pred_noise, "lmdm.b2.t999.pred_noise")
    check(x_start, "lmdm.b2.t999.x_start")
    check(pred_noise[:1], "lmdm.b1.t999.pred_noise")
    check(x_start[:1], "lmdm.b1.t999.x_start")


def test_late_step(lmdm):
    with torch.inference_mode():
        pred_noise, x_start = lmdm(*inputs(2), torch.tensor([19, 19]))
    check(pred_noise, "lmdm.b2.t19.pred_noise")
    check(x_start, "lmdm.b2.t19.x_start")


def test_both_passes_and_one_row(lmdm):
    x, frame, cond = inputs(1)
    with torch.inference_mode():
        both = lmdm.predictions(x, frame, *lmdm.encode(cond), torch.tensor([500]))
    check(both[:, 0], "lmdm.b1.t500.x0_drop0", every=7)
    check(both[:, 1], "lmdm.b1.t500.x0_drop1", every=7)
    guided = both[:, 1] + 2 * (both[:, 0] - both[:, 1])
    assert rel_l2(guided[0], NETS["lmdm.b2.t500.x_start"][0]) <= REL_L2_FP32


def test_rows_with_times_of_their_own(lmdm):
    with torch.inference_mode():
        x_start = lmdm(*inputs(2), torch.tensor([999, 19]))[1]
    check(x_start, "lmdm.b2.mixed_t.x_start", every=7)


@pytest.mark.parametrize("steps", [2, 4, 10, 25, 50])
def test_ddim(lmdm, steps):
    _, frame, cond = inputs(1)
    noises = [seeded(f"ddim.noise.{i}", 1, 80, 265) for i in range(steps - 1)]
    with torch.inference_mode():
        tokens, hidden = lmdm.encode(cond)

        def denoise(x, time):
            return lmdm.denoise(x, frame, tokens, hidden, time)

        made = sample(denoise, ddim_steps(steps), seeded("ddim.xT", 1, 80, 265), noises)
    check(made, f"lmdm.ddim{steps}")


def test_seed_1024_is_upstreams_own_run(lmdm):
    """Two clips: the noise of the steps is drawn before, and once."""
    _, frame, cond = inputs(1)
    before = torch.random.get_rng_state()
    sampler = MotionSampler(lmdm, MotionNoise(1024, 4, 1.0, (80, 265)))
    check(sampler(frame, cond), "lmdm.ddim4.global_seed1024.call0")
    check(sampler(frame, cond), "lmdm.ddim4.global_seed1024.call1", every=7)
    assert torch.equal(before, torch.random.get_rng_state())
