"""Inductor as a backend, really compiled on the CPU for a stage of a few numbers (40 s with g++ on one slow core)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_stubs import SPEC, rows, stub_stage

from talkinghead.nodes.core import engine_inductor
from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_aot import PACKAGE, load_package, make_package
from talkinghead.nodes.core.engine_cache import EngineCache
from talkinghead.nodes.core.engine_inductor import compiler_cache, missing_tools, weights_layout
from talkinghead.nodes.core.engine_spec import EngineSkipped
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
    assert engine.cached == (name,)
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


@pytest.fixture(scope="module")
def artifact(tools, tmp_path_factory):
    """As `built`, where no package can be made: on a machine without the toolkit's headers, say."""
    folder, report = tmp_path_factory.mktemp("artifacts"), Report()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_inductor, "make_package", no_headers)
        engine = open_engine(SPEC, Weighted(2.0), EngineOptions("inductor", 4, folder), CPU, report)
    assert engine.backend == "inductor", engine.skipped
    return folder, engine, report


def no_headers(*_):
    raise RuntimeError("cuda.h: No such file or directory")


def test_a_package_is_all_that_is_kept(built):
    [name] = EngineCache(built[0]).names()
    kept = EngineCache(built[0]).read(name)
    assert list(kept.files) == [PACKAGE]
    assert kept.facts["form"] == "AOT package"
    assert [p.name for p in kept.path.iterdir()] == [PACKAGE]


def test_a_package_opens_without_compiler_and_imports_nothing_of_it(built):
    """In a new process, as the user does; 1 s here, most of it torch, and a bound that a slow machine keeps."""
    code = """if True:
        import sys, time
        from pathlib import Path
        import torch
        from engine_stubs import SPEC, rows
        from test_engine_inductor import Weighted
        from talkinghead.nodes.core import engine_inductor
        from talkinghead.nodes.core.engine import EngineOptions, open_engine
        engine_inductor.shutil.which = lambda name: None
        before, began = set(sys.modules), time.perf_counter()
        engine = open_engine(SPEC, Weighted(-3.0), EngineOptions("inductor", 4, Path(sys.argv[1])), torch.device("cpu"))
        seconds = time.perf_counter() - began
        assert engine.backend == "inductor", engine.skipped
        assert torch.allclose(engine(**rows(5))["total"], Weighted(-3.0)(**rows(5))["total"], atol=1e-6)
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        assert not new & {"sympy", "triton"}, new
        assert "torch._inductor" not in sys.modules
        print(seconds)
    """
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", code, str(built[0])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 5


def test_without_a_package_an_artifact_is_kept_and_the_report_says_so(artifact, monkeypatch):
    folder, engine, report = artifact
    assert "cuda.h: No such file" in report.facts["AOT package"]
    assert report.facts["engine built"].endswith("kB, artifact")
    monkeypatch.setattr(engine_inductor, "_trace", no_headers)
    again, later = opened(folder, Weighted(-3.0))
    assert (again.backend, again.skipped, later.warnings) == ("inductor", {}, {})
    assert torch.allclose(again(**rows(5))["total"], Weighted(-3.0)(**rows(5))["total"], atol=1e-6)


def recorded(folder):
    """The engine of a copied cache folder, and the report of opening it where building is not allowed."""
    [name] = EngineCache(folder).names()
    return EngineCache(folder).read(name)


def test_a_card_gets_no_package_for_opening_one_ends_the_process(built, tmp_path):
    """The refusal comes before torch sees a file or a graph."""
    card, (folder, engine, _) = torch.device("cuda"), built
    with pytest.raises(EngineSkipped, match="segmentation fault"):
        make_package(None, [], tmp_path / PACKAGE, card)
    with pytest.raises(RuntimeError, match="segmentation fault"):
        load_package(folder / engine.cached[0] / PACKAGE, card)


@pytest.mark.parametrize("form", ["built", "artifact"])
def test_what_was_changed_never_reaches_torch(form, request, tmp_path, monkeypatch):
    """The size is right, so only its hash tells; every file of an artifact's folder counts."""
    folder = tmp_path / "copied"
    shutil.copytree(request.getfixturevalue(form)[0], folder)
    kept = recorded(folder)
    changed = list(kept.files)[-1]
    file = kept.path / changed
    file.write_bytes(os.urandom(file.stat().st_size))

    def loaded(*_, **__):
        raise AssertionError("a changed file was loaded")

    for name in ("load_package", "_load_artifact"):
        monkeypatch.setattr(engine_inductor, name, loaded)
    monkeypatch.setattr(engine_inductor, "missing_tools", lambda device: "no tools: it cannot be built again")
    engine, report = opened(folder, Weighted(2.0))
    assert (engine.backend, engine.skipped["inductor"]) == ("eager", "no tools: it cannot be built again")
    [said] = report.warnings
    assert f"{kept.path.name}/{changed} is not what was built: its SHA-256 is another" in said
    assert f"set aside as {kept.name}.inductor.bad, {kept.name}.json.bad" in said
    assert EngineCache(folder).names() == []


@pytest.mark.parametrize("form", ["built", "artifact"])
def test_torch_sees_only_files_that_the_json_names(form, request, tmp_path, monkeypatch):
    """torch reads every file of its caches' folders: one that was planted there must not be among them."""
    folder = tmp_path / "copied"
    shutil.copytree(request.getfixturevalue(form)[0], folder)
    kept = recorded(folder)
    planted = kept.path / "fxgraph" / "ab" / "planted"
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_bytes(b"code")
    seen = []

    def look(file, *_):
        assert kept.path not in file.parents
        seen.extend(p.relative_to(file.parent).as_posix() for p in file.parent.rglob("*") if p.is_file())
        raise RuntimeError("seen")

    for name in ("load_package", "_load_artifact"):
        monkeypatch.setattr(engine_inductor, name, look)
    monkeypatch.setattr(engine_inductor, "missing_tools", lambda device: "no tools")
    opened(folder, Weighted(2.0))
    assert sorted(seen) == sorted(kept.files)


def test_without_its_json_nothing_is_loaded(built, tmp_path, monkeypatch):
    folder = tmp_path / "copied"
    shutil.copytree(built[0], folder)
    (folder / f"{recorded(folder).name}.json").unlink()
    monkeypatch.setattr(engine_inductor, "load_package", lambda *_: pytest.fail("loaded without its JSON"))
    monkeypatch.setattr(engine_inductor, "missing_tools", lambda device: "no tools")
    engine, report = opened(folder, Weighted(2.0))
    assert engine.backend == "eager"
    assert "beside it that says what it is" in list(report.warnings)[0]


def test_what_does_not_load_is_set_aside_and_built_again(artifact, tmp_path, monkeypatch):
    folder = tmp_path / "copied"
    shutil.copytree(artifact[0], folder)
    kept = recorded(folder)
    (kept.path / engine_inductor.ARTIFACT).write_bytes(b"of another torch")
    EngineCache(folder).write(kept.key, ".inductor", kept.facts)
    monkeypatch.setattr(engine_inductor, "make_package", no_headers)
    engine, report = opened(folder, Weighted(2.0))
    assert engine.backend == "inductor"
    [said] = report.warnings
    assert "it does not run" in said
    assert EngineCache(folder).names() == [kept.name]
    assert torch.allclose(engine(**rows(4))["total"], Weighted(2.0)(**rows(4))["total"], atol=1e-6)


def test_weights_that_lie_otherwise_are_another_engine(built, tmp_path, monkeypatch):
    """Compiled code reads weights by the strides they had; shapes alone would let channels_last weights through."""
    folder, function = tmp_path / "copied", Weighted(2.0)
    shutil.copytree(built[0], folder)
    function.scale.data = torch.tensor([2.0, 9.0]).as_strided((1,), (2,))
    monkeypatch.setattr(engine_inductor, "missing_tools", lambda device: "no tools")
    engine, report = opened(folder, function)
    assert engine.backend == "eager"
    assert "layout" in list(report.warnings)[0]
    conv = torch.nn.Conv2d(4, 4, 3)
    plain = weights_layout(conv)
    assert weights_layout(torch.nn.Conv2d(4, 4, 3)) == plain
    assert weights_layout(conv.to(memory_format=torch.channels_last)) != plain


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
