"""Graphs of a model as ONNX files, each compared with torch; which graphs there are, an engine says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from .checkpoints import sha256_once
from .export import OPSET, BatchRange, ExportForm, OnnxGraph, add_facts, export_onnx
from .export_check import BATCHES, check_export


class ExportedHandle(Protocol):
    """What of a model handle names the files and their weights."""

    checkpoint: str
    precision: str

    @property
    def paths(self) -> tuple[Path, ...]: ...

    def build(self) -> nn.Module: ...


def graph_file(model: ExportedHandle, name: str, batch: BatchRange) -> str:
    """File name that tells checkpoint, graph, precision and batch: "embedded-unet-fp16-b1-32.onnx"."""
    sizes = str(batch.low) if batch.fixed else f"{batch.low}-{batch.high}"
    return f"{model.checkpoint}-{name}-{model.precision}-b{sizes}.onnx"


def model_facts(model: ExportedHandle) -> dict[str, Any]:
    """Which weights: checkpoint, precision, SHA-256 of every file of them (seconds for the official ones)."""
    return {
        "checkpoint": model.checkpoint,
        "precision": model.precision,
        "files": {path.name: sha256_once(path) for path in model.paths},
    }


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError for the first name that is no graph."""
    for name in names:
        if name not in known:
            raise ValueError(f"graph {name!r} is unknown; there are {', '.join(known)}")


def export_graphs(
    model: ExportedHandle,
    exportable: Callable[[Any, str], ExportForm],
    folder: Path,
    names: Sequence[str],
    batch: BatchRange | None = None,
    opset: int = OPSET,
    check: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] | None = None,
) -> list[OnnxGraph]:
    """Write graphs of `model` into `folder` and compare each with torch.

    Args:
        model: weights and precision (the graphs' precision too).
        exportable: the built modules and a name -> a graph of them.
        folder: made if it is missing.
        names: graphs that there are.
        batch: default 1..32.
        opset: 18 to 20.
        check: run `check_export` and keep its figures in the sidecar.
        tell: gets a line for each step.
        progress: (done, total) passes of a check.

    Returns:
        the graphs; `facts["parity"]` of each says whether it was accepted. A refused graph is kept, for looking at.

    Raises:
        ImportError, ValueError, OSError: as `export_onnx` and `check_export`.
    """
    batch = batch or BatchRange(1, 32)
    facts, modules, graphs = {"model": model_facts(model)}, model.build(), []
    for name in names:
        form = exportable(modules, name)
        path = Path(folder) / graph_file(model, name, batch)
        graph = export_onnx(form.module, form.spec, path, batch, opset, facts)
        tell(f"{path}: {graph.facts['nodes']} nodes, opset {opset}, {graph.facts['seconds']} s")
        if check:
            sizes = [size for size in BATCHES if size in batch] or [batch.high]
            parity = check_export(graph, form.module, form.spec, sizes, progress=progress)
            tell(f"{name}: {parity}")
            graph = add_facts(graph, parity=parity.as_dict())
        graphs.append(graph)
    return graphs
