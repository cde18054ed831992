"""LMDM as engine stages: a whole window, or the condition once a window and one step of the diffusion.

A step is some 300 small kernels on 160 tokens; eager, their launches take longer than their work, so a card wants them
recorded, and fewer of them (`fast_motion`). Guidance, and the two passes it needs, lie inside the step. What compiles or
builds takes the step, which is the same for every number of steps; a recording takes the window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..core.engine_reopen import ReopeningEngine
from ..core.engine_spec import StageFunction, StageSpec, TensorSpec
from ..core.host_copy import upload
from .lmdm import LMDM
from .schedule import DDIMStep, MotionNoise, ddim_steps, sample

if TYPE_CHECKING:
    from ..core.engine import StageEngine
    from ..core.engine_shelf import StageMaker

CONDITION, STEP, WINDOW = "ditto condition", "ditto motion step", "ditto motion"


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

    def __init__(self, lmdm: LMDM) -> None:
        super().__init__()
        self.lmdm = lmdm

    @property
    def records_fast_form(self) -> bool:
        """On a card: an inductor build would take a minute for what a recorded graph of the fast form does at once."""
        return self.lmdm.weights_device.type == "cuda"

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


class WindowStage(nn.Module):
    """A window of the diffusion by `coefficients`.

    In: cond (B, window, cond_dim), cond_frame (B, motion_dim), start (B, window, motion_dim) and, where steps draw noise,
    noises (B, draws, window, motion_dim). Out: motion as start.
    """

    def __init__(self, lmdm: LMDM, coefficients: Sequence[DDIMStep]) -> None:
        super().__init__()
        self.lmdm, self.coefficients = lmdm, tuple(coefficients)

    @property
    def records_fast_form(self) -> bool:
        """As of a step; compiled code would unroll every step."""
        return self.lmdm.weights_device.type == "cuda"

    def forward(
        self, cond: Tensor, cond_frame: Tensor, start: Tensor, noises: Tensor | None = None
    ) -> dict[str, Tensor]:
        tokens, hidden = self.lmdm.encode(cond)

        def denoise(x: Tensor, time: Tensor) -> Tensor:
            return self.lmdm.denoise(x, cond_frame, tokens, hidden, time)

        drawn = () if noises is None else noises.unbind(1)
        return {"motion": sample(denoise, self.coefficients, start, drawn)}

    def fast_form(self) -> tuple[StageFunction | None, str | None]:
        """The same on stacked weights, for the cuda graph backend; see `fast_motion`. Never refused."""
        from .fast_motion import FastWindow

        fast = FastWindow(self.lmdm, self.coefficients)

        def stage(
            cond: Tensor, cond_frame: Tensor, start: Tensor, noises: Tensor | None = None
        ) -> dict[str, Tensor]:
            return {"motion": fast(cond, cond_frame, start, noises)}

        return stage, None


@lru_cache(maxsize=16)
def window_stage(steps: int, eta: float) -> Callable[[LMDM, torch.device], tuple[StageSpec, WindowStage]]:
    """Return what gives the stage of a window in `steps` steps: the same object for the same arguments."""
    coefficients = ddim_steps(steps, eta)
    draws = sum(step.sigma != 0 for step in coefficients)

    def stage(lmdm: LMDM, device: torch.device) -> tuple[StageSpec, WindowStage]:
        cfg = lmdm.config
        shape = (cfg.window, cfg.motion_dim)
        inputs = [
            TensorSpec("cond", (cfg.window, cfg.cond_dim), torch.float32),
            TensorSpec("cond_frame", (cfg.motion_dim,), torch.float32),
            TensorSpec("start", shape, torch.float32),
        ]
        if draws:
            inputs.append(TensorSpec("noises", (draws, *shape), torch.float32))
        name = f"{WINDOW}, {steps} steps, eta {eta:g}"
        outputs = (TensorSpec("motion", shape, torch.float32),)
        return StageSpec(name, tuple(inputs), outputs), WindowStage(lmdm, coefficients)

    return stage


class WindowSampler:
    """`audio2motion.MotionSampler` by one engine call a window.

    open_engine: opens the engine of `window_stage` for the noise's steps with one row a batch. noise: made for this motion
    alone. device: where the engine runs.
    """

    def __init__(
        self, open_engine: Callable[[], StageEngine], noise: MotionNoise, device: torch.device
    ) -> None:
        self._engine, self._noise, self._device = ReopeningEngine(open_engine), noise, device
        drawn = noise.of_steps
        self._noises = {"noises": upload(torch.stack(drawn, 1), device)} if drawn else {}

    @torch.inference_mode()
    def __call__(self, kp_cond: Tensor, cond: Tensor) -> Tensor:
        """Return the motion of a window, float32 (1, window, C) on the engine's device."""
        start = upload(self._noise.start(), self._device)
        given = {"cond": upload(cond, self._device), "cond_frame": upload(kp_cond, self._device)}
        return self._engine(**given, start=start, **self._noises)["motion"]
