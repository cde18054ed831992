"""Live rendering measured: time to the first frame, steady speed by the size of the pushes, memory over time.

Time to the first frame (TTFF): from the push of the last sample that the first chunk needs, everything before it heard
already, to the chunk's NV12 bytes on the host. Warm: engines open, the avatar resident, as in a server that has rendered
before. Cold: the first run of the process, all sound there, from the call on. Speed and memory do not depend on the
weights: random ones with size "full".
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ..core.bench import SPEECH_LIKE_RATE as RATE
from ..core.bench import machine_facts, speech_like
from ..core.cadence import CadenceOptions
from ..core.color import matrix_for_height
from ..core.engine_spec import EngineIdentity
from ..core.frames import FrameChunk, RunCancelled, RunContext
from ..core.host_copy import Arriving, HostCopies
from ..core.live_audio import LiveAudio
from ..core.packet import AvatarPacket
from ..core.pool import AvatarPool, Resident
from .bake import build_avatar
from .bench_engines import made_nets
from .config import OFFICIAL, MuseTalkConfig
from .handle import MuseTalkModel
from .live_speech import sound_needed
from .model import MuseTalkNets
from .stream import stream_musetalk

FPS = Fraction(25)
CHUNKS_MS = (80, 160, 320, 640)
_AVATAR_FRAMES = 25
_SAMPLES = 12
"""Looks at the memory in one run."""


@dataclass(frozen=True)
class LiveOptions:
    """What to measure. repeats: warm TTFF runs of a row; seconds: of sound in a steady run; memory_seconds: in the run
    whose memory is watched; rest: every frame is drawn as ever, but in silence the mouth rests."""

    device: torch.device
    size: str = "embedded"
    precision: str = "fp32"
    batches: tuple[int, ...] = (8,)
    chunks_ms: tuple[int, ...] = CHUNKS_MS
    frame: tuple[int, int] = (1080, 1920)
    repeats: int = 10
    seconds: int = 20
    memory_seconds: int = 120
    backend: str = "auto"
    rest: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.seconds < 2 or self.memory_seconds < 2:
            raise ValueError("repeats must be 1 at least, seconds of sound 2")
        if any(not 20 <= ms <= 2000 for ms in self.chunks_ms):
            raise ValueError(f"pushes of {self.chunks_ms} ms must be between 20 and 2000")
        if self.frame[0] % 2 or self.frame[1] % 2 or min(self.frame) < 128:
            raise ValueError(f"frame {self.frame[0]}x{self.frame[1]} needs even sides of at least 128 pixels")


@dataclass(frozen=True)
class LiveRow:
    """One batch and push size: ms of sound needed before the first chunk and pushed until then; warm TTFF in ms (median,
    least, most of `repeats`); frames a second from the first chunk on, sound always at hand."""

    batch: int
    chunk_ms: int
    needed_ms: float
    pushed_ms: int
    ttff_ms: float
    ttff_least_ms: float
    ttff_most_ms: float
    steady_fps: float

    def as_dict(self) -> dict[str, object]:
        return {k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(self).items()}


def run_live(options: LiveOptions, tell: Callable[[str], object] = lambda line: None) -> dict[str, object]:
    """Measure and return everything as JSON-ready facts; `tell` gets a line for every result as it comes.

    Returns:
        machine, size, precision, frame, rest, engines (what ran), cold_ms, rows (see `LiveRow`), memory (samples of
        frames done, resident MB of the process, MB allocated on the card).
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ctx = stack.enter_context(_WarmContext(options.device))
        bench = _LiveBench(options, ctx, Path(folder), tell)
        return bench.run()


class _WarmContext(RunContext):
    """Keeps its avatars warm, as a server does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._pool = AvatarPool(max_bytes=1 << 30)

    def __enter__(self) -> _WarmContext:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.flush()
        self.close_engines()

    def use_avatar(self, packet: AvatarPacket) -> AbstractContextManager[Resident]:
        return self._pool.use(packet, self.device)


@dataclass(frozen=True)
class _RandomModel(MuseTalkModel):
    """The official sizes with random weights, made on `device`."""

    device: str = "cpu"

    @property
    def key(self) -> tuple[str, ...]:
        return ("musetalk", "random", self.precision)

    @cached_property
    def config(self) -> MuseTalkConfig:
        return OFFICIAL

    @property
    def identity(self) -> str:
        return "0" * 64

    @property
    def engine_identity(self) -> EngineIdentity:
        return EngineIdentity(self.precision, self.config.to_dict())

    def build(self) -> MuseTalkNets:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            nets = made_nets("full", torch.device(self.device))
        nets.wants_fp8 = self.precision == "fp8"
        return nets.to(torch.float32 if self.precision == "fp32" else torch.float16)


@dataclass
class _LiveBench:
    options: LiveOptions
    ctx: _WarmContext
    folder: Path
    tell: Callable[[str], object]
    copies: HostCopies = field(default_factory=lambda: HostCopies(3))

    def run(self) -> dict[str, object]:
        o = self.options
        self.model = (
            _RandomModel(precision=o.precision, backend=o.backend, device=str(o.device))
            if o.size == "full"
            else MuseTalkModel(precision=o.precision, backend=o.backend)
        )
        began = time.perf_counter()
        self.avatar = _avatar(self.ctx, self.model, self.folder, o.frame)
        self.tell(f"model and avatar ready after {time.perf_counter() - began:.1f} s")
        cold = self._cold()
        self.tell(f"cold, from the call to the first chunk on the host: {cold:.0f} ms")
        rows = []
        for batch in o.batches:
            for chunk_ms in o.chunks_ms:
                rows.append(self._row(batch, chunk_ms))
                self.tell(line(rows[-1]))
        return {
            "machine": machine_facts(o.device),
            "size": o.size,
            "precision": o.precision,
            "frame": list(o.frame),
            "rest": o.rest,
            "engines": {k: v for k, v in self.ctx.report.facts.items() if "engine" in k or k == "composite"},
            "cold_ms": round(cold, 1),
            "rows": [row.as_dict() for row in rows],
            "memory": self._memory(),
            "warnings": list(self.ctx.report.warnings),
        }

    def _stream(self, audio: LiveAudio, batch: int) -> Iterator[FrameChunk]:
        matrix = matrix_for_height(self.options.frame[1])
        cadence = CadenceOptions(rest=self.options.rest)
        return stream_musetalk(
            self.ctx, self.model, self.avatar, audio, FPS, batch=batch, matrix=matrix, cadence=cadence
        )

    def _cold(self) -> float:
        audio = LiveAudio(RATE)
        audio.push(speech_like(0, 2 * RATE))
        began = time.perf_counter()
        with closing(self._stream(audio, self.options.batches[0])) as chunks:
            return 1000 * (self._to_host(next(chunks)) - began)

    def _to_host(self, chunk: FrameChunk) -> float:
        """Bring a chunk's bytes to the host; return the clock when they are there."""
        arriving = self.copies.send(chunk.frames)
        arriving.take()
        arriving.release()
        return time.perf_counter()

    def _row(self, batch: int, chunk_ms: int) -> LiveRow:
        times = [self._ttff(batch, chunk_ms) for _ in range(self.options.repeats + 1)][1:]
        needed = sound_needed(self.model, batch, FPS) * 1000 / RATE
        return LiveRow(
            batch,
            chunk_ms,
            needed,
            -(-int(needed) // chunk_ms) * chunk_ms,
            statistics.median(times),
            min(times),
            max(times),
            self._steady(batch, chunk_ms),
        )

    def _ttff(self, batch: int, chunk_ms: int) -> float:
        step = RATE * chunk_ms // 1000
        pushes = -(-sound_needed(self.model, batch, FPS) // step)
        audio = LiveAudio(RATE)

        def first() -> float:
            with closing(self._stream(audio, batch)) as chunks:
                return self._to_host(next(chunks))

        with ThreadPoolExecutor(1, thread_name_prefix="talkinghead-bench") as pool:
            done = pool.submit(first)
            try:
                for k in range(pushes - 1):
                    audio.push(speech_like(k * step, step))
                    _until_heard(audio)
                sound = speech_like((pushes - 1) * step, step)
                _until_heard(audio)
                began = time.perf_counter()
                audio.push(sound)
                return 1000 * (done.result() - began)
            finally:
                audio.fail(RunCancelled("the measurement is over"))

    def _steady(self, batch: int, chunk_ms: int) -> float:
        seen = [(done, clock) for done, clock in self._run(batch, chunk_ms, self.options.seconds)]
        frames = seen[-1][0] - seen[0][0]
        return frames / (seen[-1][1] - seen[0][1])

    def _run(self, batch: int, chunk_ms: int, seconds: int) -> Iterator[tuple[int, float]]:
        """Render sound that is pushed as quickly as it is taken; yield (frames on the host, clock) after each chunk."""
        step = RATE * chunk_ms // 1000
        audio = LiveAudio(RATE, max_seconds=max(0.1, 2 * chunk_ms / 1000))

        def produce() -> None:
            for start in range(0, seconds * RATE, step):
                audio.push(speech_like(start, step))
            audio.end()

        held: tuple[int, Arriving] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="talkinghead-bench") as pool:
            done = pool.submit(produce)
            try:
                with closing(self._stream(audio, batch)) as chunks:
                    for chunk in chunks:
                        now = chunk.frame_start + chunk.num_frames, self.copies.send(chunk.frames)
                        if held:
                            yield _landed(*held)
                        held = now
                    if held:
                        yield _landed(*held)
                done.result()
            finally:
                audio.fail(RunCancelled("the measurement is over"))

    def _memory(self) -> list[dict[str, object]]:
        o = self.options
        every = max(1, int(o.memory_seconds * FPS) // _SAMPLES)
        samples: list[dict[str, object]] = []
        for done, _ in self._run(o.batches[0], 320, o.memory_seconds):
            if done >= every * (len(samples) + 1):
                sample: dict[str, object] = {"frames": done, "process_mb": _process_mb()}
                if o.device.type == "cuda":
                    sample["card_mb"] = torch.cuda.memory_allocated(o.device) >> 20
                samples.append(sample)
                self.tell("memory: " + ", ".join(f"{k} {v}" for k, v in sample.items()))
        return samples


def _landed(done: int, arriving: Arriving) -> tuple[int, float]:
    arriving.take()
    arriving.release()
    return done, time.perf_counter()


def _until_heard(audio: LiveAudio) -> None:
    """Wait until the consumer has taken what was pushed and has had time to work through it."""
    while not audio.waits:
        time.sleep(0.002)
    time.sleep(0.05)


def _avatar(ctx: RunContext, model: MuseTalkModel, folder: Path, frame: tuple[int, int]) -> AvatarPacket:
    """Build a loop of noise pictures with a face box two fifths as wide."""
    width, height = frame
    picture = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    frames = np.stack([np.roll(picture, k, axis=1) for k in range(_AVATAR_FRAMES)])
    side = min(width, height) * 2 // 5
    x, y = (width - side) // 2, (height - side) // 3
    boxes = [(x, y, x + side, y + side * 5 // 4)] * _AVATAR_FRAMES
    return build_avatar(ctx, model, frames, boxes, folder, "bench", FPS, "loop")


def _process_mb() -> int | None:
    """Resident memory of this process in MB; None where the system does not tell it in /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError, IndexError, AttributeError):
        return None


_HEAD = ("batch", "push ms", "needs ms", "pushed ms", "TTFF ms", "least", "most", "steady fps", "x real time")


def line(row: LiveRow) -> str:
    """Say a row in words."""
    return (
        f"batch {row.batch}, pushes of {row.chunk_ms} ms: TTFF {row.ttff_ms:.1f} ms "
        f"({row.ttff_least_ms:.1f} to {row.ttff_most_ms:.1f}), steady {row.steady_fps:.1f} fps"
    )


def live_table(rows: list[dict]) -> str:
    """Rows as aligned text, one line each."""
    lines = [_HEAD]
    for row in rows:
        numbers = (row["ttff_ms"], row["ttff_least_ms"], row["ttff_most_ms"], row["steady_fps"])
        cells = [row["batch"], row["chunk_ms"], f"{row['needed_ms']:.0f}", row["pushed_ms"]]
        cells += [f"{n:.1f}" for n in numbers]
        lines.append(tuple(map(str, [*cells, f"{row['steady_fps'] / float(FPS):.1f}"])))
    wide = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, wide, strict=True)) for line in lines)
