"""One call for a network stage, whatever runs it: TensorRT, Inductor, a CUDA graph, or torch as it is.

An engine has one static batch. A call with n rows is split into batches; the last is padded with its own last row and
trimmed. Inputs and outputs are bound by name, checked before anything is enqueued, and never share memory with the
engine's own buffers. On CUDA the work is queued on a stream of the engine's own, ordered with the caller's: a call
returns before it is done and never waits for the card. Calls from several threads take turns, a batch each, in the
order in which they came: a run cannot starve another.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from .engine_backends import AUTO, BACKENDS, check_backend
from .engine_spec import (
    EngineClosed,
    EngineIdentity,
    EngineSkipped,
    Runner,
    RunnerRequest,
    StageFunction,
    StageSpec,
    TensorSpec,
    compare,
    first_line,
    is_out_of_memory,
)
from .interrupt import is_interrupt
from .report import Report
from .turns import device_turns

MAX_STATIC_BATCH = 64
SELF_TEST_DB = 35.0
"""Least PSNR of a fresh backend against torch on the same weights. fp16 noise lies above 50 dB, a wrong kernel or
swapped outputs below 20."""


class Engine(Protocol):
    """What runs a stage: `engine(**inputs) -> {output name: tensor}`, n rows in, n rows out."""

    backend: str
    batch: int
    spec: StageSpec

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EngineOptions:
    """How to run a stage.

    backend: "auto" tries all in order but builds nothing that takes minutes; a name starts at that one and builds it.
    batch: rows of one pass, 1..64. cache: folder of built engines, None for none. build: also build under "auto".
    """

    backend: str = AUTO
    batch: int = 8
    cache: Path | None = None
    identity: EngineIdentity = field(default_factory=EngineIdentity)
    build: bool = False

    def __post_init__(self) -> None:
        check_backend(self.backend)
        if not 1 <= self.batch <= MAX_STATIC_BATCH:
            raise ValueError(f"batch {self.batch} is outside 1..{MAX_STATIC_BATCH}; 8 suits most machines")


def backend_order(backend: str, device: torch.device) -> tuple[str, ...]:
    """Backends to try, best first. What is no CUDA device runs eager, and before it what was asked for by name."""
    check_backend(backend)
    if device.type != "cuda":
        return tuple(dict.fromkeys(["eager" if backend == AUTO else backend, "eager"]))
    return BACKENDS if backend == AUTO else BACKENDS[BACKENDS.index(backend) :]


class EagerRunner:
    """Torch as it is."""

    def __init__(self, request: RunnerRequest) -> None:
        self._request: RunnerRequest | None = request

    def __call__(self) -> Mapping[str, Tensor]:
        return self._request.function(**self._request.inputs)

    def close(self) -> None:
        self._request = None


def _open_tensorrt(request: RunnerRequest) -> Runner:
    try:
        from .tensorrt_engine import open_tensorrt
    except ImportError as e:
        raise EngineSkipped(f"not available ({first_line(e)})") from e
    return open_tensorrt(request)


def _open_inductor(request: RunnerRequest) -> Runner:
    from .engine_inductor import open_inductor

    return open_inductor(request)


def _open_graph(request: RunnerRequest) -> Runner:
    from .engine_graph import open_graph

    return open_graph(request)


OPENERS: dict[str, Callable[[RunnerRequest], Runner]] = {
    "tensorrt": _open_tensorrt,
    "inductor": _open_inductor,
    "cuda graph": _open_graph,
    "eager": EagerRunner,
}
"""Each gives a runner, or raises EngineSkipped with the reason why it cannot be used here."""


def open_engine(
    spec: StageSpec,
    function: StageFunction,
    options: EngineOptions,
    device: torch.device | str,
    report: Report | None = None,
) -> StageEngine:
    """Open the first backend that works.

    Args:
        spec: names, shapes and dtypes of inputs and outputs, without the batch.
        function: called with the inputs by name, a whole static batch; returns the outputs by name. A module's weights
            must be on `device` and stay where they are while the engine lives.
        options: backend, batch, cache.
        report: gets the choice, why better ones were passed over, and what happens later.

    Raises:
        MemoryError: not even one row fits.
    """
    report = report or Report()
    engine = StageEngine(spec, function, options, torch.device(device), report)
    engine.tell(report)
    return engine


class StageEngine:
    """See `Engine`. `skipped`: why better backends were passed over; `memory_bytes`: what it holds of the card."""

    def __init__(
        self,
        spec: StageSpec,
        function: StageFunction,
        options: EngineOptions,
        device: torch.device,
        report: Report,
    ) -> None:
        self.spec, self.options, self.device = spec, options, device
        self.backend, self.batch = "", options.batch
        self.skipped: dict[str, str] = {}
        self.memory_bytes = 0
        self._function, self._report = function, report
        self._runner: Runner | None = None
        self._inputs: dict[str, Tensor] = {}
        self._turns = device_turns(f"{device.type}:{device.index or 0}")
        self._stream = _side_stream(device.index or 0) if device.type == "cuda" else None
        self._weights = _places(function)
        # What is recorded on the card's stream must not hold a batch of another engine.
        with self._turns.turn():
            self._open(options.batch)

    @property
    def closed(self) -> bool:
        return self._runner is None

    @property
    def cached(self) -> tuple[str, ...]:
        """Names of the cached engines that this was opened from or kept as; none where nothing is kept on disk."""
        names = getattr(self._runner, "cached", None) or ()
        return (names,) if isinstance(names, str) else names

    @property
    def stale(self) -> bool:
        """Closed, or the weights it was made for lie elsewhere now."""
        return self.closed or _places(self._function) != self._weights

    def tell(self, report: Report) -> None:
        """Make `report` that of the run: it gets the choice now, and later events as they come."""
        self._report = report
        report.fact(f"{self.spec.name} engine", f"{self.backend}, batch {self.batch}, on {self.device.type}")
        if self.skipped:
            report.fact("engines passed over", "; ".join(f"{k}: {why}" for k, why in self.skipped.items()))

    def close(self) -> None:
        """Give back what the engine holds; a second time does nothing. Its outputs stay valid."""
        with self._turns.turn():
            if not self.closed:
                self._drop()

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run the stage on n >= 1 rows.

        Args:
            inputs: every input of the spec by name, (n, *shape) of its dtype, on any device.

        Returns:
            every output by name, (n, *shape), on the engine's device.

        Raises:
            ValueError: a name, dtype or shape that does not fit; nothing has run.
            MemoryError: not even one row at a time fits.
            EngineClosed: another thread may close it at any time.
        """
        with self._turns.turn():
            if self.closed:
                raise EngineClosed(f"{self.spec.name}: this engine was closed; open it again")
            rows = self.spec.check(inputs)
            while True:
                try:
                    return self._run(inputs, rows)
                except (RuntimeError, MemoryError) as e:
                    if not is_out_of_memory(e):
                        raise
                    reason = first_line(e)
                # Outside of the handler: its traceback holds the tensors whose memory is wanted.
                self._open(self._less(self.batch, reason))
                self.tell(self._report)

    def _run(self, inputs: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
        out = {
            t.name: torch.empty((rows, *t.shape), dtype=t.dtype, device=self.device)
            for t in self.spec.outputs
        }
        with torch.inference_mode(), _ordered(self._stream, self.device):
            for start in range(0, rows, self.batch):
                count = min(self.batch, rows - start)
                for name, static in self._inputs.items():
                    static[:count].copy_(inputs[name][start : start + count], non_blocking=True)
                    if count < self.batch:
                        static[count:] = static[count - 1]
                got = self._runner()
                for t in self.spec.outputs:
                    out[t.name][start : start + count].copy_(self._pick(got, t)[:count], non_blocking=True)
        return out

    def _pick(self, got: Mapping[str, Tensor], wanted: TensorSpec) -> Tensor:
        value, where = got.get(wanted.name), f"{self.spec.name} on {self.backend}"
        if value is None:
            raise RuntimeError(f"{where} gave no output {wanted.name!r}, only {', '.join(got) or 'none'}")
        if tuple(value.shape) != (self.batch, *wanted.shape) or value.dtype != wanted.dtype:
            raise RuntimeError(
                f"{where}: {wanted.name!r} is {value.dtype} {tuple(value.shape)}, not {wanted} with n {self.batch}"
            )
        return value

    def _open(self, batch: int) -> None:
        """Open the best backend at `batch`, or at the largest half of it that fits."""
        while True:
            _collect(self.device)
            before = _reserved(self.device)
            try:
                self._open_best(batch)
                _collect(self.device)
                # What a backend takes outside of torch's allocator it tells itself.
                foreign = getattr(self._runner, "memory_bytes", 0)
                self.memory_bytes = max(0, _reserved(self.device) - before) + foreign
                return
            except (RuntimeError, MemoryError) as e:
                if not is_out_of_memory(e):
                    raise
                reason = first_line(e)
            batch = self._less(batch, reason)

    def _open_best(self, batch: int) -> None:
        self.skipped = {}
        order = backend_order(self.options.backend, self.device)
        if self.options.backend == AUTO and getattr(self._function, "records_fast_form", False):
            order = tuple(b for b in order if b != "inductor")
            self.skipped["inductor"] = "a recorded cuda graph of the fused kernels is faster here"
        for backend in order:
            try:
                request = self._request(backend, batch)
                self.backend, self.batch, self._inputs = backend, batch, dict(request.inputs)
                with torch.inference_mode():
                    self._runner = OPENERS[backend](request)
                if backend != "eager":
                    self._self_test()
                return
            except Exception as e:
                if backend == order[-1] or is_interrupt(e) or is_out_of_memory(e):
                    self._drop()
                    raise
                reason = str(e) if isinstance(e, EngineSkipped) else f"{type(e).__name__}: {first_line(e)}"
            except BaseException:
                self._drop()
                raise
            self._drop()
            self.skipped[backend] = reason

    def _request(self, backend: str, batch: int) -> RunnerRequest:
        shapes = {t.name: ((batch, *t.shape), t.dtype) for t in self.spec.inputs}
        return RunnerRequest(
            spec=self.spec,
            function=self._function,
            inputs={
                k: torch.zeros(shape, dtype=dtype, device=self.device) for k, (shape, dtype) in shapes.items()
            },
            batch=batch,
            device=self.device,
            stream=self._stream,
            cache=self.options.cache,
            identity=self.options.identity,
            may_build=self.options.build or self.options.backend == backend,
            report=self._report,
        )

    def _self_test(self) -> None:
        """Run seeded rows through backend and torch, so that a kernel that fails here fails before the user's frames."""
        given = self.spec.sample(self.batch, self.device)
        got = self._run(given, self.batch)
        try:
            with torch.inference_mode():
                wanted = self._function(**given)
        except (RuntimeError, MemoryError) as e:
            if is_out_of_memory(e):
                return  # torch beside the backend does not fit, the backend alone does
            raise
        for t in self.spec.outputs:
            likeness = compare(got[t.name], wanted[t.name])
            if likeness.psnr_db < SELF_TEST_DB:
                raise RuntimeError(
                    f"its {t.name!r} is only {likeness.psnr_db:.1f} dB like torch's for the same input, "
                    f"{SELF_TEST_DB:.0f} is the least"
                )

    def _less(self, batch: int, reason: str) -> int:
        self._drop()
        if batch == 1:
            raise MemoryError(
                f"{self.spec.name}: {self.device} has no memory for even one frame at a time ({reason}); unload other "
                f"models, close other programs, or use fp16"
            )
        self._report.warn(f"{self.spec.name}: out of memory at batch {batch}, going on with {batch // 2}")
        return batch // 2

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        if self._runner is not None:
            self._runner.close()
        self._runner, self._inputs, self.memory_bytes = None, {}, 0
        _collect(self.device)


@cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """One stream a card for all engines: cuBLAS keeps a workspace for every stream it ever saw, 32 MB on Hopper."""
    return torch.cuda.Stream(torch.device("cuda", index))


@contextmanager
def _ordered(stream: torch.cuda.Stream | None, device: torch.device) -> Iterator[None]:
    """Run the block on `stream`, after what the caller has queued and before what it queues next."""
    if stream is None:
        yield
        return
    outer = torch.cuda.current_stream(device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


def _places(function: StageFunction) -> tuple[int, ...]:
    if not isinstance(function, nn.Module):
        return ()
    return tuple(t.data_ptr() for t in (*function.parameters(), *function.buffers()))


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def _collect(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
