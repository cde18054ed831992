"""The sampler's coefficients at every step count, and where its random numbers come from."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from talkinghead.nodes.ditto.schedule import MotionNoise, alphas_cumprod, ddim_steps, sample, time_pairs


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_no_step_count_gives_nan_or_loses_variance(eta):
    """Upstream: NaN at 5 steps with torch, at 3 with numpy."""
    for steps in range(1, 101):
        made = ddim_steps(steps, eta)
        assert len(made) == steps
        for step in made[:-1]:
            assert math.isclose(step.drift**2 + step.sigma**2, 1 - step.signal**2, rel_tol=1e-12)
            assert math.isclose(step.of_x, step.drift * step.eps_x)
        assert (made[-1].signal, made[-1].drift, made[-1].sigma) == (1, 0, 0)
        assert all(math.isfinite(value) for step in made for value in vars(step).values())


def test_times_fall_from_the_last_to_the_clean_signal():
    for steps in (1, 2, 3, 7, 50, 999, 1000):
        pairs = time_pairs(steps)
        assert (pairs[0][0], pairs[-1][1], len(pairs)) == (999, -1, steps)
        assert all(a > b for a, b in pairs)
        assert [b for _, b in pairs[:-1]] == [a for a, _ in pairs[1:]]
        assert all(abs(a - (999 - i * 1000 / steps)) < 1 for i, (a, _) in enumerate(pairs))


@pytest.mark.parametrize("steps", [0, -1, 1001, 4.0, True, "4"])
def test_steps_out_of_range(steps):
    with pytest.raises(ValueError, match=r"sampling steps are not in 1\.\.1000; 4 is the default"):
        time_pairs(steps)


@pytest.mark.parametrize("eta", [-0.1, 1.1, float("nan"), None])
def test_eta_out_of_range(eta):
    with pytest.raises(ValueError, match=r"is outside 0\.\.1; 1 is upstream's sampler"):
        ddim_steps(4, eta)


def noisy(x0: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return torch.randn(x0.shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("steps", [1, 3, 5, 17])
def test_a_perfect_network_is_believed(steps, eta):
    wanted = torch.linspace(-2, 2, 12).reshape(2, 3, 2)
    times = []

    def denoise(x, time):
        assert time.shape == (2,)
        assert x.isfinite().all()
        times.append(int(time[0]))
        return wanted

    noise = MotionNoise(3, steps, eta, (3, 2))
    made = sample(denoise, noise.coefficients, noisy(wanted), noise.of_steps)
    assert torch.equal(made, wanted)
    assert times == [a for a, _ in time_pairs(steps)]


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_gaussian_keeps_its_spread(eta):
    """For data N(0, 0.5^2) the best x0 is known; in many steps both samplers must end with that spread."""
    left = torch.from_numpy(alphas_cumprod().copy()).float()

    def denoise(x, time):
        a = left[time.long()][:, None, None]
        return x * (a.sqrt() * 0.25 / (a * 0.25 + 1 - a))

    noise = MotionNoise(4, 500, eta, (100, 50))
    made = sample(denoise, noise.coefficients, noise.start(), noise.of_steps)
    assert made.std().item() == pytest.approx(0.5, rel=0.03)


def test_noise_is_local_and_follows_the_seed():
    torch.manual_seed(11)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    one, again, other = (MotionNoise(seed, 4, 1.0, (5, 3)) for seed in (9, 9, 10))
    starts = [one.start(), one.start()]
    assert torch.equal(starts[0], again.start())
    assert torch.equal(starts[1], again.start())
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], other.start())
    assert all(torch.equal(a, b) for a, b in zip(one.of_steps, again.of_steps, strict=True))
    assert len(one.of_steps) == 3
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 - 1, 2**64 + 5])
def test_any_whole_number_is_a_seed(seed):
    assert MotionNoise(seed, 2, 1.0, (2, 2)).start().isfinite().all()


def test_starts_without_eta_do_not_depend_on_the_step_count():
    few, many = MotionNoise(9, 4, 0.0, (5, 3)), MotionNoise(9, 50, 0.0, (5, 3))
    assert few.of_steps == many.of_steps == ()
    assert torch.equal(few.start(), many.start())


def test_missing_noise_is_named():
    with pytest.raises(ValueError, match="4 steps need 3 noises, got 2"):
        sample(lambda x, t: x, ddim_steps(4), torch.zeros(1, 2, 2), [torch.zeros(1, 2, 2)] * 2)
