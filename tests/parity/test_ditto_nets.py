"""Ditto's image networks at full size against the reference tensors, with recipe weights.

The large networks run once each: dense motion and warping take 5 s of one core for an item, the decoder 7 s. What runs
here is one item with all inner tensors, and the chain in both forms; parity runs both batch sizes. That a batch does not
change its items is tested on small networks (tests/unit/test_ditto_nets.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from talkinghead.nodes.core.parity_measure import OK
from talkinghead.nodes.ditto import parity_networks
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"


@pytest.fixture(scope="module")
def goldens():
    return DittoGoldens(GOLDEN)


@pytest.mark.parametrize(
    ("network", "batches"),
    [("stitch", (1, 2)), ("motion", (1, 2)), ("appearance", (2,)), ("warp", (1,)), ("decoder", (1,))],
)
def test_outputs_and_inner_tensors(goldens, network, batches):
    with torch.no_grad():
        results = list(getattr(parity_networks, network)(goldens, batches))
    assert [result.name for result in results] == [f"nets.{network}.b{batch}" for batch in batches]
    assert all(result.status == OK for result in results), [str(result) for result in results]


@pytest.mark.parametrize(
    ("form", "name"), [("chain", "nets.chain"), ("fast_chain", "nets.chain (fast form)")]
)
def test_picture_to_picture(goldens, form, name):
    with torch.no_grad():
        [result] = getattr(parity_networks, form)(goldens)
    assert (result.name, result.status) == (name, OK), str(result)


def test_sample_rules():
    x = torch.arange(2 * 3 * 16 * 16).reshape(2, 3, 16, 16)
    sample = parity_networks.stored_sample
    assert torch.equal(sample(x, "full"), x)
    assert torch.equal(sample(x, "per item: x.reshape(-1)[::100]")[1], x[1].flatten()[::100])
    assert torch.equal(sample(x, "x[:, :, 3::8, 5::8]"), x[:, :, [3, 11]][..., [5, 13]])
    with pytest.raises(ValueError, match="every third"):
        sample(x, "every third")
