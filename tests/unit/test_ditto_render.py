"""Ditto's stream of faces: what the networks give, nothing lost, shifted or mixed, whatever happens to a frame."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from ditto_model_parts import tiny_modules
from ditto_render_parts import MadeUpMotion, ditto_avatar, keypoints_of

from talkinghead.nodes.core.frames import RunCancelled, RunContext, StageError
from talkinghead.nodes.core.stage_runner import exact_twin
from talkinghead.nodes.ditto import handle as handle_module
from talkinghead.nodes.ditto import render as render_module
from talkinghead.nodes.ditto.handle import DittoModel
from talkinghead.nodes.ditto.model import save_modules
from talkinghead.nodes.ditto.render import DittoCropStream
from talkinghead.nodes.ditto.stages import ditto_stage


@pytest.fixture(autouse=True)
def _one_thread_count():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ditto")
    save_modules(tiny_modules(), folder, torch.float32)
    return folder


@pytest.fixture
def model(weights, monkeypatch):
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", weights)
    return DittoModel()


@pytest.fixture
def film(model, tmp_path):
    """Return a function: number of frames -> a DittoCropStream of a small avatar."""
    packets = {}

    def make(frames=21, batch=8, model=model, live=False, memory="auto", fps=Fraction(25), **avatar):
        key = str(avatar)
        if key not in packets:
            packets[key] = ditto_avatar(tmp_path, model, f"a{len(packets)}", **avatar)
        motion = MadeUpMotion(model, packets[key], frames, fps, live)
        return DittoCropStream(model, packets[key], motion, batch, memory=memory)

    return make


def run(stream, n=8, ctx=None):
    with torch.inference_mode():
        return torch.cat([c.frames for c in stream.chunks(ctx or RunContext(), n)])


def broken(monkeypatch, ctx, model, row, value=float("nan")):
    """Let row `row` of every batch of the decoder of `model` hold `value`; returns the rows of each call."""
    decoder, calls = ctx.load(model).nets.decoder, []
    forward = decoder.forward

    def fail(features):
        calls.append(len(features))
        out = forward(features).clone()
        out[row, 0, 0, 0] = value
        return out

    monkeypatch.setattr(decoder, "forward", fail)
    return calls


def test_every_frame_is_its_volume_and_its_key_points(film, model):
    """Bit for bit: eager on a CPU is the networks themselves on the same batches."""
    stream = film(13)
    chunks = list(stream.chunks(RunContext(), 5))
    assert [c.num_frames for c in chunks] == [5, 3, 5]
    assert [c.is_last for c in chunks] == [False, False, True]
    index = torch.cat([c.placement.avatar_index for c in chunks])
    assert index.tolist() == [k % 3 for k in range(13)]
    _, stage = ditto_stage(model.build(), torch.device("cpu"))
    source, driving = keypoints_of(13)
    with stream.avatar.open() as reader, torch.inference_mode():
        rows = torch.arange(16).clamp(max=12)
        volumes = reader.volumes[rows % 3].float()
        given = {"volume": volumes, "kp_source": source[rows], "kp_driving": driving[rows]}
        wanted = [stage(**{k: v[i : i + 8] for k, v in given.items()})["crops"] for i in (0, 8)]
    assert torch.equal(torch.cat([c.frames for c in chunks]), torch.cat(wanted)[:13])
    assert len({face.numpy().tobytes() for face in torch.cat(wanted)[:13]}) == 13


def test_the_result_depends_neither_on_chunks_nor_on_the_end(film):
    whole = run(film(21))
    for n in (1, 3, 100):
        assert torch.equal(run(film(21), n), whole)
    assert torch.equal(run(film(13)), whole[:13])
    assert torch.equal(run(film(21, live=True), 5), whole)
    assert torch.equal(run(film(21), ctx=RunContext(overlap=False)), whole)


def test_batch_1_and_batch_8_agree_frame_by_frame(film):
    one, eight = (run(film(13, batch=batch)).int() for batch in (1, 8))
    difference = (one - eight).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).float().mean()) <= 1e-3
    assert all((one[i] != one[i + 1]).any() for i in range(12))


def test_frames_without_a_face_are_marked_and_listed(film):
    ctx = RunContext()
    chunks = list(film(9, faceless=(1,)).chunks(ctx, 4))
    usable = torch.cat([c.placement.usable for c in chunks])
    assert usable.tolist() == [k % 3 != 1 for k in range(9)]
    assert list(ctx.report.warnings) == [
        "frames 1, 4, 7: no face in the avatar, the avatar's own frame is shown"
    ]


def test_faces_that_are_not_finite_are_marked_and_listed(film, model, monkeypatch):
    ctx = RunContext()
    calls = broken(monkeypatch, ctx, model, 2)
    chunks = list(film(13).chunks(ctx, 8))
    assert calls == [8, 8]
    assert torch.cat([c.placement.usable for c in chunks]).tolist() == [k not in (2, 10) for k in range(13)]
    assert list(ctx.report.warnings) == [
        "frames 2, 10: the network's output is not finite, the avatar's own frame is shown"
    ]


def test_fp16_that_overflows_is_computed_again_in_fp32(film, model, monkeypatch):
    half, ctx = replace(model, precision="fp16"), RunContext()
    plain, exact = run(film(13, model=half)), run(film(13))
    broken(monkeypatch, ctx, half, 3, float("inf"))
    chunks = list(film(13, model=half).chunks(ctx, 8))
    got = torch.cat([c.frames for c in chunks])
    assert torch.cat([c.placement.usable for c in chunks]).all()
    for k in range(13):
        assert torch.equal(got[k], (exact if k in (3, 11) else plain)[k])
    assert not torch.equal(plain[3], exact[3])  # or the choice would prove nothing
    assert list(ctx.report.warnings) == ["frames 3, 11: not finite in fp16 on eager, computed again in fp32"]
    broken(monkeypatch, ctx, exact_twin(half), 3)
    chunks = list(film(13, model=half).chunks(ctx, 8))
    assert not torch.cat([c.placement.usable for c in chunks])[[3, 11]].any()


def test_a_stop_ends_the_motion_too_and_the_next_run_works(film):
    asked = itertools.count()
    stream = film(40, batch=4)
    ctx = RunContext(is_cancelled=lambda: next(asked) >= 2)
    with pytest.raises(RunCancelled):
        run(stream, 4, ctx)
    assert stream.motion.seen["begun"] == stream.motion.seen["ended"] == 1
    early = stream.chunks(RunContext(), 4)
    next(early)
    early.close()
    assert stream.motion.seen["begun"] == stream.motion.seen["ended"] == 2
    assert len(run(stream, 4)) == 40


def test_what_is_ready_ahead_does_not_grow_with_the_length(film, monkeypatch):
    monkeypatch.setattr(render_module, "POSES_AHEAD", 16)
    for frames in (60, 500):
        stream = film(frames, batch=4)
        chunks = stream.chunks(RunContext(), 4)
        next(chunks)
        deadline = time.monotonic() + 5
        while stream.motion.seen["batches"] < 5 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        # The one that is shown, four that are ready.
        assert stream.motion.seen["batches"] == 5
        chunks.close()


def test_an_error_of_the_motion_says_where(film, monkeypatch):
    stream = film(21)
    monkeypatch.setattr(MadeUpMotion, "keypoints", fail_after_one(MadeUpMotion.keypoints))
    with pytest.raises(StageError, match="Ditto motion: no speech left"):
        run(stream)


def fail_after_one(real):
    def keypoints(self, ctx, n, cadence=None):
        yield from itertools.islice(real(self, ctx, n), 1)
        raise ValueError("no speech left")

    return keypoints


def test_what_does_not_belong_together_is_refused(film, model, tmp_path):
    stream = film()
    other = ditto_avatar(tmp_path, model, "other", n=2)
    for kwargs, words in (
        ({"batch": 0}, r"batch 0 is outside 1\.\.64"),
        ({"memory": "disk"}, "memory 'disk' is unknown; use one of auto, device, host"),
        ({"model": replace(model, precision="fp16")}, "another model"),
        ({"avatar": other}, "made for avatar 'a0', not 'other'"),
    ):
        given = {"model": model, "avatar": stream.avatar, "motion": stream.motion} | kwargs
        with pytest.raises(ValueError, match=words):
            DittoCropStream(**given)
