"""FrameStream: the lazy video that flows between nodes, and RunContext: who runs it.

A minute of 1080x1920 as float32 IMAGE is 37 GB, so frames travel as a recipe that its consumer pulls in
chunks. A stream is immutable and re-iterable (ComfyUI caches node outputs; a second consumer starts from
frame 0), deterministic, and bounded: its peak memory does not depend on its length. Streams hold model
*handles*; `RunContext.load` turns a handle into a module at the start of every run.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .interrupt import RunCancelled as RunCancelled
from .interrupt import is_interrupt
from .report import Report
from .stage_thread import current_stage

if TYPE_CHECKING:
    from pathlib import Path

    from .engine import StageEngine
    from .engine_shelf import EngineShelf, StageMaker
    from .engine_spec import EngineIdentity
    from .packet import AvatarPacket
    from .pool import Resident

LAYOUTS = ("rgb", "nv12")


class StageError(RuntimeError):
    """A stage of a stream failed; the message names the stage and the frame, `__cause__` holds why."""


@dataclass(frozen=True)
class FrameInfo:
    """What is known of a stream before it runs.

    n_frames is None for a stream whose end is not known before it comes (live sound). width, height in pixels; layout
    "rgb" (n,H,W,3) or "nv12" (n,H*3/2,W), uint8; matrix ("bt709" or "bt601") and range describe nv12 content and are None
    for rgb.
    """

    width: int
    height: int
    fps: Fraction
    n_frames: int | None
    layout: str = "rgb"
    matrix: str | None = None
    range: str | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or (self.n_frames or 0) < 0:
            raise ValueError(f"a stream cannot be {self.width}x{self.height} with {self.n_frames} frames")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is unknown; use one of {', '.join(LAYOUTS)}")
        if self.layout == "nv12" and (self.width % 2 or self.height % 2):
            raise ValueError(f"nv12 needs even sides, not {self.width}x{self.height}; pad by one pixel")

    @property
    def frame_shape(self) -> tuple[int, ...]:
        if self.layout == "nv12":
            return (self.height * 3 // 2, self.width)
        return (self.height, self.width, 3)

    @property
    def seconds(self) -> Fraction | None:
        return None if self.n_frames is None else self.n_frames / self.fps


@dataclass(frozen=True)
class Placement:
    """Where the crops of a chunk belong: avatar frame of each (n, int64) and whether it is usable (n, bool).

    An unusable crop (no face in that avatar frame, non-finite output) leaves the avatar's frame untouched.
    """

    avatar_index: torch.Tensor
    usable: torch.Tensor


@dataclass(frozen=True)
class FrameChunk:
    """A run of consecutive frames; `frames` is a uint8 tensor shaped (n, *info.frame_shape), on any device."""

    chunk_idx: int
    frame_start: int
    num_frames: int
    frames: torch.Tensor
    is_last: bool
    placement: Placement | None = None


class ModelHandle(Protocol):
    """Names a model without holding its weights."""

    @property
    def key(self) -> Hashable: ...

    @property
    def backend(self) -> str: ...

    @property
    def engine_identity(self) -> EngineIdentity: ...

    def build(self) -> torch.nn.Module: ...


class RunContext:
    """Made by whoever consumes a stream (writer node, command line, test); carries progress, cancel, models.

    `progress` is called with (done, total) frames, `is_cancelled` is asked once per chunk; `engine_cache` is the
    folder of built engines, None to keep none. `overlap`: whether stages run in threads ahead of each other
    (`overlap.ahead`); False is the same code in one thread, None leaves it to each stage: on a CPU all are ahead.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        progress: Callable[[int, int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        report: Report | None = None,
        engine_cache: Path | None = None,
        overlap: bool | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.engine_cache = engine_cache
        self.overlap = overlap
        self.report = report or Report()
        self._progress = progress
        self._is_cancelled = is_cancelled
        self._models: dict[Hashable, torch.nn.Module] = {}
        self._shelves: dict[Hashable, EngineShelf] = {}
        self._models_lock = threading.RLock()

    def runs_ahead(self, on_card: bool = True) -> bool:
        """Return whether a stage gets a thread of its own; `on_card`: whether it does on a CUDA device by default."""
        if self.overlap is None:
            return on_card or self.device.type != "cuda"
        return self.overlap

    def using_models(self) -> AbstractContextManager:
        """Hold what `load` and `engine` hold: one thread at a time gets models, moves them or closes their engines.

        A stage that runs a module itself, beside others of the run, does so inside. May be entered again by its holder.
        """
        return self._models_lock

    def load(self, handle: ModelHandle) -> torch.nn.Module:
        """Return the handle's module on this run's device, ready for inference."""
        with self.using_models():
            if handle.key not in self._models:
                self._models[handle.key] = handle.build().to(self.device).eval()
            return self._models[handle.key]

    def engine(
        self,
        handle: ModelHandle,
        stage: StageMaker,
        batch: int,
        build: bool = False,
        report: Report | None = None,
    ) -> StageEngine:
        """Return the engine that runs `stage` of the handle's module, by the handle's backend; its choice is reported.

        Ask again when it says `closed`: the memory was wanted for something else. `build`: spend minutes on building
        what is not in the cache even if the backend is "auto".
        """
        from .engine import EngineOptions

        options = EngineOptions(handle.backend, batch, self.engine_cache, handle.engine_identity, build)
        with self.using_models():
            module = self.load(handle)
            return self._shelf(handle).get(module, stage, options, self.device, report or self.report)

    def _shelf(self, handle: ModelHandle) -> EngineShelf:
        from .engine_shelf import EngineShelf

        return self._shelves.setdefault(handle.key, EngineShelf())

    def close_engines(self) -> None:
        """Give back what engines hold of the card; the models stay."""
        for shelf in self._shelves.values():
            shelf.close()

    def use_avatar(self, packet: AvatarPacket) -> AbstractContextManager[Resident]:
        """Return a context manager that gives the packet on this run's device. A server keeps packets warm."""
        from .pool import open_resident

        return open_resident(packet, self.device)

    def release_avatars(self) -> None:
        """Let go of warm packets that nobody uses: a mapped file cannot be replaced on Windows."""

    def tick(self, done: int, total: int | None) -> None:
        """Tell how far the run is, in frames. Without a known total there is no progress to show."""
        if self._progress and total is not None:
            self._progress(done, total)

    def cancelled(self) -> bool:
        return bool(self._is_cancelled and self._is_cancelled())

    def check_cancelled(self) -> None:
        """Raise RunCancelled if the user stopped the run (in ComfyUI: its own interrupt exception).

        In the thread of a stage that runs ahead only its consumer's stop counts: that is the one who asks the user's.
        """
        stage = current_stage()
        if stage is None:
            self.raise_if_cancelled()
        elif stage.stopped.is_set():
            raise RunCancelled(f"{stage.name}: nobody takes its results any more")

    def raise_if_cancelled(self) -> None:
        """Ask for the user's stop; contexts with a flag of their own override this one."""
        if self.cancelled():
            raise RunCancelled("stopped by the user")

    def warn(self, message: str) -> None:
        self.report.warn(message)

    def nested(self) -> RunContext:
        """Return a context for one item of several: same device, models and cancel, its own report, no progress."""
        return _NestedContext(self)


class _NestedContext(RunContext):
    def __init__(self, outer: RunContext) -> None:
        super().__init__(outer.device, engine_cache=outer.engine_cache, overlap=outer.overlap)
        self._outer = outer

    def using_models(self) -> AbstractContextManager:
        return self._outer.using_models()

    def load(self, handle: ModelHandle) -> torch.nn.Module:
        return self._outer.load(handle)

    def engine(
        self,
        handle: ModelHandle,
        stage: StageMaker,
        batch: int,
        build: bool = False,
        report: Report | None = None,
    ) -> StageEngine:
        return self._outer.engine(handle, stage, batch, build, report or self.report)

    def close_engines(self) -> None:
        self._outer.close_engines()

    def use_avatar(self, packet: AvatarPacket) -> AbstractContextManager[Resident]:
        return self._outer.use_avatar(packet)

    def release_avatars(self) -> None:
        self._outer.release_avatars()

    def cancelled(self) -> bool:
        return self._outer.cancelled()

    def raise_if_cancelled(self) -> None:
        self._outer.raise_if_cancelled()


Made = tuple[torch.Tensor, Placement | None] | tuple[torch.Tensor, Placement | None, bool]
"""What `FrameStream.generate` yields: frames, their placement or None, and whether they are the last ones. The third is
needed only where the number of frames is not known before."""


class FrameStream(ABC):
    """A lazy, re-iterable sequence of frames. Subclasses name their stage and implement `generate`."""

    stage: str = "stream"
    info: FrameInfo

    @abstractmethod
    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        """Yield the frames in order, at most `n` at a time; see `Made`."""

    def nv12(self, matrix: str, color_range: str = "limited") -> FrameStream | None:
        """Return the same frames as an NV12 stream, or None if this one has no quicker way than converting its RGB.

        The frames may be on ctx.device. For even sides only.
        """
        return None

    def chunks(self, ctx: RunContext, n: int) -> Generator[FrameChunk, None, None]:
        """Yield the stream as FrameChunks of at most `n` frames.

        Checks the contract (shape, dtype, number of frames), asks for cancel once per chunk, and wraps
        what a stage raises in a StageError that names it. Generators of inner streams are closed when
        the consumer stops early.
        """
        if n < 1:
            raise ValueError(f"a chunk needs at least one frame, not {n}")
        source, start, idx, last = self.generate(ctx, n), 0, 0, self.info.n_frames == 0
        try:
            while not last:
                ctx.check_cancelled()
                made = self._pull(source, start)
                if made is None:
                    return
                frames, placement, last = made
                count = frames.shape[0]
                yield FrameChunk(idx, start, count, frames, last, placement)
                start, idx = start + count, idx + 1
        finally:
            source.close()

    def _pull(self, source: Iterator, start: int) -> tuple[torch.Tensor, Placement | None, bool] | None:
        """Return the next frames, None for a stream of unknown length that turns out to have none."""
        info = self.info
        try:
            frames, placement, *flag = next(source)
        except StopIteration:
            if info.n_frames is None and start == 0:
                return None
            where = "without a last one" if info.n_frames is None else f"of {info.n_frames}"
            raise StageError(f"{self.stage}: ended at frame {start} {where}") from None
        except (StageError, MemoryError):
            raise
        except Exception as e:
            if is_interrupt(e):
                raise
            of = "" if info.n_frames is None else f" of {info.n_frames}"
            raise StageError(f"{self.stage}, from frame {start}{of}: {e}") from e
        if frames.dtype != torch.uint8 or tuple(frames.shape[1:]) != info.frame_shape:
            raise StageError(
                f"{self.stage}: frames {tuple(frames.shape)} {frames.dtype} do not match {info.frame_shape} uint8"
            )
        count = frames.shape[0]
        if info.n_frames is None:
            if count < 1 or not flag:
                raise StageError(
                    f"{self.stage}: {count} frames at {start}, not said whether they are the last"
                )
            return frames, placement, bool(flag[0])
        left = info.n_frames - start
        if not 1 <= count <= left:
            raise StageError(f"{self.stage}: {count} frames at {start}, {left} are left")
        return frames, placement, count == left


class TensorStream(FrameStream):
    """A stream over frames that are in memory: uint8 (n,H,W,3) RGB. `notes` go to the report of every run."""

    stage = "frames in memory"

    def __init__(self, frames: torch.Tensor, fps: Fraction, notes: Sequence[str] = ()) -> None:
        if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
            raise ValueError(f"frames must be uint8 (n,H,W,3), not {frames.dtype} {tuple(frames.shape)}")
        self._frames, self._notes = frames, tuple(notes)
        self.info = FrameInfo(frames.shape[2], frames.shape[1], fps, frames.shape[0])

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, None]]:
        for note in self._notes:
            ctx.warn(note)
        for i in range(0, self.info.n_frames, n):
            yield self._frames[i : i + n], None


class MappedStream(FrameStream):
    """A stream whose frames are a function of another stream's chunks, one to one."""

    def __init__(
        self,
        source: FrameStream,
        stage: str,
        function: Callable[[RunContext, FrameChunk], torch.Tensor],
        **changes: Any,
    ) -> None:
        self._source, self._function, self.stage = source, function, stage
        self.info = replace(source.info, **changes)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        # Left to the interpreter to close, it would lose a Ctrl-C that comes meanwhile.
        with closing(self._source.chunks(ctx, n)) as chunks:
            for chunk in chunks:
                yield self._function(ctx, chunk), None, chunk.is_last
