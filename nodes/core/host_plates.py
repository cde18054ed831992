"""Prepared avatar frames in memory: the background as NV12, and which of it a crop may change.

They are made when a frame is first shown and kept up to a bound. What does not fit is made anew each time and keeps
nothing out: an avatar is shown in a cycle, and of a cycle longer than the budget the least recently used plate is the very
one that comes next, so evicting it would make every plate every time.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .color import Nv12Encoder, nv12_planes
from .frames import Placement
from .packet_readers import PacketReader

_STEP = 16


@dataclass(frozen=True, eq=False)
class HostPlate:
    """One avatar frame: `nv12` uint8 (H*3/2, W); `area` x1, y1, x2, y2 of the part that a crop may change; `luma` and
    `chroma`, uint8 over the area, are 1 where the mask touches the 2x2 block.

    A mask of zeros has an area without pixels.
    """

    nv12: np.ndarray
    area: tuple[int, int, int, int]
    luma: np.ndarray
    chroma: np.ndarray

    @property
    def n_bytes(self) -> int:
        values = (getattr(self, field.name) for field in fields(self))
        return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


class PlateCache(ABC):
    """The plates of an avatar, which an engine's own class makes and blends into. Any number of threads may ask.

    reader: of the avatar. matrix, color_range: see `color.coefficients`. max_bytes: of what is kept.
    """

    def __init__(self, reader: PacketReader, matrix: str, color_range: str, max_bytes: int) -> None:
        self._reader = reader
        self._colour, self._max_bytes = (matrix, color_range), max_bytes
        self._kept: dict[int, HostPlate] = {}
        self._lock = threading.Lock()
        # A fresh one for every chunk would spend its time on page faults.
        self._own = threading.local()
        self.n_bytes = 0

    @abstractmethod
    def _make(self, index: int, encoder: Nv12Encoder) -> HostPlate:
        """Return the plate of avatar frame `index`."""

    @abstractmethod
    def _blended(self, plate: Any, index: int, face: np.ndarray, *options: Any) -> np.ndarray:
        """Return the plate's area with `face`, uint8 (S, S, 3), in it: uint8 (h, w, 3)."""

    def _encoder(self) -> Nv12Encoder:
        made = getattr(self._own, "encoder", None)
        if made is None:
            height, width = self._reader.frame(0).shape[:2]
            made = self._own.encoder = Nv12Encoder(width, height, *self._colour)
        return made

    def get(self, index: int) -> HostPlate:
        """Return the plate of avatar frame `index`."""
        with self._lock:
            plate = self._kept.get(index)
        if plate is not None:
            return plate
        plate = self._make(index, self._encoder())
        with self._lock:
            if index not in self._kept and self.n_bytes + plate.n_bytes <= self._max_bytes:
                self._kept[index] = plate
                self.n_bytes += plate.n_bytes
        return plate

    def blend(self, faces: Tensor, placement: Placement, *options: Any) -> Tensor:
        """Return NV12 (n, H*3/2, W): crops uint8 (n, S, S, 3) in the avatar frames that `placement` names.

        A crop that is not usable leaves its frame as it is. `options`: of the engine's own way to blend.
        """
        faces = faces.cpu().numpy()
        indices, usable = placement.avatar_index.tolist(), placement.usable.tolist()
        height, width = self._reader.frame(indices[0]).shape[:2]
        out = np.empty((len(faces), height * 3 // 2, width), np.uint8)
        encoder = self._encoder()
        for k, at in enumerate(indices):
            plate = self.get(at)
            out[k] = plate.nv12
            if usable[k] and plate.luma.size:
                splice(plate, self._blended(plate, at, faces[k], *options), encoder, out[k])
        return torch.from_numpy(out)


def splice(plate: HostPlate, rgb: np.ndarray, encoder: Nv12Encoder, out: np.ndarray) -> None:
    """Convert `rgb`, the plate's area, and put it into `out` (H*3/2, W) where the mask touches it."""
    import cv2

    x1, y1, x2, y2 = plate.area
    luma = np.empty(rgb.shape[:2], np.uint8)
    chroma = np.empty((rgb.shape[0] // 2, rgb.shape[1] // 2, 2), np.uint8)
    encoder.convert(rgb, luma, chroma)
    y, uv = nv12_planes(out)
    cv2.copyTo(luma, plate.luma, y[y1:y2, x1:x2])
    # A pair of bytes as one number: OpenCV has a quick masked copy for one channel.
    pairs, to = (part.view(np.uint16)[..., 0] for part in (chroma, uv))
    cv2.copyTo(pairs, plate.chroma, to[y1 // 2 : y2 // 2, x1 // 2 : x2 // 2])


def converted(frame: np.ndarray, encoder: Nv12Encoder) -> np.ndarray:
    """Return a frame, uint8 (H, W, 3) with even sides, as NV12 (H*3/2, W)."""
    height, width = frame.shape[:2]
    nv12 = np.empty((height * 3 // 2, width), np.uint8)
    encoder.convert(frame, *nv12_planes(nv12))
    return nv12


def on_grid(box: tuple[int, int, int, int], width: int, height: int) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 around `box` whose edges are multiples of 16 or the frame's own."""
    low = [edge // _STEP * _STEP for edge in box[:2]]
    high = [min(side, -(-edge // _STEP) * _STEP) for edge, side in zip(box[2:], (width, height), strict=True)]
    return (*low, *high)


def touched_blocks(changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for `changed`, bool (h, w) of an area, where its 2x2 blocks change: uint8 (h, w) and (h / 2, w / 2)."""
    part = changed.view(np.uint8)
    chroma = part[::2, ::2] | part[::2, 1::2] | part[1::2, ::2] | part[1::2, 1::2]
    return chroma.repeat(2, 0).repeat(2, 1), chroma
