"""What an avatar's frames need to become NV12 once, kept: the background converted, and the part a crop may change.

A frame of video is then a copy of the background with its face area converted and spliced in: of a 1080x1920 frame a
tenth is computed. The area's edges are multiples of 16 or the frame's own (2 is the least that 4:2:0 allows); 2x2
blocks that the mask does not touch keep the background's bytes.

Plates are made when a frame is first shown and kept up to `PLATE_BYTES`. What does not fit is made anew each time and
keeps nothing out: an avatar is shown in a cycle, and of a cycle longer than the budget the least recently used plate
is the very one that comes next, so evicting it would make every plate every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .blend import clamp_box, composite
from .color import Nv12Encoder, nv12_planes, rgb_to_nv12
from .device_composite import Plates, composite_nv12, plate_parts, roi_size
from .frames import Placement
from .packet_readers import MuseTalkReader

PLATE_BYTES = 256 << 20
"""Of one avatar, for one matrix, mask and seam: 85 frames of 1080x1920 on the CPU; a two-second loop has 50."""
_STEP = 16

MaskOf = Callable[[int], np.ndarray]
"""Gives the blend mask of an avatar frame: uint8 (rows, columns) over its crop square."""


@dataclass(frozen=True, eq=False)
class Plate:
    """One avatar frame: `nv12` uint8 (H*3/2, W); `area` x1, y1, x2, y2 of the part that a crop may change; `mask` uint8
    over the face box; `luma` and `chroma`, uint8 over the area, are 1 where the mask touches the 2x2 block.

    A mask of zeros has an area without pixels.
    """

    nv12: np.ndarray
    area: tuple[int, int, int, int]
    mask: np.ndarray
    luma: np.ndarray
    chroma: np.ndarray

    @property
    def n_bytes(self) -> int:
        return self.nv12.nbytes + self.mask.nbytes + self.luma.nbytes + self.chroma.nbytes

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
    part = np.zeros((area[3] - area[1], area[2] - area[0]), np.uint8)
    if part.size:
        # The area holds all of the mask, not all of the box.
        left, top = max(seen[0], area[0]), max(seen[1], area[1])
        inside = weight[top - seen[1] : area[3] - seen[1], left - seen[0] : area[2] - seen[0]]
        at_y, at_x = top - area[1], left - area[0]
        part[at_y : at_y + inside.shape[0], at_x : at_x + inside.shape[1]] = inside > 0
    chroma = part[::2, ::2] | part[::2, 1::2] | part[1::2, ::2] | part[1::2, 1::2]
    luma = chroma.repeat(2, 0).repeat(2, 1)
    nv12 = np.empty((height * 3 // 2, width), np.uint8)
    encoder.convert(frame, *nv12_planes(nv12))
    return Plate(nv12, area, own, luma, chroma)


def _area(weight: np.ndarray, corner: tuple[int, int], width: int, height: int) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 around what is not 0 in `weight`, which begins at `corner` x, y; on the 16 pixel grid."""
    rows, columns = np.flatnonzero(weight.any(1)), np.flatnonzero(weight.any(0))
    if not rows.size:
        return 0, 0, 0, 0
    low = [(corner[0] + int(columns[0])) // _STEP * _STEP, (corner[1] + int(rows[0])) // _STEP * _STEP]
    ends = corner[0] + int(columns[-1]) + 1, corner[1] + int(rows[-1]) + 1
    high = [min(side, -(-end // _STEP) * _STEP) for end, side in zip(ends, (width, height), strict=True)]
    return (*low, *high)


class HostPlates:
    """The plates of an avatar in memory; any number of threads may ask. `max_bytes` bounds what is kept."""

    def __init__(
        self,
        reader: MuseTalkReader,
        mask_of: MaskOf,
        matrix: str,
        color_range: str,
        max_bytes: int = PLATE_BYTES,
    ) -> None:
        self._reader, self._mask_of = reader, mask_of
        self._colour, self._max_bytes = (matrix, color_range), max_bytes
        self._kept: dict[int, Plate] = {}
        self._lock = threading.Lock()
        # A fresh one for every chunk would spend its time on page faults.
        self._own = threading.local()
        self.n_bytes = 0

    def _encoder(self) -> Nv12Encoder:
        made = getattr(self._own, "encoder", None)
        if made is None:
            height, width = self._reader.frame(0).shape[:2]
            made = self._own.encoder = Nv12Encoder(width, height, *self._colour)
        return made

    def get(self, index: int) -> Plate:
        """Return the plate of avatar frame `index`."""
        with self._lock:
            plate = self._kept.get(index)
        if plate is not None:
            return plate
        reader = self._reader
        box, crop = tuple(reader.boxes[index].tolist()), tuple(reader.crops[index].tolist())
        plate = make_plate(reader.frame(index).numpy(), box, crop, self._mask_of(index), self._encoder())
        with self._lock:
            if index not in self._kept and self.n_bytes + plate.n_bytes <= self._max_bytes:
                self._kept[index] = plate
                self.n_bytes += plate.n_bytes
        return plate

    def blend(self, faces: Tensor, placement: Placement, colour: bool = False) -> Tensor:
        """Return NV12 (n, H*3/2, W): crops uint8 (n, S, S, 3) in the avatar frames that `placement` names.

        A crop that is not usable leaves its frame as it is. `colour`: see `blend.composite`.
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
                frame, box = self._reader.frame(at).numpy(), self._reader.boxes[at].tolist()
                splice(plate, plate.blended(frame, faces[k], box, colour), encoder, out[k])
        return torch.from_numpy(out)


def splice(plate: Plate, rgb: np.ndarray, encoder: Nv12Encoder, out: np.ndarray) -> None:
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


class DevicePlates:
    """The plates of an avatar on a CUDA device, in as many slots as `max_bytes` allows, filled when first shown.

    With a slot for every frame nothing waits for the device once each has been shown. With fewer, a newcomer takes the
    slot used last outside its chunk (the next turn of that frame is the farthest away in a cycle).
    """

    def __init__(
        self,
        reader: MuseTalkReader,
        mask_of: MaskOf,
        matrix: str,
        color_range: str,
        device: torch.device,
        max_bytes: int = PLATE_BYTES,
    ) -> None:
        self._reader, self._mask_of, self.device = reader, mask_of, device
        boxes = reader.boxes.tolist()
        height, width = reader.frame(0).shape[:2]
        self._roi = roi_size(boxes, width, height)
        self._slots = max(
            1, min(len(boxes), max_bytes // (width * height * 3 // 2 + 4 * self._roi[0] * self._roi[1]))
        )
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
        self._slot_of: dict[int, int] = {}  # avatar frame -> slot, the most recently used last
        self._all_there = False
        self._lock = threading.Lock()
        # Threads may use streams of their own: what one fills, another reads.
        self._filled = torch.cuda.Event() if device.type == "cuda" else None

    def blend(self, faces: Tensor, placement: Placement) -> Tensor:
        """Return NV12 (n, H*3/2, W) on the device; faces and placement as `HostPlates.blend` takes them."""
        faces = faces.to(self.device, non_blocking=True)
        usable = placement.usable.to(self.device, non_blocking=True)
        if self._all_there:  # slot k holds frame k: the index need not be known here
            self._wait()
            index = placement.avatar_index.to(self.device, non_blocking=True)
            return composite_nv12(faces, self._plates, index, usable)
        done = []
        with self._lock:
            self._wait()
            indices = placement.avatar_index.tolist()
            for part in _runs(indices, self._slots):
                slots = torch.tensor(self._fill(indices[part]), device=self.device)
                done.append(composite_nv12(faces[part], self._plates, slots, usable[part]))
            if self._filled is not None:
                self._filled.record()
        return torch.cat(done) if len(done) > 1 else done[0]

    def _wait(self) -> None:
        if self._filled is not None:
            self._filled.wait()

    def _fill(self, indices: list[int]) -> list[int]:
        """Return the slots of avatar frames, at most as many as there are slots, filling those that are not there."""
        needed = set(indices)
        for at in dict.fromkeys(indices):
            slot = self._slot_of.pop(at, None)
            if slot is None:
                slot = self._free_slot(at, needed)
                self._upload(at, slot)
            self._slot_of[at] = slot
        self._all_there = len(self._slot_of) == len(self._reader.boxes)
        return [self._slot_of[at] for at in indices]

    def _free_slot(self, at: int, needed: set[int]) -> int:
        if self._slots == len(self._reader.boxes):
            return at
        if len(self._slot_of) < self._slots:
            return len(self._slot_of)
        latest = next(other for other in reversed(self._slot_of) if other not in needed)
        return self._slot_of.pop(latest)

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


def _runs(indices: list[int], most: int) -> list[slice]:
    """Cut a list into slices of at most `most` different values each."""
    out, start, seen = [], 0, set()
    for k, value in enumerate(indices):
        if value not in seen and len(seen) == most:
            out.append(slice(start, k))
            start, seen = k, set()
        seen.add(value)
    return [*out, slice(start, len(indices))]
