"""Compiled code as one AOTInductor package: a library and its kernels in a zip file, opened without Python's compiler.

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

Compiled = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Compiled code: weights and inputs in, outputs out, in the order of the graph."""


def make_package(graph: torch.fx.GraphModule, given: Sequence[Tensor], file: Path) -> None:
    """Compile `graph` for tensors like `given` and write it to `file`.

    Raises:
        EngineSkipped: this torch makes no packages (before 2.6).
        Exception: whatever torch or the C++ compiler raise; on CUDA it needs the toolkit's headers beside g++.
    """
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
        RuntimeError: no package, or made for another machine.
    """
    index = (device.index or 0) if device.type == "cuda" else -1
    # Without a thread's guard of its own: it queries events, which a capture forbids.
    alone, runners = True, 1
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(str(file), _MODEL, alone, runners, index)
    except (AttributeError, TypeError):  # another signature of another torch; slower, for it imports Inductor
        load = importlib.import_module("torch._inductor.package").load_package
        loader = load(str(file), _MODEL, run_single_threaded=alone).loader

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return loader.run(list(tensors))

    return run
