"""Frames with crops in them as NV12: every avatar frame converted once, after that only the area a crop may change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Protocol

import torch

from .crop_render import crops_ahead
from .engine_spec import is_out_of_memory
from .frames import FrameInfo, FrameStream, Made, Placement, RunContext, StageError
from .packet import AvatarPacket
from .pool import Resident, Sized

Blend = Callable[[torch.Tensor, Placement], torch.Tensor]
"""Crops uint8 (n, S, S, 3) and where they belong -> NV12 (n, H*3/2, W)."""


class Plates(Sized, Protocol):
    """Prepared frames of an avatar, which stay with it."""

    def blend(self, faces: torch.Tensor, placement: Placement) -> torch.Tensor:
        """See `Blend`."""


class PlacedStream(Protocol):
    """A stream of full frames, made of crops of an avatar and its own frames."""

    stage: str
    info: FrameInfo
    crops: FrameStream
    avatar: AvatarPacket


class PlatedStream(FrameStream):
    """NV12 (n, H*3/2, W) of such a stream, within 1 level of its RGB converted.

    On a CUDA device the frames are made and stay there; elsewhere, and for what the device path does not do, they are
    made on the CPU, and the report says why. Where a crop's mask does not touch, the background's bytes are the same in
    every frame.
    """

    name = "composite"
    """Of the work, in the report."""

    def __init__(self, source: PlacedStream, matrix: str, color_range: str = "limited") -> None:
        self.source, self.stage = source, source.stage
        self.info = replace(source.info, layout="nv12", matrix=matrix, range=color_range)

    @property
    def only_on_host(self) -> str:
        """Why the card cannot do it, "" if it can."""
        return ""

    @abstractmethod
    def kind(self, where: str) -> tuple[Hashable, ...]:
        """Return the name under which the plates stay with the avatar; `where` is "device" or "host"."""

    @abstractmethod
    def make_plates(self, where: str, resident: Resident, device: torch.device) -> Plates:
        """Return plates of the avatar. They must not hold this stream: the model is behind it."""

    def host_blend(self, plates: Plates) -> Blend:
        """Return what puts crops into plates on the CPU."""
        return plates.blend

    def how(self, device: torch.device) -> str:
        """What the report should say of the way it is done on a card."""
        return ""

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        # On a card the composite is queued behind the network: nothing to do meanwhile for a thread.
        chunks = crops_ahead(ctx, self.source.crops, n, on_card=bool(self.only_on_host))
        try:
            with ctx.use_avatar(self.source.avatar) as resident:
                blend: Blend | None = None
                for chunk in chunks:
                    if chunk.placement is None:
                        raise StageError(f"{self.stage}: a chunk has no placement")
                    with ctx.report.timed(self.name):
                        blend = blend or self._choose(ctx, resident)
                        try:
                            frames = blend(chunk.frames, chunk.placement)
                        except (RuntimeError, MemoryError) as e:
                            if ctx.device.type == "cpu" or not is_out_of_memory(e):
                                raise
                            blend = self._on_host(ctx, resident, f"no memory left on {ctx.device}")
                            frames = blend(chunk.frames, chunk.placement)
                    yield frames, None, chunk.is_last
        finally:
            chunks.close()

    def _choose(self, ctx: RunContext, resident: Resident) -> Blend:
        device = ctx.device
        if device.type != "cuda":
            return self._on_host(ctx, resident, "")
        if reason := self.only_on_host:
            return self._on_host(ctx, resident, reason)
        try:
            plates = resident.shelf.get(
                self.kind("device"), lambda: self.make_plates("device", resident, device)
            )
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            return self._on_host(ctx, resident, f"no memory left on {device}")
        how = self.how(device)
        ctx.report.fact(self.name, f"NV12 face areas on {device}" + (f" {how}" if how else ""))
        return plates.blend

    def _on_host(self, ctx: RunContext, resident: Resident, reason: str) -> Blend:
        host = torch.device("cpu")
        plates = resident.shelf.get(self.kind("host"), lambda: self.make_plates("host", resident, host))
        ctx.report.fact(self.name, "NV12 face areas on the CPU" + (f": {reason}" if reason else ""))
        return self.host_blend(plates)
