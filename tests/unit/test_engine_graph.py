"""Recording a graph, with doubles for CUDA: what is run, held, given back. The real thing is in tests/gpu."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from engine_stubs import SPEC, rows, stub_stage

from talkinghead.nodes.core import engine_graph
from talkinghead.nodes.core.engine_graph import GraphRunner
from talkinghead.nodes.core.engine_spec import EngineIdentity, RunnerRequest
from talkinghead.nodes.core.report import Report

POOL = (0, 7)


class FakeStream:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"{self.name} synchronized")


@pytest.fixture
def card(monkeypatch):
    """Stand-ins for torch.cuda that write down what happens; returns the log."""
    log, outer = [], FakeStream([], "outer")
    outer.log = log

    class FakeGraph:
        def replay(self):
            log.append("replay")

        def reset(self):
            log.append("reset")

    @contextmanager
    def recording(graph, pool, stream, capture_error_mode):
        assert pool == POOL
        log.append(f"record on {stream.name}, {capture_error_mode}")
        yield

    @contextmanager
    def on(stream):
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: outer)
    return log


def request(log, function=stub_stage):
    side = FakeStream(log, "side")
    given = rows(4)
    return RunnerRequest(
        SPEC, function, given, 4, torch.device("cuda"), side, None, EngineIdentity(), True, Report()
    )


def fails_recorded():
    """A stage whose recorded call fails."""
    calls = []

    def stage(a, b):
        calls.append(1)
        if len(calls) > engine_graph.WARM_UPS:
            raise RuntimeError("operation not permitted when stream is capturing")
        return stub_stage(a, b)

    return stage


def test_warm_up_record_replay(card):
    settings = []

    def stage(a, b):
        card.append("run")
        settings.append(torch.backends.cudnn.benchmark)
        return stub_stage(a, b)

    before = torch.backends.cudnn.benchmark
    runner = GraphRunner(request(card, stage))
    assert card == [
        "side waits for outer", "run", "run", "run", "side synchronized", "record on side, thread_local", "run",
        "outer waits for side",
    ]  # fmt: skip
    assert settings == [True] * 4
    assert torch.backends.cudnn.benchmark == before
    assert set(runner()) == {"total", "big"}
    assert card[-1] == "replay"


def test_what_is_recorded_stays_alive_until_it_is_closed(card):
    """A fast form owns re-laid weights that nobody else holds; the recording reads them at every replay."""

    class Form:
        def __call__(self, a, b):
            return stub_stage(a, b)

    form = Form()
    seen = weakref.ref(form)
    runner = GraphRunner(request(card), form)
    del form
    gc.collect()
    assert seen() is not None
    runner.close()
    gc.collect()
    assert seen() is None
    assert card[-1] == "reset"
    runner.close()
    assert card.count("reset") == 1


@pytest.mark.parametrize("broken_off", [True, False])
def test_a_broken_capture_gives_its_pool_back(card, monkeypatch, broken_off):
    """CUDA breaks a capture off: torch's allocator goes on recording, `reset` releases nothing. Any other error: it does."""

    def end(device, pool):
        card.append(f"end {device} {pool}")
        if not broken_off:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    release = lambda device, pool: card.append(f"release {device} {pool}")  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    monkeypatch.setattr(engine_graph, "_failed_graphs", [])
    with pytest.raises(RuntimeError, match="not permitted"):
        GraphRunner(request(card, fails_recorded()))
    after = card[card.index("reset") + 1 :]
    assert after == ["end 0 (0, 7)", "release 0 (0, 7)"][: 2 if broken_off else 1]
    assert len(engine_graph._failed_graphs) == broken_off


def test_what_fails_before_the_capture_has_no_pool(card, monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: card.append("end"), raising=False)

    def stage(a, b):
        raise RuntimeError("no kernel image")

    with pytest.raises(RuntimeError, match="no kernel image"):
        GraphRunner(request(card, stage))
    assert "end" not in card


def test_a_recording_that_fails_is_reset(card):
    before = torch.backends.cudnn.benchmark
    with pytest.raises(RuntimeError, match="not permitted"):
        GraphRunner(request(card, fails_recorded()))
    assert card[-1] == "reset"
    assert torch.backends.cudnn.benchmark == before
