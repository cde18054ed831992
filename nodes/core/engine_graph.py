"""A stage as one CUDA graph: the launches of a whole batch recorded once and replayed as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from .engine_spec import EngineSkipped, RunnerRequest, StageFunction, first_line, is_out_of_memory
from .interrupt import is_interrupt

WARM_UPS = 3
"""Runs before recording: libraries choose their kernels and make their workspaces in the first ones."""


class GraphRunner:
    """A recording of `function` on the request's input buffers. Weights and buffers must stay where they are.

    Everything the function allocates lives in the graph's own pool until `close`. `cached`: the name in the engine
    cache of what was recorded.
    """

    cached: str | None = None

    def __init__(self, request: RunnerRequest, function: StageFunction | None = None) -> None:
        function = function or request.function
        stream, pool = request.stream, torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream(request.device))
        self._graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
        self._outputs: Mapping[str, Tensor] = {}
        # Not called again, but it owns weights that the recording reads.
        self._function: StageFunction | None = function
        try:
            with _fastest_convolutions(), torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    function(**request.inputs)
                stream.synchronize()
                # thread_local: another thread of the process may use the card (the encoder does).
                with torch.cuda.graph(self._graph, pool, stream=stream, capture_error_mode="thread_local"):
                    self._outputs = dict(function(**request.inputs))
        except BaseException:
            self.close()
            _give_back(request.device, pool)
            raise
        torch.cuda.current_stream(request.device).wait_stream(stream)

    def __call__(self) -> Mapping[str, Tensor]:
        self._graph.replay()
        return self._outputs

    def close(self) -> None:
        graph, self._graph, self._outputs = self._graph, None, {}
        if graph is not None:
            graph.reset()
        self._function = None


def _give_back(device: torch.device, pool: tuple[int, int]) -> None:
    """Release the pool of a recording that failed: resetting such a graph leaves it its segments (2 MB, H200)."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    release = getattr(torch._C, "_cuda_releasePool", None)
    if release is not None:
        with suppress(RuntimeError):  # already released
            release(index, pool)


def open_graph(request: RunnerRequest) -> GraphRunner:
    """Record the stage: its fast form if it has one that works here, else the function as it is.

    A function may have `fast_form()`: an equal function made for this card, or None, with the reason for None; and
    `fast_note`: what the report should say of it.
    EngineSkipped where there is no CUDA device.
    """
    if request.device.type != "cuda":
        raise EngineSkipped(f"needs a CUDA device, this runs on {request.device.type}")
    fast_form = getattr(request.function, "fast_form", None)
    if fast_form is None:
        return GraphRunner(request)
    try:
        made, why = fast_form()
        if made is not None:
            if note := getattr(request.function, "fast_note", None):
                request.report.fact("fast kernels", note)
            return GraphRunner(request, made)
    except Exception as e:
        if is_interrupt(e) or is_out_of_memory(e):
            raise
        why = f"{type(e).__name__}: {first_line(e)}"
    request.report.fact("fast kernels", f"not used: {why}")
    return GraphRunner(request)


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms for the shapes of the recording; other code keeps its own setting."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
