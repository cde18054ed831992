"""Ditto's poses, blinks, crops and put-back: what must hold whatever upstream's numbers are."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from talkinghead.nodes.ditto import crop as crops
from talkinghead.nodes.ditto.geometry import (
    as_degrees,
    blink_frames,
    degrees_from_logits,
    gaze_offsets,
    pack_motion,
    rotation_matrix,
    seeded_blinks,
    transform_keypoints,
    unpack_motion,
)
from talkinghead.nodes.ditto.motion import MotionOutput
from talkinghead.nodes.ditto.putback import feather_mask, put_back, touched_part


def random_pose(n=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = {"pitch": 66, "yaw": 66, "roll": 66, "t": 3, "exp": 63, "scale": 1, "kp": 63}
    return MotionOutput(*(torch.randn(n, size, generator=g) for size in shapes.values()))


def test_a_sharp_logit_gives_its_bin():
    logits = torch.full((3, 66), -50.0)
    logits[range(3), [0, 33, 65]] = 50.0
    assert degrees_from_logits(logits).tolist() == pytest.approx([-97.5, 1.5, 97.5])
    assert as_degrees(torch.tensor([4.0, 5.0])).tolist() == [4.0, 5.0]


def test_rotations_are_rotations_and_turn_as_named():
    angles = torch.rand(50, 3, generator=torch.Generator().manual_seed(1)) * 180 - 90
    matrices = rotation_matrix(*angles.T)
    eye = torch.eye(3).expand(50, 3, 3)
    assert (matrices @ matrices.mT - eye).abs().max() <= 1e-6
    assert (torch.linalg.det(matrices) - 1).abs().max() <= 1e-6
    zero, quarter = torch.zeros(1), torch.full((1,), 90.0)
    x, y, z = torch.eye(3)
    roll = rotation_matrix(zero, zero, quarter)[0]
    assert (x @ roll - y).abs().max() <= 1e-6
    yaw = rotation_matrix(zero, quarter, zero)[0]
    assert (z @ yaw - x).abs().max() <= 1e-6
    pitch = rotation_matrix(quarter, zero, zero)[0]
    assert (y @ pitch - z).abs().max() <= 1e-6


def test_translation_moves_the_picture_plane_only():
    pose = random_pose()
    moved = transform_keypoints(pose._replace(t=pose.t + torch.tensor([0.5, -0.25, 9.0])))
    difference = moved - transform_keypoints(pose)
    assert (difference - torch.tensor([0.5, -0.25, 0.0])).abs().max() <= 1e-5


def test_motion_vectors_round_trip():
    pose = random_pose()
    vectors = pack_motion(pose)
    assert vectors.shape == (3, 265)
    for ours, theirs in zip(unpack_motion(vectors, pose.kp), pose, strict=True):
        assert (ours - theirs).abs().max() <= 1e-6
    with pytest.raises(ValueError, match=r"\(frames, 265\)"):
        unpack_motion(vectors[:, :200], pose.kp)


def test_gaze_turns_both_eyes_and_nothing_else():
    offsets = gaze_offsets(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 1.0])).unflatten(1, (21, 3))
    moved = offsets.abs().sum(-1).nonzero()[:, 1].unique().tolist()
    assert moved == [11, 15]
    assert offsets[0, 11, 0] < offsets[0, 15, 0]  # to the right the second eye goes further
    assert offsets[1, 11, 0] == -offsets[0, 15, 0]


def test_blinks_are_drawn_from_the_seed_alone():
    random.seed(4)
    before = random.getstate()
    first, again, other = (seeded_blinks(2000, 15, seed) for seed in (5, 5, 6))
    assert random.getstate() == before
    assert first == again != other
    starts = [i for i in range(1, 2000) if first[i] == 1]
    gaps = [b - a - 15 for a, b in zip(starts, starts[1:], strict=False)]
    assert len(starts) > 15
    assert all(60 <= gap <= 100 for gap in gaps)
    assert max(first) == 14


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 15, []), "gaps between blinks"),
        ((100, 15, [20, -1]), "gaps between blinks"),
        ((100, 0, 20), "blink of 0 steps"),
        ((1000, 15, 0), "random.Random"),
    ],
)
def test_blinks_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        blink_frames(*arguments)


def face_points(angle=0.0, centre=(300.0, 200.0), size=80.0):
    """Landmarks of 5 points: eyes, nose, mouth corners, turned by `angle` radians."""
    points = np.array([[-0.5, -0.5], [0.5, -0.5], [0, 0], [-0.35, 0.5], [0.35, 0.5]]) * size
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return points @ turn + centre


@pytest.mark.parametrize("angle", [0.0, 0.4, -0.4, 2.5])
def test_a_crop_stands_upright_and_maps_back(angle):
    points = face_points(angle)
    matrices = crops.crop_matrices(crops.face_box(points))
    inside = crops.move_points(points, matrices.o2c)
    eyes, mouth = inside[:2].mean(0), inside[3:].mean(0)
    assert abs(eyes[0] - mouth[0]) <= 0.01
    assert eyes[1] < mouth[1]
    assert (0 <= inside).all()
    assert (inside < crops.CROP_SIZE).all()
    assert np.abs(crops.move_points(inside, matrices.c2o) - points).max() <= 0.01


def test_faces_that_cannot_be_cropped_are_refused():
    with pytest.raises(ValueError, match="7 landmarks are unknown"):
        crops.eyes_and_mouth(np.zeros((7, 2)))
    with pytest.raises(ValueError, match="in one point"):
        crops.crop_matrices(crops.face_box(np.ones((5, 2))))
    with pytest.raises(ValueError, match="too small"):
        crops.working_size(1, 400)


def test_the_mask_is_symmetric_full_inside_and_empty_at_the_edge():
    mask = feather_mask()
    assert mask.dtype == np.float32
    assert (mask[26:-26, 26:-26] == 1).all()
    for edge in (mask[0], mask[-1], mask[:, 0], mask[:, -1]):
        assert edge.max() == 0
    assert np.array_equal(mask, mask.T)
    assert np.allclose(mask, mask[::-1, ::-1], atol=1e-7)
    with pytest.raises(ValueError, match="no middle"):
        feather_mask(inner=(0.0, 0.5))


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(2)
    frame = rng.integers(0, 256, (240, 320, 3), np.uint8)
    face = rng.uniform(0, 255, (512, 512, 3)).astype(np.float32)
    return frame, face, feather_mask()


def placed(angle, centre, size=90.0):
    return crops.crop_matrices(crops.face_box(face_points(angle, centre, size))).c2o


@pytest.mark.parametrize(("angle", "centre"), [(0.0, (160, 110)), (0.5, (20, 200)), (-2.0, (310, 5))])
def test_the_frame_outside_the_face_keeps_its_bytes(scene, angle, centre):
    frame, face, mask = scene
    before, c2o = frame.copy(), placed(angle, centre, 40.0)
    out = put_back(frame, face, c2o, mask)
    assert np.array_equal(frame, before)
    x1, y1, x2, y2 = touched_part(c2o, 512, 320, 240)
    changed = (out != frame).any(-1)
    assert changed[y1:y2, x1:x2].any()
    changed[y1:y2, x1:x2] = False
    assert not changed.any()
    assert (x2 - x1) * (y2 - y1) < 0.6 * frame.shape[0] * frame.shape[1]
    corners = crops.move_points(np.array([[0, 0], [511, 0], [511, 511], [0, 511]], np.float32), c2o)
    low, high = corners.min(0), corners.max(0)
    assert x1 <= max(low[0], 0)
    assert y1 <= max(low[1], 0)
    assert x2 >= min(high[0] + 1, 320)
    assert y2 >= min(high[1] + 1, 240)


def test_a_face_beside_the_frame_changes_nothing(scene):
    frame, face, mask = scene
    out = put_back(frame, face, placed(0.0, (2000, 2000)), mask)
    assert np.array_equal(out, frame)
    assert out is not frame


def test_the_middle_of_a_face_replaces_the_frame(scene):
    frame, _, mask = scene
    red = np.zeros((512, 512, 3), np.float32)
    red[..., 0] = 200.7  # cut off, not rounded
    out = put_back(frame, red, placed(0.0, (160, 120)), mask)
    assert (out[115:125, 150:170] == [200, 0, 0]).all()


def test_a_face_of_another_size_is_refused(scene):
    frame, face, mask = scene
    with pytest.raises(ValueError, match="one size"):
        put_back(frame, face[:256, :256], placed(0.0, (160, 120)), mask)
