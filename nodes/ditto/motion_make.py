"""The motion of a recipe at 25 fps: from what was kept of it, or by the diffusion, window by window."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.checkpoints import stamp
from ..core.frames import RunContext
from ..core.overlap import ahead
from .audio2motion import MotionSampler, MotionStream
from .condition import Condition, FaceShape
from .emotion import emotion_weights
from .geometry import pack_motion
from .hubert import FPS
from .motion import MotionOutput
from .motion_cache import MOTIONS
from .motion_engine import MotionEngines, condition_stage, step_stage
from .posing import pick
from .schedule import MotionNoise
from .smooth import PoseSmoother

if TYPE_CHECKING:
    from ..core.engine import StageEngine
    from ..core.engine_shelf import StageMaker
    from ..core.engine_spec import StageFunction, StageSpec
    from ..core.packet_read import PacketReader
    from .model import DittoModules
    from .motion_plan import Motion
    from .speech import Listener

_ROWS_AHEAD = 32
"""Pieces of speech that are ready before the diffusion asks: 5 rows each of HuBERT, 80 of the embedded encoder."""
_KEPT_PIECE = 256
"""Frames of kept motion that are handed on at a time."""


class MotionMaker:
    """Makes the motion vectors of one run, on the CPU.

    Args:
        sources: poses of all frames of the avatar, angles as logits, on the CPU.
        reader: the avatar, open; its eyes are copied.
        listeners: live only: fed with the sound.
    """

    def __init__(
        self,
        ctx: RunContext,
        motion: Motion,
        sources: MotionOutput,
        reader: PacketReader,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._ctx, self._motion, self._listeners = ctx, motion, listeners
        self._first = pick(sources, torch.zeros(1, dtype=torch.int64))
        self._face = FaceShape(reader.eye_open.clone(), reader.eye_ball.clone(), self._first.kp)
        self.reference: Tensor | None = None
        """(C,), what movement is relative to; there when the first frames are."""

    def pieces(self) -> Generator[Tensor | None, None, None]:
        """Yield the motion (k, C) of the frames in order, smoothed if the recipe says so. None before a wait for sound."""
        smooth = self._motion.smooth
        with closing(self._raw()) as raw:
            for piece in raw if smooth is None else _smoothed(raw, PoseSmoother(*smooth)):
                if piece is not None and self.reference is None and len(piece):
                    self.reference = piece[0].clone()
                yield piece

    def _raw(self) -> Generator[Tensor | None, None, None]:
        ctx, options = self._ctx, self._motion.options
        how = f"{options.steps} steps, eta {options.eta:g}, seed {options.seed}"
        if self._motion.is_live:
            ctx.report.fact("motion", f"made live: {how}")
            yield from self._made()
            return
        known, audio = self._known(), self._motion.speech.audio
        kept = MOTIONS.get((known, audio.fingerprint())) if MOTIONS.may_have(known) else None
        if kept is not None:
            ctx.report.fact("motion", f"kept from before: {how}")
            yield from kept.split(_KEPT_PIECE)
            return
        ctx.report.fact("motion", f"made: {how}")
        yield from MOTIONS.recorded(self._made(), lambda: (known, audio.fingerprint()))

    def _known(self) -> str:
        """Return what names this motion but for the content of its sound: all else that its numbers depend on."""
        motion = self._motion
        hubert, audio = motion.model.hubert, motion.speech.audio
        parts = (
            (audio.n_samples, audio.sample_rate),
            motion.model.key,
            None if hubert is None else stamp(hubert),
            motion.model.backend,
            self._ctx.device.type,
            motion.avatar.digest,
            motion.options,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _made(self) -> Generator[Tensor | None, None, None]:
        ctx, motion = self._ctx, self._motion
        scheme = motion.options.scheme(motion.is_live)
        make = partial(motion.speech.rows, ctx, scheme.warm_up, self._listeners)
        with closing(ahead(ctx, make, _ROWS_AHEAD, "Speech features")) as rows:
            silence = next(rows) if scheme.online else None
            with ctx.report.timed("motion"):
                stream = self._stream(silence)
            for piece in rows:
                if piece is None:
                    yield None
                    continue
                ctx.check_cancelled()
                with ctx.report.timed("motion"):
                    made = stream.feed(piece)
                    self._refer(stream)
                if len(made):
                    yield made
            with ctx.report.timed("motion"):
                made = stream.finish()
                self._refer(stream)
            if len(made):
                yield made

    def _refer(self, stream: MotionStream) -> None:
        # Of a file it is the first frame, which may still be smoothed; live it lies in the warm-up.
        if self._motion.is_live and self.reference is None and stream.reference is not None:
            self.reference = stream.reference[0]

    def _stream(self, silence: Tensor | None) -> MotionStream:
        ctx, motion, options = self._ctx, self._motion, self._motion.options
        config = motion.model.config.lmdm
        noise = MotionNoise(options.seed, options.steps, options.eta, (config.window, config.motion_dim))
        network = MotionEngines(self._engine, ctx.device)
        condition = Condition(
            self._face,
            emotion_weights(options.emotion),
            options.fixed_eyes,
            self._eyes_at,
            hold_emotion=True,
        )
        scheme = options.scheme(motion.is_live)
        return MotionStream(
            MotionSampler(network, noise), condition, scheme, pack_motion(self._first), silence
        )

    def _eyes_at(self, first: int, count: int):
        return self._motion.avatar.avatar_indices(first, count, FPS)

    def _engine(self, stage: StageMaker) -> StageEngine:
        return self._ctx.engine(self._motion.model, _OF_MODEL[stage], 1)


def _smoothed(pieces: Iterator[Tensor | None], smoother: PoseSmoother) -> Iterator[Tensor | None]:
    fed = False
    for piece in pieces:
        if piece is None:
            yield None
        elif len(made := smoother.feed(piece)):
            yield made
        fed |= piece is not None
    if fed and len(made := smoother.finish()):
        yield made


def _condition(modules: DittoModules, device: torch.device) -> tuple[StageSpec, StageFunction]:
    return condition_stage(modules.lmdm, device)


def _step(modules: DittoModules, device: torch.device) -> tuple[StageSpec, StageFunction]:
    return step_stage(modules.lmdm, device)


_OF_MODEL = {condition_stage: _condition, step_stage: _step}
"""Stages of the diffusion network -> the same of the whole model, which is what a run loads."""
