"""Edits: what each moves and what it leaves, ranges, blinks in time, and the picture that shows them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import ditto_speaker as speaker
import numpy as np
import pytest
import torch
from ditto_speaker import SpeakerContext, SpeakerModel, avatar, clip

from talkinghead.nodes.core.cadence import CadenceOptions
from talkinghead.nodes.core.live_audio import ClipSound
from talkinghead.nodes.ditto.geometry import as_degrees, gaze_offsets
from talkinghead.nodes.ditto.live_motion import LiveDittoSpeech
from talkinghead.nodes.ditto.motion_edit import BlinkTimes, Editor, MotionEdits
from talkinghead.nodes.ditto.motion_picture import HEIGHT, WIDTH, draw_motion
from talkinghead.nodes.ditto.motion_plan import Motion
from talkinghead.nodes.ditto.motion_run import MotionRun
from talkinghead.nodes.ditto.posing import source_poses
from talkinghead.nodes.ditto.speech import DittoSpeech

FPS, MODEL = Fraction(25), SpeakerModel()
LIPS, EYES = (6, 12, 14, 17, 19, 20), (11, 13, 15, 16, 18)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(face=None, seconds=3, fps=FPS, **edits):
    return Motion(MODEL, face or avatar(), DittoSpeech(MODEL, clip(seconds), fps), edits=MotionEdits(**edits))


def posed(motion, cadence=None):
    """Return the poses of all frames, the source's of each, and driving key points."""
    run = MotionRun(SpeakerContext(), motion, cadence)
    parts = list(run.posed())
    index = torch.cat([part.avatar for part in parts])
    poses = [torch.cat(values) for values in zip(*(part.pose for part in parts), strict=True)]
    source = [value[index] for value in run.sources]
    kind = type(run.sources)
    return kind(*poses), kind(*source), torch.cat([part.kp_driving for part in parts])


def points(exp, which):
    return exp.unflatten(1, (-1, 3))[:, list(which)]


def others(*which):
    return [k for k in range(21) if k not in which]


def test_no_edit_changes_nothing():
    plain = Motion(MODEL, avatar(), DittoSpeech(MODEL, clip(3), FPS))
    assert torch.equal(posed(recipe())[2], posed(plain)[2])
    assert plain.with_smoothing().with_smoothing(0).smooth is None
    assert plain.with_smoothing().smooth == (5, 2)


@pytest.mark.parametrize("amount", [0.0, 0.5, 2.0])
def test_the_head_moves_by_a_share(amount):
    made, source, _ = posed(recipe())
    edited = posed(recipe(head=amount, pitch=3.0, roll=-2.0))[0]
    for name, more in (("pitch", 3.0), ("yaw", 0.0), ("roll", -2.0)):
        own = as_degrees(getattr(source, name))
        assert torch.allclose(
            getattr(edited, name), own + (getattr(made, name) - own) * amount + more, atol=1e-3
        )
    assert torch.allclose(edited.t, source.t + (made.t - source.t) * amount, atol=1e-5)
    assert torch.equal(edited.exp, made.exp)
    assert (made.pitch - as_degrees(source.pitch)).abs().max() > 0.5


@pytest.mark.parametrize("amount", [0.0, 1.5])
def test_the_mouth_moves_by_a_share_and_nothing_else_does(amount):
    made, source, _ = posed(recipe())
    edited = posed(recipe(mouth=amount))[0]
    own, before, after = (points(e, LIPS) for e in (source.exp, made.exp, edited.exp))
    assert torch.allclose(after, own + (before - own) * amount, atol=1e-5)
    rest = others(*LIPS)
    assert torch.equal(points(edited.exp, rest), points(made.exp, rest))
    assert torch.equal(edited.yaw, made.yaw)


def test_a_gaze_turns_the_eyes():
    made, edited = posed(recipe())[0], posed(recipe(gaze_x=10.0, gaze_y=-5.0))[0]
    moved = (edited.exp - made.exp).unflatten(1, (-1, 3))
    wanted = gaze_offsets(torch.tensor([2.6]), torch.tensor([-1.4])).unflatten(1, (-1, 3))
    assert torch.allclose(moved, wanted.expand_as(moved), atol=1e-6)
    assert wanted[0, 11, 0] > 0  # to the right of the picture
    assert wanted[0, 11, 1] > 0  # and down, where y grows
    assert set(moved.abs().amax((0, 2)).nonzero()[:, 0].tolist()) == {11, 15}


def test_blinks_off_keeps_the_eyes_of_the_widest_frame():
    loop = avatar(6)
    made, source, _ = posed(recipe(face=loop, blink="off"))
    ctx = SpeakerContext()
    with ctx.use_avatar(loop) as resident:
        widest = int(resident.reader.eye_open.mean(1).argmax())
    eyes = points(made.exp, EYES)
    assert torch.equal(eyes, points(source.exp, EYES)[widest : widest + 1].expand_as(eyes))
    rest = others(*EYES)
    assert torch.equal(points(made.exp, rest), points(posed(recipe(face=loop))[0].exp, rest))


def test_timed_blinks_shut_the_eyes_and_open_them_again():
    motion = recipe(seconds=20, fps=Fraction(50), blink="timed", blinks_per_minute=30.0, blink_seed=4)
    made, source, _ = posed(motion)
    lid = points(made.exp, (11,))[:, 0, 1] - points(source.exp, (11,))[:, 0, 1]
    times = BlinkTimes(30.0, 4)
    shut = torch.tensor([times.closure(k / 50) for k in range(1000)])
    assert torch.allclose(lid, 0.02 * shut, atol=1e-6)
    assert 4 <= int(((shut[1:] > 0.9) & (shut[:-1] <= 0.9)).sum()) <= 16
    lower = points(made.exp, (13,))[:, 0, 1] - points(source.exp, (13,))[:, 0, 1]
    assert torch.allclose(lower, -0.006 * shut, atol=1e-6)


def test_a_blink_is_as_long_at_any_rate_and_cadence():
    kwargs = {"blink": "timed", "blinks_per_minute": 40.0}
    slow, fast = (posed(recipe(seconds=8, fps=Fraction(f), **kwargs))[0] for f in (25, 50))
    assert torch.equal(points(fast.exp, EYES)[::2], points(slow.exp, EYES))
    sparse = posed(recipe(seconds=8, **kwargs), CadenceOptions("3", rest=False))[0]
    assert torch.equal(points(sparse.exp, EYES), points(slow.exp, EYES))


def test_a_clip_that_blinks_is_the_model_of_the_lids():
    sources = source_poses(speaker.poses(4))
    eye_open = torch.tensor([[0.3, 0.3], [0.35, 0.31], [0.05, 0.05], [0.3, 0.2]])
    editor = Editor(MotionEdits(blink="timed"), sources, eye_open, FPS)
    shut = editor._closing.unflatten(0, (-1, 3))
    apart = (sources.exp[2] - sources.exp[1]).unflatten(0, (-1, 3))
    assert torch.equal(shut[list(EYES)], apart[list(EYES)])
    assert not shut[others(*EYES)].any()


def test_blinks_are_a_process_of_their_seed():
    for rate in (6.0, 15.0, 60.0):
        times, starts, last = BlinkTimes(rate, 1), [], 0.0
        for k in range(40 * 60 * 100):
            now = times.closure(k / 100)
            if now > 0 and last == 0:
                starts.append(k / 100)
            last = now
        assert len(starts) == pytest.approx(40 * rate, rel=0.15)
        gaps = np.diff(starts)
        assert gaps.min() >= 0.85 - 0.011
        if rate < 30:
            assert gaps.std() > 0.5 * (60 / rate - 0.85)
    assert len(times._starts) <= 64
    assert [BlinkTimes(15, 2).closure(k / 25) for k in range(500)] == [
        BlinkTimes(15, 2).closure(k / 25) for k in range(500)
    ]
    first, second = BlinkTimes(15, 2), BlinkTimes(15, 3)
    assert [first.closure(k / 25) for k in range(500)] != [second.closure(k / 25) for k in range(500)]


def test_brows_follow_the_voice():
    made = posed(recipe())[0]
    for name, moved in (("brow_raise", {1, 2}), ("brow_furrow", {1, 2}), ("squint", {11, 13, 15, 16})):
        edited = posed(recipe(**{name: 1.0}))[0]
        apart = (edited.exp - made.exp).unflatten(1, (-1, 3)).abs().amax((0, 2))
        assert set((apart > 0).nonzero()[:, 0].tolist()) <= moved
    raised = (posed(recipe(brow_raise=2.0))[0].exp - made.exp).unflatten(1, (-1, 3))
    assert raised[:, 1, 1].max() > 0
    assert raised[:, 1, 1].min() >= -1e-7
    assert torch.allclose(raised[:, 1, 1], -raised[:, 2, 1], atol=1e-6)


def test_what_follows_the_motion_can_be_chosen():
    loop = avatar(5)
    made, source, _ = posed(recipe(face=loop))
    assert torch.equal(made.yaw, as_degrees(source.yaw))
    assert torch.equal(made.t, source.t)
    turned = posed(recipe(face=loop, keys=("exp", "yaw")))[0]
    assert (turned.yaw - made.yaw).abs().max() > 0.5
    assert torch.equal(turned.pitch, made.pitch)
    still = posed(recipe(keys=("exp",)))
    assert torch.equal(still[0].pitch, as_degrees(still[1].pitch))


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"head": 2.1}, r"head 2\.1 is outside 0\.\.2"),
        ({"mouth": -0.1}, r"mouth -0\.1 is outside 0\.\.2"),
        ({"yaw": 46}, r"yaw 46 is outside -45\.\.45"),
        ({"pitch": float("nan")}, r"pitch nan is outside"),
        ({"gaze_x": -31}, r"gaze_x -31 is outside -30\.\.30"),
        ({"blinks_per_minute": 61}, r"blinks_per_minute 61 is outside 1\.\.60"),
        ({"blink": "often"}, "blink 'often' is unknown; use one of as made, off, timed"),
        ({"squint": True}, "squint True is outside"),
        ({"blink_seed": 1.5}, "blink_seed 1.5 is no whole number"),
        ({"keys": ("nose",)}, "unknown motion keys nose"),
    ],
)
def test_edits_that_cannot_be(edits, said):
    with pytest.raises(ValueError, match=said):
        MotionEdits(**edits)


def test_the_picture_shows_what_is_rendered():
    motion = recipe(seconds=4, blink="timed")
    drawn = draw_motion(SpeakerContext(), motion)
    assert drawn.picture.shape == (HEIGHT, WIDTH, 3)
    assert drawn.picture.dtype == np.uint8
    made, source, _ = posed(motion)
    for name in ("pitch", "yaw", "roll"):
        angle = getattr(made, name)
        assert drawn.degrees[name] == pytest.approx((angle.min().item(), angle.max().item()), abs=1e-4)
    lips = (points(made.exp, LIPS) - points(source.exp, LIPS)).flatten(1).square().mean(1).sqrt()
    assert drawn.lips == pytest.approx(lips.max().item(), abs=1e-6)
    quiet = draw_motion(SpeakerContext(), motion.with_edits(MotionEdits(head=0.0, mouth=0.0)))
    assert quiet.lips == 0.0
    colours = [tuple(c) for c in np.unique(quiet.picture[24:, :].reshape(-1, 3), axis=0)]
    moved = [tuple(c) for c in np.unique(drawn.picture[24:, :].reshape(-1, 3), axis=0)]
    assert (226, 92, 74) in moved
    assert len(np.unique(np.nonzero((quiet.picture[24:] == (226, 92, 74)).all(2))[0])) <= 1
    assert len(colours) <= len(moved)


@pytest.mark.parametrize("seconds", [Fraction(1, 25), 70])
def test_a_picture_of_any_length(seconds):
    drawn = draw_motion(SpeakerContext(), recipe(seconds=seconds), CadenceOptions("adaptive"))
    assert drawn.picture.shape == (HEIGHT, WIDTH, 3)


def test_live_motion_is_not_drawn():
    live = replace(recipe(), speech=LiveDittoSpeech(MODEL, ClipSound(clip(1)), FPS))
    with pytest.raises(ValueError, match="pulled once only"):
        draw_motion(SpeakerContext(), live)
