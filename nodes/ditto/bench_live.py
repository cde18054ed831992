"""Ditto in the live bench: random weights of the official sizes, or the embedded model; speed depends on neither.

HuBERT exists only as a file: with size "full" a small encoder gives rows as wide in its place, and what HuBERT takes for the
two windows of a push comes on top of the time to the first frame.
"""

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
from ..core.packet import AvatarInfo, AvatarPacket, write_packet
from .audio2motion import WindowScheme
from .bake import tensor_shapes
from .bench_model import RANDOM, crop_of, made_modules
from .handle import DittoModel
from .hubert import ONLINE
from .model import DittoModelConfig, DittoModules
from .stream import stream_ditto


def run_live(options: LiveOptions, tell: Callable[[str], object] = lambda line: None) -> dict[str, object]:
    """Measure live rendering with Ditto; see `measure_live`."""
    return measure_live(DittoLive(), options, tell)


class DittoLive:
    """See `LiveEngine`."""

    facts = ("put back", "feature volumes", "motion", "speech encoder")

    def model(self, options: LiveOptions) -> DittoModel:
        given = {"precision": options.precision, "backend": options.backend}
        if options.size == "full":
            return _RandomModel(**given, device=str(options.device))
        return DittoModel(**given)

    def avatar(
        self, ctx: RunContext, model: DittoModel, folder: Path, frame: tuple[int, int]
    ) -> AvatarPacket:
        return noise_avatar(model, folder, frame)

    def stream(
        self,
        ctx: RunContext,
        model: DittoModel,
        avatar: AvatarPacket,
        audio: LiveAudio,
        options: LiveOptions,
        batch: int,
    ) -> Iterator[FrameChunk]:
        cadence = CadenceOptions(rest=options.rest)
        matrix = matrix_of(options)
        return stream_ditto(ctx, model, avatar, audio, FPS, batch=batch, matrix=matrix, cadence=cadence)

    def sound_needed(self, model: DittoModel, batch: int) -> int:
        """Frames come `valid` at a time, and need the rows of the next ones too."""
        scheme = WindowScheme.live()
        rows = -(-batch // scheme.valid) * scheme.valid + scheme.fuse
        windows = -(-rows // ONLINE.current)
        return ONLINE.window - ONLINE.lead + (windows - 1) * ONLINE.hop


def noise_avatar(
    model: DittoModel, folder: Path, frame: tuple[int, int], n: int = AVATAR_FRAMES
) -> AvatarPacket:
    """Write a loop of `n` noise pictures of width x height, with random volumes and heads that look ahead."""
    (width, height), rng = frame, np.random.default_rng(1)
    shapes = tensor_shapes(model.config, n)
    generator = torch.Generator().manual_seed(1)
    made = {
        name: 0.05 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
        if name not in ("f_s", "found", "c2o")
    }
    bins = torch.arange(shapes["yaw"][1], dtype=torch.float32)
    for name in ("pitch", "yaw", "roll"):
        made[name] = -((bins - (len(bins) - 1) / 2).square() / 8).expand(shapes[name]).contiguous()
    made["scale"] += 1.4
    made["kp"] = 0.3 * torch.randn(shapes["kp"][1], generator=generator).expand(shapes["kp"]).contiguous()
    made["f_s"] = torch.randn(shapes["f_s"], generator=generator).half()
    made["found"] = torch.ones(n, dtype=torch.bool)
    made["c2o"] = torch.from_numpy(crop_of(frame)).float().repeat(n, 1, 1)
    picture = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    frames = torch.from_numpy(np.stack([np.roll(picture, k, axis=1) for k in range(n)]))
    weights = {"name": "bench", "sha256": model.identity}
    info = AvatarInfo("bench", "ditto", frame, FPS, n, "loop", weights, {"name": "noise"})
    return write_packet(
        folder, info, {"frames.safetensors": {"frames": frames}, "features.safetensors": made}
    )


@dataclass(frozen=True)
class _RandomModel(DittoModel):
    """The official sizes with random weights, made on `device`."""

    device: str = "cpu"

    @property
    def key(self) -> tuple[str, ...]:
        return ("ditto", "random", self.precision)

    @cached_property
    def config(self) -> DittoModelConfig:
        return RANDOM

    @property
    def identity(self) -> str:
        return "0" * 64

    @property
    def engine_identity(self) -> EngineIdentity:
        return EngineIdentity(self.precision, self.config.to_dict())

    def build(self) -> DittoModules:
        dtype = torch.float32 if self.precision == "fp32" else torch.float16
        return made_modules("full", torch.device(self.device), dtype)
