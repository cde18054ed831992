"""Ditto packets made on the card: the same as those of the CPU within what half precision and its order of sums change."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from ditto_model_parts import tiny_modules

from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.core.packet import verify_packet
from talkinghead.nodes.ditto import handle
from talkinghead.nodes.ditto.bake import bake
from talkinghead.nodes.ditto.given_faces import given
from talkinghead.nodes.ditto.model import save_modules

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_packet_of_the_card_is_that_of_the_cpu(tmp_path, monkeypatch, precision):
    save_modules(tiny_modules(), tmp_path / "model", torch.float32)
    monkeypatch.setattr(handle, "EMBEDDED_DIR", tmp_path / "model")
    frames = np.random.default_rng(1).integers(0, 256, (11, 80, 96, 3), dtype=np.uint8)
    readers = []
    for device, used in (("cpu", "fp32"), ("cuda", precision)):
        model, stream = (
            handle.DittoModel(precision=used),
            TensorStream(torch.from_numpy(frames), Fraction(25)),
        )
        packet = bake(
            RunContext(device), model, stream, given([(20, 15, 60, 65)]), tmp_path, f"on-{device}", "loop"
        )
        readers.append(verify_packet(packet.path).open())
    with readers[0] as host, readers[1] as card:
        off = (host.volumes.float() - card.volumes.float()).abs().max()
        assert off <= (0.02 if precision == "fp16" else 0.004) * host.volumes.float().abs().max()
        for name, rows in host.pose.items():
            assert torch.allclose(card.pose[name], rows, atol=2e-3, rtol=2e-3), name
        assert torch.equal(card.c2o, host.c2o)
