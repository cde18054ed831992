"""Inductor as a backend, really compiled on the CPU for a stage of a few numbers (15 s with g++ on two slow cores)."""

import os
import shutil

import pytest
import torch
from engine_stubs import SPEC, rows, stub_stage

from talkinghead.nodes.core import engine_inductor
from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_cache import EngineCache
from talkinghead.nodes.core.engine_inductor import compiler_cache, missing_tools
from talkinghead.nodes.core.report import Report

CPU = torch.device("cpu")


class Weighted(torch.nn.Module):
    """The stub stage with weights, so that they are seen to be arguments of the compiled code."""

    def __init__(self, scale):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale), requires_grad=False)
        self.register_buffer("shift", torch.tensor(0.5), persistent=False)

    def forward(self, a, b):
        return stub_stage(a * self.scale + self.shift, b)


@pytest.fixture(scope="module")
def tools():
    if why := missing_tools(CPU):
        pytest.skip(f"Inductor cannot compile here: {why}")


@pytest.fixture(scope="module")
def built(tools, tmp_path_factory):
    """A folder with the engine of `Weighted(2.0)`, batch 4, its report and the environment before."""
    folder, report, before = tmp_path_factory.mktemp("engines"), Report(), dict(os.environ)
    engine = open_engine(SPEC, Weighted(2.0), EngineOptions("inductor", 4, folder), CPU, report)
    assert engine.backend == "inductor", engine.skipped
    assert dict(os.environ) == before
    return folder, engine, report


def opened(folder, function, **options):
    report = Report()
    given = {"backend": "inductor", "batch": 4, "cache": folder} | options
    return open_engine(SPEC, function, EngineOptions(**given), CPU, report), report


def test_compiled_equals_torch(built):
    folder, engine, report = built
    given = rows(7)
    got, wanted = engine(**given), Weighted(2.0)(**given)
    assert torch.allclose(got["total"], wanted["total"], atol=1e-6)
    assert torch.equal(got["big"], wanted["big"])
    cache = EngineCache(folder)
    [name] = cache.names()
    assert engine.cached == name
    assert report.facts["engine built"].startswith(f"{name} in ")
    kept = cache.read(name)
    assert kept.facts["build_seconds"] > 0
    assert kept.facts["machine"]["torch"] == torch.__version__
    assert cache.fault_of(kept) is None


@pytest.mark.parametrize("inference", [False, True])
def test_a_second_start_compiles_nothing_and_fits_other_weights(built, tmp_path, monkeypatch, inference):
    folder = tmp_path / "copied"
    shutil.copytree(built[0], folder)

    def compiled(*_, **__):
        raise AssertionError("compiled although it is built")

    monkeypatch.setattr(engine_inductor, "_trace", compiled)
    with torch.inference_mode(inference):
        function = Weighted(-3.0)
        engine, report = opened(folder, function)
        got, wanted = engine(**rows(5)), function(**rows(5))
    assert (engine.backend, report.warnings) == ("inductor", {})
    assert "engine built" not in report.facts
    assert torch.allclose(got["total"], wanted["total"], atol=1e-6)
    assert engine.cached
    engine.close()
    assert EngineCache(folder).fault_of(EngineCache(folder).read(EngineCache(folder).names()[0])) is None


def test_a_damaged_one_is_set_aside_and_built_again(built, tmp_path):
    folder = tmp_path / "copied"
    shutil.copytree(built[0], folder)
    [name] = EngineCache(folder).names()
    file = folder / f"{name}.inductor" / engine_inductor.ARTIFACT
    file.write_bytes(os.urandom(file.stat().st_size))  # the size is right, so only loading finds out
    engine, report = opened(folder, Weighted(2.0))
    assert engine.backend == "inductor"
    [said] = report.warnings
    assert "it does not run" in said
    assert f"set aside as {name}.inductor.bad, {name}.json.bad" in said
    assert EngineCache(folder).names() == [name]
    assert torch.allclose(engine(**rows(4))["total"], Weighted(2.0)(**rows(4))["total"], atol=1e-6)


def test_auto_on_a_card_builds_nothing_that_takes_minutes(tools, tmp_path, monkeypatch):
    """As on CUDA: `may_build` is off for what was not asked for by name."""
    from talkinghead.nodes.core import engine as engine_module

    monkeypatch.setattr(engine_module, "backend_order", lambda *_: ("inductor", "eager"))
    engine, _ = opened(tmp_path, stub_stage, backend="auto")
    assert engine.backend == "eager"
    assert "not built yet for this card, precision and batch 4" in engine.skipped["inductor"]
    engine, _ = opened(None, stub_stage, backend="auto")
    assert engine.skipped["inductor"] == "there is no folder for built engines"
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_leaves_nothing(tools, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("ptxas died")

    monkeypatch.setattr(engine_inductor, "_trace", fail)
    before = dict(os.environ)
    engine, report = opened(tmp_path, stub_stage)
    assert engine.backend == "eager"
    assert engine.skipped["inductor"] == "RuntimeError: ptxas died"
    assert list(tmp_path.iterdir()) == []
    assert dict(os.environ) == before


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setattr(engine_inductor.shutil, "which", lambda name: None)
    assert "no C++ compiler: install g++ or clang" in missing_tools(CPU)
    monkeypatch.setattr(engine_inductor.importlib.util, "find_spec", lambda name: None)
    assert "the package triton is missing" in missing_tools(torch.device("cuda"))
    assert missing_tools(torch.device("meta")) == "does not compile for meta"
    engine = open_engine(SPEC, stub_stage, EngineOptions("inductor", 2), CPU)
    assert "no C++ compiler" in engine.skipped["inductor"]


def test_the_environment_is_the_users_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/the/users")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with pytest.raises(ZeroDivisionError), compiler_cache(tmp_path):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
        raise ZeroDivisionError
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/the/users"
    assert "TRITON_CACHE_DIR" not in os.environ
