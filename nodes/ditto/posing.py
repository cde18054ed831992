"""From a series of motion to the key points of every video frame: at any rate, at a cadence, at rest in silence.

Motion vectors come at 25 fps, video frame k stands at k / fps. What is interpolated is the pose, after motion and source
have been put together and before key points are made of it: expression, translation and scale on a straight line, the
head's rotation on the sphere of quaternions. Both neighbours are put onto the source of the frame that is shown, so that a
template video keeps the pose of its own picture, whatever lies between.

All of it happens on the CPU, in blocks of BLOCK frames counted from frame 0: a frame is the same numbers whoever asks for it
and however many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ..core.cadence import FramePlan, slerp
from .drive import ANGLES, LIPS, KeypointDriver, present
from .geometry import angles_of, quaternions
from .hubert import FPS as MOTION_FPS
from .motion import MotionOutput

BLOCK = 32
"""Frames of a pass. At 25 fps a window of the diffusion gives two of them."""


def interpolate_poses(start: MotionOutput, end: MotionOutput, position: Tensor) -> MotionOutput:
    """Return the poses between: exactly `start` where position is 0 and exactly the common angles where both agree.

    Args:
        start, end: poses of N frames, angles (N,) in degrees. kp is taken from `start`.
        position: float32 (N,), 0..1.

    Rotations go the shorter way; closer than core.cadence.MAX_COS they go straight. Shoemake 1985.
    """
    kept = position == 0
    linear = {
        name: torch.where(kept[:, None], a, a + (b - a) * position[:, None])
        for name in ("t", "exp", "scale")
        for a, b in ((getattr(start, name), getattr(end, name)),)
    }
    given, other = ([getattr(pose, name) for name in ANGLES] for pose in (start, end))
    still = torch.stack([a == b for a, b in zip(given, other, strict=True)]).all(0)
    between = angles_of(_between(quaternions(*given), quaternions(*other), position))
    turned = {
        name: torch.where(kept | still, a, made.to(a))
        for name, a, made in zip(ANGLES, given, between, strict=True)
    }
    return start._replace(**linear, **turned)


def _between(start: Tensor, end: Tensor, position: Tensor) -> Tensor:
    end = torch.where(((start * end).sum(-1) < 0)[:, None], -end, end)  # q and -q are one rotation
    made = slerp(start, end, position).double()
    return made / made.norm(dim=-1, keepdim=True)


def pick(poses: MotionOutput, index: Tensor) -> MotionOutput:
    """Return the poses of frames `index` (n,)."""
    return MotionOutput(*(value[index] for value in poses))


def needed_motion(frame: int, fps: Fraction) -> int:
    """Return the last motion frame that video frame `frame` is made of, unless the motion ends before it."""
    pace = MOTION_FPS / fps
    return -(-frame * pace.numerator // pace.denominator)


class MotionSeries:
    """Motion vectors as they come, from frame 0 on; forgets what no frame needs any more."""

    def __init__(self) -> None:
        self._rows: Tensor | None = None
        self._first = self.end = 0
        self.over = False
        """Whether nothing comes behind `end`."""

    def add(self, motion: Tensor) -> None:
        """Take the next frames (k, C), on the CPU."""
        self._rows = motion if self._rows is None else torch.cat([self._rows, motion])
        self.end += len(motion)

    def at(self, frames: Sequence[int]) -> Tensor:
        """Return the vectors (n, C) of motion frames; behind the end it is the last one."""
        index = [min(frame, self.end - 1) - self._first for frame in frames]
        if min(index) < 0:
            raise IndexError(
                f"motion frames {min(frames)}..{max(frames)} of {self._first}..{self.end - 1} were forgotten"
            )
        return self._rows[index]

    def drop_before(self, frame: int) -> None:
        """Forget frames before `frame`."""
        cut = min(frame, self.end - 1) - self._first
        if cut > 256:
            self._rows, self._first = self._rows[cut:].clone(), self._first + cut


@dataclass(frozen=True, eq=False)
class Posed:
    """Frames `start`..: avatar frames shown, int64 (n,); source and driving key points, float32 (n, K, 3) on the CPU;
    whether they are finite, bool (n,); the poses themselves, angles in degrees."""

    start: int
    avatar: Tensor
    kp_source: Tensor
    kp_driving: Tensor
    finite: Tensor
    pose: MotionOutput

    def cut(self, first: int, end: int) -> Posed:
        """Return frames first..end-1 of these."""
        parts = (value[first:end] for value in (self.avatar, self.kp_source, self.kp_driving, self.finite))
        return Posed(self.start + first, *parts, MotionOutput(*(value[first:end] for value in self.pose)))


Edit = Callable[[MotionOutput, MotionOutput], MotionOutput]
"""(pose, source) of N frames -> another pose."""
TimedEdit = Callable[[MotionOutput, MotionOutput, Sequence[int]], MotionOutput]
"""(pose, source, numbers of the video frames) -> another pose."""


class Poser:
    """Makes the key points of video frames.

    Args:
        driver: puts motion onto a source, on the CPU.
        sources: poses of all avatar frames, angles as logits, on the CPU.
        fps: of the video.
        shown: (first, count) of video frames -> avatar frames, int64 (count,).
        before: edit of a pose before it is interpolated: what does not depend on time. after: of a frame's own pose.
    """

    def __init__(
        self,
        driver: KeypointDriver,
        sources: MotionOutput,
        fps: Fraction,
        shown: Callable[[int, int], Tensor],
        before: Edit | None = None,
        after: TimedEdit | None = None,
    ) -> None:
        self._driver, self._sources, self._shown = driver, sources, shown
        self._pace = MOTION_FPS / fps
        self._before, self._after = before, after
        k = sources.exp.shape[1] // 3
        lips = torch.zeros(k, 3)
        lips[list(present(LIPS, k))] = 1
        self._lips = lips.flatten() > 0

    def frames(self, series: MotionSeries, plans: Sequence[FramePlan]) -> Posed:
        """Return the frames of `plans`, consecutive ones of one block, whose motion has come."""
        start, count = plans[0].frame, len(plans)
        block = start - start % BLOCK
        # The block's other frames are filled with these: what a row becomes depends on its own place and content alone.
        filled = [plans[min(max(frame - start, 0), count - 1)] for frame in range(block, block + BLOCK)]
        avatar = self._shown(start, count)
        fill = torch.tensor([plan.frame - start for plan in filled])
        source = pick(self._sources, avatar[fill])
        pose = self._pose(series, filled, source)
        if self._after is not None:
            pose = self._after(pose, source, [plan.frame for plan in filled])
        pose = self._rested(pose, source, torch.tensor([plan.weight for plan in filled]))
        kp_source, kp_driving = self._driver.keypoints(pose, source)
        finite = kp_driving.isfinite().flatten(1).all(1)
        kp_driving = torch.where(finite[:, None, None], kp_driving, kp_source)
        own = slice(start - block, start - block + count)
        cut = (value[own] for value in (kp_source, kp_driving, finite))
        return Posed(start, avatar, *cut, MotionOutput(*(value[own] for value in pose)))

    def _pose(self, series: MotionSeries, plans: Sequence[FramePlan], source: MotionOutput) -> MotionOutput:
        left = self._at([plan.left for plan in plans], series, source)
        if all(plan.left == plan.right for plan in plans):
            return left
        right = self._at([plan.right for plan in plans], series, source)
        return interpolate_poses(left, right, torch.tensor([plan.position for plan in plans]))

    def _at(self, frames: Sequence[int], series: MotionSeries, source: MotionOutput) -> MotionOutput:
        """Return the poses at the times of video frames, on `source`."""
        times = [frame * self._pace for frame in frames]
        below = [time.numerator // time.denominator for time in times]
        start = self._driven(series.at(below), source)
        position = [float(time - floor) for time, floor in zip(times, below, strict=True)]
        if not any(position):
            return start
        end = self._driven(series.at([floor + 1 for floor in below]), source)
        return interpolate_poses(start, end, torch.tensor(position))

    def _driven(self, motion: Tensor, source: MotionOutput) -> MotionOutput:
        pose = self._driver.pose(motion, source)
        return pose if self._before is None else self._before(pose, source)

    def _rested(self, pose: MotionOutput, source: MotionOutput, weight: Tensor) -> MotionOutput:
        """Ease the lips towards the source's, all the way at weight 0; the head and all else go on."""
        if bool((weight == 1).all()):
            return pose
        share = weight[:, None]
        eased = source.exp + (pose.exp - source.exp) * share
        return pose._replace(exp=torch.where(self._lips & (share < 1), eased, pose.exp))


def source_poses(values: Mapping[str, Tensor]) -> MotionOutput:
    """Return a packet's poses (`DittoReader.pose`) as float32 on the CPU, copied: the packet may be closed before the run."""
    return MotionOutput(*(values[name].to("cpu", torch.float32, copy=True) for name in MotionOutput._fields))
