"""Crop geometry, masks and the integer blend."""

import numpy as np
import pytest

from talkinghead.nodes.core.blend import (
    clamp_box,
    composite,
    crop_geometry,
    face_crop,
    lower_face_mask,
    lower_half_mask,
    match_colour,
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


@pytest.mark.parametrize("make", [mouth_mask, lower_face_mask])
def test_pixels_above_the_boundary_and_outside_the_mask_keep_their_bytes(make):
    frame, box = noise(320, 320), (60, 40, 260, 280)
    crop = crop_geometry(box)
    mask = make(crop)
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


@pytest.mark.parametrize("box", [(0, 0, 256, 256), (40, 30, 240, 330), (10, 20, 97, 141)])
def test_the_mouth_mask_never_reaches_the_nostrils(box):
    crop = crop_geometry(box)
    rel_x, rel_y, w, h = crop[4:]
    mask = mouth_mask(crop)[rel_y : rel_y + h, rel_x : rel_x + w]
    rows = np.flatnonzero(mask.any(1))
    # wardrobe spec 3.14, in rows of a 256 px crop: 0 up to 158 and from 234 on, full at the ellipse's middle
    assert (rows[0] + 0.5) / h * 256 - 0.5 > 158
    assert (rows[-1] + 0.5) / h * 256 - 0.5 < 234
    assert mask[round(196 / 256 * h), round(127 / 256 * w)] == 255
    assert not mouth_mask(crop)[:rel_y].any()


def test_colours_are_matched_to_the_skin_around():
    rng = np.random.default_rng(0)
    skin = (np.array([200, 150, 120]) + rng.normal(0, 6, (64, 64, 3))).clip(0, 255).astype(np.uint8)
    tinted = (skin * np.array([0.8, 1.0, 1.15])).clip(0, 255).astype(np.uint8)
    tinted[24:40, 24:40] = (60, 10, 10)  # an open mouth must not sway the match
    weight = np.full((64, 64), 128, np.uint8)
    weight[16:48, 16:48] = 255
    before = np.abs(tinted.astype(int) - skin)[weight == 128].mean()
    after = np.abs(match_colour(tinted, skin, weight).astype(int) - skin)[weight == 128].mean()
    assert before > 15
    assert after < 2
    assert match_colour(tinted, skin, np.full((64, 64), 255, np.uint8)) is tinted


def test_a_colour_match_keeps_what_lies_outside_the_feather():
    frame, box = noise(200, 200), (40, 30, 160, 170)
    crop = crop_geometry(box)
    mask, out = mouth_mask(crop), frame.copy()
    composite(out, np.full((64, 64, 3), 90, np.uint8), box, crop, mask, colour=True)
    full = np.zeros((200, 200), np.uint8)
    full[30:170, 40:160] = mask[crop[5] : crop[5] + 140, crop[4] : crop[4] + 120]
    assert np.array_equal(out[full == 0], frame[full == 0])
    assert (out != frame).any()
