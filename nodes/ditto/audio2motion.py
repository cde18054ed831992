"""From conditions to motion: overlapping windows of the diffusion, joined into one series of frames at 25 fps.

A window has 80 frames and shares `overlap` with the one before; its first frames are blended into the series, weight
j / fuse. What a window continues from is a frame of the series (`kp_cond`). Offline the first window starts at frame 0;
online it starts `overlap` frames of silence earlier, so that frame k comes as soon as the window after its own has run.
Results depend on the windows alone, not on how the speech was chunked. Source: spec/ditto.md section 9.

A motion vector is [scale - 1 | pitch 66 | yaw 66 | roll 66 (logits) | translation 3 | expression 3 k], float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core.host_copy import upload
from .condition import Condition
from .schedule import MotionNoise, sample, step_times
from .smooth import POSE, average_range

WINDOW = 80
OFFLINE_OVERLAP, ONLINE_OVERLAP = 10, 70
SMOOTH = 3

Sampler = Callable[[Tensor, Tensor], Tensor]
"""kp_cond (1, C) and condition (1, window, width) -> motion (1, window, C), on any device."""


@dataclass(frozen=True)
class WindowScheme:
    """How windows follow each other.

    overlap: frames a window shares with the one before.
    online: see the module. smooth: frames of the moving average over pose and scale, below 2 for none.
    fix_every: every so many windows continue from the source's own vector instead of the series, 0 for never;
    fix_free: columns (first, end) that then still come from the series, None for none.
    upstream_smoothing: average the joints of each window in place and offline everything once more, so that some frames are
    smoothed twice and the newest not at all, as upstream does; otherwise each frame once.
    window: frames of a pass of the network.
    """

    overlap: int = OFFLINE_OVERLAP
    online: bool = False
    smooth: int = SMOOTH
    fix_every: int = 0
    fix_free: tuple[int, int] | None = None
    upstream_smoothing: bool = False
    window: int = WINDOW

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < self.window:
            raise ValueError(
                f"overlap {self.overlap} is outside 0..{self.window - 1}; upstream has {OFFLINE_OVERLAP} offline, "
                f"{ONLINE_OVERLAP} online"
            )
        if not 0 <= self.smooth <= self.window or self.fix_every < 0:
            raise ValueError(
                f"smooth {self.smooth} is outside 0..{self.window}, or fix_every {self.fix_every} below 0; upstream has "
                f"{SMOOTH} and 0 (offline) or 1 (online)"
            )

    @classmethod
    def live(cls) -> WindowScheme:
        """The shipped online settings: overlap 70, each window from the source but for its pose."""
        return cls(overlap=ONLINE_OVERLAP, online=True, fix_every=1, fix_free=(POSE.start, POSE.stop))

    @property
    def valid(self) -> int:
        """Frames that a window adds."""
        return self.window - self.overlap

    @property
    def fuse(self) -> int:
        """Frames that are blended at a joint."""
        return min(self.overlap, self.valid) if self.online else self.overlap

    @property
    def warm_up(self) -> int:
        """Frames of silence before frame 0."""
        return self.overlap if self.online else 0

    @property
    def look_ahead(self) -> int:
        """Frames of speech behind a frame that must be known before it is shown, at the worst place of a window."""
        return self.valid + self.fuse - 1 + self.hold

    @property
    def hold(self) -> int:
        """Settled frames that wait for the neighbour they are averaged with: a stream does not wait, a file can."""
        return 0 if self.online else self.smooth // 2


class MotionJoin:
    """The series while windows are added; keeps only what is needed to go on. Rows are numbered from the first window.

    Args:
        scheme: how windows follow each other.
        source: motion vector (C,) or (1, C) that the first window continues from; the series is kept on its device.
    """

    def __init__(self, scheme: WindowScheme, source: Tensor) -> None:
        self.scheme = scheme
        self.source = source.detach().reshape(1, -1).float()
        self.kp_cond = self.source
        self.end = 0
        self._first, self._rows, self._windows = 0, None, 0

    @property
    def settled(self) -> int:
        """Rows from here on will still be blended."""
        return max(0, self.end - self.scheme.fuse)

    def add(self, clip: Tensor) -> None:
        """Add the next window (window, C) or (1, window, C)."""
        scheme = self.scheme
        clip = clip.detach().reshape(scheme.window, -1).to(self.source.device, torch.float32)
        if self._rows is None:
            self._rows = clip.clone()
            first, end = 0, scheme.window
        else:
            overlap, fuse = scheme.overlap, scheme.fuse
            weight = torch.arange(fuse, device=clip.device)[:, None] / max(fuse, 1)
            old, fresh = self._rows[len(self._rows) - fuse :], clip[overlap - fuse : overlap]
            kept = self._rows[: len(self._rows) - fuse]
            self._rows = torch.cat([kept, fresh * weight + old * (1 - weight), clip[overlap:]])
            first, end = len(kept), len(kept) + fuse + 1
        self.end += scheme.window if self.end == 0 else scheme.valid
        if scheme.upstream_smoothing:
            smoothed = average_range(self._rows[:, POSE], scheme.smooth, first, end)
            self._rows[first:end, POSE] = smoothed
        self._windows += 1
        self.kp_cond = self._next_condition()

    def rows(self, first: int, end: int) -> Tensor:
        """Return rows first..end-1 as they are, (n, C)."""
        if first < self._first or end > self.end:
            raise IndexError(f"rows {first}..{end} of {self._first}..{self.end}")
        return self._rows[first - self._first : end - self._first]

    def smoothed(self, first: int, end: int, last: bool = False) -> Tensor:
        """Return rows first..end-1 with pose and scale averaged over their neighbours in the series as it stands.

        last: the series ends at `end`; rows that only fill up a window are no neighbours.
        """
        out = self.rows(first, end).clone()
        if not (self.scheme.upstream_smoothing and self.scheme.online):
            at = first - self._first
            series = self._rows[: at + end - first] if last else self._rows
            out[:, POSE] = average_range(series[:, POSE], self.scheme.smooth, at, at + end - first)
        return out

    def drop_before(self, row: int) -> None:
        """Forget rows that neither a blend, nor an average, nor `kp_cond` can still need."""
        keep = min(row - self.scheme.smooth // 2, self.end - 2 * self.scheme.window)
        if keep - self._first >= self.scheme.window:
            self._rows, self._first = self._rows[keep - self._first :].clone(), keep

    def _next_condition(self) -> Tensor:
        scheme = self.scheme
        at = len(self._rows) - scheme.overlap - 1
        frame = self._rows[at : at + 1].clone()
        if not scheme.fix_every or self._windows % scheme.fix_every:
            return frame
        fixed = self.source.clone()
        if scheme.fix_free is not None:
            free = slice(*scheme.fix_free)
            fixed[:, free] = frame[:, free]
        return fixed


class MotionStream:
    """Speech rows in, motion frames out, in order, none lost and none added.

    `reference` (1, C) is what movement is relative to (upstream's d0), None before the first window: frame 0, online the
    first frame of the warm-up.

    Args:
        sampler: runs the diffusion on one window.
        condition: makes the condition of frames from their speech.
        scheme: how windows follow each other.
        source: motion vector (C,) of the avatar's (or the reference character's) first frame, on the device where the
            motion is wanted.
        silence: online only: speech rows (overlap, width) of silence, on the device of the speech; see `hubert.silence_rows`.
        limits: (2, C) least and largest value of each column, None for none. Cast to float32, whatever it is.

    Raises:
        ValueError: an online stream without its rows of silence or with too little overlap, limits of another shape.
    """

    def __init__(
        self,
        sampler: Sampler,
        condition: Condition,
        scheme: WindowScheme,
        source: Tensor,
        silence: Tensor | None = None,
        limits: Tensor | None = None,
    ) -> None:
        if scheme.online and scheme.overlap < scheme.valid:
            raise ValueError(
                f"an online stream with overlap {scheme.overlap} would never show its first frames: give "
                f"{-(-scheme.window // 2)}..{scheme.window - 1} (upstream {ONLINE_OVERLAP})"
            )
        given = 0 if silence is None else len(silence)
        if given != scheme.warm_up:
            raise ValueError(
                f"this stream needs {scheme.warm_up} rows of silence before its first frame, got {given}: "
                f"take them from the speech encoder"
            )
        self.scheme, self._sampler, self._condition = scheme, sampler, condition
        self._join = MotionJoin(scheme, source)
        self._limits = None if limits is None else _limits(limits, self._join.source)
        self._speech = silence
        self._at = -scheme.warm_up  # frame of the first speech row held, and of the next window
        self._fed = self._shown = 0
        self.reference: Tensor | None = None
        self._over = False

    def feed(self, speech: Tensor) -> Tensor:
        """Take the speech of the next frames, (k, width); return the motion that is ready, (m, C)."""
        self._check_open()
        self._speech = speech if self._speech is None else torch.cat([self._speech, speech])
        self._fed += len(speech)
        made = []
        while len(self._speech) >= self.scheme.window:
            self._run()
            made.append(self._ready())
        return self._joined(made)

    def finish(self) -> Tensor:
        """Return the frames still owed: all in all as many as were fed. The stream is over after that."""
        self._check_open()
        self._over = True
        if not self._fed:
            return self._joined([])
        made = []
        if self.scheme.online:  # one window behind the last whole one, as upstream
            self._run()
        while not self.scheme.online and self._at < self._fed:
            self._run()
            made.append(self._ready())
        made.append(self._take(self._fed, last=True))
        return self._joined(made)

    def _check_open(self) -> None:
        if self._over:
            raise RuntimeError("this motion stream is finished: make another for other speech")

    def _run(self) -> None:
        """Sample the window at the front of the held speech; what is missing of it repeats the last row."""
        scheme, speech = self.scheme, self._speech[: self.scheme.window]
        missing = scheme.window - len(speech)
        if scheme.online and missing:
            speech = torch.cat([speech, speech[-1:].expand(missing, -1)])
        rows = self._condition.rows(speech, self._at)
        if len(rows) < scheme.window:
            rows = torch.cat([rows, rows[-1:].expand(missing, -1)])
        self._join.add(self._sampler(self._join.kp_cond, rows[None]))
        if scheme.online and self.reference is None:
            self.reference = self._limited(self._join.smoothed(0, 1))
        self._speech = self._speech[scheme.valid :].clone()
        self._at += scheme.valid

    def _ready(self) -> Tensor:
        return self._take(min(self._join.settled - self.scheme.warm_up, self._fed) - self.scheme.hold)

    def _take(self, end: int, last: bool = False) -> Tensor:
        first, lead = self._shown, self.scheme.warm_up
        self._shown = end = max(first, end)
        out = self._limited(self._join.smoothed(first + lead, end + lead, last))
        self._join.drop_before(end + lead)
        if self.reference is None and len(out):
            self.reference = out[:1].clone()
        return out

    def _limited(self, motion: Tensor) -> Tensor:
        return motion if self._limits is None else motion.clamp(*self._limits)

    def _joined(self, made: list[Tensor]) -> Tensor:
        return torch.cat(made) if made else self._join.kp_cond[:0]


def _limits(limits: Tensor, source: Tensor) -> Tensor:
    limits, width = torch.as_tensor(limits).to(source.device, torch.float32), source.shape[1]
    if limits.ndim != 2 or len(limits) < 2 or limits.shape[1] != width:
        raise ValueError(
            f"limits are {tuple(limits.shape)}: give the least and the largest value, (2, {width})"
        )
    return limits[:2]


class MotionNetwork(Protocol):
    """LMDM, or engines in its place."""

    @property
    def weights_device(self) -> torch.device: ...

    def encode(self, cond: Tensor) -> tuple[Tensor, Tensor]: ...

    def denoise(
        self, x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor
    ) -> Tensor: ...


class MotionSampler:
    """The diffusion on one window after the other, with one seed's noise.

    network: LMDM, or what runs it. noise: all random numbers, made for this motion alone.
    """

    def __init__(self, network: MotionNetwork, noise: MotionNoise) -> None:
        self._network, self._noise = network, noise
        self._of_steps = tuple(upload(z, network.weights_device) for z in noise.of_steps)
        self._times = step_times(noise.coefficients, network.weights_device)

    @torch.inference_mode()
    def __call__(self, kp_cond: Tensor, cond: Tensor) -> Tensor:
        """Return the motion of a window, float32 (1, window, C) on the network's device."""
        network = self._network
        frame = upload(kp_cond, network.weights_device)
        tokens, hidden = network.encode(upload(cond, network.weights_device))
        start = upload(self._noise.start(), network.weights_device)

        def denoise(x: Tensor, time: Tensor) -> Tensor:
            return network.denoise(x, frame, tokens, hidden, time)

        return sample(denoise, self._noise.coefficients, start, self._of_steps, self._times)
