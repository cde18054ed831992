"""Recalled mouths in a run: a frame whose latents were decoded before gets that mouth on its own crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.blend import face_crop
from ..core.viseme_cache import Viseme, VisemeCache, apply_patch, cut_patch, mouth_window

if TYPE_CHECKING:
    from ..core.packet import MuseTalkReader
    from ..core.report import Report
    from .cadence_render import DrawnFrame


class VisemeMemory:
    """The `CropMemory` of one run with one avatar: a viseme cache, asked by the latents that the decoder would get.

    Latents are asked for in the order of the frames and what is not known is promised at once, so a frame may take the
    mouth of one that waits for the same pass of the decoder; hits depend neither on the batch nor on chunks.

    Args:
        reader: the avatar's packet, for the crop around a recalled mouth.
        crop_size: side of the network's crops.
        max_bytes: limit of `VisemeCache`.
    """

    def __init__(self, reader: MuseTalkReader, crop_size: int, max_bytes: int) -> None:
        self.cache = VisemeCache(max_bytes)
        self._reader, self._size = reader, crop_size
        self._promised: dict[int, Viseme] = {}
        self._own: tuple[int, np.ndarray] | None = None

    def recall(self, frames: Sequence[DrawnFrame]) -> dict[int, Viseme]:
        """Return the mouths of those frames that need no decoding, by frame number; the others will be learned."""
        if not frames:
            return {}
        known: dict[int, Viseme] = {}
        # One copy for all: on a card each would wait for the UNet.
        keys = torch.stack([frame.latents for frame in frames]).float().cpu().numpy()
        for frame, key in zip(frames, keys, strict=True):
            number, viseme = frame.plan.frame, self.cache.find(key)
            if viseme is None:
                self._promised[number] = self.cache.add(key, mouth_window(self._size).patch_bytes)
            else:
                known[number] = viseme
        return known

    def learn(self, frame: DrawnFrame, crop: Tensor | None) -> None:
        """Keep the mouth of a frame that was decoded: uint8 (size, size, 3); None if its crop cannot be used."""
        viseme = self._promised.pop(frame.plan.frame, None)
        if viseme is None:
            return
        if crop is None:
            self.cache.drop(viseme)
        else:
            self.cache.fill(viseme, cut_patch(crop).cpu().numpy())

    def crop(self, frame: DrawnFrame, viseme: Viseme) -> tuple[Tensor, bool]:
        """Return the crop of a recalled frame, uint8 (size, size, 3) on the CPU, and whether its mouth could be drawn."""
        own = self._own_crop(frame.avatar)
        if viseme.patch is None:
            return torch.from_numpy(own), False
        return torch.from_numpy(apply_patch(own, viseme.patch)), True

    def tell(self, report: Report) -> None:
        report.fact(
            "viseme cache", f"{self.cache}, {len(self.cache)} mouths in {self.cache.nbytes / 2**20:.1f} MB"
        )

    def _own_crop(self, avatar: int) -> np.ndarray:
        if self._own is None or self._own[0] != avatar:
            picture = self._reader.frame(avatar).numpy()
            self._own = avatar, own_crop(picture, self._reader.boxes[avatar].tolist(), self._size)
        return self._own[1]


def own_crop(picture: np.ndarray, box: Sequence[int], size: int) -> np.ndarray:
    """Return the avatar's crop (size, size, 3) as the network gets it; what leaves the frame repeats its edge."""
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = box
    if x1 < 0 or y1 < 0 or x2 > width or y2 > height:
        rows, columns = (
            np.arange(a, b).clip(0, most - 1) for a, b, most in ((y1, y2, height), (x1, x2, width))
        )
        picture, (x1, y1, x2, y2) = picture[np.ix_(rows, columns)], (0, 0, x2 - x1, y2 - y1)
    return face_crop(picture, (x1, y1, x2, y2), size)
