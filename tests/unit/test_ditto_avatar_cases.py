"""What breaks for people who do this job (shared cases), on Ditto's avatars: from a source to full frames."""

from __future__ import annotations

import json
from fractions import Fraction

import cv2
import faces as pictures
import numpy as np
import psutil
import pytest
import torch
from media import Clip

from talkinghead import cli
from talkinghead.nodes.avatars.composite import composite_stream
from talkinghead.nodes.avatars.engines import maker_of
from talkinghead.nodes.avatars.preview import BOX, CROP, avatar_overlay
from talkinghead.nodes.core.faces import parse_choice
from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.core.packet import open_packet
from talkinghead.nodes.ditto.avatar_options import DittoAvatarOptions
from talkinghead.nodes.ditto.bake import bake
from talkinghead.nodes.ditto.given_faces import given
from talkinghead.nodes.ditto.make_avatar import DittoPlan, make_avatar
from talkinghead.nodes.ditto.motion_plan import Motion
from talkinghead.nodes.ditto.register import DittoFaceTools, register
from talkinghead.nodes.ditto.render import DittoCropStream
from talkinghead.nodes.ditto.speech import DittoSpeech


@pytest.fixture(scope="module")
def tools():
    return DittoFaceTools(pictures.light_detector())


def write(path, picture):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, picture[..., ::-1])[1].tobytes())
    return path


def build(model, root, frames, boxes, fps=25, options=None, cycle="loop", name="anna"):
    ctx, stream = RunContext(), TensorStream(torch.from_numpy(np.stack(frames)), Fraction(fps))
    return bake(ctx, model, stream, given(boxes), root, name, cycle, options=options), ctx


def spoken(model, avatar, tone, seconds, fps=25):
    """Return the frames of a render with the real networks of toy size, and its context."""
    motion = Motion(model, avatar, DittoSpeech(model, tone(seconds), Fraction(fps)))
    stream, ctx = composite_stream(DittoCropStream(model, avatar, motion), avatar), RunContext()
    return np.concatenate([c.frames.numpy() for c in stream.chunks(ctx, 8)]), ctx


def noise(n, size=(96, 80), seed=0):
    shape = (n, size[1], size[0], 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("box", [(61, -1, 277, 309), (200, 100, 323, 330), (-9, -9, 329, 329)])
def test_case_1_a_face_at_the_border(ditto_model, tmp_path, tone, box):
    frames = noise(2, (320, 320))
    avatar, _ = build(ditto_model, tmp_path, frames, [box])
    out, _ = spoken(ditto_model, avatar, tone, 0.2)
    assert out.shape == (5, 320, 320, 3)
    assert all((out[i] != frames[i % 2]).any() for i in range(5))


@pytest.mark.parametrize(("n", "gap"), [(12, {4, 5, 6}), (60, set(range(55, 60)))])
def test_cases_2_and_3_frames_without_a_face_are_byte_equal(ditto_model, tmp_path, tone, n, gap):
    frames = noise(n)
    boxes = [None if i in gap else (20, 15, 60, 65) for i in range(n)]
    avatar, ctx = build(ditto_model, tmp_path, frames, boxes)
    assert f"no face in frames {min(gap)}-{max(gap)}" in ctx.report.text()
    out, _ = spoken(ditto_model, avatar, tone, n / 25)
    assert len(out) == n
    assert [i for i in range(n) if np.array_equal(out[i], frames[i])] == sorted(gap)


def test_cases_4_and_5_which_of_two_people(ditto_model, tools, tmp_path):
    frame, boxes = pictures.two_people(640, 320)
    path = write(tmp_path / "two.png", frame)
    middles = {}
    for word in ("0", "1"):
        plan = DittoPlan(face=parse_choice(word))
        packet, _ = make_avatar(RunContext(), ditto_model, plan.open(path), plan, tools, tmp_path / "a")
        with packet.open() as reader:
            middles[word] = (reader.c2o[0, :2].numpy() @ (256, 256, 1))[0]
    assert boxes[0][0] < middles["0"] < boxes[0][2]
    assert boxes[1][0] < middles["1"] < boxes[1][2]
    plan = DittoPlan(face=parse_choice("2"))
    with pytest.raises(ValueError, match="face 2 was asked for and 2 faces were found"):
        make_avatar(RunContext(), ditto_model, plan.open(path), plan, tools, tmp_path / "a")


def test_case_15_a_loop_at_30_fps_under_speech_at_25(ditto_model, tmp_path, tone):
    frames = noise(9)
    avatar, _ = build(ditto_model, tmp_path, frames, [None, *[(20, 15, 60, 65)] * 8], fps=30)
    out, _ = spoken(ditto_model, avatar, tone, 1.0)
    assert len(out) == 25
    # Frame 0 of the loop has no face and shows where it comes again: at 9/30 s, 18/30 s, ...
    assert [k for k in range(25) if np.array_equal(out[k], frames[0])] == [
        k for k in range(25) if k * 30 // 25 % 9 == 0
    ]


def test_case_20_memory_does_not_grow_with_the_clip(ditto_model, tmp_path):
    class Counted(TensorStream):
        def generate(self, ctx, n):
            for start in range(0, self.info.n_frames, n):
                count = min(n, self.info.n_frames - start)
                yield torch.full((count, 480, 640, 3), start % 256, dtype=torch.uint8), None

    stream = Counted(torch.zeros(1, 480, 640, 3, dtype=torch.uint8), Fraction(25))
    process, rss = psutil.Process(), []
    for n in (24, 264):  # 22 MB and 243 MB of frames
        stream.info = type(stream.info)(640, 480, Fraction(25), n)
        ctx = RunContext(progress=lambda *_: rss[-1].append(process.memory_info().rss))
        rss.append([])
        bake(ctx, ditto_model, stream, given([(200, 100, 400, 380)]), tmp_path, f"n{n}", "loop")
    assert (max(rss[1]) - max(rss[0])) / 2**20 < 60


def test_case_21_a_clip_that_lies_on_its_side(ditto_model, tmp_path):
    plan = DittoPlan(boxes=((20, 20, 70, 90),))
    path = Clip(width=128, height=96, n_frames=3, rotation=90).write(tmp_path / "turned.mp4")
    packet, _ = make_avatar(RunContext(), ditto_model, plan.open(path), plan, None, tmp_path / "a")
    assert packet.info.size == (96, 128)


def test_case_22_transparency_is_laid_on_the_stated_colour(ditto_model, tmp_path):
    picture = np.zeros((80, 96, 4), np.uint8)
    picture[20:60, 20:70] = 255
    path = tmp_path / "see-through.png"
    path.write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    plan = DittoPlan(boxes=((20, 15, 60, 65),), options=DittoAvatarOptions(background="0,255,0"))
    packet, _ = make_avatar(RunContext(), ditto_model, plan.open(path), plan, None, tmp_path / "a")
    with packet.open() as reader:
        assert reader.frame(0)[0, 0].tolist() == [0, 255, 0]
        assert reader.frame(0)[40, 40].tolist() == [255, 255, 255]


def test_cases_31_and_32_two_avatars_do_not_mix(ditto_model, tmp_path, tone):
    red, blue = (
        np.full((n, *size, 3), c, np.uint8)
        for n, size, c in ((7, (80, 96), (200, 0, 0)), (5, (100, 60), (0, 0, 200)))
    )
    made = [
        build(ditto_model, tmp_path, f, [(15, 10, 50, 55)], name=name)[0]
        for f, name in ((red, "r"), (blue, "b"))
    ]
    alone = [spoken(ditto_model, avatar, tone, 0.4)[0] for avatar in made]
    ctx, streams = RunContext(), []
    for avatar in made:
        motion = Motion(ditto_model, avatar, DittoSpeech(ditto_model, tone(0.4), Fraction(25)))
        crops = DittoCropStream(ditto_model, avatar, motion)
        streams.append(composite_stream(crops, avatar).chunks(ctx, 4))
    mixed = list(zip(*streams, strict=True))
    for i in range(2):
        assert np.array_equal(np.concatenate([pair[i].frames.numpy() for pair in mixed]), alone[i])


def test_the_preview_shows_crop_and_face(ditto_model, tmp_path):
    frames = np.full((3, 240, 320, 3), 90, np.uint8)
    avatar, _ = build(ditto_model, tmp_path, frames, [(120, 70, 200, 170), None, (120, 70, 200, 170)])
    drawn = avatar_overlay(avatar, 0, 9)
    assert drawn.shape == (3, 240, 320, 3)
    assert np.array_equal(drawn[1], frames[1])
    for colour in (BOX, CROP):
        assert (drawn[0] == colour).all(2).sum() > 100
    y, x = np.nonzero((drawn[0] == BOX).all(2))
    assert 115 <= x.min() <= x.max() <= 205  # brows to chin of the box
    assert 85 <= y.min() <= y.max() <= 175
    assert drawn[0, 120, 165].tolist() != [90, 90, 90]  # inside the mask
    assert drawn[0, 2, 2].tolist() == [90, 90, 90]
    with pytest.raises(ValueError, match=r"it has 0\.\.2"):
        avatar_overlay(avatar, 3)


def check(model, tools, path, **plan):
    maker = maker_of(model)
    return maker.preflight(RunContext(), path, model, maker.plan(**plan), tools)


def test_preflight_says_what_would_happen(ditto_model, tools, tmp_path):
    path = write(tmp_path / "face.png", pictures.portrait(320, 240, face_width=60)[0])
    found = check(ditto_model, tools, path)
    assert not found.stops
    assert "face: in 100% of 1 frames looked at" in found.text()
    assert "avatar: 1 frames of 320x240 at 25 fps" in found.facts
    assert any(fact.startswith("crop: ") for fact in found.facts)
    x1, y1, x2, y2 = found.box
    assert 0 < x1 < 160 < x2 < 320
    assert 0 < y1 < y2 < 240
    assert (found.picture == CROP).all(2).any()
    nothing = check(ditto_model, tools, write(tmp_path / "gray.png", pictures.gray(160, 120)))
    assert nothing.stops
    assert "verdict: cannot be built\nproblem: no face was found" in nothing.text()
    close = check(ditto_model, None, path, boxes=((0, -60, 320, 300),))
    assert "of the crop lie outside the picture" in " ".join(close.problems)
    assert "it will look soft" in " ".join(close.problems)


def test_preflight_and_build_agree_on_the_crop(ditto_model, tools, tmp_path):
    path = write(tmp_path / "face.png", pictures.portrait(320, 240)[0])
    frames = cv2.imread(str(path))[None, ..., ::-1]
    c2o = register(1, lambda i: frames[i], tools, parse_choice("largest")).c2o[0]
    x, y = c2o[:2] @ (256, 256, 1)
    assert f"around {x:.0f},{y:.0f} " in check(ditto_model, tools, path).text()


def test_the_command_avatar_makes_ditto_avatars(ditto_model, tmp_path, capsys):
    def run(*args, code=0):
        got = cli.main(["avatar", *map(str, args), "--models", str(tmp_path / "models ñ")])
        out, err = capsys.readouterr()
        assert got == code, out + err
        return out + err

    path = write(tmp_path / "in" / "Ána.png", pictures.portrait(320, 240, face_width=60)[0])
    ditto = ("--engine", "ditto")
    facts = json.loads(
        run("build", path, *ditto, "--id", "caña 日本", "--upright", "--crop-shift=0,-0.1", "--json")
    )
    assert (facts["engine"], facts["state"]) == ("ditto", "built")
    packet = open_packet(tmp_path / "models ñ/avatars/caña 日本")
    assert packet.info.options["rotate"] is False
    with packet.open() as reader:
        assert reader.c2o[0, 0, 1] == 0
    assert run("check", path, *ditto).startswith("verdict: ready\n")
    run("fleet", tmp_path / "in", *ditto)
    run("verify")
    run("preview", "Ána", "--out", tmp_path / "seen.png")
    assert (cv2.imread(str(tmp_path / "seen.png"))[..., ::-1] == CROP).all(2).any()
    rows = json.loads(run("list", "--json"))
    assert [row["engine"] for row in rows["avatars"]] == ["ditto", "ditto"]
    assert "demo-ditto" in rows["demos"]
    assert "--mask does nothing for --engine ditto" in run("build", path, *ditto, "--mask", "jaw", code=2)
    assert "--smoothing does nothing for --engine musetalk" in run("build", path, "--smoothing", 5, code=2)
    assert "write for example 0,-0.125" in run("build", path, *ditto, "--crop-shift", "x", code=2)
    run("clear", "Ána")
    assert [p.name for p in (tmp_path / "models ñ/avatars").iterdir()] == ["caña 日本"]
