"""From pictures to a Ditto packet: features, crops, smoothing, frames without a face, content keys, what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import cv2
import faces as pictures
import numpy as np
import pytest
import torch
from ditto_model_parts import tiny_modules
from packet_parts import ditto_info, ditto_tensors, info, tensors

from talkinghead.nodes.avatars.names import check_new_id, demo_ids, demo_of
from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.frames import RunCancelled, RunContext, TensorStream
from talkinghead.nodes.core.packet import DittoReader, list_packets, write_packet
from talkinghead.nodes.ditto import bake as bake_module
from talkinghead.nodes.ditto.avatar_options import DittoAvatarOptions
from talkinghead.nodes.ditto.bake import bake, check_avatar, smoothed_poses
from talkinghead.nodes.ditto.crop import (
    CropMatrices,
    crop_matrices,
    crop_picture,
    face_box,
    network_input,
)
from talkinghead.nodes.ditto.given_faces import crop_of_box, given
from talkinghead.nodes.ditto.make_avatar import DittoPlan, content_key, make_avatar
from talkinghead.nodes.ditto.register import DittoFaceTools, Registered
from talkinghead.nodes.musetalk.render import check_avatar as check_for_musetalk

SIZE = (96, 80)
RAW = DittoAvatarOptions(smoothing=1)


def noise(n, size=SIZE):
    """Pictures that all differ, uint8 (n, H, W, 3)."""
    return np.random.default_rng(n).integers(0, 256, (n, size[1], size[0], 3), dtype=np.uint8)


def placed(n, found=None):
    """A registration, named double of `register`: crops that move, some turned."""
    c2o = np.stack([crop_of_box((20 + i % 5, 15, 60 + i % 5, 65)) for i in range(n)])
    found = np.ones(n, bool) if found is None else np.array(found, bool)
    eyes = np.linspace(0.1, 0.9, 2 * n, dtype=np.float32).reshape(n, 2)
    return Registered(c2o, found, eyes, np.zeros((n, 6), np.float32), ("a note",))


def baked(model, root, frames, seen=None, options=RAW, ctx=None, name="x", **more):
    stream = TensorStream(torch.from_numpy(frames), Fraction(25))
    seen = seen or placed(len(frames))
    return bake(ctx or RunContext(), model, stream, lambda _: seen, root, name, options=options, **more)


def test_features_are_those_of_the_networks(ditto_model, tmp_path):
    frames, seen, nets = noise(11), placed(11), tiny_modules().nets
    ctx = RunContext()
    packet = baked(ditto_model, tmp_path, frames, seen, ctx=ctx)
    assert "a note" in ctx.report.text()
    check_avatar(ditto_model, packet)
    assert packet.info.options == RAW.to_dict()
    with packet.open() as reader:
        assert isinstance(reader, DittoReader)
        for i in (0, 7, 8, 10):  # whole and cut batches
            o2c = np.linalg.inv(seen.c2o[i].astype(np.float64)).astype(np.float32)
            crop = crop_picture(frames[i], CropMatrices(o2c, seen.c2o[i]), extend=True)
            picture = torch.from_numpy(network_input(crop, 64))
            assert torch.equal(reader.frame(i), torch.from_numpy(frames[i]))
            assert torch.allclose(reader.volume(i).float(), nets.appearance(picture)[0], atol=2e-3)
            for name, rows in nets.motion(picture)._asdict().items():
                assert torch.allclose(reader.pose[name][i], rows[0], atol=1e-5), name
        assert np.array_equal(reader.c2o.numpy(), seen.c2o)
        assert np.array_equal(reader.eye_open.numpy(), seen.eye_open)


def test_beyond_the_frame_its_edge_goes_on():
    picture = np.zeros((40, 40, 3), np.uint8)
    picture[0] = 200
    shift = np.array([[1, 0, 0], [0, 1, 8], [0, 0, 1]], np.float32)
    matrices = CropMatrices(shift, np.linalg.inv(shift))
    assert (crop_picture(picture, matrices, 40, extend=True)[:9] == 200).all()
    assert (crop_picture(picture, matrices, 40)[:8] == 0).all()


def test_what_a_frame_gets_does_not_depend_on_the_others(ditto_model, tmp_path):
    frames, seen = noise(9), placed(9)
    with baked(ditto_model, tmp_path, frames, seen).open() as whole:
        for start, end in ((0, 1), (6, 9)):
            part = Registered(
                seen.c2o[start:end], seen.found[start:end], seen.eye_open[start:end], seen.eye_ball[start:end]
            )
            with baked(ditto_model, tmp_path, frames[start:end], part, name=f"p{start}").open() as reader:
                assert torch.equal(reader.volumes, whole.volumes[start:end])
                assert all(torch.equal(rows, whole.pose[k][start:end]) for k, rows in reader.pose.items())


def test_poses_of_a_clip_are_averaged_but_never_across_a_gap():
    series = {"yaw": torch.arange(10.0)[:, None], "kp": torch.arange(20.0).reshape(10, 2)}
    found = np.array([1, 1, 1, 0, 0, 1, 1, 1, 1, 1], bool)
    out = smoothed_poses(series, found, 3)
    assert out["yaw"][:3, 0].tolist() == [0.5, 1.0, 1.5]
    assert out["yaw"][5:, 0].tolist() == [5.5, 6.0, 7.0, 8.0, 8.5]
    assert torch.equal(out["yaw"][3:5], series["yaw"][3:5])
    assert out["kp"][0].tolist() == [1.0, 2.0]
    assert all(torch.equal(rows, series[k]) for k, rows in smoothed_poses(series, found, 1).items())


def test_a_clip_is_smoothed_over_thirteen_frames_and_a_still_is_not(ditto_model, tmp_path):
    frames = noise(15)
    with (
        baked(ditto_model, tmp_path, frames, name="raw").open() as raw,
        baked(ditto_model, tmp_path, frames, options=None).open() as reader,
        baked(ditto_model, tmp_path, frames[:1], options=None, name="still").open() as still,
    ):
        for name, rows in raw.pose.items():
            assert torch.allclose(reader.pose[name][7], rows[1:14].mean(0), atol=1e-5), name
            assert torch.equal(still.pose[name], rows[:1])
        assert torch.equal(reader.volumes, raw.volumes)


@pytest.mark.parametrize("gap", [{4, 5, 6}, {0, 1}, {9, 10, 11}])
def test_frames_without_a_face_stay_in_place_with_what_the_nearest_has(ditto_model, tmp_path, gap):
    frames, ctx = noise(12), RunContext()
    packet = baked(ditto_model, tmp_path, frames, placed(12, [i not in gap for i in range(12)]), ctx=ctx)
    assert packet.info.n_frames == 12
    with packet.open() as reader:
        assert [i for i in range(12) if not reader.found[i]] == sorted(gap)
        assert np.array_equal(np.stack([reader.frame(i).numpy() for i in range(12)]), frames)
        known = [i for i in range(12) if i not in gap]
        for i in gap:
            near = min(known, key=lambda k: abs(k - i))
            assert torch.equal(reader.volume(i), reader.volume(near))
            assert torch.equal(reader.c2o[i], reader.c2o[near])
            assert torch.equal(reader.eye_open[i], reader.eye_open[near])
            assert all(torch.equal(rows[i], rows[near]) for rows in reader.pose.values())
    assert f"no face in frames {min(gap)}-{max(gap)}: shown as they are" in ctx.report.text()


def test_missing_faces_can_be_held_or_refused(ditto_model, tmp_path):
    seen = placed(4, [True, False, False, True])
    with baked(ditto_model, tmp_path, noise(4), seen, replace(RAW, missing="hold")).open() as reader:
        assert reader.found.all()
        assert torch.equal(reader.volume(1), reader.volume(0))
        assert torch.equal(reader.volume(2), reader.volume(3))
    with pytest.raises(ValueError, match="frames 1-2 have no face; cut them"):
        baked(ditto_model, tmp_path, noise(4), seen, replace(RAW, missing="error"), name="y")
    with pytest.raises(ValueError, match="no frame has a face"):
        baked(ditto_model, tmp_path, noise(4), placed(4, [False] * 4), name="y")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_crop_that_left_the_picture_is_a_frame_without(ditto_model, tmp_path):
    seen = placed(3)
    seen.c2o[1, 0, 2] += 400
    with baked(ditto_model, tmp_path, noise(3), seen).open() as reader:
        assert reader.found.tolist() == [True, False, True]
        assert torch.equal(reader.c2o[1], reader.c2o[0])
    seen.c2o[:, 0, 2] += 400
    with pytest.raises(ValueError, match="no frame has a face: the crop of c2o does not touch"):
        baked(ditto_model, tmp_path, noise(3), seen, name="y")


def test_numbers_that_are_none_are_frames_without_a_face(ditto_model, tmp_path, monkeypatch):
    frames = noise(9)
    frames[3] = frames[8] = 255
    real = bake_module._network_input

    def broken(frame, c2o, side):
        picture = real(frame, c2o, side)
        return np.full_like(picture, np.nan) if (frame == 255).all() else picture

    monkeypatch.setattr(bake_module, "_network_input", broken)
    ctx = RunContext()
    with baked(ditto_model, tmp_path, frames, ctx=ctx).open() as reader:
        assert [i for i in range(9) if not reader.found[i]] == [3, 8]
        assert torch.equal(reader.volume(8), reader.volume(7))
    assert "no finite numbers for frames 3, 8" in ctx.report.text()
    with pytest.raises(ValueError, match="no finite numbers for frames 0; use precision fp32"):
        baked(ditto_model, tmp_path, frames[3:4], name="y")


def test_a_cancel_leaves_nothing(ditto_model, tmp_path):
    asked = []
    ctx = RunContext(is_cancelled=lambda: bool(asked.append(1)) or len(asked) > 3)
    with pytest.raises(RunCancelled):
        baked(ditto_model, tmp_path, noise(30), ctx=ctx)
    assert list(tmp_path.iterdir()) == []
    baked(ditto_model, tmp_path, noise(2))


@pytest.mark.parametrize("size", [(97, 81), (33, 64), (300, 20)])
def test_any_size_keeps_its_own(ditto_model, tmp_path, size):
    with baked(ditto_model, tmp_path, noise(2, size)).open() as reader:
        assert tuple(reader.frame(0).shape) == (size[1], size[0], 3)


def test_a_large_face_is_said_to_look_soft(ditto_model, tmp_path):
    drawn = ditto_model.config.nets.render_size
    seen, ctx = placed(1), RunContext()
    seen.c2o[0, :2, :2] = np.eye(2) * drawn * 3 / 512
    baked(ditto_model, tmp_path, noise(1), seen, ctx=ctx)
    assert f"{drawn * 3} px, 3.0 times the {drawn} px" in ctx.report.text()


def points():
    """68 landmarks of a turned face, somewhere."""
    rng = np.random.default_rng(3)
    turn = np.array([[0.9, -0.4], [0.4, 0.9]])
    return rng.uniform(-30, 30, (68, 2)) @ turn.T + (200, 150)


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize(("scale", "shift"), [(2.3, (0.0, -0.125)), (1.8, (0.1, -0.2)), (3.1, (-0.3, 0.05))])
def test_other_crops_follow_from_the_registered_one(scale, shift, rotate):
    marks = points()
    registered = crop_matrices(face_box(marks)).c2o[None]
    wanted = crop_matrices(face_box(marks, scale, shift), rotate=rotate).c2o
    options = DittoAvatarOptions(scale, *shift, rotate=rotate)
    assert np.allclose(options.place(registered)[0], wanted, atol=2e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_scale": 1.0}, {"crop_scale": float("nan")}, {"shift_y": 0.6}, {"smoothing": 4}, {"smoothing": 0},
        {"missing": "drop"}, {"background": "blue-ish"}, {"rotate": 1}, {"smoothing": True},
    ],
)  # fmt: skip
def test_options_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("background", "colour")):
        DittoAvatarOptions(**wrong)


def test_options_survive_a_packet():
    options = DittoAvatarOptions(2.0, 0.1, 0.2, False, 5, "hold", "green")
    assert DittoAvatarOptions.from_dict(options.to_dict()) == options
    with pytest.raises(ValueError, match="do not know expand"):
        DittoAvatarOptions.from_dict({"expand": 1.5})


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "face.png"
    frame, _ = pictures.portrait(320, 240)
    path.write_bytes(cv2.imencode(".png", frame[..., ::-1])[1].tobytes())
    return path


@pytest.fixture(scope="module")
def tools():
    return DittoFaceTools(pictures.light_detector())


def test_a_picture_is_found_registered_and_built_once(ditto_model, tools, picture, tmp_path):
    ctx, plan = RunContext(), DittoPlan()
    packet, new = make_avatar(ctx, ditto_model, plan.open(picture), plan, tools, tmp_path / "a")
    assert new
    assert (packet.info.engine, packet.info.cycle, packet.info.id[:5]) == ("ditto", "still", "auto-")
    assert "crop of" in ctx.report.text()
    again = make_avatar(ctx, ditto_model, plan.open(picture), plan, tools, tmp_path / "a")
    assert again == (packet, False)
    boxed = DittoPlan(boxes=((110, 60, 210, 200),))
    make_avatar(ctx, ditto_model, boxed.open(picture), boxed, None, tmp_path / "a", "boxed")
    assert len(list_packets([tmp_path / "a"])) == 2
    with pytest.raises(ValueError, match="or a detector that finds it"):
        make_avatar(ctx, ditto_model, plan.open(picture), plan, None, tmp_path / "a")


def test_every_dial_is_in_the_content_key(ditto_model, tools, picture):
    def key(tools=tools, **plan):
        plan = DittoPlan(**plan)
        return content_key(ditto_model, plan.open(picture), plan, tools)

    options = [
        {"crop_scale": 2.0},
        {"shift_x": 0.1},
        {"rotate": False},
        {"smoothing": 5},
        {"missing": "hold"},
    ]
    other = DittoFaceTools(replace_name(tools.light, "other"))
    keys = [
        key(), key(fps=Fraction(30)), key(size=(80, 70)), key(cycle="loop"), key(tools=other),
        key(boxes=((1, 2, 30, 40),)), *(key(options=DittoAvatarOptions(**o)) for o in options),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key(boxes=((1, 2, 30, 40),), tools=None) == keys[5]


def replace_name(detector, name):
    other = type("Other", (), {"detect": detector.detect})()
    other.name = name
    return other


def test_a_given_box_stands_for_the_crop_of_its_landmarks(tools):
    frame = pictures.presenter()
    (face,) = tools.light.detect(frame)
    found, boxed = crop_matrices(face_box(face.points)).c2o, crop_of_box(pictures.SOURCE_BOX)
    side = np.linalg.norm(found[:2, 0]) * 512
    assert np.linalg.norm(boxed[:2, 0]) * 512 == pytest.approx(side, rel=0.03)
    middle = np.array([256, 256, 1])
    assert np.abs((boxed - found)[:2] @ middle).max() < 0.02 * side
    with pytest.raises(ValueError, match="3 frames and 2 boxes"):
        given([None, (1, 2, 3, 4)])(np.zeros((3, 4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="no frame has a face"):
        given([None])(np.zeros((3, 4, 4, 3), np.uint8))


def test_demos_of_both_engines_have_names_of_their_own(ditto_model, tmp_path):
    assert [i for i in demo_ids() if demo_of(i)[0] == "ditto"] == [
        "demo-ditto", "demo_loop-ditto", "demo_loop2-ditto",
    ]  # fmt: skip
    packet = resolve_avatar(RunContext(), "demo-ditto", [tmp_path])
    check_avatar(ditto_model, packet)
    assert (packet.info.engine, packet.info.size) == ("ditto", (512, 512))
    assert resolve_avatar(RunContext(), "demo-ditto", [tmp_path]) == packet
    with pytest.raises(ValueError, match="'Demo-Ditto' is that of a demo"):
        check_new_id("Demo-Ditto")


def test_a_packet_of_another_engine_or_model_is_told_what_to_do(ditto_model, tiny_model, tmp_path):
    face = write_packet(tmp_path, info("demo"), tensors())
    with pytest.raises(
        ValueError, match="'demo' is for MuseTalk, this model is Ditto; load 'demo-ditto' instead"
    ):
        check_avatar(ditto_model, face)
    head = write_packet(tmp_path, ditto_info("anna"), ditto_tensors())
    with pytest.raises(ValueError, match="'anna' is for Ditto, this model is MuseTalk; build one"):
        check_for_musetalk(tiny_model, head)
    with pytest.raises(ValueError, match="was built with weights 0, the model has"):
        check_avatar(ditto_model, head)
    ours = replace(ditto_info("bob"), model={"sha256": ditto_model.identity})
    with pytest.raises(ValueError, match=r"has f_s of 2x3x4x4, the model takes 4x4x16x16"):
        check_avatar(ditto_model, write_packet(tmp_path, ours, ditto_tensors()))
    with pytest.raises(ValueError, match="has exp of 63, the model takes 15"):
        check_avatar(ditto_model, write_packet(tmp_path, ours, ditto_tensors(volume=(4, 4, 16, 16))))
