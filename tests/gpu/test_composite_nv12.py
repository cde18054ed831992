"""The NV12 composite on a card: the CPU's picture, bytes that stay, copies that do not hold up the producer."""

import numpy as np
import pytest
import torch
from kernel_cases import scene

from talkinghead.nodes.core.frames import Placement
from talkinghead.nodes.core.host_copy import HostCopies
from talkinghead.nodes.core.plates import DevicePlates, HostPlates

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


class Reader:
    """What plates need of a packet, from the scene of the kernel tests."""

    def __init__(self):
        self.frames, boxes, crops, self.masks, faces = scene(8)
        self.boxes = torch.tensor(boxes, dtype=torch.int32)
        self.crops = torch.tensor([c[:8] for c in crops], dtype=torch.int32)
        self.faces = torch.from_numpy(faces)

    def frame(self, index):
        return torch.from_numpy(self.frames[index])

    def mask(self, index):
        return self.masks[index]


@pytest.mark.parametrize("slots", [2, 4])
def test_the_card_gives_the_picture_of_the_cpu(slots):
    reader = Reader()
    args = (reader, reader.mask, "bt709", "limited")
    host = HostPlates(*args)
    whole = DevicePlates(*args, torch.device("cuda"))
    card = DevicePlates(*args, torch.device("cuda"), max_bytes=slots * (whole.n_bytes // 4 + 1))
    where = Placement(torch.tensor([0, 1, 2, 3, 1, 0, 2, 3]), torch.tensor([True] * 7 + [False]))
    for _ in range(2):  # the second time with every plate there
        got = card.blend(reader.faces.cuda(), where)
        assert got.device.type == "cuda"
        difference = (got.cpu().int() - host.blend(reader.faces, where).int()).abs()
        assert int(difference.max()) <= 1
    on_card = Placement(where.avatar_index.cuda(), where.usable.cuda())
    assert torch.equal(card.blend(reader.faces.cuda(), on_card), got)


def test_nothing_waits_once_every_plate_is_there():
    reader = Reader()
    card = DevicePlates(reader, reader.mask, "bt709", "limited", torch.device("cuda"))
    index = torch.arange(4, device="cuda")
    where = Placement(index, torch.ones(4, dtype=torch.bool, device="cuda"))
    faces = reader.faces[:4].cuda()
    card.blend(faces, where)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        card.blend(faces, where)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_chunks_reach_the_host_whole_and_in_order():
    copies, sent = HostCopies(4), []
    held = []
    for k in range(12):
        frames = torch.full((3 if k == 11 else 8, 300, 200), k, dtype=torch.uint8, device="cuda")
        frames += 1
        held.append((copies.send(frames), k + 1, len(frames)))
        del frames
        if len(held) == 3:
            arriving, value, count = held.pop(0)
            got = arriving.take()
            assert got.shape == (count, 300, 200)
            assert (got == value).all()
            sent.append(np.array(got))
            arriving.release()
    assert len(sent) == 10
