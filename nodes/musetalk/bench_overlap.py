"""Stages ahead of each other against one after the other: whole films, visited in turn, and what each stage was busy with.

A visit is one `write_video`: speech features, network, composite to NV12, encoder and sound. Both ways run the same code
(`RunContext.overlap`) in one process, alternately, so that clocks and neighbours do to both what they do. With enough
free cores the gain ends at "sum of the stages / busiest stage"; where the processor is full before, at
"cores / cores that the sequential way keeps busy". Neighbours stretch the stages' wall time unevenly: their processor
time is given too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from ..avatars.names import FOLDER, demo_presenters
from ..avatars.source import read_source
from ..core.audio import AudioClip, MemoryAudio
from ..core.bench import SPEECH_LIKE_RATE as RATE
from ..core.bench import machine_facts, speech_like
from ..core.frames import RunContext
from ..core.images import cover, cover_box
from ..core.packet import AvatarPacket
from ..core.report import Report
from ..core.timeline import parse_fps
from ..core.video_write import WriteOptions, write_video
from .bake import build_avatar
from .handle import MuseTalkModel
from .render import CompositeStream, CropStream
from .speech import Speech

FPS = Fraction(25)
WAYS = {False: "sequential", True: "overlapped"}
THREADS = {
    "features": ("speech features",),
    "network": ("neural",),
    "composite": ("composite",),
    "encoder": ("convert", "encode", "sound"),
}
"""What each thread of the overlapped way is busy with, by the names in the report."""


@dataclass(frozen=True)
class OverlapOptions:
    """What to measure. threads: torch's threads, one row each, 0 for what torch has set; seconds: of film in a visit;
    visits: of each way; frame: width, height of the film."""

    device: torch.device
    precision: str = "fp32"
    batch: int = 8
    threads: tuple[int, ...] = (0, 1)
    seconds: int = 8
    visits: int = 3
    frame: tuple[int, int] = (512, 512)

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.visits < 1 or not self.threads or min(self.threads) < 0:
            raise ValueError(
                f"{self.seconds} s of film, {self.visits} visits, threads {self.threads}: give at least 1, 1 and one 0"
            )


@dataclass(frozen=True)
class OverlapRow:
    """One number of torch threads. fps: frames a second of each visit, by way; ratio: of the medians; busy: seconds a
    film that each thread's stages take, sequential; cpu: seconds of processor time of these; cores: cores kept busy by
    each way; bound: sum of `busy` / largest.
    """

    threads: int
    fps: dict[str, list[float]]
    ratio: float
    busy: dict[str, float]
    cpu: dict[str, float]
    cores: dict[str, float]
    bound: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_overlap(
    options: OverlapOptions,
    tell: Callable[[OverlapRow], object] = lambda row: None,
    model: MuseTalkModel | None = None,
) -> dict[str, object]:
    """Measure `model` (default: the embedded one) and return JSON-ready facts: machine, frame, frames, engine, rows.

    torch's number of threads is left as it was.
    """
    model = model or MuseTalkModel(precision=options.precision)
    before, ctx = torch.get_num_threads(), RunContext(options.device)
    sound = MemoryAudio(speech_like(0, options.seconds * RATE), RATE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        avatar = demo_at(ctx, model, "demo_loop", options.frame, Path(folder))
        crops = CropStream(model, avatar, Speech(model, sound, FPS), options.batch)
        film = _Film(ctx, CompositeStream(crops, avatar), sound, Path(folder) / "film.mp4")
        rows = []
        try:
            for threads in options.threads:
                torch.set_num_threads(threads or before)
                rows.append(_row(film, options.visits))
                tell(rows[-1])
        finally:
            torch.set_num_threads(before)
            ctx.close_engines()
    return {
        "machine": machine_facts(options.device),
        "frame": list(options.frame),
        "frames": crops.info.n_frames,
        "batch": options.batch,
        "engine": film.facts.get("musetalk engine"),
        "encoder": film.facts.get("encoder"),
        "rows": [row.as_dict() for row in rows],
    }


@dataclass
class _Film:
    ctx: RunContext
    stream: CompositeStream
    sound: AudioClip
    path: Path

    def visit(self, overlap: bool, report: Report | None = None) -> tuple[float, float, dict[str, float]]:
        """Write it once: frames a second, cores kept busy, seconds by stage."""
        ctx = self.ctx.nested()
        ctx.overlap, ctx.report = overlap, report or ctx.report
        wall, cpu = time.perf_counter(), time.process_time()
        result = write_video(self.stream, self.path, ctx, self.sound, WriteOptions())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.facts = ctx.report.facts
        return result.n_frames / wall, cpu / wall, ctx.report.seconds


class _ProcessorTime(Report):
    """Counts the processor time of all threads; right for one stage at a time."""

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self.spent(stage, time.process_time() - began)


def _row(film: _Film, visits: int) -> OverlapRow:
    for way in WAYS:  # buffers, engines
        film.visit(way)
    seen = {way: [] for way in WAYS}
    for _ in range(visits):
        for way in WAYS:
            seen[way].append(film.visit(way))
    middle = {way: statistics.median(fps for fps, _, _ in seen[way]) for way in WAYS}
    busy = _by_thread([spent for _, _, spent in seen[False]])
    cpu = _by_thread([film.visit(False, _ProcessorTime())[2]])
    return OverlapRow(
        torch.get_num_threads(),
        {WAYS[way]: [round(fps, 2) for fps, _, _ in seen[way]] for way in WAYS},
        round(middle[True] / middle[False], 3),
        busy,
        cpu,
        {WAYS[way]: round(statistics.median(c for _, c, _ in seen[way]), 2) for way in WAYS},
        round(sum(busy.values()) / max(busy.values()), 3),
    )


def _by_thread(seconds: list[dict[str, float]]) -> dict[str, float]:
    return {
        name: round(statistics.median(sum(s.get(stage, 0.0) for stage in stages) for s in seconds), 3)
        for name, stages in THREADS.items()
    }


def demo_at(
    ctx: RunContext, model: MuseTalkModel, name: str, size: tuple[int, int], root: Path
) -> AvatarPacket:
    """Build demo presenter `name` for `model`, scaled to fill `size` (width, height)."""
    demo = demo_presenters()[name]
    fps = parse_fps(demo["fps"])
    frames = read_source(FOLDER / demo["file"], fps=fps).frames
    source = frames.shape[2], frames.shape[1]
    boxes = [cover_box(tuple(box), source, size) for box in demo["boxes"]]
    frames = np.stack([cover(np.asarray(frame), *size) for frame in frames])
    return build_avatar(ctx, model, frames, boxes, root, f"bench-{name}", fps, demo["cycle"])


def overlap_table(facts: dict) -> str:
    """Say what was measured in lines of text."""
    width, height = facts["frame"]
    lines = [f"{facts['frames']} frames of {width}x{height}, batch {facts['batch']}; {facts['engine']}"]
    for row in facts["rows"]:
        visits = {way: " ".join(f"{fps:.1f}" for fps in row["fps"][way]) for way in WAYS.values()}
        lines.append(f"torch threads {row['threads']}: overlapped / sequential {row['ratio']:.2f}")
        for way in WAYS.values():
            busy = f"{row['cores'][way]:.2f} of {os.cpu_count()} cores busy"
            lines.append(f"  {way:11} fps {visits[way]}; {busy}")
        lines.append(f"  stages, sequential: {_parts(row['busy'])}; sum / busiest {row['bound']:.2f}")
        lines.append(f"  processor time: {_parts(row['cpu'])}")
    return "\n".join(lines)


def _parts(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return ", ".join(f"{name} {s:.2f} s ({s / total:.0%})" for name, s in seconds.items())
