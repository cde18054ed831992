"""Does a clip's end meet its start: made loops, pans, stills, and a head that jumps on a quiet background."""

import numpy as np
import pytest

from talkinghead.nodes.core.loop import check_loop, choose_cycle

WIDTH, HEIGHT = 192, 160


def scene(shift, radius=12.0):
    """A soft disc `shift` pixels right of the middle, on a gradient that stands still."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    disc = 1 / (1 + np.exp((np.hypot(x - WIDTH / 2 - shift, y - HEIGHT / 2) - radius) / 2))
    return np.rint(np.stack([disc * 200, x / WIDTH * 200, y / HEIGHT * 200], -1)).astype(np.uint8)


def swaying(n, pixels=6.0, turns=1.0):
    return [scene(pixels * np.sin(2 * np.pi * turns * i / n)) for i in range(n)]


def textured_pan(n, step):
    y, x = np.mgrid[0:HEIGHT, 0 : WIDTH + n * step].astype(np.float64)
    wide = 127 + 60 * np.sin(x / 17) + 60 * np.sin(y / 11 + x / 41)
    return [np.repeat(wide[:, i * step : i * step + WIDTH, None], 3, 2).astype(np.uint8) for i in range(n)]


def check(frames, boxes=None):
    return check_loop(lambda i: frames[i], len(frames), boxes)


def cycle(wanted, frames, boxes=None):
    return choose_cycle(wanted, lambda i: frames[i], len(frames), boxes)


def test_a_clip_that_returns_to_its_start_loops():
    got = check(swaying(25))
    assert got.locked
    assert got.boundary_rms < 0.015
    assert got.best_end == 25
    assert cycle("auto", swaying(25)) == "loop"


def test_a_lively_loop_is_one_although_its_steps_are_large():
    frames = swaying(25, pixels=40)
    got = check(frames)
    assert got.boundary_rms > 0.015
    assert got.locked


def test_a_pan_goes_back_and_forth():
    got = check(textured_pan(25, 4))
    assert not got.locked
    assert got.boundary_rms > 3 * got.typical_rms
    assert cycle("auto", textured_pan(25, 4)) == "pingpong"


def test_pictures_that_have_nothing_in_common_do_not_loop():
    """Their seam is no bigger than their other steps, but nothing hides it."""
    rng = np.random.default_rng(0)
    assert not check([rng.integers(0, 256, (40, 40, 3), dtype=np.uint8) for _ in range(6)]).locked


def test_rms_is_a_share_of_full_scale():
    frames = [np.full((40, 40, 3), v, np.uint8) for v in (100, 103, 106, 151)]
    got = check(frames)
    assert got.boundary_rms == pytest.approx(51 / 255)
    assert got.typical_rms == pytest.approx(3 / 255)


def test_a_small_jump_is_taken_as_locked_below_the_limit():
    below, above = ([np.full((40, 40, 3), v, np.uint8) for v in (100, 100, 100, 100 + d)] for d in (3, 4))
    assert check(below).locked
    assert not check(above).locked


def test_the_best_end_is_where_the_clip_was_at_its_start():
    frames = [*swaying(20), *(scene(3.0 * i) for i in range(1, 9))]
    got = check(frames)
    assert not got.locked
    assert 18 <= got.best_end <= 22
    cut = check(frames[: got.best_end])
    assert cut.locked
    assert cut.boundary_rms < got.boundary_rms


def test_a_head_that_jumps_on_a_quiet_background_needs_its_box():
    frames = [scene(1.0 * i, radius=8) for i in range(7)]
    boxes = np.array([[84 + i, 68, 108 + i, 92] for i in range(7)])
    alone, with_face = check(frames), check(frames, boxes)
    assert with_face.boundary_rms > 3 * alone.boundary_rms
    assert not with_face.locked
    # a box outside the picture is no reason to fail
    assert check(frames, boxes + 1000).boundary_rms == alone.boundary_rms


def test_a_mouth_that_moves_does_not_break_a_loop():
    frames = [scene(0) for _ in range(10)]
    frames[-1] = frames[-1].copy()
    frames[-1][84:90, 86:106] = 255
    boxes = np.array([[76, 60, 116, 100]] * 10)
    assert check(frames, boxes).boundary_rms == check(frames).boundary_rms


def test_stills():
    assert cycle("auto", [scene(0)]) == "still"
    assert cycle("loop", [scene(0)]) == "still"
    got = check([scene(0)])
    assert (got.locked, got.boundary_rms, got.best_end) == (True, 0.0, 1)
    same = check([scene(0)] * 5)
    assert (same.locked, same.boundary_rms, same.typical_rms, same.best_end) == (True, 0.0, 0.0, 5)


def test_what_the_user_wants_is_done_without_looking():
    def never(_):
        raise AssertionError("looked")

    assert choose_cycle("loop", never, 9) == "loop"
    assert choose_cycle("pingpong", never, 9) == "pingpong"
    with pytest.raises(ValueError, match="'bounce'"):
        choose_cycle("bounce", never, 9)


def test_every_frame_is_asked_for_once_in_order():
    frames, asked = swaying(6), []
    check_loop(lambda i: asked.append(i) or frames[i], 6)
    assert asked == [0, 1, 2, 3, 4, 5]


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="has 0"):
        check_loop(lambda i: None, 0)
    with pytest.raises(ValueError, match=r"\(2, 4\), must be \(3, 4\)"):
        check_loop(lambda i: scene(0), 3, np.zeros((2, 4)))
