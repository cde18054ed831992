"""Head pose and key points: angles from logits, rotations, the key-point transform, the motion vector.

Angles are degrees, key points (B, K, 3) in the volume's -1..1; flat key points have index 3 * k + axis. A motion vector
(265 numbers with 21 key points) is scale - 1, pitch, yaw and roll logits, translation, expression; the canonical key
points are no part of it. Source: spec/ditto.md 3 and 11.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .motion import MotionOutput

BIN_DEGREES = 3.0
FIRST_BIN_DEGREES = -97.5
_BLINK_GAP = (60, 100)
"""Frames between blinks that upstream draws from, both ends included."""


def degrees_from_logits(logits: Tensor) -> Tensor:
    """Return the expected angle (...) in degrees of logits (..., n_bins): bins of 3 degrees from -97.5."""
    bins = torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logits.softmax(-1) * bins).sum(-1) * BIN_DEGREES + FIRST_BIN_DEGREES


def as_degrees(angle: Tensor, n_bins: int = 66) -> Tensor:
    """Return degrees (B,) of logits (B, n_bins); anything else is degrees already and returned as it is."""
    return degrees_from_logits(angle) if angle.ndim == 2 and angle.shape[1] == n_bins else angle


def rotation_matrix(pitch: Tensor, yaw: Tensor, roll: Tensor) -> Tensor:
    """Return (B, 3, 3), the transpose of Rz(roll) Ry(yaw) Rx(pitch), for angles (B,) in degrees: for row vectors."""
    angles = torch.stack([pitch, yaw, roll], -1).deg2rad()
    sin, cos = angles.sin(), angles.cos()
    (sx, sy, sz), (cx, cy, cz) = sin.unbind(-1), cos.unbind(-1)
    rows = [
        cz * cy, sz * cy, -sy,
        cz * sy * sx - sz * cx, sz * sy * sx + cz * cx, cy * sx,
        cz * sy * cx + sz * sx, sz * sy * cx - cz * sx, cy * cx,
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def quaternions(pitch: Tensor, yaw: Tensor, roll: Tensor) -> Tensor:
    """Return unit quaternions (B, 4), w x y z, of Rz(roll) Ry(yaw) Rx(pitch) for angles (B,) in degrees; float64."""
    half = torch.stack([pitch, yaw, roll], -1).double().deg2rad() / 2
    (sx, sy, sz), (cx, cy, cz) = half.sin().unbind(-1), half.cos().unbind(-1)
    parts = [
        cx * cy * cz + sx * sy * sz,
        sx * cy * cz - cx * sy * sz,
        cx * sy * cz + sx * cy * sz,
        cx * cy * sz - sx * sy * cz,
    ]
    return torch.stack(parts, -1)


def angles_of(rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return pitch, yaw and roll (B,) in degrees of unit quaternions (B, 4); yaw in -90..90."""
    w, x, y, z = rotation.unbind(-1)
    pitch = torch.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    yaw = (2 * (w * y - x * z)).clamp(-1, 1).asin()
    roll = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return pitch.rad2deg(), yaw.rad2deg(), roll.rad2deg()


def transform_keypoints(pose: MotionOutput) -> Tensor:
    """Return the posed key points (B, K, 3): scale * (kp R + exp), moved by t in x and y. Depth is not moved.

    Angles of `pose` are logits (B, n_bins) or degrees (B,).
    """
    kp, exp = (flat.unflatten(1, (-1, 3)) for flat in (pose.kp, pose.exp))
    rotation = rotation_matrix(*(as_degrees(a).flatten() for a in (pose.pitch, pose.yaw, pose.roll)))
    posed = (kp @ rotation + exp) * pose.scale[:, :, None]
    return posed + torch.nn.functional.pad(pose.t[:, None, :2], (0, 1))


def pack_motion(pose: MotionOutput, with_keypoints: bool = False) -> Tensor:
    """Return motion vectors (B, 265) of a pose with logits; `with_keypoints` appends kp (B, 328)."""
    parts = [pose.scale - 1, pose.pitch, pose.yaw, pose.roll, pose.t, pose.exp]
    return torch.cat([*parts, pose.kp] if with_keypoints else parts, 1)


def unpack_motion(vectors: Tensor, kp: Tensor, n_bins: int = 66) -> MotionOutput:
    """Return the pose of motion vectors (B, 4 + 3 * n_bins + 3K) with the key points `kp` (B or 1, 3K).

    Raises:
        ValueError: another width.
    """
    sizes = (1, n_bins, n_bins, n_bins, 3, kp.shape[1])
    if vectors.ndim != 2 or vectors.shape[1] != sum(sizes):
        raise ValueError(f"motion vectors must be (frames, {sum(sizes)}), got {tuple(vectors.shape)}")
    scale, pitch, yaw, roll, t, exp = vectors.split(sizes, 1)
    return MotionOutput(pitch, yaw, roll, t, exp, scale + 1, kp.expand(len(vectors), -1))


def gaze_offsets(dx: Tensor, dy: Tensor, n_keypoints: int = 21, eyes: tuple[int, int] = (11, 15)) -> Tensor:
    """Return offsets (B, 3K) of the expression that turn the eyes against the head.

    Args:
        dx: (B,) change of yaw in degrees, already weighted.
        dy: (B,) change of pitch in degrees, already weighted.
        n_keypoints: K.
        eyes: the key points of the two eyes; the one the head turns towards moves less.
    """
    near, far = 0.0007, 0.001
    offsets = dx.new_zeros(len(dx), n_keypoints, 3)
    to_right = dx > 0
    offsets[:, eyes[0], 0] = dx * torch.where(to_right, near, far)
    offsets[:, eyes[1], 0] = dx * torch.where(to_right, far, near)
    offsets[:, list(eyes), 1] = (-0.001 * dy)[:, None]
    return offsets.flatten(1)


class _Draws(Protocol):
    def randint(self, a: int, b: int) -> int: ...


def blink_frames(
    n_frames: int, blink_length: int, gaps: int | Sequence[int] = 0, rng: _Draws | None = None
) -> list[int]:
    """Return for every frame the step of the blink it shows, 0 where the eyes are open.

    Args:
        n_frames: length of the list.
        blink_length: steps of a blink; step 0 is the open eye.
        gaps: frames between blinks: a number, numbers to cycle through, 0 to draw from 60 to 100, below 0 for no blink.
        rng: what draws, a `random.Random`; needed for gaps that are drawn.

    Raises:
        ValueError: gaps are to be drawn and `rng` is missing; `gaps` is empty, or has a negative number among others.
    """
    cycle = [gaps] if isinstance(gaps, int) else list(gaps)
    if not cycle or (len(cycle) > 1 and min(cycle) < 0):
        raise ValueError(f"gaps between blinks are {cycle!r}: give numbers from 0, or -1 alone for no blinks")
    if blink_length < 1:
        raise ValueError(f"a blink of {blink_length} steps is none: give at least 1")
    steps = [0] * n_frames
    if cycle[0] < 0:
        return steps

    def gap_of(turn: int) -> int:
        gap = cycle[turn % len(cycle)]
        if gap:
            return gap
        if rng is None:
            raise ValueError("gaps between blinks are to be drawn: give a random.Random with a seed")
        return rng.randint(*_BLINK_GAP)

    # Upstream asks for the first gap twice, so a drawn one is drawn anew for the first check of the end.
    start, gap, turn = gap_of(0), gap_of(0), 0
    while start < n_frames - max(gap, blink_length):
        steps[start : start + blink_length] = range(blink_length)
        turn += 1
        gap = gap_of(turn)
        start += blink_length + gap
    return steps


def seeded_blinks(n_frames: int, blink_length: int, seed: int, gaps: int | Sequence[int] = 0) -> list[int]:
    """Return `blink_frames` drawn from `seed` alone; the global generators stay as they are."""
    return blink_frames(n_frames, blink_length, gaps, random.Random(seed))
