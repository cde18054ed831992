"""Ditto's avatar packets: written, mapped, checked, kept in the pool; MuseTalk's and Ditto's side by side."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from packet_parts import ditto_info, ditto_tensors, info, tensors

from talkinghead.nodes.core.packet import (
    DittoReader,
    MuseTalkReader,
    PacketError,
    delete_packet,
    list_packets,
    open_packet,
    verify_packet,
    write_packet,
)
from talkinghead.nodes.core.pool import AvatarPool, open_resident

FEATURES = "features.safetensors"
NAN = float("nan")


def written(root, **changes):
    """Write a packet with features changed: name -> tensor, or a function of the tensor."""
    made = ditto_tensors()
    for name, change in changes.items():
        old = made[FEATURES][name]
        made[FEATURES][name] = change(old.clone()) if callable(change) else change
    return write_packet(root, ditto_info(), made)


def at(index, value):
    """Return a function that puts `value` at `index` of a tensor."""

    def change(tensor):
        tensor[index] = value
        return tensor

    return change


def test_what_was_written_is_read(tmp_path):
    packet, wanted = write_packet(tmp_path, ditto_info(), ditto_tensors()), ditto_tensors()[FEATURES]
    assert verify_packet(packet.path) == packet
    assert packet.feature_shape == (2, 3, 4, 4)
    assert (packet.axes["K3"], packet.axes["B"]) == (63, 66)
    with packet.open() as reader:
        assert isinstance(reader, DittoReader)
        assert reader.frame(2).shape == (32, 40, 3)
        assert torch.equal(reader.volumes, wanted["f_s"])
        assert torch.equal(reader.volume(1), wanted["f_s"][1])
        assert list(reader.pose) == list(DittoReader.POSE)
        for name, value in {**reader.pose, "c2o": reader.c2o, "found": reader.found}.items():
            assert torch.equal(value, wanted[name]), name
            assert value.dtype == wanted[name].dtype
    assert (reader.volumes, reader.pose, reader.found) == (None, None, None)


def test_the_pose_has_the_names_of_the_motion_extractor(tmp_path):
    from talkinghead.nodes.ditto.motion import MotionOutput

    with written(tmp_path).open() as reader:
        assert MotionOutput(**reader.pose)._fields == DittoReader.POSE


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("exp", at((1, 5), NAN), "frame 1: exp is not finite"),
        ("eye_ball", at((2, 0), float("inf")), "frame 2: eye_ball is not finite"),
        ("c2o", at((0, 0, 0), NAN), "frame 0: c2o is no affine matrix of finite numbers"),
        ("c2o", at((1, 2, 2), 2.0), "frame 1: c2o is no affine matrix"),
        ("c2o", at((2, slice(0, 2), slice(0, 2)), 0.0), "frame 2: c2o makes its crop less than 1 pixel wide"),
        ("c2o", at((1, 0, 2), 41.0), "frame 1: the crop of c2o does not touch the frame"),
        ("c2o", at((1, 0, 2), -9999.0), "frame 1: the crop of c2o lies more than 640 pixels away"),
    ],
)
def test_damage_is_named(tmp_path, name, change, message):
    packet = written(tmp_path, **{name: change})
    with pytest.raises(PacketError, match=message):
        packet.open()


def test_a_crop_may_leave_the_frame_of_a_frame_without_a_face(tmp_path):
    packet = written(tmp_path, c2o=at((1, 0, 2), 41.0), found=at(1, False))
    with packet.open() as reader:
        assert reader.found.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("kp", torch.zeros(3, 64), r"'kp' is F32 \[3, 64\], must be F32 \[3, 63\]"),
        ("f_s", torch.zeros(3, 2, 3, 4, 4), "'f_s' is F32"),
        ("f_s", torch.zeros(3, 2, 3, 4, dtype=torch.float16), "must have 5 axes"),
        ("yaw", torch.zeros(3, 65), r"'yaw' is F32 \[3, 65\], must be F32 \[3, 66\]"),
        ("found", torch.ones(2, dtype=torch.bool), r"'found' is BOOL \[2\], must be BOOL \[3\]"),
    ],
)
def test_headers_are_checked_before_anything_stands(tmp_path, name, tensor, message):
    with pytest.raises(PacketError, match=message):
        written(tmp_path, **{name: tensor})
    assert list_packets([tmp_path]) == []


def test_key_points_come_in_threes(tmp_path):
    with pytest.raises(PacketError, match="kp has 64 numbers, not three"):
        written(tmp_path, kp=torch.zeros(3, 64), exp=torch.zeros(3, 64))


def test_a_missing_tensor_is_named(tmp_path):
    made = ditto_tensors()
    del made[FEATURES]["eye_open"]
    with pytest.raises(PacketError, match="'eye_open' is missing"):
        write_packet(tmp_path, ditto_info(), made)


@pytest.mark.parametrize("length", [0, 7, 2**62])
def test_a_damaged_header_is_refused(tmp_path, length):
    packet = written(tmp_path)
    with (packet.path / FEATURES).open("r+b") as f:
        f.write(struct.pack("<Q", length))
    with pytest.raises(PacketError, match=FEATURES):
        open_packet(packet.path)
    with pytest.raises(PacketError, match="rebuild the avatar"):  # opened before it was damaged
        packet.open()


def test_a_cut_file_is_refused(tmp_path):
    packet = written(tmp_path)
    with (packet.path / FEATURES).open("r+b") as f:
        f.truncate(2000)
    with pytest.raises(PacketError, match="2000 bytes, packet.json says"):
        open_packet(packet.path)


def test_an_engine_does_not_read_the_files_of_the_other(tmp_path):
    packet = written(tmp_path)
    manifest = packet.path / "packet.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "engine": "musetalk"}))
    with pytest.raises(PacketError, match=r"latents.safetensors: missing"):
        open_packet(packet.path)


def test_both_engines_live_in_one_pool(tmp_path):
    pool = AvatarPool(1 << 20)
    face = write_packet(tmp_path, info("lips"), tensors())
    head = write_packet(tmp_path, ditto_info("head"), ditto_tensors())
    with pool.use(face) as a, pool.use(head) as b:
        assert isinstance(a.reader, MuseTalkReader)
        assert isinstance(b.reader, DittoReader)
        assert a.latents is not None
        assert b.latents is None
        assert (a.n_bytes, b.n_bytes) == (3 * 8 * 4 * 4 * 2, 0)
        kept = b.shelf.get("volumes", lambda: b.reader.volumes.clone().numpy().view(_Sized))
        assert b.n_bytes == kept.nbytes == pool.stats().bytes - a.n_bytes
    assert pool.flush() == a.latent_bytes + kept.nbytes
    assert b.reader.volumes is None
    assert pool.stats().items == 0


class _Sized(torch.zeros(0).numpy().__class__):
    """An array that says what it takes, as the pool wants it."""

    @property
    def n_bytes(self):
        return self.nbytes


def test_a_run_without_a_pool_closes_it(tmp_path):
    with open_resident(written(tmp_path)) as resident:
        assert resident.latents is None
        assert resident.reader.volume(0).shape == (2, 3, 4, 4)
    assert resident.reader.volumes is None


def test_rebuilt_while_it_was_held(tmp_path):
    old = written(tmp_path)
    written(tmp_path, exp=at((0, 0), 1.5))
    with pytest.raises(PacketError, match="'anna' was rebuilt"):
        old.open()
    delete_packet(old.path)
    assert list_packets([tmp_path]) == []
