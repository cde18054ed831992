"""Weights files in every format, the damaged ones and those that would run code."""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from talkinghead.nodes.core.checkpoint import BadCheckpoint, load_state, refuse_by_name
from talkinghead.nodes.core.torch_tar import is_torch_tar, load_torch_tar
from talkinghead.nodes.core.unpickle import UnsafePickle


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return collections.OrderedDict(
        a=torch.randn(3, 4, generator=generator), half=torch.randn(5, generator=generator).half(),
        n=torch.arange(6), scalar=torch.tensor(2.5), empty=torch.zeros(0, 2),
    )  # fmt: skip


def assert_same(found: dict, wanted: dict) -> None:
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value), key


class _PickledTensor:
    def __init__(self, key: int) -> None:
        self.key = key


def write_torch_tar(path, tensors: dict, payload=None, views=(), ndim_of=None) -> None:
    """torch's tar format, written from its description; `test_tar_writer` holds it against torch's own reader."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return str(value.key) if isinstance(value, _PickledTensor) else None

    names = {torch.float32: "Float", torch.float16: "Half", torch.int64: "Long"}
    storages, table = io.BytesIO(), io.BytesIO()
    pickle.dump(len(tensors), storages, 2)
    pickle.dump(len(tensors), table, 2)
    for number, tensor in enumerate(tensors.values()):
        storage = getattr(torch, names[tensor.dtype] + "Storage")
        base = tensor if tensor._base is None else tensor._base
        pickle.dump((1000 + number, "cpu", storage), storages, 2)
        storages.write(struct.pack("<q", base.numel()) + base.contiguous().numpy().tobytes())
        pickle.dump((number, 1000 + number, getattr(torch, names[tensor.dtype] + "Tensor")), table, 2)
        rank = tensor.ndim if ndim_of is None else ndim_of
        table.write(struct.pack("<ii", rank, 0) + struct.pack(f"<{tensor.ndim}q", *tensor.shape))
        table.write(struct.pack(f"<{tensor.ndim}q", *tensor.stride()))
        table.write(struct.pack("<q", tensor.storage_offset()))
    pickle.dump(list(views), storages, 2)
    content = collections.OrderedDict((k, _PickledTensor(n)) for n, k in enumerate(tensors))
    out = io.BytesIO()
    Pickler(out, 2).dump(content if payload is None else payload)
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("sys_info", b"x"), ("storages", storages), ("tensors", table), ("pickle", out)):
            data = data if isinstance(data, bytes) else data.getvalue()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_tar_writer_makes_what_torch_reads(tmp_path, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_torch_tar(tmp_path / "old.pth", state)
        assert_same(torch.load(tmp_path / "old.pth", weights_only=False), state)
    with pytest.raises(RuntimeError, match="tar format"):
        torch.load(tmp_path / "old.pth", weights_only=True)  # why there is a reader of our own


def _save(kind: str, path, state: dict) -> None:
    if kind == "safetensors":
        save_file(dict(state), path)
    elif kind == "tar":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the typed storages
            write_torch_tar(path, state)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.parametrize("suffix", [".pth", ".bin"])
@pytest.mark.parametrize("kind", ["zip", "stream", "tar", "safetensors"])
def test_every_format_gives_the_same_tensors(kind, suffix, tmp_path, state):
    path = tmp_path / f"w{suffix}"
    _save(kind, path, state)
    found = load_state(path)
    assert_same({k: found[k] for k in state}, state)
    assert len(found) == len(state)
    assert is_torch_tar(path) == (kind == "tar")


def test_tar_with_strides_offsets_and_views(tmp_path):
    base = torch.arange(24.0)
    state = {"t": base.reshape(4, 6).t(), "part": base[3:9:2]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_torch_tar(tmp_path / "s.pth", state, views=[(2000, 1000, 4, 8)])
    assert_same(load_torch_tar(tmp_path / "s.pth"), state)


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "params_ema", "params"])
def test_wrapped_state_dicts_are_unwrapped(wrapper, tmp_path, state):
    torch.save({wrapper: state, "epoch": 3, "dims": {"n": 1}}, tmp_path / "w.pt")
    assert_same(load_state(tmp_path / "w.pt"), state)


def test_parallel_prefix_is_dropped_only_when_all_keys_have_it(tmp_path, state):
    torch.save({f"module.{k}": v for k, v in state.items()}, tmp_path / "p.pt")
    assert_same(load_state(tmp_path / "p.pt"), state)
    torch.save({"module.a": state["a"], "b": state["n"]}, tmp_path / "q.pt")
    assert list(load_state(tmp_path / "q.pt")) == ["module.a", "b"]


def test_what_training_frameworks_leave_is_no_obstacle(tmp_path, state, monkeypatch):
    import sys
    import types

    checkpoint = type("ModelCheckpoint", (), {})
    checkpoint.__module__ = "pytorch_lightning.callbacks.model_checkpoint"
    for name in ("pytorch_lightning", "pytorch_lightning.callbacks", checkpoint.__module__):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[checkpoint.__module__].ModelCheckpoint = checkpoint
    content = {"state_dict": state, "callbacks": {checkpoint: {"best": np.float64(0.5)}}}
    torch.save(content, tmp_path / "vae.ckpt")
    for name in ("pytorch_lightning", "pytorch_lightning.callbacks", checkpoint.__module__):
        monkeypatch.delitem(sys.modules, name)
    before = set(torch.serialization.get_safe_globals())
    assert_same(load_state(tmp_path / "vae.ckpt"), state)
    assert set(torch.serialization.get_safe_globals()) == before  # the process is left as found


class _Runs:
    def __reduce__(self):
        return (os.mkdir, ("pwned",))


@pytest.mark.parametrize("kind", ["zip", "stream", "tar"])
def test_code_in_a_file_is_named_and_not_run(kind, tmp_path, monkeypatch, state):
    monkeypatch.chdir(tmp_path)
    if kind == "tar":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_torch_tar("w.pth", {"a": state["a"]}, payload=_Runs())
    else:
        _save(kind, "w.pth", {"a": state["a"], "x": _Runs()})
    with pytest.raises(BadCheckpoint, match=rf"w\.pth.*{os.mkdir.__module__}\.mkdir, which can run code"):
        load_state("w.pth")
    assert [p.name for p in tmp_path.iterdir()] == ["w.pth"]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_code_in_newer_pickles_is_named_and_not_run(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = pickle.dumps(_Runs(), protocol)
    zipped = tmp_path / "z.pth"
    with zipfile.ZipFile(zipped, "w") as box:
        box.writestr("z/data.pkl", plain)
        box.writestr("z/version", "3")
    Path("w.pth").write_bytes(plain)
    for name in ("w.pth", "z.pth"):
        with pytest.raises(
            BadCheckpoint, match=rf"{name}.* asks for {os.mkdir.__module__}\.mkdir, which can run code"
        ):
            load_state(name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.pth", "z.pth"]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_newer_pickle_of_plain_data_is_named(tmp_path):
    path = tmp_path / "w.pth"
    path.write_bytes(pickle.dumps({"epoch": [1, 2]}, 4))
    with pytest.raises(BadCheckpoint, match=r"w\.pth is written in a pickle protocol"):
        load_state(path)
    refuse_by_name(path)


@pytest.mark.parametrize("kind", ["zip", "stream", "tar", "safetensors"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
def test_cut_files_are_named(kind, share, tmp_path):
    path = tmp_path / "w.pth"
    _save(kind, path, {"a": torch.randn(3000), "b": torch.randn(3000)})
    data = path.read_bytes()
    # the tar's padding, up to 10 kB of zeros at the end, may go without loss
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(BadCheckpoint, match=r"w\.pth"):
        load_state(path)


OTHER = {
    "page": (b"<!DOCTYPE html><html>Sign in</html>", "web page"),
    "error": (b'<?xml version="1.0"?><Error>', "web page"),
    "page with a mark": (b"\xef\xbb\xbf<!DOCTYPE html><html>Sign in</html>", "web page"),
    "page in UTF-16": ("\n<html>Sign in</html>".encode("utf-16"), "web page"),
    "page in UTF-16 BE": (b"\xfe\xff" + "<HTML>".encode("utf-16-be"), "web page"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git-lfs pointer"),
    "empty": (b"", "is empty"),
    "text": (b"hello there, no weights", "no weights file"),
    "pickle": (pickle.dumps([1, 2], 2), "w.pth"),
    "foreign zip": (b"PK\x03\x04" + bytes(100), "cannot be read as weights"),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_files_are_named_as_what_they_are(name, tmp_path):
    data, message = OTHER[name]
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(BadCheckpoint, match=message):
        load_state(tmp_path / "w.pth")


def test_missing_file(tmp_path):
    with pytest.raises(BadCheckpoint, match="missing"):
        load_state(tmp_path / "none.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epoch": 3, "loss": 0.1}, "no state dict .found: epoch, loss"),
        ([torch.zeros(1)], "no state dict .found: list"),
        ({"a": torch.zeros(1), "epoch": 3}, "no tensors: epoch .int"),
        (
            {"a": torch.zeros(1), 5: torch.zeros(1), ("b",): torch.zeros(1)},
            r"names tensors by 5, \('b',\), not by text",
        ),
        ({"a": torch.eye(3).to_sparse()}, r"not plain ones: a \(sparse_coo, cpu\)"),
        ({"a": torch.empty(3, device="meta")}, r"not plain ones: a \(strided, meta\)"),
        ({"a": torch.zeros(1).expand(10**9)}, "larger than what it holds: a"),
    ],
)
def test_files_without_a_state_dict(content, message, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(BadCheckpoint, match=message):
        load_state(tmp_path / "w.pth")


def _tar(path, **parts: bytes) -> None:
    with tarfile.open(path, "w:") as tar:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_hostile_tars(tmp_path):
    path = tmp_path / "w.pth"
    record = pickle.dumps(1, 2) + b"\x80\x02K\x05X\x03\x00\x00\x00cpuctorch\nFloatStorage\n\x87."
    _tar(path, storages=record + struct.pack("<q", 1 << 40), tensors=b"", pickle=b"")
    with pytest.raises(UnsafePickle, match="claims 4398046511104 bytes"):
        load_torch_tar(path)
    _tar(path, readme=b"just a tar")
    with pytest.raises(ValueError, match="not one written by torch"):
        load_torch_tar(path)
    good = record + struct.pack("<q2f", 2, 1, 2) + pickle.dumps([], 2)
    table = pickle.dumps(1, 2) + b"\x80\x02K\x00K\x05ctorch\nFloatTensor\n\x87."
    for tail, message in (
        (struct.pack("<iiqqq", 1, 0, 3, 1, 0), "leaves its 2 elements"),
        (struct.pack("<iiqqq", 1, 0, 2, 1, -1), "leaves its 2 elements"),
        (struct.pack("<ii", 1 << 30, 0), "rank 1073741824"),
        (struct.pack("<iiqqq", 1, 0, 1 << 40, 0, 0), None),
    ):
        _tar(path, storages=good, tensors=table + tail, pickle=pickle.dumps({"a": 1}, 2))
        if message:
            with pytest.raises(ValueError, match=message):
                load_torch_tar(path)
        else:  # a stride of 0 repeats one element: large on paper, no memory until it is copied
            assert load_torch_tar(path) == {"a": 1}
