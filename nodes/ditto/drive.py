"""From motion vectors to the key points that the warping network is given: mixing with the source, control, fades, gaze.

The order of the steps is upstream's (spec/ditto.md 11.1). Whole chunks are computed at once; every frame depends on its
own motion and on the first frame alone, so chunks of any length give the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .geometry import as_degrees, degrees_from_logits, gaze_offsets, transform_keypoints, unpack_motion
from .motion import MotionOutput
from .stitch import StitchNetwork

ANGLES = ("pitch", "yaw", "roll")
IMAGE_KEYS = ("exp", *ANGLES, "t")
VIDEO_KEYS = ("exp",)
LIPS = (6, 12, 14, 17, 19, 20)
EYES = (11, 13, 15, 16, 18)
_SCALED_KEYS = (
    "exp",
    *ANGLES,
)  # what the ratio of two faces' scales applies to; t is in the picture's own units
_DRIVEN = ("scale", "exp", *ANGLES, "t")
_FADES = ("", "d0", "s")
_YAW_TO_GAZE, _PITCH_TO_GAZE = 0.26, 0.28
_NUMBERS = ("fade_alpha", "vad_alpha", *(f"{kind}_{a}" for kind in ("delta", "alpha") for a in ANGLES))
_CONTROLS = frozenset({*_NUMBERS, "delta_exp", "fade_out_keys"})


@dataclass(frozen=True)
class DriveOptions:
    """How motion is put onto a source."""

    keys: tuple[str, ...] | Mapping[str, float] | None = None
    """What follows the motion; a mapping gives weights. None: all but scale for a still, the expression for a video."""
    relative: bool = True
    """Add the change since the first frame to the source, instead of taking the motion as it is."""
    drive_eyes: bool | None = None
    """None: for a still only."""
    eye_offsets: Tensor | None = None
    """(n, 3K) offsets of the expression for the steps of a blink; the eyes then blink by these and not by the motion."""
    blinks: Sequence[int] = (0,)
    """Step of the blink of every frame (`geometry.blink_frames`), repeated from its start when it ends."""
    fade: str = ""
    """What fades go to: "d0" the first frame, "s" the source, "" nothing."""
    fade_keys: tuple[str, ...] = ("exp",)
    control: Mapping[str, Any] = field(default_factory=dict)
    """Control of every frame (`KeypointDriver.__call__`); a frame's own comes first."""
    scale_ratio: float = 1.0
    """Scale of the face that the motion was made for / scale of the source."""
    lips: tuple[int, ...] = LIPS
    eyes: tuple[int, ...] = EYES
    gaze: tuple[int, int] = (11, 15)
    as_upstream: bool = False
    """Keep three faults for parity: `alpha_*` without `delta_*` scales logits, a fade may mix degrees with logits, and
    `vad_alpha` damps the whole expression instead of the lips."""

    def __post_init__(self) -> None:
        unknown = {*(self.keys or ()), *self.fade_keys} - {*_DRIVEN, "kp"}
        if unknown:
            raise ValueError(
                f"unknown motion keys {', '.join(sorted(unknown))}: known are {', '.join(_DRIVEN)}"
            )
        if self.fade not in _FADES:
            raise ValueError(f"fade is {self.fade!r}: give one of {', '.join(map(repr, _FADES))}")
        if self.eye_offsets is not None and max(self.blinks, default=0) >= len(self.eye_offsets):
            raise ValueError(
                f"blinks go up to step {max(self.blinks)}, but there are {len(self.eye_offsets)} eye offsets"
            )
        _check_control(self.control)

    def weights(self, is_image: bool) -> dict[str, float]:
        """Return key -> weight of what follows the motion."""
        keys = self.keys if self.keys is not None else IMAGE_KEYS if is_image else VIDEO_KEYS
        weights = dict(keys) if isinstance(keys, Mapping) else dict.fromkeys(keys, 1.0)
        return {k: w * self.scale_ratio if k in _SCALED_KEYS else w for k, w in weights.items()}


@dataclass(frozen=True)
class _Angle:
    """An angle of every frame: logits, or degrees where `in_degrees` says so."""

    logits: Tensor
    degrees: Tensor
    in_degrees: Tensor

    def resolve(self) -> Tensor:
        """Return degrees (N,)."""
        return torch.where(self.in_degrees, self.degrees, degrees_from_logits(self.logits))

    def first(self) -> _Angle:
        return _Angle(self.logits[:1], self.degrees[:1], self.in_degrees[:1])

    def broadcast(self) -> Tensor:
        """Return (N, n_bins) as upstream's arrays behave: degrees stand in for every logit."""
        return torch.where(self.in_degrees[:, None], self.degrees[:, None], self.logits)


class KeypointDriver:
    """Turns chunks of motion into source and driving key points. Keeps the first frame, nothing else.

    Args:
        source: pose of the source's first frame, (1, ...), angles as logits.
        is_image: the source is a still.
        options: how motion is put onto it.
        stitch: the stitching network; None leaves key points as they are.
        origin: motion vector (265,) that stands for the first frame; None takes the first frame itself.
    """

    def __init__(
        self,
        source: MotionOutput,
        is_image: bool,
        options: DriveOptions | None = None,
        stitch: StitchNetwork | None = None,
        origin: Tensor | None = None,
    ) -> None:
        self.options = options or DriveOptions()
        self._source, self._is_image, self._stitch = source, is_image, stitch
        self._weights = self.options.weights(is_image)
        self._origin = None if origin is None else unpack_motion(origin[None], source.kp)
        self._fade_target: dict[str, Any] | None = None
        eyes = self.options.drive_eyes
        self._drive_eyes = is_image if eyes is None else eyes
        self._takes, self._blinks = _masks(self.options, source, self._drive_eyes)

    def __call__(
        self,
        motion: Tensor,
        source: MotionOutput | None = None,
        first_frame: int = 0,
        controls: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return source (1 or N, K, 3) and driving (N, K, 3) key points of the next N frames: `pose`, then `keypoints`."""
        return self.keypoints(self.pose(motion, source, first_frame, controls), source)

    def pose(
        self,
        motion: Tensor,
        source: MotionOutput | None = None,
        first_frame: int = 0,
        controls: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> MotionOutput:
        """Return the pose of the next N frames: motion and source together, with control and fades; angles (N,) in degrees.

        Args:
            motion: (N, 265) motion vectors.
            source: pose of the source in each of these frames; None for a still.
            first_frame: number of the first of them. Chunks come in order, from frame 0.
            controls: frame number -> fade_alpha, vad_alpha (0..1), fade_out_keys, delta_pitch/yaw/roll (degrees),
                alpha_pitch/yaw/roll (factors), delta_exp (3K).

        Raises:
            ValueError: unknown controls, or sizes that do not fit.
        """
        source = self._source if source is None else source
        n = len(motion)
        if len(source.kp) not in (1, n):
            raise ValueError(
                f"{len(source.kp)} source frames for {n} frames of motion: give one of each, or one in all"
            )
        rows = [{**self.options.control, **(controls or {}).get(first_frame + i, {})} for i in range(n)]
        for row in rows:
            _check_control(row)
        mixed = self._mix(unpack_motion(motion, source.kp), source)
        exp = self._expression(mixed.exp, source.exp, first_frame, rows)
        angles = {
            name: _controlled(getattr(mixed, name), name, rows, self.options.as_upstream) for name in ANGLES
        }
        state = {"exp": exp, "t": mixed.t, "scale": mixed.scale, **angles}
        state = self._faded(state, source, rows)
        degrees = {name: state[name].resolve() for name in ANGLES}
        kp = source.kp.expand(n, -1)
        return MotionOutput(*degrees.values(), state["t"], state["exp"], state["scale"], kp)

    def keypoints(self, pose: MotionOutput, source: MotionOutput | None = None) -> tuple[Tensor, Tensor]:
        """Return source (1 or N, K, 3) and driving (N, K, 3) key points of a pose with angles in degrees.

        The eyes of a driven gaze are turned against the head first; stitched where there is a stitching network.
        """
        source = self._source if source is None else source
        if self._drive_eyes:
            degrees = {name: getattr(pose, name) for name in ANGLES}
            pose = pose._replace(exp=pose.exp + self._gaze(degrees))
        kp_source, kp_driving = transform_keypoints(source), transform_keypoints(pose)
        if self._stitch is not None:
            kp_driving = self._stitch(kp_source.expand(len(kp_driving), -1, -1), kp_driving)
        return kp_source, kp_driving

    def _mix(self, moved: MotionOutput, source: MotionOutput) -> MotionOutput:
        """Source and motion together, key by key; angles as logits."""
        if self._origin is None and self.options.relative:
            self._origin = MotionOutput(*(value[:1].clone() for value in moved))
        weighted = self.options.scale_ratio != 1 or isinstance(self.options.keys, Mapping)
        changes = {}
        for name in _DRIVEN:
            ours, theirs = getattr(source, name), getattr(moved, name)
            if name not in self._weights:
                changes[name] = ours.expand_as(theirs)
            elif self._origin is None:
                changes[name] = theirs * self._weights[name] if weighted else theirs
            else:
                changes[name] = ours + (theirs - getattr(self._origin, name)) * self._weights[name]
        return moved._replace(**changes)

    def _expression(self, exp: Tensor, source: Tensor, first_frame: int, rows: list[dict]) -> Tensor:
        takes, blinks = self._takes, self._blinks
        mixed = exp * takes * (1 - blinks) + source * ((1 - takes) + takes * blinks)
        if self.options.eye_offsets is not None:
            steps = self.options.blinks
            index = [steps[(first_frame + i) % len(steps)] for i in range(len(exp))]
            mixed = mixed + self.options.eye_offsets.to(exp)[index] * blinks
        alpha, _ = _column(rows, "vad_alpha", 1.0, exp)
        damped = mixed * alpha[:, None] + source * (1 - alpha[:, None])
        if not self.options.as_upstream:
            damped = torch.where(_points(self.options.lips, exp) > 0, damped, mixed)
        for i, row in enumerate(rows):
            if "delta_exp" in row:
                damped[i] = damped[i] + torch.as_tensor(row["delta_exp"]).to(exp).reshape(-1)
        return damped

    def _faded(self, state: dict[str, Any], source: MotionOutput, rows: list[dict]) -> dict[str, Any]:
        if not self.options.fade:
            return state
        if self._fade_target is None:
            self._fade_target = {k: v.first() if k in ANGLES else v[:1].clone() for k, v in state.items()}
        target = self._fade_target
        if self.options.fade == "s":
            still = torch.zeros(len(source.kp), dtype=torch.bool, device=source.kp.device)
            angles = {
                name: _Angle(logits, as_degrees(logits), still)
                for name in ANGLES
                for logits in (getattr(source, name),)
            }
            target = {"exp": source.exp, "t": source.t, "scale": source.scale, **angles}
        return {key: self._fade_one(key, value, target[key], rows) for key, value in state.items()}

    def _fade_one(self, key: str, value: Any, target: Any, rows: list[dict]) -> Any:
        own = [row if key in row.get("fade_out_keys", self.options.fade_keys) else {} for row in rows]
        like = value.degrees if isinstance(value, _Angle) else value
        alpha, given = _column(own, "fade_alpha", 1.0, like)
        if not isinstance(value, _Angle):
            return value * alpha[:, None] + target * (1 - alpha[:, None])
        same = value.in_degrees == target.in_degrees
        blended = value.broadcast() * alpha[:, None] + target.broadcast() * (1 - alpha[:, None])
        if self.options.as_upstream:
            return _Angle(
                torch.where(given[:, None], blended, value.logits),
                value.degrees * alpha + target.degrees * (1 - alpha),
                value.in_degrees & (same | ~given),
            )
        degrees = value.resolve() * alpha + target.resolve() * (1 - alpha)
        return _Angle(blended, degrees, value.in_degrees | (given & ~same))

    def _gaze(self, degrees: dict[str, Tensor]) -> Tensor:
        dx = (degrees["yaw"] - as_degrees(self._source.yaw)) * _YAW_TO_GAZE
        dy = (degrees["pitch"] - as_degrees(self._source.pitch)) * _PITCH_TO_GAZE
        return gaze_offsets(dx, dy, self._source.kp.shape[1] // 3, self.options.gaze)


def present(points: Sequence[int], n_keypoints: int) -> tuple[int, ...]:
    """Return those of `points` that a model of `n_keypoints` has."""
    return tuple(point for point in points if point < n_keypoints)


def with_scale_of(options: DriveOptions, character: MotionOutput, source: MotionOutput) -> DriveOptions:
    """Return the options for motion that was made for another face: its scale against the source's."""
    return replace(options, scale_ratio=(character.scale[0, 0] / source.scale[0, 0]).item())


def _check_control(control: Mapping[str, Any]) -> None:
    unknown = sorted(set(control) - _CONTROLS)
    if unknown:
        raise ValueError(f"unknown controls {', '.join(unknown)}: known are {', '.join(sorted(_CONTROLS))}")


def _points(points: Sequence[int], like: Tensor) -> Tensor:
    """Return (3K,) with 1 for the coordinates of the key points."""
    mask = like.new_zeros(like.shape[1] // 3, 3)
    mask[list(points)] = 1
    return mask.flatten()


def _masks(options: DriveOptions, source: MotionOutput, drive_eyes: bool) -> tuple[Tensor, Tensor]:
    """Return where the expression follows the motion, and where it blinks, each (3K,) of 0 and 1."""
    takes, blinks = _points(options.lips, source.exp), torch.zeros_like(source.exp[0])
    if drive_eyes and options.eye_offsets is None:
        takes = torch.maximum(takes, _points(options.eyes, source.exp))
    elif drive_eyes:
        blinks = _points(options.eyes, source.exp)
    return takes, blinks


def _column(rows: list[dict], name: str, default: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return one control of all frames (N,), and in which of them it was given."""
    given = [name in row for row in rows]
    values = [float(row.get(name, default)) for row in rows]
    return (
        torch.tensor(values, dtype=like.dtype, device=like.device),
        torch.tensor(given, device=like.device),
    )


def _controlled(logits: Tensor, name: str, rows: list[dict], as_upstream: bool) -> _Angle:
    """The angle after `delta_` (degrees, added) and `alpha_` (a factor)."""
    delta, turned = _column(rows, f"delta_{name}", 0.0, logits)
    alpha, scaled = _column(rows, f"alpha_{name}", 1.0, logits)
    degrees = (degrees_from_logits(logits) + delta) * alpha
    if as_upstream:
        return _Angle(logits * alpha[:, None], degrees, turned)
    return _Angle(logits, degrees, turned | scaled)
