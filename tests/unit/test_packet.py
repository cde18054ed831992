"""Avatar packets: atomic, checked, named errors, no file outside the root."""

import json
import os
import struct
from fractions import Fraction

import pytest
import torch
from packet_parts import info, tensors

from talkinghead.nodes.core import packet as packet_module
from talkinghead.nodes.core.packet import (
    PacketError,
    check_id,
    find_packet,
    list_packets,
    open_packet,
    verify_packet,
    write_packet,
)


def test_round_trip(tmp_path):
    made = write_packet(tmp_path, info(), tensors(), preview=b"jpeg")
    again = verify_packet(tmp_path / "anna")
    assert again == made
    assert again.info == info()
    with again.open() as reader:
        assert reader.frame(2).shape == (32, 40, 3)
        assert reader.mask(1).shape == (33, 34)
        assert int(reader.mask(2)[0, 0]) == 2
        assert reader.latents.dtype == torch.float16
    assert sorted(p.name for p in tmp_path.iterdir()) == ["anna"]


def test_others_may_read_what_the_umask_allows(tmp_path):
    path = write_packet(tmp_path, info(), tensors()).path
    (tmp_path / "plain").write_text("x")
    for file in path.iterdir():
        assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode, file.name
    (tmp_path / "folder").mkdir()
    assert path.stat().st_mode == (tmp_path / "folder").stat().st_mode


@pytest.mark.parametrize("name", ["caña 日本 x", "video 😀", "a", "x" * 100])
def test_names_of_any_script(tmp_path, name):
    write_packet(tmp_path, info(name), tensors())
    assert [p.name for p in list_packets([tmp_path])] == [name]
    assert open_packet(find_packet(name, [tmp_path])).info.id == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "..",
        ".hidden",
        "a/b",
        "a\\b",
        "../up",
        "/abs",
        "C:",
        "nul",
        "con.txt",
        "end.",
        "x" * 121,
        "a\n",
    ],
)
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="avatar name"):
        check_id(name)
    with pytest.raises(ValueError, match="avatar name"):
        write_packet(tmp_path, info(name), tensors())
    with pytest.raises(ValueError, match="avatar name"):
        find_packet(name, [tmp_path])


def test_rebuilding_replaces_atomically_and_a_failure_keeps_the_old_one(tmp_path, monkeypatch):
    old = write_packet(tmp_path, info(), tensors(value=7))
    new = write_packet(tmp_path, info(), tensors(value=9))
    assert new.digest != old.digest
    with pytest.raises(PacketError, match="rebuilt"):
        old.open()
    monkeypatch.setattr(packet_module, "file_sha256", lambda p: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_packet(tmp_path, info(), tensors(value=1))
    monkeypatch.undo()
    assert verify_packet(tmp_path / "anna").digest == new.digest
    assert [p.name for p in tmp_path.iterdir()] == ["anna"]


def edit(path, **changes):
    manifest = json.loads((path / "packet.json").read_text("utf-8"))
    manifest.update(changes)
    (path / "packet.json").write_text(json.dumps(manifest), "utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "zip"}, "format"),
        ({"engine": "wav2lip"}, "wav2lip"),
        ({"cycle": "bounce"}, "bounce"),
        ({"n_frames": 4}, "frames"),
        ({"size": [41, 32]}, "frames"),
        ({"fps": "fast"}, "fast"),
        ({"id": "bob"}, "bob"),
        ({"files": None}, "files"),
        ({"files": {"frames.safetensors": "x"}}, "bad entry 'frames.safetensors'"),
        ({"files": {"../../etc/hostname": {"size": 1, "sha256": ""}}}, "bad entry '../../etc/hostname'"),
        ({"n_frames": float("inf")}, "infinity"),
        ({"size": [float("inf"), 1]}, "infinity"),
        ({"model": None}, "packet.json: field 'model' is no JSON object"),
        ({"model": "x"}, "packet.json: field 'model'"),
        ({"source": [1]}, "packet.json: field 'source'"),
        ({"options": [["blur", 1]]}, "packet.json: field 'options'"),
        *(
            ({"files": {"preview.jpg": entry}}, "bad entry 'preview.jpg'")
            for entry in (
                {"size": "big", "sha256": ""},
                {"size": -5, "sha256": ""},
                {"size": True, "sha256": ""},
                {"size": 1.5, "sha256": ""},
                {"size": 1, "sha256": None},
                {"size": 1},
            )
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_named(tmp_path, change, message):
    path = write_packet(tmp_path, info(), tensors()).path
    edit(path, **change)
    with pytest.raises(PacketError, match=message):
        open_packet(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 100_000, b"\xff\xfe", b"\0" * 9])
def test_a_manifest_that_is_none_is_named(tmp_path, content):
    path = write_packet(tmp_path, info(), tensors()).path
    (path / "packet.json").write_bytes(content)
    for read in (open_packet, verify_packet):
        with pytest.raises(PacketError, match=r"packet\.json: "):
            read(path)
    with pytest.raises(PacketError, match="is no avatar packet"):
        packet_module.delete_packet(path)
    (path / "packet.json").unlink()
    (path / "packet.json").mkdir()
    with pytest.raises(PacketError, match=r"packet\.json: cannot be read \(Is a directory|Permission denied"):
        open_packet(path)


def test_a_damaged_packet_moved_aside_does_not_stop_the_sweep(tmp_path):
    old = write_packet(tmp_path, info(), tensors()).path.rename(tmp_path / ".old-1")
    (old / "packet.json").write_bytes(b"[" * 100_000)
    for path in (old, *old.iterdir()):
        os.utime(path, (0, 0))
    assert packet_module.sweep_leftovers(tmp_path) == [old]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "anna").write_text("mine")
    with pytest.raises(PacketError, match="anna is there and is no avatar packet"):
        write_packet(tmp_path, info(), tensors())
    with pytest.raises(PacketError, match="anna/packet.json: cannot be read|not found"):
        open_packet(tmp_path / "anna")
    assert list_packets([tmp_path, tmp_path / "not there yet"]) == []
    for root in (tmp_path / "anna", tmp_path / "anna" / "avatars"):
        for use, arguments in (
            (list_packets, ([root],)),
            (find_packet, ("bob", [root])),
            (write_packet, (root, info(), tensors())),
        ):
            with pytest.raises(PacketError, match="anna is not a folder"):
                use(*arguments)
    assert (tmp_path / "anna").read_text() == "mine"


def test_damaged_files_are_named(tmp_path):
    path = write_packet(tmp_path, info(), tensors()).path
    latents = path / "latents.safetensors"
    whole = latents.read_bytes()
    latents.write_bytes(whole[:-10])
    with pytest.raises(PacketError, match="latents.safetensors: .* bytes"):
        open_packet(path)
    latents.write_bytes(struct.pack("<Q", 1 << 60) + whole[8:])
    with pytest.raises(PacketError, match="no safetensors header"):
        open_packet(path)
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    latents.write_bytes(flipped)
    open_packet(path)
    with pytest.raises(PacketError, match="latents.safetensors: content"):
        verify_packet(path)
    latents.unlink()
    with pytest.raises(PacketError, match="latents.safetensors: missing"):
        open_packet(path)


@pytest.mark.parametrize(
    "header",
    [b"[]", b"null", b'{"latents": 5}', b'{"latents": {}}', b"[" * 5000,
     b'{"latents": {"dtype": "F16", "shape": 5, "data_offsets": [0, 1]}}',
     b'{"latents": {"dtype": "F16", "shape": [3, "8", 4, 4], "data_offsets": [0, 9]}}',
     b'{"latents": {"dtype": "F16", "shape": [3, 8, 4, 4], "data_offsets": [0, 9]}}'],
)  # fmt: skip
def test_a_header_of_another_form_is_named(tmp_path, header):
    packet = write_packet(tmp_path, info(), tensors())
    latents = packet.path / "latents.safetensors"
    size = latents.stat().st_size
    latents.write_bytes((struct.pack("<Q", len(header)) + header).ljust(size, b" "))
    manifest = json.loads((packet.path / "packet.json").read_text("utf-8"))
    manifest["files"]["latents.safetensors"]["size"] = latents.stat().st_size
    edit(packet.path, files=manifest["files"])
    with pytest.raises(PacketError, match="latents|invalid"):
        open_packet(packet.path).open()


def test_what_is_no_packet_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear diary")
    (tmp_path / "plain").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("mine", "plain", "link"):
        with pytest.raises(PacketError, match="no avatar packet"):
            write_packet(tmp_path, info(name), tensors())
    assert (tmp_path / "mine" / "notes.txt").read_text() == "dear diary"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "mine", "plain"]


def test_ctrl_c_between_the_two_renames_keeps_the_old_packet(tmp_path, monkeypatch):
    old = write_packet(tmp_path, info(), tensors(value=7))
    real, calls = packet_module.os.replace, []

    def replace(a, b):
        calls.append(b)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr(packet_module.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_packet(tmp_path, info(), tensors(value=9))
    monkeypatch.undo()
    assert verify_packet(tmp_path / "anna").digest == old.digest
    assert [p.name for p in tmp_path.iterdir()] == ["anna"]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    import safetensors.torch
    from safetensors import SafetensorError

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        write_packet(tmp_path, info(), tensors())
    assert list(tmp_path.iterdir()) == []


def test_builds_of_one_id_at_the_same_time_leave_one_whole_packet(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    def build(value):
        for _ in range(8):
            write_packet(tmp_path, info(), tensors(value=value))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, range(4)))
    assert [p.name for p in tmp_path.iterdir()] == ["anna"]
    verify_packet(tmp_path / "anna")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("boxes", [[-1, 2, 30, 31]] * 3),
        ("boxes", [[1, 2, 41, 31]] * 3),
        ("boxes", [[30, 2, 1, 31]] * 3),
        ("crops", [[5, 0, 39, 32, 0, 0, 0, 0]] * 3),
        ("crops", [[0, 0, 34, 32 + i, 2, 2, 29, 29] for i in range(3)]),
        ("crops", [[0, 0, 34, 32 + i, 1, 2, 29, 5000] for i in range(3)]),
        ("mask_shapes", [[32, 34], [33, 34], [33, 34]]),
        ("mask_offsets", [0, 1088, 2210, 99999]),
    ],
)
def test_geometry_that_does_not_fit_is_named_before_anything_is_drawn(tmp_path, name, value):
    made = tensors()
    old = made["geometry.safetensors"][name]
    made["geometry.safetensors"][name] = torch.tensor(value, dtype=old.dtype)
    packet = write_packet(tmp_path, info(), made)
    with pytest.raises(PacketError, match="anna"):
        packet.open()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, -700.0])
def test_landmarks_far_away_are_named_unless_their_frame_has_no_face(tmp_path, value):
    made = tensors()
    points = made["geometry.safetensors"]["points"] = torch.zeros(3, 68, 2)
    points[1, 5, 0] = value
    packet = write_packet(tmp_path, info(), made)
    with pytest.raises(PacketError, match="'anna', frame 1: landmarks"):
        packet.open()
    made["geometry.safetensors"]["found"][1] = False
    write_packet(tmp_path, info(), made).open().close()


def test_the_shape_of_the_latents_is_known_without_mapping_them(tmp_path):
    assert write_packet(tmp_path, info(), tensors()).feature_shape == (8, 4, 4)
    assert open_packet(tmp_path / "anna").feature_shape == (8, 4, 4)


def test_a_preview_that_is_gone_is_named(tmp_path):
    path = write_packet(tmp_path, info(), tensors(), preview=b"jpeg").path
    (path / "preview.jpg").unlink()
    with pytest.raises(PacketError, match="preview.jpg: missing"):
        verify_packet(path)


def test_four_channel_latents_of_one_picture_are_not_an_avatar(tmp_path):
    with pytest.raises(PacketError, match="5 channels"):
        write_packet(tmp_path, info(), tensors(channels=5))
    assert list(tmp_path.iterdir()) == []


def test_frames_follow_time_not_index(tmp_path):
    avatar = write_packet(tmp_path, info(n=30, fps=Fraction(30)), tensors(n=30))
    at = avatar.avatar_indices(0, 25, Fraction(25))
    assert at.tolist() == [i * 30 // 25 for i in range(25)]
    assert avatar.avatar_indices(10, 5, Fraction(25)).tolist() == at[10:15].tolist()
    assert avatar.avatar_indices(0, 4, Fraction(60)).tolist() == [0, 0, 1, 1]


def test_an_unknown_avatar_lists_the_known_ones(tmp_path):
    write_packet(tmp_path, info(), tensors())
    with pytest.raises(PacketError, match="there are: anna"):
        find_packet("bob", [tmp_path])
    with pytest.raises(PacketError, match="none"):
        find_packet("bob", [tmp_path / "absent"])
