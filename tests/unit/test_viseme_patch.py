"""A recalled mouth in a face that moves: only the mouth, where the face is, and as good as a drawn one."""

from functools import lru_cache

import cv2
import numpy as np
import pytest

from talkinghead.nodes.core.blend import composite, crop_geometry, face_crop, lower_half_mask, mouth_mask
from talkinghead.nodes.core.viseme_cache import apply_patch, cut_patch, mouth_window

SIZES = (128, 256)
PHILTRUM = 158 / 256  # share of the box's height above which the network's mouth mask is 0


@pytest.mark.parametrize("size", SIZES)
def test_the_window_is_the_mouth_masks_and_nothing_above_the_philtrum(size):
    mask = mouth_mask((0, 0, size, size, 0, 0, size, size))
    window = mouth_window(size)
    alpha = np.zeros((size, size), np.uint8)
    alpha[window.rows, window.columns] = window.alpha
    assert not alpha[: int(PHILTRUM * size)].any()
    assert ((alpha > 0) == (mask > 0)).all()
    assert (alpha >= mask).all()
    assert (alpha[mask > 85] == 255).all()
    assert window.patch_bytes == cut_patch(np.zeros((size, size, 3), np.uint8)).nbytes


@pytest.mark.parametrize("size", SIZES)
def test_the_crop_is_its_own_but_for_the_mouth(size):
    rng = np.random.default_rng(1)
    own, made = (rng.integers(0, 256, (size, size, 3), np.uint8) for _ in range(2))
    before = own.copy()
    crop = apply_patch(own, cut_patch(made))
    assert (own == before).all()
    alpha = np.zeros((size, size, 1), np.uint8)
    window = mouth_window(size)
    alpha[window.rows, window.columns, 0] = window.alpha
    exact = own + (made.astype(float) - own) * (alpha / 255)
    assert np.abs(crop - exact).max() <= 0.5 + 1e-9
    assert (crop == own)[np.repeat(alpha == 0, 3, 2)].all()
    assert (crop == made)[np.repeat(alpha == 255, 3, 2)].all()
    assert (alpha == 255).any()


def test_a_patch_of_another_model_is_refused():
    with pytest.raises(ValueError, match="for a crop of 256, whose mouth is"):
        apply_patch(np.zeros((256, 256, 3), np.uint8), cut_patch(np.zeros((128, 128, 3), np.uint8)))


@lru_cache(maxsize=1)
def moving_faces():
    """Two frames 320x240 of a face with nostrils, which moves and grows in between, and its box in each."""
    frames, boxes = [], []
    for x, y, side in ((90, 40, 128), (121, 63, 150)):
        face = np.full((256, 256, 3), (200, 150, 120), np.uint8)
        for at in ((112, 140), (144, 140)):
            cv2.circle(face, at, 7, (20, 10, 200), -1)
        cv2.ellipse(face, (128, 196), (40, 12), 0, 0, 360, (170, 60, 60), -1)
        frame = np.full((240, 320, 3), (60, 90, 60), np.uint8)
        frame[y : y + side, x : x + side] = cv2.resize(face, (side, side))
        frames.append(frame)
        boxes.append((x, y, x + side, y + side))
    return frames, boxes


@pytest.mark.parametrize("draw", [mouth_mask, lower_half_mask])
def test_no_second_pair_of_nostrils_when_the_face_has_moved(draw):
    """The patch's frame has violet nostrils and a violet chin: none of it may show in the other frame."""
    frames, boxes = moving_faces()
    violet = np.array((255, 0, 255), np.uint8)
    made = face_crop(frames[0], boxes[0], 256)
    made[:158] = violet
    made[234:] = violet
    made[158:234, :61] = made[158:234, 193:] = violet
    cv2.ellipse(made, (127, 196), (30, 16), 0, 0, 360, (30, 0, 0), -1)  # an open mouth
    shown = frames[1].copy()
    crop = apply_patch(face_crop(frames[1], boxes[1], 256), cut_patch(made))
    composite(shown, crop, boxes[1], crop_geometry(boxes[1]), draw(crop_geometry(boxes[1])))
    x1, y1, x2, y2 = boxes[1]
    above = y1 + int(PHILTRUM * (y2 - y1)) - 2  # the resize of the crop reaches 1 row
    kept = np.abs(shown.astype(int) - frames[1])
    # Above the philtrum there is the current frame, but for what a crop loses on its way to 256 pixels and back.
    assert kept[:above].max() <= 30
    assert kept[:above].mean() <= 0.05
    assert not ((shown[..., 2] > 200) & (shown[..., 1] < 60) & (shown[..., 0] > 200)).any()
    middle = shown[y1 + 196 * (y2 - y1) // 256, (x1 + x2) // 2]
    assert (middle == (30, 0, 0)).all()


def test_the_nostril_test_can_fail():
    frames, boxes = moving_faces()
    made = face_crop(frames[0], boxes[0], 256)
    shown = frames[1].copy()
    # Placed by the coordinates of the frame it was drawn for, as a whole crop: nostrils where there are none.
    composite(shown, made, boxes[0], crop_geometry(boxes[0]), lower_half_mask(crop_geometry(boxes[0])))
    above = boxes[1][1] + int(PHILTRUM * (boxes[1][3] - boxes[1][1])) - 2
    assert np.abs(shown.astype(int) - frames[1])[:above].max() > 100
