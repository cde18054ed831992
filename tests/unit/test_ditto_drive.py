"""Driving key points: chunks, control and fades where the pack leaves upstream's faults behind."""

from __future__ import annotations

import pytest
import torch

from talkinghead.nodes.ditto.drive import (
    EYES,
    LIPS,
    DriveOptions,
    KeypointDriver,
    with_scale_of,
)
from talkinghead.nodes.ditto.geometry import degrees_from_logits, transform_keypoints
from talkinghead.nodes.ditto.motion import MotionOutput

N = 10


@pytest.fixture(scope="module")
def source():
    g = torch.Generator().manual_seed(3)
    sizes = (66, 66, 66, 3, 63, 1, 63)
    # logits as a trained network has them: a clear peak, so that scaling them is not scaling the angle
    pose = MotionOutput(*((3 if size == 66 else 0.1) * torch.randn(1, size, generator=g) for size in sizes))
    return pose._replace(scale=torch.full((1, 1), 1.3))


@pytest.fixture(scope="module")
def motion():
    return 0.1 * torch.randn(N, 265, generator=torch.Generator().manual_seed(4))


def driven(source, motion, options=None, controls=None, chunk=N, is_image=True):
    driver = KeypointDriver(source, is_image, options)
    parts = [driver(motion[first : first + chunk], None, first, controls)[1] for first in range(0, N, chunk)]
    return torch.cat(parts)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_do_not_matter(source, motion, chunk):
    eyes = 0.05 * torch.randn(4, 63, generator=torch.Generator().manual_seed(5))
    options = DriveOptions(
        eye_offsets=eyes, blinks=(0, 0, 1, 2, 3, 0, 0), fade="d0", control={"delta_pitch": 2}
    )
    controls = {3: {"fade_alpha": 0.5}, 8: {"delta_yaw": 4.0, "vad_alpha": 0.3}}
    whole = driven(source, motion, options, controls)
    assert torch.equal(driven(source, motion, options, controls, chunk), whole)


def test_the_first_frame_of_relative_motion_is_the_source(source, motion):
    kp = driven(source, motion)
    assert (kp[:1] - transform_keypoints(source)).abs().max() <= 1e-6
    assert (kp[1:] - kp[:1]).abs().amax((1, 2)).min() > 1e-3


def test_expression_alone_moves_lips_and_eyes_of_a_still(source, motion):
    kp = driven(source, motion, DriveOptions(keys=("exp",)))
    moved = (kp - kp[:1]).abs().amax((0, 2))
    assert set(moved.nonzero()[:, 0].tolist()) == {*LIPS, *EYES}


def test_silence_closes_the_lips_and_leaves_the_eyes(source, motion):
    quiet = {i: {"vad_alpha": 0.0} for i in range(N)}
    options = DriveOptions(keys=("exp",))
    speaking, silent = driven(source, motion, options), driven(source, motion, options, quiet)
    rest = transform_keypoints(source)
    lips, eyes = list(LIPS), list(EYES)
    assert (silent[:, lips] - rest[:, lips]).abs().max() <= 1e-6
    assert torch.equal(silent[:, eyes], speaking[:, eyes])
    upstream = driven(source, motion, DriveOptions(keys=("exp",), as_upstream=True, drive_eyes=True), quiet)
    assert (upstream[:, eyes] - speaking[:, eyes]).abs().max() > 1e-3


def head_angles(source, motion, control, **options):
    """Angles found by asking for the degrees the driver arrives at."""
    driver = KeypointDriver(source, True, DriveOptions(control=control, **options))
    seen = {}
    driver._gaze = lambda degrees: seen.update(degrees) or torch.zeros(len(motion), 63)
    driver(motion)
    return seen


def test_a_factor_scales_degrees_with_and_without_an_offset(source, motion):
    plain = head_angles(source, motion, {})
    scaled = head_angles(source, motion, {"alpha_yaw": 0.5})
    assert (scaled["yaw"] - plain["yaw"] * 0.5).abs().max() <= 1e-4
    both = head_angles(source, motion, {"alpha_yaw": 0.5, "delta_yaw": 0.0})
    assert (both["yaw"] - scaled["yaw"]).abs().max() <= 1e-4
    assert torch.equal(scaled["roll"], plain["roll"])
    kept = head_angles(source, motion, {"alpha_yaw": 0.5}, as_upstream=True)
    assert (kept["yaw"] - scaled["yaw"]).abs().max() > 0.1


def test_a_fade_to_the_source_after_an_offset_blends_degrees(source, motion):
    options = {"fade": "s", "fade_keys": ("pitch",)}
    start = degrees_from_logits(source.pitch)
    moved = head_angles(source, motion, {"delta_pitch": 20.0}, **options)["pitch"]
    half = head_angles(source, motion, {"delta_pitch": 20.0, "fade_alpha": 0.5}, **options)["pitch"]
    assert (half - (moved + start) / 2).abs().max() <= 1e-4
    faulty = head_angles(
        source, motion, {"delta_pitch": 20.0, "fade_alpha": 0.5}, as_upstream=True, **options
    )
    assert (faulty["pitch"] - half).abs().max() > 1


def test_a_fade_that_is_complete_arrives(source, motion):
    keys = ("exp", "pitch", "yaw", "roll", "t")
    gone = driven(
        source, motion, DriveOptions(fade="s", fade_keys=keys, drive_eyes=False), {9: {"fade_alpha": 0}}
    )
    assert (gone[9:] - transform_keypoints(source)).abs().max() <= 1e-6


def test_offsets_of_the_expression_are_added(source, motion):
    delta = torch.zeros(63)
    delta[3 * 2 + 1] = 0.1
    options = DriveOptions(keys=("exp",), control={"delta_exp": delta})
    difference = driven(source, motion, options) - driven(source, motion, DriveOptions(keys=("exp",)))
    expected = torch.zeros(21, 3)
    expected[2, 1] = 0.1 * 1.3  # the source's scale
    assert (difference - expected).abs().max() <= 1e-5


def test_the_scale_of_another_face_weights_everything_but_translation(source, motion):
    other = source._replace(scale=source.scale * 2)
    options = with_scale_of(DriveOptions(), other, source)
    assert options.scale_ratio == pytest.approx(2.0)
    assert options.weights(True) == pytest.approx({"exp": 2, "pitch": 2, "yaw": 2, "roll": 2, "t": 1})


def test_double_precision_controls_do_not_change_the_dtype(source, motion):
    eyes = torch.zeros(2, 63, dtype=torch.float64)
    control = {"delta_exp": torch.zeros(63, dtype=torch.float64)}
    kp = driven(source, motion, DriveOptions(eye_offsets=eyes, blinks=(0, 1), control=control))
    assert kp.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DriveOptions(keys=("mouth",)), "unknown motion keys mouth"),
        (lambda: DriveOptions(fade="slow"), "fade is 'slow'"),
        (lambda: DriveOptions(control={"delta_nose": 1}), "unknown controls delta_nose"),
        (lambda: DriveOptions(eye_offsets=torch.zeros(2, 63), blinks=(0, 1, 2)), "up to step 2"),
    ],
)
def test_options_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_frames_that_do_not_fit_are_refused(source, motion):
    driver = KeypointDriver(source, False)
    two = MotionOutput(*(torch.cat([value, value]) for value in source))
    with pytest.raises(ValueError, match="2 source frames for 10 frames"):
        driver(motion, two)
    with pytest.raises(ValueError, match="unknown controls gain"):
        driver(motion, None, 0, {4: {"gain": 1}})
