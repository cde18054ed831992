"""Prepared avatar frames on one device, in as many slots as there is room for, filled when first shown.

With a slot for every frame nothing waits for the device once each has been shown. With fewer, a newcomer takes the
slot used last outside its chunk (the next turn of that frame is the farthest away in a cycle).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .frames import Placement
from .host_copy import upload

PLATE_BYTES = 256 << 20
"""Of one avatar, for one matrix, mask and seam: 85 frames of 1080x1920 on the CPU; a two-second loop has 50."""


class PlateSlots(ABC):
    """The frames of an avatar, which an engine's own class prepares and blends. Any number of threads may ask.

    Args:
        n_frames: of the avatar.
        bytes_each: of a prepared frame.
        max_bytes: of all slots; there is one at least.
    """

    def __init__(self, n_frames: int, bytes_each: int, device: torch.device, max_bytes: int) -> None:
        self.device, self._n_frames = device, n_frames
        self._slots = max(1, min(n_frames, max_bytes // bytes_each))
        self._slot_of: dict[int, int] = {}  # avatar frame -> slot, the most recently used last
        self._all_there = False
        self._lock = threading.Lock()
        # Threads may use streams of their own: what one fills, another reads.
        self._filled = torch.cuda.Event() if device.type == "cuda" else None

    @abstractmethod
    def _upload(self, at: int, slot: int) -> None:
        """Prepare avatar frame `at` in `slot`."""

    @abstractmethod
    def _composite(self, faces: Tensor, slots: Tensor, usable: Tensor) -> Tensor:
        """Return NV12 (n, H*3/2, W) of crops in the frames of `slots`, int64 (n,); all of it on the device."""

    def blend(self, faces: Tensor, placement: Placement) -> Tensor:
        """Return NV12 (n, H*3/2, W) on the device: crops uint8 (n, S, S, 3) in the avatar frames that `placement` names.

        A crop that is not usable leaves its frame as it is.
        """
        faces = faces.to(self.device, non_blocking=True)
        usable = upload(placement.usable, self.device)
        if self._all_there:  # slot k holds frame k: the index need not be known here
            self._wait()
            return self._composite(faces, upload(placement.avatar_index, self.device), usable)
        done = []
        with self._lock:
            self._wait()
            indices = placement.avatar_index.tolist()
            for part in _runs(indices, self._slots):
                slots = upload(torch.tensor(self._fill(indices[part])), self.device)
                done.append(self._composite(faces[part], slots, usable[part]))
            if self._filled is not None:
                self._filled.record()
        return torch.cat(done) if len(done) > 1 else done[0]

    def _wait(self) -> None:
        if self._filled is not None:
            self._filled.wait()

    def _fill(self, indices: list[int]) -> list[int]:
        """Return the slots of avatar frames, at most as many as there are slots, filling those that are not there."""
        needed = set(indices)
        for at in dict.fromkeys(indices):
            slot = self._slot_of.pop(at, None)
            if slot is None:
                slot = self._free_slot(at, needed)
                self._upload(at, slot)
            self._slot_of[at] = slot
        self._all_there = len(self._slot_of) == self._n_frames
        return [self._slot_of[at] for at in indices]

    def _free_slot(self, at: int, needed: set[int]) -> int:
        if self._slots == self._n_frames:
            return at
        if len(self._slot_of) < self._slots:
            return len(self._slot_of)
        latest = next(other for other in reversed(self._slot_of) if other not in needed)
        return self._slot_of.pop(latest)


def _runs(indices: Sequence[int], most: int) -> list[slice]:
    """Cut a list into slices of at most `most` different values each."""
    out, start, seen = [], 0, set()
    for k, value in enumerate(indices):
        if value not in seen and len(seen) == most:
            out.append(slice(start, k))
            start, seen = k, set()
        seen.add(value)
    return [*out, slice(start, len(indices))]
