"""Edits of motion that is made already: head, mouth, gaze, blinks, brows. None of them runs the diffusion again.

What the network gives is a pose (angles, translation, scale) and an expression, which is an offset for each of 21 key
points that nobody named. Head edits are exact. Edits of eyes and brows are heuristics: they move single key points by offsets
that public LivePortrait editors use (11 and 15 upper lids, 13 and 16 lower lids, 1 and 2 brows), and were never fitted to a face.
The embedded model learned key points of its own; on it they move whatever it put there.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from .drive import ANGLES, EYES, LIPS, DriveOptions, present
from .geometry import as_degrees, gaze_offsets
from .motion import MotionOutput
from .prosody import Prosody

BLINKS = ("as made", "off", "timed")
MAX_ANGLE, MAX_GAZE = 45.0, 30.0
MIN_RATE, MAX_RATE = 1.0, 60.0
_CLOSING, _CLOSED, _OPENING = 0.10, 0.05, 0.20
"""Seconds of a blink."""
_REFRACTORY = 0.5
"""Seconds after a blink in which none begins."""
_REMEMBERED = 64
_GAZE = 0.26, 0.28
"""Weighted degrees, which `geometry.gaze_offsets` takes, for a degree of eye turn: those by which the eyes follow the head."""
# Offsets at full strength, in units of the expression: key point -> (x, y).
_LID = {11: (0, 0.02), 15: (0, 0.02), 13: (0, -0.006), 16: (0, -0.006)}
_RAISE = {1: (0, 0.010), 2: (0, -0.010)}
_FURROW = {1: (0.010, -0.003), 2: (-0.010, 0.003)}
_SQUINT = {point: (0, 0.3 * y) for point, (_, y) in _LID.items()}
_REALLY_CLOSED = 0.5
"""Eye openness of the narrowest frame over that of the widest, below which a clip shows a blink to copy."""


@dataclass(frozen=True)
class MotionEdits:
    """What is changed. The defaults change nothing.

    head: 0..2, how far the head moves from the avatar's own pose: turning and translation. pitch, yaw, roll: degrees added,
    -45..45; upstream's online settings have pitch 2 against a lowered chin. mouth: 0..2, how far the lips move.
    gaze_x, gaze_y: degrees that the eyes turn, -30..30, to the right and up in the picture.
    blink: "as made" leaves the eyes to the motion (of a still) or to the clip; "off" keeps them as open as the avatar's
    widest frame; "timed" makes them blink at `blinks_per_minute`, 1..60: a Poisson process of `blink_seed` with 0.5 s
    without one behind each. A clip that itself blinks is the model of the lids, else a generic closing is.
    brow_raise, brow_furrow, squint: 0..2, how far loudness and pitch move brows and lids (`prosody`).
    keys: what follows the motion, of exp, pitch, yaw, roll, t, scale; None for all but scale of a still and exp of a clip.
    drive_eyes: whether the eyes turn against the head and follow the motion; None for a still only.

    Raises:
        ValueError: out of range.
    """

    head: float = 1.0
    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0
    mouth: float = 1.0
    gaze_x: float = 0.0
    gaze_y: float = 0.0
    blink: str = "as made"
    blinks_per_minute: float = 15.0
    blink_seed: int = 0
    brow_raise: float = 0.0
    brow_furrow: float = 0.0
    squint: float = 0.0
    keys: tuple[str, ...] | None = None
    drive_eyes: bool | None = None

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("head", "mouth", "brow_raise", "brow_furrow", "squint"), (0.0, 2.0))
        turns = dict.fromkeys(ANGLES, (-MAX_ANGLE, MAX_ANGLE))
        gazes = dict.fromkeys(("gaze_x", "gaze_y"), (-MAX_GAZE, MAX_GAZE))
        ranges = {**shares, **turns, **gazes, "blinks_per_minute": (MIN_RATE, MAX_RATE)}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ValueError(f"{name} {value!r:.40} is outside {low:g}..{high:g}")
        if self.blink not in BLINKS:
            raise ValueError(f"blink {self.blink!r:.40} is unknown; use one of {', '.join(BLINKS)}")
        if type(self.blink_seed) is not int:
            raise ValueError(f"blink_seed {self.blink_seed!r:.40} is no whole number")
        DriveOptions(keys=self.keys)

    @property
    def hears(self) -> bool:
        """Whether the sound itself is needed."""
        return bool(self.brow_raise or self.brow_furrow or self.squint)


class Editor:
    """`edits` on one avatar.

    Args:
        sources: poses of its frames, angles as logits. eye_open: (N, 2), openness of its eyes.
        fps: of the video.
        prosody: of the sound; needed where `edits.hears`.
    """

    def __init__(
        self,
        edits: MotionEdits,
        sources: MotionOutput,
        eye_open: Tensor,
        fps: Fraction,
        prosody: Prosody | None = None,
    ) -> None:
        self._edits, self._fps, self._prosody = edits, fps, prosody
        k = sources.exp.shape[1] // 3
        self._lips, self._eyes = (_mask(present(points, k), k) for points in (LIPS, EYES))
        self._gaze = _gaze(edits, k)
        self._open, self._closing = _lids(sources.exp, eye_open, k)
        self._blinks = BlinkTimes(edits.blinks_per_minute, edits.blink_seed)
        self._brows = [_offsets(points, k) for points in (_RAISE, _FURROW, _SQUINT)]

    def before(self, pose: MotionOutput, source: MotionOutput) -> MotionOutput:
        """Edit what does not depend on time: head, mouth, gaze. See `posing.Poser`."""
        edits, changed = self._edits, {}
        for name in ANGLES:
            angle = getattr(pose, name)
            if edits.head != 1:
                own = as_degrees(getattr(source, name))
                angle = own + (angle - own) * edits.head
            changed[name] = angle + getattr(edits, name)
        if edits.head != 1:
            changed["t"] = source.t + (pose.t - source.t) * edits.head
        exp = pose.exp
        if edits.mouth != 1:
            exp = torch.where(self._lips, source.exp + (exp - source.exp) * edits.mouth, exp)
        return pose._replace(**changed, exp=exp if self._gaze is None else exp + self._gaze)

    def after(self, pose: MotionOutput, source: MotionOutput, frames: Sequence[int]) -> MotionOutput:
        """Edit frames by their time: blinks, brows. See `posing.Poser`."""
        exp = pose.exp
        if self._edits.blink != "as made":
            exp = torch.where(self._eyes, self._open if self._gaze is None else self._open + self._gaze, exp)
        if self._edits.blink == "timed":
            shut = [self._blinks.closure(float(frame / self._fps)) for frame in frames]
            exp = exp + torch.tensor(shut)[:, None] * self._closing
        if self._edits.hears:
            exp = exp + self._browed(frames)
        return pose._replace(exp=exp)

    def _browed(self, frames: Sequence[int]) -> Tensor:
        edits, heard = self._edits, [self._prosody.at(frame) for frame in frames]
        total = torch.zeros(len(frames), self._lips.shape[0])
        named = zip(("brow_raise", "brow_furrow", "squint"), self._brows, strict=True)
        for name, offsets in named:
            strength = torch.tensor([getattr(strengths, name) for strengths in heard])
            total = total + strength[:, None] * offsets * getattr(edits, name)
        return total


class BlinkTimes:
    """When the eyes are how far shut: a Poisson process with a pause behind each blink. Time goes forward.

    Args:
        per_minute: blinks on average, 1..60.
        seed: of its own generator.
    """

    def __init__(self, per_minute: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._least = _CLOSING + _CLOSED + _OPENING + _REFRACTORY
        self._rate = 1 / (60 / per_minute - self._least)
        self._starts: deque[float] = deque([self._random.expovariate(self._rate)], maxlen=_REMEMBERED)

    def closure(self, time: float) -> float:
        """Return 0 (open) to 1 (shut) at `time` in seconds, at most 64 blinks before the latest asked for."""
        while self._starts[-1] <= time:
            self._starts.append(self._starts[-1] + self._least + self._random.expovariate(self._rate))
        at = bisect_right(self._starts, time) - 1
        return 0.0 if at < 0 else _lid(time - self._starts[at])


def _lid(time: float) -> float:
    """Return how far the lids are shut `time` seconds into a blink."""
    if time < _CLOSING:
        return _smooth(time / _CLOSING)
    time -= _CLOSING + _CLOSED
    return 1.0 if time < 0 else 1 - _smooth(min(1.0, time / _OPENING))


def _smooth(t: float) -> float:
    return t * t * (3 - 2 * t)


def _lids(exp: Tensor, eye_open: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the expression (3K,) with the widest eyes, and what shuts them, 0 beside the eyes."""
    openness = eye_open.float().mean(1)
    widest, narrowest = int(openness.argmax()), int(openness.argmin())
    if openness[narrowest] <= _REALLY_CLOSED * openness[widest]:
        shut = (exp[narrowest] - exp[widest]) * _mask(present(EYES, k), k)
    else:
        shut = _offsets(_LID, k)
    return exp[widest], shut


def _gaze(edits: MotionEdits, k: int) -> Tensor | None:
    if not (edits.gaze_x or edits.gaze_y) or present((11, 15), k) != (11, 15):
        return None
    dx, dy = (
        torch.tensor([turn * weight])
        for turn, weight in zip((edits.gaze_x, edits.gaze_y), _GAZE, strict=True)
    )
    return gaze_offsets(dx, dy, k)[0]


def _mask(points: Sequence[int], k: int) -> Tensor:
    mask = torch.zeros(k, 3, dtype=torch.bool)
    mask[list(points)] = True
    return mask.flatten()


def _offsets(points: dict[int, tuple[float, float]], k: int) -> Tensor:
    offsets = torch.zeros(k, 3)
    for point in present(tuple(points), k):
        offsets[point, :2] = torch.tensor(points[point])
    return offsets.flatten()
