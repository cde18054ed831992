"""Compiled code for the CPU as one AOTInductor package: a library in a zip file, opened without Python's compiler.

Weights are arguments of the code, not part of the file. Opening imports nothing of Inductor: 0.01 s for the embedded
model on a CPU, where the compiled artifact of `engine_inductor` took 6.5 s, most of it imports.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .engine_spec import EngineSkipped

PACKAGE = "stage.pt2"
_MODEL = "model"
"""Name that torch gives the only model of a package."""

NOT_ON_CUDA = "opening a package on a card ends the process with a segmentation fault (torch 2.11, H200)"
"""No exception, so nothing could fall back; two of two runs."""

Compiled = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Compiled code: weights and inputs in, outputs out, in the order of the graph."""


def make_package(
    graph: torch.fx.GraphModule, given: Sequence[Tensor], file: Path, device: torch.device
) -> None:
    """Compile `graph` for tensors like `given`, which lie on `device`, and write it to `file`.

    Raises:
        EngineSkipped: a CUDA device, or a torch that makes no packages (before 2.6).
        Exception: whatever torch or the C++ compiler raise.
    """
    if device.type == "cuda":
        raise EngineSkipped(NOT_ON_CUDA)
    compiler = importlib.import_module("torch._inductor")
    if not hasattr(compiler, "aot_compile") or not hasattr(torch._C, "_aoti"):
        raise EngineSkipped(f"torch {torch.__version__} makes no packages")
    package_aoti = importlib.import_module("torch._inductor.package").package_aoti
    parts = compiler.aot_compile(graph, tuple(given), options={"aot_inductor.package": True})
    package_aoti(str(file), parts)


def load_package(file: Path, device: torch.device) -> Compiled:
    """Open a package on `device`; what it holds is freed with the returned function.

    torch unpacks it into a folder of its own in the temporary folder, so `file` may go afterwards.

    Raises:
        RuntimeError: no package, made for another machine, or a CUDA device.
    """
    if device.type == "cuda":
        raise RuntimeError(NOT_ON_CUDA)
    # One runner without torch's queue of runners: calls come one at a time.
    alone, runners, index = True, 1, -1
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(str(file), _MODEL, alone, runners, index)
    except (AttributeError, TypeError):  # another signature of another torch; slower, for it imports Inductor
        load = importlib.import_module("torch._inductor.package").load_package
        loader = load(str(file), _MODEL, run_single_threaded=alone).loader

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return loader.run(list(tensors))

    return run
