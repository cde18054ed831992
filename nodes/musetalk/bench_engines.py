"""Engines in the bench: built in a folder of the run's own, opened again here and in a new process, and closed.

`python -m <package>.nodes.musetalk.bench_engines` is that new process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from ..core.bench import Row
from ..core.engine import EngineOptions, StageEngine, open_engine
from ..core.engine_spec import EngineIdentity, first_line
from ..core.report import Report
from .bench_baseline import lay_out
from .config import OFFICIAL
from .engine import musetalk_stage
from .model import MuseTalkNets, load_embedded

BUILD, OPEN, OPEN_NEW = "build engine", "open cached engine", "open cached engine, new process"
KEPT = ("inductor", "tensorrt")
"""Backends that keep what they built on disk."""
_LIMIT_S = 600


def made_nets(size: str, device: torch.device) -> MuseTalkNets:
    """The embedded model, or the official sizes with random weights ("full"), fp32 on `device`."""
    if size == "embedded":
        return load_embedded().to(device)
    with torch.device(device):
        nets = MuseTalkNets(OFFICIAL)
    lay_out(nets)
    return nets.to(device).eval().requires_grad_(False)


def open_row(
    nets: MuseTalkNets, size: str, row: Row, cache: Path, report: Report | None = None
) -> StageEngine:
    """Open, or build, the engine of a row for `nets` of `size`, kept in `cache`."""
    device = nets.weights_device
    spec, stage = musetalk_stage(nets, device)
    identity = EngineIdentity(row.precision, {"size": size})
    options = EngineOptions(row.backend, row.batch, cache, identity, build=True)
    return open_engine(spec, stage, options, device, report)


def run_once(engine: StageEngine) -> None:
    """Run one batch and wait for it."""
    engine(**engine.spec.sample(engine.batch, engine.device))
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)


class EngineBench:
    """Builds and opens engines; a context, whose end deletes what was built."""

    def __init__(self, device: torch.device, size: str) -> None:
        self.device, self.size = device, size
        self._folder = tempfile.TemporaryDirectory(prefix="talkinghead-bench-", ignore_cleanup_errors=True)
        self.cache = Path(self._folder.name)
        self._built: dict[tuple[str, str, int], Row] = {}

    def __enter__(self) -> EngineBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def built(self, nets: MuseTalkNets, row: Row) -> tuple[StageEngine | None, Row]:
        """Build the engine of `row`; return it and the row with `prepared_s`, or None and the row with the reason."""
        began = time.perf_counter()
        engine = open_row(nets, self.size, row, self.cache)
        row = replace(row, prepared_s=time.perf_counter() - began)
        if engine.backend != row.backend:
            why = engine.skipped.get(row.backend, f"it fell back to {engine.backend}")
            engine.close()
            return None, replace(row, skipped=why)
        self._built[row.backend, row.precision, row.batch] = replace(row, stage=BUILD, seconds=row.prepared_s)
        return engine, row

    def openings(self, nets: MuseTalkNets, row: Row) -> list[Row]:
        """Rows of building (where it was built), opening again in this process, and in a new one.

        Seconds include the first batch: what a user waits for after a cached build.
        """
        built = self._built.get((row.backend, row.precision, row.batch))
        if row.backend in KEPT and built is None:
            return []  # its row says why
        rows = [] if built is None else [built]
        before, began = self._held_mb(), time.perf_counter()
        engine = open_row(nets, self.size, row, self.cache)
        row = replace(row, stage=OPEN)
        if engine.backend != row.backend:
            why = engine.skipped.get(row.backend, f"it fell back to {engine.backend}")
            engine.close()
            return [*rows, replace(row, skipped=why)]
        run_once(engine)
        seconds, during = time.perf_counter() - began, self._held_mb()
        engine.close()
        held = None if before is None else (before, during, self._held_mb())
        rows.append(replace(row, seconds=seconds, held_mb=held))
        if row.backend != "eager":
            rows.append(self._in_new_process(row))
        return rows

    def _held_mb(self) -> int | None:
        if self.device.type != "cuda":
            return None
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return (total - free) >> 20

    def _in_new_process(self, row: Row) -> Row:
        row = replace(row, stage=OPEN_NEW)
        command = [sys.executable, "-m", __name__, "--device", str(self.device), "--size", self.size]
        command += ["--backend", row.backend, "--precision", row.precision, "--batch", str(row.batch)]
        command += ["--cache", str(self.cache)]
        paths = os.pathsep.join(filter(None, sys.path))
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": paths},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
            )
            facts = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as e:
            return replace(row, skipped=f"the new process failed: {first_line(e)[:100]}")
        if facts["skipped"]:
            return replace(row, skipped=facts["skipped"])
        return replace(row, seconds=facts["seconds"])


def _main() -> int:
    """Open one engine that is built already, and print as JSON the seconds until its first batch is done."""
    parser = argparse.ArgumentParser()
    for name in ("device", "size", "backend", "precision", "cache"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch", type=int, required=True)
    args = parser.parse_args()
    row, report = Row(OPEN, args.backend, args.precision, args.batch), Report()
    with torch.inference_mode():
        nets = made_nets(args.size, torch.device(args.device))
        nets.to(torch.float16 if args.precision == "fp16" else torch.float32)
        began = time.perf_counter()
        engine = open_row(nets, args.size, row, Path(args.cache), report)
        run_once(engine)
        seconds = time.perf_counter() - began
    skipped = engine.skipped.get(args.backend, "") if engine.backend != args.backend else ""
    if "engine built" in report.facts:
        skipped = f"built again instead of opened: {'; '.join(report.warnings) or 'not found'}"
    sys.stdout.write(json.dumps({"seconds": seconds, "skipped": skipped}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
