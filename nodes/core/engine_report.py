"""The engine cache in words, for the node and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .engine_cache import EngineCache, EngineDamaged, machine_facts
from .model_catalog import size_text


def describe_engines(folder: Path, device: torch.device, hashes: bool = False) -> list[dict[str, Any]]:
    """Return one row an engine: name, state, size, facts.

    state is "ready", "for another machine: ..." or "damaged: ..."; `hashes` also reads every file to check it.
    """
    cache, rows = EngineCache(folder), []
    here = machine_facts(device)
    for name in cache.names():
        try:
            engine = cache.read(name)
        except EngineDamaged as e:
            rows.append({"name": name, "state": f"damaged: {e}", "size": 0, "key": {}, "facts": {}})
            continue
        others = [f"{k} {v}, here {here[k]}" for k, v in engine.key.items() if k in here and here[k] != v]
        if fault := cache.fault_of(engine, hashes):
            state = f"damaged: {fault}"
        else:
            state = f"for another machine: {', '.join(others)}" if others else "ready"
        row = {"name": name, "state": state, "size": engine.size}
        rows.append({**row, "key": dict(engine.key), "facts": dict(engine.facts)})
    return rows


def row_text(row: Mapping[str, Any]) -> str:
    """Write a row of `describe_engines` as one line."""
    parts = [row["name"], row["state"], size_text(row["size"])]
    facts = row["facts"]
    if facts.get("build_seconds") is not None:
        parts.append(f"built in {facts['build_seconds']} s")
    if parity := facts.get("parity"):
        parts.append(f"cosine {parity['cosine']}, {parity['psnr_db']} dB against fp32")
    return "; ".join(parts)
