"""A Ditto avatar's frames prepared for their faces, bounded: on a card as `device_putback` wants them, on the CPU for
OpenCV, which there takes a tenth of torch's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.color import Nv12Encoder, rgb_to_nv12
from ..core.device_composite import roi_size
from ..core.host_plates import HostPlate, PlateCache, converted, on_grid, touched_blocks
from ..core.plate_slots import PLATE_BYTES, PlateSlots
from .device_putback import FacePlates, pixels_of, plate_parts, put_back_nv12
from .putback import blended, feather_mask, from_face, touched_part, warp_into

if TYPE_CHECKING:
    from ..core.packet_readers import DittoReader


@dataclass(frozen=True, eq=False)
class FacePlate(HostPlate):
    """One avatar frame; `weight` float32 (h, w) in 0..1 over the area; `c2o` (3, 3) from the face to the frame."""

    weight: np.ndarray
    c2o: np.ndarray


class HostFaces(PlateCache):
    """Puts faces of `side` pixels back into an avatar's frames as NV12, by the rule of `putback.put_back`."""

    def __init__(
        self,
        reader: DittoReader,
        side: int,
        matrix: str,
        color_range: str,
        max_bytes: int = PLATE_BYTES,
    ) -> None:
        super().__init__(reader, matrix, color_range, max_bytes)
        self._mask = feather_mask(side, side)

    def _make(self, index: int, encoder: Nv12Encoder) -> FacePlate:
        frame, side = self._reader.frame(index).numpy(), len(self._mask)
        height, width = frame.shape[:2]
        c2o = from_face(self._reader.c2o[index].numpy(), side)
        area = on_grid(touched_part(c2o, side, width, height), width, height)
        weight = np.zeros((0, 0), np.float32)
        if area[0] < area[2] and area[1] < area[3]:
            weight = warp_into(self._mask, c2o, area).clip(0, 1)
        return FacePlate(converted(frame, encoder), area, *touched_blocks(weight > 0), weight, c2o)

    def _blended(self, plate: FacePlate, index: int, face: np.ndarray) -> np.ndarray:
        x1, y1, x2, y2 = plate.area
        pixels = warp_into(face.astype(np.float32), plate.c2o, plate.area)
        return blended(self._reader.frame(index).numpy()[y1:y2, x1:x2], pixels, plate.weight)


class FaceSlots(PlateSlots):
    """The same on a card.

    Args:
        reader: of the avatar.
        side: of the faces, in pixels.
        matrix: see `color.coefficients`.
        color_range: likewise.
        max_bytes: of all slots; 51 frames of 1080x1920 with a face of 500 pixels fit into the default.
    """

    def __init__(
        self,
        reader: DittoReader,
        side: int,
        matrix: str,
        color_range: str,
        device: torch.device,
        max_bytes: int = PLATE_BYTES,
    ) -> None:
        self._reader, self._side = reader, side
        self._c2o = [from_face(m, side) for m in reader.c2o.numpy()]
        height, width = reader.frame(0).shape[:2]
        self._roi = roi = _roi(self._c2o, reader.found.tolist(), side, width, height)
        # rgb and weight of a pixel are 3 bytes and a float.
        bytes_each = width * height * 3 // 2 + 7 * roi[0] * roi[1]
        super().__init__(len(self._c2o), bytes_each, device, max_bytes)

        def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
            return torch.empty(self._slots, *shape, dtype=dtype, device=device)

        self._plates = FacePlates(
            empty(height * 3 // 2, width),
            empty(roi[1], roi[0], 3),
            empty(roi[1], roi[0], dtype=torch.float32),
            empty(2, dtype=torch.int32),
            empty(2, 3, dtype=torch.float32),
            pixels_of(roi).to(device),
            matrix,
            color_range,
        )
        self.n_bytes = self._plates.n_bytes

    def _composite(self, faces: Tensor, slots: Tensor, usable: Tensor) -> Tensor:
        return put_back_nv12(faces, self._plates, slots, usable)

    def _upload(self, at: int, slot: int) -> None:
        to, frame = self._plates, self._reader.frame(at)
        parts = plate_parts(frame.numpy(), self._c2o[at], self._side, self._roi)
        to.nv12[slot] = rgb_to_nv12(frame[None].to(self.device), to.matrix, to.range)[0]
        for slots, part in zip((to.rgb, to.weight, to.corner, to.to_face), parts, strict=True):
            slots[slot] = torch.from_numpy(part).to(self.device)


def _roi(c2o: list[np.ndarray], found: list[bool], side: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of a part that holds any face of the avatar; a frame without one is not asked."""
    boxes = [touched_part(m, side, width, height) for m, there in zip(c2o, found, strict=True) if there]
    return roi_size(boxes or [(0, 0, 2, 2)], width, height)
