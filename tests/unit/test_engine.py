"""The engine call: bound by name, checked, static batch, and what happens when a backend fails."""

import os
import threading

import pytest
import torch
from engine_stubs import SPEC, StubRunner, rows, stub_stage

from talkinghead.nodes.core import engine as engine_module
from talkinghead.nodes.core import engine_graph
from talkinghead.nodes.core.engine import EngineOptions, StageEngine, backend_order, open_engine
from talkinghead.nodes.core.engine_backends import BACKENDS
from talkinghead.nodes.core.engine_shelf import EngineShelf
from talkinghead.nodes.core.engine_spec import (
    EngineIdentity,
    EngineSkipped,
    RunnerRequest,
    StageSpec,
    TensorSpec,
    compare,
    is_out_of_memory,
)
from talkinghead.nodes.core.report import Report

CPU = torch.device("cpu")


@pytest.fixture
def backend(monkeypatch):
    """Return a function: put an opener in the place of Inductor, which the CPU tries when asked by name."""

    def place(opener, name="inductor"):
        monkeypatch.setitem(engine_module.OPENERS, name, opener)

    return place


def opened(batch=8, backend="eager", report=None, function=stub_stage):
    return open_engine(SPEC, function, EngineOptions(backend, batch), "cpu", report)


def stopped(*_):
    raise AssertionError("ran although the inputs do not fit")


def test_padding_and_trimming_equal_single_rows():
    """Case 28: 13 rows on static batches 8 and 4, and on 1."""
    given = rows(13)
    one = opened(1)(**given)
    for batch in (4, 8, 16):
        seen = []

        def stage(a, b, seen=seen):
            seen.append((len(a), len(b)))
            return stub_stage(a, b)

        got = opened(batch, function=stage)(**given)
        assert set(seen) == {(batch, batch)}
        assert len(seen) == -(-13 // batch)
        assert got["total"].shape == (13, 3)
        assert torch.allclose(got["total"], one["total"], atol=1e-6)
        assert torch.equal(got["big"], one["big"])
    assert len({tuple(r.tolist()) for r in one["total"]}) == 13  # the rows differ, or nothing is proved


def test_padding_does_not_bring_in_an_earlier_call():
    """What fills the batch up is the last row: old rows could hold values that are not finite."""
    seen = []

    def stage(a, b):
        seen.append(a.clone())
        return stub_stage(a, b)

    engine, given = opened(8, function=stage), rows(3)
    engine(**rows(8, seed=7))
    alone = opened(8)(**given)
    assert torch.equal(engine(**given)["total"], alone["total"])
    assert torch.equal(seen[-1], torch.cat([given["a"], given["a"][-1:].expand(5, -1, -1)]))


def test_outputs_are_the_callers_own():
    engine = opened(4)
    first = engine(**rows(4, seed=2))
    kept = first["total"].clone()
    engine(**rows(4, seed=3))
    assert torch.equal(first["total"], kept)


def test_outputs_are_bound_by_name_not_by_place(backend):
    """Case 29: an engine whose outputs are listed in another order."""
    backend(lambda r: StubRunner(r, order=("big", "total")))
    given = rows(5)
    engine = opened(4, "inductor")
    assert engine.backend == "inductor"
    got, wanted = engine(**given), opened(4)(**given)
    assert torch.equal(got["total"], wanted["total"])
    assert torch.equal(got["big"], wanted["big"])


def test_inputs_are_bound_by_name():
    same = StageSpec(
        "same",
        inputs=(TensorSpec("minuend", (2,), torch.float32), TensorSpec("subtrahend", (2,), torch.float32)),
        outputs=(TensorSpec("out", (2,), torch.float32),),
    )
    engine = open_engine(
        same, lambda subtrahend, minuend: {"out": minuend - subtrahend}, EngineOptions(), "cpu"
    )
    out = engine(subtrahend=torch.ones(3, 2), minuend=torch.full((3, 2), 5.0))["out"]
    assert out.tolist() == [[4.0, 4.0]] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": None}, "stub takes the inputs a, b: missing b"),
        ({"c": torch.zeros(2, 5)}, "unknown c"),
        ({"a": torch.zeros(2, 3, 5)}, r"needs a float32 \(n, 3, 4\) with n from 1 up, got \(2, 3, 5\)"),
        ({"a": torch.zeros(2, 3)}, r"got \(2, 3\)"),
        ({"a": torch.zeros(2, 3, 4).half()}, "float16"),
        ({"b": torch.zeros(3, 5)}, "a has 2, b has 3"),
        ({"a": torch.zeros(0, 3, 4), "b": torch.zeros(0, 5)}, "1 or more"),
        ({"a": torch.tensor(1.0)}, r"got \(\)"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_runs(change, message):
    """Case 27."""
    engine = opened(2, function=stopped)
    inputs = {k: v for k, v in (rows(2) | change).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        engine(**inputs)
    assert opened(2)(**rows(2))["total"].shape == (2, 3)


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"batch 0 is outside 1\.\.64"):
        EngineOptions(batch=0)
    with pytest.raises(ValueError, match="backend 'trt' is unknown; use one of auto, tensorrt"):
        EngineOptions("trt")


def test_order_of_backends():
    cuda = torch.device("cuda")
    assert backend_order("auto", cuda) == ("tensorrt", "inductor", "cuda graph", "eager")
    assert backend_order("cuda graph", cuda) == ("cuda graph", "eager")
    assert backend_order("auto", CPU) == ("eager",)
    assert backend_order("inductor", CPU) == ("inductor", "eager")
    assert backend_order("tensorrt", CPU) == ("tensorrt", "eager")


def test_cuda_backends_say_why_they_are_passed_over_on_a_cpu():
    report = Report()
    engine = opened(2, "cuda graph", report)
    assert engine.backend == "eager"
    assert report.facts["stub engine"] == "eager, batch 2, on cpu"
    assert report.facts["engines passed over"] == "cuda graph: needs a CUDA device, this runs on cpu"


def test_a_failed_start_falls_to_the_next_and_leaves_nothing(backend):
    made = []

    def fail(request):
        made.append(request)
        raise RuntimeError("kernel image is not available\nsecond line")

    backend(fail)
    before, threads = dict(os.environ), threading.active_count()
    for _ in range(2):  # a failed start does not poison the next run
        report = Report()
        engine = opened(4, "inductor", report)
        assert (engine.backend, engine.batch) == ("eager", 4)
        assert engine(**rows(6))["total"].shape == (6, 3)
        assert report.facts["engines passed over"] == "inductor: RuntimeError: kernel image is not available"
    assert len(made) == 2
    assert dict(os.environ) == before
    assert threading.active_count() == threads


def test_a_reason_to_skip_is_said_as_it_is(backend):
    def skip(request):
        assert request.may_build
        raise EngineSkipped("no compiler here")

    backend(skip)
    assert opened(2, "inductor").skipped == {"inductor": "no compiler here"}


def test_a_backend_that_computes_something_else_is_refused(backend):
    """The self-test: a kernel that gives wrong numbers must not be the user's."""
    runners = []

    class Wrong(StubRunner):
        def __call__(self):
            return {k: v.flip(0) if k == "total" else v for k, v in super().__call__().items()}

    backend(lambda r: runners.append(Wrong(r)) or runners[-1])
    engine = opened(4, "inductor")
    assert engine.backend == "eager"
    assert "its 'total' is only" in engine.skipped["inductor"]
    assert runners[0].closed


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda out: {"big": out["big"]}, "gave no output 'total', only big"),
        (lambda out: out | {"total": out["total"][:1]}, "is torch.float32"),
        (lambda out: out | {"total": out["total"].double()}, "is torch.float64"),
    ],
)
def test_a_backend_with_other_outputs_is_refused(backend, outputs, message):
    class Odd(StubRunner):
        def __call__(self):
            return outputs(super().__call__())

    backend(Odd)
    engine = opened(4, "inductor")
    assert engine.backend == "eager"
    assert message in engine.skipped["inductor"]


def out_of_memory(limit):
    def fail(call, batch):
        if batch > limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    return fail


def test_out_of_memory_halves_the_batch_and_goes_on(monkeypatch):
    made = []

    def small(request):
        made.append(StubRunner(request, fail=out_of_memory(3)))
        return made[-1]

    monkeypatch.setitem(engine_module.OPENERS, "eager", small)
    report = Report()
    engine = opened(16, report=report)
    given = rows(13)
    got = engine(**given)
    assert engine.batch == 2
    assert [r.request.batch for r in made] == [16, 8, 4, 2]
    assert all(r.closed for r in made[:-1])
    assert list(report.warnings) == [
        f"stub: out of memory at batch {b}, going on with {b // 2}" for b in (16, 8, 4)
    ]
    assert report.facts["stub engine"] == "eager, batch 2, on cpu"
    monkeypatch.undo()
    assert torch.allclose(got["total"], opened(1)(**given)["total"], atol=1e-6)
    # and the next call starts with what fitted
    made.clear()
    assert len(engine(**rows(4))["total"]) == 4
    assert made == []


def test_out_of_memory_while_opening_halves_too(backend):
    tried = []

    def hungry(request):
        tried.append(request.batch)
        if request.batch > 4:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
        return StubRunner(request)

    backend(hungry)
    engine = opened(16, "inductor")
    assert tried == [16, 8, 4]
    assert (engine.backend, engine.batch, engine.skipped) == ("inductor", 4, {})


def test_no_memory_for_one_row_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setitem(engine_module.OPENERS, "eager", lambda r: StubRunner(r, fail=out_of_memory(0)))
    engine = opened(2)
    with pytest.raises(MemoryError, match="no memory for even one frame at a time.*unload other models"):
        engine(**rows(2))
    assert engine.closed
    with pytest.raises(RuntimeError, match="was closed; open it again"):
        engine(**rows(2))


def test_another_failure_at_a_call_is_raised_and_the_next_call_works(monkeypatch):
    def fail(call, batch):
        if call == 2:
            raise RuntimeError("illegal instruction")

    monkeypatch.setitem(engine_module.OPENERS, "eager", lambda r: StubRunner(r, fail=fail))
    engine = opened(4)
    wanted = engine(**rows(3))
    with pytest.raises(RuntimeError, match="illegal instruction"):
        engine(**rows(3))
    assert torch.equal(engine(**rows(3))["total"], wanted["total"])


def test_the_users_stop_is_not_a_failed_backend(backend):
    class InterruptProcessingException(Exception):
        pass

    def stop(request):
        raise InterruptProcessingException

    backend(stop)
    with pytest.raises(InterruptProcessingException):
        opened(2, "inductor")


def test_close_twice_and_outputs_stay():
    engine = opened(2)
    out = engine(**rows(2))["total"]
    kept = out.clone()
    engine.close()
    engine.close()
    assert engine.closed
    assert torch.equal(out, kept)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.cuda.OutOfMemoryError("x"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_told_from_other_errors(error, expected):
    assert is_out_of_memory(error) is expected


def test_compare_has_known_answers():
    a = torch.tensor([3, 4], dtype=torch.uint8)
    assert compare(a, a).psnr_db == float("inf")
    assert compare(a, a).cosine == pytest.approx(1)
    one_off = compare(torch.tensor([4, 4], dtype=torch.uint8), a)
    assert one_off.psnr_db == pytest.approx(51.14, abs=0.01)  # 10 log10(255^2 / 0.5)
    assert one_off.cosine == pytest.approx(28 / (5 * 32**0.5))
    assert compare(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])).psnr_db == 0
    assert compare(torch.zeros(2), torch.zeros(3)).cosine == 0
    half = compare(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))
    assert half.psnr_db == pytest.approx(10 * torch.log10(torch.tensor(2.0)).item())


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, a, b):
        return stub_stage(a * self.weight, b)


def stage_of(module, device):
    return SPEC, module


def test_a_shelf_reuses_an_engine_until_its_weights_move():
    shelf, module, report = EngineShelf(), Scale(), Report()
    options = EngineOptions(batch=4)
    first = shelf.get(module, stage_of, options, CPU, report)
    again = Report()
    assert shelf.get(module, stage_of, options, CPU, again) is first
    assert again.facts == report.facts  # every run is told, also when nothing is opened
    module.weight.data = module.weight.data.clone()
    moved = shelf.get(module, stage_of, options, CPU, report)
    assert moved is not first
    assert first.closed
    assert shelf.get(module, stage_of, options, CPU, report) is moved


def test_a_shelf_is_bounded_and_closes_all():
    shelf, module = EngineShelf(kept=2), Scale()
    engines = [shelf.get(module, stage_of, EngineOptions(batch=b), CPU, Report()) for b in (1, 2, 3)]
    assert [e.closed for e in engines] == [True, False, False]
    shelf.close()
    assert all(e.closed for e in engines)
    assert shelf.memory_bytes == 0
    assert isinstance(shelf.get(module, stage_of, EngineOptions(batch=3), CPU, Report()), StageEngine)


def test_a_shelf_builds_again_only_when_told_to():
    shelf, module = EngineShelf(), Scale()
    plain = shelf.get(module, stage_of, EngineOptions(batch=2), CPU, Report())
    built = shelf.get(module, stage_of, EngineOptions(batch=2, build=True), CPU, Report())
    assert built is not plain
    assert shelf.get(module, stage_of, EngineOptions(batch=2), CPU, Report()) is built


class FastStage:
    """A stage with a fast form, as `fast_form` of MuseTalk gives it."""

    def __init__(self, form, why=None):
        self.form, self.why = form, why

    def __call__(self, a, b):
        return stub_stage(a, b)

    def fast_form(self):
        if isinstance(self.form, Exception):
            raise self.form
        return self.form, self.why


@pytest.fixture
def recorded(monkeypatch):
    """Record what would be captured, on a request that says CUDA: (function or None for the plain one) per capture."""
    seen = []

    def runner(request, function=None):
        seen.append(function)
        if function is not None and getattr(function, "broken", False):
            raise RuntimeError("triton: no kernel image")
        return StubRunner(request)

    monkeypatch.setattr(engine_graph, "GraphRunner", runner)

    def capture(function):
        seen.clear()
        report = Report()
        request = RunnerRequest(
            SPEC, function, {}, 4, torch.device("cuda"), None, None, EngineIdentity(), True, report
        )
        engine_graph.open_graph(request)
        return list(seen), report.facts

    return capture


def test_a_graph_records_the_fast_form_or_says_why_not(recorded):
    def fast(a, b):
        return stub_stage(a, b)

    assert recorded(stub_stage) == ([None], {})
    assert recorded(FastStage(fast)) == ([fast], {})
    assert recorded(FastStage(None, "no triton")) == ([None], {"fast kernels": "not used: no triton"})
    fast.broken = True
    seen, facts = recorded(FastStage(fast))
    assert seen == [fast, None]
    assert facts == {"fast kernels": "not used: RuntimeError: triton: no kernel image"}
    assert recorded(FastStage(ValueError("odd width")))[1] == {
        "fast kernels": "not used: ValueError: odd width"
    }
    with pytest.raises(MemoryError):  # then the batch is halved, not the speed
        recorded(FastStage(MemoryError()))


def test_memory_outside_of_torch_counts(backend):
    class Foreign(StubRunner):
        memory_bytes = 123

    backend(Foreign)
    engine = opened(2, "inductor")
    assert engine.memory_bytes == 123
    engine.close()
    assert engine.memory_bytes == 0


def test_auto_leaves_inductor_out_where_a_faster_form_is_recorded(monkeypatch):
    tried = []

    def refuse(name):
        def open_(request):
            tried.append(name)
            raise EngineSkipped("not here")

        return open_

    class Fast:
        records_fast_form = True

        def __call__(self, **inputs):
            return stub_stage(**inputs)

    monkeypatch.setattr(engine_module, "backend_order", lambda backend, device: BACKENDS)
    for name in ("tensorrt", "inductor", "cuda graph"):
        monkeypatch.setitem(engine_module.OPENERS, name, refuse(name))
    engine = open_engine(SPEC, Fast(), EngineOptions("auto", 4), "cpu")
    assert engine.backend == "eager"
    assert tried == ["tensorrt", "cuda graph"]
    assert "recorded cuda graph" in engine.skipped["inductor"]
    tried.clear()
    open_engine(SPEC, Fast(), EngineOptions("inductor", 4), "cpu")
    assert "inductor" in tried  # asked for by name
