"""Ditto on TensorRT without TensorRT: two plans with torch between them, by the recording double and by torch."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from ditto_model_parts import tiny_modules
from ditto_parts import inputs as inputs_of
from fake_tensorrt import FakeTensorRt, plan_tensors

from talkinghead.nodes.core import tensorrt_engine
from talkinghead.nodes.core.engine_cache import EngineCache
from talkinghead.nodes.core.engine_spec import EngineIdentity, EngineSkipped, RunnerRequest
from talkinghead.nodes.core.export import OnnxGraph
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.tensorrt_engine import PartsRunner, open_tensorrt
from talkinghead.nodes.ditto.stages import GRAPHS, ditto_stage

CPU = torch.device("cpu")
BATCH = 3
STREAM = SimpleNamespace(cuda_stream=0xBEEF)


@pytest.fixture(scope="module")
def stage():
    return ditto_stage(tiny_modules(), CPU)


@pytest.fixture
def given(stage):
    made = inputs_of(stage[1].nets.config, BATCH)
    return {t.name: made[t.name] for t in stage[0].inputs}


@pytest.fixture
def fake(monkeypatch):
    return FakeTensorRt().install(monkeypatch)


@pytest.fixture
def request_of(fake, stage, given, monkeypatch, tmp_path):
    """Return a function: changes -> a request; exporting writes a file and tells the double what the plan has."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    machine = {
        "sm": "sm_90",
        "torch": "2",
        "cuda": "13",
        "tensorrt": "10.15.1",
        "gpu": "H200",
        "driver": "580.1",
    }
    for module in (tensorrt_engine, engine_cache_module()):
        monkeypatch.setattr(module, "machine_facts", lambda *args: dict(machine))
    exported = []

    def export(module, spec, path, batch, *args, **kwargs):
        exported.append((spec.name, str(batch)))
        fake.tensors = plan_tensors(spec, reverse=True)
        path.write_bytes(spec.name.encode())
        facts = {"name": spec.name, "precision": "float32", "batch": [batch.low, batch.high], "seconds": 1.0}
        return OnnxGraph(path, {**facts, "files": {path.name: {"size": 5, "sha256": spec.name}}})

    monkeypatch.setattr(tensorrt_engine, "export_onnx", export)

    def make(**changes):
        values = {
            "spec": stage[0],
            "function": stage[1],
            "inputs": given,
            "batch": BATCH,
            "device": torch.device("cuda"),
            "stream": STREAM,
            "cache": tmp_path / "engines",
            "identity": EngineIdentity("fp32", {"a": 1}, lambda: "weights-1"),
            "may_build": True,
            "report": Report(),
            **changes,
        }
        return RunnerRequest(**values)

    make.exported = exported
    return make


def engine_cache_module():
    from talkinghead.nodes.core import engine_cache

    return engine_cache


class TorchPart:
    """A plan's place, taken by its module."""

    cached, memory_bytes = None, 5

    def __init__(self, form, buffers):
        self.form, self.buffers, self.closed = form, buffers, False

    def __call__(self):
        made = self.form.module(*(self.buffers[t.name] for t in self.form.spec.inputs))
        made = made if isinstance(made, tuple) else (made,)
        return {t.name: value for t, value in zip(self.form.spec.outputs, made, strict=True)}

    def close(self):
        self.closed = True


def test_parts_on_their_own_buffers_make_the_stage(stage, given):
    spec, function = stage
    parts = function.export_parts()
    runners = {}
    for form in parts.forms:
        buffers = {t.name: torch.full((BATCH, *t.shape), torch.nan, dtype=t.dtype) for t in form.spec.inputs}
        runners[form.spec.name] = TorchPart(form, buffers), buffers
    assert tuple(runners) == GRAPHS
    static = {name: value.clone() for name, value in given.items()}
    runner = PartsRunner(parts, runners, static)
    with torch.inference_mode():
        for shift in (0.0, 0.05):
            static["kp_driving"].copy_(given["kp_driving"] + shift)
            got, wanted = runner(), function(**static)
            assert got.keys() == wanted.keys()
            assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert runner.memory_bytes == 10
    runner.close()
    assert all(part.closed for part, _ in runners.values())


def test_both_plans_are_built_once_and_found_afterwards(fake, request_of):
    runner = open_tensorrt(request_of())
    assert request_of.exported == [(name, "3") for name in GRAPHS]
    assert sorted(runner.cached) == EngineCache(request_of().cache).names()
    assert [name.split("-")[0] for name in runner.cached] == list(GRAPHS)
    fake.calls.clear()
    report = Report()
    again = open_tensorrt(request_of(may_build=False, report=report))
    assert again.cached == runner.cached
    assert not fake.calls.of("build_serialized_network")
    assert fake.calls.names().count("create_execution_context") == 2
    bound = {call[0] for call in fake.calls.of("set_tensor_address")}
    assert bound == {"maps", "ways", "deformation", "occlusion", "warped", "faces"}
    with torch.inference_mode():
        out = again()
    assert [call[0] for call in fake.calls.of("execute_async_v3")] == [0xBEEF] * 2
    assert out["crops"].dtype == torch.uint8
    assert report.warnings == {}


def test_one_plan_that_is_missing_is_said(fake, request_of):
    runner = open_tensorrt(request_of())
    EngineCache(request_of().cache).clear([runner.cached[1]])
    with pytest.raises(EngineSkipped, match="not built yet"):
        open_tensorrt(request_of(may_build=False))
    request_of.exported.clear()
    open_tensorrt(request_of())
    assert request_of.exported == [(GRAPHS[1], "3")]


def test_a_build_that_fails_closes_what_was_opened(fake, request_of, monkeypatch):
    closed = []
    monkeypatch.setattr(tensorrt_engine.TensorRtRunner, "close", lambda self: closed.append(1))
    real = tensorrt_engine.build_plan

    def second_fails(graph, *args, **kwargs):
        fake.builds = graph.name != GRAPHS[1]
        return real(graph, *args, **kwargs)

    monkeypatch.setattr(tensorrt_engine, "build_plan", second_fails)
    with pytest.raises(RuntimeError, match="could not find any implementation"):
        open_tensorrt(request_of())
    assert closed == [1]
    assert len(EngineCache(request_of().cache).names()) == 1  # the first one is whole and stays
