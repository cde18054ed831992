"""MuseTalk in the live bench: random weights of the official sizes, or the embedded model; speed depends on neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ..core.bench_live import AVATAR_FRAMES, FPS, LiveOptions, matrix_of, measure_live
from ..core.cadence import CadenceOptions
from ..core.engine_spec import EngineIdentity
from ..core.frames import FrameChunk, RunContext
from ..core.live_audio import LiveAudio
from ..core.packet import AvatarPacket
from .bake import build_avatar
from .bench_engines import made_nets
from .config import OFFICIAL, MuseTalkConfig
from .handle import MuseTalkModel
from .live_speech import sound_needed
from .model import MuseTalkNets
from .stream import stream_musetalk


def run_live(options: LiveOptions, tell: Callable[[str], object] = lambda line: None) -> dict[str, object]:
    """Measure live rendering with MuseTalk; see `measure_live`."""
    return measure_live(MuseTalkLive(), options, tell)


class MuseTalkLive:
    """See `LiveEngine`."""

    facts = ("composite",)

    def model(self, options: LiveOptions) -> MuseTalkModel:
        given = {"precision": options.precision, "backend": options.backend}
        if options.size == "full":
            return _RandomModel(**given, device=str(options.device))
        return MuseTalkModel(**given)

    def avatar(
        self, ctx: RunContext, model: MuseTalkModel, folder: Path, frame: tuple[int, int]
    ) -> AvatarPacket:
        """Noise pictures with a face box two fifths as wide."""
        width, height = frame
        picture = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
        frames = np.stack([np.roll(picture, k, axis=1) for k in range(AVATAR_FRAMES)])
        side = min(width, height) * 2 // 5
        x, y = (width - side) // 2, (height - side) // 3
        boxes = [(x, y, x + side, y + side * 5 // 4)] * AVATAR_FRAMES
        return build_avatar(ctx, model, frames, boxes, folder, "bench", FPS, "loop")

    def stream(
        self,
        ctx: RunContext,
        model: MuseTalkModel,
        avatar: AvatarPacket,
        audio: LiveAudio,
        options: LiveOptions,
        batch: int,
    ) -> Iterator[FrameChunk]:
        cadence = CadenceOptions(rest=options.rest)
        matrix = matrix_of(options)
        return stream_musetalk(ctx, model, avatar, audio, FPS, batch=batch, matrix=matrix, cadence=cadence)

    def sound_needed(self, model: MuseTalkModel, batch: int) -> int:
        return sound_needed(model, batch, FPS)


@dataclass(frozen=True)
class _RandomModel(MuseTalkModel):
    """The official sizes with random weights, made on `device`."""

    device: str = "cpu"

    @property
    def key(self) -> tuple[str, ...]:
        return ("musetalk", "random", self.precision)

    @cached_property
    def config(self) -> MuseTalkConfig:
        return OFFICIAL

    @property
    def identity(self) -> str:
        return "0" * 64

    @property
    def engine_identity(self) -> EngineIdentity:
        return EngineIdentity(self.precision, self.config.to_dict())

    def build(self) -> MuseTalkNets:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            nets = made_nets("full", torch.device(self.device))
        nets.wants_fp8 = self.precision == "fp8"
        return nets.to(torch.float32 if self.precision == "fp32" else torch.float16)
