"""Smoothing along time: against polynomials, direct sums and pieces of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkinghead.nodes.ditto.smooth import (
    RIGID,
    PoseSmoother,
    SavitzkyGolay,
    average_range,
    moving_average,
    smooth_pose,
    smooth_source,
)


def series(n: int, width: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def filtered(values: torch.Tensor, *sizes: int) -> torch.Tensor:
    smoother = SavitzkyGolay()
    pieces = values.split(list(sizes)) if sizes else [values]
    return torch.cat([*(smoother.feed(piece) for piece in pieces), smoother.finish()])


def test_inside_it_is_the_known_kernel():
    values = series(9)
    kernel = torch.tensor([-3.0, 12, 17, 12, -3]) / 35
    made = filtered(values)
    for i in range(2, 7):
        assert torch.allclose(made[i], (kernel[:, None] * values[i - 2 : i + 3]).sum(0), atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 20])
def test_ends_lie_on_the_fit_of_their_window(n):
    values = series(n)
    made = filtered(values)
    assert made.shape == values.shape
    window, order = min(5, n), min(2, n - 1)
    at = np.arange(window)
    for column in range(3):
        head = np.polyfit(at, values[:window, column].double().numpy(), order)
        tail = np.polyfit(at, values[-window:, column].double().numpy(), order)
        ends = range(2 if n > 4 else window)
        assert np.allclose(made[list(ends), column], np.polyval(head, list(ends)), atol=1e-5)
        assert np.allclose(made[-len(ends) :, column], np.polyval(tail, at[-len(ends) :]), atol=1e-5)


def test_quadratics_pass_and_noise_shrinks():
    t = torch.arange(30.0)[:, None]
    curve = 0.02 * t**2 - 0.3 * t + 1
    assert torch.allclose(filtered(curve), curve, atol=1e-4)
    noise = series(400, 1)
    jerk = [values.diff(n=3, dim=0).square().mean() for values in (noise, filtered(noise))]
    assert jerk[1] < 0.2 * jerk[0]


@pytest.mark.parametrize("sizes", [(1,) * 23, (4, 1, 0, 2, 16), (5, 18), (2, 2, 2, 17), (22, 1)])
def test_pieces_change_nothing(sizes):
    values = series(23)
    assert torch.equal(filtered(values, *sizes), filtered(values))


def test_settled_frames_come_two_behind():
    smoother = SavitzkyGolay()
    assert [len(smoother.feed(piece)) for piece in series(9).split(1)] == [0, 0, 0, 0, 3, 1, 1, 1, 1]
    assert len(smoother.finish()) == 2


@pytest.mark.parametrize(("window", "order"), [(4, 2), (1, 0), (5, 5), (5, -1)])
def test_windows_that_do_not_fit(window, order):
    with pytest.raises(ValueError, match="give an odd window of 3 or more"):
        SavitzkyGolay(window, order)


def test_finishing_nothing_is_an_error():
    with pytest.raises(ValueError, match="feed a series before finishing"):
        SavitzkyGolay().finish()
    assert len(filtered(series(0))) == 0


def test_only_the_rigid_pose_is_smoothed():
    motion = series(30, 265)
    made = smooth_pose(motion)
    assert torch.equal(made[:, 0], motion[:, 0])
    assert torch.equal(made[:, 202:], motion[:, 202:])
    assert torch.equal(made[:, RIGID], filtered(motion[:, RIGID]))
    assert (RIGID.start, RIGID.stop) == (1, 202)
    smoother = PoseSmoother()
    pieces = [smoother.feed(piece) for piece in motion.split([3, 1, 9, 17])]
    assert torch.equal(torch.cat([*pieces, smoother.finish()]), made)


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 13, 50])
def test_moving_average_is_the_mean_of_what_is_there(width):
    values = series(20)
    made, half = moving_average(values, width), width // 2 if width > 1 else 0
    for i in range(20):
        assert torch.allclose(made[i], values[max(0, i - half) : i + half + 1].mean(0), atol=1e-6)
    assert torch.equal(average_range(values, width, 7, 12), made[7:12])
    assert made is not values


def test_a_template_keeps_what_is_named():
    infos = {"exp": series(20, 63), "kp": series(20, 63, 1), "t": series(20, 3, 2)}
    made = smooth_source(infos, 13, skip=["kp"])
    assert torch.equal(made["kp"], infos["kp"])
    assert torch.equal(made["exp"], moving_average(infos["exp"], 13))
