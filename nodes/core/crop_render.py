"""A network's batches of face crops as a stream: two under way on a card, what is not finite computed again in fp32.

Whoever renders starts every batch with its placement; a frame without a face, or without a finite crop, keeps its place
and is marked as not usable. Nothing waits for the device but the look at a batch's flags, one batch later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .frames import FrameChunk, FrameStream, Made, Placement, RunContext
from .host_copy import UNDER_WAY, Arriving, HostCopies, one_ahead
from .overlap import ahead
from .report import FrameList
from .stage_runner import PreciseHandle, StageRunner

if TYPE_CHECKING:
    from .engine_shelf import StageMaker
    from .packet import AvatarPacket

BATCHES_AHEAD = 2
"""Batches of crops made before the composite asks, the one in work included: 3 MB at batch 8 for 256x256 crops."""


@dataclass(frozen=True, eq=False)
class CropBatch:
    """Frames from `start` on that the network is working at.

    index: avatar frame of each (n, int64); found: whether it has a face (n, bool); wanted: which crops are to be shown
    (n, bool); inputs: what the network was given, for a second try; finite, bool (n,), is on its way to the CPU; is_last:
    asked when the batch is done.
    """

    start: int
    index: Tensor
    found: Tensor
    wanted: Tensor
    inputs: dict[str, Tensor] = field(repr=False)
    crops: Tensor = field(repr=False)
    finite: Arriving = field(repr=False)
    is_last: Callable[[], bool] = field(repr=False)


class CropNetwork:
    """The engine of one run, and fp32 for the batches in which its numbers overflow.

    `stage` gives crops uint8 (n, S, S, 3) and finite bool (n,).
    """

    def __init__(self, ctx: RunContext, model: PreciseHandle, stage: StageMaker, batch: int) -> None:
        self._ctx, self._runner = ctx, StageRunner(ctx, model, stage, batch)
        self._flags = HostCopies(UNDER_WAY)
        self._again, self._faceless, self._broken = FrameList(), FrameList(), FrameList()

    @property
    def backend(self) -> str:
        return self._runner.backend

    def start(
        self,
        start: int,
        index: Tensor,
        found: Tensor,
        is_last: Callable[[], bool],
        wanted: Tensor | None = None,
        **inputs: Tensor,
    ) -> CropBatch:
        """Begin a batch; see `CropBatch`. wanted: those with a face if it is None."""
        wanted = found if wanted is None else wanted & found
        with self._ctx.report.timed("neural"):
            out = self._runner(**inputs)
            finite = self._flags.send(out["finite"])
        return CropBatch(start, index, found, wanted, inputs, out["crops"], finite, is_last)

    def finish(self, batch: CropBatch) -> tuple[Tensor, Placement]:
        """Crops on the engine's device; wanted ones that are not finite are tried again in fp32."""
        with self._ctx.report.timed("neural"):
            crops, finite = batch.crops, torch.from_numpy(batch.finite.take()).clone()
            batch.finite.release()
            lost = ~finite & batch.wanted
            exact = self._runner.exactly(**batch.inputs) if lost.any() else None
            if exact is not None:
                saved = lost & exact["finite"].cpu()
                self._again.add(batch.start, saved)
                at = saved.nonzero()[:, 0].to(crops.device)
                crops[at] = exact["crops"][at]
                finite = finite | saved
        self._faceless.add(batch.start, ~batch.found)
        self._broken.add(batch.start, ~finite & batch.wanted)
        return crops, Placement(batch.index, batch.wanted & finite)

    def tell(self) -> None:
        """Report the frames that fp32 saved, and those that are the avatar's own."""
        if self._again:
            how = f"{self._runner.model.precision} on {self.backend}"
            self._ctx.warn(f"frames {self._again}: not finite in {how}, computed again in fp32")
        why = {
            "no face in the avatar": self._faceless,
            "the network's output is not finite": self._broken,
        }
        for reason, frames in why.items():
            if frames:
                self._ctx.warn(f"frames {frames}: {reason}, the avatar's own frame is shown")


def crop_frames(
    ctx: RunContext, network: CropNetwork, batches: Generator[CropBatch | None, None, None], n: int
) -> Iterator[Made]:
    """Yield the crops of `batches`, at most `n` at a time, as `FrameStream.generate` does, and report at the end.

    Args:
        batches: starts one each time it is asked; None says that it will wait for sound. Closed at the end.
    """
    try:
        with closing(batches):
            for batch in one_ahead(batches, ctx.device):
                if batch is None:
                    continue
                crops, placed = network.finish(batch)
                last = batch.is_last()
                for i in range(0, len(crops), n):
                    part = Placement(placed.avatar_index[i : i + n], placed.usable[i : i + n])
                    yield crops[i : i + n], part, last and i + n >= len(crops)
    finally:
        network.tell()


def check_made_for(crops: FrameStream, avatar: AvatarPacket) -> None:
    """Raise ValueError unless `crops` have a placement in the frames of `avatar`."""
    made_for = getattr(crops, "avatar", None)
    if made_for is None:
        raise ValueError("these frames carry no face placement; connect the output of a Render node")
    if made_for.digest != avatar.digest:
        raise ValueError(
            f"the crops were rendered for avatar {made_for.info.id!r}, not {avatar.info.id!r}; "
            "connect the same avatar to Render and Composite"
        )


def crops_ahead(
    ctx: RunContext, crops: FrameStream, n: int, on_card: bool
) -> Generator[FrameChunk, None, None]:
    """Yield the chunks of a crop stream, made ahead of the composite; `on_card` as in `overlap.ahead`."""
    depth = -(-BATCHES_AHEAD * getattr(crops, "batch", n) // n)
    return ahead(ctx, lambda: crops.chunks(ctx, n), depth, crops.stage, on_card)
