"""Reading weights files from strangers: .safetensors, and torch's .pth/.pt/.bin/.ckpt in all their formats.

Nothing in a file is run: zip and stream formats go through torch's weights-only unpickler, the old tar format through
our own reader. What is not a weights file at all is named as what it is.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .torch_tar import is_torch_tar, load_torch_tar

_WRAPPERS = ("state_dict", "model_state_dict", "params_ema", "params")
_GET_AGAIN = "get the file again (talkinghead models download)"
_UNSAFE = re.compile(r"GLOBAL ([\w.]+)|global ([\w.]+)|[Uu]nsupported (?:class|operand) ([\w.]+)")


class BadCheckpoint(ValueError):
    """A weights file that cannot be read; the message names the file, the reason and what to do."""


def load_state(path: Path | str) -> dict[str, Tensor]:
    """Read the state dict of a weights file, on the CPU.

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
    return _state_of(content, path)


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
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise BadCheckpoint(
            f"{path} is a web page saved as weights, usually a login or an error page: {_GET_AGAIN}"
        )


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


def _unsafe(path: Path, error: Exception) -> BadCheckpoint:
    found = _UNSAFE.search(str(error))
    name = next((part for part in found.groups() if part), "") if found else ""
    if name and name != "torch":
        return BadCheckpoint(
            f"{path} asks for {name}, which can run code: refused. Only tensors are read; get the weights as "
            f".safetensors, or save the state dict alone"
        )
    reason = str(error).strip().split("\n")[-1][:200]
    return BadCheckpoint(f"{path} is damaged or holds more than tensors ({reason}): {_GET_AGAIN}")


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
    if all(key.startswith("module.") for key in state):
        return {key.removeprefix("module."): value for key, value in state.items()}
    return dict(state)
