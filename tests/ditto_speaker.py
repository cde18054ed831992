"""A Ditto model of toy size with the official 21 key points, an avatar for it, and sound: what motion is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from ditto_parts import TINY

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.engine_spec import EngineIdentity
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.packet import AvatarInfo, AvatarPacket
from talkinghead.nodes.ditto.lmdm import LMDMConfig
from talkinghead.nodes.ditto.model import DittoModelConfig, DittoModules, build_modules
from talkinghead.nodes.ditto.speech_encoder import SpeechEncoderConfig

K = 21
WIDTH = 12
CONFIG = DittoModelConfig(
    "tiny speaker",
    replace(
        TINY,
        motion=replace(TINY.motion, n_keypoints=K),
        warp=replace(TINY.warp, n_keypoints=K, compressed_channels=1, hourglass_channels=(4, 4)),
        stitch=replace(TINY.stitch, n_keypoints=K),
    ),
    LMDMConfig(265, WIDTH + 16 + 3 * K, latent_dim=16, n_heads=2, ff_dim=16, n_layers=1, n_cond_layers=1),
    SpeechEncoderConfig(WIDTH, n_layers=1, n_heads=2, ff_dim=8, n_mels=20),
)


@cache
def modules() -> DittoModules:
    """Return the networks with seeded weights; the last layer gives logits with a peak, as trained ones do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        made = DittoModules(CONFIG)
    state = {k: v.clone() for k, v in made.state_dict().items()}
    return build_modules(CONFIG, state, "seeded")


@dataclass(frozen=True)
class SpeakerModel:
    """A handle on `modules()`."""

    name: str = "speaker"
    backend: str = "eager"
    hubert: Path | None = None
    config: DittoModelConfig = CONFIG

    @property
    def key(self) -> str:
        return self.name

    @property
    def engine_identity(self) -> EngineIdentity:
        return EngineIdentity()

    def build(self) -> DittoModules:
        return modules()


def poses(n: int = 1, seed: int = 3) -> dict[str, torch.Tensor]:
    """Return poses of `n` frames as a packet has them; logits have a peak a few bins from the middle."""
    g = torch.Generator().manual_seed(seed)
    bins = torch.arange(66.0)
    made = {
        name: -((bins - 32.5 - 2 * torch.randn(n, 1, generator=g)) ** 2) / 8
        for name in ("pitch", "yaw", "roll")
    }
    made |= {name: 0.05 * torch.randn(n, size, generator=g) for name, size in (("t", 3), ("exp", 3 * K))}
    made["kp"] = 0.3 * torch.randn(1, 3 * K, generator=g).expand(n, -1)
    made["scale"] = 1.4 + 0.01 * torch.randn(n, 1, generator=g)
    return made


class SpeakerContext(RunContext):
    """Gives avatars of this module: their readers are kept beside the packets."""

    @contextmanager
    def use_avatar(self, packet: AvatarPacket) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(packet=packet, reader=_READERS[packet.digest])


_READERS: dict[str, SimpleNamespace] = {}


def avatar(
    n: int = 1, fps: Fraction = Fraction(25), cycle: str | None = None, seed: int = 3, found=None
) -> AvatarPacket:
    """Return an avatar of `n` frames: a still for one, else a loop."""
    cycle = cycle or ("still" if n == 1 else "loop")
    digest = f"{n} {fps} {cycle} {seed} {found}"
    g = torch.Generator().manual_seed(seed)
    _READERS[digest] = SimpleNamespace(
        pose=poses(n, seed),
        eye_open=0.3 + 0.1 * torch.rand(n, 2, generator=g),
        eye_ball=torch.randn(n, 6, generator=g),
        found=torch.ones(n, dtype=torch.bool) if found is None else torch.tensor(found),
    )
    info = AvatarInfo("mia", "ditto", (64, 64), fps, n, cycle, {}, {})
    return AvatarPacket(Path("mia"), info, digest, {}, (1, 1, 1))


def sound(seconds: float | Fraction, rate: int = 16000, seed: int = 0) -> np.ndarray:
    """Return samples of a voice-like buzz with pauses."""
    n = round(Fraction(seconds) * rate)
    t = np.arange(n) / rate
    wave = np.sign(np.sin(2 * np.pi * (120 + 20 * np.sin(3 * t)) * t)) * (np.sin(4 * t) > -0.4) * 0.2
    return (wave + 0.001 * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def clip(seconds: float | Fraction, rate: int = 16000, seed: int = 0) -> MemoryAudio:
    return MemoryAudio(sound(seconds, rate, seed), rate)
