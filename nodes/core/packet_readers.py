"""Mapped tensors of one avatar packet for the length of a run: what engines share, and what each has of its own.

Frames are uint8 (H,W,3) RGB, `found` is bool (N,): which frames have a face. Everything is mapped: never write to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .packet_schema import CROP_SIDE, SCHEMAS, PacketError

if TYPE_CHECKING:
    from .packet_read import AvatarPacket

_REACH = 16
"""Frame sides that landmarks and crops of a face may lie away from the corner: they may leave the picture, not by much."""
_LEAST_SIDE = 1.0
"""Pixels of the frame that a crop must cover at least, along a side."""


class PacketReader:
    """Mapped tensors of one packet; use as a context manager.

    latents: what a resident packet holds on its device; None where stages keep what they want themselves.
    """

    latents: Tensor | None = None
    found: Tensor

    def __init__(self, packet: AvatarPacket) -> None:
        from safetensors import SafetensorError, safe_open

        self.packet = packet
        try:
            files = {
                name: safe_open(packet.path / name, framework="pt") for name in SCHEMAS[packet.info.engine]
            }
            self._frames = files["frames.safetensors"].get_tensor("frames")
            self._map(files)
        except SafetensorError as e:
            raise PacketError(f"{packet.path}: {e}; rebuild the avatar") from None
        except (OSError, RuntimeError) as e:  # torch says RuntimeError for a file that has just gone
            raise PacketError(f"{packet.path}: {e}; was the avatar rebuilt? Load it again") from None
        self._check()

    def _map(self, files: dict) -> None:
        raise NotImplementedError

    def _check(self) -> None:
        """Raise PacketError if what was mapped does not fit the frames."""
        raise NotImplementedError

    def frame(self, index: int) -> Tensor:
        """Return avatar frame `index`: uint8 (H,W,3) RGB, mapped: never write to it."""
        return self._frames[index]

    def close(self) -> None:
        for name in vars(self).keys() - {"packet"}:
            setattr(self, name, None)

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse(self, wrong: np.ndarray, problem: str) -> None:
        """Raise PacketError for the first frame whose entry in `wrong` (N,) is true."""
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise PacketError(f"avatar {self.packet.info.id!r}, frame {at}: {problem}; rebuild it")


class MuseTalkReader(PacketReader):
    """latents: float16 (N,C2,h,w). boxes: int32 (N,4). crops: int32 (N,8). points: float32 (N,68,2) where the face was
    found by its landmarks, else None."""

    latents: Tensor

    def _map(self, files: dict) -> None:
        geometry = files["geometry.safetensors"]
        self.latents = files["latents.safetensors"].get_tensor("latents")
        self.boxes: Tensor = geometry.get_tensor("boxes")
        self.crops: Tensor = geometry.get_tensor("crops")
        self.found = geometry.get_tensor("found")
        self.points = geometry.get_tensor("points") if "points" in geometry.keys() else None
        self._mask = geometry.get_tensor("mask")
        self._offsets = geometry.get_tensor("mask_offsets").tolist()
        self._shapes = geometry.get_tensor("mask_shapes").tolist()

    def _check(self) -> None:
        width, height = self.packet.info.size
        offsets, shapes = np.array(self._offsets, np.int64), np.array(self._shapes, np.int64)
        ends = offsets[:-1] + shapes[:, 0] * shapes[:, 1]
        if (
            offsets[0] != 0
            or offsets[-1] != len(self._mask)
            or (shapes < 0).any()
            or (ends != offsets[1:]).any()
        ):
            raise PacketError(
                f"avatar {self.packet.info.id!r}: mask offsets do not fit the mask shapes; rebuild it"
            )
        box, crop = self.boxes.numpy().astype(np.int64), self.crops.numpy().astype(np.int64)
        inside = (box[:, :2] >= 0) & (box[:, :2] < box[:, 2:]) & (box[:, 2:] <= (width, height))
        covered = (crop[:, :2] <= box[:, :2]) & (box[:, 2:] <= crop[:, 2:4])
        fits = shapes[:, ::-1] == crop[:, 2:4] - crop[:, :2]
        placed = (crop[:, 4:6] == box[:, :2] - crop[:, :2]) & (crop[:, 6:8] == box[:, 2:] - box[:, :2])
        wrong = ~(inside & covered & fits & placed).all(1)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            self._refuse(
                wrong,
                f"box {box[i].tolist()}, crop {crop[i].tolist()} and mask {self._shapes[i]} do not fit {width}x{height}",
            )
        self._check_points(_REACH * max(width, height))

    def _check_points(self, reach: int) -> None:
        """Raise PacketError if the landmarks of a frame with a face are not finite or lie far outside the frame."""
        if self.points is None:
            return
        near = (np.abs(self.points.numpy()) <= reach).all((1, 2))  # false for NaN
        self._refuse(
            ~near & self.found.numpy(), f"landmarks are not finite or lie more than {reach} pixels away"
        )

    def mask(self, index: int) -> Tensor:
        """Return the blend mask of frame `index`: uint8 (rows, columns) over its crop square, mapped."""
        rows, columns = self._shapes[index]
        return self._mask[self._offsets[index] : self._offsets[index + 1]].view(rows, columns)


class DittoReader(PacketReader):
    """Feature volumes, poses and crops of every frame.

    volumes: float16 (N,C,D,h,w); reading one costs what it weighs, 4 MB of the official model. pose: float32 by name:
    pitch, yaw, roll logits (N,bins), t (N,3), exp (N,3K), scale (N,1), kp (N,3K). c2o: float32 (N,3,3), from pixels of
    the CROP_SIDE square to those of the frame. eye_open: float32 (N,2). eye_ball: float32 (N,6).
    A frame without a face has volume, pose and crop of the nearest one that has.
    """

    POSE = ("pitch", "yaw", "roll", "t", "exp", "scale", "kp")

    def _map(self, files: dict) -> None:
        features = files["features.safetensors"]
        self.volumes: Tensor = features.get_tensor("f_s")
        self.pose: dict[str, Tensor] = {name: features.get_tensor(name) for name in self.POSE}
        self.c2o: Tensor = features.get_tensor("c2o")
        self.eye_open: Tensor = features.get_tensor("eye_open")
        self.eye_ball: Tensor = features.get_tensor("eye_ball")
        self.found = features.get_tensor("found")

    def _check(self) -> None:
        for name, values in {**self.pose, "eye_open": self.eye_open, "eye_ball": self.eye_ball}.items():
            if not bool(torch.isfinite(values).all()):
                self._refuse(~np.isfinite(values.numpy()).all(1), f"{name} is not finite")
        wrong = crop_problems(self.c2o.numpy(), self.packet.info.size, self.found.numpy())
        for problem, frames in wrong.items():
            self._refuse(frames, problem)

    def volume(self, index: int) -> Tensor:
        """Return the feature volume of frame `index`: float16 (C,D,h,w), mapped."""
        return self.volumes[index]


READERS: dict[str, type[PacketReader]] = {"musetalk": MuseTalkReader, "ditto": DittoReader}


def open_reader(packet: AvatarPacket) -> PacketReader:
    """Return the reader of the packet's engine. PacketError if its files went, or do not fit each other."""
    return READERS[packet.info.engine](packet)


def crop_problems(c2o: np.ndarray, size: tuple[int, int], found: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is wrong with the crops of frames -> in which frames, bool (N,). Nothing is if none is true.

    Args:
        c2o: float (N,3,3), from the CROP_SIDE square to the frame.
        size: width, height of the frames.
        found: bool (N,): frames whose crop must touch the frame.
    """
    m = np.asarray(c2o, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        affine = np.isfinite(m).all((1, 2)) & (m[:, 2] == (0, 0, 1)).all(1)
        area = np.abs(m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0])
        corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64) * CROP_SIDE
        at = corners @ m[:, :2, :2].transpose(0, 2, 1) + m[:, None, :2, 2]
        low, high, reach = at.min(1), at.max(1), _REACH * max(size)
        return {
            "c2o is no affine matrix of finite numbers": ~affine,
            f"c2o makes its crop less than {_LEAST_SIDE:g} pixel wide": affine
            & ~(area * CROP_SIDE**2 >= _LEAST_SIDE**2),
            f"the crop of c2o lies more than {reach} pixels away": affine
            & ~(np.abs(at) <= reach).all((1, 2)),
            "the crop of c2o does not touch the frame": affine & found & ~((high > 0) & (low < size)).all(1),
        }
