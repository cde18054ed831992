"""What the way back from a crop needs: boxes, lengths, and the full frames themselves as IMAGE or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import torch

from ..core.frames import FrameStream, RunContext
from .checks import check_images, check_kind, problem
from .limits import CHUNK


@dataclass(frozen=True, eq=False)
class Stitch:
    """Where a crop came from. Not a tensor and without a tensor's methods, so that it fits no other socket.

    source: (T, H, W) of the full frames; boxes: int32 (frames, 4) x, y, width, height, one for each frame of the crop,
    of one size; kept: how many source frames the crop begins with (more frames of it repeat the last one, source frames
    behind it stay as they are); padded: the boxes leave the picture; mask_digest: blake2b of the mask they were made for.
    """

    source: tuple[int, int, int]
    boxes: np.ndarray
    kept: int
    align: int
    padded: bool
    mask_digest: str

    def __post_init__(self) -> None:
        boxes = np.array(self.boxes, np.int32)
        boxes.flags.writeable = False
        object.__setattr__(self, "boxes", boxes)

    @classmethod
    def whole(cls, shape: tuple[int, int, int]) -> Stitch:
        """Return the stitch of frames (T, H, W) that were not cropped."""
        n, height, width = shape
        return cls(shape, np.repeat([[0, 0, width, height]], n, 0), n, 1, False, "")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the crop."""
        return int(self.boxes[0, 2]), int(self.boxes[0, 3])

    @property
    def frames(self) -> int:
        return len(self.boxes)

    def window(self, frame: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """Return (rows, columns) in the source and the same pixels' (rows, columns) in the crop: what both have."""
        x, y, w, h = (int(v) for v in self.boxes[frame])
        _, height, width = self.source
        top, left, bottom, right = max(0, y), max(0, x), min(height, y + h), min(width, x + w)
        return (
            (slice(top, bottom), slice(left, right)),
            (slice(top - y, bottom - y), slice(left - x, right - x)),
        )


Full = torch.Tensor | FrameStream


def full_shape(node: str, name: str, full: Full) -> tuple[int, int, int]:
    """Return (T, H, W) of full frames: an IMAGE, or a stream of RGB frames of known length. ValueError otherwise."""
    if isinstance(full, FrameStream):
        info = full.info
        if info.n_frames is None or info.layout != "rgb":
            wanted = "frames of known length in RGB"
            raise problem(node, name, f"a stream of {info.n_frames} frames in {info.layout}", wanted)
        return info.n_frames, info.height, info.width
    return tuple(check_images(node, name, full).shape[:3])


def check_full(node: str, name: str, full: Full, shape: tuple[int, int, int], fits: str) -> None:
    """Raise ValueError unless full frames are (T, H, W); `fits`: whose shape that is, for the message."""
    found = full_shape(node, name, full)
    if found != tuple(shape):
        got, wanted = (f"{t} frames of {w}x{h}" for t, h, w in (found, shape))
        raise problem(node, name, got, f"{wanted}, {fits}")


def check_source(node: str, name: str, full: Full, stitch: Stitch) -> None:
    """Raise ValueError unless `stitch` is one, and full frames have the length and size that it was made for."""
    check_kind(node, "stitch", stitch, Stitch, "what Wardrobe Subject Crop gives")
    check_full(node, name, full, stitch.source, "what was cropped")


def full_chunks(full: Full, ctx: RunContext) -> Generator[torch.Tensor, None, None]:
    """Yield the frames in runs of CHUNK (the last may be shorter): float in 0..1 of an IMAGE, uint8 of a stream."""
    if not isinstance(full, FrameStream):
        for start in range(0, len(full), CHUNK):
            ctx.check_cancelled()
            yield full[start : start + CHUNK]
        return
    waiting: list[torch.Tensor] = []
    with closing(full.chunks(ctx, CHUNK)) as chunks:
        for chunk in chunks:
            waiting.append(chunk.frames)
            have = torch.cat(waiting) if len(waiting) > 1 else waiting[0]
            while len(have) >= CHUNK:
                yield have[:CHUNK]
                have = have[CHUNK:]
            waiting = [have] if len(have) else []
    if waiting:
        yield waiting[0]


def as_float(pixels: torch.Tensor) -> torch.Tensor:
    """Return pixels as float32 in 0..1, a stream's bytes divided by 255."""
    return pixels.float().div(255) if pixels.dtype == torch.uint8 else pixels.float()


def store(area: torch.Tensor, pixels: torch.Tensor, changed: torch.Tensor) -> None:
    """Write float `pixels` (h,w,3) into `area` (view, float or uint8) where `changed` (h,w,1) is true."""
    if area.dtype == torch.uint8:
        pixels = (pixels.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    area.copy_(torch.where(changed, pixels.to(area.dtype), area))


Patch = Callable[[int, tuple[torch.Tensor, ...], RunContext], torch.Tensor]
"""(first frame, frames of each full input in one run, for warnings) -> the run's frames, a new tensor like the first
input's."""


def patch_images(fulls: tuple[Full, ...], patch: Patch, ctx: RunContext) -> torch.Tensor:
    """Return `patch` of every run of frames as one IMAGE, whatever the inputs are."""
    n, height, width = full_shape("", "frames", fulls[0])
    made = torch.empty((n, height, width, 3), dtype=torch.float32)
    with closing(paired_runs(fulls, ctx)) as runs:
        for start, run in runs:
            made[start : start + len(run[0])] = as_float(patch(start, run, ctx))
            ctx.tick(start + len(run[0]), n)
    return made


class PatchedStream(FrameStream):
    """`patch` of every run of frames of a stream, lazily; further inputs may be streams or IMAGEs of the same length."""

    def __init__(self, stage: str, fulls: tuple[Full, ...], patch: Patch) -> None:
        self.stage, self._fulls, self._patch = stage, fulls, patch
        self.info = fulls[0].info

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, None]]:
        with closing(paired_runs(self._fulls, ctx)) as runs:
            for start, run in runs:
                frames = self._patch(start, run, ctx)
                for i in range(0, len(frames), n):
                    yield frames[i : i + n], None


def paired_runs(
    fulls: tuple[Full, ...], ctx: RunContext
) -> Generator[tuple[int, tuple[torch.Tensor, ...]], None, None]:
    """Yield (first frame, the same run of frames of each); use with `closing`, so that streams end with their consumer."""
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(full_chunks(full, ctx))) for full in fulls]
        start = 0
        for run in zip(*sources, strict=True):
            yield start, run
            start += len(run[0])
