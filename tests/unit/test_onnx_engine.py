"""TensorRT-RTX through onnxruntime's plug-in: with doubles of both packages, and the real failure where they are."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import unavailable

from talkinghead.nodes.core import onnx_engine
from talkinghead.nodes.core.engine_cache import EngineCache
from talkinghead.nodes.core.engine_spec import (
    EngineIdentity,
    EngineSkipped,
    RunnerRequest,
    StageSpec,
    TensorSpec,
)
from talkinghead.nodes.core.export import ExportForm, OnnxGraph
from talkinghead.nodes.core.onnx_engine import (
    RtxRunner,
    compile_context,
    find_device,
    import_plugin,
    open_tensorrt_rtx,
    session_options,
    takes_capability,
)
from talkinghead.nodes.core.report import Report

SPEC = StageSpec(
    "toy",
    inputs=(TensorSpec("latents", (8, 4, 4), torch.float16), TensorSpec("tokens", (5, 16), torch.float16)),
    outputs=(TensorSpec("images", (3, 8, 8), torch.float16),),
)
BATCH = 4
STREAM = SimpleNamespace(cuda_stream=4711)
EP = "NvTensorRTRTXExecutionProvider"


class FakeOrt:
    """onnxruntime with one plug-in device; records calls, and attributes decide what fails."""

    __version__ = "1.32.0"

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.no_driver = self.refuses = self.writes_nothing = False
        self.n_devices = 1
        self.registered = False
        fake = self

        class SessionOptions:
            def __init__(self) -> None:
                self.entries, self.providers = {}, []

            def add_session_config_entry(self, key, value):
                self.entries[key] = value

            def add_provider_for_devices(self, devices, options):
                self.providers.append((devices, options))

        class RunOptions:
            def __init__(self) -> None:
                self.entries = {}

            def add_run_config_entry(self, key, value):
                self.entries[key] = value

        class Binding:
            def bind_input(self, *args):
                fake.calls.append(("bind_input", *args))

            def bind_output(self, *args):
                fake.calls.append(("bind_output", *args))

        class InferenceSession:
            def __init__(self, path, sess_options):
                self.names = json.loads(Path(path).read_text())
                fake.calls.append(("session", path, sess_options))

            def get_inputs(self):
                return [SimpleNamespace(name=n) for n in self.names["inputs"]]

            def get_outputs(self):
                return [SimpleNamespace(name=n) for n in self.names["outputs"]]

            def io_binding(self):
                return Binding()

            def run_with_iobinding(self, binding, options):
                fake.calls.append(("run", options.entries))

        class ModelCompiler:
            def __init__(self, options, path, embed_compiled_data_into_model):
                fake.calls.append(("compile", options, path, embed_compiled_data_into_model))

            def compile_to_file(self, path):
                if fake.refuses:
                    raise RuntimeError("[ONNXRuntimeError] Attention operation was not supported\nmore")
                if not fake.writes_nothing:
                    names = {"inputs": ["tokens", "latents"], "outputs": ["images"]}
                    Path(path).write_text(json.dumps(names))
                    Path(path).with_name("context.bin").write_bytes(b"engine")

        self.SessionOptions, self.RunOptions = SessionOptions, RunOptions
        self.InferenceSession, self.ModelCompiler = InferenceSession, ModelCompiler

    def register_execution_provider_library(self, name, path):
        self.calls.append(("register", name, path))
        if self.no_driver:
            raise RuntimeError("[ONNXRuntimeError] libcuda.so.1: cannot open shared object file")
        self.registered = True

    def get_ep_devices(self):
        own = (
            [SimpleNamespace(ep_name=EP, number=i) for i in range(self.n_devices)] if self.registered else []
        )
        return [SimpleNamespace(ep_name="CPUExecutionProvider"), *own]

    def of(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


PLUGIN = SimpleNamespace(get_ep_name=lambda: EP, get_library_path=lambda: "/plugin.so")


@pytest.fixture
def ort():
    return FakeOrt()


def buffers(batch=BATCH):
    return {t.name: torch.zeros((batch, *t.shape), dtype=t.dtype) for t in SPEC.inputs}


def test_the_plugin_is_registered_once_and_its_device_chosen(ort):
    ort.n_devices = 2
    assert find_device(ort, PLUGIN, 1).number == 1
    assert find_device(ort, PLUGIN, 0).number == 0
    assert ort.of("register") == [(EP, "/plugin.so")]
    with pytest.raises(EngineSkipped, match="finds 2 cards.*number 2"):
        find_device(ort, PLUGIN, 2)


def test_without_a_driver_the_reason_is_onnxruntimes(ort):
    ort.no_driver = True
    with pytest.raises(EngineSkipped, match=r"libcuda\.so\.1"):
        find_device(ort, PLUGIN)


def test_no_card_it_takes(ort):
    ort.n_devices = 0
    with pytest.raises(EngineSkipped, match="finds 0 cards"):
        find_device(ort, PLUGIN)


def test_sessions_may_not_fall_back_to_the_cpu(ort):
    options = session_options(ort, "card", {"a": "1"})
    assert options.entries == {"session.disable_cpu_ep_fallback": "1"}
    assert options.providers == [(["card"], {"a": "1"})]


def test_compiling_writes_a_context_file_with_the_engine_beside_it(ort, tmp_path):
    compile_context(ort, "card", tmp_path / "toy.onnx", tmp_path / "context.onnx")
    ((options, path, embed),) = ort.of("compile")
    assert (path, embed) == (str(tmp_path / "toy.onnx"), False)
    assert options.providers == [(["card"], {})]
    ort.refuses = True
    with pytest.raises(EngineSkipped, match=r"toy\.onnx \(\[ONNXRuntimeError\] Attention.*supported\)$"):
        compile_context(ort, "card", tmp_path / "toy.onnx", tmp_path / "context.onnx")
    ort.refuses, ort.writes_nothing = False, True
    with pytest.raises(EngineSkipped, match="takes no part"):
        compile_context(ort, "card", tmp_path / "toy.onnx", tmp_path / "other.onnx")


def runner_of(ort, tmp_path, **names):
    path = tmp_path / "engine" / "context.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"inputs": ["tokens", "latents"], "outputs": ["images"], **names}))
    inputs = buffers()
    form = ExportForm(torch.nn.Identity(), SPEC, None)
    return inputs, RtxRunner(ort, "card", path, SPEC, inputs, STREAM, form)


def test_buffers_are_bound_by_name_on_the_callers_stream(ort, tmp_path):
    inputs, runner = runner_of(ort, tmp_path)
    outputs = runner()
    bound = {name: rest for name, *rest in ort.of("bind_input")}
    assert bound == {n: ["cpu", 0, np.float16, tuple(v.shape), v.data_ptr()] for n, v in inputs.items()}
    ((name, *rest),) = ort.of("bind_output")
    assert (name, rest[-1]) == ("images", outputs["images"].data_ptr())
    assert rest[3] == (BATCH, 3, 8, 8)
    ((_, options),) = ort.of("session")
    ((devices, given),) = options.providers
    assert devices == ["card"]
    assert (given["has_user_compute_stream"], given["user_compute_stream"]) == ("1", "4711")
    assert ort.of("run") == [({"disable_synchronize_execution_providers": "1"},)]
    ort.calls.clear()
    assert runner()["images"].data_ptr() == outputs["images"].data_ptr()
    assert [call[0] for call in ort.calls] == ["run"]
    runner.close()
    assert runner._session is None


def test_an_engine_of_another_graph_is_refused(ort, tmp_path):
    with pytest.raises(ValueError, match="outputs crops, the stage images"):
        runner_of(ort, tmp_path, outputs=["crops"])
    with pytest.raises(ValueError, match="inputs latents, the stage latents, tokens"):
        runner_of(ort, tmp_path, inputs=["latents"])


@pytest.mark.parametrize(
    ("capability", "taken"),
    [((8, 6), True), ((8, 9), True), ((12, 0), True), ((12, 1), True), ((13, 0), True)]
    + [((7, 5), False), ((8, 0), False), ((9, 0), False), ((10, 0), False)],
)
def test_which_cards_it_takes(capability, taken):
    assert takes_capability(capability) is taken


@pytest.fixture
def request_of(ort, tmp_path, monkeypatch):
    """Return a function: changes -> a RunnerRequest as on a machine with an RTX card."""
    machine = {"gpu": "RTX 5090", "driver": "580.1", "sm": "sm_120"}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    monkeypatch.setattr("talkinghead.nodes.core.engine_cache.machine_facts", lambda device: dict(machine))
    monkeypatch.setattr(onnx_engine, "machine_facts", lambda device: dict(machine))
    monkeypatch.setattr(onnx_engine, "import_plugin", lambda: (ort, PLUGIN))

    def export(module, spec, path, batch, *args):
        path.write_bytes(b"graph")
        return OnnxGraph(
            path, {"name": spec.name, "seconds": 1.0, "files": {}, "batch": [batch.low, batch.high]}
        )

    monkeypatch.setattr(onnx_engine, "export_onnx", export)

    def make(**changes):
        given = {
            "spec": SPEC,
            "function": torch.nn.Identity(),
            "inputs": buffers(),
            "batch": BATCH,
            "device": torch.device("cuda"),
            "stream": STREAM,
            "cache": tmp_path / "engines",
            "identity": EngineIdentity("fp16", {"a": 1}, lambda: "weights-1"),
            "may_build": True,
            "report": Report(),
            **changes,
        }
        return RunnerRequest(**given)

    make.machine = machine
    return make


def test_open_compiles_once(ort, request_of):
    runner = open_tensorrt_rtx(request_of())
    assert list(runner()) == ["images"]
    assert EngineCache(request_of().cache).names() == [runner.cached]
    assert len(ort.of("compile")) == 1
    again = open_tensorrt_rtx(request_of(may_build=False))
    assert again.cached == runner.cached
    assert len(ort.of("compile")) == 1
    request_of.machine["driver"] = "590.2"
    request = request_of(may_build=False)
    with pytest.raises(EngineSkipped, match="not built yet"):
        open_tensorrt_rtx(request)
    assert any("driver 580.1 instead of 590.2" in text for text in request.report.warnings)


def test_a_context_that_does_not_load_is_set_aside_and_compiled_again(ort, request_of):
    name = open_tensorrt_rtx(request_of()).cached
    context = request_of().cache / f"{name}.plan" / "context.onnx"
    context.write_text("x" * context.stat().st_size)
    request = request_of()
    assert open_tensorrt_rtx(request).cached == name
    assert any("set aside" in text for text in request.report.warnings)
    assert len(ort.of("compile")) == 2


def test_a_failed_compilation_leaves_nothing(ort, request_of):
    ort.refuses = True
    with pytest.raises(EngineSkipped, match="does not compile"):
        open_tensorrt_rtx(request_of())
    assert list(request_of().cache.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": torch.device("cpu")}, "CUDA"),
        ({"cache": None}, "no folder"),
        ({"may_build": False}, "not built"),
    ],
)
def test_reasons_to_skip(ort, request_of, changes, reason):
    with pytest.raises(EngineSkipped, match=reason):
        open_tensorrt_rtx(request_of(**changes))
    assert not ort.of("compile")


def test_a_card_it_does_not_take_is_named(request_of, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(EngineSkipped, match=r"8\.9.*12\.0.*9\.0"):
        open_tensorrt_rtx(request_of())


def test_an_old_onnxruntime_and_a_missing_plugin_say_what_to_install(monkeypatch):
    import sys

    old = SimpleNamespace(__version__="1.20.0", get_ep_devices=None)
    monkeypatch.setitem(sys.modules, "onnxruntime", old)
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_nv_tensorrt_rtx", PLUGIN)
    with pytest.raises(EngineSkipped, match=r"1\.20\.0 has no register.*onnxruntime-gpu"):
        import_plugin()
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_nv_tensorrt_rtx", None)
    with pytest.raises(EngineSkipped, match="pip install onnxruntime onnxruntime-ep-nv-tensorrt-rtx"):
        import_plugin()


def test_the_real_plugin_fails_cleanly_without_a_driver():
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    if importlib.util.find_spec(onnx_engine.PLUGIN) is None:
        pytest.skip("the rtx extra (146 MB) is not installed")
    if importlib.util.find_spec("onnxruntime") is None:
        unavailable("onnxruntime is not installed")
    with pytest.raises(EngineSkipped, match="libcuda"):
        find_device(*import_plugin())
