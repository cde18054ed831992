"""Live rendering measured: time to the first frame, steady speed by the size of the pushes, memory over time.

Time to the first frame (TTFF): from the push of the last sample that the first chunk needs, everything before it heard
already, to the chunk's NV12 bytes on the host. Warm: engines open, the avatar resident, as in a server that has rendered
before. Cold: the first run of the process, all sound there, from the call on. What is rendered, an engine says (`LiveEngine`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import torch

from .bench import SPEECH_LIKE_RATE as RATE
from .bench import machine_facts, process_mb, speech_like
from .color import matrix_for_height
from .frames import FrameChunk, ModelHandle, RunCancelled, RunContext
from .host_copy import Arriving, HostCopies
from .live_audio import LiveAudio
from .packet import AvatarPacket
from .pool import AvatarPool, Resident

FPS = Fraction(25)
CHUNKS_MS = (80, 160, 320, 640)
AVATAR_FRAMES = 25
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


class LiveEngine(Protocol):
    """What the bench renders."""

    facts: tuple[str, ...]
    """Of the report, what ran; beside the names of engines."""

    def model(self, options: LiveOptions) -> ModelHandle:
        """Return the model of options.size, precision and backend."""

    def avatar(
        self, ctx: RunContext, model: ModelHandle, folder: Path, frame: tuple[int, int]
    ) -> AvatarPacket:
        """Return a loop of AVATAR_FRAMES frames of this width and height, written into `folder`."""

    def stream(
        self,
        ctx: RunContext,
        model: ModelHandle,
        avatar: AvatarPacket,
        audio: LiveAudio,
        options: LiveOptions,
        batch: int,
    ) -> Iterator[FrameChunk]:
        """Return the frames at FPS in NV12 of `matrix_of(options)`."""

    def sound_needed(self, model: ModelHandle, batch: int) -> int:
        """Return the samples at RATE that must be there before the first chunk is begun."""


def matrix_of(options: LiveOptions) -> str:
    return matrix_for_height(options.frame[1])


def measure_live(
    engine: LiveEngine, options: LiveOptions, tell: Callable[[str], object] = lambda line: None
) -> dict[str, object]:
    """Measure and return everything as JSON-ready facts; `tell` gets a line for every result as it comes.

    Returns:
        machine, size, precision, frame, rest, engines (what ran), cold_ms, rows (see `LiveRow`), memory (samples of
        frames done, resident MB of the process, MB allocated on the card).
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ctx = stack.enter_context(_WarmContext(options.device))
        return _LiveBench(engine, options, ctx, Path(folder), tell).run()


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


@dataclass
class _LiveBench:
    engine: LiveEngine
    options: LiveOptions
    ctx: _WarmContext
    folder: Path
    tell: Callable[[str], object]
    copies: HostCopies = field(default_factory=lambda: HostCopies(3))

    def run(self) -> dict[str, object]:
        o = self.options
        self.model = self.engine.model(o)
        began = time.perf_counter()
        self.avatar = self.engine.avatar(self.ctx, self.model, self.folder, o.frame)
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
            "engines": {
                k: v
                for k, v in self.ctx.report.facts.items()
                if k.endswith("engine") or k in self.engine.facts
            },
            "cold_ms": round(cold, 1),
            "rows": [row.as_dict() for row in rows],
            "memory": self._memory(),
            "warnings": list(self.ctx.report.warnings),
        }

    def _stream(self, audio: LiveAudio, batch: int) -> Iterator[FrameChunk]:
        return self.engine.stream(self.ctx, self.model, self.avatar, audio, self.options, batch)

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
        needed = self.engine.sound_needed(self.model, batch) * 1000 / RATE
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
        pushes = -(-self.engine.sound_needed(self.model, batch) // step)
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
                sample: dict[str, object] = {"frames": done, "process_mb": process_mb()}
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
