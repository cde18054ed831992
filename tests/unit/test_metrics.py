"""Metrics on pictures whose values can be worked out by hand."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from media import Clip, numbered_frame, sine

from talkinghead.nodes.core import metrics


def clip(n=4, width=64, height=48):
    return np.stack([numbered_frame(width, height, i) for i in range(n)])


def test_equal_videos_are_perfect():
    a = clip()
    value = metrics.psnr(a, a)
    assert value.mean == value.pooled == float("inf")
    assert metrics.ssim(a, a) == pytest.approx(1)
    assert metrics.flicker(a, a) == 0
    assert metrics.seam_gradient(a, a, (10, 10, 40, 40)) == pytest.approx(1)
    assert metrics.tone_difference(a, a, (10, 10, 40, 40)) == 0
    assert metrics.correlation([1, 2, 5], [1, 2, 5]) == pytest.approx(1)


def test_psnr_by_hand_and_pooled_is_lower_than_the_mean():
    a = np.zeros((2, 8, 8, 3), np.uint8)
    b = a.copy()
    b[0] += 1  # MSE 1: 48.13 dB
    b[1] += 16  # MSE 256: 24.05 dB
    value = metrics.psnr(a, b)
    assert value.frames == pytest.approx((48.1308, 24.0484), abs=1e-3)
    assert value.mean == pytest.approx(36.0896, abs=1e-3)
    assert value.pooled == pytest.approx(10 * np.log10(255**2 / 128.5), abs=1e-6)
    assert metrics.psnr(torch.from_numpy(a), torch.from_numpy(b)) == value
    assert metrics.psnr(a[0], b[0]).mean == pytest.approx(48.1308, abs=1e-3)


def test_a_box_sees_only_its_inside():
    a = clip()
    b = a.copy()
    b[:, 20:30, 20:30] = 255 - b[:, 20:30, 20:30]
    assert metrics.psnr(a, b, (0, 0, 20, 48)).mean == float("inf")
    assert metrics.psnr(a, b, (20, 20, 30, 30)).mean < 15
    assert metrics.ssim(a, b, (34, 0, 64, 48)) == pytest.approx(1)


def test_ssim_falls_with_noise_and_blur_and_follows_the_published_formula():
    rng = np.random.default_rng(0)
    a = clip(1)
    noise = np.clip(a + rng.normal(0, 20, a.shape), 0, 255).astype(np.uint8)
    more = np.clip(a + rng.normal(0, 60, a.shape), 0, 255).astype(np.uint8)
    assert 1 > metrics.ssim(a, noise) > metrics.ssim(a, more) > 0
    flat, brighter = np.full((1, 32, 32, 3), 100, np.uint8), np.full((1, 32, 32, 3), 120, np.uint8)
    c1 = (0.01 * 255) ** 2
    assert metrics.ssim(flat, brighter) == pytest.approx(
        (2 * 100 * 120 + c1) / (100**2 + 120**2 + c1), abs=1e-5
    )


def test_ssim_agrees_with_plain_numpy():
    """The window sum of the paper, pixel by pixel."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (1, 16, 17, 3), np.uint8) for _ in range(2))
    t = np.arange(11) - 5
    g = np.exp(-(t**2) / (2 * 1.5**2))
    w = np.outer(g, g) / g.sum() ** 2
    x, y = (f[0].astype(np.float64) @ metrics.LUMA.astype(np.float64) for f in (a, b))
    values = []
    for i in range(6):
        for j in range(7):
            p, q = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
            mp, mq = (w * p).sum(), (w * q).sum()
            vp, vq, cov = (w * p * p).sum() - mp**2, (w * q * q).sum() - mq**2, (w * p * q).sum() - mp * mq
            c1, c2 = 2.55**2, 7.65**2
            values.append((2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    assert metrics.ssim(a, b) == pytest.approx(np.mean(values), abs=1e-5)


def test_flicker_is_the_added_trembling():
    still = np.full((6, 8, 8, 3), 100, np.uint8)
    trembling = still.copy()
    trembling[::2] += 6
    assert metrics.flicker(trembling, still) == pytest.approx(6)
    assert metrics.flicker(still, trembling) == pytest.approx(-6)
    assert metrics.flicker(still[:1], still[:1]) == 0
    assert metrics.flicker(trembling, still, (0, 0, 4, 4)) == pytest.approx(6)


def ramp():
    """A gradient of 2 levels a pixel in both directions: every border has a step of 2."""
    y, x = np.mgrid[0:40, 0:50]
    return np.repeat((2 * (x + y))[None, ..., None], 3, axis=3).astype(np.uint8)


def test_a_seam_shows_in_the_gradient_and_a_tint_in_the_tone():
    reference = ramp()
    box = (10, 10, 30, 30)
    pasted = reference.copy()
    pasted[:, 10:30, 10:30] += 20
    # top and left become 22, bottom and right 18: mean 20 against 2
    assert metrics.seam_gradient(pasted, reference, box) == pytest.approx(10, rel=1e-3)
    assert metrics.tone_difference(pasted, reference, box) == pytest.approx(20)
    red = reference.copy()
    red[:, 10:30, 10:30, 0] += 6
    assert metrics.tone_difference(red, reference, box) == pytest.approx(6)
    assert metrics.seam_gradient(pasted, reference, (12, 12, 28, 28)) == pytest.approx(1, rel=1e-3)


def test_a_seam_on_the_frames_edge_is_left_out():
    reference = ramp()
    pasted = reference.copy()
    pasted[:, 20:, :] += 20
    assert metrics.seam_gradient(pasted, reference, (0, 20, 50, 40)) == pytest.approx(11, rel=1e-3)
    with pytest.raises(ValueError, match="no border"):
        metrics.seam_gradient(pasted, reference, (0, 0, 50, 40))


def test_aperture_counts_the_dark_mouth():
    frames = np.full((3, 40, 40, 3), 180, np.uint8)
    for i, opening in enumerate((0, 3, 8)):
        frames[i, 20 : 20 + opening, 10:30] = (60, 20, 25)
    assert metrics.aperture(frames, (5, 10, 35, 35)).tolist() == [0, 60, 160]
    assert metrics.aperture(frames, (5, 10, 35, 22)).tolist() == [0, 40, 40]
    assert metrics.aperture(frames, (5, 10, 35, 35), dark=20).tolist() == [0, 0, 0]
    assert metrics.correlation(metrics.aperture(frames, (5, 10, 35, 35)), [0, 3, 8]) == pytest.approx(1)


def test_correlation():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=50), rng.normal(size=50)
    assert metrics.correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert metrics.correlation(a, -a) == pytest.approx(-1)
    assert metrics.correlation(a, np.ones(50)) == 0
    with pytest.raises(ValueError, match="equal length"):
        metrics.correlation(a, b[:-1])


@pytest.mark.parametrize(("seconds", "frames"), [(1.0, 0), (0.8, 5), (1.4, -10)])
def test_av_difference_reads_both_lengths(tmp_path, seconds, frames):
    path = Clip(n_frames=25, sound=sine(seconds)).write(tmp_path / "a.mp4")
    lengths = metrics.av_difference(path)
    assert lengths.n_frames == 25
    assert lengths.video == 1
    assert lengths.audio == Fraction(str(seconds))
    assert lengths.frames_apart == pytest.approx(frames)


def test_av_difference_needs_both_tracks(tmp_path):
    with pytest.raises(ValueError, match="audio track"):
        metrics.av_difference(Clip(n_frames=3).write(tmp_path / "a.mp4"))


def test_wrong_input_says_what_is_wrong():
    a = clip()
    with pytest.raises(ValueError, match="unequal shape"):
        metrics.psnr(a, a[:-1])
    with pytest.raises(ValueError, match="64x48"):
        metrics.psnr(a, a, (0, 0, 65, 48))
    with pytest.raises(ValueError, match="11x11"):
        metrics.ssim(a, a, (0, 0, 10, 20))
    with pytest.raises(ValueError, match=r"\(n,H,W,3\)"):
        metrics.aperture(np.zeros((4, 4)), (0, 0, 2, 2))
