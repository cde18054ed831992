"""Cached masks: found by content, whole or not at all."""

from __future__ import annotations

import json
import re
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.wardrobe import mask_file
from talkinghead.nodes.wardrobe.mask_file import (
    MaskFileError,
    content_key,
    folder_below,
    read_mask,
    read_mask_video,
    write_mask,
    write_mask_video,
)


def noise(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def mask():
    return (noise(11, 37, 43) > 0.7).float()


def test_a_round_trip_cuts_at_a_half(tmp_path, mask):
    path = tmp_path / "new" / "a.wmask"
    soft = mask * 0.6 + 0.2
    write_mask(path, soft, "k")
    assert torch.equal(read_mask(path, "k", tuple(mask.shape)), mask)
    assert [p.name for p in path.parent.iterdir()] == ["a.wmask"]
    y, x = torch.meshgrid(torch.arange(960), torch.arange(736), indexing="ij")
    disc = ((x - 300) ** 2 + (y - 400) ** 2 < 200**2).float()[None]
    write_mask(path, disc.repeat(4, 1, 1), "k")
    assert path.stat().st_size < 4 * 5000


def test_names_follow_the_content():
    images = (noise(3, 16, 16, 3) * 255).round() / 255
    name = content_key(images, "sam3|dress")
    assert content_key(images.clone(), "sam3|dress") == name
    assert content_key(images + 1e-5, "sam3|dress") == name
    changed = images.clone()
    changed[2, 15, 15, 2] += 1 / 255 if changed[2, 15, 15, 2] < 0.5 else -1 / 255
    others = [
        content_key(changed, "sam3|dress"),
        content_key(images, "sam3|dresS"),
        content_key(images[:2], "sam3|dress"),
        content_key(images.reshape(3, 8, 32, 3), "sam3|dress"),
    ]
    assert len({name, *others}) == 5


def test_broken_and_foreign_files_are_refused(tmp_path, mask):
    path = tmp_path / "a.wmask"
    write_mask(path, mask, "k")
    whole = path.read_bytes()
    end = whole.index(b"\n") + 1
    head = json.loads(whole[:end])

    def with_head(**changes):
        return json.dumps(head | changes).encode() + b"\n" + whole[end:]

    damaged = bytearray(whole)
    damaged[-5] ^= 255
    bad = {
        "not a .wmask file": b"\x00\xff garbage",
        "ends in its index": whole[: end + 9],
        "ends in frame 10 of 11": whole[:-1],
        "longer than its index": whole + b"x",
        "damaged": bytes(damaged),
        "version 99": with_head(version=99),
        "talkinghead-avatar": with_head(format="talkinghead-avatar"),
        "another clip": with_head(key="other"),
        "claims to hold": with_head(shape=[100000, 100000, 100000]),
        "claims to hold (0": with_head(shape=[0, 4, 4]),
        "claims to hold (11, 37)": with_head(shape=[11, 37]),
        "claims to hold (1, 1, 1000": with_head(shape=[1, 1, 10**400]),
        "is not a .wmask": with_head(shape=[1, 1, 1e400]),
        "a .wmask file": with_head(shape="abc"),
        "not a": b"[" * 4000,
        "is not": b'"format"\n',
        "holds (11, 37, 44)": with_head(shape=[11, 37, 44]),
    }
    for text, data in bad.items():
        path.write_bytes(data)
        with pytest.raises(MaskFileError) as error:
            read_mask(path, "k", tuple(mask.shape))
        assert text in str(error.value)
    path.write_bytes(b"")
    with pytest.raises(MaskFileError, match="not a"):
        read_mask(path, "k")


def test_nothing_is_reserved_for_what_a_head_claims(tmp_path, monkeypatch):
    """A small file that says it is 8 billion pixels, and frames that unpack to more than they should."""
    path = tmp_path / "a.wmask"
    monkeypatch.setattr(mask_file.torch, "empty", lambda *shape: pytest.fail(f"reserved {shape}"))

    def write(shape, *frames, tail=b""):
        head = {"format": "talkinghead-wmask", "version": 1, "key": "k", "shape": shape}
        index = np.array([len(f) for f in frames], "<u4").tobytes()
        path.write_bytes(json.dumps(head).encode() + b"\n" + index + b"".join(frames) + tail)

    for shape, frames, text in (
        ([4000, 1080, 1920], (), "ends in its index"),
        ([1, 80000, 100000], (zlib.compress(b"\0" * 1000),), "cannot hold 1000000000"),
        ([2, 8, 8], (zlib.compress(b"\0" * 8), b""), "frame 1 is damaged .0 bytes"),
    ):
        write(shape, *frames)
        with pytest.raises(MaskFileError, match=text):
            read_mask(path, "k")
    write([1, 8, 8], b"abc")
    path.write_bytes(path.read_bytes()[:-5] + b"\xff\xff\xff\xff")  # 4 GB said to follow
    with pytest.raises(MaskFileError, match="ends in frame 0 of 1"):
        read_mask(path, "k")
    monkeypatch.undo()
    whole = zlib.compress(b"\x5a" * 8)
    for frame, text in (
        (
            zlib.compress(b"\0" * 50_000_000),
            "9 bytes, 8 are expected",
        ),  # a bomb: unpacked to one byte too many
        (zlib.compress(b"\0" * 7), "7 bytes, 8 are expected"),
        (whole[:-4], "damaged"),  # without its checksum
        (whole + b"x", "damaged"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "damaged"),
    ):
        write([1, 8, 8], frame)
        with pytest.raises(MaskFileError, match=text):
            read_mask(path, "k")
    write([1, 8, 8], whole)
    assert read_mask(path, "k").sum() == 32


def test_keys_may_be_any_text():
    images = noise(1, 8, 8, 3)
    keys = ("", "a\0b", "\ud800", "../../x", "kleid 👗", "k" * 1_000_000, "CON", "a\nb")
    names = {content_key(images, key) for key in keys}
    assert len(names) == len(keys)
    assert all(re.fullmatch("[0-9a-f]{40}", name) for name in names)


@pytest.mark.parametrize(
    "name", ["wardrobe_masks", "masks/anna", r"masks\anna", "größe 👗", " a ", "./a", ".a", "x" * 200]
)
def test_folders_below_the_output_folder(tmp_path, name):
    folder = folder_below(tmp_path, name)
    assert folder.parent in (tmp_path, tmp_path / "masks")
    folder.mkdir(parents=True)


@pytest.mark.parametrize(
    "name",
    [
        "", " ", ".", "..", "../up", "a/../../up", r"..\up", "/tmp/masks", r"C:\masks", "c:", r"\\host\share", "a\0b",
        "a\nb", "CON", "con.txt", "a/LPT1", "nul", "x" * 201, "ä" * 101, "a.", "a /b", "a|b", "a?", "\ud800", "~/../..",
    ],
)  # fmt: skip
def test_folders_that_lead_elsewhere_or_that_some_system_cannot_make(tmp_path, name):
    with pytest.raises(ValueError, match="Mask Cache: subfolder is .* expected a folder below ComfyUI's"):
        folder_below(tmp_path, name)


def test_a_link_leads_nowhere_either(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="subfolder is 'link/x'"):
        folder_below(tmp_path / "out", "link/x")


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path, mask):
    path = tmp_path / "new" / "a.wmask"
    both, seen = (mask, 1 - mask), []

    def work(k):
        for _ in range(10):
            write_mask(path, both[k % 2], "k")
            seen.append(read_mask(path, "k"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(seen) == 40
    assert all(any(torch.equal(found, one) for one in both) for found in seen)
    assert [p.name for p in path.parent.iterdir()] == ["a.wmask"]


def test_a_stopped_or_failed_write_leaves_the_old_file(tmp_path, mask, monkeypatch):
    path = tmp_path / "a.wmask"
    write_mask(path, mask, "k")
    with pytest.raises(RunCancelled):
        write_mask(path, 1 - mask, "k", RunContext(is_cancelled=lambda: True))

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(mask_file.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_mask(path, 1 - mask, "k")
    with pytest.raises(OSError, match="disk full"):
        write_mask_video(tmp_path / "a.mkv", mask)
    assert torch.equal(read_mask(path, "k"), mask)
    assert [p.name for p in tmp_path.iterdir()] == ["a.wmask"]


def test_a_lossless_video_for_people(tmp_path, mask):
    path = tmp_path / "mask.mkv"
    for size in ((1, 1, 1), (3, 1, 7), (2, 64, 62), (11, 37, 43)):
        odd = (noise(*size, seed=3) > 0.5).float()
        write_mask_video(path, odd)
        for threshold in (0.01, 0.5, 1.0):
            assert torch.equal(read_mask_video(path, size, threshold), odd)
    write_mask_video(path, mask)
    for size, text in (
        ((10, 37, 43), "11 frames in mask.mkv; expected 10"),
        ((11, 36, 43), "43x37 in mask.mkv"),
    ):
        with pytest.raises(ValueError, match="Mask Cache: file is " + text):
            read_mask_video(path, size)


def test_a_lossy_video_needs_its_threshold(tmp_path):
    import av

    truth = torch.zeros(6, 64, 96)
    truth[:, 20:44, 30:70] = 1
    path = tmp_path / "lossy.mp4"
    with av.open(str(path), "w") as box:
        stream = box.add_stream("libx264", rate=24, options={"crf": "30"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for frame in truth.numpy():
            gray = np.repeat((frame * 255).astype(np.uint8)[..., None], 3, 2)
            box.mux(stream.encode(av.VideoFrame.from_ndarray(gray, format="rgb24")))
        box.mux(stream.encode())
    made = read_mask_video(path, tuple(truth.shape))
    assert set(made.unique().tolist()) == {0.0, 1.0}
    assert float((made != truth).float().mean()) < 0.01
    full = read_mask_video(path, tuple(truth.shape), 0.95)
    assert float(full[:, 24:40, 34:66].mean()) > 0.9  # limited range is not taken for gray
