"""Mouths that were drawn before: a bounded cache of decoded mouth patches, found by what the decoder is about to get.

A key is the latent of a face crop, flattened. Its 64-bit SimHash (Charikar, "Similarity Estimation Techniques from
Rounding Algorithms", 2002) finds candidates within 2 bits; a candidate counts only if its key lies within `GATE` of the
asked one. The hash alone is no proof: with the embedded engine, 60 s of speech and a still avatar it brings back 99 % of
the frames at 25 dB in the mouth box, behind the gate 68 % of which the worst has 41 dB. Hashes of the audio features
find nothing worth having: windows of the same sound differ by 80 % (median of the nearest), and what lies within 30 %
is 2 % of the frames.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .blend import mouth_mask

BITS = 64
MAX_BITS_APART = 2
GATE = 0.008
"""Largest distance of two keys, relative to the asked one's norm, at which one mouth stands for the other."""
_BANDS, _BAND_BITS = 4, 16
_SEED = 64
_PIVOTS = 16
"""Keys, the first ones kept, whose distances to all others are known."""
_EXACT = 1 << 24
"""Whole numbers up to here are exact in float32, and so are their sums in any order."""
_LARGEST_NORM = 1e18
"""Squares of longer vectors overflow in float32: they count as not finite."""
ENTRY_OVERHEAD = 3072
"""Bytes of an entry beside its key and patch: the objects themselves and their places in the tables."""


class SimHash:
    """Sign of 64 fixed projections of a vector of `n_values` numbers, as an int of 64 bits.

    Planes are +1 and -1 drawn from a bit generator whose stream numpy guarantees; vectors are rounded to whole numbers
    so small that float32 sums are exact. So a vector has the same hash on every machine, whatever adds it up.
    """

    def __init__(self, n_values: int) -> None:
        if not 1 <= n_values <= 1 << 20:
            raise ValueError(f"a key of {n_values} values; 1..{1 << 20} can be hashed")
        words = np.random.PCG64(_SEED).random_raw(-(-n_values * BITS // 64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        self._planes = bits[: n_values * BITS].reshape(BITS, n_values) * np.float32(2) - np.float32(1)
        self._levels = _EXACT // n_values

    @property
    def n_values(self) -> int:
        return self._planes.shape[1]

    @property
    def nbytes(self) -> int:
        return self._planes.nbytes

    def __call__(self, key: np.ndarray) -> int:
        """Return the hash of `key`, finite float32 (n_values,). Bit i is set if projection i is 0 or more."""
        largest = float(np.abs(key).max())
        # The quotient in float64: float32 has no inverse of its smallest numbers.
        whole = np.rint(key * np.float64(self._levels / largest)) if largest else key
        bits = np.packbits(self._planes @ whole.astype(np.float32) >= 0, bitorder="little")
        return int.from_bytes(bits.tobytes(), "little")


@dataclass(eq=False)
class Viseme:
    """A mouth and the key that it was drawn from. `patch` is None until it has been drawn (`VisemeCache.fill`).

    marks: float32 distances of the key to the origin and to the cache's pivots, NaN for those chosen later.
    """

    key: np.ndarray
    signature: int
    marks: np.ndarray
    nbytes: int
    patch: np.ndarray | None = None


class VisemeCache:
    """Patches by key, least recently used first out. One for each run: avatars never share one. Not for several threads.

    Ask `find` for every frame in order and `add` what was not found, so that hits depend on the frames alone and not on
    how they are batched; a mouth may be found before it is drawn.

    Args:
        max_bytes: keys, patches, tables, pivots and projection planes together stay below.
        gate: relative distance of keys that still counts as the same mouth.
    """

    def __init__(self, max_bytes: int, gate: float = GATE) -> None:
        if max_bytes < 0 or not 0 <= gate < 1:
            raise ValueError(
                f"viseme cache of {max_bytes} bytes, gate {gate}: give 0 or more, and a gate in 0..1"
            )
        self.max_bytes, self.gate = max_bytes, gate
        self.hits = self.misses = self.nbytes = 0
        self._hash: SimHash | None = None
        self._pivots: list[np.ndarray] = []
        self._entries: OrderedDict[int, Viseme] = OrderedDict()  # by their row in _marks
        self._bands: list[dict[int, set[int]]] = [{} for _ in range(_BANDS)]
        self._marks = np.empty((0, 1 + _PIVOTS), np.float32)
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def lookups(self) -> int:
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Share of lookups that found a mouth, 0..1; 0 before the first."""
        return self.hits / self.lookups if self.lookups else 0.0

    def __str__(self) -> str:
        return f"{self.hits} of {self.lookups} lookups ({100 * self.hit_rate:.1f} %)"

    def find(self, key: np.ndarray) -> Viseme | None:
        """Return the nearest mouth within the gate and 2 bits of `key` (float32, any shape), or None.

        A key that is not finite finds nothing.
        """
        probe = self._entry(key, 0)
        at = None if probe is None else self._nearest(probe)
        if at is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(at)
        return self._entries[at]

    def add(self, key: np.ndarray, patch_bytes: int) -> Viseme:
        """Return a mouth to be drawn and filled, kept under `key` if it is finite and there is room.

        Makes room for `patch_bytes` at once: others go, the longest unused first.
        """
        made = self._entry(key, patch_bytes)
        if made is None:
            return Viseme(np.empty(0, np.float32), 0, np.empty(0, np.float32), 0)
        room = self.max_bytes - self._hash.nbytes - _PIVOTS * made.key.nbytes
        if made.nbytes <= room:
            while self.nbytes + made.nbytes > room:
                self._remove(next(iter(self._entries)))
            self._keep(made)
        return made

    def fill(self, viseme: Viseme, patch: np.ndarray) -> None:
        """Give a mouth its patch, uint8 of the size announced; ValueError for another."""
        expected = viseme.nbytes - viseme.key.nbytes - ENTRY_OVERHEAD
        if patch.dtype != np.uint8 or (viseme.nbytes and patch.nbytes != expected):
            raise ValueError(
                f"a patch of {patch.nbytes} bytes of {patch.dtype}, not {expected} of uint8 as announced"
            )
        # A copy: a view would keep the whole crop, or its batch, alive.
        viseme.patch = patch.copy()

    def drop(self, viseme: Viseme) -> None:
        """Forget a mouth that could not be drawn (its pixels were not finite)."""
        at = next((i for i, v in self._entries.items() if v is viseme), None)
        if at is not None:
            self._remove(at)

    def _entry(self, key: np.ndarray, patch_bytes: int) -> Viseme | None:
        """Return what is asked for or kept, or None if the key or its norm is not finite."""
        key = np.array(key, np.float32).ravel()
        norm = np.linalg.norm(key.astype(np.float64))
        if not norm < _LARGEST_NORM:  # NaN among them
            return None
        if self._hash is None:
            self._hash = SimHash(key.size)
        if key.size != self._hash.n_values:
            raise ValueError(
                f"a key of {key.size} values in a cache of keys of {self._hash.n_values}; one run, one model"
            )
        marks = np.full(1 + _PIVOTS, np.nan, np.float32)
        marks[0] = norm
        for i, pivot in enumerate(self._pivots, 1):
            marks[i] = np.linalg.norm(key - pivot)
        return Viseme(key, self._hash(key), marks, key.nbytes + patch_bytes + ENTRY_OVERHEAD)

    def _nearest(self, probe: Viseme) -> int | None:
        """The entry nearest to `probe` within gate and bits; of equally near ones that in the first row."""
        places = self._similar(probe.signature)
        norm = float(probe.marks[0])
        reach = self.gate * norm
        # By the triangle inequality two keys are no nearer than their distances to a third point differ. In a space of
        # mouths, which has few dimensions, that settles nearly all; what it spares is the sum over all values. The
        # slack is for rounding.
        further = np.abs(self._marks[places] - probe.marks) > reach + 1e-5 * norm
        best, least = None, reach
        for at in places[~further.any(1)].tolist():
            entry = self._entries[at]
            if (entry.signature ^ probe.signature).bit_count() > MAX_BITS_APART:
                continue
            distance = float(np.linalg.norm(entry.key - probe.key))
            if distance < least or (best is None and distance == least):
                best, least = at, distance
        return best

    def _similar(self, signature: int) -> np.ndarray:
        """Rows of all entries at most 2 bits from `signature`, and some others, in order: 2 bits leave two of the four
        bands untouched."""
        once: set[int] = set()
        twice: set[int] = set()
        for band, ids in zip(_parts(signature), self._bands, strict=True):
            found = ids.get(band)
            if found:
                twice |= once & found
                once |= found
        places = np.fromiter(twice, np.intp, len(twice))
        places.sort()
        return places

    def _keep(self, made: Viseme) -> None:
        if len(self._pivots) < _PIVOTS:
            self._pivots.append(made.key)
        if not self._free:
            rows = len(self._marks)
            more = np.empty((max(64, 2 * rows), self._marks.shape[1]), np.float32)
            more[:rows] = self._marks
            self._free = list(range(len(more) - 1, rows - 1, -1))
            self._marks = more
        at = self._free.pop()
        self._entries[at], self._marks[at] = made, made.marks
        for band, ids in zip(_parts(made.signature), self._bands, strict=True):
            ids.setdefault(band, set()).add(at)
        self.nbytes += made.nbytes

    def _remove(self, at: int) -> None:
        gone = self._entries.pop(at)
        for band, ids in zip(_parts(gone.signature), self._bands, strict=True):
            ids[band].discard(at)
            if not ids[band]:
                del ids[band]
        self._free.append(at)
        self.nbytes -= gone.nbytes


def _parts(signature: int) -> tuple[int, ...]:
    mask = (1 << _BAND_BITS) - 1
    return tuple(signature >> (_BAND_BITS * i) & mask for i in range(_BANDS))


@dataclass(frozen=True, eq=False)
class MouthWindow:
    """The part of a network crop that a patch covers, and its weight there: uint8 (rows, columns)."""

    rows: slice
    columns: slice
    alpha: np.ndarray

    @property
    def patch_bytes(self) -> int:
        return 3 * self.alpha.size


@lru_cache(maxsize=4)
def mouth_window(size: int) -> MouthWindow:
    """Return the window for crops of `size` pixels a side: `blend.mouth_mask`, made steeper.

    The weight is 0 wherever that mask is, so nothing above the philtrum ever comes from a patch, and full from a third of
    the mask on: blended by the avatar's mask afterwards, a mouth would otherwise fade twice.
    """
    mask = mouth_mask((0, 0, size, size, 0, 0, size, size))
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    window = slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
    alpha = np.minimum(mask[window].astype(np.uint16) * 3, 255).astype(np.uint8)
    alpha.flags.writeable = False
    return MouthWindow(*window, alpha)


def cut_patch(crop):
    """Return the mouth's window of a generated crop, array or tensor (size, size, 3), RGB uint8, as a view."""
    window = mouth_window(len(crop))
    return crop[window.rows, window.columns]


def apply_patch(own: np.ndarray, patch: np.ndarray) -> np.ndarray:
    """Return the crop of a frame whose mouth is recalled.

    Args:
        own: the avatar's own crop of the current frame (size, size, 3), RGB uint8, not changed. It alone says where the
            face is: pixels outside the mouth are its own, so what lay around the mouth in the patch's frame never shows.
        patch: `cut_patch` of a generated crop of that size.

    Raises:
        ValueError: a patch of another size.
    """
    window = mouth_window(len(own))
    if patch.shape != (*window.alpha.shape, 3):
        raise ValueError(
            f"a patch of {patch.shape[1]}x{patch.shape[0]} pixels for a crop of {len(own)}, whose mouth is "
            f"{window.alpha.shape[1]}x{window.alpha.shape[0]}; patches belong to one model"
        )
    out = own.copy()
    weight = window.alpha[..., None].astype(np.uint16)
    area = out[window.rows, window.columns]
    area[...] = (patch * weight + area * (255 - weight) + 127) // 255
    return out
