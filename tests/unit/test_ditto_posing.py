"""Poses between motion frames: rotations on the sphere, the rest straight, keys untouched, rows wherever they stand."""

from __future__ import annotations

from fractions import Fraction

import ditto_speaker as speaker
import pytest
import torch

from talkinghead.nodes.core.cadence import FramePlan
from talkinghead.nodes.ditto.drive import KeypointDriver
from talkinghead.nodes.ditto.geometry import angles_of, quaternions, rotation_matrix, transform_keypoints
from talkinghead.nodes.ditto.motion import MotionOutput
from talkinghead.nodes.ditto.posing import (
    BLOCK,
    MotionSeries,
    Poser,
    interpolate_poses,
    needed_motion,
    source_poses,
)

G = torch.Generator().manual_seed(2)


def pose(pitch, yaw, roll, n=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    angles = (torch.full((n,), float(a)) for a in (pitch, yaw, roll))
    rest = (torch.randn(n, size, generator=g) for size in (3, 63, 1, 63))
    return MotionOutput(*angles, *rest)


def test_quaternions_turn_as_the_matrices_do():
    angles = 80 * (2 * torch.rand(50, 3, generator=G) - 1)
    back = torch.stack(angles_of(quaternions(*angles.T)), 1)
    assert (back - angles).abs().max() <= 1e-4
    wide = 170 * (
        2 * torch.rand(50, 3, generator=G) - 1
    )  # yaw beyond 90 has another name, and is the same turn
    again = rotation_matrix(*(a.float() for a in angles_of(quaternions(*wide.T))))
    assert (again - rotation_matrix(*wide.T)).abs().max() <= 1e-5
    assert quaternions(*wide.T).norm(dim=1).sub(1).abs().max() <= 1e-12


def test_half_way_is_half_the_turn_about_one_axis():
    made = interpolate_poses(pose(0, -30, 0), pose(0, 50, 0), torch.tensor([0.5]))
    assert made.yaw.item() == pytest.approx(10, abs=1e-4)
    assert abs(made.pitch.item()) + abs(made.roll.item()) <= 1e-4


def test_a_turn_keeps_its_speed_and_its_axis():
    """Equal steps of the way turn by equal angles, which angles taken one by one do not."""
    start, end = pose(-35, 40, 20), pose(30, -35, -25)
    ways = torch.linspace(0, 1, 9)
    made = interpolate_poses(
        MotionOutput(*(v.expand(9, *v.shape[1:]) for v in start)),
        MotionOutput(*(v.expand(9, *v.shape[1:]) for v in end)),
        ways,
    )
    turns = rotation_matrix(made.pitch, made.yaw, made.roll)
    steps = turns[1:] @ turns[:-1].transpose(1, 2)
    angle = ((steps.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2).acos()
    assert angle.max() - angle.min() <= 1e-4
    assert angle.min() > 0.1
    straight = [a + (b - a) * ways for a, b in zip(start[:3], end[:3], strict=True)]
    other = rotation_matrix(*straight)
    apart = (other - turns).abs().amax((1, 2))
    assert apart[0] <= 1e-5
    assert apart[4] > 0.01


def test_the_shorter_way_and_the_straight_one():
    near = interpolate_poses(pose(0, 10, 0), pose(0, 11, 0), torch.tensor([0.25]))  # closer than MAX_COS
    assert near.yaw.item() == pytest.approx(10.25, abs=1e-3)
    across = interpolate_poses(pose(170, 0, 0), pose(-170, 0, 0), torch.tensor([0.5]))
    assert abs(abs(across.pitch.item()) - 180) <= 1e-3


def test_keys_and_common_angles_are_exact():
    start, end = pose(1.1, 2.2, 3.3, 4, 1), pose(4.4, 5.5, 6.6, 4, 2)
    made = interpolate_poses(start, end, torch.tensor([0.0, 0.5, 0.0, 1.0]))
    for name in MotionOutput._fields:
        assert torch.equal(getattr(made, name)[[0, 2]], getattr(start, name)[[0, 2]])
    assert torch.allclose(made.exp[3], end.exp[3], atol=1e-6)
    assert torch.allclose(made.exp[1], (start.exp[1] + end.exp[1]) / 2, atol=1e-6)
    same = interpolate_poses(
        start, end._replace(pitch=start.pitch, yaw=start.yaw, roll=start.roll), torch.full((4,), 0.3)
    )
    assert torch.equal(same.yaw, start.yaw)


def test_motion_that_is_needed():
    assert [needed_motion(k, Fraction(25)) for k in (0, 1, 9)] == [0, 1, 9]
    assert [needed_motion(k, Fraction(50)) for k in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert [needed_motion(k, Fraction(30000, 1001)) for k in (1, 1200)] == [1, 1001]
    assert needed_motion(3, Fraction(1)) == 75


def poser(fps=Fraction(25), n_sources=1):
    sources = source_poses(speaker.poses(n_sources))
    first = MotionOutput(*(value[:1] for value in sources))
    driver = KeypointDriver(
        first, n_sources == 1, stitch=speaker.modules().nets.stitch, origin=torch.zeros(265)
    )
    return Poser(driver, sources, fps, lambda first, n: torch.arange(first, first + n) % n_sources)


def series(n=100):
    made = MotionSeries()
    made.add(0.2 * torch.randn(n, 265, generator=torch.Generator().manual_seed(4)))
    return made


def plain(frames):
    return [FramePlan(frame, frame, frame, 1.0, 1) for frame in frames]


@torch.inference_mode()
@pytest.mark.parametrize("n_sources", [1, 7])
def test_part_of_a_block_is_the_same_as_all_of_it(n_sources):
    whole = poser(n_sources=n_sources).frames(series(), plain(range(BLOCK, 2 * BLOCK)))
    for first, end in ((0, 1), (3, 10), (31, 32)):
        part = poser(n_sources=n_sources).frames(series(), plain(range(BLOCK + first, BLOCK + end)))
        assert torch.equal(part.kp_driving, whole.kp_driving[first:end])
        assert torch.equal(part.kp_source, whole.kp_source[first:end])
        assert torch.equal(part.avatar, whole.avatar[first:end])


@torch.inference_mode()
def test_a_frame_between_keys_stands_on_its_own_picture():
    """A clip whose motion does not change: all that moves is the clip itself, exactly."""
    made, held = poser(n_sources=9), MotionSeries()
    held.add(torch.zeros(1, 265).expand(40, -1))
    plans = [
        FramePlan(0, 0, 0, 1.0, 3),
        *(FramePlan(k, 0, 3, 1.0, 3) for k in (1, 2)),
        FramePlan(3, 3, 3, 1.0, 1),
    ]
    between = made.frames(held, plans)
    dense = made.frames(held, plain(range(4)))
    assert torch.equal(between.kp_driving, dense.kp_driving)
    own = transform_keypoints(MotionOutput(*(value[:4] for value in source_poses(speaker.poses(9)))))
    assert torch.allclose(between.kp_source, own, atol=1e-6)


@torch.inference_mode()
def test_rest_eases_the_lips_alone():
    made = poser()
    half = made.frames(
        series(), [FramePlan(0, 0, 0, 1.0, 1), FramePlan(1, 1, 1, 0.5, 1), FramePlan(2, 2, 2, 0.0, 0)]
    )
    full = made.frames(series(), plain(range(3)))
    lips = torch.zeros(21, 3, dtype=torch.bool)
    lips[[6, 12, 14, 17, 19, 20]] = True
    lips, source = lips.flatten(), source_poses(speaker.poses())
    assert torch.equal(half.pose.exp[:, ~lips], full.pose.exp[:, ~lips])
    assert torch.equal(half.pose.exp[0], full.pose.exp[0])
    assert torch.allclose(
        half.pose.exp[1, lips], (full.pose.exp[1, lips] + source.exp[0, lips]) / 2, atol=1e-6
    )
    assert torch.allclose(half.pose.exp[2, lips], source.exp[0, lips], atol=1e-6)
    assert torch.equal(half.pose.yaw, full.pose.yaw)


def test_a_series_forgets_and_says_so():
    held = series(600)
    assert torch.equal(held.at([599, 700]), held.at([599, 599]))
    held.drop_before(500)
    assert len(held.at([500])) == 1
    with pytest.raises(IndexError, match=r"motion frames 10\.\.10 of 500\.\.599 were forgotten"):
        held.at([10])
