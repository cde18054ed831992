"""Ditto's node classes called as ComfyUI calls them, with the embedded engine."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.comfy


def voice(seconds=0.6, rate=16000):
    t = torch.arange(round(seconds * rate)) / rate
    wave = 0.3 * torch.sin(2 * torch.pi * 140 * t) * (torch.sin(2 * torch.pi * 4 * t) > 0)
    return {"waveform": wave[None, None], "sample_rate": rate}


@pytest.fixture(scope="module")
def model(run_node):
    return run_node("TalkingHeadDittoLoader", checkpoint="embedded", precision="fp32").result[0]


@pytest.fixture(scope="module")
def avatar(run_node):
    return run_node("TalkingHeadLoadAvatar", avatar="demo-ditto").result[0]


@pytest.fixture(scope="module")
def speech(run_node, model):
    return run_node("TalkingHeadSpeechFeatures", model=model, audio=voice(), fps="25").result[0]


@pytest.fixture(scope="module")
def moved(run_node, avatar, speech):
    return run_node("TalkingHeadDittoMotion", avatar=avatar, speech=speech).result


def test_motion_is_shown_and_told(moved):
    motion, picture, report = moved
    assert motion.n_frames == 15
    assert picture.shape == (1, 320, 960, 3)
    assert picture.std() > 0.05
    assert "yaw: " in report
    assert "motion: made" in report


def test_the_same_motion_is_kept_and_another_seed_is_another(run_node, avatar, speech, moved):
    again = run_node("TalkingHeadDittoMotion", avatar=avatar, speech=speech).result
    assert "kept from before" in again[2]
    assert torch.equal(again[1], moved[1])
    other = run_node("TalkingHeadDittoMotion", avatar=avatar, speech=speech, seed=9).result
    assert not torch.equal(other[1], moved[1])


def test_smoothing_and_edits_are_recipes(run_node, moved):
    motion = moved[0]
    smooth = run_node("TalkingHeadDittoMotionSmooth", motion=motion).result[0]
    assert (smooth.smooth, motion.smooth) == ((5, 2), None)
    edited, _, report = run_node("TalkingHeadDittoMotionEdit", motion=smooth, head=0.0, blink="off").result
    assert edited.smooth == (5, 2)
    assert edited.edits.head == 0
    assert "kept from before" in report
    happy, _, report = run_node("TalkingHeadDittoMotionEdit", motion=motion, emotion="happy").result
    assert happy.options.emotion == "happy"
    assert "motion: made" in report


def test_render_and_composite_give_whole_frames(run_node, model, avatar, speech, moved):
    cadence = run_node("TalkingHeadCadence", speech=speech, mode="2").result[0]
    crops = run_node(
        "TalkingHeadDittoRender", model=model, avatar=avatar, motion=moved[0], cadence=cadence
    ).result[0]
    assert crops.info.n_frames == 15
    frames = run_node("TalkingHeadComposite", crops=crops, avatar=avatar).result[0]
    images = run_node("TalkingHeadFramesToImages", frames=frames, start=0, count=3).result[0]
    assert images.shape == (3, 512, 512, 3)
    with avatar.open() as reader:
        own = reader.frame(0).float() / 255
    corner = images[:, -32:, :16]
    assert torch.equal(corner, own[-32:, :16].expand_as(corner))
    assert (images[:, 150:350, 200:310] - own[150:350, 200:310]).abs().max() > 0.05


@pytest.mark.parametrize(
    ("node", "changes", "message"),
    [
        ("TalkingHeadDittoMotion", {"emotion": "hapy"}, "not one of"),
        ("TalkingHeadDittoMotion", {"steps": 1}, "outside 2..50"),
    ],
)
def test_bad_values_are_named(run_node, avatar, speech, node, changes, message):
    with pytest.raises(ValueError, match=message):
        run_node(node, avatar=avatar, speech=speech, **changes)


def test_speech_of_the_other_engine_is_refused(run_node, avatar):
    other = run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]
    heard = run_node("TalkingHeadSpeechFeatures", model=other, audio=voice(), fps="25").result[0]
    with pytest.raises(ValueError, match="connect Ditto Loader to Speech Features"):
        run_node("TalkingHeadDittoMotion", avatar=avatar, speech=heard)


def test_options_of_the_other_engine_are_refused(run_node, model):
    options = run_node("TalkingHeadAvatarOptions").result[0]
    with pytest.raises(ValueError, match="a Ditto model Ditto Avatar Options"):
        run_node(
            "TalkingHeadBuildAvatar",
            model=model,
            image=torch.zeros(1, 96, 96, 3),
            name="x",
            fps="25",
            cycle="still",
            box="20,10,76,80",
            options=options,
        )


def test_build_avatar_makes_a_ditto_packet(run_node, model):
    options = run_node("TalkingHeadDittoAvatarOptions", crop_scale=2.0).result[0]
    picture = torch.full((1, 128, 128, 3), 0.5)
    avatar, report = run_node(
        "TalkingHeadBuildAvatar", model=model, image=picture, name="built-ditto", fps="25", cycle="still",
        box="40,30,88,92", options=options,
    ).result  # fmt: skip
    assert avatar.info.engine == "ditto"
    assert avatar.info.options["crop_scale"] == 2.0
    assert "128x128" in report
