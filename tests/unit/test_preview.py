"""Avatars as pictures: what is drawn where, and what is left as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from packet_parts import info, tensors

from talkinghead.nodes.avatars.preview import BOX, POINT, avatar_overlay
from talkinghead.nodes.core.packet import write_packet
from talkinghead.nodes.musetalk.preview import draw_geometry


@pytest.fixture
def packet(tmp_path):
    made = tensors()
    geometry = made["geometry.safetensors"]
    geometry["found"][1] = False
    geometry["points"] = torch.full((3, 68, 2), 15.0)
    geometry["points"][1] = float("nan")  # of a frame without a face: never looked at
    geometry["points"][2] = -600.0  # a face may leave the picture
    return write_packet(tmp_path, info(), made)


def test_geometry_is_drawn_and_frames_without_a_face_are_left(packet):
    drawn = avatar_overlay(packet, 0, 9)
    assert drawn.shape == (3, 32, 40, 3)
    for x, y in ((1, 2), (29, 2), (1, 30), (29, 30)):
        assert drawn[0, y, x].tolist() == list(BOX)
    assert np.abs(drawn[0, 15, 15].astype(int) - POINT).max() < 60
    assert (drawn[1] == 7).all()
    assert not (drawn[2] == 7).all()
    assert (avatar_overlay(packet, 2, 1)[0] == drawn[2]).all()


def test_frames_the_avatar_does_not_have_are_named(packet):
    for start, count in ((3, 1), (-1, 1), (0, 0)):
        with pytest.raises(ValueError, match=r"are not in the avatar; it has 0\.\.2"):
            avatar_overlay(packet, start, count)


def test_a_mask_tints_as_strongly_as_it_blends():
    picture = np.full((40, 40, 3), 100, np.uint8)
    mask = np.zeros((20, 20), np.uint8)
    mask[:, 10:] = 255
    draw_geometry(picture, (12, 12, 28, 28), (10, 10, 30, 30), mask, None)
    assert picture[20, 15].tolist() == [100, 100, 100]
    assert picture[20, 25].tolist() != [100, 100, 100]
    assert picture[5, 5].tolist() == [100, 100, 100]
