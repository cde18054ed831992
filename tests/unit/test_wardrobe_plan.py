"""Where crops lie and how long they are: the arithmetic, without pictures."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from talkinghead.nodes.wardrobe.plan import (
    BoxRules,
    axis_size,
    even,
    fitting_lengths,
    kept_and_made,
    static_origin,
    taut_string,
    tracked_origins,
)


def test_boxes_cover_align_and_stay_inside_where_they_can():
    rng = np.random.default_rng(1)
    for _ in range(2000):
        limit = int(rng.integers(40, 700))
        low = int(rng.integers(0, limit))
        high = int(rng.integers(low + 1, limit + 1))
        rules = BoxRules(
            int(rng.choice([2, 4, 16, 32, 64])), float(rng.choice([0, 0.12, 0.5])), int(rng.integers(0, 20))
        )
        wide_low, wide_high = even(low, high)
        size = axis_size(wide_high - wide_low, limit, rules, "width")
        origin = static_origin(wide_low, wide_high, size, limit)
        where = (limit, low, high, rules, origin, size)
        assert size % rules.align == 0, where
        assert origin % 2 == 0, where
        assert origin <= low, where
        assert high <= origin + size, where
        if size <= limit and limit % 2 == 0:
            assert 0 <= origin <= limit - size, where


def test_the_size_is_the_subject_with_its_room_and_no_more():
    """The size that the box's rule says, where a box of that size with an even origin holds the subject."""
    rng = np.random.default_rng(2)
    larger = 0
    for _ in range(2000):
        limit = 2 * int(rng.integers(100, 400))
        low = int(rng.integers(0, limit))
        high = int(rng.integers(low + 1, limit + 1))
        align, pad_px = int(rng.choice([2, 16, 32])), int(rng.integers(0, 9))
        extent, first, last = high - low, *even(low, high)
        rules = BoxRules(align, 0.12, pad_px)
        size = axis_size(extent, limit, rules, "width", last - first)
        said = -(-(extent + 2 * (pad_px + -(-12 * extent // 100))) // align) * align
        if said > limit // align * align:
            said = -(-extent // align) * align
        assert size in (said, said + align)
        larger += size > said
        assert (size > said) == (last - first > said)
    assert 0 < larger < 100
    # 25 px from an odd column on: 31 with their room, so 32 and not 64.
    assert axis_size(25, 400, BoxRules(32), "width", 26) == 32


def test_a_phone_frame_is_padded_to_the_next_token():
    rules = BoxRules(32)
    size = axis_size(1080, 1080, rules, "width")
    assert (static_origin(0, 1080, size, 1080), size) == (-4, 1088)
    assert axis_size(1080, 1080, BoxRules(32, overflow="shrink"), "width") == 1056
    with pytest.raises(ValueError, match=r"width is 1080 px of 1080, a box of 1088; expected at most 1056"):
        axis_size(1080, 1080, BoxRules(32, overflow="error"), "width")
    # Room is given up before anything else.
    assert axis_size(1000, 1080, BoxRules(32, overflow="error"), "width") == 1024
    assert axis_size(100, 1080, rules, "width") == 128


def brute_force_length(lowest, highest):
    """Return the least sum of lengths over all whole-number paths."""
    best = {v: 0.0 for v in range(lowest[0], highest[0] + 1)}
    for low, high in zip(lowest[1:], highest[1:], strict=True):
        best = {
            v: min(d + np.hypot(1, v - u) for u, d in best.items()) for v in range(int(low), int(high) + 1)
        }
    return min(best.values())


@pytest.mark.parametrize("seed", range(40))
def test_the_taut_string_is_the_shortest_path(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    lowest = rng.integers(0, 12, n)
    highest = lowest + rng.integers(0, 6, n)
    path = taut_string(lowest, highest)
    assert (path >= lowest - 1e-9).all()
    assert (path <= highest + 1e-9).all()
    length = np.hypot(1, np.diff(path)).sum()
    assert length <= brute_force_length(lowest, highest) + 1e-9
    for i, step in itertools.product(range(n), (-0.01, 0.01)):
        moved = path.copy()
        moved[i] = np.clip(moved[i] + step, lowest[i], highest[i])
        assert np.hypot(1, np.diff(moved)).sum() >= length - 1e-9


def test_the_string_stays_put_until_it_is_forced():
    assert (taut_string(np.array([0, 1, 2, 0]), np.array([9, 8, 9, 5])) == 3.5).all()
    path = taut_string(np.array([0, 0, 0, 6, 6]), np.array([2, 2, 2, 8, 8]))
    assert path.tolist() == [2, 2, 2, 6, 6]


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_tracked_boxes_hold_their_subject(seed, wrap):
    rng = np.random.default_rng(seed)
    n, limit = int(rng.integers(2, 40)), int(rng.integers(100, 401))
    extent = rng.integers(10, 60, n)
    low = np.array([rng.integers(0, limit - e) for e in extent])
    wide_low, wide_high = even(low, low + extent)
    size = axis_size(int((wide_high - wide_low).max()), limit, BoxRules(16), "width")
    origins = tracked_origins(wide_low, wide_high, size, limit, wrap)
    assert (origins % 2 == 0).all()
    assert (origins <= low).all()
    assert (low + extent <= origins + size).all()
    assert (origins >= 0).all()
    assert (origins + size <= limit + limit % 2).all()
    still = tracked_origins(wide_low[:1].repeat(n), wide_high[:1].repeat(n), size, limit, wrap)
    assert len(set(still.tolist())) == 1


def test_a_wrapped_path_closes():
    t = np.arange(60)
    centre = 200 + 100 * np.sin(2 * np.pi * t / 60 + 1)
    low, high = even((centre - 20).astype(int), (centre + 20).astype(int))
    open_path = tracked_origins(low, high, 64, 400, False)
    closed = tracked_origins(low, high, 64, 400, True)
    steps = np.abs(np.diff(closed))
    assert abs(int(closed[0]) - int(closed[-1])) <= steps.max()
    assert abs(int(open_path[0]) - int(open_path[-1])) > steps.max()
    assert (closed <= low).all()
    assert (high <= closed + 64).all()


@pytest.mark.parametrize(
    ("n", "rule", "near"),
    [
        (175, "17k+5", (175, 175)),
        (174, "17k+5", (158, 175)),
        (176, "17k+5", (175, 192)),
        (5, "17k+5", (5, 5)),
        (4, "17k+5", (0, 5)),
        (81, "4k+1", (81, 81)),
        (80, "4k+1", (77, 81)),
        (100, "8k+1", (97, 105)),
        (100, "none", (100, 100)),
    ],
)
def test_lengths_a_model_takes(n, rule, near):
    assert fitting_lengths(n, rule) == near


def test_bad_lengths():
    for n, text in ((174, "158 or 175 frames"), (176, "175 or 192 frames"), (3, "at least 5 frames")):
        with pytest.raises(ValueError, match=text):
            kept_and_made(n, "17k+5", "error")
    assert kept_and_made(176, "17k+5", "trim") == (175, 175)
    assert kept_and_made(176, "17k+5", "repeat_last") == (176, 192)
    assert kept_and_made(175, "17k+5", "error") == (175, 175)
    with pytest.raises(ValueError, match="at least 5"):
        kept_and_made(3, "17k+5", "trim")
