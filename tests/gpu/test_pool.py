"""Resident packets on a card: loaded once, gone from its memory when idle."""

import pytest
import torch
from packet_parts import info, tensors

from talkinghead.nodes.core.packet import write_packet
from talkinghead.nodes.core.pool import AvatarPool

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def big(tmp_path, name):
    made = tensors()
    made["latents.safetensors"]["latents"] = torch.rand(3, 8, 512, 512).half()
    return write_packet(tmp_path, info(name), made)


def test_idle_packets_leave_nothing_on_the_card(tmp_path):
    """Spec: idle eviction to 0 bytes of the card's memory; torch's own reserve goes too."""
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    now = [0.0]
    pool = AvatarPool(1 << 30, idle_seconds=600, clock=lambda: now[0])
    for name in ("a", "b"):
        packet = big(tmp_path, name)
        with pool.use(packet, "cuda") as resident, packet.open() as reader:
            assert resident.latents.device.type == "cuda"
            assert torch.equal(resident.latents.cpu(), reader.latents)
    assert torch.cuda.memory_allocated() - before[0] == pool.stats().bytes == 2 * 3 * 8 * 512 * 512 * 2
    with pool.use(packet, "cuda"):
        assert pool.stats().hits == 1
    now[0] = 601.0
    pool.evict_idle()
    del resident
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
