"""Ditto's networks as graphs for other runtimes: the convolutions of a frame, with the sampling left to whoever runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.export import OnnxGraph
from ..core.export_model import check_names, export_graphs
from .handle import DittoModel
from .stages import GRAPHS, exportable


def export_model(
    model: DittoModel, folder: Path, names: Sequence[str] | None = None, **how: Any
) -> list[OnnxGraph]:
    """Write graphs of GRAPHS, all if `names` is None; `how` and the rest: see `export_graphs`."""
    names = names or GRAPHS
    check_names(names, GRAPHS)
    return export_graphs(model, lambda modules, name: exportable(modules.nets, name), folder, names, **how)
