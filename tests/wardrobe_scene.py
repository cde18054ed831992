"""Scenes with known truth for the wardrobe: a presenter whose hand lies on the garment, fingers apart.

All shapes are drawn with numpy, pixel by pixel; nothing here uses what it tests.
"""

from __future__ import annotations

import numpy as np
import torch

BURGUNDY = (0.36, 0.04, 0.13)
SKIN = (0.85, 0.62, 0.5)
BLUE = (0.06, 0.12, 0.45)
WALL = (0.55, 0.6, 0.62)

SLITS = (3, 4, 5, 6)
"""Gaps between the fingers of `hand_scene`, from left to right, px."""
STRANDS = (3, 5)
"""Skin strands beside the fingers, px."""


class HandScene:
    """garment, hand: bool (H,W); slits, strands: the pixels between fingers and those of the thin strands."""

    def __init__(self, height: int = 192, width: int = 160, dx: int = 0) -> None:
        self.garment = np.zeros((height, width), bool)
        self.garment[40 : height - 24, 24 : width - 24] = True
        self.hand = np.zeros_like(self.garment)
        self.slits, self.strands = np.zeros_like(self.garment), np.zeros_like(self.garment)
        top, bottom, x = 70, 120, 34 + dx
        self.hand[bottom : bottom + 20, x : x + 5 * 10 + sum(SLITS)] = True
        for gap in (*SLITS, 0):
            self.hand[top:bottom, x : x + 10] = True
            self.slits[top:bottom, x + 10 : x + 10 + gap] = True
            x += 10 + gap
        for width_px in STRANDS:
            x += 8
            self.strands[top:bottom, x : x + width_px] = True
            x += width_px
        self.hand |= self.strands

    @property
    def mask(self) -> torch.Tensor:
        return torch.from_numpy(self.garment).float()[None]

    @property
    def occluders(self) -> torch.Tensor:
        return torch.from_numpy(self.hand).float()[None]


def painted(shape: np.ndarray, inside, outside, soft: float = 0.0) -> np.ndarray:
    """Return float32 (H,W,3): `inside` where bool (H,W) is true, mixed over `soft` px as a lens does."""
    cover = shape.astype(np.float32)
    for _ in range(round(soft * 2)):
        for axis in (0, 1):
            cover = (np.roll(cover, 1, axis) + 2 * cover + np.roll(cover, -1, axis)) / 4
    inside, outside = np.broadcast_to(inside, (*shape.shape, 3)), np.broadcast_to(outside, (*shape.shape, 3))
    return (cover[..., None] * inside + (1 - cover[..., None]) * outside).astype(np.float32)


def photo(scene: HandScene, garment=BURGUNDY, soft: float = 1.0) -> torch.Tensor:
    """Return IMAGE (1,H,W,3): the scene with its garment in that colour, edges a little soft."""
    dressed = painted(scene.garment, garment, WALL, soft)
    return torch.from_numpy(painted(scene.hand, SKIN, dressed, soft))[None]


def delta_e(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """Return the CIE 1976 colour difference of two IMAGEs (T,H,W,3) as (T,H,W)."""
    import cv2

    lab = [[cv2.cvtColor(np.ascontiguousarray(f), cv2.COLOR_RGB2LAB) for f in x.numpy()] for x in (a, b)]
    return np.linalg.norm(np.array(lab[0]) - np.array(lab[1]), axis=3)


def naive_distance(mask: np.ndarray) -> np.ndarray:
    """Return the distance of each inside pixel to the nearest outside one, by trying all."""
    inside, outside = np.argwhere(mask), np.argwhere(~mask)
    distance = np.zeros(mask.shape, np.float32)
    if len(inside) and len(outside):
        apart = np.linalg.norm(inside[:, None] - outside[None], axis=2).min(1)
        distance[tuple(inside.T)] = apart
    return distance


def depth(mask: np.ndarray, far: int = 7) -> np.ndarray:
    """Return `naive_distance`, or more than `far` where it is more: tries the offsets up to `far`, not all pixels."""
    found = np.full(mask.shape, far + 1.0, np.float32)
    outside = np.pad(~mask, far)  # the frame's edge is inside
    height, width = mask.shape
    for dy in range(2 * far + 1):
        for dx in range(2 * far + 1):
            apart = np.hypot(dy - far, dx - far)
            found[outside[dy : dy + height, dx : dx + width]] = np.minimum(
                found[outside[dy : dy + height, dx : dx + width]], apart
            )
    return np.where(mask, found, 0)
