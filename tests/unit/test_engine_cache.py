"""Sidecars of built engines: what fits is used, what does not is said with both values, what is damaged never loads."""

import json

import pytest
import torch
from engine_stubs import SPEC

from talkinghead.nodes.core import engine_cache
from talkinghead.nodes.core.engine_cache import (
    EngineCache,
    EngineDamaged,
    config_sha256,
    driver_version,
    engine_key,
    engine_name,
    machine_facts,
    mismatch,
    package_version,
)
from talkinghead.nodes.core.engine_report import describe_engines, row_text
from talkinghead.nodes.core.engine_spec import EngineIdentity, RunnerRequest
from talkinghead.nodes.core.report import Report

CPU = torch.device("cpu")


def request(**changes):
    given = {
        "spec": SPEC, "function": None, "inputs": {}, "batch": 8, "device": CPU, "stream": None, "cache": None,
        "identity": EngineIdentity("fp16", {"width": 8}), "may_build": False, "report": Report(),
    }  # fmt: skip
    return RunnerRequest(**(given | changes))


@pytest.fixture
def key():
    return engine_key(request(), "tensorrt", ("torch",), tensorrt="10.15.1", weights="ab" * 32)


@pytest.fixture
def cache(tmp_path):
    return EngineCache(tmp_path / "engines")


@pytest.fixture
def plan(cache, key):
    """A built engine of one file."""
    path = cache.place(key, ".plan")
    path.parent.mkdir()
    path.write_bytes(bytes(range(100)))
    return cache.write(key, ".plan", {"build_seconds": 12.5})


@pytest.fixture
def folder(cache, key):
    """A built engine of a folder, with what a compiler leaves beside it."""
    path = cache.place(key, ".inductor")
    for name in ("ab/code.py", "fx/graph", "locks/x", "ab/y.lock", "ab/__pycache__/code.pyc"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(name.encode())
    return cache.write(key, ".inductor", {})


def change(cache, engine, **sections):
    path = cache.folder / f"{engine.name}.json"
    data = json.loads(path.read_text("utf-8"))
    for section, values in sections.items():
        if isinstance(values, dict):
            data[section] = {**data[section], **values}
        else:
            data[section] = values
    path.write_text(json.dumps(data), "utf-8")


def files_of(cache):
    return sorted(p.name for p in cache.folder.iterdir())


def test_what_was_built_is_found_again(cache, key, plan):
    report = Report()
    found = cache.find(key, ".plan", report)
    assert found == plan
    assert found.size == 100
    assert found.facts["build_seconds"] == 12.5
    assert len(found.facts["built"]) == 19
    assert report.warnings == {}
    assert files_of(cache) == [f"{plan.name}.json", f"{plan.name}.plan"]


def test_nothing_built_is_no_news(cache, key):
    report = Report()
    assert cache.find(key, ".plan", report) is None
    assert report.warnings == {}
    assert not cache.folder.exists()


def test_names_are_readable_and_tell_engines_apart(key):
    assert engine_name(key) == f"stub-tensorrt-fp16-b8-{config_sha256({'width': 8})[:8]}-cpu"
    others = [
        request(batch=16), request(identity=EngineIdentity("fp32", {"width": 8})),
        request(identity=EngineIdentity("fp16", {"width": 9})),
    ]  # fmt: skip
    names = {engine_name(engine_key(r, "tensorrt", ())) for r in others}
    names |= {
        engine_name(key),
        engine_name(engine_key(request(), "inductor", ())),
        engine_name(key | {"sm": "sm_90"}),
    }
    assert len(names) == 6


def test_an_engine_of_another_card_and_version_is_said_with_both_values(cache, key, plan):
    """Case 25: sidecar of sm_75 and TensorRT 8.6."""
    change(cache, plan, key={"sm": "sm_75", "tensorrt": "8.6.1"})
    report = Report()
    assert cache.find(key, ".plan", report) is None
    [said] = report.warnings
    assert "sm sm_75 instead of cpu" in said
    assert "tensorrt 8.6.1 instead of 10.15.1" in said
    assert "has to be built again" in said
    # It may be right for another machine that shares the folder: it stays until it is built over.
    assert f"{plan.name}.plan" in files_of(cache)
    cache.place(key, ".plan").write_bytes(b"new")
    cache.write(key, ".plan", {})
    assert cache.find(key, ".plan", Report()).size == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_text("{", "utf-8"),
        lambda p: p.write_bytes(b"\xff\xfe\x00"),
        lambda p: p.write_text("[]", "utf-8"),
        lambda p: p.write_text('{"format": "talkinghead-engine", "version": 2}', "utf-8"),
        lambda p: p.write_text('{"format": "talkinghead-engine", "version": 1, "key": []}', "utf-8"),
    ],
)
def test_a_damaged_sidecar_is_set_aside_with_its_engine(cache, key, plan, damage):
    damage(cache.folder / f"{plan.name}.json")
    report = Report()
    assert cache.find(key, ".plan", report) is None
    [said] = report.warnings
    assert f"{plan.name}.json" in said
    assert "set aside as" in said
    assert files_of(cache) == [f"{plan.name}.json.bad", f"{plan.name}.plan.bad"]
    assert cache.find(key, ".plan", Report()) is None


def test_64_random_bytes_are_set_aside(cache, key, plan):
    """Case 25: something else under the engine's name."""
    plan.path.write_bytes(bytes(64))
    report = Report()
    assert cache.find(key, ".plan", report) is None
    assert "has 64 bytes, not 100" in next(iter(report.warnings))
    assert files_of(cache) == [f"{plan.name}.json.bad", f"{plan.name}.plan.bad"]
    # the same without a sidecar, over an older .bad
    plan.path.write_bytes(bytes(64))
    report = Report()
    assert cache.find(key, ".plan", report) is None
    assert "beside it that says what it is" in next(iter(report.warnings))
    assert (cache.folder / f"{plan.name}.plan.bad").read_bytes() == bytes(64)


def test_the_same_size_with_other_bytes_is_found_by_its_hash(cache, plan):
    assert cache.fault_of(plan) is None
    plan.path.write_bytes(bytes(100))
    assert cache.fault_of(plan, hashes=False) is None
    assert cache.fault_of(plan) == f"{plan.name}.plan is not what was built: its SHA-256 is another"


def test_folders_are_checked_file_by_file(cache, key, folder):
    assert sorted(folder.files) == ["ab/code.py", "fx/graph"]
    (folder.path / "locks/x").unlink()
    (folder.path / "fx/later").write_bytes(b"made by a later run")
    assert cache.find(key, ".inductor", Report()) == folder
    (folder.path / "fx/graph").unlink()
    report = Report()
    assert cache.find(key, ".inductor", report) is None
    assert f"{folder.path.name}/fx/graph is missing" in next(iter(report.warnings))
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"payload": "../../etc/passwd"}, "is no name in this folder"),
        ({"payload": ".."}, "is no name in this folder"),
        ({"files": {"../x": [1, "a"]}}, "files must be path"),
        ({"files": {"/x": [1, "a"]}}, "files must be path"),
        ({"files": {"x": 3}}, "files must be path"),
        ({"facts": 3}, "facts is missing or not a dict"),
    ],
)
def test_sidecars_cannot_point_outside(cache, plan, sections, message):
    change(cache, plan, **sections)
    with pytest.raises(EngineDamaged, match=message):
        cache.read(plan.name)


def test_facts_can_be_added(cache, key, plan):
    cache.update(plan.name, parity={"cosine": 1.0, "psnr_db": 61.2}, memory_bytes=5)
    facts = cache.find(key, ".plan", Report()).facts
    assert facts["parity"]["psnr_db"] == 61.2
    assert facts["build_seconds"] == 12.5


def test_a_write_that_fails_leaves_the_old_sidecar(cache, key, plan, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(engine_cache.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        cache.update(plan.name, more=1)
    monkeypatch.undo()
    assert cache.find(key, ".plan", Report()) == plan
    assert len(files_of(cache)) == 2


def test_clear(cache, key, plan, folder):
    (cache.folder / "notes.txt").write_text("the user's")
    other = engine_key(request(batch=2), "tensorrt", ("torch",))
    cache.place(other, ".plan").write_bytes(bytes(10))
    second = cache.write(other, ".plan", {})
    with pytest.raises(ValueError, match="no engine 'absent' in .*; there are stub-"):
        cache.clear([second.name, "absent"])
    assert second.name in cache.names()
    deleted, size = cache.clear([second.name])
    assert deleted == [f"{second.name}.json", f"{second.name}.plan"]
    assert size > 10
    assert cache.names() == [plan.name]
    cache.set_aside(plan.name, "test", Report())
    cache.clear()
    assert files_of(cache) == ["notes.txt"]
    assert EngineCache(cache.folder / "absent").clear() == ([], 0)


def test_what_a_key_says(key):
    machine = machine_facts(CPU)
    assert machine["sm"] == "cpu"
    assert machine["torch"] == torch.__version__ == key["torch"]
    assert "driver" not in key
    assert key["tensorrt"] == "10.15.1"
    assert (
        config_sha256({"a": 1, "b": 2}) == config_sha256({"b": 2, "a": 1}) != config_sha256({"a": 2, "b": 1})
    )
    assert mismatch(key, dict(key)) == ""
    assert mismatch({"a": 1}, {"a": 1, "b": 2}) == "b unknown instead of 2"
    assert package_version("no-such-package-here", "numpy") == __import__("numpy").__version__
    assert package_version("no-such-package-here") == "none"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC version: 11",
            "535.104.05",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
    ],
)
def test_driver_version_is_read_as_the_kernel_says_it(monkeypatch, text, version):
    monkeypatch.setattr(engine_cache.Path, "read_text", lambda self: text)
    assert driver_version() == version


def test_a_list_in_words(cache, key, plan):
    cache.update(plan.name, parity={"cosine": 0.99999, "psnr_db": 55.1})
    [row] = describe_engines(cache.folder, CPU)
    assert row["state"] == "for another machine: tensorrt 10.15.1, here none"
    assert "built in 12.5 s; cosine 0.99999, 55.1 dB against fp32" in row_text(row)
    change(cache, plan, key={"tensorrt": "none"})
    assert [r["state"] for r in describe_engines(cache.folder, CPU)] == ["ready"]
    plan.path.write_bytes(bytes(100))
    assert describe_engines(cache.folder, CPU)[0]["state"] == "ready"
    assert describe_engines(cache.folder, CPU, hashes=True)[0]["state"].startswith("damaged: ")
    (cache.folder / f"{plan.name}.json").write_text("x")
    assert describe_engines(cache.folder, CPU)[0]["state"].startswith(
        f"damaged: {plan.name}.json cannot be read"
    )


def test_a_file_of_the_right_size_is_hashed_before_it_is_used(cache, key, plan):
    """A plan is code for the driver: its size alone says nothing."""
    cache.place(key, ".plan").write_bytes(bytes(100))
    report = Report()
    assert cache.find(key, ".plan", report) is None
    [said] = report.warnings
    assert f"{plan.name}.plan is not what was built: its SHA-256 is another" in said
    assert files_of(cache) == [f"{plan.name}.json.bad", f"{plan.name}.plan.bad"]


def test_a_checked_copy_is_whole_and_only_what_was_recorded(cache, key, folder, tmp_path):
    (folder.path / "planted.py").write_text("code", "utf-8")
    cache.copy_checked(folder, tmp_path / "copy")
    copied = {
        p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("*") if p.is_file()
    }
    assert copied == {"ab/code.py", "fx/graph"}
    (folder.path / "fx" / "graph").write_bytes(b"FX/graph")
    with pytest.raises(EngineDamaged, match="fx/graph is not what was built"):
        cache.copy_checked(folder, tmp_path / "second")
    (folder.path / "fx" / "graph").unlink()
    with pytest.raises(EngineDamaged, match="graph cannot be read"):
        cache.copy_checked(folder, tmp_path / "third")


def test_an_engine_that_names_no_files_is_no_engine(cache, folder, tmp_path):
    change(cache, folder, files={})
    empty = cache.read(folder.name)
    empty = type(empty)(empty.name, empty.path, empty.key, empty.facts, {})
    with pytest.raises(EngineDamaged, match="names no files"):
        cache.copy_checked(empty, tmp_path / "copy")
