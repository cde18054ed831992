"""How far a motion of few sampling steps lies from one of many, from the same noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.engine_spec import compare
from .audio2motion import MotionNetwork, MotionSampler, MotionStream, WindowScheme
from .condition import Condition
from .schedule import MotionNoise


@dataclass(frozen=True)
class StepAgreement:
    """cosine of all numbers as one vector, mse of their differences; `few` steps against `many`."""

    few: int
    many: int
    cosine: float
    mse: float

    def __str__(self) -> str:
        return f"{self.few} steps against {self.many}: cosine {self.cosine:.4f}, MSE {self.mse:.3g}"


def step_agreement(
    network: MotionNetwork,
    condition: Condition,
    source: Tensor,
    speech: Tensor,
    few: int = 4,
    many: int = 50,
    seed: int = 0,
) -> StepAgreement:
    """Compare two motions of the same speech that differ in their step count alone.

    Both are sampled with eta 0: with eta 1 the count also decides how much noise is drawn on the way, and there is no such
    thing as the same noise.

    Args:
        network: LMDM or its engines. condition, source: as of `MotionStream`, offline.
        speech: rows (n, width), one or more.
        few, many: step counts. seed: of the windows' starts.
    """
    made = []
    for steps in (few, many):
        noise = MotionNoise(seed, steps, 0.0, (WindowScheme().window, source.numel()))
        stream = MotionStream(MotionSampler(network, noise), condition, WindowScheme(), source)
        made.append(torch.cat([stream.feed(speech), stream.finish()]).double().cpu())
    likeness = compare(*made)
    return StepAgreement(few, many, likeness.cosine, float((made[0] - made[1]).square().mean()))
