"""Measuring this machine: what it is, its peaks, and a function's time. Rows and the table they are printed in.

Times are medians after a warm-up; on CUDA by events on the stream, so that what the host does meanwhile counts only
where it holds the card up. Compare figures of one run only: clocks and neighbours differ between runs.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .engine_spec import first_line

STRIDES = (1, 2, 3)
SPEECH_LIKE_RATE = 16000
TARGET_FPS, HEADROOM = 25.0, 1.25
"""A stride is recommended that is projected to give this many frames a second, with this headroom: encoder, sound and
the reading of the avatar are not in the whole path."""
COMMIT_VARIABLE = "TALKINGHEAD_COMMIT"
PACK = "talkinghead"
_NEAR_BEST = 0.97
"""A batch is recommended that reaches this share of the best one's speed: smaller ones answer sooner."""


@dataclass(frozen=True)
class Row:
    """One measurement: `fps` frames per second at `batch`, or `skipped` why there is none.

    share: arithmetic done, as a part of the matmul peak of the same run; ratio: to the row "baseline" of the same run;
    ratio_eager: to the fastest of the eager baselines; memory_mb: the most this row needed on the card beyond what was
    there before; prepared_s: seconds until it could run. visits: frames per second of each of several measurements,
    `fps` is their median. seconds: for rows of what happens once. held_mb: memory of the card taken before, with and
    after what the row opens, everything else on the card included.
    """

    stage: str
    backend: str
    precision: str
    batch: int
    fps: float = 0.0
    share: float | None = None
    ratio: float | None = None
    memory_mb: int | None = None
    prepared_s: float | None = None
    skipped: str = ""
    ratio_eager: float | None = None
    seconds: float | None = None
    held_mb: tuple[int, int, int] | None = None
    visits: tuple[float, ...] | None = None

    @property
    def ms(self) -> float:
        """Milliseconds a frame."""
        return 1000.0 / self.fps if self.fps else float("inf")

    def as_dict(self) -> dict[str, object]:
        return {k: _rounded(v) for k, v in asdict(self).items() if v is not None}


def _rounded(value: object) -> object:
    if isinstance(value, (tuple, list)):
        return [_rounded(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value


def machine_facts(device: torch.device) -> dict[str, object]:
    """Name what was measured: processor or card, its memory and driver, torch, and the commit of this pack."""
    facts: dict[str, object] = {
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "commit": commit_of_pack(),
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts["card"] = card.name
        facts["card_memory_gb"] = round(card.total_memory / 2**30, 1)
        facts["capability"] = f"{card.major}.{card.minor}"
        facts["cuda"] = torch.version.cuda
        query = [
            "nvidia-smi",
            "--query-gpu=driver_version",
            "--format=csv,noheader",
            f"--id={device.index or 0}",
        ]
        facts["driver"] = _answer(query)
    return facts


def commit_of_pack(root: Path | None = None) -> str:
    """Name the code that is measured, best source first: the variable TALKINGHEAD_COMMIT (for copies without git), git
    with "+changes" if tracked files differ, what pip noted when it installed from git, else "unknown (no git)"."""
    root = (root or Path(__file__).parents[2]).resolve()
    if stamp := os.environ.get(COMMIT_VARIABLE, "").strip():
        return stamp
    git = ["git", "-C", str(root)]
    top = _answer([*git, "rev-parse", "--show-toplevel"])
    # A copy inside another repository (ComfyUI's own, a site-packages that is tracked) is not that repository's commit.
    if top != "unknown" and Path(top).resolve() == root:
        changed = _answer([*git, "status", "--porcelain", "--untracked-files=no"]) != "unknown"
        return _answer([*git, "rev-parse", "--short=12", "HEAD"]) + ("+changes" if changed else "")
    try:
        noted = importlib.metadata.distribution(PACK).read_text("direct_url.json")
        return json.loads(noted or "{}")["vcs_info"]["commit_id"][:12]
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return "unknown (no git)"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _answer(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def process_mb() -> int | None:
    """Return the resident memory of this process in MB; None where the system does not tell it in /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def median_ms(
    function: Callable[[], object], device: torch.device, seconds: float = 0.5, least: int = 3, most: int = 50
) -> float:
    """Median milliseconds of a call: as many as fit into `seconds`, between `least` and `most`, after a warm-up."""
    began = time.perf_counter()
    function()
    _wait(device)
    first = time.perf_counter() - began
    if device.type == "cuda":
        for _ in range(2):  # clocks rise, allocators fill
            function()
        _wait(device)
        began = time.perf_counter()
        function()
        _wait(device)
        first = time.perf_counter() - began
    count = max(least, min(most, int(seconds / max(first, 1e-6))))
    return statistics.median(_once(function, device) for _ in range(count))


def _once(function: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        function()
        return (time.perf_counter() - began) * 1000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Stopwatch:
    """Times calls on `device`: about `seconds` on each, at least `least` calls. peaks: TFLOP/s by precision."""

    device: torch.device
    seconds: float
    least: int
    peaks: Mapping[str, float]

    def row(
        self, row: Row, call: Callable[[], object], gflop: float | None = None, graph: bool = False
    ) -> Row:
        """Return `row` with what was measured of `call`, which makes row.batch frames.

        Args:
            gflop: arithmetic of a frame, for the share of the peak.
            graph: record the call in a CUDA graph and time that.
        """
        device, cuda, began = self.device, self.device.type == "cuda", time.perf_counter()
        try:
            if cuda:
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
            timed = record(call, device) if graph else call
            if graph:
                row = replace(row, prepared_s=time.perf_counter() - began)
            fps = 1000 * row.batch / median_ms(timed, device, self.seconds, self.least)
        except (RuntimeError, MemoryError) as e:
            return replace(row, skipped=first_line(e)[:100])
        share = fps * gflop / 1000 / self.peaks[row.precision] if gflop else None
        used = (torch.cuda.max_memory_allocated(device) - before) >> 20 if cuda else None
        return replace(row, fps=fps, share=share, memory_mb=used)


def median_row(visits: Sequence[Row]) -> Row:
    """Return one row of several measurements of the same thing: their median, and all of them in `visits`."""
    measured = [row for row in visits if row.fps]
    if not measured:
        return visits[0]
    speeds = tuple(row.fps for row in measured)
    fps = statistics.median(speeds)
    share = None if measured[0].share is None else fps * measured[0].share / measured[0].fps
    return replace(measured[0], fps=fps, share=share, visits=speeds)


def matmul_tflops(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """TFLOP/s of a plain matrix product of random numbers, side x side x side."""
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / median_ms(lambda: a @ b, device, seconds=0.3) / 1e9


def copy_gbps(device: torch.device, megabytes: int) -> float:
    """GB/s of a copy inside the device's memory, bytes read plus bytes written."""
    source = torch.empty(megabytes << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / median_ms(lambda: target.copy_(source), device, seconds=0.3) / 1e6


def record(function: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Capture a call in a CUDA graph and return its replay; what the call reads must stay where it is."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = function()

    def replay() -> None:
        graph.replay()

    replay.kept = kept  # the graph writes into these
    return replay


def row_text(row: Row) -> str:
    """Say a row in words."""
    what = row.skipped or (f"{row.fps:.1f} fps" if row.fps else f"{row.seconds:.2f} s")
    return f"{row.stage}, {row.backend}, {row.precision}, batch {row.batch}: {what}"


_HEAD = (
    "stage",
    "backend",
    "precision",
    "batch",
    "fps",
    "ms",
    "of peak",
    "x baseline",
    "x eager",
    "MB",
    "s",
    "MB held",
)


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text, one line each. "s": seconds once; "MB held": on the card before / open / closed."""
    lines = [_HEAD]
    for row in rows:
        cells = [row.stage, row.backend, row.precision, str(row.batch)]
        if row.skipped:
            cells.append(f"skipped: {row.skipped}")
        else:
            cells += [f"{row.fps:.1f}", f"{row.ms:.3f}"] if row.fps else ["", ""]
            cells.append("" if row.share is None else f"{row.share:.0%}")
            cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in (row.ratio, row.ratio_eager)]
            cells.append("" if row.memory_mb is None else str(row.memory_mb))
            cells.append("" if row.seconds is None else f"{row.seconds:.2f}")
            cells.append("" if row.held_mb is None else " / ".join(map(str, row.held_mb)))
        lines.append((*cells, *[""] * (len(_HEAD) - len(cells))))
    full = [line for line in lines if not line[4].startswith("skipped")]
    wide = [max(len(line[i]) for line in (full if i == 4 else lines)) for i in range(len(_HEAD))]
    texts = []
    for line in lines:
        parts = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, wide, strict=True))]
        texts.append("  ".join(parts).rstrip())
    return "\n".join(texts)


def likeness(a: Tensor, b: Tensor, peak: float) -> tuple[float, float]:
    """Cosine, and PSNR in dB against a range of `peak`, of two tensors of one shape; NaN counts as a failure."""
    x, y = a.double().flatten(), b.double().flatten()
    error = float((x - y).square().mean())
    cosine = float(torch.dot(x, y) / (x.norm() * y.norm()).clamp(min=1e-30))
    if error == 0:
        return cosine, float("inf")
    return cosine, float(10 * torch.log10(torch.tensor(peak**2 / error)))


@dataclass(frozen=True)
class Advice:
    """Settings for this machine and what they should give; `fps` by stride, the network running on every n-th frame;
    `stride` the one to take."""

    backend: str
    batch: int
    precision: str
    fps: dict[int, float]
    stride: int


def advise(whole: Sequence[Row], network: Sequence[Row]) -> Advice:
    """Choose settings from what was measured.

    Backend and precision of the fastest whole path; of these the smallest batch within 3 % of it, for a smaller one
    answers sooner. Strides are projected: the network's part of a frame's time is divided by the stride, the rest
    stays. The smallest stride that gives 25 frames a second with a quarter to spare, else the largest.

    Raises:
        ValueError: nothing was measured.
    """
    measured = [row for row in whole if row.fps]
    if not measured:
        raise ValueError("no whole path was measured: nothing to recommend. See the reasons in the table")
    best = max(measured, key=lambda row: row.fps)
    same = [r for r in measured if (r.backend, r.precision) == (best.backend, best.precision)]
    chosen = min((r for r in same if r.fps >= _NEAR_BEST * best.fps), key=lambda row: row.batch)
    key = (chosen.backend, chosen.precision, chosen.batch)
    neural = [row.ms for row in network if (row.backend, row.precision, row.batch) == key and row.fps]
    part = min(neural[0], chosen.ms) if neural else chosen.ms
    fps = {stride: 1000.0 / (part / stride + chosen.ms - part) for stride in STRIDES if part or stride == 1}
    enough = [stride for stride, speed in fps.items() if speed >= TARGET_FPS * HEADROOM]
    return Advice(chosen.backend, chosen.batch, chosen.precision, fps, min(enough, default=max(fps)))


def speech_like(start: int, count: int) -> np.ndarray:
    """Return samples `start` .. of an endless sound of syllables and pauses: float32 (count,) at SPEECH_LIKE_RATE, the
    same wherever it is cut."""
    t = np.arange(start, start + count, dtype=np.float64) / SPEECH_LIKE_RATE
    voice = sum(np.sin(2 * np.pi * 120 * k * t + k) / k for k in range(1, 9))
    spoken = np.sin(2 * np.pi * 2.2 * t) ** 2 * (np.sin(2 * np.pi * 0.23 * t) > -0.8)
    return (0.15 * voice * spoken).astype(np.float32)
