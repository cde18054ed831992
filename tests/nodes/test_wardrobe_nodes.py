"""The wardrobe's nodes as ComfyUI calls them: schemas, the chain, the latents. Whole prompts are beside this file."""

from __future__ import annotations

import importlib
import json
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from support import ROOT
from wardrobe_pack import pack_module, wardrobe_classes
from wardrobe_scene import BLUE, HandScene, photo

pytestmark = pytest.mark.comfy

IDS = {
    "SubjectCrop", "SubtractOccluders", "PixelMask", "LatentMask", "ApplyLatentMask", "Composite", "SeamBlend",
    "Repaste", "MaskCache", "MaskInfill", "LoopWrap", "LoopClose", "Metrics", "GhostCheck", "MouthMask",
}  # fmt: skip
SOCKETS = {
    "SubjectCrop": "images mask mode align pad_fraction pad_px overflow frame_rule on_bad_length > "
    "IMAGE MASK WARDROBE_STITCH INT INT INT",
    "SubtractOccluders": "mask occluders grow_px clearance_px threshold keep_holes > MASK MASK STRING",
    "PixelMask": "mask feather_px feather_mode keep_thin threshold > MASK",
    "LatentMask": "mask vae grid grow_px custom > LATENT_MASK IMAGE",
    "ApplyLatentMask": "video_latent latent_mask audio_latent audio_mode fps > LATENT",
    "Composite": "source generated stitch mask on_blocky occluders > IMAGE",
    "SeamBlend": "generated source mask mode latent_mask > IMAGE",
    "Repaste": "base source stitch occluders generated matte band_px > IMAGE",
    "MaskCache": "images mask key mode subfolder > MASK STRING BOOLEAN",
    "MaskInfill": "mask images stride mode max_gap > MASK STRING",
    "Metrics": "source result stitch mask occluders loop > STRING IMAGE",
    "GhostCheck": "occluders_source occluders_result tolerance_px > BOOLEAN STRING MASK",
}
"""Inputs and outputs that graphs rely on, in this order; further ones come behind them."""
WIDGETS = ("INT", "FLOAT", "STRING", "COMBO", "BOOLEAN")


@pytest.fixture(scope="module")
def classes(node_classes):
    return wardrobe_classes(node_classes)


@pytest.fixture(scope="module")
def run(classes):
    def call(name, **inputs):
        cls = classes[name]
        defaults = {
            i.id: i.default
            for i in cls.GET_SCHEMA().inputs
            if getattr(i, "default", None) is not None and not i.optional
        }
        with torch.inference_mode():
            return cls.PREPARE_CLASS_CLONE({}).EXECUTE_NORMALIZED(**(defaults | inputs)).result

    return call


def test_fifteen_nodes_that_describe_themselves(classes):
    assert set(classes) == IDS
    for name, cls in classes.items():
        schema = cls.GET_SCHEMA()
        assert schema.node_id == f"TalkingHeadWardrobe{name}"
        assert schema.category == "Talking Head/wardrobe"
        assert len(schema.description) > 40
        widgets = [i for i in schema.inputs if i.get_io_type() in WIDGETS]
        assert len(widgets) <= 8, name
        assert all(i.tooltip for i in schema.inputs), name
        page = (ROOT / "web" / "docs" / f"{schema.node_id}.md").read_text(encoding="utf-8")
        assert page.startswith("# "), name
        for i in schema.inputs:
            assert i.id in page, f"{name}: the page does not name {i.id}"


def test_sockets_only_ever_grow_at_the_end(classes):
    for name, line in SOCKETS.items():
        inputs, outputs = (part.split() for part in line.split(">"))
        schema = classes[name].GET_SCHEMA()
        assert [i.id for i in schema.inputs][: len(inputs)] == inputs, name
        assert [o.get_io_type() for o in schema.outputs][: len(outputs)] == outputs, name


def test_no_node_makes_a_mask_of_a_latent_mask(classes):
    for name, cls in classes.items():
        schema = cls.GET_SCHEMA()
        if any("LATENT_MASK" in i.get_io_type() for i in schema.inputs):
            assert "MASK" not in [o.get_io_type() for o in schema.outputs], name
    assert {
        n for n, c in classes.items() if any(i.get_io_type() == "LATENT_MASK" for i in c.GET_SCHEMA().inputs)
    } == {
        "ApplyLatentMask",
        "SeamBlend",
    }


def clip(n=5):
    scenes = [HandScene(dx=2 * t) for t in range(n)]
    images = torch.cat([photo(s) for s in scenes])
    garment = torch.cat([s.mask for s in scenes])
    hands = torch.cat([s.occluders for s in scenes])
    return images, garment, hands


def boxed(stitch, full):
    x, y, w, h = (int(v) for v in stitch.boxes[0])
    return full[:, y : y + h, x : x + w].clone()


def test_the_chain_changes_no_pixel_it_must_not(run):
    images, garment, hands = clip()
    crop, mask, stitch, width, height, frames, report = run("SubjectCrop", images=images, mask=garment)
    assert (width, height, frames) == (*stitch.size, 5)
    assert f"5 frames of {width}x{height}" in report
    paint, occluders, said = run("SubtractOccluders", mask=mask, occluders=boxed(stitch, hands), grow_px=4)
    assert "narrowest gap between fingers to paint: 3 px" in said
    alpha = run("PixelMask", mask=paint)[0]
    latent, picture = run("LatentMask", mask=paint, grid="h3")
    assert picture.shape == (2, height // 16, width // 16, 3)
    assert len(latent.runs) == 2
    blue = torch.tensor(BLUE).expand_as(crop).clone()
    seam, note = run("SeamBlend", generated=blue, source=crop, mask=alpha, latent_mask=latent)
    assert seam.shape == crop.shape
    assert note == "" or "context" in note
    made, blocked, _ = run(
        "Composite", source=images, generated=blue, stitch=stitch, mask=alpha, occluders=occluders
    )
    assert type(blocked).__name__ == "ExecutionBlocker"
    hard = run("Repaste", base=made, source=images, occluders=occluders, stitch=stitch, matte="hard")[0]
    assert torch.equal(hard, made)
    line = run(
        "Repaste",
        base=made,
        source=images,
        occluders=occluders,
        stitch=stitch,
        generated=blue,
        matte="colour_line",
    )[0]
    assert not torch.equal(line, made)
    numbers, heat = run(
        "Metrics", source=images, result=hard, stitch=stitch, mask=alpha, occluders=occluders, loop=True
    )
    found = json.loads(numbers)
    assert (found["outside_changed_px"], found["occluder_changed_px"]) == (0, 0)
    assert found["psnr_outside"] == "inf"
    assert heat.shape[0] == 1
    ok, text, ghosts = run("GhostCheck", occluders_source=hands, occluders_result=hands)
    assert ok
    assert "no second hands" in text
    assert ghosts.sum() == 0


def test_frames_go_in_and_frames_come_out(run, node_classes):
    images, garment, hands = clip()
    stream = pack_module(node_classes, "core.frames").TensorStream(
        (images * 255).round().to(torch.uint8), Fraction(24)
    )
    crop, mask, stitch, *_ = run("SubjectCrop", images=stream, mask=garment)
    paint = run("SubtractOccluders", mask=mask, occluders=boxed(stitch, hands))[0]
    alpha = run("PixelMask", mask=paint)[0]
    blocked, frames, _ = run("Composite", source=stream, generated=1 - crop, stitch=stitch, mask=alpha)
    assert "leave at the output frames" in blocked.message
    back = run("Repaste", base=frames, source=stream, occluders=hands, matte="hard")[1]
    made, same = (
        node_classes["TalkingHeadFramesToImages"].execute(frames=f, start=0, count=0).args[0]
        for f in (frames, back)
    )
    assert torch.equal(made, same)
    numbers, _ = run("Metrics", source=stream, result=frames, stitch=stitch, mask=alpha)
    assert json.loads(numbers)["outside_changed_px"] == 0


def test_latents_with_and_without_sound(run):
    mask = torch.zeros(5, 64, 96)
    mask[:, 10:20, 10:20] = 1
    latent = run("LatentMask", mask=mask, grid="h3")[0]
    video = {"samples": torch.zeros(1, 24, 2, 4, 6), "other": 1}
    made = run("ApplyLatentMask", video_latent=video, latent_mask=latent)[0]
    assert made["other"] == 1
    assert made["noise_mask"].shape == (1, 1, 2, 4, 6)
    assert "noise_mask" not in video
    reshape_mask = importlib.import_module("comfy.utils").reshape_mask
    assert torch.equal(reshape_mask(made["noise_mask"], (1, 1, 2, 4, 6)), made["noise_mask"])
    sound = {"samples": torch.ones(1, 32, 2, 5)}
    nested = importlib.util.find_spec("comfy.nested_tensor")
    if nested is None:
        with pytest.raises(ValueError, match="0.35 or newer"):
            run("ApplyLatentMask", video_latent=video, latent_mask=latent, audio_latent=sound)
        return
    both = run("ApplyLatentMask", video_latent=video, latent_mask=latent, audio_latent=sound)[0]
    parts, masks = both["samples"].unbind(), both["noise_mask"].unbind()
    assert [tuple(p.shape) for p in parts] == [(1, 24, 2, 4, 6), (1, 32, 2, 8)]
    assert masks[1].shape == (1, 1, 2, 8)
    assert float(masks[1].max()) == 0
    with pytest.raises(ValueError, match="separate it first"):
        run("ApplyLatentMask", video_latent=both, latent_mask=latent)


def test_a_core_without_joint_latents_says_so(run, monkeypatch):
    latent = run("LatentMask", mask=torch.ones(1, 32, 32), grid="h3")[0]
    monkeypatch.setitem(importlib.import_module("sys").modules, "comfy.nested_tensor", None)
    with pytest.raises(ValueError, match=r"audio_latent is connected; expected a ComfyUI .*0.35 or newer"):
        run(
            "ApplyLatentMask",
            video_latent={"samples": torch.zeros(1, 24, 1, 2, 2)},
            latent_mask=latent,
            audio_latent={"samples": torch.zeros(1, 32, 2, 2)},
        )


def test_loops_infill_and_mouths(run, node_classes):
    images, garment, _ = clip(9)
    wrapped, mask, overlap, frames = run("LoopWrap", images=images, mask=garment, frame_rule="4k+1")
    assert (overlap, frames, len(wrapped), len(mask)) == (4, 13, 13, 13)
    assert len(run("LoopClose", generated=wrapped, overlap=overlap)[0]) == 9
    lost = garment.clone()
    lost[4] = 0
    repaired, report = run("MaskInfill", mask=lost, images=images)
    assert "made 4" in report
    assert repaired[4].sum() > 0.9 * garment[4].sum()
    mouth = run("MouthMask", box="20,30,120,150", images=images)[0]
    assert mouth.shape == garment.shape
    face = torch.zeros_like(garment)
    face[0, 30:150, 20:120] = 1
    other = run("MouthMask", face=face)[0]
    assert torch.equal(other[0], mouth[0])
    assert float(other[1:].max()) == 0
    with pytest.raises(ValueError, match="box is ''; expected an avatar, a face mask, or a box"):
        run("MouthMask", images=images)
    boxless = SimpleNamespace(open=lambda: nullcontext(object()), info=SimpleNamespace(engine="ditto"))
    with pytest.raises(ValueError, match="avatar is one of ditto; expected a MuseTalk avatar"):
        run("MouthMask", avatar=boxless)
    avatar = node_classes["TalkingHeadLoadAvatar"].execute(avatar="demo").args[0]
    masks = run("MouthMask", avatar=avatar)[0]
    assert masks.shape == (avatar.info.n_frames, avatar.info.size[1], avatar.info.size[0])
    assert float(masks.max()) == 1


def test_another_crops_boxes_are_cut_again(run):
    images, garment, hands = clip()
    crop, mask, stitch, width, height, frames, _ = run("SubjectCrop", images=images, mask=garment)
    again = run("SubjectCrop", images=1 - images, mask=hands, align=8, mode="tracked", stitch=stitch)
    assert torch.equal(again[0], 1 - crop)
    assert torch.equal(again[1], boxed(stitch, hands))
    assert again[2] is stitch
    assert again[3:6] == (width, height, frames)
    assert "boxes: those of stitch" in again[6]
    made = run("Composite", source=images, generated=1 - crop, stitch=stitch, mask=mask, occluders=hands)[0]
    line = run("Repaste", base=made, source=images, occluders=hands, stitch=stitch, generated=1 - crop)[0]
    found = json.loads(
        run("Metrics", source=images, result=line, mask=mask, stitch=stitch, occluders=hands)[0]
    )
    assert found["outside_changed_px"] == 0
    assert found["occluder_changed_px"] > 0


def test_the_nodes_are_the_ones_that_leave_no_ring(classes):
    """A fresh Repaste has the matte that the pages recommend."""
    [matte] = [i for i in classes["Repaste"].GET_SCHEMA().inputs if i.id == "matte"]
    assert matte.default == "colour_line"
    assert list(matte.options) == ["hard", "soft", "colour_line"]


def test_a_clip_that_is_no_loop_goes_through_both_loop_nodes(run):
    images, garment, _ = clip(9)
    wrapped, mask, overlap, frames = run(
        "LoopWrap", images=images, mask=garment, frame_rule="4k+1", min_overlap=0
    )
    assert (overlap, frames) == (0, 9)
    assert torch.equal(mask, garment)
    assert torch.equal(run("LoopClose", generated=wrapped, overlap=overlap)[0], images)
