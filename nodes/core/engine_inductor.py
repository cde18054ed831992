"""A stage compiled by torch's Inductor for one batch; on CUDA the compiled code is then recorded as a graph.

What the compiler makes is kept in the engine cache, as an AOTInductor package (`engine_aot`) or, where that cannot be
made, as an artifact of torch's caches: with either a start traces and compiles nothing. Weights are arguments of the
compiled code, so an engine fits every set of weights of the same config and layout.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .engine_aot import PACKAGE, Compiled, load_package, make_package
from .engine_cache import CachedEngine, EngineCache, EngineDamaged, engine_key, machine_facts
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
    """Compile the stage, or take it from the cache. What is cached as a package needs no compiler.

    Raises:
        EngineSkipped: no compiler on this machine, or nothing built and `may_build` is off.
    """
    if request.cache is None:
        if why := missing_tools(request.device):
            raise EngineSkipped(why)
        if not request.may_build:
            raise EngineSkipped("there is no folder for built engines")
        with _lock, compiler_cache(None):
            return _runner(request, torch.compile(_own_code(request.function), fullgraph=True, dynamic=False))
    cache = EngineCache(request.cache)
    key = engine_key(request, "inductor", MACHINE, layout=weights_layout(request.function))
    # The files are hashed while they are copied, which is once.
    if found := cache.find(key, SUFFIX, request.report, hashes=False):
        try:
            runner = _open_built(request, cache, found)
            runner.cached = found.name
            return runner
        except EngineDamaged as e:
            why = str(e)
        except Exception as e:
            if is_interrupt(e) or is_out_of_memory(e):
                raise
            why = f"it does not run ({type(e).__name__}: {first_line(e)})"
        cache.set_aside(found.name, why, request.report)
    if why := missing_tools(request.device):
        raise EngineSkipped(why)
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


def weights_layout(function: StageFunction) -> str:
    """Hash of the shapes, strides and dtypes of the weights: compiled code reads them as they lay when it was made."""
    rows = [(k, tuple(t.shape), t.stride(), str(t.dtype)) for k, t in _weights(function).items()]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def _open_built(
    request: RunnerRequest, cache: EngineCache, found: CachedEngine
) -> GraphRunner | CompiledRunner:
    """Load from a private copy of the files that the JSON names, hashed as they are copied.

    What torch loads can run anything. So nothing else of the cache folder reaches it, planted or half written, and
    nobody can change a file between its check and its use.
    """
    with _scratch() as folder:
        cache.copy_checked(found, folder)
        if (folder / PACKAGE).is_file():
            return _runner(request, _stage(request, load_package(folder / PACKAGE, request.device)))
        with _lock, compiler_cache(folder):
            return _runner(request, _stage(request, _load_artifact(folder / ARTIFACT)))


@contextmanager
def _scratch() -> Iterator[Path]:
    # Windows keeps libraries in use from being deleted; the rest goes when the system clears its temporary files.
    with tempfile.TemporaryDirectory(prefix="talkinghead-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _build(request: RunnerRequest, cache: EngineCache, key: Mapping) -> GraphRunner | CompiledRunner:
    folder = cache.place(key, SUFFIX)
    # What lies here was built for another machine, or its build was stopped.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    try:
        with _lock:
            compiled, form = _compile(request, folder)
            runner = _runner(request, _stage(request, compiled))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    seconds = round(time.perf_counter() - began, 1)
    facts = {
        "machine": machine_facts(request.device),
        "config": dict(request.identity.config),
        "model": request.identity.weights_sha256(),
        "build_seconds": seconds,
        "form": form,
    }
    engine = cache.write(key, SUFFIX, facts)
    runner.cached = engine.name
    request.report.fact("engine built", f"{engine.name} in {seconds} s, {engine.size >> 10} kB, {form}")
    return runner


def _compile(request: RunnerRequest, folder: Path) -> tuple[Compiled, str]:
    """Compile the stage into `folder`; return the code and its form: a package, or an artifact where that fails."""
    weights = _weights(request.function)
    given = [*weights.values(), *request.inputs.values()]
    with _scratch() as work, compiler_cache(work):  # only the package itself is kept
        graph = _trace(request, list(weights), given)
        try:
            make_package(copy.deepcopy(graph), given, folder / PACKAGE, request.device)
            return load_package(folder / PACKAGE, request.device), "AOT package"
        except Exception as e:
            if is_interrupt(e) or is_out_of_memory(e):
                raise
            why = first_line(e) if isinstance(e, EngineSkipped) else f"{type(e).__name__}: {first_line(e)}"
    (folder / PACKAGE).unlink(missing_ok=True)
    request.report.fact("AOT package", f"not made, an artifact that opens in seconds more is kept: {why}")
    with compiler_cache(folder):
        compiler = importlib.import_module("torch._inductor")
        if not hasattr(compiler, "standalone_compile"):
            raise EngineSkipped(f"torch {torch.__version__} keeps no compiled code; use torch 2.8 or later")
        artifact = compiler.standalone_compile(graph, given, dynamic_shapes="from_example_inputs")
        artifact.save(path=str(folder / ARTIFACT), format="binary")
        compiled = _listed(artifact)
        # Kernels are made and tuned in the first call, for this folder.
        with torch.inference_mode():
            compiled(given)
    return compiled, "artifact"


def _load_artifact(file: Path) -> Compiled:
    compiler = importlib.import_module("torch._inductor")
    return _listed(compiler.CompiledArtifact.load(path=str(file), format="binary"))


def _listed(artifact: Callable) -> Compiled:
    return lambda tensors: artifact(*tensors)


def _runner(request: RunnerRequest, function: StageFunction) -> GraphRunner | CompiledRunner:
    if request.device.type == "cuda":
        return GraphRunner(request, function)
    return CompiledRunner(request, function)


def _stage(request: RunnerRequest, compiled: Compiled) -> StageFunction:
    """Bind compiled code to the weights of the request: inputs and outputs by name."""
    outputs = [t.name for t in request.spec.outputs]
    held = list(_weights(request.function).values())

    def stage(**inputs: Tensor) -> Mapping[str, Tensor]:
        got = compiled([*held, *(inputs[name] for name in request.inputs)])
        return dict(zip(outputs, got, strict=True))

    return stage


def _weights(function: StageFunction) -> dict[str, Tensor]:
    if not isinstance(function, nn.Module):
        return {}
    return {**dict(function.named_parameters()), **dict(function.named_buffers())}


def _trace(request: RunnerRequest, names: list[str], given: list[Tensor]) -> torch.fx.GraphModule:
    """Write the stage down as one graph of torch's basic operations, weights first, then inputs, all as arguments."""
    # Here, for it imports the compiler's front, which a cached package does without.
    from torch.fx.experimental.proxy_tensor import make_fx

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
