"""The presenter at rest: what the networks draw of every avatar frame when it hears digital silence."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.frames import RunContext
from ..core.pool import Resident
from ..core.stage_runner import StageRunner
from .handle import MuseTalkModel
from .speech import silent_tokens

MAX_BYTES = 64 << 20
"""Of kept crops and latents: 300 avatar frames at 256x256. What does not fit is drawn again."""


@dataclass(eq=False)
class _Block:
    latents: Tensor
    finite: list[bool]
    crops: Tensor | None = None
    usable: list[bool] | None = None

    @property
    def n_bytes(self) -> int:
        return self.latents.nbytes + (0 if self.crops is None else self.crops.nbytes)


class RestFaces:
    """Latents and crops at rest by avatar frame, drawn when first wanted and kept, the last used ones.

    Frames are drawn in blocks of `batch` counted from avatar frame 0, so that a crop is the same bytes whenever it is
    drawn and no pass is padded with copies.
    """

    def __init__(
        self,
        ctx: RunContext,
        model: MuseTalkModel,
        resident: Resident,
        unet: StageRunner,
        decoder: StageRunner,
        batch: int,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._ctx, self._model, self._resident = ctx, model, resident
        self._unet, self._decoder, self._batch, self._max_bytes = unet, decoder, batch, max_bytes
        self._silence: Tensor | None = None
        self._blocks: OrderedDict[int, _Block] = OrderedDict()  # the last used ones at the end

    def latents(self, avatar: int) -> tuple[Tensor, bool]:
        """Return the generated latents float32 (C, h, w) of an avatar frame, and whether they are finite."""
        block, row = self._block(avatar)
        return block.latents[row], block.finite[row]

    def crop(self, avatar: int) -> tuple[Tensor, bool]:
        """Return the crop uint8 (crop, crop, 3) of an avatar frame, and whether it can be shown."""
        block, row = self._block(avatar)
        if block.crops is None:
            self._decode(block)
            self._shrink()
        return block.crops[row], block.usable[row]

    def _block(self, avatar: int) -> tuple[_Block, int]:
        number, row = divmod(avatar, self._batch)
        block = self._blocks.pop(number, None) or self._draw(number)
        self._blocks[number] = block
        self._shrink()
        return block, row

    def _draw(self, number: int) -> _Block:
        if self._silence is None:
            self._silence = silent_tokens(self._ctx, self._model)
        start = number * self._batch
        given = self._resident.latents[start : start + self._batch]
        inputs = {"latents": given, "tokens": self._silence.expand(len(given), -1, -1)}
        out = self._unet(**inputs)
        latents, finite = out["generated"].float(), out["finite"].cpu()
        if not finite.all() and (again := self._unet.exactly(**inputs)):
            latents, finite = again["generated"].to(latents), again["finite"].cpu()
        return _Block(latents, finite.tolist())

    def _decode(self, block: _Block) -> None:
        out = self._decoder(generated=block.latents)
        crops, usable = out["crops"], out["finite"].cpu()
        if not usable.all() and (again := self._decoder.exactly(generated=block.latents)):
            crops, usable = again["crops"].to(crops), again["finite"].cpu()
        both = usable & torch.tensor(block.finite)
        block.crops, block.usable = crops, both.tolist()

    def _shrink(self) -> None:
        held = sum(block.n_bytes for block in self._blocks.values())
        while held > self._max_bytes and len(self._blocks) > 1:
            held -= self._blocks.popitem(last=False)[1].n_bytes
