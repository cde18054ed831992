"""Loudness of every frame: of its own samples, however and whenever they come."""

from fractions import Fraction

import numpy as np
import pytest

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.loudness import LiveLoudness, frame_rms
from talkinghead.nodes.core.timeline import frame_count, frame_to_sample, parse_fps


@pytest.mark.parametrize("fps", ["25", "29.97", "60", "1"])
def test_loudness_is_that_of_the_frames_own_samples_however_the_sound_is_cut(fps):
    fps = parse_fps(fps)
    samples = np.random.default_rng(1).normal(0, 0.1, 40001).astype(np.float32)
    n = MemoryAudio(samples, 16000).seconds * fps
    n = -(-n.numerator // n.denominator)
    cuts = [frame_to_sample(i, 16000, fps) for i in range(n + 1)]
    expected = [
        np.sqrt(np.mean(samples[a:b].astype(np.float64) ** 2)) for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    whole = list(frame_rms([samples], fps, n))
    assert whole == pytest.approx(expected, rel=1e-12)
    for size in (1, 7, 640, 5000):
        blocks = [samples[i : i + size] for i in range(0, len(samples), size)]
        assert list(frame_rms(blocks, fps, n)) == whole
        assert list(frame_rms(blocks, fps)) == whole
    assert list(frame_rms([samples], fps, n + 2)) == [*whole, 0.0, 0.0]
    assert list(frame_rms([samples], fps, 2)) == whole[:2]
    assert list(frame_rms([], fps, 1)) == [0.0]


@pytest.mark.parametrize("fps", ["25", "29.97", "1"])
@pytest.mark.parametrize("n", [0, 1, 639, 640, 641, 40001])
def test_live_loudness_is_that_of_the_whole_sound(fps, n):
    fps, samples = parse_fps(fps), np.random.default_rng(2).normal(0, 0.1, n).astype(np.float32)
    total = frame_count(n, 16000, fps)
    whole = list(frame_rms([samples], fps, total))
    for size in (1 if n < 1000 else 77, 640, 50000):
        loudness, taken = LiveLoudness(fps), []
        for start in range(0, n, size):
            loudness.feed(samples[start : start + size])
            assert loudness.frames * 16000 <= min(start + size, n) * fps
            while len(taken) < loudness.frames:
                taken.append(next(loudness))
        loudness.finish(total)
        assert [*taken, *loudness] == whole
        assert loudness.frames == total


def test_a_frame_without_sound_is_not_made_up():
    loudness = LiveLoudness(Fraction(25))
    loudness.feed(np.ones(1279, np.float32))
    assert next(loudness) == 1
    with pytest.raises(RuntimeError, match="loudness of frame 1 was asked for before its sound came"):
        next(loudness)
    loudness.feed(np.zeros(1, np.float32))
    assert next(loudness) == pytest.approx((639 / 640) ** 0.5)


def test_the_end_is_where_the_video_ends():
    """The sound at 16 kHz may be a sample longer than its frames, or shorter."""
    for n_frames, given in ((2, [1.0, 1.0]), (4, [1.0, 1.0, 1.0, 0.0])):
        loudness = LiveLoudness(Fraction(25))
        loudness.feed(np.ones(1281, np.float32))
        loudness.finish(n_frames)
        assert list(loudness) == given


def test_fed_sound_is_not_kept():
    loudness, block = LiveLoudness(Fraction(25)), np.ones(16000 + 1, np.float32)
    loudness.feed(block)
    block[:] = 5
    assert loudness._cutter._held.base is None
    loudness.finish(26)
    assert list(loudness) == [1.0] * 26
