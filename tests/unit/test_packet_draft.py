"""Packets written frame by frame: same bytes as in one go, nothing left of what fails, leftovers swept."""

import json
import os
import time

import cv2
import numpy as np
import pytest
import torch
from packet_parts import ditto_info, ditto_tensors, info, tensors
from safetensors.torch import load_file

from talkinghead.nodes.core import packet as packet_module
from talkinghead.nodes.core.packet import (
    PacketDraft,
    PacketError,
    check_new_place,
    delete_packet,
    open_packet,
    packet_size,
    preview_jpeg,
    sweep_leftovers,
    verify_packet,
    write_packet,
)


def draft_like(root, made, facts, planned=None):
    """Write `made` through a draft that planned for more frames."""
    n, height, width, _ = made["frames.safetensors"]["frames"].shape
    with PacketDraft(root) as draft:
        frames = draft.frames(planned or n, height, width)
        for i in range(n):
            frames[i] = made["frames.safetensors"]["frames"][i].numpy()
            draft.settle()
        for name in ("latents.safetensors", "geometry.safetensors"):
            draft.tensors(name, made[name])
        return draft.finish(facts, b"jpeg")


def names(root):
    return sorted(p.name for p in root.iterdir())


@pytest.mark.parametrize("planned", [3, 4, 1500])
def test_a_draft_gives_the_bytes_of_a_packet_written_in_one_go(tmp_path, planned):
    made = tensors()
    made["frames.safetensors"]["frames"] = torch.arange(3 * 32 * 40 * 3).reshape(3, 32, 40, 3).to(torch.uint8)
    whole = write_packet(tmp_path / "a", info(), made, b"jpeg")
    packet = draft_like(tmp_path / "b", made, info(), planned)
    assert packet.digest == whole.digest
    assert verify_packet(packet.path) == packet
    assert names(tmp_path / "b") == ["anna"]
    # safetensors' own reader agrees with the header we write
    assert torch.equal(
        load_file(packet.path / "frames.safetensors")["frames"], made["frames.safetensors"]["frames"]
    )


def test_the_array_may_outlive_its_draft(tmp_path):
    with PacketDraft(tmp_path) as draft:
        frames = draft.frames(3, 32, 40)
        frames[:] = 7
        draft.tensors("latents.safetensors", tensors()["latents.safetensors"])
        draft.tensors("geometry.safetensors", tensors()["geometry.safetensors"])
        draft.finish(info())
    assert int(frames.sum()) == 7 * frames.size
    with PacketDraft(tmp_path) as draft:
        left = draft.frames(3, 32, 40)
    left[:] = 1
    assert names(tmp_path) == ["anna"]


@pytest.mark.parametrize("planned", [3, 9])
def test_a_system_that_holds_on_to_mapped_files(tmp_path, monkeypatch, planned):
    """Windows: a folder with a mapped file cannot be renamed, so the draft goes on in a copy."""
    whole = write_packet(tmp_path / "a", info(), tensors(), b"jpeg")
    monkeypatch.setattr(packet_module, "_MAPPED_FILES_STAY", True)
    held = []
    real = PacketDraft.frames
    keep = lambda *a: held.append(real(*a)) or held[-1]  # noqa: E731
    monkeypatch.setattr(PacketDraft, "frames", keep)
    moves = []
    real_move = PacketDraft._move_out
    monkeypatch.setattr(PacketDraft, "_move_out", lambda d: moves.append(1) or real_move(d))
    packet = draft_like(tmp_path / "b", tensors(), info(), planned)
    assert packet.digest == whole.digest
    assert moves == [1]
    assert names(tmp_path / "b") == ["anna"]
    assert len(held[0]) == planned
    held[0][:] = 99  # no longer the packet's file
    verify_packet(packet.path)
    monkeypatch.setattr(PacketDraft, "frames", real)
    write_packet(tmp_path / "c", info(), tensors())  # here the array is dropped: no copy
    assert moves == [1]


def test_a_packet_in_use_that_cannot_be_moved_is_named(tmp_path, monkeypatch):
    old = write_packet(tmp_path, info(), tensors())

    def held(*_):
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(packet_module.os, "replace", held)
    with pytest.raises(PacketError, match="cannot be replaced .Access is denied"):
        write_packet(tmp_path, info(), tensors(value=9))
    assert names(tmp_path) == ["anna"]
    assert verify_packet(tmp_path / "anna") == old


def test_more_frames_than_planned_cannot_be_kept(tmp_path):
    with pytest.raises(PacketError, match="4 frames are to be kept of 3"):
        draft_like(tmp_path, tensors(), info(n=4))
    assert names(tmp_path) == []


def test_leaving_a_draft_unfinished_leaves_nothing(tmp_path):
    old = write_packet(tmp_path, info(), tensors())
    with PacketDraft(tmp_path) as draft:
        draft.frames(2, 4, 4)[:] = 1
        assert len(names(tmp_path)) == 2
    with pytest.raises(KeyboardInterrupt), PacketDraft(tmp_path) as draft:
        draft.frames(2, 4, 4)
        raise KeyboardInterrupt
    assert names(tmp_path) == ["anna"]
    assert verify_packet(tmp_path / "anna") == old


def test_what_does_not_belong_into_a_packet_is_named(tmp_path):
    with PacketDraft(tmp_path) as draft:
        with pytest.raises(ValueError, match="has no file 'extra.bin'"):
            draft.tensors("extra.bin", {})
        with pytest.raises(ValueError, match="0 frames of 5x4"):
            draft.frames(0, 4, 5)
        draft.frames(1, 4, 5)
        with pytest.raises(ValueError, match="already"):
            draft.frames(1, 4, 5)
        with pytest.raises(PacketError, match="latents.safetensors: missing"):
            draft.finish(info(n=1, size=(5, 4)))
        with pytest.raises(ValueError, match="avatar name"):
            draft.finish(info("../up"))
    floats = tensors()
    floats["frames.safetensors"]["frames"] = floats["frames.safetensors"]["frames"].float()
    with pytest.raises(PacketError, match="float32, must be uint8"):
        write_packet(tmp_path, info(), floats)
    assert names(tmp_path) == []


def test_too_little_space_is_said_before_a_frame_is_drawn(tmp_path):
    with PacketDraft(tmp_path) as draft:
        with pytest.raises(OSError, match=r"frames\.safetensors.*free disk space"):
            draft.frames(1500, 1 << 15, 1 << 15)
    assert names(tmp_path) == []


def test_space_that_runs_out_while_it_is_taken(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packet_module.os, "posix_fallocate", full, raising=False)
    with PacketDraft(tmp_path) as draft, pytest.raises(OSError, match="No space left on device; free"):
        draft.frames(1, 4, 4)
    assert names(tmp_path) == []


def test_a_place_is_checked_before_a_long_build(tmp_path):
    check_new_place(tmp_path, "anna")
    write_packet(tmp_path, info(), tensors())
    check_new_place(tmp_path, "anna")
    (tmp_path / "mine").mkdir()
    with pytest.raises(PacketError, match="no avatar packet"):
        check_new_place(tmp_path, "mine")
    with pytest.raises(ValueError, match="avatar name"):
        check_new_place(tmp_path, "..")


def test_options_and_a_free_source_are_kept(tmp_path):
    from dataclasses import replace

    facts = replace(
        info(), options={"mask": "jaw", "expand": 1.5}, source={"name": "s", "key": "k", "n": [1]}
    )
    path = write_packet(tmp_path, facts, tensors()).path
    assert open_packet(path).info == facts
    assert json.loads((path / "packet.json").read_text("utf-8"))["version"] == 1
    plain = write_packet(tmp_path, info(), tensors())
    assert "options" not in json.loads((plain.path / "packet.json").read_text("utf-8"))
    assert open_packet(plain.path).info.options == {}


def test_points_are_kept_where_there_are_some(tmp_path):
    made = tensors()
    with write_packet(tmp_path, info(), made).open() as reader:
        assert reader.points is None
    made["geometry.safetensors"]["points"] = torch.arange(3 * 68 * 2).reshape(3, 68, 2).float()
    with write_packet(tmp_path, info(), made).open() as reader:
        assert torch.equal(reader.points, made["geometry.safetensors"]["points"])
    made["geometry.safetensors"]["points"] = torch.zeros(3, 5, 2)
    with pytest.raises(PacketError, match="'points'"):
        write_packet(tmp_path, info(), made)


def test_size_is_that_of_the_files(tmp_path):
    packet = write_packet(tmp_path, info(), tensors(), b"jpeg")
    assert packet_size(packet) == sum(p.stat().st_size for p in packet.path.iterdir())


def test_deleting(tmp_path):
    packet = write_packet(tmp_path, info(), tensors())
    manifest = json.loads((packet.path / "packet.json").read_text("utf-8"))
    (packet.path / "packet.json").write_text(json.dumps({**manifest, "version": 9}), "utf-8")
    delete_packet(packet.path)  # of a version that this pack cannot read
    assert names(tmp_path) == []


def test_what_is_no_packet_is_not_deleted(tmp_path):
    real = write_packet(tmp_path / "real", info(), tensors()).path
    (tmp_path / "link").symlink_to(real)
    for name, content in (("a", None), ("b", "junk"), ("c", "[]"), ("d", '{"format": "other"}')):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "packet.json").write_text(content)
    (tmp_path / "file").write_text("x")
    before = names(tmp_path)
    for name in ("link", "a", "b", "c", "d", "file", "absent"):
        with pytest.raises(PacketError, match="is no avatar packet"):
            delete_packet(tmp_path / name)
    assert names(tmp_path) == before
    verify_packet(real)


def age(path, days):
    then = time.time() - days * 86400
    for entry in (*path.iterdir(), path):
        os.utime(entry, (then, then))


def test_leftovers_of_dead_runs_are_swept_and_live_ones_never(tmp_path):
    for name in (".part-dead", ".gone-dead", ".old-empty", ".part-live", ".part-busy", "plain", ".other-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "frames.safetensors").write_bytes(b"x")
        age(tmp_path / name, 2)
    os.utime(tmp_path / ".part-live")  # a new file
    os.utime(tmp_path / ".part-busy" / "frames.safetensors")  # a file that is written to
    outside = tmp_path / "plain"
    (tmp_path / ".part-link").symlink_to(outside)
    with PacketDraft(tmp_path):
        pass
    assert names(tmp_path) == [".other-x", ".part-busy", ".part-link", ".part-live", "plain"]
    assert names(outside) == ["frames.safetensors"]
    assert sweep_leftovers(tmp_path) == []


def test_the_only_copy_left_by_a_run_that_was_killed_comes_back(tmp_path):
    packet = write_packet(tmp_path, info(), tensors())
    packet.path.rename(tmp_path / ".old-1")
    age(tmp_path / ".old-1", 2)
    sweep_leftovers(tmp_path)
    assert names(tmp_path) == ["anna"]
    assert verify_packet(tmp_path / "anna").digest == packet.digest
    packet.path.rename(tmp_path / ".old-1")
    age(tmp_path / ".old-1", 2)
    newer = write_packet(tmp_path / "x", info(), tensors(value=9))
    newer.path.rename(tmp_path / "anna")
    sweep_leftovers(tmp_path)  # there is one of that name: the old one goes
    assert names(tmp_path) == ["anna", "x"]
    assert open_packet(tmp_path / "anna").digest == newer.digest


def test_a_packet_moved_aside_counts_as_fresh(tmp_path, monkeypatch):
    """Built a year ago, replaced now: another process that sweeps must leave it until the swap is done."""
    packet = write_packet(tmp_path, info(), tensors())
    age(packet.path, 365)
    real, seen = packet_module.os.replace, []

    def replace(a, b):
        real(a, b)
        if ".old-" in str(b):
            seen.append(sweep_leftovers(tmp_path))

    monkeypatch.setattr(packet_module.os, "replace", replace)
    write_packet(tmp_path, info(), tensors(value=9))
    assert seen == [[]]


@pytest.mark.parametrize("size", [(600, 300), (300, 600), (20, 10), (2000, 3)])
def test_previews_are_small(size):
    width, height = size
    frame = np.full((height, width, 3), (200, 40, 40), np.uint8)
    got = cv2.imdecode(np.frombuffer(preview_jpeg(frame), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert max(got.shape[:2]) == min(256, max(size))
    assert np.abs(got.astype(int) - (200, 40, 40)).max() < 8


def test_large_tensors_are_filled_on_their_file(tmp_path):
    made = ditto_tensors()
    whole = write_packet(tmp_path / "a", ditto_info(), made)
    with PacketDraft(tmp_path / "b", "ditto") as draft:
        frames, features = draft.frames(5, 32, 40), made["features.safetensors"]
        frames[:3] = made["frames.safetensors"]["frames"].numpy()
        arrays = draft.arrays("features.safetensors", {k: tuple(t.shape) for k, t in features.items()})
        for i in range(3):
            for name, tensor in features.items():
                arrays[name][i] = tensor[i].numpy()
            draft.settle()
        packet = draft.finish(ditto_info())
    verify_packet(packet.path)
    assert packet.axes == whole.axes
    found = load_file(packet.path / "features.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in features.items())
    arrays["exp"][:] = 9  # outlives its draft
    with PacketDraft(tmp_path, "ditto") as draft, pytest.raises(ValueError, match="tensors f_s, pitch"):
        draft.arrays("features.safetensors", {"f_s": (1,)})
