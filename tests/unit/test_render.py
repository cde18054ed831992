"""The neural stage and the composite: nothing lost, shifted or mixed, whatever happens to a frame."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.frames import RunCancelled, RunContext, StageError, TensorStream
from talkinghead.nodes.core.packet import open_packet
from talkinghead.nodes.musetalk.bake import build_avatar
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech


def crops(model, packet, audio, batch=8, fps=Fraction(25)):
    return CropStream(model, packet, Speech(model, audio, fps), batch)


def run(stream, n=8, ctx=None):
    return torch.cat([c.frames for c in stream.chunks(ctx or RunContext(), n)])


@pytest.fixture(autouse=True)
def _one_thread_count():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_no_frame_is_lost_in_a_tail_batch(tiny_model, avatar, tone):
    stream = crops(tiny_model, avatar(), tone(13.94), batch=16)
    assert stream.info.n_frames == 349
    assert len(run(stream)) == 349


def test_the_result_depends_neither_on_chunks_nor_on_the_end(tiny_model, avatar, tone):
    packet = avatar()
    whole = run(crops(tiny_model, packet, tone(1.0)))
    for n in (1, 3, 8, 100):
        assert torch.equal(run(crops(tiny_model, packet, tone(1.0)), n), whole)
    assert torch.equal(run(crops(tiny_model, packet, tone(1.0))), whole)  # two runs, bit for bit


def test_batch_1_and_batch_8_agree_frame_by_frame(tiny_model, avatar, tone):
    # thirteen frames, so that a batch-local index into a global table shows
    packet, audio = avatar(), tone(0.52)
    one = run(crops(tiny_model, packet, audio, batch=1)).int()
    eight = run(crops(tiny_model, packet, audio, batch=8)).int()
    assert len(one) == 13
    difference = (one - eight).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).float().mean()) <= 1e-3
    # the frames do differ from each other, or the comparison would prove nothing
    assert all((one[i] != one[i + 1]).any() for i in range(12))


def test_only_the_mouth_changes_and_every_frame_is_the_right_one(tiny_model, avatar, tone):
    packet = avatar(colour=(10, 120, 30))
    frames = run(CompositeStream(crops(tiny_model, packet, tone(1.0)), packet)).numpy()
    assert frames.shape == (25, 80, 96, 3)
    for i, frame in enumerate(frames):
        background = np.array((10, 120, 30)) + i % 5
        assert (frame[:40] == background).all()
        assert (frame[:, :20] == background).all()
        assert (frame[40:70, 20:70] != background).any()


def test_frames_without_a_face_pass_through_and_are_listed(tiny_model, avatar, tone):
    boxes = [(20, 10, 70, 70)] * 2 + [None] * 3
    packet = avatar(boxes=boxes)
    ctx = RunContext()
    frames = run(CompositeStream(crops(tiny_model, packet, tone(0.4)), packet), ctx=ctx).numpy()
    assert len(frames) == 10
    for i in (2, 3, 4, 7, 8, 9):
        assert (frames[i] == np.array((200, 40, 40)) + i % 5).all()
    for i in (0, 1, 5, 6):
        assert (frames[i] != np.array((200, 40, 40)) + i % 5).any()
    [warned] = ctx.report.warnings
    assert warned.startswith("frames 2-4, 7-9: no face")


def test_non_finite_output_never_turns_black(tiny_model, avatar, tone, monkeypatch):
    packet = avatar()
    ctx = RunContext()
    nets = ctx.load(tiny_model)
    forward = nets.forward

    def broken(latents, tokens):
        out = forward(latents, tokens)
        out[5] = float("nan")
        return out

    monkeypatch.setattr(nets, "forward", broken)
    frames = run(CompositeStream(crops(tiny_model, packet, tone(0.32)), packet), ctx=ctx).numpy()
    assert (frames[5] == np.array((200, 40, 40)) + 0).all()
    assert (frames[4] != np.array((200, 40, 40)) + 4).any()
    assert any("frames 5" in w and "finite" in w for w in ctx.report.warnings)


def test_two_avatars_interleaved_do_not_mix(tiny_model, avatar, tone):
    red, blue = avatar("red", (200, 20, 20)), avatar("blue", (20, 20, 200), n=7, size=(120, 100))
    alone = run(CompositeStream(crops(tiny_model, blue, tone(0.6)), blue))
    ctx = RunContext()
    a = CompositeStream(crops(tiny_model, red, tone(0.6)), red).chunks(ctx, 4)
    b = CompositeStream(crops(tiny_model, blue, tone(0.6)), blue).chunks(ctx, 4)
    mixed = []
    for _ in range(4):
        next(a)
        mixed.append(next(b).frames)
    assert torch.equal(torch.cat(mixed), alone)
    outside = torch.cat(mixed)[:, :40]
    assert int(outside[..., 0].max()) < 40
    assert int(outside[..., 2].min()) > 190


def test_switching_avatars_equals_a_fresh_start(tiny_model, avatar, tone):
    second = avatar("b", (20, 90, 200), n=7, size=(120, 100), boxes=[(30, 20, 90, 95)] * 7)
    fresh = run(CompositeStream(crops(tiny_model, second, tone(0.4)), second))
    ctx = RunContext()
    first = avatar("a", n=10, size=(96, 96), boxes=[(20, 10, 80, 90)] * 10)
    run(CompositeStream(crops(tiny_model, first, tone(0.4)), first), ctx=ctx)
    assert torch.equal(run(CompositeStream(crops(tiny_model, second, tone(0.4)), second), ctx=ctx), fresh)


def test_a_stream_keeps_no_state_between_runs(tiny_model, avatar, tone):
    packet = avatar()
    stream = CompositeStream(crops(tiny_model, packet, tone(0.5)), packet)
    first = run(stream)
    half = stream.chunks(RunContext(), 3)
    next(half)
    half.close()
    assert torch.equal(run(stream), first)
    other = CompositeStream(crops(tiny_model, packet, tone(0.5, hz=300.0)), packet)
    assert not torch.equal(run(other), first)


def test_cancel_stops_between_chunks(tiny_model, avatar, tone):
    asked = []
    ctx = RunContext(is_cancelled=lambda: asked.append(1) or len(asked) > 6)
    packet = avatar()
    with pytest.raises(RunCancelled):
        run(CompositeStream(crops(tiny_model, packet, tone(20.0)), packet), ctx=ctx)


def test_wrong_pairs_are_refused_before_any_work(tiny_model, avatar, tone, monkeypatch):
    red, blue = avatar("red"), avatar("blue", (0, 0, 90))
    stream = crops(tiny_model, red, tone(0.2))
    with pytest.raises(ValueError, match="rendered for avatar 'red', not 'blue'"):
        CompositeStream(stream, blue)
    with pytest.raises(ValueError, match="no face placement"):
        CompositeStream(TensorStream(torch.zeros(1, 8, 8, 3, dtype=torch.uint8), Fraction(25)), red)
    with pytest.raises(ValueError, match="batch 0"):
        crops(tiny_model, red, tone(0.2), batch=0)
    with pytest.raises(ValueError, match="mask mode 'face'"):
        CompositeStream(stream, red, "face")
    other = build_other_weights_packet(red)
    with pytest.raises(ValueError, match="was built with weights ffff"):
        crops(tiny_model, other, tone(0.2))
    for shape, named in (((8, 5, 5), "8x5x5"), ((2, 16, 16), "2x16x16")):
        with pytest.raises(ValueError, match=f"has latents of {named}, the model takes 8x16x16"):
            crops(tiny_model, with_latents(blue, shape), tone(0.2))


def with_latents(packet, shape):
    import hashlib
    import json

    from safetensors.torch import save_file

    file, manifest = packet.path / "latents.safetensors", packet.path / "packet.json"
    save_file({"latents": torch.zeros(packet.info.n_frames, *shape, dtype=torch.float16)}, file)
    facts = json.loads(manifest.read_text("utf-8"))
    entry = {"size": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    facts["files"][file.name] = entry
    manifest.write_text(json.dumps(facts), "utf-8")
    return open_packet(packet.path)


def build_other_weights_packet(packet):
    import json

    manifest = json.loads((packet.path / "packet.json").read_text("utf-8"))
    manifest["model"]["sha256"] = "f" * 64
    (packet.path / "packet.json").write_text(json.dumps(manifest), "utf-8")
    return open_packet(packet.path)


def test_an_avatar_rebuilt_during_a_session_is_noticed(tiny_model, avatar, tone):
    stream = crops(tiny_model, avatar(), tone(0.2))
    avatar(colour=(1, 2, 3))
    with pytest.raises(StageError, match="rebuilt after it was loaded"):
        run(stream)


def test_building_needs_a_face_and_fitting_counts(tiny_model, tmp_path):
    frames = np.zeros((2, 64, 64, 3), np.uint8)

    def make(boxes):
        return build_avatar(RunContext(), tiny_model, frames, boxes, tmp_path, "x", Fraction(25), "loop")

    with pytest.raises(ValueError, match="no frame has a face; give a picture"):
        make([None, None])
    with pytest.raises(ValueError, match="2 frames and 1 boxes"):
        make([(0, 0, 64, 64)])
    with pytest.raises(ValueError, match="outside|leaves"):
        make([(100, 100, 200, 200)] * 2)
    assert list(tmp_path.iterdir()) == []


def test_lower_half_and_hard_seam(tiny_model, avatar, tone):
    packet = avatar(n=1, boxes=[(20, 10, 70, 70)])
    stream = crops(tiny_model, packet, tone(0.2))
    hard = run(CompositeStream(stream, packet, "lower half", "none")).numpy()
    assert (hard[:, :40] == (200, 40, 40)).all()
    assert (hard[:, 40:70, 20:70] != (200, 40, 40)).any(axis=3).mean() > 0.9
    soft = run(CompositeStream(stream, packet)).numpy()
    outside = np.ones(soft.shape[1:3], bool)
    outside[40:70, 20:70] = False
    assert (soft[:, outside] == (200, 40, 40)).all()
