"""Shapes other software hands over, and what a user types."""

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.images import (
    cover,
    cover_box,
    image_batch,
    mask_box,
    parse_box,
    parse_size,
    rgb_frames,
)


def test_images_become_8_bit_rgb():
    image = torch.tensor([0.0, 0.5, 1.0, 1.7, -0.2, float("nan")]).view(1, 2, 3, 1)
    assert rgb_frames(image)[0, ..., 0].tolist() == [[0, 128, 255], [255, 0, 0]]
    assert rgb_frames(image).shape == (1, 2, 3, 3)
    assert rgb_frames(torch.rand(2, 4, 5, 3).half()).dtype == torch.uint8


def test_alpha_is_laid_on_black():
    image = torch.ones(1, 2, 2, 4)
    image[..., 3] = torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    assert rgb_frames(image)[0, ..., 0].tolist() == [[255, 128], [0, 255]]


@pytest.mark.parametrize("shape", [(4, 5, 3), (1, 4, 5, 2), (1, 4, 5, 5)])
def test_other_shapes_are_named(shape):
    with pytest.raises(ValueError, match="this one is"):
        rgb_frames(torch.zeros(shape))


def test_round_trip_through_image_is_exact():
    frames = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    assert torch.equal(rgb_frames(image_batch(frames)), frames)


def test_boxes_and_sizes_as_users_write_them():
    assert parse_box("160, 96,352,288") == (160, 96, 352, 288)
    assert parse_box("-5 0 20 30") == (-5, 0, 20, 30)
    assert parse_size("1080x1920") == (1080, 1920)
    assert parse_size(" 64 X 32 ") == (64, 32)


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5", "a,b,c,d", "1.5,2,3,4", "9,9,9,20", "30,0,10,20"])
def test_wrong_boxes_say_what_was_written(text):
    with pytest.raises(ValueError, match="box"):
        parse_box(text)


@pytest.mark.parametrize("text", ["", "512", "512x", "0x512", "9000x512", "-1x5", "512x512x3"])
def test_wrong_sizes_say_what_was_written(text):
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_mask_bounds():
    mask = torch.zeros(20, 30)
    mask[4:9, 7:21] = 1
    assert mask_box(mask) == (7, 4, 21, 9)
    assert mask_box(torch.zeros(5, 5)) is None


@pytest.mark.parametrize("size", [(64, 64), (200, 50), (30, 300), (128, 96)])
def test_a_box_moves_with_the_picture(size):
    frame = np.zeros((96, 128, 3), np.uint8)
    frame[40:60, 50:80] = 255
    covered = cover(frame, *size)[..., 0] > 127
    x1, y1, x2, y2 = cover_box((50, 40, 80, 60), (128, 96), size)
    expected = np.zeros_like(covered)
    expected[max(0, y1) : y2, max(0, x1) : x2] = True
    assert (covered != expected).sum() <= 2 * (x2 - x1 + y2 - y1)  # a border pixel may round either way
    assert covered.any()
