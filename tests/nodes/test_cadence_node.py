"""The Cadence node and its way into Render, in process."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.comfy


def audio(spoken_s=0.3, silent_s=0.5, rate=24000):
    t = torch.arange(round(spoken_s * rate)) / rate
    sound = torch.cat([0.3 * torch.sin(1400 * t), torch.zeros(round(silent_s * rate))])
    return {"waveform": sound[None, None], "sample_rate": rate}


@pytest.fixture(scope="module")
def model(run_node):
    return run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]


@pytest.fixture
def speech(run_node, model):
    return run_node("TalkingHeadSpeechFeatures", model=model, audio=audio(), fps="25").result[0]


def test_a_cadence_with_its_picture_and_report(run_node, speech):
    cadence, picture, report = run_node("TalkingHeadCadence", speech=speech, mode="2").result
    assert cadence.options.mode == "2"
    assert cadence.options.rest
    assert picture.shape == (1, 240, 960, 3)
    assert picture.dtype == torch.float32
    assert 0 <= float(picture.min()) <= float(picture.max()) <= 1
    assert "stride mix: every frame " in report
    assert "frames at rest: 7" in report


def test_render_takes_it_and_the_mouth_is_still(run_node, model, speech):
    image = torch.tensor((0.8, 0.4, 0.3)).expand(1, 96, 96, 3).clone()
    build = {"image": image, "fps": "25", "cycle": "still", "box": "20,10,76,80", "name": "cadence"}
    avatar = run_node("TalkingHeadBuildAvatar", model=model, **build).result[0]
    cadence = run_node("TalkingHeadCadence", speech=speech, mode="3").result[0]

    def render(**more):
        crops = run_node(
            "TalkingHeadMuseTalkRender", model=model, avatar=avatar, speech=speech, batch=8, **more
        ).result[0]
        return run_node("TalkingHeadFramesToImages", frames=crops, start=0, count=0).result[0]

    plain, made = render(), render(cadence=cadence)
    assert made.shape == plain.shape == (20, 128, 128, 3)
    assert torch.equal(made[0], plain[0])
    assert (made[13:] == made[13]).all()
    assert not torch.equal(made, plain)
    off = run_node("TalkingHeadCadence", speech=speech, mode="dense", rest=False).result[0]
    assert torch.equal(render(cadence=off), plain)


def test_a_cadence_of_other_speech_is_refused(run_node, model, speech):
    other = run_node("TalkingHeadSpeechFeatures", model=model, audio=audio(0.4), fps="25").result[0]
    cadence = run_node("TalkingHeadCadence", speech=other, mode="2").result[0]
    with pytest.raises(ValueError, match="connect the same Speech Features to Cadence and Render"):
        cadence.check(speech.audio, speech.fps)


def test_the_viseme_cache_is_off_unless_asked_for(run_node, node_classes, model, speech):
    last = node_classes["TalkingHeadCadence"].GET_SCHEMA().inputs[-1]
    assert (last.id, last.default, last.optional) == ("viseme_cache_mb", 0, True)
    given = {"speech": speech, "mode": "dense", "rest": False}
    assert run_node("TalkingHeadCadence", **given).result[0].options.is_plain
    cadence = run_node("TalkingHeadCadence", **given, viseme_cache_mb=16).result[0]
    assert (cadence.options.viseme_cache_mb, cadence.options.is_plain) == (16, False)
    image = torch.tensor((0.8, 0.4, 0.3)).expand(1, 96, 96, 3).clone()
    build = {"image": image, "fps": "25", "cycle": "still", "box": "20,10,76,80", "name": "visemes"}
    avatar = run_node("TalkingHeadBuildAvatar", model=model, **build).result[0]
    render = {"model": model, "avatar": avatar, "speech": speech, "batch": 8}
    crops = run_node("TalkingHeadMuseTalkRender", **render, cadence=cadence).result[0]
    frames = run_node("TalkingHeadComposite", crops=crops, avatar=avatar).result[0]
    _, report = run_node("TalkingHeadWriteVideo", frames=frames, filename_prefix="visemes/a").result
    [said] = [line for line in report.splitlines() if line.startswith("viseme cache: ")]
    hits = int(said.split()[2])
    assert 0 < hits < 20
    assert f"{hits} of 20 lookups ({5 * hits:.1f} %), {20 - hits} mouths in " in said
