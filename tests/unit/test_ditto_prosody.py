"""Prosody: pitch of known tones, strengths that follow voice and loudness, independence of the cut."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from talkinghead.nodes.ditto.prosody import Prosody, pitch_hz

FPS = Fraction(25)


def voice(hertz, seconds, level=0.1):
    """A pulse train, whose every harmonic is there: what an octave error would be made of."""
    t = np.arange(int(seconds * 16000)) / 16000
    phase = np.cumsum(np.broadcast_to(hertz, t.shape)) / 16000
    return (level * ((phase % 1) < 0.2) - level * 0.2).astype(np.float32)


@pytest.mark.parametrize("hertz", [75, 110, 160, 220, 330, 390])
def test_the_pitch_of_a_voice(hertz):
    assert pitch_hz(voice(hertz, 0.04)) == pytest.approx(hertz, rel=0.03)


def test_noise_and_silence_have_none():
    rng = np.random.default_rng(0)
    heard = [pitch_hz(rng.standard_normal(640).astype(np.float32)) for _ in range(50)]
    assert heard.count(None) == 50
    assert pitch_hz(np.zeros(640, np.float32)) is None
    assert pitch_hz(np.ones(100, np.float32)) is None


def heard(samples, step=None, fps=FPS, n=None):
    prosody = Prosody(fps)
    for i in range(0, len(samples), step or len(samples)):
        prosody.feed(samples[i : i + (step or len(samples))])
    n = n or -(-len(samples) * fps.numerator // (16000 * fps.denominator))
    prosody.finish(n)
    assert prosody.frames == n
    return np.array([[s.brow_raise, s.brow_furrow, s.squint] for s in map(prosody.at, range(n))])


@pytest.mark.parametrize("fps", [FPS, Fraction(30000, 1001), Fraction(240), Fraction(1)])
def test_the_cut_changes_nothing(fps):
    samples = voice(120 + 40 * np.sin(np.arange(48000) / 4000), 3)
    wanted = heard(samples, fps=fps)
    for step in (160, 999):
        assert np.array_equal(heard(samples, step, fps), wanted)


def test_a_raised_voice_raises_and_a_loud_low_one_draws_together():
    steady = heard(voice(140, 4))
    assert steady[50:].max() < 0.1
    up = heard(np.concatenate([voice(120, 3), voice(200, 0.6)]))
    assert up[85:, 0].max() > 0.5
    assert up[85:, 1].max() < 0.05
    low = heard(np.concatenate([voice(200, 3, 0.03), voice(120, 0.6, 0.3)]))
    assert low[85:, 1].max() > 0.3
    assert low[85:, 2].max() > 0.4
    assert low[85:, 0].max() < 0.05
    assert not heard(np.zeros(32000, np.float32)).any()


def test_strengths_stay_within_bounds_and_change_slowly():
    made = heard(np.concatenate([voice(90 + 60 * k, 0.4, 0.05 * (k + 1)) for k in range(5)]))
    assert made.min() >= 0
    assert made.max() <= 1
    assert np.abs(np.diff(made, axis=0)).max() < 0.25
