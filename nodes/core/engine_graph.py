"""A stage as one CUDA graph: the launches of a whole batch recorded once and replayed as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
        stream = request.stream
        stream.wait_stream(torch.cuda.current_stream(request.device))
        self._graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
        self._outputs: Mapping[str, Tensor] = {}
        # Not called again, but it owns weights that the recording reads.
        self._function: StageFunction | None = function
        pool, capturing = torch.cuda.graph_pool_handle(), False
        try:
            with _fastest_convolutions(), torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    function(**request.inputs)
                stream.synchronize()
                # thread_local: another thread of the process may use the card (the encoder does).
                with torch.cuda.graph(
                    self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ):
                    capturing = True
                    self._outputs = dict(function(**request.inputs))
        except BaseException:
            failed = self._graph
            self.close()
            if capturing:
                _give_up(failed, pool, request.device)
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


_failed_graphs: list[torch.cuda.CUDAGraph] = []


def _give_up(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> None:
    """Take back the memory of a capture that CUDA broke off.

    torch (2.11 and 2.13 read) leaves its allocator recording for that capture: its pool stays for good, 2 MB and more,
    and until the process ends no memory that other streams used becomes free. Nothing to do where the capture ended
    in order, as it does when the function raises an error that is not CUDA's.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is None:
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        end(index, pool)
    except RuntimeError:  # "not currently recording": `reset` has released the pool
        return
    torch._C._cuda_releasePool(index, pool)
    # torch's allocator of page-locked memory has no such call and goes on asking the graph whether it records.
    _failed_graphs.append(graph)


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
