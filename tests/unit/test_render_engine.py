"""MuseTalk through the engine: equal to the plain networks, and never a black frame when fp16 overflows."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from talkinghead.nodes.avatars.engines import build_engine
from talkinghead.nodes.core import engine as engine_module
from talkinghead.nodes.core.engine_build import measure_parity
from talkinghead.nodes.core.engine_spec import EngineSkipped
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.host_copy import one_ahead
from talkinghead.nodes.core.stage_runner import exact_twin
from talkinghead.nodes.musetalk.engine import (
    MuseTalkStage,
    contiguous_weights,
    musetalk_spec,
    musetalk_stage,
)
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech


@pytest.fixture(autouse=True)
def _one_thread_count():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def crops(model, packet, audio, batch=8):
    return CropStream(model, packet, Speech(model, audio, Fraction(25)), batch)


def run(stream, ctx=None, n=8):
    chunks = list(stream.chunks(ctx or RunContext(), n))
    usable = [c.placement.usable for c in chunks if c.placement]
    return torch.cat([c.frames for c in chunks]), torch.cat(usable) if usable else None


def broken(monkeypatch, ctx, model, row, value=float("nan")):
    """Let row `row` of every batch of `model` be `value`; returns the calls, one per batch."""
    nets, calls = ctx.load(model), []
    forward = nets.forward

    def fail(latents, tokens):
        calls.append(len(latents))
        out = forward(latents, tokens).clone()
        out[row, 0, 0, 0] = value
        return out

    monkeypatch.setattr(nets, "forward", fail)
    return calls


def test_the_engine_gives_what_the_networks_give(tiny_model, avatar, tone):
    """Bit for bit: eager on a CPU is the networks themselves on the same batches."""
    packet, audio = avatar(), tone(0.52)
    got, _ = run(crops(tiny_model, packet, audio))
    nets, ctx = tiny_model.build(), RunContext()
    with ctx.use_avatar(packet) as resident, torch.inference_mode():
        wanted = []
        for start, tokens in zip(
            (0, 8), Speech(tiny_model, audio, Fraction(25)).windows(ctx, 8), strict=True
        ):
            latents = resident.latents[
                torch.from_numpy(packet.avatar_indices(start, len(tokens), Fraction(25)))
            ].float()
            pad = [8 - len(tokens), -1, -1]
            tokens = torch.cat([tokens, tokens[-1:].expand(*pad)])
            latents = torch.cat([latents, latents[-1:].expand(*pad, -1)])
            wanted.append(nets.predict(latents, tokens))
    assert torch.equal(got, torch.cat(wanted)[:13])


def test_the_report_says_what_ran_each_time(tiny_model, avatar, tone):
    stream = crops(tiny_model, avatar(), tone(0.2), batch=4)
    for _ in range(2):
        ctx = RunContext()
        run(stream, ctx)
        run(stream, ctx)
        assert ctx.report.facts["musetalk engine"] == "eager, batch 4, on cpu"
        assert ctx.report.warnings == {}


def test_fp16_that_overflows_is_computed_again_in_fp32(tiny_model, avatar, tone, monkeypatch):
    """Case 30."""
    packet, audio = avatar(), tone(0.52)
    half = replace(tiny_model, precision="fp16")
    exact, _ = run(crops(tiny_model, packet, audio))
    plain, _ = run(crops(half, packet, audio))
    ctx = RunContext()
    calls = broken(monkeypatch, ctx, half, 3, float("inf"))
    got, usable = run(crops(half, packet, audio), ctx)
    assert len(calls) == 2
    assert usable.all()
    for i in range(13):
        if i in (3, 11):  # fp32 on what fp16 heard: one level beside fp32 throughout
            assert int((got[i].int() - exact[i].int()).abs().max()) <= 1
            assert not torch.equal(got[i], plain[i])
        else:
            assert torch.equal(got[i], plain[i])
    assert list(ctx.report.warnings) == ["frames 3, 11: not finite in fp16 on eager, computed again in fp32"]
    assert ctx.report.facts["musetalk engine"].startswith("eager, batch 8")
    assert (plain != exact).any()  # or the choice would prove nothing


def test_frames_that_fp32_cannot_save_pass_through(tiny_model, avatar, tone, monkeypatch):
    packet, ctx = avatar(), RunContext()
    half = replace(tiny_model, precision="fp16")
    broken(monkeypatch, ctx, half, 3)
    calls = broken(monkeypatch, ctx, exact_twin(half), 3)
    stream = crops(half, packet, tone(0.32))
    frames = run(CompositeStream(stream, packet), ctx)[0].numpy()
    assert len(calls) == 1
    assert (frames[3] == (203, 43, 43)).all()
    assert (frames[2] != (202, 42, 42)).any()
    [said] = ctx.report.warnings
    assert said.startswith("frames 3: the network's output is not finite")


def test_fp32_on_torch_is_not_tried_twice(tiny_model, avatar, tone, monkeypatch):
    ctx = RunContext()
    calls = broken(monkeypatch, ctx, tiny_model, 0)
    run(crops(tiny_model, avatar(), tone(0.32)), ctx)
    assert len(calls) == 1


def test_faceless_frames_are_not_worth_a_second_run(tiny_model, avatar, tone, monkeypatch):
    packet = avatar(boxes=[None, *[(20, 10, 70, 70)] * 4])
    half, ctx = replace(tiny_model, precision="fp16"), RunContext()
    broken(monkeypatch, ctx, half, 0)
    twin = broken(monkeypatch, ctx, exact_twin(half), 0)
    run(crops(half, packet, tone(0.2)), ctx)
    assert twin == []
    assert [w.partition(":")[0] for w in ctx.report.warnings] == ["frames 0"]


def test_no_memory_for_fp32_is_said_once_and_the_run_goes_on(tiny_model, avatar, tone, monkeypatch):
    packet, half, ctx = avatar(), replace(tiny_model, precision="fp16"), RunContext()
    broken(monkeypatch, ctx, half, 3)
    load, tried = ctx.load, []

    def full(handle):
        if handle.precision == "fp32":
            tried.append(handle)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return load(handle)

    monkeypatch.setattr(ctx, "load", full)
    _, usable = run(crops(half, packet, tone(0.64)), ctx)
    assert (~usable).nonzero()[:, 0].tolist() == [3, 11]
    assert len(tried) == 1
    assert sorted(ctx.report.warnings)[1].startswith("no memory for fp32")


def test_an_engine_that_is_taken_away_in_the_middle_comes_back(tiny_model, avatar, tone):
    packet, audio = avatar(), tone(1.0)
    whole, _ = run(crops(tiny_model, packet, audio))
    ctx, parts = RunContext(), []
    for chunk in crops(tiny_model, packet, audio).chunks(ctx, 8):
        parts.append(chunk.frames)
        ctx.close_engines()
    assert torch.equal(torch.cat(parts), whole)


def test_out_of_memory_in_a_render_halves_and_goes_on(tiny_model, avatar, tone, monkeypatch):
    class Small(engine_module.EagerRunner):
        def __init__(self, request):
            super().__init__(request)
            self.batch = request.batch

        def __call__(self):
            if self.batch > 4:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return super().__call__()

    packet, audio = avatar(), tone(0.52)
    whole, _ = run(crops(tiny_model, packet, audio))
    monkeypatch.setitem(engine_module.OPENERS, "eager", Small)
    ctx = RunContext()
    got, usable = run(crops(tiny_model, packet, audio), ctx)
    assert usable.all()
    assert int((got.int() - whole.int()).abs().max()) <= 1
    assert list(ctx.report.warnings) == ["musetalk: out of memory at batch 8, going on with 4"]
    assert ctx.report.facts["musetalk engine"] == "eager, batch 4, on cpu"


def test_an_engine_that_another_thread_closes_is_opened_again(tiny_model, avatar, tone, monkeypatch):
    """The memory is wanted between the render's look at the engine and its call."""
    packet, audio = avatar(), tone(0.84)
    whole, _ = run(crops(tiny_model, packet, audio))
    call, calls = engine_module.StageEngine.__call__, []

    def closed_in_between(self, **inputs):
        calls.append(self)
        if len(calls) in (1, 3, 4):
            self.close()
        return call(self, **inputs)

    monkeypatch.setattr(engine_module.StageEngine, "__call__", closed_in_between)
    got, usable = run(crops(tiny_model, packet, audio))
    assert torch.equal(got, whole)
    assert usable.all()
    assert len(calls) == 3 + 3


def test_nested_contexts_share_engines_and_keep_their_own_report(tiny_model):
    ctx = RunContext()
    first = ctx.engine(tiny_model, musetalk_stage, 2)
    item = ctx.nested()
    assert item.engine(tiny_model, musetalk_stage, 2) is first
    assert item.report.facts["musetalk engine"] == "eager, batch 2, on cpu"
    item.close_engines()
    assert first.closed


def test_a_handle_names_its_backend(tiny_model):
    with pytest.raises(
        ValueError, match="backend 'trt' is unknown; use one of auto, tensorrt, inductor, cuda graph, eager"
    ):
        MuseTalkModel(backend="trt")
    graph = MuseTalkModel(backend="cuda graph")
    assert graph.key == tiny_model.key  # the weights are the same
    assert exact_twin(replace(graph, precision="fp16")) == MuseTalkModel(backend="eager")
    identity = graph.engine_identity
    assert (identity.precision, identity.config["crop_size"]) == ("fp32", 32)
    assert len(identity.weights_sha256()) == 64


def test_the_stage_is_as_its_spec_says(tiny_model):
    for precision, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
        nets = replace(tiny_model, precision=precision).build()
        spec = musetalk_spec(nets)
        assert [(t.name, t.shape, t.dtype) for t in spec.inputs] == [
            ("latents", (8, 16, 16), dtype),
            ("tokens", (20, 32), dtype),
        ]
        with torch.inference_mode():
            out = MuseTalkStage(nets)(**spec.sample(2, "cpu"))
        assert {t.name: (2, *t.shape) for t in spec.outputs} == {k: tuple(v.shape) for k, v in out.items()}
        assert {t.name: t.dtype for t in spec.outputs} == {k: v.dtype for k, v in out.items()}


@pytest.mark.parametrize("inference", [False, True])
def test_contiguous_weights_change_the_layout_alone(tiny_model, inference):
    with torch.inference_mode(inference):
        nets, plain = tiny_model.build(), tiny_model.build()
        assert not nets.unet.conv_in.weight.is_contiguous()
        contiguous_weights(nets)
    assert all(p.is_contiguous() for p in nets.parameters())
    for a, b in zip(nets.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype


def test_parity_is_measured_against_fp32_of_the_same_weights(tiny_model):
    ctx = RunContext()
    half = replace(tiny_model, precision="fp16")
    figures = measure_parity(ctx, half, musetalk_stage, ctx.engine(half, musetalk_stage, 4))
    assert figures["rows"] == 4
    assert figures["cosine"] > 0.9999
    assert 45 < figures["psnr_db"] < 999
    exact = measure_parity(ctx, tiny_model, musetalk_stage, ctx.engine(tiny_model, musetalk_stage, 1))
    assert exact == {"cosine": 1.0, "psnr_db": 999.0, "rows": 1}


def test_build_says_when_the_backend_cannot_be_had(tiny_model, tmp_path, monkeypatch):
    ctx, steps = RunContext(engine_cache=tmp_path), []
    facts = build_engine(ctx, tiny_model, 2, lambda done, total: steps.append((done, total)))
    assert facts["backend"] == "eager"
    assert facts["parity"]["cosine"] == 1.0
    assert "name" not in facts
    assert steps == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(ValueError, match="backend cuda graph cannot be built here: needs a CUDA device"):
        build_engine(ctx, replace(tiny_model, backend="cuda graph"), 2)

    def skip(request):
        raise EngineSkipped("no compiler")

    monkeypatch.setitem(engine_module.OPENERS, "inductor", skip)
    with pytest.raises(ValueError, match="backend inductor cannot be built here: no compiler"):
        build_engine(ctx, replace(tiny_model, backend="inductor"), 2)


def test_the_stage_has_forms_for_other_backends(tiny_model):
    """On a CPU there is no fast form, and why is said; TensorRT's form gives the same crops and flags."""
    nets = tiny_model.build()
    spec, stage = musetalk_stage(nets, torch.device("cpu"))
    form, why = stage.fast_form()
    assert form is None
    assert why
    export = stage.export_form()
    given = spec.sample(2, "cpu")
    with torch.inference_mode():
        wanted = stage(**given)
        images = export.module(*(given[t.name] for t in export.spec.inputs))
        images = images if isinstance(images, torch.Tensor) else images[0]
        got = export.finish({export.spec.outputs[0].name: images})
    assert torch.equal(got["crops"], wanted["crops"])
    assert torch.equal(got["finite"], wanted["finite"])


def test_a_card_gets_the_next_batch_before_anyone_waits_for_the_last():
    log = []

    def batches():
        for k in range(3):
            log.append(f"start {k}")
            yield k

    for k in one_ahead(batches(), torch.device("cuda")):
        log.append(f"finish {k}")
    assert log == ["start 0", "start 1", "finish 0", "start 2", "finish 1", "finish 2"]
    log.clear()
    for k in one_ahead(batches(), torch.device("cpu")):
        log.append(f"finish {k}")
    assert log == ["start 0", "finish 0", "start 1", "finish 1", "start 2", "finish 2"]
    assert list(one_ahead(iter(()), torch.device("cuda"))) == []


def test_a_card_gives_the_last_batch_before_it_waits_for_sound():
    given = [1, None, None, 2, 3, None, 4]
    for device, wanted in (("cuda", [1, None, None, 2, 3, None, 4]), ("cpu", given)):
        assert list(one_ahead(iter(given), torch.device(device))) == wanted
