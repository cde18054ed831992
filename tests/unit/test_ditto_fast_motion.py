"""The fast form of a step of LMDM: the plain one's numbers out of far fewer kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ditto_motion_parts import TINY
from torch.utils._python_dispatch import TorchDispatchMode

from talkinghead.nodes.ditto.fast_motion import FastStep
from talkinghead.nodes.ditto.lmdm import LMDM
from talkinghead.nodes.ditto.motion_engine import step_stage

CPU = torch.device("cpu")
_NO_KERNEL = ("view", "slice", "select", "expand", "transpose", "split", "chunk", "unbind", "detach", "squeeze", "t.", "_unsafe_view", "alias", "as_strided", "permute")  # fmt: skip


@pytest.fixture(scope="module")
def net() -> LMDM:
    """Three layers; no tensor is what it is at the start, so that scales, shifts and biases all count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = LMDM(replace(TINY, latent_dim=32, n_heads=4, ff_dim=48, n_layers=3)).eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return net.requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_numbers_are_those_of_the_plain_network(net, rows):
    spec, stage = step_stage(net, CPU)
    function, reason = stage.fast_form()
    assert reason is None
    assert not stage.records_fast_form  # it is on the CPU, where nothing is recorded
    for seed in range(3):
        given = spec.sample(rows, CPU, seed)
        given["time"] = given["time"].abs() * 400
        with torch.inference_mode():
            wanted, got = stage(**given)["x0"], function(**given)["x0"]
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert wanted.std() > 0.1


def test_every_part_counts(net):
    """The comparison above would notice a part that is left out: each changes the result by a hundred times its bound."""
    spec, _ = step_stage(net, CPU)
    given = spec.sample(1, CPU, seed=1)
    fast = FastStep(net)
    with torch.inference_mode():
        wanted = fast(**given)
    for name in ("films", "keys", "values", "times"):
        layer = getattr(fast, name)
        for part in ("weight", "bias"):
            if (name, part) == ("keys", "bias"):
                continue  # adds the same to every key's product with a query: softmax does not see it
            before = getattr(layer, part).clone()
            getattr(layer, part).mul_(0.5)
            with torch.inference_mode():
                assert (fast(**given) - wanted).abs().max() > 1e-3 * wanted.abs().max(), (name, part)
            getattr(layer, part).copy_(before)
    with torch.inference_mode():
        fast.turn = fast.turn.conj().resolve_conj()
        assert (fast(**given) - wanted).abs().max() > 1e-3 * wanted.abs().max()


def test_the_network_stays_as_it_was_and_is_shared(net):
    before = {key: value.clone() for key, value in net.state_dict().items()}
    fast = FastStep(net)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    own = {id(p) for p in fast.parameters()} - {id(p) for p in net.parameters()}
    assert len(own) == 8  # four stacked layers
    assert not any(p.requires_grad for p in fast.parameters())


def test_misshapen_inputs_are_told(net):
    spec, _ = step_stage(net, CPU)
    given = spec.sample(2, CPU)
    given["time"] = given["time"][:1]
    with pytest.raises(ValueError, match="give one for every row of the batch"):
        FastStep(net)(**given)


class Counted(TorchDispatchMode):
    """Counts operations that are more than another view."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        if not name.startswith(_NO_KERNEL):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_fewer_operations(net):
    """A layer costs 21 operations instead of 33; what a recorded step costs on a card is mostly their count."""
    spec, stage = step_stage(net, CPU)
    given, counts = spec.sample(1, CPU), []
    for function in (stage, stage.fast_form()[0]):
        with torch.no_grad(), Counted() as counted:
            function(**given)
        counts.append(len(counted.names))
    plain, fast = counts
    assert fast <= plain - 3 * 12 - 5, counts
