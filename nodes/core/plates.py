"""What the frames of a MuseTalk avatar need to become NV12 once, kept: the background converted, and the part a crop may
change.

A frame of video is then a copy of the background with its face area converted and spliced in: of a 1080x1920 frame a
tenth is computed. The area's edges are multiples of 16 or the frame's own (2 is the least that 4:2:0 allows); 2x2
blocks that the mask does not touch keep the background's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .blend import clamp_box, composite
from .color import Nv12Encoder, rgb_to_nv12
from .device_composite import Plates, composite_nv12, plate_parts, roi_size
from .host_plates import HostPlate, PlateCache, converted, on_grid, touched_blocks
from .packet_readers import MuseTalkReader
from .plate_slots import PLATE_BYTES, PlateSlots

MaskOf = Callable[[int], np.ndarray]
"""Gives the blend mask of an avatar frame: uint8 (rows, columns) over its crop square."""


@dataclass(frozen=True, eq=False)
class Plate(HostPlate):
    """One avatar frame; `mask` uint8 over the face box."""

    mask: np.ndarray

    def blended(
        self, frame: np.ndarray, face: np.ndarray, box: Sequence[int], colour: bool = False
    ) -> np.ndarray:
        """Return the area of `frame` (H, W, 3) with `face`, any square, blended in at `box`; see `blend.composite`."""
        x1, y1, x2, y2 = self.area
        rgb = frame[y1:y2, x1:x2].copy()
        at = (box[0] - x1, box[1] - y1, box[2] - x1, box[3] - y1)
        composite(rgb, face, at, at, self.mask, colour)
        return rgb


def make_plate(
    frame: np.ndarray,
    box: tuple[int, ...],
    crop: tuple[int, ...],
    mask: np.ndarray,
    encoder: Nv12Encoder,
) -> Plate:
    """Prepare an avatar frame, uint8 (H, W, 3) with even sides; box, crop and mask as `blend.composite` takes them."""
    height, width = frame.shape[:2]
    x1, y1, x2, y2 = box
    own = np.ascontiguousarray(mask[y1 - crop[1] : y2 - crop[1], x1 - crop[0] : x2 - crop[0]])
    seen = clamp_box(tuple(box), width, height, 1)
    weight = own[seen[1] - y1 : seen[3] - y1, seen[0] - x1 : seen[2] - x1]
    area = _area(weight, seen[:2], width, height)
    part = np.zeros((area[3] - area[1], area[2] - area[0]), bool)
    if part.size:
        # The area holds all of the mask, not all of the box.
        left, top = max(seen[0], area[0]), max(seen[1], area[1])
        inside = weight[top - seen[1] : area[3] - seen[1], left - seen[0] : area[2] - seen[0]]
        at_y, at_x = top - area[1], left - area[0]
        part[at_y : at_y + inside.shape[0], at_x : at_x + inside.shape[1]] = inside > 0
    return Plate(converted(frame, encoder), area, *touched_blocks(part), own)


def _area(weight: np.ndarray, corner: tuple[int, int], width: int, height: int) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 around what is not 0 in `weight`, which begins at `corner` x, y; on the 16 pixel grid."""
    rows, columns = np.flatnonzero(weight.any(1)), np.flatnonzero(weight.any(0))
    if not rows.size:
        return 0, 0, 0, 0
    low = corner[0] + int(columns[0]), corner[1] + int(rows[0])
    return on_grid((*low, corner[0] + int(columns[-1]) + 1, corner[1] + int(rows[-1]) + 1), width, height)


class HostPlates(PlateCache):
    """The plates of an avatar in memory; any number of threads may ask. `max_bytes` bounds what is kept."""

    def __init__(
        self,
        reader: MuseTalkReader,
        mask_of: MaskOf,
        matrix: str,
        color_range: str,
        max_bytes: int = PLATE_BYTES,
    ) -> None:
        super().__init__(reader, matrix, color_range, max_bytes)
        self._mask_of = mask_of

    def _make(self, index: int, encoder: Nv12Encoder) -> Plate:
        reader = self._reader
        box, crop = tuple(reader.boxes[index].tolist()), tuple(reader.crops[index].tolist())
        return make_plate(reader.frame(index).numpy(), box, crop, self._mask_of(index), encoder)

    def _blended(self, plate: Plate, index: int, face: np.ndarray, colour: bool = False) -> np.ndarray:
        """`colour`: see `blend.composite`."""
        return plate.blended(
            self._reader.frame(index).numpy(), face, self._reader.boxes[index].tolist(), colour
        )


class DevicePlates(PlateSlots):
    """The plates of an avatar on a CUDA device; `max_bytes` bounds them."""

    def __init__(
        self,
        reader: MuseTalkReader,
        mask_of: MaskOf,
        matrix: str,
        color_range: str,
        device: torch.device,
        max_bytes: int = PLATE_BYTES,
    ) -> None:
        self._reader, self._mask_of = reader, mask_of
        boxes = reader.boxes.tolist()
        height, width = reader.frame(0).shape[:2]
        self._roi = roi_size(boxes, width, height)
        bytes_each = width * height * 3 // 2 + 4 * self._roi[0] * self._roi[1]
        super().__init__(len(boxes), bytes_each, device, max_bytes)
        shape = (self._slots, self._roi[1], self._roi[0])

        def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        self._plates = Plates(
            empty(self._slots, height * 3 // 2, width),
            empty(*shape, 3),
            empty(*shape),
            empty(self._slots, 2, dtype=torch.int32),
            empty(self._slots, 4, dtype=torch.int32),
            matrix,
            color_range,
        )
        self.n_bytes = self._plates.n_bytes

    def _composite(self, faces: Tensor, slots: Tensor, usable: Tensor) -> Tensor:
        return composite_nv12(faces, self._plates, slots, usable)

    def _upload(self, at: int, slot: int) -> None:
        reader, to = self._reader, self._plates
        frame = reader.frame(at)
        box, crop = reader.boxes[at].tolist(), reader.crops[at].tolist()
        pixels, weight, corner = plate_parts(frame.numpy(), box, crop, self._mask_of(at), self._roi)
        there = frame[None].to(self.device)
        to.nv12[slot] = rgb_to_nv12(there, to.matrix, to.range)[0]
        to.rgb[slot] = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
        to.weight[slot] = torch.from_numpy(weight).to(self.device)
        to.corner[slot] = torch.from_numpy(corner).to(self.device)
        to.boxes[slot] = reader.boxes[at].to(self.device)
