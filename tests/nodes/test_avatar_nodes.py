"""Avatar nodes called as ComfyUI calls them: detection, files, fleets, options, preview, preflight, the loader."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from faces import clip as face_clip
from faces import gray, portrait, two_people
from media import Clip

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def model(run_node):
    return run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]


@pytest.fixture
def inputs(node_classes, tmp_path, monkeypatch):
    """A folder of its own as ComfyUI's input folder."""
    import folder_paths

    folder = tmp_path / "input"
    folder.mkdir()
    monkeypatch.setattr(folder_paths, "get_input_directory", lambda: str(folder))
    return folder


def image(*frames) -> torch.Tensor:
    return torch.from_numpy(np.stack(frames)).float() / 255


def write(path: Path, picture) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, picture[..., ::-1])[1].tobytes())
    return path


def box_of(avatar, frame=0):
    with avatar.open() as reader:
        return reader.boxes[frame].tolist()


def build(run_node, model, **kw):
    defaults = {"name": "t", "fps": "25", "cycle": "auto", "box": ""}
    return run_node("TalkingHeadBuildAvatar", model=model, **(defaults | kw)).result


def test_a_face_is_found_without_box_or_mask(run_node, model):
    picture, box = portrait(320, 240, face_width=90)
    avatar, report = build(run_node, model, image=image(picture))
    assert np.abs(np.array(box_of(avatar)) - box).max() < 25
    assert "1 frames of 320x240 at 25 fps, still" in report


def test_which_face_and_faceless_frames(run_node, model):
    picture, (left, right) = two_people()
    for choice, expected in (("0", left), ("1", right), (f"{left[0]:.0f},{left[1]:.0f}", left)):
        avatar, _ = build(run_node, model, image=image(picture), face=choice)
        assert np.abs(np.array(box_of(avatar)) - expected).max() < 25
    with pytest.raises(ValueError, match="face 4 was asked for and 2 faces were found"):
        build(run_node, model, image=image(picture), face="4")
    frames, _ = face_clip(12, 320, 240, 90, faceless=range(5, 8))
    avatar, report = build(run_node, model, image=image(*frames))
    assert "no face in frames 5-7: shown as they are" in report
    options = run_node("TalkingHeadAvatarOptions", missing="error").result[0]
    with pytest.raises(ValueError, match="frames 5-7 have no face"):
        build(run_node, model, image=image(*frames), options=options)


def test_options_reach_the_avatar(run_node, model):
    picture, _ = portrait(320, 240, face_width=90)
    options = run_node(
        "TalkingHeadAvatarOptions", mask="jaw", extra_margin=0, expand=1.3, background="#ff0000"
    ).result[0]
    see_through = torch.cat([image(picture), torch.full((1, 240, 320, 1), 0.5)], dim=3)
    avatar, _ = build(run_node, model, image=see_through, options=options)
    assert avatar.info.options["mask"] == "jaw"
    with avatar.open() as reader:
        corner = reader.frame(0)[0, 0].tolist()
    assert corner == [192, 64, 64]  # half of gray 128, half of red


def test_one_content_is_built_once_and_a_foreign_rebuild_is_seen(run_node, node_classes, model):
    cls = node_classes["TalkingHeadBuildAvatar"]
    picture, _ = portrait(200, 200, face_width=70)
    other, _ = portrait(200, 200, face_width=70, tint=(0.7, 1, 1))
    first, _ = build(run_node, model, image=image(picture), name="shared")
    assert cls.fingerprint_inputs(name="shared") == ""
    _, report = build(run_node, model, image=image(picture), name="shared")
    assert "already built from the same content" in report
    run_node(
        "TalkingHeadBuildAvatar",
        model=model,
        image=image(other),
        name="shared",
        fps="25",
        cycle="auto",
        box="",
    )
    assert cls.fingerprint_inputs(name="shared") == ""
    from talkinghead.nodes.core.packet import delete_packet

    delete_packet(first.path)
    assert cls.fingerprint_inputs(name="shared") == "shared gone"


def test_from_file_reads_rotation_and_folders(run_node, node_classes, model, inputs):
    cls = node_classes["TalkingHeadBuildAvatarFromFile"]
    Clip(width=128, height=96, n_frames=8, rotation=90).write(inputs / "turned.mp4")
    frames, boxes = face_clip(3, 240, 200, 80, step=(4, 0))
    for i, frame in enumerate(frames):
        write(inputs / "shots" / f"{i}.png", frame)
    make = lambda **kw: run_node("TalkingHeadBuildAvatarFromFile", model=model, **kw).result  # noqa: E731
    avatar, report = make(file="turned.mp4", box="10,10,80,90", name="turned", cycle="loop")
    assert avatar.info.size == (96, 128)
    avatar, report = make(file="shots")
    assert (avatar.info.n_frames, avatar.info.id[:5]) == (3, "auto-")
    assert box_of(avatar, 2)[0] - box_of(avatar, 0)[0] in (7, 8, 9)
    before = cls.fingerprint_inputs(file="shots")
    write(inputs / "shots" / "3.png", frames[0])
    assert cls.fingerprint_inputs(file="shots") != before
    assert "shots" in cls.define_schema().inputs[1].options
    assert "turned.mp4" in cls.define_schema().inputs[1].options


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "", "no.png", "a\0b"])
def test_no_path_leaves_the_input_folder(run_node, node_classes, model, inputs, name):
    write(inputs.parent / "secret.png", gray(64, 64))
    cls = node_classes["TalkingHeadBuildAvatarFromFile"]
    message = cls.validate_inputs(file=name, fps="", face="largest", box="")
    assert "in ComfyUI's input folder" in message
    with pytest.raises(ValueError, match="no file or folder"):
        run_node("TalkingHeadBuildAvatarFromFile", model=model, file=name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fps": "x"}, "fps"),
        ({"face": "left"}, "face 'left' is not a choice"),
        ({"box": "1,2,3"}, "box '1,2,3'"),
    ],
)
def test_widgets_are_checked_before_the_run(node_classes, inputs, values, message):
    write(inputs / "a.png", gray(64, 64))
    good = {"file": "a.png", "fps": "", "face": "largest", "box": ""}
    cls = node_classes["TalkingHeadBuildAvatarFromFile"]
    assert cls.validate_inputs(**good) is True
    assert message in cls.validate_inputs(**(good | values))


def test_fleet_node_reports_every_item(run_node, model, inputs):
    for name in ("a", "b"):
        write(inputs / "people" / f"{name}.png", portrait(200, 200, face_width=70)[0])
    (inputs / "people" / "c.png").write_bytes(b"nothing")
    report, ready, failed = run_node("TalkingHeadBuildFleet", model=model, folder="people").result
    assert (ready, failed) == (2, 1)
    assert report.startswith("2 of 3 ready (0 kept), 1 failed\na: built")
    report, ready, failed = run_node(
        "TalkingHeadBuildFleet", model=model, folder="people", specific="a"
    ).result
    assert report.startswith("1 of 1 ready (1 kept), 0 failed\n")


def test_a_stop_ends_the_fleet(run_node, model, inputs):
    import comfy.model_management as mm

    write(inputs / "people" / "a.png", portrait(200, 200, face_width=70)[0])
    mm.interrupt_current_processing()
    with pytest.raises(mm.InterruptProcessingException):
        run_node("TalkingHeadBuildFleet", model=model, folder="people", rebuild=True)
    mm.interrupt_current_processing(False)


def test_preview_shows_geometry_in_every_colour(run_node, model):
    picture, _ = portrait(320, 240, face_width=90)
    avatar, _ = build(run_node, model, image=image(picture))
    output = run_node("TalkingHeadAvatarPreview", avatar=avatar, start=0, count=1)
    shown = (output.result[0][0].numpy() * 255).round().astype(int)
    for colour in ((64, 220, 64), (250, 200, 60), (70, 170, 255)):
        assert (np.abs(shown - colour).max(2) < 12).any(), colour
    assert shown.shape == (240, 320, 3)
    with pytest.raises(ValueError, match="it has 0..0"):
        run_node("TalkingHeadAvatarPreview", avatar=avatar, start=1, count=1)


def test_preflight_looks_and_builds_nothing(run_node, model, inputs, comfy_base):
    write(inputs / "face.png", portrait(320, 240, face_width=90)[0])
    write(inputs / "none.png", gray(64, 64))
    audio = {"waveform": torch.zeros(1, 2, 24000), "sample_rate": 16000}
    before = sorted(p.name for p in (comfy_base / "models/talkinghead/avatars").iterdir())
    report, ready, picture = run_node(
        "TalkingHeadPreflight", model=model, file="face.png", audio=audio
    ).result
    assert ready
    assert "audio: 1.50 s at 16000 Hz: a video of 38 frames at 25 fps" in report
    assert picture.shape == (1, 240, 320, 3)
    report, ready, _ = run_node("TalkingHeadPreflight", model=model, file="none.png").result
    assert not ready
    assert "verdict: cannot be built\nproblem: no face was found" in report
    assert sorted(p.name for p in (comfy_base / "models/talkinghead/avatars").iterdir()) == before


def test_the_loader_says_what_is_missing_and_how_to_get_it(run_node, node_classes):
    cls = node_classes["TalkingHeadMuseTalkLoader"]
    options, tooltip = cls.define_schema().inputs[0].options, cls.define_schema().inputs[0].tooltip
    assert options == ["embedded", "musetalk-1.5 (not installed)", "musetalk-1.0 (not installed)"]
    assert "-m ComfyUI-TalkingHead models download musetalk-1.5" in tooltip
    assert cls.validate_inputs(checkpoint="embedded") is True
    for name in ("musetalk-1.5", "musetalk-1.5 (not installed)"):
        message = cls.validate_inputs(checkpoint=name)
        assert "musetalk/musetalkV15/unet.pth (3.4 GB)" in message
        assert "-m ComfyUI-TalkingHead models download musetalk-1.5" in message
    assert "checkpoint 'x' is unknown; there are embedded, musetalk-1.5" in cls.validate_inputs(
        checkpoint="x"
    )


@pytest.mark.parametrize("seam", ["feather", "none", "colour match"])
@pytest.mark.parametrize("mask", ["mouth", "lower half", "mouth only", "lower face"])
def test_pixels_outside_the_mask_are_the_avatars_in_every_mode(run_node, model, mask, seam):
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
    avatar, _ = build(run_node, model, image=image(picture), box="20,10,76,80", name="modes")
    t = torch.arange(3200) / 16000
    audio = {"waveform": (0.3 * torch.sin(1400 * t))[None, None], "sample_rate": 16000}
    speech = run_node("TalkingHeadSpeechFeatures", model=model, audio=audio, fps="25").result[0]
    crops = run_node("TalkingHeadMuseTalkRender", model=model, avatar=avatar, speech=speech, batch=8).result[
        0
    ]
    frames = run_node(
        "TalkingHeadComposite", crops=crops, avatar=avatar, mask_mode=mask, seam_mode=seam
    ).result[0]
    shown = run_node("TalkingHeadFramesToImages", frames=frames, start=0, count=0).result[0]
    out = (shown[0].numpy() * 255).round().astype(np.uint8)
    changed = (out != picture).any(2)
    assert changed.any()
    assert not changed[:45].any()
    assert not changed[:, :20].any()
    assert not changed[:, 76:].any()


def test_avatars_stay_warm_until_the_model_is_unloaded(run_node, node_classes, model):
    import sys

    import comfy.model_management as mm

    package = node_classes["TalkingHeadLoadAvatar"].__module__.removesuffix(".shared_nodes")
    pool = sys.modules[f"{package}.comfy_nodes"].AVATAR_POOL
    pool.flush()
    speech = run_node(
        "TalkingHeadSpeechFeatures",
        model=model,
        audio={"waveform": torch.zeros(1, 1, 1600), "sample_rate": 16000},
        fps="25",
    ).result[0]
    shown = {}
    for colour in ("red", "blue", "red", "blue"):  # case 31: two avatars in turn do not mix
        picture = np.zeros((96, 96, 3), np.uint8)
        picture[..., 0 if colour == "red" else 2] = 200
        avatar, _ = build(run_node, model, image=image(picture), box="20,10,76,80", name=colour)
        crops = run_node(
            "TalkingHeadMuseTalkRender", model=model, avatar=avatar, speech=speech, batch=8
        ).result[0]
        frames = run_node("TalkingHeadComposite", crops=crops, avatar=avatar).result[0]
        out = run_node("TalkingHeadFramesToImages", frames=frames, start=0, count=1).result[0]
        assert torch.equal(shown.setdefault(colour, out), out)
    assert not torch.equal(shown["red"], shown["blue"])
    stats = pool.stats()
    assert (stats.items, stats.pinned) == (2, 0)
    assert stats.bytes > 0
    assert stats.hits >= 2
    mm.unload_all_models()
    assert pool.stats().bytes == 0


def test_an_avatar_named_by_content_that_was_removed_is_built_again(run_node, node_classes, model, inputs):
    from talkinghead.nodes.core.packet import delete_packet

    cls = node_classes["TalkingHeadBuildAvatarFromFile"]
    write(inputs / "auto.png", portrait(220, 200, face_width=70)[0])
    before = cls.fingerprint_inputs(file="auto.png", name="")
    avatar, _ = run_node("TalkingHeadBuildAvatarFromFile", model=model, file="auto.png").result
    assert cls.fingerprint_inputs(file="auto.png", name="") == before  # the second queue is cached
    delete_packet(avatar.path)
    assert cls.fingerprint_inputs(file="auto.png", name="") == f"{before}{avatar.info.id} gone"
    again, _ = run_node("TalkingHeadBuildAvatarFromFile", model=model, file="auto.png").result
    assert again.digest != ""
    assert cls.fingerprint_inputs(file="auto.png", name="") == before


def test_links_out_of_the_input_folder_are_refused(node_classes, inputs, tmp_path):
    write(tmp_path / "secret.png", gray(64, 64))
    (inputs / "people").mkdir()
    (inputs / "people" / "a.png").symlink_to(tmp_path / "secret.png")
    (inputs / "link.png").symlink_to(tmp_path / "secret.png")
    fleet = node_classes["TalkingHeadBuildFleet"]
    assert "holds a.png, a link out of ComfyUI's input folder" in fleet.validate_inputs(
        folder="people", fps=""
    )
    cls = node_classes["TalkingHeadBuildAvatarFromFile"]
    assert "links out of it are not followed" in cls.validate_inputs(file="link.png", fps="", face="", box="")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(1, 64, 64, 3, dtype=torch.uint8), "an IMAGE is float in 0..1, this one is torch.uint8"),
        (torch.zeros(0, 64, 64, 3), "an IMAGE is"),
        (torch.zeros(1, 64, 64, 2), "an IMAGE is"),
        (torch.zeros(64, 64, 3), "an IMAGE is"),
    ],
)
def test_what_is_no_image_is_refused(run_node, model, tensor, message):
    with pytest.raises(ValueError, match=message):
        build(run_node, model, image=tensor, box="10,10,50,50")


def test_a_mask_of_another_shape_is_refused(run_node, model):
    for mask in (torch.ones(64), torch.ones(1, 64, 64, 1)):
        with pytest.raises(ValueError, match="a MASK is .batch, height, width."):
            build(run_node, model, image=torch.zeros(1, 64, 64, 3), mask=mask)


def test_a_still_of_a_batch_takes_the_first_of_its_masks(run_node, model):
    """One mask a frame was refused: the picture had been cut to one before, the masks had not."""
    mask = torch.zeros(3, 64, 64)
    mask[:, 10:50, 12:44] = 1
    masked = {"image": torch.zeros(3, 64, 64, 3), "mask": mask, "cycle": "still"}
    avatar, _ = build(run_node, model, **masked)
    assert (avatar.info.n_frames, box_of(avatar)) == (1, [12, 10, 44, 50])
    with pytest.raises(ValueError, match="the mask is 2 x 64x64, the picture 3 x 64x64"):
        build(run_node, model, **{**masked, "mask": mask[:2]})
