"""Does an exported graph give torch's numbers? Measured on the CPU with onnxruntime, several batch sizes, other rows.

Every row is different and its truth is computed alone, so a graph that mixes rows (a batch frozen into a reshape) or
that scrambles outputs shows up. The truth is float32 arithmetic on the module's own weights and on inputs rounded to
the graph's dtype: what differs is the graph's arithmetic, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .engine_spec import compare
from .export import OnnxGraph, cpu_copy, outputs_by_name

if TYPE_CHECKING:
    from .engine_spec import StageSpec

BATCHES = (1, 8)
ROWS = 8
LEAST = {"float32": (0.99999, 80.0), "float16": (0.9999, 50.0)}
"""Accepted from: cosine, PSNR in dB. 50 dB is the issue's bound for fp16; fp32 graphs measured above 100 dB."""


@dataclass(frozen=True)
class Parity:
    """How like torch a graph is: the worst row of the worst output at the worst batch size.

    cosine: of the row as one vector. psnr_db: with the largest true magnitude of the row as peak. Both are 0 where the
    graph gives what is not finite. max_abs: largest difference. batches: sizes that were run.
    """

    cosine: float
    psnr_db: float
    max_abs: float
    rows: int
    batches: tuple[int, ...]
    precision: str

    @property
    def accepted(self) -> bool:
        cosine, decibels = LEAST[self.precision]
        return self.cosine >= cosine and self.psnr_db >= decibels

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; an exact match has no finite PSNR and says "inf"."""
        decibels = round(self.psnr_db, 2) if math.isfinite(self.psnr_db) else str(self.psnr_db)
        return {
            "cosine": round(self.cosine, 8),
            "psnr_db": decibels,
            "max_abs": float(f"{self.max_abs:.4g}") if math.isfinite(self.max_abs) else str(self.max_abs),
            "rows": self.rows,
            "batches": list(self.batches),
            "accepted": self.accepted,
        }

    def __str__(self) -> str:
        least = LEAST[self.precision]
        verdict = (
            "accepted" if self.accepted else f"NOT accepted (cosine {least[0]}, {least[1]:.0f} dB are wanted)"
        )
        sizes = " and ".join(map(str, self.batches))
        return f"cosine {self.cosine:.7f}, PSNR {self.psnr_db:.1f} dB, {self.rows} rows at batch {sizes}: {verdict}"


def check_export(
    graph: OnnxGraph,
    module: nn.Module,
    spec: StageSpec,
    batches: Sequence[int] = BATCHES,
    rows: int = ROWS,
    inputs: Mapping[str, Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parity:
    """Compare a graph with the module it was made from.

    Args:
        graph: from `export_onnx` or `open_onnx`.
        module: the same module; left as it is.
        spec: the same spec.
        batches: sizes to run all rows at. A graph of fixed batch runs at that size alone, padded.
        rows: how many different inputs.
        inputs: name -> (rows, *shape) instead of seeded noise.
        progress: called with (done, total) passes.

    Raises:
        ImportError: no onnxruntime.
        ValueError: a batch outside the graph's range, or inputs of another shape; the message names it.
    """
    sizes = (graph.batch.low,) if graph.batch.fixed else tuple(dict.fromkeys(batches))
    for size in sizes:
        if size not in graph.batch:
            raise ValueError(f"{graph.path.name} takes batches {graph.batch}, {size} cannot be checked on it")
    given = dict(inputs) if inputs is not None else spec.sample(rows, "cpu")
    rows = _check_inputs(given, spec)
    total, done = rows * (1 + len(sizes)), 0

    def tick(n: int) -> None:
        nonlocal done
        done += n
        if progress:
            progress(done, total)

    truth = _truth(module, spec, given, rows, tick)
    worst: list[tuple[float, float, float]] = []
    session = open_session(graph.path)
    for size in sizes:
        got = run_session(session, spec, given, size, tick)
        worst += [_likeness(got[name], truth[name]) for name in truth]
    cosines, decibels, differences = zip(*worst, strict=True)
    return Parity(min(cosines), min(decibels), max(differences), rows, sizes, graph.precision)


def open_session(path: Path, threads: int | None = None):
    """An onnxruntime session on the CPU, on as many threads as torch uses. ImportError without onnxruntime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"checking a graph needs onnxruntime ({error}): pip install onnxruntime; or export with --no-check"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3  # it warns of every fp16 constant it cannot fold
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_session(
    session: Any,
    spec: StageSpec,
    inputs: Mapping[str, Tensor],
    size: int,
    tick: Callable[[int], None] = lambda n: None,
) -> dict[str, np.ndarray]:
    """All rows through a session, `size` at a time; the last piece is padded with its last row and trimmed."""
    rows = next(iter(inputs.values())).shape[0]
    names = [tensor.name for tensor in spec.outputs]
    pieces = []
    for start in range(0, rows, size):
        count = min(size, rows - start)
        index = [start + min(i, count - 1) for i in range(size)]
        feed = {name: value[index].numpy() for name, value in inputs.items()}
        pieces.append([out[:count] for out in session.run(names, feed)])
        tick(count)
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*pieces, strict=True), strict=True)}


def _check_inputs(inputs: Mapping[str, Tensor], spec: StageSpec) -> int:
    rows = {value.shape[0] for value in inputs.values()}
    for tensor in spec.inputs:
        value = inputs.get(tensor.name)
        if value is None or tuple(value.shape[1:]) != tensor.shape or value.dtype != tensor.dtype:
            found = "missing" if value is None else f"{value.dtype} {tuple(value.shape)}"
            raise ValueError(
                f"input {tensor.name} must be {tensor.dtype} (rows, {tensor.shape}), it is {found}"
            )
    if len(rows) != 1 or 0 in rows:
        raise ValueError(f"the inputs have {sorted(rows)} rows; give every input the same number, 1 or more")
    return rows.pop()


def _truth(
    module: nn.Module, spec: StageSpec, inputs: Mapping[str, Tensor], rows: int, tick
) -> dict[str, np.ndarray]:
    module = cpu_copy(module, torch.float32)
    parts = []
    with torch.inference_mode():
        for row in range(rows):
            single = [inputs[tensor.name][row : row + 1].float() for tensor in spec.inputs]
            parts.append(outputs_by_name(spec, module(*single)))
            tick(1)
    truth = {t.name: torch.cat([part[t.name] for part in parts]).numpy() for t in spec.outputs}
    for name, value in truth.items():
        if not np.isfinite(value).all():
            raise ValueError(
                f"torch's own {name} is not finite: the weights are damaged, there is nothing to compare"
            )
    return truth


def _likeness(got: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """(cosine, PSNR in dB, largest difference) of the worst row."""
    if got.shape != truth.shape:
        raise ValueError(
            f"the graph gives {got.shape}, torch {truth.shape}: it was exported from another module"
        )
    a, b = torch.from_numpy(got).float(), torch.from_numpy(truth)
    rows = [compare(x, y) for x, y in zip(a, b, strict=True)]
    return min(row.cosine for row in rows), min(row.psnr_db for row in rows), float((a - b).abs().max())
