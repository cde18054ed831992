"""State dicts in torch's first file format, a tar archive (before 0.1.10), which torch reads only by running its pickles.

Members: `storages` (a count, then for each a pickled (key, device, type), an int64 number of elements and the raw
elements, then the list of storage views), `tensors` (a count, then for each a pickled (key, storage key, type), int32
rank padded to 8 bytes, int64 sizes, strides and offset), `pickle` (the dict, with tensor keys as persistent ids).
All little endian. Source: the reader in torch.serialization; here every pickle goes through `unpickle`.
"""

from __future__ import annotations

import math
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from .unpickle import UnsafePickle, load_first

_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "Long": torch.int64,
    "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
}  # fmt: skip
_TYPES = {
    (module, f"{name}{kind}"): dtype
    for name, dtype in _DTYPES.items()
    for kind in ("Storage", "Tensor")
    for module in ("torch", "torch.cuda")
}
_RECORD_BYTES = 1 << 20
"""Most that one pickled record between raw elements may take; the copy of it is what bounds the work."""
_MAX_RANK = 8


class _Records:
    """One tar member, read from front to back; a size beyond its end raises before memory is reserved."""

    def __init__(self, file: BinaryIO, start: int, size: int, source: str) -> None:
        self._file, self._source, self._at, self._end = file, source, start, start + size

    def unpickle(self, persistent_load: Callable[[Any], Any] | None = None) -> Any:
        window = min(_RECORD_BYTES, self._end - self._at)
        value, size = load_first(self._read(window), self._source, _TYPES, persistent_load)
        self._at += size
        return value

    def raw(self, size: int) -> bytearray:
        if not 0 <= size <= self._end - self._at:
            raise UnsafePickle(
                f"{self._source} claims {size} bytes where {self._end - self._at} are left: it is cut short"
            )
        data = self._read(size)
        self._at += size
        return data

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.raw(struct.calcsize(form)))

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        self._file.seek(self._at)
        self._file.readinto(data)
        return data


def is_torch_tar(path: Path) -> bool:
    """Whether the file is a tar archive; only its first block is read."""
    with open(path, "rb") as file:
        return file.read(262)[257:] == b"ustar"


def load_torch_tar(path: Path) -> Any:
    """Return what the archive holds, usually an OrderedDict of name -> tensor, on the CPU.

    Raises:
        ValueError: not such an archive, cut short, or (`UnsafePickle`) a pickle that wants more than plain data.
    """
    with open(path, "rb") as file:
        try:
            return _load(file, path)
        except (tarfile.TarError, KeyError, TypeError, struct.error, RuntimeError) as error:
            raise ValueError(
                f"{path} is a tar archive, but not one written by torch ({type(error).__name__}: {error})"
            ) from error


def _load(file: BinaryIO, path: Path) -> Any:
    size = path.stat().st_size
    records = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for name in ("storages", "tensors", "pickle"):
            member = tar.getmember(name)
            if not member.isreg() or member.offset_data + member.size > size:
                raise ValueError(f"{path}: its part {name!r} is cut short, get the file again")
            records[name] = _Records(file, member.offset_data, member.size, f"{path} ({name})")
    tensors = _tensors(records["tensors"], _storages(records["storages"]))
    return records["pickle"].unpickle(lambda pid: tensors[int(pid)])


def _storages(records: _Records) -> dict[int, Tensor]:
    storages: dict[int, Tensor] = {}
    for _ in range(records.unpickle()):
        key, _device, dtype = records.unpickle()
        (count,) = records.numbers("<q")
        raw = records.raw(count * dtype.itemsize)
        # A copy: the map is closed when the file has been read.
        storages[key] = (
            torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.empty(0, dtype=dtype)
        )
    for key, root, offset, count in records.unpickle():
        storages[key] = storages[root].narrow(0, offset, count)
    return storages


def _tensors(records: _Records, storages: dict[int, Tensor]) -> dict[int, Tensor]:
    tensors = {}
    for _ in range(records.unpickle()):
        key, storage_key, _type = records.unpickle()
        (rank, _padding) = records.numbers("<ii")
        if not 0 <= rank <= _MAX_RANK:
            raise ValueError(f"a tensor of rank {rank}")
        sizes, strides = records.numbers(f"<{rank}q"), records.numbers(f"<{rank}q")
        (offset,) = records.numbers("<q")
        storage = storages[storage_key]
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        if min((offset, *sizes, *strides)) < 0 or (math.prod(sizes) and last >= len(storage)):
            raise ValueError(f"a tensor {sizes} that leaves its {len(storage)} elements")
        tensors[key] = storage.as_strided(sizes, strides, offset)
    return tensors
