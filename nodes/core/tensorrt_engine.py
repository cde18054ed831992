"""A stage on TensorRT: a plan from the engine cache, or one built here, run on the engine's own buffers and stream.

Pointers are torch's, bound by name once: shapes are static. TensorRT's own memory (weights and scratch) is outside of
torch's allocator; `TensorRtRunner.memory_bytes` tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .engine_cache import CachedEngine, EngineCache, engine_key, machine_facts
from .engine_spec import EngineSkipped, RunnerRequest, StageSpec
from .export import (
    OPSET,
    BatchRange,
    ExportForm,
    ExportParts,
    export_form,
    export_onnx,
    export_parts,
    scratch_folder,
)
from .onnx_engine import RtxRunner, open_tensorrt_rtx
from .tensorrt_build import PlanOptions, Profile, TensorRt, build_plan, import_tensorrt

SUFFIX = ".plan"
MACHINE = ("tensorrt", "gpu", "driver")
"""Of the machine, what a plan is tied to beside the sm."""
TIMING_CACHE = "tensorrt.timing"
_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "BOOL": torch.bool,
}


class PlanRefused(ValueError):
    """TensorRT does not load a plan; the message says which versions and cards do not fit."""


class TensorRtRunner:
    """A loaded plan bound to input buffers; outputs are allocated once for the static batch.

    Args:
        rt: TensorRT with its logger, which must live as long.
        engine: from `load_plan`.
        spec: the plan's tensors; they are matched by name, in whatever order the plan lists them.
        inputs: static buffers (batch, *shape) by name, contiguous, that keep their place.
        stream: the CUDA stream to run on, not the default one: TensorRT would wait for the card around each call.
        form: its `finish` makes the stage's outputs of the plan's.

    `memory_bytes`: what it holds of the card outside of torch's allocator.

    Raises:
        ValueError: the plan has other tensors, dtypes or batches than the spec; nothing has run.
        EngineSkipped: no memory for an execution context.
    """

    cached: str | None = None

    def __init__(
        self,
        rt: TensorRt,
        engine: Any,
        spec: StageSpec,
        inputs: Mapping[str, Tensor],
        stream: Any,
        form: ExportForm,
    ) -> None:
        self._rt, self._engine, self._stream, self._finish = rt, engine, stream, form.finish
        self.memory_bytes = scratch_bytes(engine)
        self._name, self._inputs = spec.name, dict(inputs)
        check_stream(stream)
        check_engine(rt, engine, spec, {name: tuple(value.shape) for name, value in inputs.items()})
        self._context = engine.create_execution_context()
        if self._context is None:
            need = self.memory_bytes >> 20
            raise EngineSkipped(f"no execution context, which needs {need} MiB of the card.{rt.why()}")
        first = next(iter(inputs.values()))
        self._outputs = {
            t.name: torch.empty((len(first), *t.shape), dtype=t.dtype, device=first.device)
            for t in spec.outputs
        }
        self._bind()

    def __call__(self) -> Mapping[str, Tensor]:
        """Queue one batch on the stream. RuntimeError, with TensorRT's words, if it refuses."""
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise RuntimeError(f"{self._name}: TensorRT did not start the batch.{self._rt.why()}")
        return self._outputs if self._finish is None else self._finish(self._outputs)

    def close(self) -> None:
        """Free the context, then the engine. The caller has waited for the stream."""
        self._context = None
        self._engine = None
        self._outputs, self._inputs = {}, {}

    def _bind(self) -> None:
        context = self._context
        for name, value in self._inputs.items():
            if not context.set_input_shape(name, tuple(value.shape)):
                raise ValueError(
                    f"{self._name}: TensorRT refuses {name} {tuple(value.shape)}.{self._rt.why()}"
                )
        for name, value in (*self._inputs.items(), *self._outputs.items()):
            if not value.is_contiguous():
                raise ValueError(f"{self._name}: the buffer of {name} must be contiguous")
            if not context.set_tensor_address(name, value.data_ptr()):
                raise ValueError(f"{self._name}: TensorRT refuses the buffer of {name}.{self._rt.why()}")
        for name, value in self._outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            if shape != tuple(value.shape):
                raise ValueError(
                    f"{self._name}: output {name} is {shape} in the plan, {tuple(value.shape)} expected"
                )
        missing = list(context.infer_shapes()) if hasattr(context, "infer_shapes") else []
        if missing:
            raise ValueError(f"{self._name}: TensorRT still lacks shapes of {', '.join(missing)}")


class PartsRunner:
    """Several loaded plans with torch between them, on input buffers of their own; see `ExportParts`.

    Args:
        parts: what runs them.
        runners: of each, by name; their input buffers by name.
        inputs: the stage's own static buffers.
    """

    def __init__(
        self,
        parts: ExportParts,
        runners: Mapping[str, tuple[TensorRtRunner, Mapping[str, Tensor]]],
        inputs: Mapping[str, Tensor],
    ) -> None:
        self._run, self._inputs, self._runners = parts.run, dict(inputs), dict(runners)
        self._calls = {form.spec.name: partial(self._part, form.spec) for form in parts.forms}
        made = [runner for runner, _ in runners.values()]
        self.cached = tuple(runner.cached for runner in made if runner.cached)
        self.memory_bytes = sum(runner.memory_bytes for runner in made)

    def __call__(self) -> Mapping[str, Tensor]:
        """Queue one batch on the current stream, which is the plans' own."""
        return self._run(self._calls, self._inputs)

    def close(self) -> None:
        for runner, _ in self._runners.values():
            runner.close()
        self._runners, self._calls, self._inputs = {}, {}, {}

    def _part(self, spec: StageSpec, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        runner, buffers = self._runners[spec.name]
        for tensor, value in zip(spec.inputs, values, strict=True):
            buffers[tensor.name].copy_(value)
        made = runner()
        outputs = tuple(made[tensor.name] for tensor in spec.outputs)
        return outputs if len(outputs) > 1 else outputs[0]


def open_tensorrt(request: RunnerRequest) -> TensorRtRunner | PartsRunner | RtxRunner:
    """Open a stage: its plan out of the cache, or its plans, or built if the request allows that.

    Where TensorRT itself is missing, TensorRT-RTX takes its place if its plug-in is installed and the card is an RTX.

    Raises:
        EngineSkipped: no CUDA, no TensorRT, no folder for engines, or nothing built and building not allowed.
        RuntimeError: TensorRT cannot build the stage.
    """
    if request.device.type != "cuda":
        raise EngineSkipped(f"needs a CUDA device, this runs on {request.device.type}")
    try:
        rt = import_tensorrt()
    except ImportError as error:
        return _open_rtx(request, str(error))
    if request.cache is None:
        raise EngineSkipped("there is no folder for built engines")
    cache, parts = EngineCache(request.cache), export_parts(request.function)
    with torch.cuda.device(request.device):
        if parts is None:
            form = export_form(request.spec, request.function)
            return _open_form(rt, cache, form, request)
        return _open_parts(rt, cache, parts, request)


def _open_parts(rt: TensorRt, cache: EngineCache, parts: ExportParts, request: RunnerRequest) -> PartsRunner:
    runners: dict[str, tuple[TensorRtRunner, Mapping[str, Tensor]]] = {}
    device = next(iter(request.inputs.values())).device
    try:
        for form in parts.forms:
            buffers = {
                t.name: torch.zeros((request.batch, *t.shape), dtype=t.dtype, device=device)
                for t in form.spec.inputs
            }
            # By its own name, or the parts would share a file.
            own = replace(request, spec=form.spec, inputs=buffers)
            runners[form.spec.name] = _open_form(rt, cache, form, own), buffers
        return PartsRunner(parts, runners, request.inputs)
    except BaseException:
        for runner, _ in runners.values():
            runner.close()
        raise


def _open_form(rt: TensorRt, cache: EngineCache, form: ExportForm, request: RunnerRequest) -> TensorRtRunner:
    options = PlanOptions(Profile.static(request.batch), timing_cache=cache.folder / TIMING_CACHE)
    key = plan_key(request, form, options)
    if found := cache.find(key, SUFFIX, request.report):
        try:
            return _open_found(rt, found, form, request)
        except (PlanRefused, ValueError) as error:
            cache.set_aside(found.name, str(error), request.report)
    if not request.may_build:
        raise EngineSkipped(
            f"not built yet for this card, precision and batch {request.batch}; choose it by name, or build it "
            f"once (node Engine, or talkinghead engine build)"
        )
    return _open_found(rt, _build(rt, cache, key, form, options, request), form, request)


def plan_key(request: RunnerRequest, form: ExportForm, options: PlanOptions) -> dict[str, Any]:
    """What a plan must agree on: with `engine_key`, the weights it holds, its graph, profile and flags."""
    profile = {name: [list(s) for s in three] for name, three in options.profile.shapes(form.spec).items()}
    graph = {"name": form.spec.name, "opset": OPSET, "outputs": [str(t) for t in form.spec.outputs]}
    weights = request.identity.weights_sha256()
    return engine_key(
        request, "tensorrt", MACHINE, weights=weights, graph=graph, profile=profile, flags=options.flags()
    )


def load_plan(rt: TensorRt, path: Path, made_with: Mapping[str, Any] | None = None) -> Any:
    """Deserialize a plan.

    Args:
        rt: TensorRT.
        path: the plan file.
        made_with: facts of its sidecar: `tensorrt`, `sm`, `gpu`, `flags`.

    Raises:
        PlanRefused: TensorRT gives nothing back, as it does for other versions, other cards and damaged files.
    """
    made = dict(made_with or {})
    runtime = rt.module.Runtime(rt.logger)
    if made.get("flags", {}).get("version_compatible") and hasattr(runtime, "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True  # such plans carry the runtime that runs them
    engine = runtime.deserialize_cuda_engine(Path(path).read_bytes())
    if engine is None:
        built = (
            f"TensorRT {made.get('tensorrt', 'of unknown version')} on {made.get('sm', 'an unknown card')}"
        )
        raise PlanRefused(
            f"{Path(path).name} was built by {built}; TensorRT {rt.version} here cannot load it: build it again with "
            f"`talkinghead engine build`.{rt.why()}"
        )
    return engine


def check_engine(rt: TensorRt, engine: Any, spec: StageSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the plan has the spec's tensors, with its dtypes, and takes inputs of these shapes."""
    modes = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        modes[name] = engine.get_tensor_mode(name) == rt.module.TensorIOMode.INPUT
    for kind, tensors, is_input in (("inputs", spec.inputs, True), ("outputs", spec.outputs, False)):
        there, wanted = {n for n, mode in modes.items() if mode == is_input}, {t.name for t in tensors}
        if there != wanted:
            raise ValueError(
                f"the plan of {spec.name} has the {kind} {', '.join(sorted(there))}, the stage "
                f"{', '.join(sorted(wanted))}: it was built from another graph"
            )
    for tensor in (*spec.inputs, *spec.outputs):
        dtype = engine.get_tensor_dtype(tensor.name)
        if _DTYPES.get(getattr(dtype, "name", str(dtype))) != tensor.dtype:
            raise ValueError(
                f"the plan of {spec.name} has {tensor.name} as {dtype}, the stage as {tensor.dtype}"
            )
    for name, shape in shapes.items():
        low, _, high = (tuple(s) for s in engine.get_tensor_profile_shape(name, 0))
        fits = len(shape) == len(low) and all(a <= n <= b for a, n, b in zip(low, shape, high, strict=True))
        if not fits:
            raise ValueError(
                f"{spec.name}: {name} {shape} is outside of the plan's range {low} to {high}: use a batch of "
                f"{low[0]} to {high[0]}, or build the engine again"
            )


def scratch_bytes(engine: Any) -> int:
    """Memory of one execution context beside the weights, 0 if this TensorRT does not tell."""
    for name in ("device_memory_size_v2", "device_memory_size"):
        if (size := getattr(engine, name, None)) is not None:
            return int(size)
    return 0


def check_stream(stream: Any) -> None:
    if stream is None or not stream.cuda_stream:
        raise ValueError(
            "TensorRT needs a stream of its own: on the default one it waits for the card in each call"
        )


def _open_rtx(request: RunnerRequest, missing: str) -> RtxRunner:
    try:
        return open_tensorrt_rtx(request)
    except EngineSkipped as error:
        raise EngineSkipped(f"{missing}; {error}") from error


def _open_found(
    rt: TensorRt, found: CachedEngine, form: ExportForm, request: RunnerRequest
) -> TensorRtRunner:
    engine = load_plan(rt, found.path, found.key)
    runner = TensorRtRunner(rt, engine, form.spec, request.inputs, request.stream, form)
    runner.cached = found.name
    runner.memory_bytes += found.size  # a plan is nearly all weights
    return runner


def _build(
    rt: TensorRt,
    cache: EngineCache,
    key: Mapping[str, Any],
    form: ExportForm,
    options: PlanOptions,
    request: RunnerRequest,
) -> CachedEngine:
    # The graph and its weights are needed for the build alone and are as large as the checkpoint.
    with scratch_folder(cache.folder) as folder:
        path = folder / f"{form.spec.name}.onnx"
        graph = export_onnx(form.module, form.spec, path, BatchRange(request.batch, request.batch))
        built = build_plan(graph, form.spec, cache.place(key, SUFFIX), options, tensorrt=rt)
    facts = {
        "machine": machine_facts(request.device),
        "config": dict(request.identity.config),
        "model": key["weights"],
        "build_seconds": built["seconds"],
        "export_seconds": graph.facts["seconds"],
        "onnx": built["onnx"],
    }
    engine = cache.write(key, SUFFIX, facts)
    request.report.fact("engine built", f"{engine.name} in {built['seconds']} s, {engine.size >> 20} MB")
    return engine
