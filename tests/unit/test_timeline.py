"""The clock: exact counts where doubles fail."""

from fractions import Fraction

import numpy as np
import pytest

from talkinghead.nodes.core.timeline import (
    cycle_indices,
    fps_text,
    frame_count,
    frame_to_sample,
    parse_fps,
    retime_indices,
    sample_to_frame,
    speech_row_start,
)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25", Fraction(25)),
        (30, Fraction(30)),
        ("29.97", Fraction(30000, 1001)),
        (23.976, Fraction(24000, 1001)),
        ("59.94", Fraction(60000, 1001)),
        ("30000/1001", Fraction(30000, 1001)),
        ("119.88", Fraction(120000, 1001)),
        ("12.5", Fraction(25, 2)),
        (Fraction(46, 3), Fraction(46, 3)),
        (" 24 ", Fraction(24)),
    ],
)
def test_rates_are_exact(text, rate):
    assert parse_fps(text) == rate
    assert parse_fps(fps_text(rate)) == rate


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "fast",
        "0",
        "-25",
        "1000",
        "nan",
        "inf",
        "30/0",
        "1/2/3",
        "1e99999999",
        "2.5e1",
        "29.123456789",
        "9" * 40,
        "25.0/1.5",
    ],
)
def test_impossible_rates_are_refused_with_the_value(bad):
    with pytest.raises(ValueError, match="fps"):
        parse_fps(bad)


@pytest.mark.parametrize(
    ("hundredths", "frames"), [(116, 29), (228, 57), (232, 58), (452, 113), (1394, 349), (5, 2), (4, 1)]
)
def test_frame_counts_where_doubles_lose_one(hundredths, frames):
    for rate in (8000, 16000, 44100, 48000):
        assert frame_count(hundredths * rate // 100, rate, Fraction(25)) == frames


def test_frame_count_is_a_ceiling_and_zero_only_for_silence_of_no_length():
    assert frame_count(0, 16000, Fraction(25)) == 0
    assert frame_count(1, 16000, Fraction(25)) == 1
    assert frame_count(640, 16000, Fraction(25)) == 1
    assert frame_count(641, 16000, Fraction(25)) == 2
    # 60.06 s at 29.97 fps are 1800 frames; int(fps) would give 62.07 s of video.
    assert frame_count(6006 * 441, 44100, Fraction(30000, 1001)) == 1800


@pytest.mark.parametrize("fps", ["24", "25", "29.97", "50", "60"])
def test_frames_and_samples_are_inverse(fps):
    rate = parse_fps(fps)
    for frame in (0, 1, 7, 999, 123_457):
        first = frame_to_sample(frame, 44100, rate)
        assert sample_to_frame(first, 44100, rate) == frame
        assert frame == 0 or sample_to_frame(first - 1, 44100, rate) == frame - 1


def test_speech_rows_follow_upstream_at_25_and_stay_in_time_elsewhere():
    assert [speech_row_start(i, Fraction(25)) for i in (0, 1, 2, 40)] == [-4, -2, 0, 76]
    # upstream's double arithmetic slips at 29 fps, i = 145; the exact rule does not
    assert speech_row_start(145, Fraction(29)) == 250 - 4
    for fps in ("24", "29.97", "60"):
        rate = parse_fps(fps)
        for i in (0, 100, 1801):
            assert abs((speech_row_start(i, rate) + 4) / 50 - i / rate) <= Fraction(1, 50)


def test_cycles():
    assert cycle_indices(0, 7, 3, "loop").tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert cycle_indices(0, 8, 3, "pingpong").tolist() == [0, 1, 2, 2, 1, 0, 0, 1]
    assert cycle_indices(5, 4, 1, "still").tolist() == [0, 0, 0, 0]
    for cycle in ("loop", "pingpong"):
        whole = cycle_indices(0, 40, 7, cycle)
        assert np.array_equal(whole[13:22], cycle_indices(13, 9, 7, cycle))
    with pytest.raises(ValueError, match="bounce"):
        cycle_indices(0, 1, 3, "bounce")
    with pytest.raises(ValueError, match="0"):
        cycle_indices(0, 1, 0, "loop")


def test_retiming_chooses_frames_by_time():
    down = retime_indices(120, Fraction(30), Fraction(25))
    assert len(down) == 100
    assert down.tolist()[:7] == [0, 1, 2, 3, 4, 6, 7]
    up = retime_indices(10, Fraction(25), Fraction(50))
    assert up.tolist() == [i // 2 for i in range(20)]
