"""Noise schedule of the motion diffusion and its DDIM sampler, the coefficients in float64.

T = 1000 training steps, cosine betas with offset 0.008, clipped at 0.999 (Nichol and Dhariwal 2021, eq. 17). Sampling
visits n of them (Song et al. 2021, eq. 12 and 16): eta 1 is upstream's, with its noise drawn once and used in every
clip; eta 0 is deterministic after the first noise. The model predicts x0. Source: spec/ditto.md section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

TRAIN_STEPS = 1000
DEFAULT_STEPS = 4
_OFFSET = 0.008
_MAX_BETA = 0.999

Denoise = Callable[[Tensor, Tensor], Tensor]
"""x (B, T, C) and the time (B,) float32, both on the device -> x0 (B, T, C)."""


@lru_cache(maxsize=1)
def cosine_betas() -> np.ndarray:
    """Return the betas of the training steps, float64 (1000,), read-only."""
    at = np.arange(TRAIN_STEPS + 1, dtype=np.float64) / TRAIN_STEPS
    level = np.cos((at + _OFFSET) / (1 + _OFFSET) * math.pi / 2) ** 2
    betas = np.clip(1 - level[1:] / level[:-1], 0, _MAX_BETA)
    betas.flags.writeable = False
    return betas


@lru_cache(maxsize=1)
def alphas_cumprod() -> np.ndarray:
    """Return the share of signal variance left at each training step, float64 (1000,), read-only."""
    left = np.cumprod(1 - cosine_betas())
    left.flags.writeable = False
    return left


def official_noise_factors() -> tuple[Tensor, Tensor]:
    """Return what upstream's graph multiplies x and divides x0 by for `pred_noise`: float32 (1000,) each.

    sqrt(1 / (1 - a)) and sqrt(1 / a - 1), with a multiplied up in float32 as upstream does: at time 0 that is 3e-4 off
    the exact value. The sampler here uses the exact ones.
    """
    left = torch.cumprod(1 - torch.from_numpy(cosine_betas().astype(np.float32)), dim=0)
    return (1 / (1 - left)).sqrt(), (1 / left - 1).sqrt()


def time_pairs(steps: int) -> tuple[tuple[int, int], ...]:
    """Return (from, to) of each of `steps` sampling steps, 999 first; the last goes to -1, the clean signal.

    Upstream truncates linspace(-1, 999, steps + 1); whole numbers give the same for 1..1000.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= TRAIN_STEPS:
        raise ValueError(
            f"{steps!r} sampling steps are not in 1..{TRAIN_STEPS}; {DEFAULT_STEPS} is the default"
        )
    times = [i * TRAIN_STEPS // steps - 1 for i in range(steps, -1, -1)]
    return tuple(zip(times[:-1], times[1:], strict=True))


@dataclass(frozen=True)
class DDIMStep:
    """x <- signal * x0 + drift * eps + sigma * noise, with eps = eps_x * x - eps_x0 * x0, at time `time`."""

    time: int
    signal: float
    drift: float
    sigma: float
    eps_x: float
    eps_x0: float

    @property
    def of_x(self) -> float:
        """Factor of x when eps is put in."""
        return self.drift * self.eps_x

    @property
    def of_x0(self) -> float:
        """Factor of x0 when eps is put in."""
        return self.signal - self.drift * self.eps_x0


def ddim_steps(steps: int, eta: float = 1.0) -> tuple[DDIMStep, ...]:
    """Return the coefficients of every sampling step; the last yields x0 itself.

    Args:
        steps: how many, 1..1000.
        eta: share of the noise that is drawn anew at each step, 0 (none) to 1 (upstream).

    Raises:
        ValueError: out of range.
    """
    if not isinstance(eta, (int, float)) or not 0 <= eta <= 1:
        raise ValueError(f"eta {eta!r} is outside 0..1; 1 is upstream's sampler, 0 the deterministic one")
    left = alphas_cumprod()
    made = []
    for time, after in time_pairs(steps):
        a = float(left[time])
        eps_x, eps_x0 = 1 / math.sqrt(1 - a), math.sqrt(a / (1 - a))
        if after < 0:
            made.append(DDIMStep(time, 1.0, 0.0, 0.0, eps_x, eps_x0))
            break
        b = float(left[after])
        sigma = eta * math.sqrt((1 - a / b) * (1 - b) / (1 - a))
        # 1 - b - sigma^2 with its parts in closed form: the difference itself is rounding noise for the first step of
        # eta 1, of either sign, and its root was NaN upstream for 5 steps (torch) and 3 (numpy).
        rest = (1 - eta**2) * (1 - b) + eta**2 * (1 - b) ** 2 * (a / b) / (1 - a)
        made.append(DDIMStep(time, math.sqrt(b), math.sqrt(rest), sigma, eps_x, eps_x0))
    return tuple(made)


class MotionNoise:
    """All the random numbers of one motion: the noise of the steps, drawn once, and a start for each clip.

    They come from one generator on the CPU, in upstream's order, so a seed means the same on every device and the
    global generators are left as they are. With eta 0 only starts are drawn: they do not depend on the step count.

    Args:
        seed: any whole number.
        steps, eta: of the sampler.
        shape: (frames, channels) of a clip.
    """

    def __init__(self, seed: int, steps: int, eta: float, shape: tuple[int, int]) -> None:
        self.coefficients = ddim_steps(steps, eta)
        self._shape = (1, *shape)
        self._generator = torch.Generator().manual_seed(seed % (1 << 64))
        self.of_steps = tuple(self._draw() for _ in range(steps - 1)) if eta else ()

    def start(self) -> Tensor:
        """Return the noise that the next clip starts from, float32 (1, frames, channels) on the CPU."""
        return self._draw()

    def _draw(self) -> Tensor:
        return torch.randn(self._shape, generator=self._generator)


def sample(
    denoise: Denoise,
    coefficients: Sequence[DDIMStep],
    x: Tensor,
    noises: Sequence[Tensor],
    times: Tensor | None = None,
) -> Tensor:
    """Run DDIM.

    Args:
        denoise: predicts x0.
        coefficients: of `ddim_steps`.
        x: noise to start from, (B, T, C), on the device.
        noises: one (1 or B, T, C) for each step but the last, on the device; empty where every sigma is 0.
        times: `step_times` of the coefficients on the device; made here if not given.

    Returns:
        x0 of the last step, (B, T, C).

    Raises:
        ValueError: another number of noises.
    """
    draws = sum(step.sigma != 0 for step in coefficients)
    if len(noises) < draws:
        raise ValueError(
            f"{len(coefficients)} steps need {draws} noises, got {len(noises)}: draw one for each but the last"
        )
    times = step_times(coefficients, x.device) if times is None else times
    for i, step in enumerate(coefficients):
        x0 = denoise(x, times[i].expand(len(x)))
        if i == len(coefficients) - 1:
            break
        x = x0 * step.of_x0 + x * step.of_x
        if step.sigma:
            x = x + noises[i] * step.sigma
    return x0


def step_times(coefficients: Sequence[DDIMStep], device: torch.device | str) -> Tensor:
    """Return the time of every step, float32 (n,)."""
    return torch.tensor([float(step.time) for step in coefficients], device=device)
