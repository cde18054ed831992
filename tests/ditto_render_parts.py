"""A small Ditto avatar, and a motion of made-up key points: what a render needs, without speech or diffusion."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from ditto_parts import TINY
from packet_parts import ditto_info, ditto_tensors

from talkinghead.nodes.core.host_copy import upload
from talkinghead.nodes.core.packet import AvatarPacket, write_packet
from talkinghead.nodes.ditto.crop import FaceBox, crop_matrices

SIZE = (160, 120)
PLACES = (((80, 60), 60, 0.2), ((50, 70), 72, -0.5), ((120, 40), 56, 0.0))
"""Centre, side and angle of the faces of successive avatar frames; the last leaves the frame at a corner."""
WARP = TINY.warp
VOLUME = (WARP.volume_channels, WARP.volume_depth, WARP.volume_size, WARP.volume_size)


def c2o_of(n: int, side: int = 512) -> np.ndarray:
    """Return (n, 3, 3) float32: from a crop of `side` pixels to the frame."""
    boxes = [FaceBox(centre, (size, size), angle) for centre, size, angle in PLACES]
    return np.stack([crop_matrices(boxes[i % 3], side).c2o for i in range(n)])


def ditto_avatar(
    root: Path,
    model,
    name="anna",
    n=3,
    size=SIZE,
    cycle="loop",
    faceless=(),
    fps=Fraction(25),
    n_keypoints=WARP.n_keypoints,
) -> AvatarPacket:
    """Write a packet of smooth frames for the tiny networks: every volume another."""
    made = ditto_tensors(n, size, VOLUME, n_keypoints)
    features = made["features.safetensors"]
    features["c2o"] = torch.from_numpy(c2o_of(n))
    features["found"] = torch.tensor([i not in faceless for i in range(n)])
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    frames = np.stack([np.stack([x, y, (x + 60 * i) % 256], -1) for i in range(n)]).astype(np.uint8)
    made["frames.safetensors"]["frames"] = torch.from_numpy(frames)
    info = ditto_info(name, n, cycle, size, fps)
    info.model.update(name="tiny", sha256=model.identity)
    return write_packet(root, info, made)


@dataclass(frozen=True, eq=False)
class MadeUpPoses:
    """As `motion_plan.PoseBatch`."""

    start: int
    avatar_index: torch.Tensor
    kp_source: torch.Tensor
    kp_driving: torch.Tensor
    usable: torch.Tensor
    is_last: bool


@dataclass(frozen=True, eq=False)
class MadeUpMotion:
    """As `motion_plan.Motion`: key points that are another for every frame and the same in every run.

    live: the number of frames is not known before; None comes in front of every batch.
    """

    model: object
    avatar: AvatarPacket
    total: int
    fps: Fraction = Fraction(25)
    live: bool = False
    seen: dict = field(default_factory=lambda: {"begun": 0, "ended": 0, "batches": 0})

    @property
    def n_frames(self):
        return None if self.live else self.total

    def keypoints(self, ctx, n, cadence=None):
        self.seen["begun"] += 1
        source, driving = keypoints_of(self.total)
        with self.avatar.open() as reader:
            found = reader.found.clone()
        try:
            for start in range(0, self.total, n):
                if self.live:
                    yield None
                count = min(n, self.total - start)
                index = torch.from_numpy(self.avatar.avatar_indices(start, count, self.fps))
                self.seen["batches"] += 1
                part = slice(start, start + count)
                yield MadeUpPoses(
                    start,
                    index,
                    upload(source[part], ctx.device),
                    upload(driving[part], ctx.device),
                    found[index],
                    start + count == self.total,
                )
        finally:
            self.seen["ended"] += 1


def keypoints_of(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return source and driving key points of frames 0..n-1, (n, K, 3) each; frame k's depend on k alone."""
    most = 512  # torch's numbers depend on how many are drawn at once
    generator = torch.Generator().manual_seed(9)
    source = 0.35 * torch.randn(most, WARP.n_keypoints, 3, generator=generator)
    ways = 0.2 * torch.sin(torch.arange(most * WARP.n_keypoints * 3).reshape(source.shape) * 0.7)
    return source[:n], (source + ways)[:n]
