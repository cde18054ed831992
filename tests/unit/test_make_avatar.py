"""From a source to a packet: boxes, faceless frames, masks, content keys, what is refused."""

from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from face_stub import MarkDetector, marked

from talkinghead.nodes.core.frames import RunCancelled, RunContext, TensorStream
from talkinghead.nodes.core.images import parse_box
from talkinghead.nodes.core.packet import list_packets, open_packet
from talkinghead.nodes.musetalk import masks
from talkinghead.nodes.musetalk.bake import Faces, bake
from talkinghead.nodes.musetalk.find_faces import FaceTools
from talkinghead.nodes.musetalk.make_avatar import BuildPlan, content_key, make_avatar
from talkinghead.nodes.musetalk.options import AvatarOptions
from talkinghead.nodes.musetalk.preflight import preflight
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech

BOX = (40, 30, 100, 100)
NO_MARGIN = AvatarOptions(extra_margin=0)


@pytest.fixture
def tools():
    return FaceTools(MarkDetector())


@pytest.fixture
def picture(tmp_path):
    def make(name="face.png", *boxes, size=(160, 140)):
        path = tmp_path / name
        frame = marked(*size, *(boxes or (BOX,)))
        path.write_bytes(cv2.imencode(path.suffix, frame[..., ::-1])[1].tobytes())
        return path

    return make


@pytest.fixture
def make(tiny_model, tools, tmp_path):
    """Return a function: source path, plan fields -> (packet, new, context)."""

    def run(path, avatar_id=None, rebuild=False, **plan):
        ctx, plan = RunContext(), BuildPlan(**{"options": NO_MARGIN} | plan)
        packet, new = make_avatar(
            ctx, tiny_model, plan.open(path), plan, tools, tmp_path / "avatars", avatar_id, rebuild
        )
        return packet, new, ctx

    return run


def baked(model, root, frames, boxes, **options):
    ctx = RunContext()
    stream = TensorStream(torch.from_numpy(np.stack(frames)), Fraction(25))
    packet = bake(ctx, model, stream, lambda _: Faces(boxes), root, "x", options=AvatarOptions(**options))
    return packet, ctx


def test_a_picture_becomes_a_still_with_the_found_box(make, picture):
    packet, new, ctx = make(picture(), "anna")
    assert new
    assert (packet.info.cycle, packet.info.n_frames, packet.info.size) == ("still", 1, (160, 140))
    with packet.open() as reader:
        assert reader.boxes.tolist() == [list(BOX)]
        assert reader.points.shape == (1, 68, 2)
    assert "face box (40, 30, 100, 100)" in ctx.report.text()
    assert packet.info.options == NO_MARGIN.to_dict()


def test_margin_and_shift_move_the_box_as_upstream(make, picture):
    packet, _, _ = make(picture(), options=AvatarOptions(extra_margin=10, bbox_shift=5))
    with packet.open() as reader:
        # nose point 65 -> 70: upper edge 2 * 70 - 100, lower edge 100 + 10
        assert reader.boxes.tolist() == [[40, 40, 100, 110]]


def test_twelve_frames_three_faceless_stay_byte_equal(tiny_model, tools, tmp_path, tone):
    # Case 2: the gap lies on and between key frames of stride 4.
    for gap in ({4, 5, 6}, {5, 6, 7}, {9, 10, 11}):
        frames = [marked(160, 140, *([] if i in gap else [BOX]), level=90 + i) for i in range(12)]
        stream = TensorStream(torch.from_numpy(np.stack(frames)), Fraction(25))
        source = SimpleNamespace(
            stream=stream, fps=Fraction(25), size=(160, 140), name="clip", sha256=str(gap), has_alpha=False, notes=()
        )  # fmt: skip
        ctx, plan = RunContext(), BuildPlan(options=NO_MARGIN, cycle="loop")
        avatar, _ = make_avatar(ctx, tiny_model, source, plan, tools, tmp_path / "avatars")
        assert f"no face in frames {min(gap)}-{max(gap)}: they are shown" in ctx.report.text().replace(
            "shown as", "they are shown as"
        ) or (f"no face in frames {min(gap)}-{max(gap)}: shown as they are" in ctx.report.text())
        out = CompositeStream(
            CropStream(tiny_model, avatar, Speech(tiny_model, tone(0.48), Fraction(25))), avatar
        )
        shown = np.concatenate([c.frames.numpy() for c in out.chunks(RunContext(), 5)])
        assert len(shown) == 12
        for i, frame in enumerate(frames):
            assert np.array_equal(shown[i], frame) == (i in gap), i


def test_missing_faces_can_be_held_or_refused(tiny_model, tmp_path):
    frames, boxes = [marked(96, 80)] * 4, [(20, 10, 70, 70), None, None, (20, 12, 70, 72)]
    held, ctx = baked(tiny_model, tmp_path, frames, boxes, missing="hold")
    with held.open() as reader:
        assert reader.found.all()
        assert reader.boxes[1].tolist() == [20, 10, 70, 70]
        assert reader.boxes[2].tolist() == [20, 12, 70, 72]
    assert "no face in frames 1-2: the nearest box is held" in ctx.report.text()
    with pytest.raises(ValueError, match="frames 1-2 have no face; cut them"):
        baked(tiny_model, tmp_path, frames, boxes, missing="error")


def test_preflight_and_build_take_the_same_boxes(tiny_model, tmp_path):
    """Preflight said ready for boxes that no build takes, and raised for some that are taken."""
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(3):
        cv2.imwrite(str(folder / f"{i}.png"), np.full((60, 80, 3), 60 * i, np.uint8))
    box, far = (20, 15, 60, 45), (200, 200, 230, 230)
    for k, (boxes, missing, taken) in enumerate(
        [
            ((box,), "error", True),
            ((far, box, box), "passthrough", True),
            ((far,), "passthrough", False),
            ((box, box), "passthrough", False),
            ((None, box, box), "error", False),
        ]
    ):
        plan = BuildPlan(boxes=boxes, options=AvatarOptions(missing=missing))
        ctx, source = RunContext(), plan.open(folder)
        if not taken:
            with pytest.raises(ValueError, match=r"box|no face"):
                make_avatar(ctx, tiny_model, source, plan, None, tmp_path, f"a{k}")
            with pytest.raises(ValueError, match="box") if boxes[0] else nullcontext():
                assert preflight(ctx, folder, tiny_model, plan, None).stops
            continue
        make_avatar(ctx, tiny_model, source, plan, None, tmp_path, f"a{k}")
        found = preflight(ctx, folder, tiny_model, plan, None)
        assert (found.stops, found.box) == (False, box)
        assert bool(found.problems) is (far in boxes)


def test_a_face_that_leaves_the_picture_is_a_frame_without(tiny_model, tmp_path):
    boxes = [(20, 10, 70, 70), (60, 10, 110, 70), (90, 10, 140, 70)]
    packet, _ = baked(tiny_model, tmp_path, [marked(96, 80)] * 3, boxes)
    with packet.open() as reader:
        assert reader.found.tolist() == [True, True, False]
        assert reader.boxes[1].tolist() == [60, 10, 96, 70]
    with pytest.raises(ValueError, match=r"face box \(90, 10, 140, 70\) leaves 6x60 pixels of a 96x80 frame"):
        baked(tiny_model, tmp_path, [marked(96, 80)], boxes[2:])


@pytest.mark.parametrize("box", [(61, -1, 277, 309), (200, 100, 323, 330), (-9, -9, 329, 329)])
def test_a_face_at_the_border_is_clamped(make, picture, box, tmp_path):
    packet, _, _ = make(picture("border.png", BOX, size=(320, 320)), boxes=(box,))
    with packet.open() as reader:
        x1, y1, x2, y2 = reader.boxes[0].tolist()
    assert (x1, y1, x2, y2) == (max(0, box[0]), max(0, box[1]), min(320, box[2]), min(320, box[3]))


def test_which_of_two_faces(make, picture):
    from talkinghead.nodes.core.faces import parse_choice

    path = picture("two.png", (10, 30, 60, 90), (80, 20, 150, 100))
    boxes = {}
    for word in ("largest", "0", "1", "20,50"):
        packet, _, _ = make(path, face=parse_choice(word))
        with packet.open() as reader:
            boxes[word] = reader.boxes[0].tolist()
    assert boxes["largest"] == boxes["1"] == [80, 20, 150, 100]
    assert boxes["0"] == boxes["20,50"] == [10, 30, 60, 90]
    with pytest.raises(ValueError, match="face 2 was asked for and 2 faces were found"):
        make(path, face=parse_choice("2"))


def test_a_box_and_a_point_are_those_of_the_source_not_of_the_scaled_picture(make, picture):
    from talkinghead.nodes.core.faces import parse_choice

    path = picture("big.png", (20, 60, 120, 180), (160, 40, 300, 200), size=(320, 280))
    packet, _, _ = make(path, boxes=((20, 60, 120, 180),), size=(160, 140))
    with packet.open() as reader:
        assert reader.boxes.tolist() == [[10, 30, 60, 90]]
    packet, _, _ = make(path, face=parse_choice("70,120"), size=(160, 140))
    with packet.open() as reader:
        assert np.abs(reader.boxes[0].numpy() - [10, 30, 60, 90]).max() <= 1


def test_equal_content_is_built_once(make, picture, tools, tmp_path):
    path = picture()
    first, new, _ = make(path)
    assert new
    assert first.info.id.startswith("auto-")
    again, new, ctx = make(path)
    assert (again.digest, new) == (first.digest, False)
    assert "already built" in ctx.report.text()
    assert make(path, rebuild=True)[1]
    copy = path.with_name("copy.png")
    copy.write_bytes(path.read_bytes())
    assert not make(copy)[1]  # by content, not by name
    path.write_bytes(picture("other.png", (50, 30, 110, 100)).read_bytes())
    assert make(path)[0].info.id != first.info.id
    assert len(list_packets([tmp_path / "avatars"])) == 2


def test_a_named_avatar_is_rebuilt_when_its_content_changes(make, picture):
    path = picture()
    first = make(path, "anna")[0]
    assert not make(path, "anna")[1]
    changed, new, _ = make(path, "anna", options=AvatarOptions(extra_margin=3))
    assert new
    assert changed.digest != first.digest
    assert open_packet(first.path).digest == changed.digest


def test_every_dial_is_in_the_content_key(tiny_model, tools, picture):
    path = picture()

    def key(model=tiny_model, tools=tools, **plan):
        plan = BuildPlan(**plan)
        return content_key(model, plan.open(path), plan, tools)

    other = FaceTools(SimpleNamespace(name="other"))
    keys = [
        key(), key(fps=Fraction(30)), key(size=(80, 70)), key(cycle="loop"), key(boxes=(BOX,)),
        key(options=AvatarOptions(mask="jaw")), key(tools=other), key(tools=FaceTools(tools.detector, lambda s: s),
        options=AvatarOptions(mask="jaw")),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key(boxes=(BOX,), tools=None) == key(boxes=(BOX,))


def test_parser_masks_are_upstreams(tiny_model, tmp_path):
    labels = np.zeros((512, 512), np.uint8)
    cv2.ellipse(labels, (256, 280), (120, 160), 0, 0, 360, 1, -1)
    labels[330:360, 220:292] = 12
    stream = TensorStream(torch.from_numpy(marked(200, 180)[None]), Fraction(25))
    faces = Faces([(60, 30, 140, 140)], labels=lambda square: labels)
    for mode in ("jaw", "raw", "neck"):
        options = AvatarOptions(mask=mode, blur=0.05, cheek_left=60)
        packet = bake(RunContext(), tiny_model, stream, lambda _: faces, tmp_path, "p", options=options)
        with packet.open() as reader:
            crop = tuple(reader.crops[0].tolist())
            expected = masks.blend_mask(masks.mode_mask(labels, mode, (60, 90)), crop, 0.05, 0.5)
            assert np.array_equal(reader.mask(0).numpy(), expected)
            assert expected.any()


def test_a_parser_mask_without_a_parsed_face_says_what_to_do(make, picture):
    with pytest.raises(ValueError, match="mask 'jaw' needs a parsed face, and this one is only a box"):
        make(picture(), boxes=(BOX,), options=AvatarOptions(mask="jaw"))


def test_a_large_face_is_said_to_look_soft(make, picture):
    # Case 7: 700 px of face from 256 px of network.
    path = picture("large.png", size=(1080, 1920))
    _, _, ctx = make(path, boxes=((200, 500, 800, 1200),))
    assert "the face is 700 px, 2.7 times the 256 px the network draws" in ctx.report.text()
    _, _, ctx = make(path, boxes=((200, 500, 600, 1000),))
    assert "soft" not in ctx.report.text()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"boxes": ((300, 10, 500, 200),)}, r"face box \(300, 10, 500, 200\)"),
        ({"cycle": "bounce"}, "cycle 'bounce' is unknown"),
        ({"max_frames": -1}, "max_frames -1 is below 0"),
    ],
)
def test_bad_input_leaves_the_old_avatar(make, picture, tmp_path, plan, message):
    old = make(picture(), "anna")[0]
    with pytest.raises(ValueError, match=message):
        make(picture(), "anna", **plan)
    assert open_packet(old.path).digest == old.digest
    assert [p.name for p in (tmp_path / "avatars").iterdir()] == ["anna"]


def test_no_face_at_all_is_said(make, picture):
    path = picture("none.png", (0, 0, 4, 4))
    with pytest.raises(ValueError, match="no face was found in 1 frame; give a picture"):
        make(path, "anna")


def test_a_cancel_leaves_nothing(tiny_model, tools, picture, tmp_path):
    ctx, plan = RunContext(is_cancelled=lambda: True), BuildPlan()
    with pytest.raises(RunCancelled):
        make_avatar(ctx, tiny_model, plan.open(picture()), plan, tools, tmp_path / "avatars")
    assert list((tmp_path / "avatars").iterdir()) == []


def test_neither_box_nor_detector_is_refused(tiny_model, picture, tmp_path):
    plan = BuildPlan()
    with pytest.raises(ValueError, match="give a face box as x1,y1,x2,y2, or a detector"):
        make_avatar(RunContext(), tiny_model, plan.open(picture()), plan, None, tmp_path)


def test_paths_in_any_script(make, picture, tmp_path):
    folder = tmp_path / "caña 日本 x"
    folder.mkdir()
    path = picture().rename(folder / "vídeo 😀.png")
    packet, _, _ = make(path, "日本 ñ")
    assert open_packet(packet.path).info.source["name"] == "vídeo 😀.png"


def test_parse_box_gives_what_plans_take():
    assert BuildPlan(boxes=(parse_box("1,2,30,40"),)).boxes == ((1, 2, 30, 40),)


def test_the_exact_path_looks_at_every_frame_the_light_one_at_keys(tiny_model, tmp_path):
    from talkinghead.nodes.core.faces import FaceChoice
    from talkinghead.nodes.musetalk.find_faces import finder

    # a shade across the face: the likeness of a flat area says nothing, and every frame would be looked at
    shade = np.linspace(-50, 0, 160)[None, :, None].round().astype(int)
    picture = (marked(160, 140, BOX).astype(int) + shade).clip(0, 255).astype(np.uint8)
    frames = np.stack([picture] * 17)
    for is_exact, looked in ((True, 17), (False, 5)):
        detector = MarkDetector()
        tools = FaceTools(detector, is_exact=is_exact)
        found = finder(RunContext(), tools, FaceChoice(), NO_MARGIN)(frames)
        assert found.boxes == [BOX] * 17
        assert detector.calls == looked


def test_light_boxes_are_rounded_once():
    from talkinghead.nodes.musetalk.boxes import face_box

    points = np.full((68, 2), 50.0)
    points[0], points[16], points[8] = (20.4, 50), (80.6, 50), (50, 90.2)
    for nose in (49.9, 50.1):  # a nose that trembles over a whole pixel
        points[29, 1] = nose
        assert face_box(points, (0, 0, 1, 1), whole_pixels=False).box == (20, 10, 81, 90)
    boxes = []
    for nose in (49.9, 50.1):
        points[29, 1] = nose
        boxes.append(face_box(points, (0, 0, 1, 1)).box)
    assert boxes == [(20, 8, 80, 90), (20, 10, 80, 90)]  # upstream's


def spoken(model, avatar, audio, fps=Fraction(25), **how):
    """Return the frames of a whole render, uint8 (n, H, W, 3), and the context."""
    ctx = RunContext()
    stream = CompositeStream(CropStream(model, avatar, Speech(model, audio, fps)), avatar, **how)
    return np.concatenate([c.frames.numpy() for c in stream.chunks(ctx, 8)]), ctx


def test_five_faceless_of_sixty_do_not_stop_the_render(tiny_model, tools, tmp_path, tone):
    # Case 3: the last five frames.
    frames = [marked(96, 80, *([(20, 10, 70, 70)] if i < 55 else []), level=60 + i) for i in range(60)]
    stream = TensorStream(torch.from_numpy(np.stack(frames)), Fraction(25))
    source = SimpleNamespace(
        stream=stream, fps=Fraction(25), size=(96, 80), name="clip", sha256="3", has_alpha=False, notes=()
    )
    plan = BuildPlan(options=NO_MARGIN, cycle="loop")
    avatar, _ = make_avatar(RunContext(), tiny_model, source, plan, tools, tmp_path / "avatars")
    out, ctx = spoken(tiny_model, avatar, tone(2.4))
    assert len(out) == 60
    assert all(np.array_equal(a, b) == (i >= 55) for i, (a, b) in enumerate(zip(out, frames, strict=True)))
    assert "frames 55-59: no face in the avatar" in ctx.report.text()


def test_only_the_chosen_of_two_people_speaks(make, picture, tiny_model, tone):
    # Case 5.
    from talkinghead.nodes.core.faces import parse_choice

    path = picture("two.png", (10, 30, 60, 90), (80, 20, 150, 100))
    own = marked(160, 140, (10, 30, 60, 90), (80, 20, 150, 100))
    for choice, box in (("0", (10, 30, 60, 90)), ("1", (80, 20, 150, 100))):
        out, _ = spoken(tiny_model, make(path, face=parse_choice(choice))[0], tone(0.2))
        changed = (out != own).any((0, 3))
        x1, y1, x2, y2 = box
        assert changed[y1:y2, x1:x2].any()
        changed[y1:y2, x1:x2] = False
        assert not changed.any()


def test_a_thirty_fps_loop_under_25_fps_speech_keeps_its_pace(make, tiny_model, tmp_path, tone):
    # Case 15: frames are chosen by time.
    from media import Clip, read_number

    clip = Clip(width=160, height=128, fps=Fraction(30), n_frames=30).write(tmp_path / "loop.mp4")
    avatar, _, _ = make(clip, boxes=((40, 50, 120, 120),), cycle="loop")
    assert (avatar.info.fps, avatar.info.n_frames) == (30, 30)
    out, _ = spoken(tiny_model, avatar, tone(4.0))
    assert len(out) == 100
    assert [read_number(f) for f in out] == [i * 30 // 25 % 30 for i in range(100)]


def test_a_variable_rate_clip_is_baked_by_its_timestamps(make, tmp_path):
    # Case 16: steps of 0.1 s and 1/30 s.
    from media import Clip, read_number

    clip = Clip(width=160, height=128, n_frames=12, steps=(3, 1))
    path = clip.write(tmp_path / "vfr.mp4")
    avatar, _, ctx = make(path, boxes=((40, 50, 120, 120),), fps=Fraction(25), cycle="loop")
    with avatar.open() as reader:
        shown = [read_number(reader.frame(i).numpy()) for i in range(avatar.info.n_frames)]
    assert shown == [clip.shown_at(Fraction(i, 25)) for i in range(len(shown))]
    assert "variable frame rate" in ctx.report.text()


def test_the_exact_tools_are_exact(monkeypatch, tmp_path):
    from talkinghead.nodes.musetalk import exact_faces
    from talkinghead.nodes.musetalk.find_faces import open_face_tools

    monkeypatch.setattr(exact_faces, "DwposeDetector", lambda path, light: SimpleNamespace(name="dwpose-1"))
    monkeypatch.setattr(exact_faces, "BisenetParser", lambda path: SimpleNamespace(labels=path))
    (tmp_path / "faces").mkdir()
    with pytest.raises(ValueError, match="faces/dw-ll_ucoco_384.onnx .134 MB.*models download dwpose"):
        open_face_tools("exact", [tmp_path])
    (tmp_path / "faces/dw-ll_ucoco_384.onnx").touch()
    assert open_face_tools("exact", [tmp_path], with_labels=False).is_exact
    with pytest.raises(ValueError, match="models download face-parsing"):
        open_face_tools("exact", [tmp_path])
    (tmp_path / "faces/79999_iter.pth").touch()
    tools = open_face_tools("exact", [tmp_path])
    assert (tools.is_exact, tools.labels.name) == (True, "79999_iter.pth")
    assert not open_face_tools("light", [tmp_path]).is_exact
    with pytest.raises(ValueError, match="detector 'dlib' is unknown; use one of light, exact"):
        open_face_tools("dlib", [tmp_path])
