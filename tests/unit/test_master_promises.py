"""What the issue promises of mastering, each on the finished sound of `master`, with answers known beforehand."""

import random
from dataclasses import replace

import loudness_parts
import numpy as np
import pytest
import torch
from loudness_parts import sine, speech, true_peaks
from scipy.signal import butter, sosfilt

from talkinghead.nodes.core.report import Report
from talkinghead.nodes.tts.master import MasterOptions, master, master_sentences

OFF = replace(loudness_parts.OFF, pause_s=0.0)
STAGES = {
    name: getattr(MasterOptions(), name)
    for name in ("join_reach_s", "deess_db", "fricative_s", "target_lufs", "room_tone_dbfs", "ceiling_dbtp")
}


def sibilant(seconds, rate, level=0.2):
    white = np.random.default_rng(0).normal(0, 1, round(seconds * rate))
    band = sosfilt(butter(6, [5000, 7500], "band", fs=rate, output="sos"), white)
    return (level * band / band.std()).astype(np.float32)


def db(values):
    return 10 * np.log10(np.square(values, dtype=np.float64).mean() + 1e-20)


@pytest.mark.parametrize("rate", [22050, 48000])
@pytest.mark.parametrize("target", [None, -16.0])
def test_a_burst_of_150_ms_keeps_65_ms_and_leaves_in_25(rate, target):
    pause = np.zeros(rate // 2, np.float32)
    burst = sibilant(0.15, rate)
    sound = np.concatenate([sine(200, 0.4, rate, 0.3), burst, pause, sine(200, 0.3, rate, 0.3)])
    options = MasterOptions(target_lufs=target, room_tone_dbfs=None, deess_db=None, lowpass_hz=None)
    made = master(sound, rate, options).samples[0]
    gain = db(made[: rate // 3]) - db(sound[: rate // 3])

    def left(start_ms, end_ms):
        """Level of a stretch of the burst against what went in, without the gain of the whole take, in dB."""
        cut = slice(round((0.4 + start_ms / 1000) * rate), round((0.4 + end_ms / 1000) * rate))
        return db(made[cut]) - db(sound[cut]) - gain

    assert left(5, 62) == pytest.approx(0, abs=0.05)
    # A raised cosine of 25 ms from 65 ms on: half way down at 77.5, its onset known to 3 ms.
    assert left(65, 70) > -2.5
    assert left(74.5, 80.5) == pytest.approx(-6, abs=3)
    assert left(94, 148) < -25
    assert left(94, 148) == pytest.approx(-30, abs=0.3)


@pytest.mark.parametrize("stage", [*STAGES, "duck_db"])
@pytest.mark.parametrize("rate", [22050, 48000])
def test_9_khz_is_touched_by_no_stage_but_the_low_pass(stage, rate):
    sound = sine(9000, 1.0, rate, 0.3)
    options = replace(OFF, **({stage: STAGES[stage]} if stage in STAGES else {"duck_db": 12.0}))
    other = np.zeros(len(sound), np.float32) if stage == "duck_db" else None
    made = master(sound, rate, options, other=other).samples[0]
    if stage == "target_lufs":
        made = made * np.float32(sound.std() / made.std())
        np.testing.assert_allclose(made, sound, atol=1e-6)
    elif stage == "room_tone_dbfs":
        turned = np.exp(-2j * np.pi * 9000 * np.arange(len(sound)) / rate)
        level = 20 * np.log10(abs((made * turned).sum()) / abs((sound * turned).sum()))
        assert level == pytest.approx(0, abs=0.01)
    elif stage == "join_reach_s":
        inside = slice(round(0.0015 * rate) + 1, -round(0.0015 * rate) - 1)
        np.testing.assert_array_equal(made[inside], sound[inside])
    else:
        np.testing.assert_array_equal(made, sound)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 96000])
@pytest.mark.parametrize("channels", [1, 2])
def test_all_off_gives_the_input_bit_for_bit(rate, channels):
    sound = (
        np.random.default_rng(rate).normal(0, 0.4, (channels, rate)).astype(np.float32)
    )  # over full scale too
    sound += np.float32(0.1)
    np.testing.assert_array_equal(master(sound, rate, OFF).samples, sound)
    np.testing.assert_array_equal(
        np.concatenate(list(master_sentences([sound, sound], rate, OFF)), 1)[:, rate:], sound
    )


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
@pytest.mark.parametrize("offset", [0.0, 0.2])
def test_sentences_are_joined_without_a_click(pause_s, offset):
    """The largest step around a join is no larger than the words' own, wherever they were cut; 1.5 ms are touched."""
    rate, words = 22050, speech(22050)
    cuts = np.random.default_rng(1).integers(3000, len(words) - 9000, 12)
    parts = [words[c : c + 6000][None] + np.float32(offset) for c in cuts]
    options = replace(OFF, join_reach_s=0.0015, pause_s=pause_s)
    made = np.concatenate(list(master_sentences(parts, rate, options)), axis=1)[0]
    own, at, reach = max(np.abs(np.diff(p)).max() for p in parts), 0, round(0.0015 * rate) + 1
    for part in parts:
        inside = made[at + reach : at + 6000 - reach]
        np.testing.assert_allclose(
            inside, part[0, reach:-reach] - np.float32(offset), atol=0.02 if offset else 0
        )
        at += 6000
        join = made[max(0, at - 3 * reach) : at + round(pause_s * rate) + 3 * reach]
        assert np.abs(np.diff(join)).max() <= own
        at += round(pause_s * rate)


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 96000])
@pytest.mark.parametrize("stage", [*STAGES, "all"])
def test_silence_stays_silent(rate, stage):
    options = MasterOptions(room_tone_dbfs=None) if stage == "all" else replace(OFF, **{stage: STAGES[stage]})
    report = Report()
    made = master(np.zeros((2, rate // 2), np.float32), rate, options, report)
    if stage == "room_tone_dbfs":
        assert db(made.samples) == pytest.approx(-52, abs=0.2)
    else:
        assert not made.samples.any()
        assert report.facts["after mastering"] == "silence"
    assert report.facts["before mastering"] == "silence"
    assert "inf" not in report.text()
    assert made.picture().shape == (480, 960, 3)


def test_runs_are_alike_and_no_generator_but_its_own_is_used():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    sound = speech(16000, 2)
    one, two = (master(sound, 16000).samples for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000])
def test_the_limit_holds_for_meters_at_4_and_8_times_the_rate(rate):
    """Bright noise, whose peaks lie between samples, 15 dB over the limit."""
    noise = sosfilt(butter(4, 0.8, output="sos"), np.random.default_rng(0).normal(0, 1.5, (2, rate)))
    made = master(noise.astype(np.float32), rate, replace(OFF, ceiling_dbtp=-1.0)).samples
    assert max(true_peaks(made, rate).values()) <= -1
