"""One run of a `Motion`: plans, poses and batches of key points, as soon as the motion is there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING

import torch

from ..core.audio import SPEECH_RATE, mono_blocks
from ..core.cadence import LOOK_AHEAD, CadenceOptions, FramePlan, StrideMix, plan_frames
from ..core.frames import RunContext
from ..core.host_copy import upload
from ..core.loudness import LiveLoudness
from ..core.report import FrameList, Report
from .drive import EYES, LIPS, DriveOptions, KeypointDriver, present
from .motion import MotionOutput
from .motion_edit import Editor
from .motion_make import MotionMaker
from .motion_plan import Motion, PoseBatch
from .posing import BLOCK, MotionSeries, Posed, Poser, needed_motion, source_poses
from .prosody import Prosody

if TYPE_CHECKING:
    import numpy as np

    from .speech import Listener
    from .stitch import StitchNetwork

_LOOKED_UP = 256
"""Frames whose avatar frames are looked up at a time."""


class MotionRun:
    """Makes the frames of `motion` once; `posed` before key points are batched, `batches` for the renderer."""

    def __init__(self, ctx: RunContext, motion: Motion, cadence: CadenceOptions | None = None) -> None:
        self._ctx, self._motion, self._cadence = ctx, motion, cadence
        self._speech = motion.speech
        self._loudness = LiveLoudness(motion.fps) if cadence is not None and motion.is_live else None
        self._prosody = Prosody(motion.fps) if motion.edits.hears else None
        self._sound: Iterator[np.ndarray] | None = None
        self._mix, self._loudest = StrideMix(), 0.0
        self._lost = FrameList()
        self._series = MotionSeries()

    def _open(self) -> None:
        """Copy of the avatar what the run needs, a few numbers a frame: it is not held while motion is made."""
        ctx, motion = self._ctx, self._motion
        listeners: list[Listener] = []
        if motion.is_live:
            listeners = [part for part in (self._loudness, self._prosody) if part is not None]
        elif self._prosody is not None:
            self._sound = mono_blocks(motion.speech.audio, SPEECH_RATE, Report())
        with ctx.use_avatar(motion.avatar) as resident:
            reader = resident.reader
            self.sources = source_poses(reader.pose)
            self.found, eyes = reader.found.clone(), reader.eye_open.clone()
            self._check(self.sources)
            self._maker = MotionMaker(ctx, motion, self.sources, reader, listeners)
        self._editor = Editor(motion.edits, self.sources, eyes, motion.fps, self._prosody)
        if self._cadence is not None and self._cadence.viseme_cache_mb:
            ctx.warn("the viseme cache is for MuseTalk; Ditto draws every frame")

    def batches(self, n: int) -> Generator[PoseBatch | None, None, None]:
        """See `Motion.keypoints`."""
        held: list[Posed] = []
        start = waiting = 0
        with closing(self.posed()) as frames:
            for posed in frames:
                if posed is None:
                    yield None
                    continue
                held.append(posed)
                waiting += len(posed.avatar)
                while waiting >= n and self._speech.known > start + n:
                    yield self._batch(start, held, n)
                    start, waiting = start + n, waiting - n
        while waiting:
            size = min(n, waiting)
            yield self._batch(start, held, size)
            start, waiting = start + size, waiting - size

    def posed(self) -> Generator[Posed | None, None, None]:
        """Yield the frames in order, in pieces of at most BLOCK; None before a wait for live sound."""
        self._open()
        series, plans, poser = self._series, _Plans(self._plans()), None
        try:
            with closing(self._maker.pieces()) as pieces:
                for piece in pieces:
                    if piece is None:
                        yield None
                        continue
                    series.add(piece)
                    poser = poser or self._poser()
                    yield from self._ready(plans, poser)
            series.over = True
            if poser is not None:
                yield from self._ready(plans, poser)
        finally:
            self._tell()

    def _ready(self, plans: _Plans, poser: Poser) -> Iterator[Posed]:
        """Yield the frames that can be made of the motion so far."""
        series = self._series
        while group := self._group(plans):
            self._hear(group[-1].frame)
            with self._ctx.report.timed("key points"):
                posed = poser.frames(series, group)
            for plan in group:
                self._mix.add(plan)
            found = self.found[posed.avatar]
            self._lost.add(posed.start, (found & ~posed.finite).tolist())
            # A frame between two keys goes back to the left one, at most 3 frames before it.
            series.drop_before(needed_motion(max(0, posed.start - BLOCK), self._motion.fps))
            yield posed

    def _group(self, plans: _Plans) -> list[FramePlan]:
        """Take the next plans of one block whose motion is there."""
        group: list[FramePlan] = []
        while (not group or plans.next_frame % BLOCK) and self._exists(plans.next_frame):
            # Planning may have to read the sound further on, so the frame itself is looked at first.
            if not (self._has_motion(plans.next_frame) and self._has_motion(plans.peek().right)):
                break
            group.append(plans.take())
        return group

    def _has_motion(self, frame: int) -> bool:
        return self._series.over or needed_motion(frame, self._motion.fps) < self._series.end

    def _exists(self, frame: int) -> bool:
        """Return whether `frame` exists and all that was said in it is known."""
        if self._series.over or not self._motion.is_live:
            return not self._speech.ends_at(frame)
        known = [self._speech.known]
        known += [] if self._loudness is None else [self._loudness.frames - LOOK_AHEAD]
        known += [] if self._prosody is None else [self._prosody.frames]
        return frame < min(known)

    def _plans(self) -> Iterator[FramePlan]:
        if self._cadence is None:
            return (FramePlan(frame, frame, frame, 1.0, 1) for frame in count())
        energies = self._loudness or self._speech.energies()
        return plan_frames(self._heard(energies), self._cadence, self._motion.fps, self._usable())

    def _heard(self, energies: Iterator[float]) -> Iterator[float]:
        for rms in energies:
            self._loudest = max(self._loudest, rms)
            yield rms

    def _usable(self) -> Iterator[bool]:
        for start in count(0, _LOOKED_UP):
            yield from self.found[self._shown(start, _LOOKED_UP)].tolist()

    def _shown(self, first: int, n: int) -> torch.Tensor:
        return torch.from_numpy(self._motion.avatar.avatar_indices(first, n, self._motion.fps))

    def _hear(self, frame: int) -> None:
        """Read a file's sound up to the end of `frame`, where the edits ask for it."""
        prosody = self._prosody
        if prosody is None or self._sound is None:
            return
        while prosody.frames <= frame:
            block = next(self._sound, None)
            if block is None:
                prosody.finish(self._speech.n_frames)
            else:
                prosody.feed(block)

    def _poser(self) -> Poser:
        edits, still = self._motion.edits, len(self.sources.kp) == 1
        k = self.sources.exp.shape[1] // 3
        has_gaze = present(DriveOptions.gaze, k) == DriveOptions.gaze
        options = DriveOptions(
            keys=edits.keys,
            drive_eyes=edits.drive_eyes if has_gaze else False,
            lips=present(LIPS, k),
            eyes=present(EYES, k),
        )
        first = MotionOutput(*(value[:1] for value in self.sources))
        driver = KeypointDriver(first, still, options, self._stitch(), self._maker.reference)
        return Poser(
            driver, self.sources, self._motion.fps, self._shown, self._editor.before, self._editor.after
        )

    def _stitch(self) -> StitchNetwork:
        """Return the stitching network on the CPU, a copy: 45 k weights, and the model may be moved meanwhile."""
        with self._ctx.using_models():
            return deepcopy(self._ctx.load(self._motion.model).nets.stitch).to("cpu", torch.float32)

    def _batch(self, start: int, held: list[Posed], n: int) -> PoseBatch:
        """Take the first `n` frames of `held`."""
        parts: list[Posed] = []
        while n:
            first = held.pop(0)
            size = len(first.avatar)
            if size > n:
                held.insert(0, first.cut(n, size))
                first, size = first.cut(0, n), n
            parts.append(first)
            n -= size
        avatar = torch.cat([part.avatar for part in parts])
        finite = torch.cat([part.finite for part in parts])
        both = torch.stack(
            [torch.cat([p.kp_source for p in parts]), torch.cat([p.kp_driving for p in parts])]
        )
        kp_source, kp_driving = upload(both, self._ctx.device)
        usable = self.found[avatar] & finite
        is_last = self._speech.ends_at(start + len(avatar))
        return PoseBatch(start, avatar, kp_source, kp_driving, usable, is_last)

    def _check(self, sources: MotionOutput) -> None:
        config = self._motion.model.config.nets.motion
        wanted = {"kp": 3 * config.n_keypoints, "exp": 3 * config.n_keypoints, "pitch": config.n_bins}
        for name, width in wanted.items():
            if getattr(sources, name).shape[1] != width:
                raise ValueError(
                    f"avatar {self._motion.avatar.info.id!r} has {name} of {getattr(sources, name).shape[1]} numbers, the "
                    f"model makes {width}: build the avatar again with this model"
                )

    def _tell(self) -> None:
        ctx = self._ctx
        if self._lost:
            ctx.warn(f"frames {self._lost}: the motion is no number, the avatar's own frame is shown")
        if self._cadence is None:
            return
        self._mix.tell(ctx.report)
        if warning := self._mix.never_spoke(self._loudest, self._cadence):
            ctx.warn(warning)


class _Plans:
    """Plans one by one, with a look at the next."""

    def __init__(self, plans: Iterator[FramePlan]) -> None:
        self._plans, self._next = plans, None
        self.next_frame = 0

    def peek(self) -> FramePlan:
        if self._next is None:
            self._next = next(self._plans)
        return self._next

    def take(self) -> FramePlan:
        plan, self._next = self.peek(), None
        self.next_frame += 1
        return plan
