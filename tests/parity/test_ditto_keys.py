"""Ditto's image networks: state-dict keys, their order and shapes against the manifests; the recipe; the folding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from talkinghead.nodes.core.parity_measure import OK
from talkinghead.nodes.core.weights import on_meta
from talkinghead.nodes.ditto.config import OFFICIAL
from talkinghead.nodes.ditto.networks import NETWORKS
from talkinghead.nodes.ditto.parity_networks import manifest, official_layout
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens, recipe_network, recipe_state, seeded

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"


@pytest.mark.parametrize("name", NETWORKS)
def test_keys_order_and_shapes(name):
    described = json.loads((GOLDEN / f"manifest_{name}.json").read_text())
    own = [(key, list(shape)) for key, shape in official_layout(name).items()]
    assert own == [(entry["key"], entry["shape"]) for entry in described["keys"]]
    counters = sum(entry["dtype"] == "int64" for entry in described["keys"])
    n_elements = sum(torch.Size(shape).numel() for _, shape in own)
    assert n_elements == described["n_elements"]
    assert counters == sum(key.endswith("num_batches_tracked") for key, _ in own)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_built_without_memory_for_weights(name):
    part, cls = NETWORKS[name]
    module = on_meta(cls, getattr(OFFICIAL, part))
    assert all(parameter.is_meta for parameter in module.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_recipe_reproduces_the_weight_probes(name):
    results = list(manifest(DittoGoldens(GOLDEN), name))
    assert [result.name for result in results] == [
        f"manifest_{name}{part}" for part in ("", ".recipe_ends", ".recipe_norm")
    ]
    assert all(result.status == OK for result in results), [str(r) for r in results]


def test_the_recipe_knows_the_motion_diffusions_rules():
    goldens = DittoGoldens(GOLDEN)
    shapes = {entry["key"]: entry["shape"] for entry in goldens.json("manifest_lmdm")["keys"]}
    kinds = ("freqs", "null_cond_embed", "null_cond_hidden", "in_proj_bias", "linear1.weight", "norm1.weight")
    some = {
        key: shape for key, shape in shapes.items() if key.endswith(kinds) or "in_proj_weight" in key[:40]
    }
    assert all(any(key.endswith(kind) for key in some) for kind in kinds)
    state, probes = recipe_state("lmdm", some), goldens.json("weight_probes")["lmdm"]
    for key, value in state.items():
        first, last, _, norm = probes[key]
        assert [value.flatten()[0].item(), value.flatten()[-1].item()] == pytest.approx(
            [first, last], abs=3e-7
        )
        assert value.double().norm().item() == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("what", ["image", "feature_3d", "kp_source", "kp_driving", "feature"])
def test_inputs_are_those_of_the_probes(what):
    goldens = DittoGoldens(GOLDEN)
    items, probes = goldens.inputs(what, 2), goldens.json("input_probes")
    for b, item in enumerate(items):
        probe = probes[f"{what}.{b}"]
        assert list(item.shape) == probe["shape"]
        flat = item.flatten().double()
        assert flat[:4].tolist() == pytest.approx(probe["first"], abs=1e-6)
        assert flat[-1].item() == pytest.approx(probe["last"], abs=1e-6)
        assert flat.norm().item() == pytest.approx(probe["l2"], rel=1e-6)


def test_a_salt_changes_every_input_and_no_weight(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"input_salt": "other."}))
    salted, plain = DittoGoldens(tmp_path), DittoGoldens(GOLDEN)
    assert torch.equal(salted.draw("input.x.0", (3,)), seeded("other.input.x.0", (3,)))
    for what in ("image", "kp_source", "kp_driving"):
        assert not torch.equal(salted.inputs(what, 1), plain.inputs(what, 1))
    weights = [goldens.net("stitch_network").mlp[0].weight for goldens in (salted, plain)]
    assert torch.equal(*weights)
    assert torch.equal(weights[0], recipe_network("stitch_network").mlp[0].weight)
