"""Packets that stay warm between runs: least recently used ones go first, idle ones go by themselves.

An entry is one packet's content on one device. What it costs is what its engine has there always (MuseTalk's latents)
and what stages keep with it (`Shelf`; Ditto's volumes); all else stays mapped and is the system's to drop. While an entry is in use it is pinned: nothing
closes it. All methods may be called from any thread. Source of the bounds: spec/system.md 1 (idle eviction after 600 s, to 0 bytes).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from .packet import AvatarPacket, PacketReader

DEFAULT_ITEMS = 8
DEFAULT_IDLE_SECONDS = 600.0


class Sized(Protocol):
    """Something kept with an avatar; its size in bytes may grow, within a bound of its own."""

    n_bytes: int


Kept = TypeVar("Kept", bound=Sized)


class Shelf:
    """What stages keep with a resident avatar: the `most` kinds asked for last."""

    def __init__(self, most: int = 2) -> None:
        self._most = most
        self._kinds: dict[Hashable, Sized] = {}  # the least recently used first
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        with self._lock:
            return sum(kept.n_bytes for kept in self._kinds.values())

    def get(self, kind: Hashable, make: Callable[[], Kept]) -> Kept:
        """Return what is kept as `kind`, made now if it is not here."""
        with self._lock:
            kept = self._kinds.pop(kind, None) or make()
            self._kinds[kind] = kept
            while len(self._kinds) > self._most:
                del self._kinds[next(iter(self._kinds))]
            return kept

    def clear(self) -> None:
        with self._lock:
            self._kinds.clear()


@dataclass(eq=False)
class Resident:
    """A packet in the pool. reader: its mapped tensors. latents: those of the reader, on `device`, None for an engine
    without; never write to them. shelf: what stages made of it all and want back next time. All are gone once the entry
    is dropped: use them inside `AvatarPool.use` only."""

    packet: AvatarPacket
    device: torch.device
    reader: PacketReader = field(repr=False)
    latents: torch.Tensor | None = field(repr=False)
    latent_bytes: int
    shelf: Shelf = field(default_factory=Shelf, repr=False)

    @classmethod
    def of(cls, packet: AvatarPacket, device: torch.device, reader: PacketReader) -> Resident:
        """Return the packet that `reader` has mapped, its latents copied to `device`."""
        latents = None if reader.latents is None else reader.latents.to(device)
        return cls(packet, device, reader, latents, latent_bytes(reader))

    @property
    def n_bytes(self) -> int:
        return self.latent_bytes + self.shelf.n_bytes

    def close(self) -> None:
        self.shelf.clear()
        self.reader.close()
        self.latents = None  # whoever kept the Resident must not keep the memory


def latent_bytes(reader: PacketReader) -> int:
    """Return the bytes that the packet takes on its device before any stage asks for more."""
    return 0 if reader.latents is None else reader.latents.nbytes


@contextmanager
def open_resident(packet: AvatarPacket, device: str | torch.device = "cpu") -> Iterator[Resident]:
    """Yield the packet on `device` for one run, without a pool: closed when the block ends."""
    with packet.open() as reader:
        yield Resident.of(packet, torch.device(device), reader)


@dataclass(frozen=True)
class PoolStats:
    """items and bytes now, pinned of these; hits, misses and evictions since the pool was made."""

    items: int
    bytes: int
    pinned: int
    hits: int
    misses: int
    evictions: int


@dataclass(eq=False)
class _Entry:
    resident: Resident
    pins: int = 0
    used: float = 0.0
    is_doomed: bool = False  # stale or flushed while in use: goes when it is released


class AvatarPool:
    """Resident packets, at most `max_items` and `max_bytes` that nobody is using.

    idle_seconds: an entry that nobody used for so long is dropped by a daemon thread, which exists only while
    there is something to drop. clock: seconds, monotonic.
    """

    def __init__(
        self,
        max_bytes: int,
        max_items: int = DEFAULT_ITEMS,
        idle_seconds: float = DEFAULT_IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_bytes < 0 or max_items < 1 or idle_seconds <= 0:
            raise ValueError(
                f"a pool of {max_items} items, {max_bytes} bytes and {idle_seconds} s cannot be; "
                "give at least 1 item, 0 bytes and more than 0 s"
            )
        self.max_bytes, self.max_items, self.idle_seconds = max_bytes, max_items, idle_seconds
        self._clock = clock
        self._entries: dict[tuple[str, str], _Entry] = {}  # the least recently used first
        self._doomed: set[_Entry] = set()  # in use, but no longer to be had
        self._changed = threading.Condition(threading.RLock())
        self._watcher: threading.Thread | None = None
        self._hits = self._misses = self._evictions = 0

    @contextmanager
    def use(self, packet: AvatarPacket, device: str | torch.device = "cpu") -> Iterator[Resident]:
        """Yield the packet on `device`, loaded now or before, pinned until the block ends, however it ends.

        Raises PacketError if the packet was rebuilt after it was loaded, or is damaged; the pool then stays as it
        was, without what was resident of the old one.
        """
        entry = self._acquire(packet, torch.device(device))
        try:
            yield entry.resident
        finally:
            self._release(entry)

    def flush(self) -> int:
        """Drop everything that nobody uses, and the rest when it is released; return the bytes freed now."""
        with self._changed:
            return self._drop(list(self._entries), empty_cache=True)

    def evict_idle(self) -> int:
        """Drop what nobody used for `idle_seconds`; return the bytes freed."""
        with self._changed:
            limit = self._clock() - self.idle_seconds
            idle = [k for k, e in self._entries.items() if not e.pins and e.used <= limit]
            return self._drop(idle, empty_cache=True)

    def stats(self) -> PoolStats:
        with self._changed:
            held = [*self._entries.values(), *self._doomed]
            return PoolStats(
                items=len(held),
                bytes=sum(e.resident.n_bytes for e in held),
                pinned=sum(e.pins > 0 for e in held),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _acquire(self, packet: AvatarPacket, device: torch.device) -> _Entry:
        key = (packet.digest, str(device))
        with self._changed:
            entry = self._entries.get(key)
            if entry is None:
                entry = _Entry(self._load(packet, device))
                self._misses += 1
            else:
                try:
                    packet.check_current()
                except BaseException:
                    self._drop([key])
                    raise
                self._hits += 1
                del self._entries[key]
            entry.pins += 1
            entry.used = self._clock()
            self._entries[key] = entry  # at the end: the most recently used
            # The packet is the current one of its name: what is resident of that name with another digest is stale.
            same = [k for k, e in self._entries.items() if e.resident.packet.path == packet.path]
            self._drop([k for k in same if k[0] != key[0]])
            self._start_watcher()
            return entry

    def _load(self, packet: AvatarPacket, device: torch.device) -> Resident:
        # Inside the lock: it takes milliseconds, and two threads must not load the same packet twice.
        reader = packet.open()
        try:
            self._shrink(1, latent_bytes(reader))
            return Resident.of(packet, device, reader)
        except BaseException:
            reader.close()
            raise

    def _release(self, entry: _Entry) -> None:
        with self._changed:
            entry.pins -= 1
            entry.used = self._clock()
            if entry.is_doomed and not entry.pins:
                self._doomed.discard(entry)
                entry.resident.close()
            self._shrink(0, 0)
            self._changed.notify_all()

    def _shrink(self, items: int, n_bytes: int) -> None:
        """Drop the least recently used until `items` more of `n_bytes` fit; pinned ones stay."""
        for key, entry in list(self._entries.items()):
            held = sum(e.resident.n_bytes for e in self._entries.values())
            if len(self._entries) + items <= self.max_items and held + n_bytes <= self.max_bytes:
                return
            if not entry.pins:
                self._drop([key])

    def _drop(self, keys: list[tuple[str, str]], empty_cache: bool = False) -> int:
        """Take entries out of the pool and close those not in use; return the bytes of these."""
        freed, on_card = 0, False
        for key in keys:
            entry = self._entries.pop(key)
            self._evictions += 1
            if entry.pins:
                entry.is_doomed = True
                self._doomed.add(entry)
                continue
            freed += entry.resident.n_bytes
            on_card |= entry.resident.device.type == "cuda"
            entry.resident.close()
        if on_card and empty_cache:
            torch.cuda.empty_cache()  # to 0 bytes on the card, not into torch's own reserve
        self._changed.notify_all()
        return freed

    def _start_watcher(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="avatar pool", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        with self._changed:
            while self._entries:
                waiting = [e.used for e in self._entries.values() if not e.pins]
                left = min(waiting, default=self._clock()) + self.idle_seconds - self._clock()
                if left > 0:
                    self._changed.wait(left)
                self.evict_idle()
            self._watcher = None
