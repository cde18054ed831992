"""LMDM as two engine stages: the condition once a window, and one step of the diffusion.

A step is some 300 small kernels on 160 tokens; eager, their launches take longer than their work, so a card wants them
recorded, and fewer of them (`fast_motion`). Guidance, and the two passes it needs, lie inside the step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..core.engine_reopen import ReopeningEngine
from ..core.engine_spec import StageFunction, StageSpec, TensorSpec
from .lmdm import LMDM

if TYPE_CHECKING:
    from ..core.engine import StageEngine
    from ..core.engine_shelf import StageMaker

CONDITION, STEP = "ditto condition", "ditto motion step"


class ConditionStage(nn.Module):
    """In: cond (B, window, cond_dim). Out: tokens (B, 2, window, latent_dim) and hidden (B, 2, latent_dim)."""

    def __init__(self, lmdm: LMDM) -> None:
        super().__init__()
        self.lmdm = lmdm

    def forward(self, cond: Tensor) -> dict[str, Tensor]:
        tokens, hidden = self.lmdm.encode(cond)
        return {"tokens": tokens, "hidden": hidden}


class StepStage(nn.Module):
    """In: x (B, window, motion_dim), cond_frame (B, motion_dim), tokens, hidden, time (B,) float32. Out: x0 as x."""

    records_fast_form = True
    """An inductor build would take a minute for what a recorded graph of the fast form does at once."""

    def __init__(self, lmdm: LMDM) -> None:
        super().__init__()
        self.lmdm = lmdm

    def forward(
        self, x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor
    ) -> dict[str, Tensor]:
        return {"x0": self.lmdm.denoise(x, cond_frame, tokens, hidden, time)}

    def fast_form(self) -> tuple[StageFunction | None, str | None]:
        """The same on stacked weights, for the cuda graph backend; see `fast_motion`. Never refused."""
        from .fast_motion import FastStep

        fast = FastStep(self.lmdm)

        def stage(
            x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor
        ) -> dict[str, Tensor]:
            return {"x0": fast(x, cond_frame, tokens, hidden, time)}

        return stage, None


def condition_stage(lmdm: LMDM, device: torch.device) -> tuple[StageSpec, ConditionStage]:
    """Return what an engine of the first stage needs of `lmdm`, which lies on `device`."""
    cfg = lmdm.config
    cond = TensorSpec("cond", (cfg.window, cfg.cond_dim), torch.float32)
    return StageSpec(CONDITION, (cond,), _shared(lmdm)), ConditionStage(lmdm)


def step_stage(lmdm: LMDM, device: torch.device) -> tuple[StageSpec, StepStage]:
    """Return what an engine of the second stage needs of `lmdm`, which lies on `device`."""
    cfg = lmdm.config
    inputs = (
        TensorSpec("x", (cfg.window, cfg.motion_dim), torch.float32),
        TensorSpec("cond_frame", (cfg.motion_dim,), torch.float32),
        *_shared(lmdm),
        TensorSpec("time", (), torch.float32),
    )
    outputs = (TensorSpec("x0", (cfg.window, cfg.motion_dim), torch.float32),)
    return StageSpec(STEP, inputs, outputs), StepStage(lmdm)


def _shared(lmdm: LMDM) -> tuple[TensorSpec, ...]:
    cfg = lmdm.config
    return (
        TensorSpec("tokens", (2, cfg.window, cfg.latent_dim), torch.float32),
        TensorSpec("hidden", (2, cfg.latent_dim), torch.float32),
    )


class MotionEngines:
    """Engines in the place of LMDM, as `MotionSampler` wants it.

    Args:
        open_stage: opens the engine of `condition_stage` or `step_stage` with one row a batch; asked again when an engine
            was closed because its memory was wanted.
        device: where the engines run.
    """

    def __init__(self, open_stage: Callable[[StageMaker], StageEngine], device: torch.device) -> None:
        self._open, self.weights_device = open_stage, device
        self._engines: dict[StageMaker, ReopeningEngine] = {}

    def encode(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """As `LMDM.encode`."""
        made = self._engine(condition_stage)(cond=cond)
        return made["tokens"], made["hidden"]

    def denoise(self, x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor) -> Tensor:
        """As `LMDM.denoise`; time float32."""
        step = self._engine(step_stage)
        return step(x=x, cond_frame=cond_frame, tokens=tokens, hidden=hidden, time=time)["x0"]

    def _engine(self, stage: StageMaker) -> ReopeningEngine:
        if stage not in self._engines:
            self._engines[stage] = ReopeningEngine(partial(self._open, stage))
        return self._engines[stage]
