"""Boxes, masks, landmarks and face parsing beyond the goldens: refusals, fallbacks, and the network's interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.blend import composite, crop_geometry
from talkinghead.nodes.musetalk import dwpose, masks
from talkinghead.nodes.musetalk.bisenet import BiSeNet
from talkinghead.nodes.musetalk.boxes import add_margin, face_box, range_text, shift_range
from talkinghead.nodes.musetalk.parity_windows import current_windows


def face(left=100, top=50) -> np.ndarray:
    """68 points in a 60 x 80 rectangle, the nose point 30 above the lowest."""
    points = np.tile([left + 30.0, top + 60.0], (68, 1))
    points[0], points[8], points[16] = (left, top), (left + 30, top + 80), (left + 60, top)
    points[28], points[29], points[30] = (left + 30, top + 40), (left + 30, top + 50), (left + 30, top + 55)
    return points


def test_the_nose_point_is_the_middle():
    found = face_box(face(), (1, 2, 3, 4))
    assert found.box == (100, 70, 160, 130)
    assert not found.from_detector
    assert face_box(face(), (1, 2, 3, 4), bbox_shift=5).box == (100, 80, 160, 130)
    assert add_margin(found.box, 135) == (100, 70, 160, 135)


def test_landmarks_left_of_the_frame_use_the_detector():
    found = face_box(face(left=-2), (1, 2, 3, 4))
    assert found.box == (1, 2, 3, 4)
    assert found.from_detector


def test_no_detection_is_no_face():
    assert face_box(face(), None) is None


def test_the_caller_keeps_the_points():
    points = face()
    face_box(points, (1, 2, 3, 4), bbox_shift=9)
    assert np.array_equal(points, face())


def test_range_of_the_shift():
    assert shift_range([face(), face()]) == (5, 10)
    assert range_text([face()], 3) == "[ -5~10 ] , the current value: 3"
    with pytest.raises(ValueError, match="no frame has a face"):
        shift_range([])


def test_points_of_another_count_are_refused():
    with pytest.raises(ValueError, match=r"\(68, 2\), got \(133, 2\)"):
        face_box(np.zeros((133, 2)), (0, 0, 9, 9))


def test_mask_modes_differ_as_described():
    labels = np.zeros((512, 512), np.uint8)
    labels[100:300, 150:350] = masks.SKIN
    labels[180:220, 240:270] = masks.NOSE
    labels[300:340, 200:300] = masks.NECK
    labels[240:260, 230:280] = 12
    raw, neck, jaw = (masks.mode_mask(labels, mode) > 0 for mode in ("raw", "neck", "jaw"))
    assert np.array_equal(neck & ~raw, labels == masks.NECK)
    assert not jaw[labels == masks.NOSE].any()
    assert jaw[labels == 12].all()
    assert jaw[:, 240:270].sum() + (labels == masks.NOSE).sum() > raw[:, 240:270].sum()  # grown at the chin
    assert jaw[:100].any() or jaw[300:].any()


def test_unknown_mode_and_size_are_refused():
    with pytest.raises(ValueError, match="'chin' is unknown; use one of jaw, raw, neck"):
        masks.mode_mask(np.zeros((512, 512), np.uint8), "chin")
    with pytest.raises(ValueError, match="label map is"):
        masks.mode_mask(np.zeros((256, 256), np.uint8))


def test_soft_mask_covers_the_square_and_stays_below_the_boundary():
    crop = crop_geometry((60, 40, 260, 280))
    mask = masks.blend_mask(np.full((512, 512), 255, np.uint8), crop)
    assert mask.shape == (crop[3] - crop[1], crop[2] - crop[0])
    reach = masks.blur_kernel(len(mask), masks.BLUR_REALTIME) // 2
    assert not mask[: len(mask) // 2 - reach].any()
    assert mask.max() == 255


@pytest.mark.parametrize("crop", [(-10, -20, 30, 40), (30, 20, 70, 60), (-90, 0, -50, 40)])
def test_square_outside_the_frame_is_black(crop):
    frame = np.full((48, 64, 3), 7, np.uint8)
    square = masks.crop_square(frame, crop)
    assert square.shape == (crop[3] - crop[1], crop[2] - crop[0], 3)
    y, x = np.mgrid[crop[1] : crop[3], crop[0] : crop[2]]
    inside = (y >= 0) & (y < 48) & (x >= 0) & (x < 64)
    assert (square[inside] == 7).all()
    assert not square[~inside].any()


@pytest.mark.parametrize("box", [(-20, -10, 60, 70), (40, 30, 120, 130), (200, 200, 260, 270)])
def test_a_box_over_the_border_blends_what_is_inside(box):
    frame, patch = np.zeros((100, 100, 3), np.uint8), np.full((32, 32, 3), 200, np.uint8)
    crop = crop_geometry(box)
    composite(frame, patch, box, crop, np.full((crop[3] - crop[1], crop[2] - crop[0]), 255, np.uint8))
    expected = np.zeros_like(frame)
    expected[max(0, box[1]) : max(0, box[3]), max(0, box[0]) : max(0, box[2])] = 200
    assert np.array_equal(frame, expected)


def brightest_spot(batch):
    """Stands for the network: every point lies on the brightest pixel."""
    assert batch.shape == (1, 3, 384, 288)
    assert batch.dtype == np.float32
    y, x = np.unravel_index(batch[0].sum(0).argmax(), (384, 288))
    simcc_x, simcc_y = np.zeros((1, 133, 576), np.float32), np.zeros((1, 133, 768), np.float32)
    simcc_x[..., 2 * x], simcc_y[..., 2 * y] = 1, 1
    return simcc_x, simcc_y


@pytest.mark.parametrize("size", [(640, 360), (360, 640), (517, 333)])
def test_points_come_back_in_the_frames_pixels(size):
    width, height = size
    frame = np.zeros((height, width, 3), np.uint8)
    spot = (width // 3, height // 4)
    frame[spot[1] - 2 : spot[1] + 3, spot[0] - 2 : spot[0] + 3] = 255
    points, scores = dwpose.find_points(frame, brightest_spot)
    assert points.shape == (133, 2)
    assert np.abs(points - spot).max() <= 4
    assert (scores >= 0.5).all()
    assert dwpose.face_points(points).shape == (68, 2)


def test_points_without_a_peak_and_foreign_results():
    points, scores = dwpose.decode_simcc(np.full((2, 576), -1.0), np.ones((2, 768)))
    assert (points == -0.5).all()
    assert (scores == -1).all()
    with pytest.raises(ValueError, match=r"expected \(1, 133, 576\)"):
        dwpose.find_points(
            np.zeros((40, 40, 3), np.uint8), lambda batch: (np.zeros((1, 17, 576)), np.zeros((1, 17, 768)))
        )


def test_mirror_pairs_are_their_own_inverse():
    assert (dwpose.MIRROR_PAIRS[dwpose.MIRROR_PAIRS] == np.arange(133)).all()


def test_parser_refuses_odd_sides_and_gives_labels():
    net = BiSeNet().eval()
    with pytest.raises(ValueError, match="divide by 32"):
        net(torch.zeros(1, 3, 100, 64))
    with torch.no_grad():
        labels = net.labels(torch.zeros(2, 3, 64, 32))
    assert labels.shape == (2, 64, 32)
    assert labels.dtype == torch.uint8


def test_windows_need_a_whole_rate():
    with pytest.raises(ValueError, match="below 1"):
        current_windows(16000, 0.5)
