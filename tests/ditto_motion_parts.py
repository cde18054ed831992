"""A Ditto motion network of toy size with random weights, and what conditions it: the real code in milliseconds."""

from __future__ import annotations

import torch

from talkinghead.nodes.ditto.audio2motion import MotionSampler, MotionStream, WindowScheme
from talkinghead.nodes.ditto.condition import Condition, FaceShape
from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.ditto.schedule import MotionNoise

SPEECH_WIDTH = 12
TINY = LMDMConfig(
    motion_dim=208,  # scale, pose and two key points
    cond_dim=SPEECH_WIDTH + 8 + 2 + 6 + 6,
    latent_dim=16,
    n_heads=2,
    ff_dim=16,
    n_layers=1,
    n_cond_layers=1,
)


def tiny_lmdm() -> LMDM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return LMDM(TINY).eval().requires_grad_(False)


def tiny_condition(**options) -> Condition:
    generator = torch.Generator().manual_seed(6)
    face = FaceShape(
        torch.rand(3, 2, generator=generator),
        torch.randn(3, 6, generator=generator),
        torch.randn(6, generator=generator),
    )
    return Condition(face, **options)


def speech(n_rows: int) -> torch.Tensor:
    return torch.randn(n_rows, SPEECH_WIDTH, generator=torch.Generator().manual_seed(7))


def tiny_stream(net: LMDM, scheme: WindowScheme, seed: int = 1, steps: int = 2, eta: float = 1.0, **options):
    """A stream over `net`; online ones get rows of silence."""
    noise = MotionNoise(seed, steps, eta, (TINY.window, TINY.motion_dim))
    silence = torch.zeros(scheme.warm_up, SPEECH_WIDTH) if scheme.online else None
    source = torch.linspace(-1, 1, TINY.motion_dim)
    return MotionStream(MotionSampler(net, noise), tiny_condition(), scheme, source, silence, **options)


def run_stream(stream: MotionStream, rows: torch.Tensor, step: int | None = None) -> torch.Tensor:
    """All of `rows`, `step` at a time."""
    made = [
        stream.feed(rows[i : i + (step or len(rows) or 1)])
        for i in range(0, len(rows), step or len(rows) or 1)
    ]
    return torch.cat([*made, stream.finish()])
