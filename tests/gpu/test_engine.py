"""Engines on a card: equal to torch, nothing waited for, and every byte back after closing."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import pytest
import torch
from engine_stubs import SPEC, rows, stub_stage

from talkinghead.nodes.avatars.engines import build_engine
from talkinghead.nodes.core import engine as engine_module
from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_build import measure_parity
from talkinghead.nodes.core.engine_inductor import missing_tools
from talkinghead.nodes.core.engine_spec import compare
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.musetalk.engine import musetalk_stage
from talkinghead.nodes.musetalk.handle import MuseTalkModel

pytestmark = pytest.mark.gpu
MIN_COSINE, MIN_PSNR_DB = 0.9999, 50.0


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def inductor():
    if why := missing_tools(torch.device("cuda")):
        pytest.skip(f"Inductor cannot compile here: {why}")


def in_use():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def opened(model, backend, batch, cache=None):
    ctx = RunContext("cuda", engine_cache=cache)
    engine = ctx.engine(replace(model, backend=backend), musetalk_stage, batch)
    return ctx, engine


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_graph_parity_and_thirteen_rows_on_eight(precision):
    """The embedded model against fp32 torch on the card, and case 28."""
    model = MuseTalkModel(precision=precision)
    ctx, engine = opened(model, "cuda graph", 8)
    assert engine.backend == "cuda graph", engine.skipped
    figures = measure_parity(ctx, model, musetalk_stage, engine)
    print(precision, figures, engine.memory_bytes >> 20, "MB", ctx.report.facts)
    assert figures["cosine"] >= MIN_COSINE
    assert figures["psnr_db"] >= MIN_PSNR_DB
    given = engine.spec.sample(13, "cuda", seed=4)
    got = engine(**given)
    ones = opened(model, "eager", 1)[1](**given)
    assert compare(got["crops"], ones["crops"]).psnr_db >= MIN_PSNR_DB
    assert got["finite"].all()
    again = engine(**given)
    assert torch.equal(again["crops"], got["crops"])


def test_inductor_is_built_once_and_equal(inductor, tmp_path):
    model = MuseTalkModel(precision="fp16", backend="inductor")
    ctx = RunContext("cuda", engine_cache=tmp_path)
    facts = build_engine(ctx, model, 8)
    print(facts, ctx.report.facts)
    assert facts["backend"] == "inductor"
    assert facts["parity"]["cosine"] >= MIN_COSINE
    assert facts["parity"]["psnr_db"] >= MIN_PSNR_DB
    later = RunContext("cuda", engine_cache=tmp_path)
    again = later.engine(model, musetalk_stage, 8)
    assert (again.backend, again.cached) == ("inductor", (facts["name"],))
    assert "engine built" not in later.report.facts
    auto = later.engine(replace(model, backend="auto"), musetalk_stage, 8)
    assert auto.backend == "cuda graph"  # the fused kernels recorded beat compiled code


def test_a_call_does_not_wait_for_the_card():
    _, engine = opened(MuseTalkModel(precision="fp16"), "cuda graph", 8)
    given = engine.spec.sample(13, "cuda")
    engine(**given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = engine(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert out["finite"].all()


def test_the_callers_stream_is_obeyed():
    """Inputs that are still being written when the call is made, and outputs read at once."""
    engine = open_engine(SPEC, stub_stage, EngineOptions("cuda graph", 4), "cuda")
    assert engine.backend == "cuda graph"
    given = {k: v.cuda() for k, v in rows(7).items()}
    side = torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            late = {k: v.clone() for k, v in given.items()}
            got = engine(**late)["total"].clone()
        side.synchronize()
        assert torch.allclose(got, stub_stage(**given)["total"], atol=1e-5)


@pytest.mark.parametrize("backend", ["cuda graph", "eager"])
def test_memory_comes_back(backend):
    """Case 26: within 2 % of what the engine held, after 300 calls too."""
    model = MuseTalkModel(precision="fp16")
    ctx = RunContext("cuda")
    ctx.load(model)
    given = None
    held = []
    before = in_use()
    # Two calls at least: the outputs of the one before are alive in a call, and belong to the caller.
    for calls in (2, 300):
        engine = ctx.engine(replace(model, backend=backend), musetalk_stage, 8)
        given = engine.spec.sample(8, "cuda")
        for _ in range(calls):
            out = engine(**given)
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_reserved())
        del out, given
        ctx.close_engines()
        del engine
        after = in_use()
        print(backend, calls, "before", before, "held", held[-1], "after", after)
        # cuBLAS and cuDNN keep workspaces of their own from the first use on
        before = after if calls == 2 else before
    assert after[0] <= before[0] * 1.02
    assert after[1] <= before[1] * 1.02
    assert held[1] <= held[0] * 1.02


def waiting_stage():
    """The stub, reading a value in the recorded call, which is not allowed there."""
    calls = []

    def waits(a, b):
        calls.append(1)
        out = stub_stage(a, b)
        if len(calls) == 4:
            float(out["total"].sum())
        return out

    return waits


@pytest.mark.xfail(reason="one segment of 2 MB of a broken-off capture stays with torch 2.11", strict=False)
def test_memory_comes_back_after_a_failed_start():
    open_engine(SPEC, stub_stage, EngineOptions("cuda graph", 4), "cuda").close()
    before = in_use()
    open_engine(SPEC, waiting_stage(), EngineOptions("cuda graph", 4), "cuda").close()
    assert in_use() == before


def test_a_failed_start_falls_back_and_the_next_one_works():
    engine = open_engine(SPEC, waiting_stage(), EngineOptions("cuda graph", 4), "cuda")
    assert engine.backend == "eager"
    assert engine.skipped["cuda graph"]
    engine.close()
    good = open_engine(SPEC, stub_stage, EngineOptions("cuda graph", 4), "cuda")
    assert good.backend == "cuda graph"
    assert torch.allclose(good(**rows(5))["total"].cpu(), stub_stage(**rows(5))["total"], atol=1e-5)


def test_real_out_of_memory_halves_the_batch():
    """A stage that wants 4 GB a row above a batch of two, on a card whose share is cut to 12 GB."""
    total = torch.cuda.get_device_properties(0).total_memory

    def hungry(a, b):
        out = stub_stage(a, b)
        waste = torch.empty((len(a), 1 << 30), device=a.device)  # 4 GB a row
        waste[:, :1] = 0
        return out

    torch.cuda.set_per_process_memory_fraction(min(1.0, 12 * (1 << 30) / total))
    try:
        report = Report()
        engine = open_engine(SPEC, hungry, EngineOptions("eager", 8), "cuda", report)
        out = engine(**rows(8))
        assert engine.batch == 2
        assert torch.allclose(out["total"].cpu(), stub_stage(**rows(8))["total"], atol=1e-5)
        assert list(report.warnings) == [
            "stub: out of memory at batch 8, going on with 4",
            "stub: out of memory at batch 4, going on with 2",
        ]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_auto_takes_a_graph_when_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    report = Report()
    engine = open_engine(SPEC, stub_stage, EngineOptions("auto", 4, tmp_path), "cuda", report)
    assert engine.backend == "cuda graph"
    assert list(engine.skipped) == ["tensorrt", "inductor"]
    assert report.facts["engines passed over"].startswith("tensorrt: ")
    assert set(engine_module.OPENERS) == {"tensorrt", "inductor", "cuda graph", "eager"}
    assert list(tmp_path.iterdir()) == []
