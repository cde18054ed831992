"""Resident packets: bounds, pins, idle eviction, rebuilt packets, threads. CPU: bytes are those of the latents."""

import threading
import time
from fractions import Fraction

import pytest
import torch
from packet_parts import info, tensors

from talkinghead.nodes.core.packet import PacketError, write_packet
from talkinghead.nodes.core.pool import AvatarPool

ONE = 3 * 8 * 4 * 4 * 2
"""Bytes of the latents of one small packet."""


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def make(tmp_path):
    def make(name, value=7, n=3, size=(40, 32)):
        return write_packet(tmp_path, info(name, n, size=size), tensors(n, size, value))

    return make


@pytest.fixture
def pool():
    pools = []

    def build(max_bytes=1 << 20, **kinds):
        pools.append(AvatarPool(max_bytes, **{"clock": Clock(), **kinds}))
        return pools[-1]

    yield build
    for made in pools:
        made.flush()


def visit(pool, *packets):
    for packet in packets:
        with pool.use(packet):
            pass


def test_a_second_use_finds_it_warm(pool, make):
    warm, packet = pool(), make("a")
    with warm.use(packet) as first:
        assert first.device == torch.device("cpu")
        assert torch.equal(first.latents, tensors()["latents.safetensors"]["latents"])
        assert int(first.reader.frame(1)[0, 0, 0]) == 7
        assert warm.stats().pinned == 1
    with warm.use(packet) as second:
        assert second is first
    got = warm.stats()
    assert (got.items, got.bytes, got.pinned, got.hits, got.misses) == (1, ONE, 0, 1, 1)


def test_nothing_runs_before_the_first_use(make):
    before = threading.active_count()
    quiet = AvatarPool(1 << 20)
    assert threading.active_count() == before
    assert quiet.flush() == 0
    assert threading.active_count() == before


def test_the_least_recently_used_goes_first(pool, make):
    warm = pool(max_items=2)
    a, b, c = make("a"), make("b"), make("c")
    visit(warm, a, b, a, c)  # a was used after b
    assert warm.stats().items == 2
    visit(warm, a)
    assert warm.stats().hits == 2
    visit(warm, b)
    assert (warm.stats().hits, warm.stats().misses, warm.stats().evictions) == (2, 4, 2)


def test_bytes_are_bounded(pool, make):
    """Row 36's rule, for avatars."""
    warm = pool(max_bytes=3 * ONE)
    for i in range(10):
        visit(warm, make(f"a{i}"))
        assert warm.stats().bytes <= 3 * ONE
    assert warm.stats().items == 3


def test_one_that_is_too_big_serves_and_goes(pool, make):
    warm = pool(max_bytes=ONE - 1)
    with warm.use(make("a")) as resident:
        assert resident.latents.shape == (3, 8, 4, 4)
        assert warm.stats().bytes == ONE
    assert warm.stats().bytes == 0


def test_what_is_in_use_survives_everything(pool, make):
    warm = pool(max_items=1)
    with warm.use(make("a")) as a:
        visit(warm, make("b"), make("c"))
        warm._clock.now += 10_000
        warm.evict_idle()
        assert warm.flush() == 0
        assert warm.stats().bytes == ONE
        assert a.latents is not None
        assert int(a.reader.frame(0)[0, 0, 0]) == 7
    assert a.latents is None  # flushed while in use: gone when it was released
    assert warm.stats().items == 0


def test_nested_uses_pin_twice(pool, make):
    warm, packet = pool(max_items=1), make("a")
    with warm.use(packet) as outer:
        visit(warm, packet)
        visit(warm, make("b"))
        assert outer.latents is not None
    assert warm.stats().pinned == 0


def test_idle_ones_go_to_zero_bytes(pool, make):
    warm = pool(idle_seconds=600)
    visit(warm, make("a"))
    warm._clock.now += 300
    visit(warm, make("b"))
    warm.evict_idle()  # the pool's own thread may be quicker, so what is freed here says nothing
    assert warm.stats().items == 2
    warm._clock.now += 300
    warm.evict_idle()
    assert (warm.stats().items, warm.stats().bytes) == (1, ONE)
    warm._clock.now += 300
    warm.evict_idle()
    assert (warm.stats().items, warm.stats().bytes) == (0, 0)


def test_flush_frees_all(pool, make):
    warm = pool()
    visit(warm, make("a"), make("b"))
    assert warm.flush() == 2 * ONE
    assert (warm.stats().items, warm.stats().bytes) == (0, 0)


def wait_until(what, seconds=20):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def threads():
    return [t for t in threading.enumerate() if t.name == "avatar pool"]


def test_the_watcher_drops_idle_ones_by_itself_and_ends(make):
    wait_until(lambda: not threads())  # those of the tests before
    warm = AvatarPool(1 << 20, idle_seconds=0.05)
    for _ in range(2):  # and starts again when there is something to watch
        wait_until(lambda: not threads())
        with warm.use(make("a")):
            assert len(threads()) == 1
            assert threads()[0].daemon
        wait_until(lambda: warm.stats().items == 0)
    wait_until(lambda: not threads())


def test_the_watcher_ends_after_a_flush(pool, make):
    wait_until(lambda: not threads())
    warm = pool()
    visit(warm, make("a"))
    assert len(threads()) == 1
    warm.flush()
    wait_until(lambda: not threads())


def test_an_exception_inside_releases_the_pin(pool, make):
    warm = pool()
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), warm.use(make("a")):
            raise error
    assert warm.stats().pinned == 0
    assert warm.flush() == ONE


def test_a_rebuilt_packet_is_another_entry_and_the_stale_one_goes(pool, make):
    """Row 34."""
    warm, old = pool(), make("a", value=7)
    visit(warm, old)
    new = make("a", value=9)
    with warm.use(new) as resident:
        assert int(resident.reader.frame(0)[0, 0, 0]) == 9
    assert warm.stats().items == 1
    with pytest.raises(PacketError, match="rebuilt"):
        visit(warm, old)
    visit(warm, new)  # the old handle has not thrown out the new packet
    assert (warm.stats().items, warm.stats().misses, warm.stats().hits) == (1, 2, 1)


def test_a_stale_handle_gets_an_error_and_not_what_is_resident(pool, make):
    warm, old = pool(), make("a")
    visit(warm, old)
    make("a", value=9)
    with pytest.raises(PacketError, match="rebuilt"):
        visit(warm, old)
    assert warm.stats().items == 0


def test_a_packet_rebuilt_during_a_run_stays_for_that_run(pool, make):
    warm, old = pool(), make("a")
    with warm.use(old) as running:
        visit(warm, make("a", value=9))
        assert int(running.reader.frame(0)[0, 0, 0]) == 7
        assert warm.stats().items == 2
    assert running.latents is None
    assert warm.stats().items == 1


def test_a_packet_that_cannot_be_opened_leaves_nothing(pool, make, monkeypatch):
    warm, packet = pool(), make("a")
    good = make("b")
    visit(warm, good)
    (packet.path / "latents.safetensors").unlink()
    with pytest.raises(PacketError, match="latents"):
        visit(warm, packet)
    assert (warm.stats().items, warm.stats().pinned) == (1, 0)

    def full(*_, **__):
        raise torch.OutOfMemoryError("no memory on the card")

    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(torch.OutOfMemoryError):
        visit(warm, make("c"))
    assert (warm.stats().items, warm.stats().pinned) == (1, 0)


def test_devices_are_entries_of_their_own(pool, make):
    warm, packet = pool(), make("a")
    with warm.use(packet, "cpu"), warm.use(packet, "meta") as other:
        assert other.latents.device.type == "meta"
        assert warm.stats().items == 2


def test_two_avatars_from_two_threads_do_not_mix(pool, make):
    """Row 31, with a pool so small that they push each other out."""
    warm = pool(max_items=1)
    red, blue = make("red", value=200), make("blue", value=20)
    wrong, start = [], threading.Barrier(2)

    def render(packet, level):
        start.wait()
        for i in range(150):
            with warm.use(packet) as resident:
                frame = resident.reader.frame(i % 3)
                if not bool((frame == level).all()) or resident.latents is None:
                    wrong.append((level, i))

    pair = [threading.Thread(target=render, args=a) for a in ((red, 200), (blue, 20))]
    for thread in pair:
        thread.start()
    for thread in pair:
        thread.join()
    assert wrong == []
    got = warm.stats()
    assert (got.pinned, got.hits + got.misses) == (0, 300)
    assert got.items <= 1


def test_switching_to_an_avatar_of_other_geometry(pool, make):
    """Row 32."""
    warm = pool(max_items=1)
    visit(warm, make("a", n=10, size=(256, 256)))
    b = make("b", n=7, size=(300, 200))
    with warm.use(b) as switched, b.open() as fresh:
        assert switched.reader.frame(6).shape == (200, 300, 3)
        assert torch.equal(switched.latents, fresh.latents)
        assert torch.equal(switched.reader.boxes, fresh.boxes)
        assert all(torch.equal(switched.reader.mask(i), fresh.mask(i)) for i in range(7))
    assert b.info.fps == Fraction(25)


@pytest.mark.parametrize("wrong", [{"max_bytes": -1}, {"max_items": 0}, {"idle_seconds": 0}])
def test_bounds_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="cannot be"):
        AvatarPool(**{"max_bytes": 1, **wrong})
