"""Reading pickles from strangers: containers, numbers, strings and plain numpy arrays, nothing that runs code.

A pickle is a program. Three guards stand before its results: the opcodes are walked first (no extension codes, no
lengths beyond the data, no memo index that would reserve gigabytes), a name outside the list is refused, and what
the listed names do is done by stand-ins of our own, which check sizes before they allocate.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_REFUSED_OPCODES = frozenset({"EXT1", "EXT2", "EXT4", "NEXT_BUFFER"})
_PERSISTENT_OPCODES = frozenset({"PERSID", "BINPERSID"})
_MEMO_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_DTYPE = re.compile(r"^[<>|=]?(b1|\?|[iu][1248]|f[248]|c8|c16|[SU]\d{1,6})$")
_FAULTS = (
    pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OverflowError,
    AssertionError, RecursionError, MemoryError, SystemError, NotImplementedError, UnicodeError, ImportError,
)  # fmt: skip


class UnsafePickle(ValueError):
    """The data is no pickle, is damaged, or wants something that is not on the list."""


def restricted_load(
    data: bytes,
    source: str,
    extra: Mapping[tuple[str, str], Any] | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
) -> Any:
    """Unpickle `data` without running any of it.

    Args:
        data: one pickle; bytes after its end are ignored.
        source: file name, for the message.
        extra: further (module, name) -> function called in its place, or a value that stands for it.
        persistent_load: resolves persistent ids; without it a pickle that has some is refused.

    Returns:
        None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, OrderedDict, numpy
        scalars, dtypes and arrays of plain numbers or strings.

    Raises:
        UnsafePickle: names `module.name` of what was asked for, or the damage.
    """
    return load_first(data, source, extra, persistent_load)[0]


def load_first(
    data: bytes | memoryview,
    source: str,
    extra: Mapping[tuple[str, str], Any] | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
) -> tuple[Any, int]:
    """As `restricted_load`, with the number of bytes the pickle took: for files that hold several."""
    try:
        end = _walk(data, source, persistent_load is not None)
        loader = _Loader(bytes(data[:end]), source, dict(extra or {}), persistent_load)
        return _plain(loader.load(), {}), end
    except UnsafePickle as error:
        if source in str(error):
            raise
        raise UnsafePickle(f"{source}: {error}") from error
    except _FAULTS as error:
        raise UnsafePickle(
            f"{source} is not a readable pickle ({type(error).__name__}: {error}): it is damaged or another kind "
            f"of file, get it again"
        ) from error


def _walk(data: bytes | memoryview, source: str, persistent: bool) -> int:
    """Check every opcode without executing any; return where the pickle ends."""
    position = 0
    for opcode, argument, position in pickletools.genops(_Stream(data)):
        name = opcode.name
        if name in _REFUSED_OPCODES or (name in _PERSISTENT_OPCODES and not persistent):
            raise UnsafePickle(
                f"{source} uses the pickle opcode {name}, which plain data does not need: refused"
            )
        # The unpickler reserves memory for every index up to this one, and a 10-byte file can name 2**32.
        if name in _MEMO_OPCODES and int(argument) > position:
            raise UnsafePickle(f"{source} wants memo index {argument} at byte {position}: damaged or hostile")
    return position + 1


class _Stream(io.BytesIO):
    """A length beyond the data is refused when it is read, not after the memory for it was reserved."""

    def __init__(self, data: bytes | memoryview) -> None:
        super().__init__(data)
        self._size = len(data)

    def read(self, size: int = -1) -> bytes:
        if size > self._size - self.tell():
            raise EOFError(f"{size} bytes wanted, {self._size - self.tell()} left")
        return super().read(size)


class _Loader(pickle.Unpickler):
    def __init__(self, data: bytes, source: str, extra: dict, persistent_load: Callable | None) -> None:
        super().__init__(io.BytesIO(data))
        self._source = source
        self._known = {**_STAND_INS, **extra}
        self._resolve = persistent_load

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise UnsafePickle(
                f"{self._source} asks for {module}.{name}, which can run code: refused. Only plain data is read; "
                f"get the file from its author in another form"
            )
        known = self._known[module, name]
        return _Call(known) if callable(known) else known

    def persistent_load(self, pid: Any) -> Any:
        return self._resolve(pid)


class _Call:
    """A function as pickles may have it: to be called. Attributes cannot be set on it, so nothing global changes."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: Any) -> None:
        raise UnsafePickle("a pickle that changes a function is refused")


class _Dtype:
    """Stand-in for a numpy dtype under construction."""

    __slots__ = ("value",)

    def __init__(self, name: Any, *_flags: Any) -> None:
        if not isinstance(name, str) or not _DTYPE.match(name):
            raise UnsafePickle(
                f"numpy dtype {name!r} in a pickle is refused: only numbers and strings are read"
            )
        self.value = np.dtype(name)

    def __setstate__(self, state: tuple) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise UnsafePickle(
                f"numpy dtype state {state!r:.80} in a pickle is refused: only plain types are read"
            )
        if order in "<>":
            self.value = np.dtype(self.value.newbyteorder(order).str)  # the native one where the orders agree


class _Array(np.ndarray):
    """Array under construction: its bytes must be there before memory for them is reserved."""

    def __setstate__(self, state: tuple) -> None:
        _version, shape, dtype, fortran, raw = state
        real = _real_dtype(dtype)
        _check_size(shape, real, raw)
        super().__setstate__((1, tuple(shape), real, bool(fortran), bytes(raw)))


def _real_dtype(dtype: Any) -> np.dtype:
    if not isinstance(dtype, _Dtype):
        raise UnsafePickle(f"a numpy array in a pickle has {type(dtype).__name__} as its dtype: refused")
    return dtype.value


def _check_size(shape: Any, dtype: np.dtype, raw: Any) -> None:
    if not isinstance(raw, (bytes, bytearray)) or not all(type(n) is int and n >= 0 for n in shape):
        raise UnsafePickle(f"a numpy array in a pickle has shape {shape!r:.80} and no plain bytes: refused")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise UnsafePickle(
            f"a numpy array in a pickle claims shape {shape!r:.80} with {len(raw)} bytes: refused"
        )


def _reconstruct(_kind: Any, shape: Any, _code: Any) -> np.ndarray:
    if shape != (0,):
        raise UnsafePickle(
            f"a numpy array in a pickle starts with shape {shape!r:.80} instead of (0,): refused"
        )
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    real = _real_dtype(dtype)
    _check_size(shape, real, raw)
    return np.frombuffer(bytes(raw), real).reshape(shape, order="F" if order == "F" else "C").copy(order="K")


def _scalar(dtype: Any, raw: Any = b"") -> Any:
    real = _real_dtype(dtype)
    _check_size((), real, raw)
    return np.frombuffer(bytes(raw), real)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How pickles of protocol 2 and below hold bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise UnsafePickle(f"text encoding {encoding!r} in a pickle is refused: bytes are held as latin1")
    return text.encode("latin1")


def _bytes() -> bytes:
    """Empty bytes in pickles of protocol 2 and below; with an argument it would reserve memory."""
    return b""


def _bytearray(raw: bytes | str = b"", encoding: str = "latin1") -> bytearray:
    if not isinstance(raw, (bytes, str)):
        raise UnsafePickle(
            f"a bytearray made of {type(raw).__name__} in a pickle is refused: it must be bytes"
        )
    return bytearray(_encode(raw, encoding) if isinstance(raw, str) else raw)


def _type_only(*_args: Any) -> Any:
    raise UnsafePickle("a pickle that calls numpy.ndarray itself is refused")


def _names(name: str, function: Callable, *modules: str) -> dict[tuple[str, str], Callable]:
    return {(f"numpy.{core}.{m}", name): function for core in ("core", "_core") for m in modules}


_BUILTINS = {"set": set, "frozenset": frozenset, "complex": complex, "bytes": _bytes, "bytearray": _bytearray}

_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    **{(module, name): f for module in ("builtins", "__builtin__") for name, f in _BUILTINS.items()},
    ("numpy", "ndarray"): _type_only,
    ("numpy", "dtype"): _Dtype,
    **_names("_reconstruct", _reconstruct, "multiarray"),
    **_names("scalar", _scalar, "multiarray"),
    **_names("_frombuffer", _from_buffer, "numeric"),
}


_OPEN = object()
"""Stands for a container whose contents are being looked at."""


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """The value with the arrays and dtypes under construction replaced; containers are changed in place."""
    if id(value) in done:
        if done[id(value)] is _OPEN:
            raise UnsafePickle(
                f"a {type(value).__name__} in a pickle holds itself, which plain data never does: refused"
            )
        return done[id(value)]
    done[id(value)] = _OPEN
    result = value
    if isinstance(value, _Array):
        result = value.view(np.ndarray)
    elif isinstance(value, _Dtype):
        result = value.value
    elif isinstance(value, _Call):
        raise UnsafePickle("a pickle whose data is a function is refused")
    elif isinstance(value, list):
        value[:] = [_plain(v, done) for v in value]
    elif isinstance(value, dict):
        for key in value:
            value[key] = _plain(value[key], done)
    elif type(value) is tuple:
        result = tuple(_plain(v, done) for v in value)
    done[id(value)] = result
    return result
