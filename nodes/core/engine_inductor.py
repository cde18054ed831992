"""A stage compiled by torch's Inductor for one batch; on CUDA the compiled code is then recorded as a graph.

What the compiler makes is kept in the engine cache: with it a start traces the network but compiles nothing. Weights are
arguments of the compiled code, so an engine fits every set of weights of the same config.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from .engine_cache import EngineCache, engine_key, machine_facts
from .engine_graph import GraphRunner
from .engine_spec import EngineSkipped, RunnerRequest, StageFunction, first_line, is_out_of_memory
from .interrupt import is_interrupt

SUFFIX = ".inductor"
ARTIFACT = "stage.bin"
MACHINE = ("torch", "cuda", "triton", "gpu")
"""What compiled code depends on; the driver is not among it."""
_OWN_VARIABLES = ("TORCHINDUCTOR", "_TORCHINDUCTOR", "TRITON")
_lock = threading.Lock()


class CompiledRunner:
    """Compiled code called as it is, where there are no graphs."""

    cached: str | None = None

    def __init__(self, request: RunnerRequest, function: StageFunction) -> None:
        self._function, self._inputs = function, request.inputs
        self()

    def __call__(self) -> Mapping[str, Tensor]:
        return self._function(**self._inputs)

    def close(self) -> None:
        self._function, self._inputs = None, {}


def open_inductor(request: RunnerRequest) -> GraphRunner | CompiledRunner:
    """Compile the stage, or take it from the cache.

    Raises:
        EngineSkipped: no compiler on this machine, or nothing built and `may_build` is off.
    """
    if why := missing_tools(request.device):
        raise EngineSkipped(why)
    if request.cache is None:
        if not request.may_build:
            raise EngineSkipped("there is no folder for built engines")
        return _compile(request, None)
    cache = EngineCache(request.cache)
    key = engine_key(request, "inductor", MACHINE)
    if found := cache.find(key, SUFFIX, request.report):
        try:
            runner = _compile(request, found.path)
            runner.cached = found.name
            return runner
        except Exception as e:
            if is_interrupt(e) or is_out_of_memory(e):
                raise
            why = f"it does not run ({type(e).__name__}: {first_line(e)})"
        cache.set_aside(found.name, why, request.report)
    if not request.may_build:
        raise EngineSkipped(
            f"not built yet for this card, precision and batch {request.batch}; choose it by name, or build it once "
            f"(node Engine, or talkinghead engine build)"
        )
    return _build(request, cache, key)


def missing_tools(device: torch.device) -> str | None:
    """Return what the compiler lacks for this device, None if nothing."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        package = "triton-windows" if sys.platform == "win32" else "triton"
        return f"the package {package} is missing: pip install {package}"
    if device.type not in ("cuda", "cpu"):
        return f"does not compile for {device.type}"
    if sys.platform == "win32" and device.type == "cuda":
        return None  # triton-windows brings its own compiler
    names = [
        os.environ.get("CXX" if device.type == "cpu" else "CC"),
        "cl",
        "g++",
        "gcc",
        "clang++",
        "clang",
        "cc",
    ]
    if not any(name and shutil.which(name) for name in names):
        return "there is no C++ compiler: install g++ or clang (Windows: Visual Studio Build Tools)"
    return None


def _build(request: RunnerRequest, cache: EngineCache, key: Mapping) -> GraphRunner | CompiledRunner:
    folder = cache.place(key, SUFFIX)
    # What lies here was built for another machine, or its build was stopped.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    try:
        runner = _compile(request, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    seconds = round(time.perf_counter() - began, 1)
    facts = {
        "machine": machine_facts(request.device),
        "config": dict(request.identity.config),
        "model": request.identity.weights_sha256(),
        "build_seconds": seconds,
    }
    engine = cache.write(key, SUFFIX, facts)
    runner.cached = engine.name
    request.report.fact("engine built", f"{engine.name} in {seconds} s, {engine.size >> 10} kB")
    return runner


def _compile(request: RunnerRequest, folder: Path | None) -> GraphRunner | CompiledRunner:
    with _lock, compiler_cache(folder):
        function = _artifact(request, folder) if folder else None
        if function is None:
            function = torch.compile(_own_code(request.function), fullgraph=True, dynamic=False)
        if request.device.type == "cuda":
            return GraphRunner(request, function)
        return CompiledRunner(request, function)


def _artifact(request: RunnerRequest, folder: Path) -> StageFunction | None:
    """The stage as a file of compiled code, read or made; None where torch has no such files (before 2.8).

    Reading it spares tracing the network: 0.1 s instead of 6 s for a network of toy size on a slow CPU.
    """
    compiler = importlib.import_module("torch._inductor")
    if not hasattr(compiler, "standalone_compile"):
        return None
    weights, file = _weights(request.function), folder / ARTIFACT
    if file.is_file():
        artifact = compiler.CompiledArtifact.load(path=str(file), format="binary")
    else:
        given = [*weights.values(), *request.inputs.values()]
        graph = _trace(request, list(weights), given)
        artifact = compiler.standalone_compile(graph, given, dynamic_shapes="from_example_inputs")
        artifact.save(path=str(file), format="binary")
    outputs, held = [t.name for t in request.spec.outputs], list(weights.values())

    def stage(**inputs: Tensor) -> Mapping[str, Tensor]:
        got = artifact(*held, *(inputs[name] for name in request.inputs))
        return dict(zip(outputs, got, strict=True))

    return stage


def _weights(function: StageFunction) -> dict[str, Tensor]:
    if not isinstance(function, nn.Module):
        return {}
    return {**dict(function.named_parameters()), **dict(function.named_buffers())}


def _trace(request: RunnerRequest, names: list[str], given: list[Tensor]) -> torch.fx.GraphModule:
    """Write the stage down as one graph of torch's basic operations, weights first, then inputs, all as arguments."""

    def flat(*tensors: Tensor) -> list[Tensor]:
        weights = dict(zip(names, tensors[: len(names)], strict=True))
        inputs = dict(zip(request.inputs, tensors[len(names) :], strict=True))
        if isinstance(request.function, nn.Module):
            out = functional_call(request.function, weights, (), inputs)
        else:
            out = request.function(**inputs)
        return [out[t.name] for t in request.spec.outputs]

    return make_fx(flat, tracing_mode="fake")(*given)


def _own_code(function: StageFunction) -> StageFunction:
    """Wrap `function` so that Dynamo sees code of its own.

    Dynamo keeps what it compiled with the code object and gives up after eight versions of one; shared code would count
    the batches and models of the whole session.
    """

    def stage(**inputs: Tensor) -> Mapping[str, Tensor]:
        return function(**inputs)

    code = stage.__code__.replace(co_name=f"stage_{id(function):x}_{time.monotonic_ns():x}")
    return FunctionType(code, globals(), code.co_name, None, stage.__closure__)


@contextmanager
def compiler_cache(folder: Path | None) -> Iterator[None]:
    """Let Inductor and Triton keep what they make in `folder`; the environment is left as it was found."""
    with ExitStack() as scope:
        scope.callback(_restore, dict(os.environ))
        # Code made before for another folder would be taken from memory and be missing in this one.
        _forget_compiled()
        scope.callback(_forget_compiled)
        if folder is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve())
            os.environ["TRITON_CACHE_DIR"] = str(folder.resolve() / "triton")
        for module, options in (
            ("torch._inductor", {"fx_graph_cache": True}),
            ("torch._functorch", {"enable_autograd_cache": True}),
        ):
            config = importlib.import_module(f"{module}.config")
            known = {k: v for k, v in options.items() if hasattr(config, k)}
            scope.enter_context(config.patch(known))
        yield


def _forget_compiled() -> None:
    from torch._inductor import utils

    forget = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
    if forget:
        forget()


def _restore(before: Mapping[str, str]) -> None:
    # Inductor sets variables of its own too, even when it only asks where its cache is.
    for name in {*before, *os.environ}:
        if not name.startswith(_OWN_VARIABLES) or before.get(name) == os.environ.get(name):
            continue
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
