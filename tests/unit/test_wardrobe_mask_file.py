"""Cached masks: found by content, whole or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.wardrobe import mask_file
from talkinghead.nodes.wardrobe.mask_file import (
    MaskFileError,
    content_key,
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
    write_mask_video(path, mask)
    assert torch.equal(read_mask_video(path, tuple(mask.shape)), mask)
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
