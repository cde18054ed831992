"""The composite as NV12: every avatar frame converted once, after that only the area a crop may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..core.crop_render import crops_ahead
from ..core.engine_spec import is_out_of_memory
from ..core.frames import FrameStream, Made, Placement, RunContext, StageError
from ..core.kernel_ops import why_not
from ..core.plates import DevicePlates, HostPlates
from ..core.pool import Resident
from .render import CompositeStream, blend_mask

if TYPE_CHECKING:
    from ..core.packet import MuseTalkReader

Blend = Callable[[torch.Tensor, Placement], torch.Tensor]


class CompositeNv12Stream(FrameStream):
    """NV12 (n, H*3/2, W) of a CompositeStream, within 1 level of its RGB converted.

    On a CUDA device the frames are made and stay there; elsewhere, and for what the device path does not do, they are
    made on the CPU, and the report says why. Where the mask does not touch, the background's bytes are the same in
    every frame.
    """

    stage = CompositeStream.stage

    def __init__(self, source: CompositeStream, matrix: str, color_range: str = "limited") -> None:
        self._source = source
        self.info = replace(source.info, layout="nv12", matrix=matrix, range=color_range)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        # On a card the composite is queued behind the network: nothing to do meanwhile for a thread.
        chunks = crops_ahead(ctx, self._source.crops, n, on_card=self._source.seam_mode == "colour match")
        try:
            with ctx.use_avatar(self._source.avatar) as resident:
                blend: Blend | None = None
                for chunk in chunks:
                    if chunk.placement is None:
                        raise StageError("Composite: a chunk has no placement")
                    with ctx.report.timed("composite"):
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
        source, device = self._source, ctx.device
        if device.type != "cuda":
            return self._on_host(ctx, resident, "")
        if source.seam_mode == "colour match":
            return self._on_host(ctx, resident, "the card does not do seam mode 'colour match'")
        try:
            plates = resident.shelf.get(self._kind("device"), partial(self._device_plates, resident, device))
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            return self._on_host(ctx, resident, f"no memory left on {device}")
        how = why_not(device)
        ctx.report.fact("composite", f"NV12 face areas on {device}" + (f" by torch ({how})" if how else ""))
        return plates.blend

    def _on_host(self, ctx: RunContext, resident: Resident, reason: str) -> Blend:
        plates = resident.shelf.get(self._kind("host"), partial(self._host_plates, resident))
        ctx.report.fact("composite", "NV12 face areas on the CPU" + (f": {reason}" if reason else ""))
        return partial(plates.blend, colour=self._source.seam_mode == "colour match")

    def _kind(self, where: str) -> tuple[str, ...]:
        source = self._source
        hard = str(source.seam_mode == "none")  # the other seams share a mask
        return (where, str(self.info.matrix), str(self.info.range), source.mask_mode, hard)

    def _mask_of(self, reader: MuseTalkReader) -> Callable:
        # Kept with the avatar: it must not hold this stream and the model behind it.
        return partial(blend_mask, reader, mask_mode=self._source.mask_mode, seam_mode=self._source.seam_mode)

    def _host_plates(self, resident: Resident) -> HostPlates:
        reader = resident.reader
        return HostPlates(reader, self._mask_of(reader), self.info.matrix, self.info.range)

    def _device_plates(self, resident: Resident, device: torch.device) -> DevicePlates:
        reader = resident.reader
        return DevicePlates(reader, self._mask_of(reader), self.info.matrix, self.info.range, device)
