"""MuseTalk's stages measured: per backend, precision and batch, beside the loop as upstream runs it.

Ratios are to the row "baseline" of the same run, upstream's loop in its real shape, and to the fastest of the eager
baselines (`bench_baseline`). Clocks drift within a run and the first measurement of a process comes out slow, so the
baselines are measured before, in the middle of and after everything else, and their medians count. Everything with random
weights (full size) or the embedded model; speed depends on neither.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..core.bench import (
    Row,
    Stopwatch,
    advise,
    copy_gbps,
    likeness,
    machine_facts,
    matmul_tflops,
    median_ms,
    median_row,
)
from ..core.blend import composite, crop_geometry, lower_face_mask
from ..core.color import Nv12Encoder, matrix_for_height
from ..core.device_composite import Plates, composite_nv12, make_plates
from ..core.engine_build import full_fp32
from ..core.host_plates import splice
from ..core.plates import make_plate
from .bench_baseline import BASELINE, BASELINE_BATCH, BLENDED, baseline_loops, in_plain_layout
from .bench_engines import EngineBench, made_nets
from .fast import FastNets, PlainNets, fast_nets, why_no_fp8
from .model import MuseTalkNets, to_rgb_uint8

SIZES = ("embedded", "full")
BACKENDS = ("eager", "cuda graph", "fused", "fused graph")
"""Torch modules as they are and captured; the fused kernels, called one by one and captured."""
ENGINES = ("inductor", "tensorrt")
"""Measured only when asked for by name: they are built first, which takes minutes."""
NETWORK, WHOLE, COMPOSITE = "UNet + VAE", "whole path", "composite + NV12"
_N_PLATES = 4
_SETTING = {"fused graph": "cuda graph"}
"""What a user chooses to get a row's backend; "fused" and the plain graph are measured to compare, not to choose."""
FUSED = ("fused", "fused graph")
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "fp8": torch.float16}


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. `frame` width, height of the finished video; `seconds` spent on one row,
    about, and at least `least` calls."""

    device: torch.device
    size: str = "embedded"
    precisions: tuple[str, ...] = ("fp32",)
    batches: tuple[int, ...] = (8, 16, 32)
    backends: tuple[str, ...] = BACKENDS
    frame: tuple[int, int] = (1080, 1920)
    seconds: float = 0.5
    least: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        known = (*BACKENDS, *ENGINES)
        for name, values, allowed in (
            ("size", (self.size,), SIZES),
            ("precision", self.precisions, tuple(_DTYPES)),
            ("backend", self.backends, known),
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
        machine, options, peaks (TFLOP/s by precision, GB/s; fp8 rows are held against fp16's), rows, parity (by
        precision: cosine and PSNR against fp32 of the same weights), fp8 (which layers), advice or None.
    """
    with torch.inference_mode(), full_fp32():
        bench = _Bench(options, tell)
        with bench.engines:
            return bench.run()


@dataclass
class _Bench:
    options: BenchOptions
    tell: Callable[[Row], object]
    rows: list[Row] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)
    parity: dict[str, dict[str, float]] = field(default_factory=dict)
    visits: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    flop: dict[str, float] = field(default_factory=dict)
    fast: FastNets | PlainNets | None = None
    absent: set[tuple[str, str]] = field(default_factory=set)
    fp8: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engines = EngineBench(self.options.device, self.options.size)

    def run(self) -> dict[str, object]:
        o = self.options
        big = o.device.type == "cuda"
        for precision in o.precisions:
            self.peaks[precision] = matmul_tflops(o.device, _DTYPES[precision], 8192 if big else 1024)
        self.peaks["copy_gbps"] = copy_gbps(o.device, 4096 if big else 128)
        torch.manual_seed(o.seed)
        for precision in o.precisions:
            self._precision(precision)
        self.rows = [self._with_ratios(row) for row in self._settled()]
        # Of random weights every layer is quantised, to be timed: nothing to recommend.
        useful = [r for r in self.rows if r.precision != "fp8" or o.size == "embedded"]
        network = settable([r for r in useful if r.stage == NETWORK])
        whole = settable([r for r in useful if r.stage == WHOLE])
        advice = advise(whole, network) if any(r.fps for r in whole) else None
        return {
            "machine": machine_facts(o.device),
            "size": o.size,
            "frame": list(o.frame),
            "peaks": {k: round(v, 2) for k, v in self.peaks.items()},
            "gflop": {k: round(v, 2) for k, v in self.flop.items()},
            "parity": self.parity,
            "fp8": self.fp8,
            "rows": [row.as_dict() for row in self.rows],
            "advice": None if advice is None else vars(advice),
        }

    def _precision(self, precision: str) -> None:
        o, dtype = self.options, _DTYPES[precision]
        nets = self._nets()
        most = max(*o.batches, BASELINE_BATCH)
        given = _inputs(nets, most, o.device)
        if not self.flop:
            self.flop = _gflop(nets, *(t[:1] for t in given))
        sample = min(4, most)
        exact = nets(*(t[:sample] for t in given)).cpu()
        nets.to(dtype)
        given = tuple(t.to(dtype) for t in given)
        plates = _plates(nets, o)
        if precision == "fp8" and (why := why_no_fp8(o.device)):
            self._note(replace(self._row(NETWORK, FUSED[1], precision, max(o.batches)), skipped=why))
            return
        units = [(backend, batch) for backend in o.backends for batch in o.batches]
        for i, (backend, batch) in enumerate(units):
            if i in (0, len(units) // 2):
                self._visit_baselines(nets, given, precision)
            if backend in ENGINES and precision != "fp8":
                self._engine(
                    nets,
                    tuple(t[:batch] for t in given),
                    self._row(NETWORK, backend, precision, batch),
                    plates,
                )
            else:
                self._backend(nets, given, precision, (backend, batch), plates, exact)
        if o.device.type != "cpu":
            self._host_composite(nets, precision)
        self._visit_baselines(nets, given, precision)
        self.fast = None
        self._openings(nets, precision)
        del nets, given, plates
        gc.collect()
        if o.device.type == "cuda":
            torch.cuda.empty_cache()

    def _nets(self) -> MuseTalkNets:
        return made_nets(self.options.size, self.options.device)

    def _visit_baselines(self, nets: MuseTalkNets, given: tuple[Tensor, Tensor], precision: str) -> None:
        latents, tokens = (t[:BASELINE_BATCH] for t in given)
        frame, box, crop, mask = _scene(self.options.frame)

        def blend(face: np.ndarray) -> None:
            composite(frame.copy(), face, box, crop, mask)

        with in_plain_layout(nets):
            for name, call in baseline_loops(nets, latents, tokens, blend).items():
                seen = self.visits.setdefault((precision, name), [])
                if name == BLENDED and seen:
                    continue  # for information only
                row = self._timed(self._row(name, "eager", precision, len(latents)), call, NETWORK)
                seen.append(row)
                self.tell(row)

    def _settled(self) -> list[Row]:
        """The baselines' medians, in front of everything else."""
        return [median_row(visits) for visits in self.visits.values()] + self.rows

    def _openings(self, nets: MuseTalkNets, precision: str) -> None:
        """How long it takes to open what was built or is recorded, and what it holds of the card."""
        o = self.options
        for backend in o.backends:
            name = _SETTING.get(backend, backend)
            if (
                precision == "fp8"
                or backend == "fused"
                or (backend == "cuda graph" and "fused graph" in o.backends)
            ):
                continue
            for row in self.engines.openings(nets, self._row("", name, precision, o.batches[0])):
                self._note(row)

    def _backend(
        self, nets, given, precision: str, unit: tuple[str, int], plates: Plates, exact: Tensor
    ) -> None:
        backend, batch = unit
        if (backend, precision) in self.absent:
            return
        o = self.options
        fused, graph = backend in FUSED, backend.endswith("graph")
        fast = self._fused(nets, precision) if fused else None
        reason = ""
        if precision == "fp8" and not fused:
            reason = "fp8 is for the fused kernels"
        elif fused and not isinstance(fast, FastNets):
            reason = fast.reason
        elif graph and o.device.type != "cuda":
            reason = f"needs a CUDA device, this is {o.device.type}"
        if reason:
            self.absent.add((backend, precision))
            self._note(replace(self._row(NETWORK, backend, precision, max(o.batches)), skipped=reason))
            return
        if f"{backend} {precision}" not in self.parity and (fused or backend == "eager"):
            got = (fast or nets)(*(t[: len(exact)] for t in given)).cpu()
            cosine, psnr = likeness(got, exact, peak=2.0)
            self.parity[f"{backend} {precision}"] = {
                "cosine": round(cosine, 7),
                "psnr_db": min(round(psnr, 2), 999.0),
            }
        for stage, call in _calls(nets, fast, tuple(t[:batch] for t in given), plates, o.frame).items():
            self._measure(self._row(stage, backend, precision, batch), call, stage, graph)

    def _engine(self, nets: MuseTalkNets, given: tuple[Tensor, Tensor], row: Row, plates: Plates) -> None:
        device = self.options.device
        latents, tokens = given
        index = torch.arange(row.batch, device=device) % _N_PLATES
        on_host = _host_frames(self.options.frame)
        engine, row = self.engines.built(nets, row)
        if engine is None:
            self._note(row)
            return

        def network() -> dict[str, Tensor]:
            return engine(latents=latents, tokens=tokens)

        def whole() -> object:
            made = network()
            if device.type == "cpu":
                return on_host(made["crops"].numpy())
            return composite_nv12(made["crops"], plates, index, made["finite"])

        self._measure(row, network, NETWORK)
        self._measure(replace(row, stage=WHOLE), whole, NETWORK)
        engine.close()

    def _host_composite(self, nets: MuseTalkNets, precision: str) -> None:
        size = nets.config.crop_size
        face = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), dtype=np.uint8)
        one = _host_frames(self.options.frame)
        ms = median_ms(lambda: one(face), torch.device("cpu"), self.options.seconds, self.options.least)
        self._note(replace(self._row(COMPOSITE, "CPU", precision, 1), fps=1000 / ms))

    def _fused(self, nets: MuseTalkNets, precision: str) -> FastNets | PlainNets:
        if self.fast is None or self.fast.nets is not nets:
            self.fast = fast_nets(nets)
            if precision == "fp8" and isinstance(self.fast, FastNets):
                self._quantise(nets)
        return self.fast

    def _quantise(self, nets: MuseTalkNets) -> None:
        """Of trained weights what passes; of random ones, which hardly pass, everything, to be timed."""
        from .fast_fp8 import LEAST_DB, quantise

        trained = self.options.size == "embedded"
        if not trained:
            self.fp8["random weights would have"] = quantise(fast_nets(nets)).text
        self.fp8["measured"] = quantise(self.fast, least_db=LEAST_DB if trained else float("-inf")).text

    def _row(self, stage: str, backend: str, precision: str, batch: int) -> Row:
        return Row(stage, backend, precision, batch)

    def _measure(self, row: Row, call: Callable, work: str | None, graph: bool = False) -> Row:
        return self._note(self._timed(row, call, work, graph))

    def _timed(self, row: Row, call: Callable, work: str | None, graph: bool = False) -> Row:
        """Time `call` (row.batch frames); `work` names whose arithmetic it does."""
        o = self.options
        gflop = self.flop.get(NETWORK if work == WHOLE else work or "")
        return Stopwatch(o.device, o.seconds, o.least, self.peaks).row(row, call, gflop, graph)

    def _with_ratios(self, row: Row) -> Row:
        """Every row of whole frames gets both; a stage alone and the blend for information have none."""
        if not row.fps or not (row.stage in (NETWORK, WHOLE) or row.stage.startswith(BASELINE)):
            return row
        bases = {
            name: statistics.median(r.fps for r in visits)
            for (precision, name), visits in self.visits.items()
            if precision == row.precision and name != BLENDED and all(r.fps for r in visits)
        }
        if BASELINE not in bases:
            return row
        return replace(row, ratio=row.fps / bases[BASELINE], ratio_eager=row.fps / max(bases.values()))

    def _note(self, row: Row) -> Row:
        self.rows.append(row)
        self.tell(row)
        return row


def settable(rows: Sequence[Row]) -> list[Row]:
    """The rows whose backend a user can choose, by the name of the choice.

    Choosing "cuda graph" records the fused kernels where they run, so the plain graph counts only where they do not.
    """
    fused = {row.precision for row in rows if row.backend == "fused graph" and row.fps}
    kept = [
        row
        for row in rows
        if row.backend != "fused" and not (row.backend == "cuda graph" and row.precision in fused)
    ]
    return [replace(row, backend=_SETTING.get(row.backend, row.backend)) for row in kept]


def _calls(
    nets: MuseTalkNets,
    fast: FastNets | None,
    given: tuple[Tensor, Tensor],
    plates: Plates,
    frame: tuple[int, int],
) -> dict[str, Callable]:
    """The stages as functions without arguments, on inputs that stay where they are."""
    latents, tokens = (t.clone() for t in given)
    index = torch.arange(len(latents), device=latents.device) % _N_PLATES
    scale = nets.config.vae.scaling_factor
    placed = tokens + nets.positions.to(tokens.dtype)
    made = nets.unet(latents, placed).clone()
    on_host = _host_frames(frame)

    def pixels() -> tuple[Tensor, Tensor]:
        if fast is not None:
            return fast.pixels(latents, tokens)
        images = nets(latents, tokens)
        return to_rgb_uint8(images.nan_to_num()), images.isfinite().flatten(1).all(1)

    def finish(crops: Tensor, finite: Tensor | None = None) -> object:
        if crops.device.type == "cpu":  # OpenCV, as the pipeline does it there
            return on_host(crops.numpy())
        return composite_nv12(crops, plates, index, finite)

    crops = torch.randint(0, 256, (len(latents), *2 * (nets.config.crop_size,), 3), dtype=torch.uint8)
    crops = crops.to(latents.device)
    return {
        "UNet": lambda: fast.latents(latents, tokens) if fast else nets.unet(latents, placed),
        "VAE decode": lambda: fast.decode(made) if fast else to_rgb_uint8(nets.vae.decode(made / scale)),
        NETWORK: pixels,
        COMPOSITE: lambda: finish(crops),
        WHOLE: lambda: finish(*pixels()),
    }


def _host_frames(frame: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Composite and NV12 on the CPU as the pipeline has it: crops (n, S, S, 3) -> the last frame as NV12."""
    pixels, box, crop, mask = _scene(frame)
    width, height = frame
    encoder = Nv12Encoder(width, height, matrix_for_height(height))
    plate = make_plate(pixels, box, crop, mask, encoder)
    out = np.empty_like(plate.nv12)

    def run(faces: np.ndarray) -> np.ndarray:
        for face in faces:
            out[:] = plate.nv12
            splice(plate, plate.blended(pixels, face, box), encoder, out)
        return out

    return run


def _inputs(nets: MuseTalkNets, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    config = nets.config
    latents = torch.randn(n, 2 * config.latent_channels, config.latent_size, config.latent_size)
    tokens = torch.randn(n, config.n_tokens, config.whisper.d_model)
    return latents.to(device), tokens.to(device)


def _gflop(nets: MuseTalkNets, latents: Tensor, tokens: Tensor) -> dict[str, float]:
    """Arithmetic of one frame by the plain modules, in GFLOP (a multiplication and an addition are two)."""
    from torch.utils.flop_counter import FlopCounterMode

    counts = {}
    with FlopCounterMode(display=False) as counter:
        made = nets.unet(latents, tokens + nets.positions)
    counts["UNet"] = counter.get_total_flops() / 1e9
    with FlopCounterMode(display=False) as counter:
        nets.vae.decode(made)
    counts["VAE decode"] = counter.get_total_flops() / 1e9
    counts[NETWORK] = counts["UNet"] + counts["VAE decode"]
    return counts


def _scene(frame: tuple[int, int]) -> tuple[np.ndarray, tuple, tuple, np.ndarray]:
    """A noise frame (H, W, 3) and a face box two fifths as wide, with its crop geometry and mask."""
    width, height = frame
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    side = min(width, height) * 2 // 5
    x, y = (width - side) // 2, (height - side) // 3
    box = (x, y, x + side, y + side * 5 // 4)
    crop = crop_geometry(box)
    return pixels, box, crop, lower_face_mask(crop)


def _plates(nets: MuseTalkNets, options: BenchOptions) -> Plates:
    pixels, box, crop, mask = _scene(options.frame)
    matrix = matrix_for_height(options.frame[1])
    made = make_plates(
        [pixels] * _N_PLATES, [box] * _N_PLATES, [crop] * _N_PLATES, [mask] * _N_PLATES, matrix
    )
    return made.to(options.device)
