"""The parts of following a face: key frames, likeness, smoothing, shifts, windows."""

import faces as pictures
import numpy as np
import pytest

from talkinghead.nodes.core import face_views as views


def test_key_frames():
    assert views.key_frames(1, 4) == [0]
    assert views.key_frames(9, 4) == [0, 4, 8]
    assert views.key_frames(11, 4) == [0, 4, 8, 10]


def test_likeness_knows_no_brightness_and_no_flat_area():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0, 255, (2, 24, 24)).astype(np.float32)
    assert views.likeness(a, 0.2 * a + 30) == pytest.approx(1, abs=1e-5)
    assert views.likeness(a, 255 - a) == pytest.approx(-1, abs=1e-5)
    assert abs(views.likeness(a, b)) < 0.2
    assert views.likeness(a, np.full_like(a, 77)) == 0
    wide = np.full((30, 30), 128, np.float32)
    assert views.best_likeness(wide, a) == 0
    wide[5:29, 2:26] = a
    assert views.best_likeness(wide, a) == pytest.approx(1, abs=1e-4)


def test_thumbnail_of_a_box_that_leaves_the_frame():
    frame = pictures.gray(40, 30, 50)
    frame[:, :20] = 200
    view = views.make_view(0, frame, 480)
    assert views.thumbnail(view, (-30, -30, 10, 10)).shape == (24, 24)
    assert (views.thumbnail(view, (-30, -30, 10, 10)) == 200).all()
    half = views.thumbnail(view, (10, 5, 30, 25))
    assert half[:, :11].mean() == pytest.approx(200, abs=1)
    assert half[:, 13:].mean() == pytest.approx(50, abs=1)


def test_one_place():
    box = (100, 100, 150, 150)
    assert views.one_place(box, (120, 100, 170, 150))
    assert views.one_place(box, (105, 105, 140, 140))
    assert not views.one_place(box, (150, 100, 200, 150))  # cheek to cheek
    assert not views.one_place(box, (50, 50, 200, 200))  # three times as large
    assert not views.one_place(box, (100, 100, 100, 100))


def test_smoothing_keeps_steady_motion_at_unequal_steps_and_halves_a_spike():
    times = np.array([0.0, 4, 8, 9])
    line = np.stack([2 * times, 7 - times], 1)
    assert np.allclose(views.smoothed(times, line), line)
    spike = np.array([[0.0], [0], [4], [0], [0]])
    assert views.smoothed(np.arange(5.0) * 4, spike).ravel().tolist() == [0, 1, 2, 1, 0]
    assert np.array_equal(views.smoothed(times[:2], line[:2]), line[:2])


def test_interpolation_is_linear_between_and_constant_outside():
    values = np.array([[0.0, 10], [8, 30]])
    out = views.interpolated(np.array([2.0, 6]), values, np.array([0.0, 2, 3, 5, 6, 9]))
    assert out[:, 0].tolist() == [0, 0, 2, 6, 8, 8]
    assert out[:, 1].tolist() == [10, 10, 15, 25, 30, 30]
    assert views.interpolated(np.array([5.0]), values[:1], np.array([0.0, 9])).tolist() == [[0, 10], [0, 10]]


def test_windows_cover_the_picture_and_overlap():
    for width, height in ((1920, 1080), (1080, 1920), (640, 480), (500, 500)):
        covered = np.zeros((height, width), int)
        for left, top, side in views.windows(width, height):
            assert left >= 0
            assert top >= 0
            assert left + side <= width
            assert top + side <= height
            covered[top : top + side, left : left + side] += 1
        assert covered.min() == 1
        assert (covered[:, width // 2] > 0).all()
        lefts = sorted({left for left, _, _ in views.windows(width, height)})
        assert max(np.diff(lefts)) <= 0.75 * side + 1


def test_shift_between_finds_fractions_of_a_pixel():
    rng = np.random.default_rng(1)
    big = pictures.cv2.resize(rng.uniform(0, 255, (12, 12)).astype(np.float32), (60, 60))
    face = big[20:44, 20:44]
    for x, y in ((0, 0), (1.4, -0.6), (-2, 1)):
        area = pictures.cv2.getRectSubPix(big, (30, 30), (31.5 - x, 31.5 - y))
        likeness, shift = views.shift_between(area, face)
        assert likeness > 0.95
        assert np.allclose(shift, (x, y), atol=0.2)
    assert np.isinf(views.shift_between(big[:30, :30], big[25:49, 25:49])[1]).all()
    assert views.shift_between(np.full((30, 30), 9, np.float32), face)[0] == 0
    shade = np.tile(
        np.arange(30, dtype=np.float32) * 5, (30, 1)
    )  # it cannot say where it is, and has not moved
    assert np.allclose(views.shift_between(shade, shade[:24, 3:27])[1], 0, atol=0.05)


def test_look_likeness_knows_colour():
    plain, box = pictures.portrait(320, 240, None, 80)
    tinted, _ = pictures.portrait(320, 240, None, 80, (0.7, 0.85, 1.0))
    one, other = (views.make_view(0, picture, 480) for picture in (plain, tinted))
    look = views.make_look(one, box)
    assert views.look_likeness(one, box, [look]) > 0.99
    assert views.look_likeness(other, box, [look]) < 0.8
    assert views.look_likeness(other, box, [look, views.make_look(other, box)]) > 0.99
    flat = views.make_view(0, pictures.gray(320, 240), 480)
    assert views.look_likeness(flat, box, [views.make_look(flat, box)]) == 1
    dark = views.make_view(0, plain // 2, 480)
    assert views.look_likeness(dark, box, [look]) > 0.95


def test_evenness_is_low_in_motion_and_high_in_noise():
    times = np.arange(9.0) * 4
    points = np.random.default_rng(0).uniform(0, 100, (68, 2))
    steady = points + times[:, None, None] * [3.0, 1.0]
    assert np.allclose(views.evenness(times, steady), 1)
    shaken = steady + np.array([0, 9, 0, -9, 0, 9, 0, -9, 0])[:, None, None]
    assert (views.evenness(times, shaken)[1::2] < 0.01).all()  # between them it lies on the line
    spike = np.array([[0.0], [0], [4], [0], [0]])
    assert views.smoothed(np.arange(5.0), spike, np.zeros(5)).ravel().tolist() == [0, 0, 4, 0, 0]


def test_shared_part():
    assert views.shared_part((0, 0, 10, 10), (5, 0, 25, 20)) == pytest.approx(0.5)
    assert views.shared_part((0, 0, 10, 10), (2, 2, 4, 4)) == 1
    assert views.shared_part((0, 0, 10, 10), (10, 0, 20, 10)) == 0
    assert views.shared_part((0, 0, 0, 0), (0, 0, 5, 5)) == 0
