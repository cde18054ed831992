"""Cadence: which frames the network draws, what stands between them, and when the mouth rests.

A key frame goes through the network; a frame between two keys gets latents that are interpolated on the sphere
(`slerp`), never pixels: blended pictures show two faces. In silence the mouth rests: its weight falls to 0 and
nothing is computed. Both are decided from the loudness of each frame's own stretch of sound, at most LOOK_AHEAD
frames ahead, so the plan depends neither on how the sound is cut nor on who asks for frames.

Rules and numbers: spec "Cadence". Loudness is RMS of 16 kHz mono, full scale 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, repeat

import torch
from torch import Tensor

from .audio import AudioClip
from .loudness import frame_energies
from .report import Report
from .timeline import fps_text, frame_count

MODES = ("dense", "2", "3", "adaptive")
MAX_STRIDE = 3
LOOK_AHEAD = 3
"""Frames behind the one that is planned whose sound must be known: the longest stride, and the way out of rest."""
REST_SECONDS = Fraction(3, 25)
"""Quiet that must have passed before the mouth goes to rest. With the look-ahead a pause of 0.24 s counts at 25 fps;
the closure of a plosive, up to 0.15 s, does not."""
EASE = tuple(3 * t * t - 2 * t**3 for t in (0.25, 0.5, 0.75))
"""Weight of speech in the three frames out of rest (Hermite, between 0 and 1): 0.156, 0.5, 0.844."""
MAX_CACHE_MB = 4096
MAX_COS = 0.9995
"""Latents whose directions are closer than this (1.8 degrees) are interpolated on a straight line."""


@dataclass(frozen=True)
class CadenceOptions:
    """How often the network draws.

    mode: "dense" every frame, "2" or "3" every second or third, "adaptive" by loudness: below `rms_threshold` every
    third, where it changes by more than `flux_threshold` from one frame to the next every frame, else every second.
    The first and the last quiet frame of a pause count as change: the mouth still moves there (demo sentence, frames
    between keys: 43.4 instead of 36.9 dB, for 124 instead of 113 keys of 144).
    rest: in silence the mouth is still. It rests when RMS stays below half of `rms_threshold` and speaks when
    it reaches `rms_threshold`; 0 means that it never rests.
    viseme_cache_mb: MB for mouths to be shown again instead of decoding nearly the same once more; 0 for none. See
    `viseme_cache`.

    Raises:
        ValueError: another mode, a threshold outside 0..1, or a cache outside 0..MAX_CACHE_MB.
    """

    mode: str = "dense"
    rms_threshold: float = 0.008
    flux_threshold: float = 0.0035
    rest: bool = True
    viseme_cache_mb: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"cadence {self.mode!r} is unknown; use one of {', '.join(MODES)}")
        for name in ("rms_threshold", "flux_threshold"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(
                    f"{name} {value} is outside 0..1 (RMS, full scale 1); the default suits speech"
                )
        if not 0 <= self.viseme_cache_mb <= MAX_CACHE_MB:
            raise ValueError(f"a viseme cache of {self.viseme_cache_mb} MB; give 0 (none) to {MAX_CACHE_MB}")

    @property
    def is_plain(self) -> bool:
        """Whether every frame goes through the network and nothing else happens."""
        return self.mode == "dense" and not self.rest and not self.viseme_cache_mb

    def stride(self, before: float, rms: float, after: float) -> int:
        """Return the longest gap between keys that a frame may lie in, by its loudness and its neighbours'."""
        if self.mode != "adaptive":
            return 1 if self.mode == "dense" else int(self.mode)
        if rms < self.rms_threshold:
            return 3 if max(before, after) < self.rms_threshold else 1
        return 1 if abs(rms - before) > self.flux_threshold else 2


@dataclass(frozen=True)
class FramePlan:
    """What a frame is made of.

    left, right: the keys around it, both the frame itself for a key. weight: of speech, 1; 0 at rest, between them
    while it changes. stride: the gap it lies in, of a key the one that follows; 0 if nothing is to be computed: at
    rest, or not usable.
    """

    frame: int
    left: int
    right: int
    weight: float
    stride: int

    @property
    def is_key(self) -> bool:
        return self.stride > 0 and self.left == self.right

    @property
    def position(self) -> float:
        """Way from the left key to the right one, 0 for a key."""
        return 0.0 if self.left == self.right else (self.frame - self.left) / (self.right - self.left)


@dataclass(frozen=True)
class Cadence:
    """The plan of one speech as a recipe: planning it again gives the same, in constant memory."""

    audio: AudioClip
    fps: Fraction
    options: CadenceOptions = field(default_factory=CadenceOptions)

    @property
    def n_frames(self) -> int:
        return frame_count(self.audio.n_samples, self.audio.sample_rate, self.fps)

    def energies(self, report: Report | None = None) -> Iterator[float]:
        """Yield the RMS of every frame's sound. `report`: told what is wrong with the sound, if given."""
        return frame_energies(self.audio, self.fps, report)

    def plan(self, usable: Iterable[bool] | None = None) -> Iterator[FramePlan]:
        """Yield the plan of every frame; see `plan_frames`."""
        return plan_frames(self.energies(), self.options, self.fps, usable)

    def check(self, audio: AudioClip, fps: Fraction) -> None:
        """Raise ValueError unless this was planned for `audio` at `fps`."""
        if fps != self.fps:
            raise ValueError(
                f"the cadence was planned at {fps_text(self.fps)} fps, the speech has {fps_text(fps)}; "
                "connect the same Speech Features to Cadence and Render"
            )
        if audio is not self.audio and audio.fingerprint() != self.audio.fingerprint():
            raise ValueError(
                f"the cadence was planned for other sound ({float(self.audio.seconds):.2f} s) than the speech "
                f"({float(audio.seconds):.2f} s); connect the same Speech Features to Cadence and Render"
            )


@dataclass(frozen=True)
class _Heard:
    rms: float
    usable: bool


def plan_frames(
    energies: Iterable[float], options: CadenceOptions, fps: Fraction, usable: Iterable[bool] | None = None
) -> Iterator[FramePlan]:
    """Plan every frame; asks for the loudness of at most LOOK_AHEAD frames behind the one that it yields.

    Args:
        energies: RMS of every frame.
        usable: whether a frame can be drawn at all (its avatar frame has a face). Others are no keys, and nothing
            is interpolated across them.

    The first and the last frame of every run of frames that are drawn are keys, so a frame between two keys never
    waits for sound that does not come. A frame lies in no gap longer than its own stride.
    """
    source = zip(energies, repeat(True) if usable is None else usable, strict=False)
    ended = False
    ahead: deque[_Heard] = deque()
    planner = _Planner(options, fps)
    for frame in count():
        while len(ahead) <= LOOK_AHEAD and not ended:
            got = next(source, None)
            if got is None:
                ended = True
            else:
                ahead.append(_Heard(got[0], bool(got[1])))
        if not ahead:
            return
        yield planner.step(frame, ahead)
        ahead.popleft()


class _Planner:
    """Where the keys stand and whether the mouth rests, frame by frame."""

    def __init__(self, options: CadenceOptions, fps: Fraction) -> None:
        self._options = options
        self._quiet_needed = max(1, math.ceil(REST_SECONDS * fps))
        self._quiet = 0
        # Frames since the mouth began to close, None while it speaks. Before the first sound it has closed already.
        self._closing: int | None = len(EASE)
        self._left = self._right = -1

    def step(self, frame: int, ahead: deque[_Heard]) -> FramePlan:
        """Plan `frame`; `ahead` holds what is heard in it and, unless the sound ends, in LOOK_AHEAD frames behind."""
        weight, drawn = self._weight(ahead)
        if weight == 0 or not ahead[0].usable:
            self._left = self._right = -1
            return FramePlan(frame, frame, frame, weight, 0)
        if frame < self._right:
            return FramePlan(frame, self._left, self._right, weight, self._right - self._left)
        gap = self._gap(ahead, drawn)
        self._left, self._right = frame, frame + gap
        return FramePlan(frame, frame, frame, weight, gap)

    def _weight(self, ahead: deque[_Heard]) -> tuple[float, int]:
        """Return the weight of speech, and how many frames behind this one are certain to be drawn too."""
        if not self._options.rest:
            return 1.0, LOOK_AHEAD
        self._quiet = self._quiet + 1 if ahead[0].rms < self._options.rms_threshold / 2 else 0
        loud = next((d for d, heard in enumerate(ahead) if heard.rms >= self._options.rms_threshold), None)
        if loud == 0:
            self._closing = None
            return 1.0, LOOK_AHEAD
        if self._closing is not None:
            self._closing += 1
        elif self._quiet >= self._quiet_needed and loud is None:
            self._closing = 0
        else:
            return 1.0, LOOK_AHEAD
        going = EASE[-1 - self._closing] if self._closing < len(EASE) else 0.0
        # The way out ends at the first loud frame, so that its onset is drawn in full.
        coming = 0.0 if loud is None else EASE[-loud]
        return max(going, coming), max(0, 2 - self._closing) if loud is None else LOOK_AHEAD

    def _gap(self, ahead: deque[_Heard], drawn: int) -> int:
        """Return the distance to the next key: the longest that every frame between bears."""
        most = min(drawn, len(ahead) - 1, MAX_STRIDE)
        for distance in range(1, most + 1):
            if not ahead[distance].usable:
                most = distance - 1
                break
        for gap in range(most, 1, -1):
            if all(self._stride(ahead, distance) >= gap for distance in range(1, gap)):
                return gap
        return 1

    def _stride(self, ahead: deque[_Heard], distance: int) -> int:
        before, rms, after = (ahead[d].rms for d in (distance - 1, distance, distance + 1))
        return self._options.stride(before, rms, after)


def slerp(start: Tensor, end: Tensor, position: Tensor) -> Tensor:
    """Interpolate on the sphere: directions by angle, lengths linearly.

    Args:
        start, end: (n, ...), each row one vector.
        position: (n,) on the same device, 0 gives start and 1 gives end.

    Returns:
        float32 (n, ...). Rows that are parallel or opposite within MAX_COS, or of length 0, have no turning plane:
        they go the straight line. What is not finite in a row makes that row not finite.

    Formula: Shoemake, "Animating rotation with quaternion curves", SIGGRAPH 1985.
    """
    a, b, t = start.flatten(1).float(), end.flatten(1).float(), position.float()[:, None]
    length_a, length_b = a.norm(dim=1, keepdim=True), b.norm(dim=1, keepdim=True)
    unit_a, unit_b = a / length_a, b / length_b
    cos = (unit_a * unit_b).sum(dim=1, keepdim=True)
    angle = cos.clamp(-MAX_COS, MAX_COS).acos()
    turned = (((1 - t) * angle).sin() * unit_a + (t * angle).sin() * unit_b) / angle.sin()
    curved = turned * ((1 - t) * length_a + t * length_b)
    straight = (1 - t) * a + t * b
    return torch.where(cos.abs() <= MAX_COS, curved, straight).view(start.shape)


SAID = {"dense": "every frame", "2": "every 2nd", "3": "every 3rd", "rest": "at rest"}
"""What people are shown for the names of `StrideMix.shares`."""


class StrideMix:
    """Counts what a run drew: frames by stride, at rest, and keys."""

    def __init__(self) -> None:
        self.frames = self.keys = self.at_rest = 0
        self._by_stride = dict.fromkeys(range(1, MAX_STRIDE + 1), 0)

    def add(self, plan: FramePlan) -> None:
        self.frames += 1
        self.keys += plan.is_key
        if plan.stride:
            self._by_stride[plan.stride] += 1
        elif plan.weight == 0:
            self.at_rest += 1

    def shares(self) -> dict[str, float]:
        """Share of all frames: dense, 2, 3, rest. What is left over could not be drawn."""
        total = max(1, self.frames)
        named = {"dense" if stride == 1 else str(stride): n for stride, n in self._by_stride.items()}
        return {name: n / total for name, n in {**named, "rest": self.at_rest}.items()}

    def text(self) -> str:
        """Such as "every frame 40 %, every 2nd 30 %, every 3rd 10 %, at rest 20 %"; without what there was none of."""
        shares = self.shares().items()
        return ", ".join(f"{SAID[name]} {100 * share:.0f} %" for name, share in shares if share) or "nothing"

    def never_spoke(self, loudest: float, options: CadenceOptions) -> str | None:
        """Return a warning if the mouth rested in every frame though there was sound, its loudest frame of RMS `loudest`."""
        if not self.frames or self.at_rest < self.frames or loudest <= 0:
            return None
        return (
            f"the mouth rests in every frame: the loudest has RMS {loudest:.2g}, rms_threshold is "
            f"{options.rms_threshold:g}; lower it, or raise the sound"
        )

    def tell(self, report: Report) -> None:
        report.fact("stride mix", self.text())
        report.fact("key frames", f"{self.keys} of {self.frames}")
        report.fact("frames at rest", self.at_rest)
