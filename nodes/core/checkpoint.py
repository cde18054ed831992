"""Reading weights files from strangers: .safetensors, and torch's .pth/.pt/.bin/.ckpt in all their formats.

Nothing in a file is run: zip and stream formats go through torch's weights-only unpickler, the old tar format through
our own reader. What is not a weights file at all is named as what it is.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .torch_tar import is_torch_tar, load_torch_tar
from .unpickle import restricted_load

_WRAPPERS = ("state_dict", "model_state_dict", "params_ema", "params")
_GET_AGAIN = "get the file again (talkinghead models download)"
_UNSAFE = re.compile(r"GLOBAL ([\w.]+)|global ([\w.]+)|[Uu]nsupported class[: ]*([\w.]+)")
_OTHER_PROTOCOL = re.compile(r"[Uu]nsupported operand")
_STORAGES = ("Float", "Half", "BFloat16", "Double", "Byte", "Bool", "Int", "Long", "Short", "Char")
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class BadCheckpoint(ValueError):
    """A weights file that cannot be read; the message names the file, the reason and what to do."""


def load_state(path: Path | str, entry: str | None = None) -> dict[str, Tensor]:
    """Read the state dict of a weights file, on the CPU.

    `entry`: the state dict to take from a file that holds several by name; a file that holds one alone is read as well.

    Tensors of .safetensors and of torch's zip format are views into the mapped file: copy what has to outlive it.
    A dict wrapped as `state_dict`, `model_state_dict`, `params_ema` or `params` is unwrapped, and so is the
    `module.` in front of every key that data-parallel training leaves.

    Raises:
        BadCheckpoint: missing, cut short, an HTML page or git-lfs pointer saved as weights, a pickle that wants to run
            code, or a file without a state dict.
    """
    path = Path(path)
    _check_kind(path)
    try:
        content = _read(path)
    except BadCheckpoint:
        raise
    except pickle.UnpicklingError as error:
        raise _unsafe(path, error) from error
    except MemoryError:
        raise
    except Exception as error:  # torch, zipfile and safetensors raise what they like for damaged files
        if isinstance(error, ValueError) and str(path) in str(error):
            raise BadCheckpoint(str(error)) from error
        reason = str(error).strip().split("\n")[0][:200]
        raise BadCheckpoint(
            f"{path} cannot be read as weights ({type(error).__name__}: {reason}): it is cut short or damaged, "
            f"{_GET_AGAIN}"
        ) from error
    return _state_of(_entry_of(content, entry, path) if entry else content, path)


def _check_kind(path: Path) -> None:
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing: {_GET_AGAIN}")
    with open(path, "rb") as file:
        head = file.read(512)
    if not head:
        raise BadCheckpoint(f"{path} is empty: {_GET_AGAIN}")
    if head.startswith(b"version https://git-lfs"):
        raise BadCheckpoint(
            f"{path} is a git-lfs pointer of {path.stat().st_size} bytes, not the weights: run `git lfs pull` where it "
            f"came from, or {_GET_AGAIN}"
        )
    if _text_of(head).startswith((b"<!doctype", b"<html", b"<?xml")):
        raise BadCheckpoint(
            f"{path} is a web page saved as weights, usually a login or an error page: {_GET_AGAIN}"
        )


def _text_of(head: bytes) -> bytes:
    """Return what a page starts with in small letters: byte order marks and UTF-16's zeros taken away."""
    for mark in _BOMS:
        if head.startswith(mark):
            head = head.removeprefix(mark).replace(b"\0", b"")
    return head.lstrip().lower()


def _read(path: Path) -> Any:
    with open(path, "rb") as file:
        head = file.read(9)
    if path.suffix == ".safetensors" or head[8:] == b"{":
        from safetensors.torch import load_file

        return load_file(path)
    if is_torch_tar(path):
        return load_torch_tar(path)
    is_zip = head.startswith(b"PK\x03\x04")
    if not is_zip and not head.startswith(b"\x80"):
        raise BadCheckpoint(
            f"{path} is no weights file (it starts with {head!r}): expected .safetensors or a file of torch.save"
        )
    with _known_extras():
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)


def _known_extras() -> contextlib.AbstractContextManager:
    """What training frameworks leave in checkpoints beside tensors, as inert stand-ins."""
    import numpy as np

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):  # no names of one's own before
        return contextlib.nullcontext()
    core = np._core if hasattr(np, "_core") else np.core
    scalar = core.multiarray.scalar
    return torch.serialization.safe_globals(
        [
            (_Inert, "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint"),
            (scalar, "numpy.core.multiarray.scalar"),
            (scalar, "numpy._core.multiarray.scalar"),
            np.dtype, type(np.dtype("f4")), type(np.dtype("f8")), type(np.dtype("i8")),
        ]
    )  # fmt: skip


class _Inert:
    """Takes the place of a training framework's class."""


def refuse_by_name(path: Path) -> None:
    """Raise UnsafePickle for a file that asks for a name in a pickle protocol torch's unpickler does not speak.

    Nothing of it is run. It returns where the pickle asks for tensors alone.
    """
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as box:  # torch compresses nothing: a pickle larger than its file is none
            names = [e for e in box.infolist() if e.filename.endswith("/data.pkl") and e.file_size <= size]
            data = b"".join(box.read(e) for e in names)
    else:
        data = path.read_bytes()
    inert = {("torch._utils", "_rebuild_tensor_v2"): _nothing, ("torch", "Size"): _nothing}
    storages = {("torch", f"{kind}Storage"): _nothing for kind in _STORAGES}
    restricted_load(data, path.name, {**inert, **storages}, _nothing)


def _nothing(*_: Any) -> None:
    """Takes the place of what torch would make of a tensor."""


def _unsafe(path: Path, error: Exception) -> BadCheckpoint:
    if _OTHER_PROTOCOL.search(str(error)):
        try:
            refuse_by_name(path)
        except ValueError as refused:
            return BadCheckpoint(str(refused).replace(path.name, str(path), 1))
        return BadCheckpoint(
            f"{path} is written in a pickle protocol that torch reads only by running it: refused. Get the weights as "
            ".safetensors, or save the state dict with torch.save"
        )
    found = _UNSAFE.search(str(error))
    name = next((part for part in found.groups() if part), "") if found else ""
    if name and name != "torch":
        return BadCheckpoint(
            f"{path} asks for {name}, which can run code: refused. Only tensors are read; get the weights as "
            f".safetensors, or save the state dict alone"
        )
    reason = str(error).strip().split("\n")[-1][:200]
    return BadCheckpoint(f"{path} is damaged or holds more than tensors ({reason}): {_GET_AGAIN}")


def _entry_of(content: Any, entry: str, path: Path) -> Any:
    if not isinstance(content, Mapping) or any(isinstance(value, Tensor) for value in content.values()):
        return content
    if entry not in content:
        found = ", ".join(map(str, list(content)[:6])) or "nothing"
        raise BadCheckpoint(f"{path} has no entry {entry} (found: {found}): it is another kind of file")
    return content[entry]


def _state_of(content: Any, path: Path) -> dict[str, Tensor]:
    state = content
    for key in _WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
            break
    if not isinstance(state, Mapping) or not any(isinstance(v, Tensor) for v in state.values()):
        found = ", ".join(map(str, list(state)[:6])) if isinstance(state, Mapping) else type(state).__name__
        raise BadCheckpoint(
            f"{path} holds no state dict (found: {found or 'nothing'}): it is another kind of file"
        )
    odd = [f"{k} ({type(v).__name__})" for k, v in state.items() if not isinstance(v, Tensor)]
    if odd:
        raise BadCheckpoint(
            f"{path} has entries that are no tensors: {', '.join(odd[:6])}. Save the state dict alone"
        )
    _check_entries(state, path)
    if all(key.startswith("module.") for key in state):
        return {key.removeprefix("module."): value for key, value in state.items()}
    return dict(state)


def _check_entries(state: Mapping[Any, Tensor], path: Path) -> None:
    """Raise BadCheckpoint for names that are no text, and for tensors that are not dense or not in the file."""
    odd = [f"{key!r:.40}" for key in state if not isinstance(key, str)]
    if odd:
        raise BadCheckpoint(
            f"{path} names tensors by {', '.join(odd[:6])}, not by text: it is another kind of file"
        )
    odd = [
        f"{key} ({'quantized' if t.is_quantized else str(t.layout).removeprefix('torch.')}, {t.device.type})"
        for key, t in state.items()
        if t.layout != torch.strided or t.device.type != "cpu" or t.is_quantized
    ]
    if odd:
        raise BadCheckpoint(
            f"{path} has tensors that are not plain ones: {', '.join(odd[:6])}. Save them dense"
        )
    # A few bytes can be told to be a tensor of terabytes, all of one element.
    odd = [key for key, t in state.items() if t.numel() * t.element_size() > t.untyped_storage().nbytes()]
    if odd:
        raise BadCheckpoint(
            f"{path} has tensors larger than what it holds: {', '.join(odd[:6])}. {_GET_AGAIN}"
        )
