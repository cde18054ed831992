"""Rendering at a cadence: every frame is what its plan says, whatever is pulled, missing or not finite."""

import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.cadence import Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.stage_runner import exact_twin
from talkinghead.nodes.musetalk.cadence_render import CadenceRun
from talkinghead.nodes.musetalk.model import to_rgb_uint8
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.rest import RestFaces
from talkinghead.nodes.musetalk.speech import Speech, silent_tokens

FPS = Fraction(25)


@pytest.fixture(autouse=True)
def _one_thread_count():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spoken(*parts):
    """Parts (seconds, level): a tone that swells, or noise of -60 dBFS."""
    out = []
    for seconds, level in parts:
        t = np.arange(round(seconds * 16000)) / 16000
        noise = np.random.default_rng(4).normal(0, 1e-3, len(t))
        out.append(level * np.sin(1400 * t) * (1.2 + np.sin(9 * t)) if level else noise)
    return MemoryAudio(np.concatenate(out).astype(np.float32), 16000)


SPEECH = ((0.36, 0.2), (0.56, 0), (0.32, 0.3))
"""9 frames of speech, 14 of silence, 8 of speech."""


def crops(model, packet, audio, mode="2", rest=True, batch=4):
    cadence = Cadence(audio, FPS, CadenceOptions(mode, rest=rest))
    return CropStream(model, packet, Speech(model, audio, FPS), batch, cadence)


def plans(audio, mode="2", rest=True, usable=None):
    return list(Cadence(audio, FPS, CadenceOptions(mode, rest=rest)).plan(usable))


def run(stream, ctx=None, n=8):
    chunks = list(stream.chunks(ctx or RunContext(), n))
    usable = [c.placement.usable for c in chunks if c.placement]
    return torch.cat([c.frames for c in chunks]), torch.cat(usable) if usable else None


def exact_slerp(a, b, t):
    a, b = a.double().flatten(), b.double().flatten()
    la, lb = a.norm(), b.norm()
    angle = torch.arccos((a @ b / la / lb).clamp(-1, 1))
    if torch.cos(angle) > 0.9995:
        return (1 - t) * a + t * b
    mixed = torch.sin((1 - t) * angle) * a / la + torch.sin(t * angle) * b / lb
    return mixed / torch.sin(angle) * ((1 - t) * la + t * lb)


def reference(model, packet, audio, plan):
    """The crops by the definition: float64 interpolation, one frame at a time."""
    ctx, nets = RunContext(), model.build()
    speech, count = Speech(model, audio, FPS), len(plan)
    shown = packet.avatar_indices(0, count, FPS).tolist()
    with ctx.use_avatar(packet) as resident, torch.inference_mode():
        packed = resident.latents.float()
        heard = torch.cat(list(speech.windows(ctx, 8)))
        silence = silent_tokens(ctx, model)

        def draw(avatar, tokens):
            return nets.unet(packed[avatar][None], (tokens + nets.positions)[None])[0]

        def own(frame):
            return packed[shown[frame], 4:].double()

        out = []
        for p in plan:
            rest = draw(shown[p.frame], silence)
            latents = rest.double()
            if p.weight:
                a, b = (draw(shown[k], heard[k]) for k in (p.left, p.right))
                latents = exact_slerp(a, b, p.position).view(a.shape) if p.left != p.right else a.double()
                moved = own(p.left) + p.position * (own(p.right) - own(p.left))
                latents = latents + own(p.frame) - moved
                if p.weight < 1:
                    latents = exact_slerp(rest, latents, p.weight).view(a.shape)
            image = nets.vae.decode(latents.float()[None] / nets.config.vae.scaling_factor)
            out.append(to_rgb_uint8(image)[0])
    return torch.stack(out)


@pytest.mark.parametrize(("mode", "n"), [("dense", 5), ("2", 1), ("3", 5), ("adaptive", 1)])
def test_every_frame_is_what_its_plan_says(tiny_model, avatar, mode, n):
    packet, audio = avatar(n=n), spoken(*SPEECH)
    plan = plans(audio, mode)
    assert {p.stride for p in plan} >= (
        {0, 1} if mode == "dense" else {0, int(mode) if mode.isdigit() else 2}
    )
    assert sum(0 < p.weight < 1 for p in plan) >= 6
    got, usable = run(crops(tiny_model, packet, audio, mode))
    assert usable.all()
    difference = (got.int() - reference(tiny_model, packet, audio, plan).int()).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).float().mean()) < 1e-3
    # neighbours differ where they should, or the comparison would prove nothing
    assert all((got[i] != got[i + 1]).any() for i in range(8))


@pytest.mark.parametrize("mode", ["3", "adaptive"])
def test_the_result_depends_neither_on_chunks_nor_on_the_run(tiny_model, avatar, mode):
    stream = crops(tiny_model, avatar(), spoken(*SPEECH), mode)
    whole, _ = run(stream, n=1000)
    half = stream.chunks(RunContext(), 5)
    next(half)
    half.close()
    for n, overlap in ((1, True), (7, False)):
        assert torch.equal(run(stream, RunContext(overlap=overlap), n)[0], whole)


def test_batch_1_and_batch_8_agree(tiny_model, avatar):
    packet, audio = avatar(), spoken(*SPEECH)
    one, eight = (run(crops(tiny_model, packet, audio, "3", batch=b))[0].int() for b in (1, 8))
    difference = (one - eight).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).float().mean()) <= 1e-3


def test_stopping_early_leaves_no_thread(tiny_model, avatar):
    before = set(threading.enumerate())
    stream = crops(tiny_model, avatar(), spoken(*SPEECH))
    source = CompositeStream(stream, stream.avatar).chunks(RunContext(overlap=True), 4)
    next(source)
    assert set(threading.enumerate()) > before
    source.close()
    assert set(threading.enumerate()) == before


def test_dense_without_rest_is_the_plain_render_and_with_rest_its_speech(tiny_model, avatar):
    packet, audio = avatar(), spoken(*SPEECH)
    plain, _ = run(CropStream(tiny_model, packet, Speech(tiny_model, audio, FPS), 4))
    ctx = RunContext()
    assert torch.equal(run(crops(tiny_model, packet, audio, "dense", rest=False), ctx)[0], plain)
    assert "musetalk engine" in ctx.report.facts
    resting, _ = run(crops(tiny_model, packet, audio, "dense"), ctx)
    speaking = [p.frame for p in plans(audio, "dense") if p.weight == 1]
    assert 15 < len(speaking) < len(plain)
    assert torch.equal(resting[speaking], plain[speaking])
    assert not torch.equal(resting, plain)


def test_at_rest_a_still_avatar_does_not_move(tiny_model, avatar):
    audio = spoken(*SPEECH)
    plain, _ = run(CropStream(tiny_model, avatar(n=1), Speech(tiny_model, audio, FPS)))
    got, _ = run(crops(tiny_model, avatar(n=1), audio))
    at_rest = [p.frame for p in plans(audio) if p.weight == 0]
    assert len(at_rest) == 6
    assert (got[at_rest] == got[at_rest[0]]).all()
    assert (plain[at_rest] != plain[at_rest[0]]).any()  # the noise does move the network


def counted(monkeypatch, ctx, model):
    """Count the rows that UNet and decoder run on."""
    nets, rows = ctx.load(model), {"unet": 0, "decoder": 0}
    unet, decode = nets.unet.forward, nets.vae.decode

    def count_unet(latents, tokens):
        rows["unet"] += len(latents)
        return unet(latents, tokens)

    def count_decode(latents):
        rows["decoder"] += len(latents)
        return decode(latents)

    monkeypatch.setattr(nets.unet, "forward", count_unet)
    monkeypatch.setattr(nets.vae, "decode", count_decode)
    return rows


def test_silence_costs_nothing_and_keys_a_part(tiny_model, avatar, monkeypatch):
    ctx = RunContext()
    rows = counted(monkeypatch, ctx, tiny_model)
    audio = spoken((8, 0))
    assert len(run(crops(tiny_model, avatar(), audio), ctx)[0]) == 200
    assert rows == {"unet": 8, "decoder": 8}  # five avatar frames in two passes of four
    rows |= {"unet": 0, "decoder": 0}
    run(crops(tiny_model, avatar(n=1), spoken((0.96, 0.2)), "2", rest=False), ctx)
    assert rows == {"unet": 16, "decoder": 24}  # 13 keys of 24 frames
    assert ctx.report.facts["key frames"] == "13 of 24"


def test_rest_crops_are_bounded_and_drawn_the_same_again(tiny_model, avatar):
    ctx, packet, audio = RunContext(), avatar(n=9), spoken((0.8, 0))
    stream = crops(tiny_model, packet, audio)
    wanted, _ = run(stream)
    with ctx.use_avatar(packet) as resident:
        made = CadenceRun(ctx, stream, resident, stream.cadence)
        made._rest = RestFaces(ctx, tiny_model, resident, made._unet, made._decoder, 4, max_bytes=1)
        got = torch.cat([pictures for pictures, _ in made.batches()])
        assert len(made._rest._blocks) == 1
    assert torch.equal(got, wanted)
    assert len(torch.unique(wanted[:9].flatten(1), dim=0)) > 1


def test_frames_without_a_face_pass_and_nothing_is_interpolated_across(tiny_model, avatar):
    boxes = [(20, 10, 70, 70)] * 3 + [None] * 2
    packet, audio = avatar(boxes=boxes), spoken((0.8, 0.2))
    usable = [i % 5 < 3 for i in range(20)]
    ctx = RunContext()
    got, shown = run(crops(tiny_model, packet, audio, "3", rest=False), ctx)
    assert shown.tolist() == usable
    [warned] = ctx.report.warnings
    assert warned.startswith("frames 3-4, 8-9, 13-14, 18-19: no face in the avatar")
    plan = plans(audio, "3", rest=False, usable=usable)
    wanted = reference(tiny_model, packet, audio, plan)
    for i in range(20):
        if usable[i]:
            assert int((got[i].int() - wanted[i].int()).abs().max()) <= 1
    full, _ = run(CompositeStream(crops(tiny_model, packet, audio, "3"), packet))
    for i in (3, 4, 8, 9):
        assert (full[i] == torch.tensor((200, 40, 40)) + i % 5).all()


def broken_unet(monkeypatch, nets, key):
    """Let the row of key number `key` be infinite."""
    unet, done = nets.unet.forward, []

    def fail(latents, tokens):
        out = unet(latents, tokens).clone()
        if not done:
            out[key] = float("inf")
        done.append(1)
        return out

    monkeypatch.setattr(nets.unet, "forward", fail)


def test_a_key_that_is_not_finite_takes_its_neighbours_along_and_no_others(tiny_model, avatar, monkeypatch):
    packet, audio = avatar(), spoken((0.48, 0.2))
    whole, _ = run(crops(tiny_model, packet, audio, "3", rest=False))
    ctx = RunContext()
    broken_unet(monkeypatch, ctx.load(tiny_model), 2)
    got, usable = run(crops(tiny_model, packet, audio, "3", rest=False), ctx)
    lost = [4, 5, 6, 7, 8]
    assert [i for i in range(12) if not usable[i]] == lost
    assert torch.equal(got[usable], whole[usable])
    [said] = ctx.report.warnings
    assert said == "frames 4-8: the network's output is not finite, the avatar's own frame is shown"


def test_a_key_that_overflows_in_fp16_is_drawn_in_fp32(tiny_model, avatar, monkeypatch):
    packet, audio, half = avatar(), spoken((0.48, 0.2)), replace(tiny_model, precision="fp16")
    plain, _ = run(crops(half, packet, audio, "3", rest=False))
    exact, _ = run(crops(tiny_model, packet, audio, "3", rest=False))
    ctx = RunContext()
    broken_unet(monkeypatch, ctx.load(half), 2)
    got, usable = run(crops(half, packet, audio, "3", rest=False), ctx)
    assert usable.all()
    assert int((got.int() - exact.int()).abs().max()) <= 2
    assert torch.equal(got[:4], plain[:4])
    assert list(ctx.report.warnings) == ["frames 6: not finite in fp16 on eager, computed again in fp32"]


def test_a_picture_that_overflows_in_fp16_is_decoded_in_fp32(tiny_model, avatar, monkeypatch):
    packet, audio, half = avatar(), spoken((0.48, 0.2)), replace(tiny_model, precision="fp16")
    exact, _ = run(crops(tiny_model, packet, audio, "2", rest=False))
    ctx = RunContext()
    for model, row in ((half, 1), (half, 2), (exact_twin(half), 2)):
        nets = ctx.load(model)

        def fail(latents, decode=nets.vae.decode, row=row):
            out = decode(latents).clone()
            out[row] = float("nan")
            return out

        monkeypatch.setattr(nets.vae, "decode", fail)
    got, usable = run(crops(half, packet, audio, "2", rest=False), ctx)
    assert [i for i in range(12) if not usable[i]] == [2, 6, 10]
    assert int((got[usable].int() - exact[usable].int()).abs().max()) <= 2
    assert sorted(w.partition(":")[0] for w in ctx.report.warnings) == ["frames 1, 5, 9", "frames 2, 6, 10"]


def test_a_rest_that_cannot_be_drawn_shows_the_avatar(tiny_model, avatar, monkeypatch):
    packet, audio, ctx = avatar(n=1), spoken(*SPEECH), RunContext()
    decode = ctx.load(tiny_model).vae.decode

    def fail(latents):
        is_rest = (latents == latents[0]).all()  # one avatar frame, padded
        return decode(latents) + (float("nan") if is_rest else 0)

    monkeypatch.setattr(ctx.load(tiny_model).vae, "decode", fail)
    _, usable = run(crops(tiny_model, packet, audio, "dense", batch=5), ctx)
    at_rest = [p.frame for p in plans(audio, "dense") if p.weight == 0]
    assert [i for i in range(len(usable)) if not usable[i]] == at_rest
    assert any(w.startswith(f"frames {at_rest[0]}-{at_rest[-1]}: ") for w in ctx.report.warnings)


def test_two_avatars_interleaved_do_not_mix(tiny_model, avatar):
    audio = spoken(*SPEECH)
    red, blue = avatar("red", (200, 20, 20)), avatar("blue", (20, 20, 200), n=7, size=(120, 100))
    alone, _ = run(crops(tiny_model, blue, audio))
    ctx = RunContext()
    a, b = (crops(tiny_model, packet, audio).chunks(ctx, 6) for packet in (red, blue))
    mixed = []
    for _ in range(5):
        next(a)
        mixed.append(next(b).frames)
    mixed = torch.cat(mixed)
    assert torch.equal(mixed, alone[: len(mixed)])


class Memory:
    """Recalls a flat crop for the frames it is told."""

    def __init__(self, frames):
        self.frames, self.asked, self.learnt = frames, [], []

    def recall(self, frames):
        for frame in frames:
            assert frame.latents.shape == (4, 16, 16)
            assert frame.tokens.shape[1] == 32
        self.asked += [frame.plan.frame for frame in frames]
        return {number: "nine" for number in self.asked[-len(frames) :] if number in self.frames}

    def learn(self, frame, crop):
        assert crop.shape == (32, 32, 3)
        self.learnt.append(frame.plan.frame)

    def crop(self, frame, recalled):
        assert recalled == "nine"
        assert [i for i in self.asked if i < frame.plan.frame and i not in self.frames][-1] in self.learnt
        return torch.full((32, 32, 3), 9, dtype=torch.uint8), frame.plan.frame != 28

    def tell(self, report):
        report.fact("memory", len(self.asked))


def test_a_memory_of_crops_is_asked_before_the_decoder(tiny_model, avatar):
    ctx, packet, audio = RunContext(), avatar(), spoken(*SPEECH)
    stream, memory = crops(tiny_model, packet, audio), Memory({2, 3, 28})
    plain, _ = run(stream)
    with ctx.use_avatar(packet) as resident:
        made = CadenceRun(ctx, stream, resident, stream.cadence, memory)
        batches = list(made.batches())
    got, usable = torch.cat([pictures for pictures, _ in batches]), [p.usable for _, p in batches]
    drawn = [p.frame for p in plans(audio) if p.stride]
    assert memory.asked == drawn
    assert memory.learnt == [i for i in drawn if i not in memory.frames]
    for i in range(len(plain)):
        assert (got[i] == 9).all() if i in memory.frames else torch.equal(got[i], plain[i])
    assert (~torch.cat(usable)).nonzero().flatten().tolist() == [28]


def test_the_stride_mix_is_known_while_the_run_goes_on(tiny_model, avatar):
    ctx, packet = RunContext(overlap=False), avatar(n=1)
    chunks = crops(tiny_model, packet, spoken(*SPEECH)).chunks(ctx, 8)
    next(chunks)
    assert ctx.report.facts["stride mix"].startswith("every ")
    assert int(ctx.report.facts["key frames"].split(" of ")[1]) < 20
    chunks.close()


def test_the_report_says_what_was_drawn(tiny_model, avatar):
    ctx, packet = RunContext(), avatar(n=1)
    run(crops(tiny_model, packet, spoken(*SPEECH)), ctx)
    facts = ctx.report.facts
    assert facts["frames at rest"] == 6
    assert facts["stride mix"].startswith("every ")
    assert "at rest 19 %" in facts["stride mix"]
    assert facts["musetalk unet engine"] == "eager, batch 4, on cpu"
    assert ctx.report.warnings == {}
    quiet = RunContext()
    run(crops(tiny_model, packet, spoken((1, 0.001))), quiet)
    [warned] = quiet.report.warnings
    assert warned.startswith("the mouth rests in every frame: the loudest has RMS 0.00")
    silent = RunContext()
    run(crops(tiny_model, packet, MemoryAudio(np.zeros(9000, np.float32), 16000)), silent)
    assert silent.report.warnings == {}


def test_fp8_is_said_not_to_run(tiny_model, avatar):
    ctx = RunContext(report=Report())
    run(crops(replace(tiny_model, precision="fp8"), avatar(n=1), spoken((0.2, 0.2))), ctx)
    assert (
        "fp8 is for cadence dense without rest and viseme cache; with this cadence the networks run in fp16"
        in ctx.report.warnings
    )


def test_a_cadence_of_other_speech_is_refused(tiny_model, avatar):
    other = Cadence(spoken((0.3, 0.2)), FPS)
    with pytest.raises(ValueError, match="the cadence was planned for other sound"):
        CropStream(tiny_model, avatar(), Speech(tiny_model, spoken((0.4, 0.2)), FPS), 8, other)
