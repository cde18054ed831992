"""Crop geometry, masks and the integer blend."""

import numpy as np
import pytest

from talkinghead.nodes.core.blend import (
    clamp_box,
    composite,
    crop_geometry,
    face_crop,
    lower_half_mask,
    mouth_mask,
)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "box", [(61, -1, 277, 309), (61, 20, 323, 309), (-9, -9, 329, 329), (200, 100, 320, 320)]
)
def test_boxes_over_the_border_are_clamped_and_composited(box):
    frame = noise(320, 320)
    inside = clamp_box(box, 320, 320)
    assert min(inside) >= 0
    assert max(inside) <= 320
    crop = crop_geometry(inside)
    assert face_crop(frame, inside, 64).shape == (64, 64, 3)
    out = frame.copy()
    composite(out, noise(64, 64, 1), inside, crop, mouth_mask(crop))
    x1, y1, x2, y2 = inside
    changed = (out != frame).any(2)
    assert changed.any()
    changed[y1:y2, x1:x2] = False
    assert not changed.any()


@pytest.mark.parametrize("box", [(300, 10, 500, 200), (-50, -50, 5, 100), (10, 10, 10, 90)])
def test_a_box_outside_says_its_value_and_the_limit(box):
    with pytest.raises(ValueError, match=r"face box .* of a 310x310 frame; at least 16x16"):
        clamp_box(box, 310, 310)


def test_crop_square_as_upstream():
    # golden blend case "centre": box 245,81,395,275 -> half side int((194 // 2) * 1.5)
    assert crop_geometry((245, 81, 395, 275)) == (175, 33, 465, 323, 70, 48, 150, 194)


def test_pixels_above_the_boundary_and_outside_the_mask_keep_their_bytes():
    frame, box = noise(320, 320), (60, 40, 260, 280)
    crop = crop_geometry(box)
    mask = mouth_mask(crop)
    out = frame.copy()
    composite(out, noise(128, 128, 1), box, crop, mask)
    middle = 40 + 120
    assert np.array_equal(out[:middle], frame[:middle])
    full = np.zeros((320, 320), np.uint8)
    x_s, y_s = crop[:2]
    ys, xs = np.nonzero(mask)
    full[ys + y_s, xs + x_s] = mask[ys, xs]
    assert np.array_equal(out[full == 0], frame[full == 0])
    assert (out[full == 255] != frame[full == 255]).any()
    # the feather is soft: no step over a quarter of the range between neighbours
    assert int(np.abs(np.diff(mask.astype(int), axis=0)).max()) < 64
    assert int(mask.max()) == 255


def test_blend_ends_are_exact_and_the_middle_is_rounded():
    frame = noise(64, 64)
    face = noise(64, 64, 1)
    box, crop = (0, 0, 64, 64), (0, 0, 64, 64, 0, 0, 64, 64)
    for value in (0, 1, 128, 254, 255):
        out = frame.copy()
        composite(out, face, box, crop, np.full((64, 64), value, np.uint8))
        exact = (face.astype(float) * value + frame.astype(float) * (255 - value)) / 255
        assert np.abs(out - exact).max() <= 0.5 + 1e-9
    assert lower_half_mask(crop).sum() == 255 * 32 * 64


def test_faces_of_any_size_are_scaled_into_the_box():
    frame = np.zeros((200, 200, 3), np.uint8)
    face = np.full((32, 32, 3), 200, np.uint8)
    crop = crop_geometry((50, 50, 150, 150))
    composite(frame, face, (50, 50, 150, 150), crop, lower_half_mask(crop))
    assert (frame[100:150, 50:150] == 200).all()
    assert frame[:100].max() == 0
