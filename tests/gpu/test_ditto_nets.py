"""Ditto's image networks on a card: every golden in float32 and in half precision, capture in a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from talkinghead.nodes.core.parity_measure import NOT_RUN, OK
from talkinghead.nodes.ditto import parity_networks
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"
NETWORKS = ("stitch", "motion", "appearance", "warp", "decoder", "chain", "fast_chain")

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    yield
    for backend, value in zip(backends, before, strict=True):
        backend.allow_tf32 = value


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_goldens(precision):
    goldens = DittoGoldens(GOLDEN, "cuda", precision)
    with torch.no_grad():
        results = [r for name in NETWORKS for r in getattr(parity_networks, name)(goldens)]
    assert sum(result.status == OK for result in results) == 12
    assert all(result.status in (OK, NOT_RUN) for result in results), [str(result) for result in results]


def test_a_captured_frame_is_the_eager_one():
    """Warping and decoding of two frames, replayed with other key points: nothing in them is made on the host."""
    goldens = DittoGoldens(GOLDEN, "cuda", "fp16")
    warp, decoder = goldens.net("warp_network"), goldens.net("decoder")
    volume = goldens.inputs("feature_3d", 2)
    kp = [goldens.inputs(name, 2, cast=False).cuda() for name in ("kp_source", "kp_driving")]
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                decoder(warp(volume, *kp))
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            image = decoder(warp(volume, *kp))
        kp[1].add_(0.05)
        graph.replay()
        expected = decoder(warp(volume, *kp))
    assert (image.float() - expected.float()).abs().max().item() <= 4e-3
