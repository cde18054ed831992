"""Node classes called as ComfyUI calls them, in process."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.comfy

ADVERTISED = {
    "TalkingHeadSpeak", "TalkingHeadLoadAvatar", "TalkingHeadBuildAvatar", "TalkingHeadMuseTalkLoader",
    "TalkingHeadSpeechFeatures", "TalkingHeadMuseTalkRender", "TalkingHeadComposite", "TalkingHeadWriteVideo",
    "TalkingHeadFramesToImages", "TalkingHeadImagesToFrames", "TalkingHeadBuildAvatarFromFile", "TalkingHeadBuildFleet",
    "TalkingHeadAvatarOptions", "TalkingHeadAvatarPreview", "TalkingHeadPreflight", "TalkingHeadEngine",
    "TalkingHeadCadence", "TalkingHeadDittoLoader", "TalkingHeadDittoMotion", "TalkingHeadDittoMotionSmooth",
    "TalkingHeadDittoMotionEdit", "TalkingHeadDittoRender", "TalkingHeadDittoAvatarOptions",
    "TalkingHeadNormalizeText", "TalkingHeadMasterSpeech", "TalkingHeadSpeakDialogue",
    "TalkingHeadKeepSpeech", "TalkingHeadSampleClip",
    *(f"TalkingHeadWardrobe{name}" for name in (
        "SubjectCrop", "SubtractOccluders", "PixelMask", "LatentMask", "ApplyLatentMask",
        "Composite", "SeamBlend", "Repaste", "LoopWrap", "LoopClose", "MaskCache", "MaskInfill",
        "Metrics", "GhostCheck", "MouthMask",
    )),
}  # fmt: skip


def tone(seconds=0.4, rate=24000, channels=1, batch=1):
    t = torch.arange(round(seconds * rate)) / rate
    return {"waveform": (0.3 * torch.sin(1400 * t)).expand(batch, channels, -1).clone(), "sample_rate": rate}


def picture(n=1, colour=(0.8, 0.4, 0.3)):
    return torch.tensor(colour).expand(n, 96, 96, 3).clone()


@pytest.fixture(scope="module")
def model(run_node):
    return run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]


@pytest.fixture
def build(run_node, model):
    def make(name, **kw):
        inputs = {"image": picture(), "fps": "25", "cycle": "still", "box": "20,10,76,80"} | kw
        return run_node("TalkingHeadBuildAvatar", model=model, name=name, **inputs)

    return make


@pytest.fixture
def render(run_node, model):
    def make(avatar, audio=None, fps="25"):
        speech = run_node("TalkingHeadSpeechFeatures", model=model, audio=audio or tone(), fps=fps).result[0]
        crops = run_node(
            "TalkingHeadMuseTalkRender", model=model, avatar=avatar, speech=speech, batch=8
        ).result[0]
        return run_node("TalkingHeadComposite", crops=crops, avatar=avatar).result[0]

    return make


def test_the_pack_has_the_nodes_it_advertises(node_classes):
    assert set(node_classes) == ADVERTISED
    for cls in node_classes.values():
        schema = cls.GET_SCHEMA()
        widgets = [i for i in schema.inputs if hasattr(i, "default") and not hasattr(i, "force_input_only")]
        assert (
            len([w for w in widgets if w.get_io_type() in ("INT", "FLOAT", "STRING", "COMBO", "BOOLEAN")])
            <= 8
        )


def test_schemas_are_cheap(node_classes):
    began = time.perf_counter()
    for _ in range(5):
        for cls in node_classes.values():
            cls.GET_SCHEMA()
    assert time.perf_counter() - began < 5  # 50 schemas; object_info asks for all of them at every page load


def test_render_is_lazy_and_frames_to_images_does_the_work(run_node, build, render):
    avatar, report = build("lazy").result
    assert "face box (20, 10, 76, 80)" in report
    frames = render(avatar)
    assert frames.info.n_frames == 10
    images = run_node("TalkingHeadFramesToImages", frames=frames, start=2, count=5).result[0]
    assert images.shape == (5, 96, 96, 3)
    assert images.dtype == torch.float32
    everything = run_node("TalkingHeadFramesToImages", frames=frames, start=0, count=0).result[0]
    assert torch.equal(everything[2:7], images)
    with pytest.raises(ValueError, match="start 10 is behind the last frame"):
        run_node("TalkingHeadFramesToImages", frames=frames, start=10, count=1)


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_averaged(run_node, build, render, channels):
    frames = render(build("channels").result[0], tone(channels=channels))
    images = run_node("TalkingHeadFramesToImages", frames=frames, start=0, count=0).result[0]
    alone = run_node(
        "TalkingHeadFramesToImages", frames=render(build("channels").result[0], tone()), start=0, count=0
    ).result[0]
    assert torch.equal(images, alone)


def test_two_clips_in_one_audio_are_refused(run_node, model):
    with pytest.raises(ValueError, match="2"):
        run_node("TalkingHeadSpeechFeatures", model=model, audio=tone(batch=2), fps="25")


def test_a_rebuilt_avatar_is_noticed(node_classes, build, run_node):
    cls = node_classes["TalkingHeadLoadAvatar"]
    build("again", image=picture(colour=(0.9, 0.1, 0.1)))
    first = cls.fingerprint_inputs(avatar="again")
    one = run_node("TalkingHeadLoadAvatar", avatar="again").result[0]
    assert cls.fingerprint_inputs(avatar="again") == first
    build("again", image=picture(colour=(0.1, 0.1, 0.9)))
    assert cls.fingerprint_inputs(avatar="again") != first
    two = run_node("TalkingHeadLoadAvatar", avatar="again").result[0]
    assert one.digest != two.digest


def test_mask_instead_of_box(build, render, run_node):
    mask = torch.zeros(3, 96, 96)
    mask[0, 10:80, 20:76] = 1
    mask[2, 12:82, 22:78] = 1
    avatar, report = build("masked", image=picture(3), mask=mask, box="", cycle="loop").result
    assert "no face in frames 1: shown as they are" in report
    images = run_node("TalkingHeadFramesToImages", frames=render(avatar), start=0, count=0).result[0]
    assert torch.equal(images[1], images[4])
    assert not torch.equal(images[0], images[1])
    for bad, message in ((torch.zeros(1, 96, 96), "empty"), (torch.ones(1, 64, 64), "64x64")):
        with pytest.raises(ValueError, match=message):
            build("masked2", mask=bad, box="")
    with pytest.raises(ValueError, match="box"):
        build("masked3", box="")


def test_gray_and_transparent_pictures(build):
    for channels in (1, 4):
        image = torch.rand(1, 96, 96, channels)
        assert build(f"c{channels}", image=image).result[0].info.size == (96, 96)


@pytest.mark.parametrize("name", ["../up", "a/b", "con"])
def test_names_cannot_leave_the_avatars_folder(build, name):
    with pytest.raises(ValueError, match="avatar name"):
        build(name)


def test_write_video_returns_a_video_and_shows_it(run_node, build, render, comfy_base):
    out = run_node(
        "TalkingHeadWriteVideo", frames=render(build("w").result[0]), audio=tone(), filename_prefix="n/w"
    )
    video, report = out.result
    assert video.get_dimensions() == (96, 96)
    assert "libx264" in report or "nvenc" in report
    ui = out.ui if isinstance(out.ui, dict) else out.ui.as_dict()
    [item] = ui["images"]
    assert (comfy_base / "output" / item["subfolder"] / item["filename"]).is_file()
    silent = run_node(
        "TalkingHeadWriteVideo", frames=render(build("w").result[0]), filename_prefix="n/silent"
    )
    assert silent.result[0].get_components().audio is None


def test_images_to_frames_keeps_values(run_node):
    image = (
        torch.from_numpy(np.random.default_rng(1).integers(0, 256, (4, 20, 30, 3), dtype=np.uint8)).float()
        / 255
    )
    frames = run_node("TalkingHeadImagesToFrames", image=image, fps="29.97").result[0]
    assert str(frames.info.fps) == "30000/1001"
    back = run_node("TalkingHeadFramesToImages", frames=frames, start=0, count=0).result[0]
    assert torch.equal(back, image)


def test_validation_says_what_is_wrong_before_anything_runs(node_classes):
    check = node_classes["TalkingHeadSpeechFeatures"].validate_inputs
    assert check(fps="30000/1001") is True
    assert "999" in check(fps="999")


def test_the_embedded_model_obeys_unload(run_node, build, render):
    import comfy.model_management as mm

    run_node("TalkingHeadFramesToImages", frames=render(build("mm").result[0]), start=0, count=1)
    assert any(type(m.model.model).__name__ == "MuseTalkNets" for m in mm.current_loaded_models)
    mm.unload_all_models()
    assert not any(type(m.model.model).__name__ == "MuseTalkNets" for m in mm.current_loaded_models)
    run_node("TalkingHeadFramesToImages", frames=render(build("mm").result[0]), start=0, count=1)


def test_outputs_hold_no_weights_and_no_pixels(build, render):
    frames = render(build("small").result[0])
    seen, stack = set(), [frames]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        assert not isinstance(item, torch.nn.Module)
        if isinstance(item, torch.Tensor | np.ndarray):
            assert item.nbytes < 1 << 20  # the audio of the test is 38 kB
        stack.extend(getattr(item, "__dict__", {}).values())
