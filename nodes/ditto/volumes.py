"""Where an avatar's feature volumes lie while it speaks, and how those of a batch come to the card.

Volumes float16 (N, C, D, h, w), mapped from the packet; 4 MB a frame of the official model. On a card all of them lie
there in the dtype of the weights, kept with the resident avatar ("device"), or those of one batch go over while the batch
before is drawn ("host"): through page-locked memory that torch uses again, on a stream of its own. A still is one volume and
always lies there; its rows are one memory. On a CPU nothing is copied that a batch does not ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor

from ..core.engine_spec import is_out_of_memory
from ..core.frames import RunContext
from ..core.host_copy import upload
from ..core.pool import Resident

MEMORY_MODES = ("auto", "device", "host")
_FILLED_AT_ONCE = 16
"""Volumes that go to the card between two looks at the user's stop: 67 MB of the official model."""


@dataclass(frozen=True, eq=False)
class Sent:
    """Volumes (n, C, D, h, w) of a batch, perhaps still under way to the card."""

    values: Tensor
    arrived: torch.cuda.Event | None = None

    def take(self) -> Tensor:
        """Return them for the current stream, which waits for them; the host does not."""
        if self.arrived is not None:
            self.arrived.wait()
        if self.values.is_cuda:
            self.values.record_stream(torch.cuda.current_stream(self.values.device))
        return self.values


class Volumes(Protocol):
    """Gives the volumes of batches. is_ahead: whether the next batch's should be sent before this one's are used."""

    is_ahead: bool

    def send(self, index: Tensor) -> Sent:
        """Begin to fetch the volumes of avatar frames `index`, int64 (n,) on the CPU."""


class MappedVolumes:
    """Those of the packet, as they are."""

    is_ahead = False

    def __init__(self, mapped: Tensor) -> None:
        self._mapped = mapped

    def send(self, index: Tensor) -> Sent:
        return Sent(_rows(self._mapped, index))


class SlicedVolumes:
    """A batch at a time through page-locked memory."""

    is_ahead = True

    def __init__(self, mapped: Tensor, device: torch.device) -> None:
        self._mapped, self._device = mapped, device

    def send(self, index: Tensor) -> Sent:
        if self._device.type != "cuda":
            return Sent(self._mapped.index_select(0, index).to(self._device))
        # Page-locked blocks come back to torch's own store once the copy from them is done.
        rows = torch.empty((len(index), *self._mapped.shape[1:]), dtype=self._mapped.dtype, pin_memory=True)
        torch.index_select(self._mapped, 0, index, out=rows)
        stream = _copy_stream(self._device.index or 0)
        with torch.cuda.stream(stream):
            there = rows.to(self._device, non_blocking=True)
            return Sent(there, stream.record_event())


class DeviceVolumes:
    """All of an avatar on a device, for any number of threads; what they fetch are copies, except of a still."""

    is_ahead = False

    def __init__(
        self, mapped: Tensor, device: torch.device, dtype: torch.dtype, check: Callable[[], None]
    ) -> None:
        self._values = torch.empty(mapped.shape, dtype=dtype, device=device)
        for start in range(0, len(mapped), _FILLED_AT_ONCE):
            check()
            part = mapped[start : start + _FILLED_AT_ONCE]
            self._values[start : start + len(part)] = upload(part, device)
        self.n_bytes = self._values.nbytes
        # Threads may use streams of their own: what one filled, another reads.
        self._filled = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def send(self, index: Tensor) -> Sent:
        if self._filled is not None:
            self._filled.wait()
            self._values.record_stream(torch.cuda.current_stream(self._values.device))
        return Sent(_rows(self._values, index))


class _DoesNotFit(Exception):
    """Volumes would take more of the card than they should; the message says how much there is."""


def open_volumes(ctx: RunContext, resident: Resident, dtype: torch.dtype, memory: str = "auto") -> Volumes:
    """Return the volumes of a resident Ditto avatar for one run, and report where they lie.

    Args:
        dtype: of the weights.
        memory: "device", "host", or "auto": on the device unless they take more than half of what is free there. The other
            half is for the activations of a batch (2 GB of the official model at batch 8) and for other models. What has
            no room after all is sent batch by batch, and the report says so.

    Raises:
        ValueError: an unknown mode.
    """
    check_memory(memory)
    mapped, device = resident.reader.volumes, ctx.device
    if device.type == "cpu":
        return MappedVolumes(mapped if len(mapped) > 1 else mapped.to(dtype))
    reason = "as was asked for"
    if memory != "host" or len(mapped) == 1:
        try:
            make = partial(_on_device, ctx, mapped, dtype, memory == "auto" and len(mapped) > 1)
            made = resident.shelf.get(("ditto volumes", dtype), make)
            ctx.report.fact("feature volumes", f"{len(mapped)} on {device}, {made.n_bytes >> 20} MB")
            return made
        except _DoesNotFit as e:
            reason = str(e)
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            reason = f"no memory left on {device}"
            ctx.warn(f"feature volumes do not fit on {device}; they are sent there batch by batch")
    ctx.report.fact("feature volumes", f"{len(mapped)} in the avatar's file, sent batch by batch: {reason}")
    return SlicedVolumes(mapped, device)


def check_memory(memory: str) -> None:
    """Raise ValueError unless `memory` is one of MEMORY_MODES."""
    if memory not in MEMORY_MODES:
        raise ValueError(f"memory {memory!r} is unknown; use one of {', '.join(MEMORY_MODES)}")


def in_turn(volumes: Volumes, batches: Iterator) -> Iterator:
    """Yield (batch, its volumes on the way) of batches with `avatar_index`, where it pays those of the next one sent first.

    None, which says that nothing more is at hand, is passed on when everything before it was.
    """
    waiting = None
    for batch in batches:
        pair = None if batch is None else (batch, volumes.send(batch.avatar_index))
        if waiting is not None:
            yield waiting
        waiting = pair if volumes.is_ahead else None
        if pair is None or not volumes.is_ahead:
            yield pair
    if waiting is not None:
        yield waiting


def _on_device(ctx: RunContext, mapped: Tensor, dtype: torch.dtype, only_if_it_fits: bool) -> DeviceVolumes:
    size = mapped.numel() * dtype.itemsize
    if only_if_it_fits and 2 * size > (free := _free_bytes(ctx.device)):
        raise _DoesNotFit(f"{size >> 20} MB are more than half of the {free >> 20} MB that are free")
    return DeviceVolumes(mapped, ctx.device, dtype, ctx.check_cancelled)


def _free_bytes(device: torch.device) -> int:
    """Bytes of a card that this process can still have: the system's, and what torch holds and does not use."""
    if device.type != "cuda":
        return 1 << 62
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def _rows(values: Tensor, index: Tensor) -> Tensor:
    if len(values) == 1:
        return values.expand(len(index), *values.shape[1:])
    return values.index_select(0, upload(index, values.device))


@cache
def _copy_stream(index: int) -> torch.cuda.Stream:
    """One a card, for all avatars."""
    return torch.cuda.Stream(torch.device("cuda", index))
