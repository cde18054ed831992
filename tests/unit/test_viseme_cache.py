"""The viseme cache as a container: hashes that are the same everywhere, the nearest mouth or none, bounded bytes."""

import tracemalloc

import numpy as np
import pytest

from talkinghead.nodes.core.viseme_cache import (
    ENTRY_OVERHEAD,
    GATE,
    MAX_BITS_APART,
    SimHash,
    VisemeCache,
)

KNOWN_HASH = 0xAA30B24C474EB4AE
PATCH = np.arange(300, dtype=np.uint16).astype(np.uint8).reshape(10, 10, 3)


def keyed(seed, n=256):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def put(cache, key, patch=PATCH):
    viseme = cache.add(key, patch.nbytes)
    cache.fill(viseme, patch)
    return viseme


def small_cache(entries, n=256, gate=GATE):
    """Return a cache with room for so many entries of n values and PATCH."""
    entry = 4 * n + PATCH.nbytes + ENTRY_OVERHEAD
    pivots = 16 * 4 * n
    return VisemeCache(SimHash(n).nbytes + pivots + entries * entry, gate)


def test_a_known_vector_has_a_known_hash():
    # 1/7, 2/7, ... with signs by a rule: no rounding of a library is in it
    known = np.array([(1 - 2 * (i * i % 3 % 2)) * (i + 1) / 7 for i in range(1024)], np.float32)
    assert SimHash(1024)(known) == KNOWN_HASH
    assert SimHash(1024)(known * np.float32(0.5)) == KNOWN_HASH
    assert SimHash(1024)(np.zeros(1024, np.float32)) == (1 << 64) - 1
    assert SimHash(7)(np.full(7, 1e-44, np.float32)) == SimHash(7)(np.ones(7, np.float32))


def test_the_hash_does_not_depend_on_who_adds_up():
    hashed, key = SimHash(1000), keyed(3, 1000)
    levels = (1 << 24) // 1000
    whole = [int(v) for v in np.rint(key.astype(np.float64) * (levels / float(np.abs(key).max())))]
    planes = hashed._planes.astype(int).tolist()
    expected = 0
    for bit, plane in enumerate(planes):
        expected |= (sum(p * v for p, v in zip(plane, whole, strict=True)) >= 0) << bit
    assert hashed(key) == expected
    assert {p for plane in planes for p in plane} == {-1, 1}


def test_a_hash_differs_as_much_as_the_angle():
    hashed, a, other = SimHash(1024), keyed(1, 1024), keyed(2, 1024)
    other -= a * (a @ other) / (a @ a)
    for degrees in (5, 30, 90, 180):
        turn = np.radians(degrees)
        b = np.cos(turn) * a + np.sin(turn) * other * np.linalg.norm(a) / np.linalg.norm(other)
        apart = (hashed(a) ^ hashed(b.astype(np.float32))).bit_count()
        assert abs(apart - 64 * degrees / 180) <= 3 * np.sqrt(64 * degrees / 180 * (1 - degrees / 180)) + 1


def test_the_index_finds_what_a_search_through_all_finds():
    """Two bits of 64 leave two of four 16-bit bands untouched, wherever they lie."""
    rng = np.random.default_rng(8)
    hashed, cache = SimHash(64), VisemeCache(1 << 26, gate=0.999)
    centres = rng.standard_normal((40, 64))
    keys = (np.repeat(centres, 75, axis=0) + 0.12 * rng.standard_normal((3000, 64))).astype(np.float32)
    held = [put(cache, key) for key in keys]
    signatures = [hashed(key) for key in keys]
    seen = {0: 0, 1: 0, 2: 0, None: 0}
    for probe in (centres.repeat(10, 0) + 0.14 * rng.standard_normal((400, 64))).astype(np.float32):
        mine = hashed(probe)
        bits = np.array([(mine ^ s).bit_count() for s in signatures])
        distance = np.linalg.norm(keys - probe, axis=1)
        within = (bits <= MAX_BITS_APART) & (distance <= 0.999 * np.linalg.norm(probe))
        found = cache.find(probe)
        if not within.any():
            assert found is None
            seen[None] += 1
        else:
            best = int(np.where(within, distance, np.inf).argmin())
            assert found is held[best]
            seen[int(bits[best])] += 1
    assert min(seen.values()) >= 10, seen


def test_a_full_cache_finds_what_a_plain_search_finds():
    """Mouths of few dimensions, more than fit: hits, and who goes, as in a list that is searched from end to end."""
    rng = np.random.default_rng(4)
    shapes, hashed, room = rng.standard_normal((3, 128)), SimHash(128), 60
    cache, plain = small_cache(room, 128, gate=0.03), []
    base, hits = rng.standard_normal(128), 0
    for _ in range(700):
        key = (base + 0.1 * rng.standard_normal(3) @ shapes).astype(np.float32)
        found, mine, near = cache.find(key), hashed(key), []
        for held in plain:
            distance = np.linalg.norm(held.key - key)
            alike = (held.signature ^ mine).bit_count() <= MAX_BITS_APART
            if alike and distance <= 0.03 * np.linalg.norm(key):
                near.append((distance, held))
        if not near:
            assert found is None
            plain = [*plain[-room + 1 :], put(cache, key)]
        else:
            hits += 1
            assert found is min(near, key=lambda pair: pair[0])[1]
            plain.append(plain.pop(next(i for i, held in enumerate(plain) if held is found)))
    assert len(cache) == room
    assert 50 < hits < 600


def test_only_what_lies_within_the_gate_is_found():
    cache, key = small_cache(4), keyed(1)
    held = put(cache, key)
    off = keyed(2)
    off *= np.linalg.norm(key) / np.linalg.norm(off)
    assert cache.find(key) is held
    assert cache.find(key + 0.9 * GATE * off) is held
    assert cache.find(key + 1.2 * GATE * off) is None
    assert cache.find(1.2 * key) is None  # the same hash, another size
    assert (cache.hits, cache.misses, cache.lookups) == (2, 2, 4)
    assert cache.hit_rate == 0.5
    assert str(cache) == "2 of 4 lookups (50.0 %)"
    assert VisemeCache(1 << 20).hit_rate == 0.0


def test_the_nearest_wins():
    cache, key = small_cache(4), keyed(1)
    far, near, twin = put(cache, 1.006 * key), put(cache, 1.002 * key), put(cache, 1.002 * key)
    assert cache.find(key) is near
    cache.drop(near)
    assert cache.find(key) is twin
    cache.drop(twin)
    cache.drop(twin)
    assert cache.find(key) is far


def test_the_longest_unused_goes_first():
    cache = small_cache(3)
    first, second, third = (put(cache, keyed(i)) for i in range(3))
    assert cache.find(keyed(0)) is first
    put(cache, keyed(3))
    assert cache.find(keyed(1)) is None
    assert cache.find(keyed(0)) is first
    assert cache.find(keyed(2)) is third
    assert len(cache) == 3
    assert second.patch is not None  # whoever holds it may go on


def test_memory_stays_below_the_limit():
    limit = 2_000_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = VisemeCache(limit)
        for i in range(2000):
            put(cache, keyed(i, 64))
            assert cache.nbytes <= limit
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * limit < held <= limit
    assert 400 < len(cache) < 2000


def test_what_is_larger_than_the_cache_is_not_kept():
    for cache in (VisemeCache(0), VisemeCache(1000), small_cache(1)):
        made = cache.add(keyed(1), 100_000)
        cache.fill(made, np.zeros(100_000, np.uint8))
        assert made.patch is not None
        assert len(cache) == 0
        assert cache.find(keyed(1)) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_nothing_that_is_not_finite_is_kept_or_found(bad):
    cache, key = small_cache(4), keyed(1)
    put(cache, key)
    key[5] = bad
    made = cache.add(key, PATCH.nbytes)
    cache.fill(made, PATCH)
    assert made.patch is not None
    assert len(cache) == 1
    assert cache.find(key) is None
    assert cache.find(keyed(1)) is not None


def test_a_mouth_may_be_found_before_it_is_drawn():
    cache = small_cache(2)
    promised = cache.add(keyed(1), PATCH.nbytes)
    assert cache.find(keyed(1)) is promised
    assert promised.patch is None
    crop = PATCH.copy()
    cache.fill(promised, crop)
    crop[:] = 0
    assert (promised.patch == PATCH).all()
    with pytest.raises(ValueError, match="27 bytes of uint8, not 300"):
        cache.fill(promised, np.zeros((3, 3, 3), np.uint8))
    with pytest.raises(ValueError, match="float32"):
        cache.fill(promised, PATCH.astype(np.float32))


def test_two_caches_share_nothing():
    red, blue, key = small_cache(4), small_cache(4), keyed(1)
    put(red, key)
    assert blue.find(key) is None
    held = put(blue, key, PATCH + np.uint8(9))
    assert (blue.find(key).patch == held.patch).all()
    assert (red.find(key).patch == PATCH).all()


def test_a_key_keeps_what_it_was():
    cache, key = small_cache(2), keyed(1)
    put(cache, key)
    key[:] = 0
    assert cache.find(keyed(1)) is not None


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: VisemeCache(-1), "-1 bytes"),
        (lambda: VisemeCache(1, gate=1.5), "gate 1.5"),
        (lambda: SimHash(0), "key of 0 values"),
        (
            lambda: [
                small_cache(1).find(keyed(1)),
                (c := small_cache(1)).find(keyed(1)),
                c.find(keyed(1, 9)),
            ],
            "9 val",
        ),
    ],
)
def test_bad_sizes_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
