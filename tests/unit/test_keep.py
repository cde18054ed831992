"""Takes kept on disk: the same samples back, damage is a miss, the room is bounded, nothing is lost with the disk."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.tts.keep import TakeStore, take_key

RATE = 24000


def sound(n=2400, channels=1, seed=0, rate=RATE) -> MemoryAudio:
    samples = np.random.default_rng(seed).standard_normal((channels, n)).astype(np.float32)
    return MemoryAudio(samples * np.float32(0.7), rate)


@pytest.fixture
def store(tmp_path) -> TakeStore:
    return TakeStore(tmp_path / "models" / "kept")


def test_a_take_comes_back_sample_for_sample(store):
    name, clip = take_key("hello | anna, 7"), sound(channels=2, rate=22050)
    report = Report()
    assert store.find(name, report) is None
    assert not store.folder.exists()
    assert store.put(name, clip, report)
    found = store.find(name, report)
    np.testing.assert_array_equal(found.samples, clip.samples)
    assert (found.sample_rate, found.fingerprint()) == (22050, clip.fingerprint())
    assert report.warnings == {}
    assert [p.name for p in store.folder.iterdir()] == [f"{name}.safetensors"]
    assert TakeStore(store.folder).find(name) is not None


def test_the_key_is_the_text_and_every_sample_of_the_reference():
    reference = sound()
    other = MemoryAudio(reference.samples.copy(), RATE)
    other.samples[0, 1234] += np.float32(1e-6)
    keys = [
        take_key("a"),
        take_key("a "),
        take_key("á\n\ud800"),
        take_key("a", reference),
        take_key("a", other),
        take_key("a", MemoryAudio(reference.samples, 22050)),
    ]
    assert len(set(keys)) == len(keys)
    assert take_key("a", MemoryAudio(reference.samples.copy(), RATE)) == keys[3]
    for empty in ("", " \n\t"):
        with pytest.raises(ValueError, match="key is empty; write into it"):
            take_key(empty, reference)


@pytest.mark.parametrize("name", ["", "../x", "a" * 63, "A" * 64, "/etc/passwd", "a" * 64 + "/.."])
def test_only_hashes_are_names(name, store):
    for use in (store.find, lambda n: store.put(n, sound())):
        with pytest.raises(ValueError, match="is no name of a take"):
            use(name)
    assert not store.folder.exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def other_version(path):
    save_file(load_file(path), path, {"format": "talkinghead-speech", "version": "9"})


def other_rate(path):
    import json
    import struct

    data = path.read_bytes()
    [length] = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    head["__metadata__"]["sample_rate"] = "0"
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut, "cannot be read"),
        (flip, "not those that were put there"),
        (other_version, "version 9"),
        (other_rate, "its header is wrong"),
        (lambda p: p.write_bytes(b""), "cannot be read"),
        (lambda p: p.write_bytes(b"\xff" * 99), "cannot be read"),
    ],
)
def test_damage_is_a_miss_with_a_warning_and_is_replaced(harm, said, store):
    name, clip = take_key("x"), sound()
    store.put(name, clip)
    harm(store.path(name))
    report = Report()
    assert store.find(name, report) is None
    [warning] = report.warnings
    assert said in warning
    assert store.put(name, clip, report)
    np.testing.assert_array_equal(store.find(name).samples, clip.samples)


def age(store, name, seconds):
    then = time.time() - seconds
    os.utime(store.path(name), (then, then))


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    one = 4 * 2400
    store = TakeStore(tmp_path, max_bytes=4 * one)  # three takes with their headers
    names = [take_key(f"take {i}") for i in range(4)]
    foreign = tmp_path / "notes.safetensors"
    foreign.write_bytes(bytes(5 * one))
    for i, name in enumerate(names[:3]):
        store.put(name, sound(seed=i))
        age(store, name, 100 - i)
    assert store.find(names[0]) is not None  # used: now the youngest
    store.put(names[3], sound(seed=3))
    assert [store.find(n) is not None for n in names] == [True, False, True, True]
    assert foreign.is_file()
    takes = [p for p in tmp_path.iterdir() if p != foreign]
    assert sum(p.stat().st_size for p in takes) <= store.max_bytes


def test_a_take_too_long_for_the_room_throws_nothing_out(tmp_path):
    store, report = TakeStore(tmp_path, max_bytes=40000), Report()
    store.put(take_key("short"), sound())
    assert not store.put(take_key("long"), sound(6000), report)
    [warning] = report.warnings
    assert "not kept: it has 24000 bytes, half of the 40000" in warning
    assert store.find(take_key("short")) is not None


def test_a_take_that_is_not_finite_is_not_kept(store):
    clip, report = sound(), Report()
    clip.samples[0, 7] = np.nan
    assert not store.put(take_key("nan"), clip, report)
    assert "not finite" in report.text()
    assert not store.folder.exists()


def test_a_disk_that_fails_is_a_warning_and_leaves_nothing(store, tmp_path, monkeypatch):
    report = Report()
    (tmp_path / "file").write_bytes(b"")
    assert not TakeStore(tmp_path / "file" / "kept").put(take_key("a"), sound(), report)
    assert "cannot be written" in report.text()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert not store.put(take_key("a"), sound(), report)
    assert "No space left on device" in report.text()
    assert list(store.folder.iterdir()) == []
    assert store.put(take_key("a"), sound())


def test_parts_of_dead_processes_go_others_stay(store):
    store.put(take_key("a"), sound())
    old, young = (store.folder / f".part-{n}.safetensors" for n in ("old", "young"))
    for part in (old, young):
        part.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    store.put(take_key("b"), sound())
    assert (old.exists(), young.exists()) == (False, True)
