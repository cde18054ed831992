"""Ditto's stages measured: warp and decode by backend and batch, put-back, the motion, the whole path, beside upstream's loop.

Ratios are to the row "baseline" of the same run, upstream's loop in its real shape, and to the fastest way to run that loop
with its put-back (`bench_baseline`). Clocks drift within a run and the first measurement of a process comes out slow, so the
baselines are measured before and after everything else, and their medians count. With random weights (full size) or the
embedded model; speed depends on neither.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ..core.bench import (
    Row,
    Stopwatch,
    copy_gbps,
    likeness,
    machine_facts,
    matmul_tflops,
    median_row,
)
from ..core.color import matrix_for_height
from ..core.engine import EngineOptions, open_engine
from ..core.engine_build import full_fp32
from ..core.engine_spec import EngineIdentity
from .bench_baseline import BASELINE, NETWORKS, Scene, baseline_loops
from .bench_model import MOTION_FRAMES, SIZES, made_modules, motion_agreement, motion_calls, scene_of
from .device_putback import FacePlates, make_face_plates, put_back_nv12
from .fast import FastNets
from .model import DittoModules
from .networks import DittoNets
from .stages import as_crops, ditto_stage

BACKENDS = ("eager", "cuda graph", "fast", "fast graph")
"""The networks as they are, and recorded; on folded and joined weights (`fast`), called and recorded. Choosing the backend
"cuda graph" records the last one."""
ENGINES = ("inductor", "tensorrt")
"""Built first, in a folder of the run's own: minutes of the full size."""
NETWORK, WHOLE, PUT_BACK = "warp + decode", "whole path", "put back + NV12"
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_N_PLATES = 4


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. `frame` width, height of the finished video; `seconds` spent on one row, about, and at least `least`
    calls."""

    device: torch.device
    size: str = "embedded"
    precisions: tuple[str, ...] = ("fp32",)
    batches: tuple[int, ...] = (1, 8)
    backends: tuple[str, ...] = (*BACKENDS, "inductor")
    frame: tuple[int, int] = (1080, 1920)
    seconds: float = 0.5
    least: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, values, allowed in (
            ("size", (self.size,), SIZES),
            ("precision", self.precisions, tuple(_DTYPES)),
            ("backend", self.backends, (*BACKENDS, *ENGINES)),
        ):
            for value in values:
                if value not in allowed:
                    raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(allowed)}")
        if not self.batches or min(self.batches) < 1 or max(self.batches) > 64:
            raise ValueError(f"batches {self.batches} must be between 1 and 64")
        if self.frame[0] % 2 or self.frame[1] % 2 or min(self.frame) < 128:
            raise ValueError(f"frame {self.frame[0]}x{self.frame[1]} needs even sides of at least 128 pixels")


def run_bench(options: BenchOptions, tell: Callable[[Row], object] = lambda row: None) -> dict[str, object]:
    """Measure and return everything as JSON-ready facts; `tell` gets every row as it comes.

    Returns:
        machine, size, frame, peaks (TFLOP/s by precision, GB/s), gflop (of a frame), parity (by backend and precision: cosine
        and PSNR of the pictures against fp32 of the same weights), agreement (4 steps of the motion against 50), rows.
    """
    with (
        torch.inference_mode(),
        full_fp32(),
        tempfile.TemporaryDirectory(prefix="talkinghead-bench-") as folder,
    ):
        return _Bench(options, tell, Path(folder)).run()


@dataclass
class _Bench:
    options: BenchOptions
    tell: Callable[[Row], object]
    cache: Path
    rows: list[Row] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)
    parity: dict[str, dict[str, float]] = field(default_factory=dict)
    visits: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    gflop: float | None = None

    def run(self) -> dict[str, object]:
        o = self.options
        card = o.device.type == "cuda"
        for precision in o.precisions:
            self.peaks[precision] = matmul_tflops(o.device, _DTYPES[precision], 8192 if card else 1024)
        self.peaks["copy_gbps"] = copy_gbps(o.device, 4096 if card else 128)
        self.watch = Stopwatch(o.device, o.seconds, o.least, self.peaks)
        for precision in o.precisions:
            self._precision(precision)
        agreement = self._motion()
        baselines = [median_row(visits) for visits in self.visits.values()]
        return {
            "machine": machine_facts(o.device),
            "size": o.size,
            "frame": list(o.frame),
            "peaks": {k: round(v, 2) for k, v in self.peaks.items()},
            "gflop": None if self.gflop is None else round(self.gflop, 2),
            "parity": self.parity,
            "agreement": agreement,
            "rows": [self._with_ratios(row).as_dict() for row in (*baselines, *self.rows)],
        }

    def _precision(self, precision: str) -> None:
        o = self.options
        exact = made_modules(o.size, o.device, torch.float32, o.seed)
        modules = exact if precision == "fp32" else made_modules(o.size, o.device, _DTYPES[precision], o.seed)
        given = _inputs(exact.nets, max(o.batches), o.device, o.seed)
        if self.gflop is None:
            self.gflop = _gflop(exact.nets, given)
        few = {name: value[: min(2, len(value))] for name, value in given.items()}
        wanted = exact.nets(*few.values()).cpu()
        scene = scene_of(exact.config.nets, o.frame, o.seed)
        plates = _plates(exact.nets, scene, o)
        given["volume"] = given["volume"].to(_DTYPES[precision])
        other = None if exact is modules else exact.nets
        self._baselines(modules.nets, other, scene, precision)
        fast = FastNets(modules.nets)
        for name, net in (("eager", modules.nets), ("fast", fast)):
            self._parity(f"{name} {precision}", net(*(v[: len(wanted)] for v in given.values())), wanted)
        for backend in o.backends:
            for batch in o.batches:
                row = Row(NETWORK, backend, precision, batch)
                part = {name: value[:batch] for name, value in given.items()}
                if backend in ENGINES:
                    self._engine(row, modules, part, plates)
                else:
                    self._backend(row, fast if backend.startswith("fast") else modules.nets, part, plates)
        for batch in o.batches:
            self._put_back(precision, modules.nets, batch, plates)
        self._baselines(modules.nets, other, scene, precision)
        gc.collect()
        if o.device.type == "cuda":
            torch.cuda.empty_cache()

    def _baselines(self, nets: DittoNets, exact: DittoNets | None, scene: Scene, precision: str) -> None:
        for name, call in baseline_loops(nets, exact, scene, precision).items():
            row = self.watch.row(Row(name, "eager", precision, 1), call, self.gflop)
            self.visits.setdefault((precision, name), []).append(row)
            self.tell(row)

    def _parity(self, name: str, faces: Tensor, wanted: Tensor) -> None:
        cosine, psnr = likeness(faces.float().cpu(), wanted, peak=1.0)
        self.parity[name] = {"cosine": round(cosine, 7), "psnr_db": min(round(psnr, 2), 999.0)}

    def _backend(self, row: Row, nets: torch.nn.Module, given: dict[str, Tensor], plates: FacePlates) -> None:
        graph = row.backend.endswith("graph")
        if graph and self.options.device.type != "cuda":
            reason = f"needs a CUDA device, this is {self.options.device.type}"
            self._note(replace(row, skipped=reason))
            return
        volume, *points = (value.clone() for value in given.values())
        index = torch.arange(row.batch, device=volume.device) % _N_PLATES
        features = nets.warp(volume, *points)

        def whole() -> Tensor:
            made = as_crops(nets(volume, *points))
            return put_back_nv12(made["crops"], plates, index, made["finite"])

        calls = {
            "warp": lambda: nets.warp(volume, *points),
            "decode": lambda: nets.decoder(features),
            NETWORK: lambda: as_crops(nets(volume, *points)),
            WHOLE: whole,
        }
        for stage, call in calls.items():
            gflop = self.gflop if stage in (NETWORK, WHOLE) else None
            self._note(self.watch.row(replace(row, stage=stage), call, gflop, graph))

    def _engine(self, row: Row, modules: DittoModules, given: dict[str, Tensor], plates: FacePlates) -> None:
        """A backend that is built, as the pipeline runs it: copies into its buffers and out of them included."""
        device, began = self.options.device, time.perf_counter()
        identity = EngineIdentity(row.precision, {"size": self.options.size})
        options = EngineOptions(row.backend, row.batch, self.cache, identity, build=True)
        engine = open_engine(*ditto_stage(modules, device), options, device)
        row = replace(row, prepared_s=time.perf_counter() - began)
        try:
            if engine.backend != row.backend:
                why = engine.skipped.get(row.backend, f"it fell back to {engine.backend}")
                self._note(replace(row, skipped=why))
                return
            index = torch.arange(row.batch, device=device) % _N_PLATES

            def whole() -> Tensor:
                made = engine(**given)
                return put_back_nv12(made["crops"], plates, index, made["finite"])

            self._note(self.watch.row(row, lambda: engine(**given), self.gflop))
            self._note(self.watch.row(replace(row, stage=WHOLE), whole, self.gflop))
        finally:
            engine.close()

    def _put_back(self, precision: str, nets: DittoNets, batch: int, plates: FacePlates) -> None:
        device, side = self.options.device, nets.config.render_size
        crops = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, device=device)
        index = torch.arange(batch, device=device) % _N_PLATES
        row = Row(PUT_BACK, "torch", precision, batch)
        self._note(self.watch.row(row, lambda: put_back_nv12(crops, plates, index)))

    def _motion(self) -> dict[str, object]:
        """Seconds of the diffusion for MOTION_FRAMES frames by backend, and how like many steps few are."""
        o = self.options
        modules = made_modules(o.size, o.device, torch.float32, o.seed)
        for backend, call in motion_calls(modules, o.device).items():
            row = Row(f"motion, 4 steps, {MOTION_FRAMES} frames", backend, "fp32", MOTION_FRAMES)
            if isinstance(call, str):
                self._note(replace(row, skipped=call))
                continue
            row = self.watch.row(row, call)
            self._note(replace(row, seconds=MOTION_FRAMES / row.fps) if row.fps else row)
        found = motion_agreement(modules, o.seed)
        return {
            "few": found.few,
            "many": found.many,
            "cosine": round(found.cosine, 5),
            "mse": float(f"{found.mse:.4g}"),
        }

    def _with_ratios(self, row: Row) -> Row:
        """Rows of whole frames get both: to the baseline, and to the fastest of the loops that put back too."""
        if not row.fps or not (row.stage in (NETWORK, WHOLE) or row.stage.startswith(BASELINE)):
            return row
        bases = {
            name: statistics.median(r.fps for r in visits)
            for (precision, name), visits in self.visits.items()
            if precision == row.precision and name != NETWORKS and all(r.fps for r in visits)
        }
        if BASELINE not in bases:
            return row
        return replace(row, ratio=row.fps / bases[BASELINE], ratio_eager=row.fps / max(bases.values()))

    def _note(self, row: Row) -> None:
        self.rows.append(row)
        self.tell(row)


def _inputs(nets: DittoNets, n: int, device: torch.device, seed: int) -> dict[str, Tensor]:
    """Volumes and key points of `n` different frames, in the order in which the networks take them."""
    generator, warp = torch.Generator().manual_seed(seed), nets.config.warp
    volume = torch.randn(
        n, warp.volume_channels, warp.volume_depth, warp.volume_size, warp.volume_size, generator=generator
    )
    source = 0.3 * torch.randn(n, warp.n_keypoints, 3, generator=generator)
    driving = source + 0.05 * torch.randn(source.shape, generator=generator)
    return {"volume": volume.to(device), "kp_source": source.to(device), "kp_driving": driving.to(device)}


def _plates(nets: DittoNets, scene: Scene, options: BenchOptions) -> FacePlates:
    matrix = matrix_for_height(options.frame[1])
    made = make_face_plates(
        [scene.frame] * _N_PLATES, [scene.c2o] * _N_PLATES, nets.config.render_size, matrix
    )
    return made.to(options.device)


def _gflop(nets: DittoNets, given: dict[str, Tensor]) -> float:
    """Arithmetic of one frame by the plain networks, in GFLOP (a multiplication and an addition are two)."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        nets(*(value[:1] for value in given.values()))
    return counter.get_total_flops() / 1e9
