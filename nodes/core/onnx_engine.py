"""A stage on TensorRT-RTX, through onnxruntime's plug-in: for GeForce and RTX cards, which need no TensorRT of their own.

The plug-in compiles a graph once into a context file that later starts load. It needs onnxruntime 1.24 or newer, the
package for the CPU (onnxruntime-gpu brings another build of the same modules), and takes compute capability 8.6, 8.9
and from 12.0 on: RTX 30, 40 and 50, no data-centre card.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .engine_cache import CachedEngine, EngineCache, engine_key, machine_facts, package_version
from .engine_spec import EngineSkipped, RunnerRequest, StageSpec, first_line
from .export import OPSET, BatchRange, ExportForm, export_form, export_onnx, scratch_folder
from .interrupt import is_interrupt

INSTALL = "pip install onnxruntime onnxruntime-ep-nv-tensorrt-rtx"
PLUGIN = "onnxruntime_ep_nv_tensorrt_rtx"
PACKAGES = ("onnxruntime-ep-nv-tensorrt-rtx-cu13", "onnxruntime-ep-nv-tensorrt-rtx-cu12")
SUFFIX = ".plan"
CONTEXT = "context.onnx"
JIT_CACHE = "tensorrt-rtx.jit"
_NEEDED = ("register_execution_provider_library", "get_ep_devices", "ModelCompiler")
_EXACT_CAPABILITIES = ((8, 6), (8, 9))
_NEWEST_FROM = (12, 0)


class RtxRunner:
    """A compiled context file bound to input buffers; outputs are allocated once.

    Args:
        ort: onnxruntime. device: the plug-in's device. path: the context file. spec: its tensors, matched by name.
        inputs: static buffers (batch, *shape) by name that keep their place. stream: a CUDA stream of its own.
        form: its `finish` makes the stage's outputs of the file's.

    Raises:
        ValueError: the file has other tensors than the spec.
    """

    cached: str | None = None

    def __init__(
        self,
        ort: Any,
        device: Any,
        path: Path,
        spec: StageSpec,
        inputs: Mapping[str, Tensor],
        stream: Any,
        form: ExportForm,
    ) -> None:
        self._finish, self._name = form.finish, spec.name
        options = {
            "has_user_compute_stream": "1",
            "user_compute_stream": str(stream.cuda_stream),
            "nv_persistent_context_memory": "1",
            "nv_runtime_cache_path": str(Path(path).parent.parent / JIT_CACHE),
        }
        self._session = ort.InferenceSession(str(path), sess_options=session_options(ort, device, options))
        for kind, there, wanted in (
            ("inputs", self._session.get_inputs(), spec.inputs),
            ("outputs", self._session.get_outputs(), spec.outputs),
        ):
            names = {value.name for value in there}
            if names != {t.name for t in wanted}:
                raise ValueError(
                    f"the engine of {spec.name} has the {kind} {', '.join(sorted(names))}, the stage "
                    f"{', '.join(sorted(t.name for t in wanted))}: it was built from another graph"
                )
        first = next(iter(inputs.values()))
        self._inputs = dict(inputs)
        self._outputs = {
            t.name: torch.empty((len(first), *t.shape), dtype=t.dtype, device=first.device)
            for t in spec.outputs
        }
        self._binding = self._session.io_binding()
        for name, value in self._inputs.items():
            self._binding.bind_input(name, *_place(value))
        for name, value in self._outputs.items():
            self._binding.bind_output(name, *_place(value))
        self._run_options = ort.RunOptions()
        # Without it every call would wait for the card.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def __call__(self) -> Mapping[str, Tensor]:
        self._session.run_with_iobinding(self._binding, self._run_options)
        return self._outputs if self._finish is None else self._finish(self._outputs)

    def close(self) -> None:
        self._binding = self._session = None
        self._outputs, self._inputs = {}, {}


def open_tensorrt_rtx(request: RunnerRequest) -> RtxRunner:
    """Open a stage: its context file out of the cache, or compiled if the request allows that.

    Raises:
        EngineSkipped: no CUDA, a card that is not taken, no plug-in, no driver, nothing built and building not
            allowed, or a graph that the plug-in does not take whole.
    """
    if request.device.type != "cuda":
        raise EngineSkipped(f"needs a CUDA device, this runs on {request.device.type}")
    capability = tuple(torch.cuda.get_device_capability(request.device))
    if not takes_capability(capability):
        raise EngineSkipped(
            f"TensorRT-RTX takes compute capability 8.6, 8.9 and from 12.0 on, this card has "
            f"{capability[0]}.{capability[1]}"
        )
    if request.cache is None:
        raise EngineSkipped("there is no folder for built engines")
    ort, plugin = import_plugin()
    device = find_device(ort, plugin, request.device.index or 0)
    cache, form = EngineCache(request.cache), export_form(request.spec, request.function)
    key = rtx_key(request, form)
    if found := cache.find(key, SUFFIX, request.report):
        try:
            return _open_found(ort, device, found, form, request)
        except Exception as error:  # onnxruntime's errors have no common base but this
            if is_interrupt(error):
                raise
            cache.set_aside(found.name, f"it does not load ({first_line(error)})", request.report)
    if not request.may_build:
        raise EngineSkipped(
            f"not built yet for this card, precision and batch {request.batch}; choose it by name, or build it once "
            f"(node Engine, or talkinghead engine build)"
        )
    return _open_found(ort, device, _build(ort, device, cache, key, form, request), form, request)


def takes_capability(capability: tuple[int, int]) -> bool:
    """Whether the plug-in runs on this compute capability (plug-in 0.5.0's own list)."""
    return capability in _EXACT_CAPABILITIES or capability >= _NEWEST_FROM


def import_plugin() -> tuple[Any, Any]:
    """Return onnxruntime and the plug-in's package. EngineSkipped says what is missing."""
    try:
        import onnxruntime as ort
        import onnxruntime_ep_nv_tensorrt_rtx as plugin
    except ImportError as error:
        raise EngineSkipped(f"TensorRT-RTX is not installed ({error}): {INSTALL}") from error
    if missing := [name for name in _NEEDED if not hasattr(ort, name)]:
        raise EngineSkipped(
            f"onnxruntime {ort.__version__} has no {missing[0]}: version 1.24 or newer is needed, and not "
            f"onnxruntime-gpu; {INSTALL}"
        )
    return ort, plugin


def find_device(ort: Any, plugin: Any, index: int = 0) -> Any:
    """Register the plug-in, once per process, and return its device `index`.

    Raises:
        EngineSkipped: it does not load (no driver), or finds no card; says why.
    """
    name = plugin.get_ep_name()
    devices = [d for d in ort.get_ep_devices() if d.ep_name == name]
    if not devices:
        try:
            ort.register_execution_provider_library(name, plugin.get_library_path())
        except Exception as error:  # onnxruntime's errors have no common base but this
            if is_interrupt(error):
                raise
            raise EngineSkipped(f"TensorRT-RTX does not load ({first_line(error)})") from error
        devices = [d for d in ort.get_ep_devices() if d.ep_name == name]
    if index >= len(devices):
        raise EngineSkipped(f"TensorRT-RTX finds {len(devices)} cards it takes, number {index} is wanted")
    return devices[index]


def session_options(ort: Any, device: Any, options: Mapping[str, str]) -> Any:
    """Session options with the plug-in alone: a graph it does not take whole fails instead of running on the CPU."""
    made = ort.SessionOptions()
    made.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    made.add_provider_for_devices([device], dict(options))
    return made


def compile_context(
    ort: Any, device: Any, graph: Path, target: Path, options: Mapping[str, str] | None = None
) -> None:
    """Compile an ONNX file into the context file `target` (its engine beside it).

    Raises:
        EngineSkipped: the plug-in refuses the graph, or leaves a part of it to the CPU.
    """
    try:
        made = session_options(ort, device, options or {})
        ort.ModelCompiler(made, str(graph), embed_compiled_data_into_model=False).compile_to_file(str(target))
    except Exception as error:  # onnxruntime's errors have no common base but this
        if is_interrupt(error):
            raise
        raise EngineSkipped(
            f"TensorRT-RTX does not compile {Path(graph).name} ({first_line(error)})"
        ) from error
    if not Path(target).is_file():
        raise EngineSkipped(
            f"TensorRT-RTX wrote nothing for {Path(graph).name}: it takes no part of the graph"
        )


def rtx_key(request: RunnerRequest, form: ExportForm) -> dict[str, Any]:
    """What a context file must agree on: with `engine_key`, the weights, the graph and both packages' versions."""
    graph = {"name": form.spec.name, "opset": OPSET, "outputs": [str(t) for t in form.spec.outputs]}
    return engine_key(
        request,
        "tensorrt-rtx",
        ("gpu", "driver"),
        weights=request.identity.weights_sha256(),
        graph=graph,
        onnxruntime=package_version("onnxruntime"),
        plugin=package_version(*PACKAGES),
    )


def _place(value: Tensor) -> tuple[str, int, Any, tuple[int, ...], int]:
    """Device, its number, numpy dtype, shape and pointer of a buffer, as onnxruntime binds it."""
    numpy_dtype = torch.empty(0, dtype=value.dtype).numpy().dtype.type
    return value.device.type, value.device.index or 0, numpy_dtype, tuple(value.shape), value.data_ptr()


def _open_found(
    ort: Any, device: Any, found: CachedEngine, form: ExportForm, request: RunnerRequest
) -> RtxRunner:
    runner = RtxRunner(ort, device, found.path / CONTEXT, form.spec, request.inputs, request.stream, form)
    runner.cached = found.name
    return runner


def _build(
    ort: Any,
    device: Any,
    cache: EngineCache,
    key: Mapping[str, Any],
    form: ExportForm,
    request: RunnerRequest,
) -> CachedEngine:
    target = cache.place(key, SUFFIX)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        # The graph and its weights are needed for the build alone and are as large as the checkpoint.
        with scratch_folder(cache.folder) as folder:
            path = folder / f"{form.spec.name}.onnx"
            graph = export_onnx(form.module, form.spec, path, BatchRange(request.batch, request.batch))
            with request.report.timed("TensorRT-RTX build"):
                compile_context(ort, device, graph.path, target / CONTEXT)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    facts = {
        "machine": machine_facts(request.device),
        "config": dict(request.identity.config),
        "model": key["weights"],
        "export_seconds": graph.facts["seconds"],
        "onnx": graph.identity,
    }
    engine = cache.write(key, SUFFIX, facts)
    request.report.fact("engine built", f"{engine.name}, {engine.size >> 20} MB")
    return engine
