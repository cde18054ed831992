"""MuseTalk's composite as NV12; how, says `core.plated_stream`."""

from __future__ import annotations

from functools import partial

import torch

from ..core.kernel_ops import why_not
from ..core.plated_stream import Blend, PlatedStream
from ..core.plates import DevicePlates, HostPlates
from ..core.pool import Resident
from .render import CompositeStream, blend_mask


class CompositeNv12Stream(PlatedStream):
    """NV12 of a CompositeStream."""

    source: CompositeStream

    @property
    def only_on_host(self) -> str:
        return "the card does not do seam mode 'colour match'" if self._matches_colour else ""

    @property
    def _matches_colour(self) -> bool:
        return self.source.seam_mode == "colour match"

    def kind(self, where: str) -> tuple[str, ...]:
        hard = str(self.source.seam_mode == "none")  # the other seams share a mask
        return (where, str(self.info.matrix), str(self.info.range), self.source.mask_mode, hard)

    def make_plates(self, where: str, resident: Resident, device: torch.device) -> DevicePlates | HostPlates:
        reader = resident.reader
        mask_of = partial(
            blend_mask, reader, mask_mode=self.source.mask_mode, seam_mode=self.source.seam_mode
        )
        colour = self.info.matrix, self.info.range
        if where == "host":
            return HostPlates(reader, mask_of, *colour)
        return DevicePlates(reader, mask_of, *colour, device)

    def host_blend(self, plates: HostPlates) -> Blend:
        colour = self._matches_colour
        return lambda faces, placement: plates.blend(faces, placement, colour)

    def how(self, device: torch.device) -> str:
        reason = why_not(device)
        return f"by torch ({reason})" if reason else ""
