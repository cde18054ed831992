"""Feature volumes: where they lie, when they are sent, and that every mode gives the same ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.pool import Shelf
from talkinghead.nodes.ditto import volumes as volumes_module
from talkinghead.nodes.ditto.volumes import (
    DeviceVolumes,
    MappedVolumes,
    Sent,
    SlicedVolumes,
    in_turn,
    open_volumes,
)

CPU = torch.device("cpu")
MAPPED = torch.randn(20, 2, 3, 4, 4, generator=torch.Generator().manual_seed(1)).half()
INDEX = torch.tensor([19, 0, 7, 7])


def resident(mapped=MAPPED):
    return SimpleNamespace(reader=SimpleNamespace(volumes=mapped), shelf=Shelf())


def card(**kwargs):
    """A context on torch's device without memory, which stands for a card."""
    return RunContext("meta", **kwargs)


def test_all_modes_give_the_same_rows():
    wanted = torch.stack([MAPPED[k] for k in INDEX.tolist()])
    for volumes in (
        MappedVolumes(MAPPED),
        SlicedVolumes(MAPPED, CPU),
        DeviceVolumes(MAPPED, CPU, torch.float16, lambda: None),
    ):
        assert torch.equal(volumes.send(INDEX).take(), wanted)
    exact = DeviceVolumes(MAPPED, CPU, torch.float32, lambda: None)
    assert exact.n_bytes == 4 * MAPPED.numel()
    assert torch.equal(exact.send(INDEX).take(), wanted.float())


@pytest.mark.parametrize("make", [MappedVolumes, lambda m: DeviceVolumes(m, CPU, m.dtype, lambda: None)])
def test_a_still_is_never_copied(make):
    still = MAPPED[:1]
    rows = make(still).send(torch.zeros(8, dtype=torch.int64)).take()
    assert rows.shape == (8, *still.shape[1:])
    assert rows.stride(0) == 0
    assert torch.equal(rows[5], still[0])


def test_on_a_cpu_they_stay_where_they_are():
    ctx = RunContext()
    for memory in ("auto", "device", "host"):
        volumes = open_volumes(ctx, resident(), torch.float32, memory)
        assert volumes._mapped is MAPPED
    assert open_volumes(ctx, resident(MAPPED[:1]), torch.float32)._mapped.dtype == torch.float32
    assert ctx.report.facts == {}


def test_on_a_card_they_are_kept_with_the_avatar():
    ctx, avatar = card(), resident()
    first = open_volumes(ctx, avatar, torch.float16, "device")
    assert isinstance(first, DeviceVolumes)
    assert open_volumes(ctx, avatar, torch.float16) is first
    assert avatar.shelf.n_bytes == first.n_bytes == MAPPED.nbytes
    assert ctx.report.facts["feature volumes"] == "20 on meta, 0 MB"
    assert open_volumes(ctx, avatar, torch.float32) is not first


def test_auto_leaves_half_of_what_is_free(monkeypatch):
    for free, kind in ((2 * MAPPED.nbytes, DeviceVolumes), (2 * MAPPED.nbytes - 1, SlicedVolumes)):
        monkeypatch.setattr(volumes_module, "_free_bytes", lambda device, free=free: free)
        ctx, avatar = card(), resident()
        assert type(open_volumes(ctx, avatar, torch.float16)) is kind
    assert avatar.shelf.n_bytes == 0
    assert ctx.report.facts["feature volumes"].startswith(
        "20 in the avatar's file, sent batch by batch: 0 MB are more than half"
    )
    monkeypatch.setattr(volumes_module, "_free_bytes", lambda device: 0)
    assert type(open_volumes(card(), resident(), torch.float16, "device")) is DeviceVolumes
    assert type(open_volumes(card(), resident(MAPPED[:1]), torch.float16)) is DeviceVolumes


def test_what_has_no_room_is_sent_batch_by_batch(monkeypatch):
    def full(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(volumes_module, "upload", full)
    ctx, avatar = card(), resident()
    assert type(open_volumes(ctx, avatar, torch.float16, "device")) is SlicedVolumes
    assert list(ctx.report.warnings) == [
        "feature volumes do not fit on meta; they are sent there batch by batch"
    ]
    assert avatar.shelf.n_bytes == 0


def test_a_stop_is_heard_while_they_go_over():
    ctx, avatar = card(is_cancelled=lambda: True), resident()
    with pytest.raises(RunCancelled):
        open_volumes(ctx, avatar, torch.float16, "device")
    assert avatar.shelf.n_bytes == 0


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="memory 'ram' is unknown; use one of auto, device, host"):
        open_volumes(RunContext(), resident(), torch.float32, "ram")


class Recorder:
    def __init__(self, is_ahead):
        self.is_ahead, self.sent = is_ahead, []

    def send(self, index):
        self.sent.append(int(index))
        return Sent(index)


@pytest.mark.parametrize("is_ahead", [True, False])
def test_the_next_batch_is_sent_before_this_one_is_used(is_ahead):
    """None, no more at hand, lets everything before it through."""
    volumes = Recorder(is_ahead)
    batches = [0, 1, None, 2, 3, None, None, 4]
    given = (None if b is None else SimpleNamespace(avatar_index=torch.tensor(b)) for b in batches)
    got, ahead = [], []
    for pair in in_turn(volumes, given):
        got.append(None if pair is None else int(pair[1].take()))
        if pair is not None:
            assert int(pair[0].avatar_index) == got[-1]
        ahead.append(len(volumes.sent) - len([g for g in got if g is not None]))
    assert got == batches
    assert ahead == ([1, 0, 0, 1, 0, 0, 0, 0] if is_ahead else [0] * 8)
