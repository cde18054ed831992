"""Loudness, true peak and the limiter against other meters; the outline and the picture of a take."""

import math

import numpy as np
import pytest
import soxr
from loudness_parts import ebur128
from scipy.signal import butter, resample_poly, sosfilt

from talkinghead.nodes.tts.mastering.levelling import GainSearch, Miss
from talkinghead.nodes.tts.mastering.levels import COLUMNS, LevelMeter, Trace
from talkinghead.nodes.tts.mastering.limiter import Limiter, PeakFinder, _running_maximum
from talkinghead.nodes.tts.mastering.loudness import FollowingGain, LoudnessMeter, k_weighting
from talkinghead.nodes.tts.mastering.picture import (
    AFTER,
    BACK,
    BEFORE,
    HEIGHT,
    TOP,
    WAVE,
    WIDTH,
    draw_mastering,
    frequency_column,
    time_ticks,
    wave_row,
)


def run(stage, sound, size=8192):
    parts = [stage.feed(sound[:, i : i + size]) for i in range(0, sound.shape[1], size)]
    return np.concatenate([*parts, stage.finish()], axis=1)


def lufs(sound, rate, size=8192):
    meter = LoudnessMeter(rate, len(sound))
    for i in range(0, sound.shape[1], size):
        meter.feed(sound[:, i : i + size])
    return meter.integrated()


def sine(hz, seconds, rate, level=1.0):
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)[None]


def speechlike(rate, seconds, seed=0, level=0.1):
    """Noise of falling spectrum in syllables and pauses, crest factor 17 dB."""
    rng, n = np.random.default_rng(seed), round(seconds * rate)
    voice = sosfilt(butter(1, 600, fs=rate, output="sos"), rng.normal(0, 1, n))
    t = np.arange(n) / rate
    syllables = np.clip(np.sin(2 * np.pi * 4 * t), 0, 1) ** 2 * (t % 3 < 2.4)
    return (level * voice / voice.std() * syllables).astype(np.float32)[None]


class TestLoudness:
    def test_the_table_of_bs_1770(self):
        shelf, high_pass = k_weighting(48000)
        b = [1.53512485958697, -2.69169618940638, 1.19839281085285]
        assert shelf.tolist() == pytest.approx([*b, 1, -1.69065929318241, 0.73248077421585], abs=1e-9)
        assert high_pass.tolist() == pytest.approx(
            [1, -2, 1, 1, -1.99004745483398, 0.99007225036621], abs=1e-9
        )

    @pytest.mark.parametrize("rate", [8000, 11025, 22050, 48000, 192000])
    def test_997_hz_at_full_scale_is_3_01_below(self, rate):
        assert lufs(sine(997, 3, rate), rate) == pytest.approx(-3.01, abs=0.05)
        assert lufs(sine(997, 3, rate).repeat(2, axis=0), rate) == pytest.approx(0, abs=0.05)

    @pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (22050, 2), (44100, 1), (48000, 2)])
    def test_the_same_as_ffmpeg(self, rate, channels):
        sound = np.concatenate([speechlike(rate, 8, seed, 0.1 / (seed + 1)) for seed in range(channels)])
        assert lufs(sound, rate) == pytest.approx(ebur128(sound, rate)[0], abs=0.05)

    def test_gates(self):
        rate = 16000
        loud, quiet, silent = (
            sine(997, 4, rate, 0.1),
            sine(997, 4, rate, 0.02),
            np.zeros((1, 4 * rate), np.float32),
        )
        alone = lufs(loud, rate)
        assert lufs(np.concatenate([loud, silent], axis=1), rate) == pytest.approx(alone, abs=0.2)
        # 14 dB lower lies under the relative gate; blocks across the border do not.
        assert lufs(np.concatenate([loud, quiet], axis=1), rate) == pytest.approx(alone, abs=0.2)

    def test_blocks_do_not_matter_and_memory_does_not_grow(self):
        sound = speechlike(11025, 6)
        whole = lufs(sound, 11025, 10**9)
        assert lufs(sound, 11025, 100) == pytest.approx(whole, abs=1e-9)
        meter = LoudnessMeter(11025, 1)
        meter.feed(sound)
        assert meter._waiting.n < 1103
        assert len(meter._last) == 4

    @pytest.mark.parametrize(
        ("sound", "expected"),
        [
            (np.zeros((1, 16000), np.float32), -math.inf),
            (np.full((1, 16000 * 3), 0.5, np.float32), -math.inf),
            (sine(997, 1, 16000, 1e-4), -math.inf),
            (sine(997, 0.05, 16000), -math.inf),
            (sine(997, 0.3, 16000), -3.1),
        ],
        ids=["silence", "offset", "-83 LUFS", "too short", "less than a block"],
    )
    def test_what_has_no_loudness(self, sound, expected):
        if sound[0, 0] == 0.5:  # a step is heard, what follows is not
            sound = np.concatenate(
                [sound * np.linspace(0, 1, sound.shape[1], dtype=np.float32), sound], axis=1
            )
        assert lufs(sound, 16000) == pytest.approx(expected, abs=0.2)


class TestFollowingGain:
    def test_even_sound_is_on_the_target_from_the_start(self):
        sound = speechlike(16000, 12, level=0.02)
        made = run(FollowingGain(16000, 1, -20.0, 3.0), sound)
        assert made.shape == sound.shape
        assert lufs(made, 16000) == pytest.approx(-20, abs=0.15)
        assert lufs(made[:, : 3 * 16000], 16000) == pytest.approx(-20, abs=0.6)

    def test_a_breath_before_does_not_raise_what_follows(self):
        breath = np.random.default_rng(0).normal(0, 0.001, (1, 16000)).astype(np.float32)
        sound = np.concatenate([np.zeros((1, 32000), np.float32), breath, speechlike(16000, 12)], axis=1)
        made = run(FollowingGain(16000, 1, -20.0, 3.0), sound)
        assert lufs(made[:, 48000:], 16000) == pytest.approx(-20, abs=1)
        assert lufs(made[:, 48000 : 48000 * 2], 16000) == pytest.approx(-20, abs=2.5)

    def test_the_gain_moves_slowly(self):
        steady = np.full((1, 16000 * 10), 0.1, np.float32) * np.repeat([1, 0.3], 80000).astype(np.float32)
        sound = steady * np.sign(sine(700, 10, 16000) + 1e-6)
        gain = run(FollowingGain(16000, 1, -20.0, 1.0), sound) / sound
        steps = 20 * np.log10(gain[0, 1600:] / gain[0, :-1600])
        assert steps.max() < 0.11
        assert steps.min() > -1.01

    @pytest.mark.parametrize("n", [1, 100, 1600, 4800, 6399, 6400, 40000])
    def test_any_length(self, n):
        sound = sine(500, n / 16000, 16000, 0.05)
        made = run(FollowingGain(16000, 1, -20.0, 1.0), sound)
        assert made.shape == sound.shape
        if n >= 1600:
            assert lufs(made, 16000) == pytest.approx(-20, abs=0.3)
        else:
            np.testing.assert_array_equal(made, sound)


def hot_signals(rate):
    """What goes over: between the samples, at full band, at low frequency, at the very start and end."""
    n, rng = 2 * rate + 123, np.random.default_rng(rate)
    at = np.arange(n)
    fade = 0.5 - 0.5 * np.cos(2 * np.pi * at / n)
    dark = sosfilt(butter(6, 0.6, output="sos"), rng.normal(0, 0.6, n))
    return {
        "quarter of the rate, between samples": 1.4 * np.sin(np.pi / 2 * at + np.pi / 4) * fade,
        "noise": dark,
        "low tone from the first sample": 2 * np.cos(2 * np.pi * 100 * at / rate),
        "square": 1.2 * np.sign(np.sin(2 * np.pi * 130 * at / rate)),
        "one sample": 3.0 * (at == 5000),
        "ends": 2.0 * ((at == 0) | (at == n - 1)),
    }


class TestTruePeak:
    @pytest.mark.parametrize("phase", [0.0, 0.25, 0.5])
    def test_between_samples(self, phase):
        rate = 48000
        sound = (0.5 * np.sin(2 * np.pi * (np.arange(rate) / 4 + phase / 4))).astype(np.float32)[None]
        sound *= np.hanning(rate).astype(np.float32)
        found = run(PeakFinder(1), sound).max()
        assert 20 * np.log10(found) == pytest.approx(-6.02, abs=0.1)

    def test_the_same_as_ffmpeg(self):
        sound = speechlike(22050, 5, level=0.2)
        assert run(PeakFinder(1), sound).max() == pytest.approx(ebur128(sound, 22050)[1], rel=0.01)

    @pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 500])
    def test_one_value_per_sample(self, n):
        sound = np.random.default_rng(n).normal(0, 1, (2, n)).astype(np.float32)
        found = run(PeakFinder(2), sound, 7)
        assert found.shape == (1, n)
        assert (found >= np.abs(sound).max(axis=0)).all()


class TestLimiter:
    @pytest.mark.parametrize("rate", [8000, 22050, 48000])
    def test_true_peak_stays_under_the_ceiling_by_any_meter(self, rate):
        for name, signal in hot_signals(rate).items():
            sound = signal.astype(np.float32)[None]
            made = run(Limiter(rate, 1, -1.0), sound)
            assert made.shape == sound.shape, name
            meters = {
                "ours": run(PeakFinder(1), made),
                "scipy": resample_poly(made.astype(np.float64), 4, 1, axis=1),
                "soxr": soxr.resample(made[0].astype(np.float64), rate, 4 * rate, "VHQ"),
            }
            for meter, values in meters.items():
                assert 20 * np.log10(np.abs(values).max()) < -1 + 0.005, (name, meter)

    def test_a_ceiling_is_reached(self):
        made = run(Limiter(48000, 1, -3.0), sine(997, 1, 48000, 1.5))
        assert 20 * np.log10(np.abs(made).max()) == pytest.approx(-3.08, abs=0.02)

    def test_what_stays_below_passes_bit_for_bit(self):
        sound = speechlike(22050, 3, level=0.05)
        stage = Limiter(22050, 1)
        np.testing.assert_array_equal(run(stage, sound), sound)
        assert stage.deepest_db == 0
        sound[0, 40000] = 1.5
        made = run(Limiter(22050, 1), sound)
        away = np.abs(np.arange(sound.shape[1]) - 40000) > 0.041 * 22050
        np.testing.assert_array_equal(made[:, away], sound[:, away])

    def test_the_gain_is_smooth(self):
        """A burst under a steady tone: what the limiter adds to the tone stays near it."""
        rate = 48000
        carrier = sine(6000, 1, rate, 0.3)
        burst = np.zeros_like(carrier)
        burst[0, 20000:24000] = sine(100, 4000 / rate, rate, 1.2) * np.hanning(4000)
        both = np.concatenate([carrier, burst])
        made = run(Limiter(rate, 2), both)[0]
        away = sosfilt(butter(8, [4000, 8000], "bandstop", fs=rate, output="sos"), made)
        assert 20 * np.log10(np.abs(away[3000:-3000]).max() / 0.3) < -70
        assert np.abs(made[21500:22500]).max() < 0.27

    @pytest.mark.parametrize("n", [1, 2, 50, 1000])
    def test_short(self, n):
        made = run(Limiter(16000, 1), np.full((1, n), 2.0, np.float32))
        assert made.shape == (1, n)
        assert np.abs(made).max() <= 10 ** (-1 / 20)


class TestGainSearch:
    @pytest.mark.parametrize("ceiling", [-1.0, None])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_what_leaves_the_limiter_is_on_the_target(self, ceiling, seed):
        rate = 22050
        sound = speechlike(rate, 8, seed, level=0.02)
        level, made = self.levelled(sound, rate, ceiling)
        assert lufs(made, rate) == pytest.approx(-16, abs=0.1)
        assert level.lufs == pytest.approx(lufs(made, rate), abs=0.1)
        assert level.missed is None
        unlimited = lufs(sound, rate) + level.gain_db
        assert unlimited > -15 if ceiling is not None else unlimited == pytest.approx(-16, abs=0.03)

    def levelled(self, sound, rate, ceiling):
        blocks = [sound[:, i : i + 20000] for i in range(0, sound.shape[1], 20000)]
        level = GainSearch(blocks, rate, -16.0, ceiling).found()
        made = sound * np.float32(10 ** (level.gain_db / 20))
        return level, run(Limiter(rate, 1, ceiling), made) if ceiling is not None else made

    @pytest.mark.parametrize(
        ("sound", "missed"),
        [
            (np.zeros((1, 9000), np.float32), Miss.SILENT),
            (sine(700, 2, 16000, 10 ** (-90 / 20)), Miss.SILENT),
            (np.full((1, 1), 0.5, np.float32), Miss.SHORT),
            (sine(700, 0.0999, 16000), Miss.SHORT),
        ],
    )
    def test_what_has_no_loudness_keeps_its_level(self, sound, missed):
        level = GainSearch([sound], 16000, -16.0, -1.0).found()
        assert (level.gain_db, level.missed) == (0, missed)

    def test_clicks_are_not_raised_without_end(self):
        """Each click is one sample: beyond the limit no gain makes them louder."""
        sound = np.zeros((1, 160000), np.float32)
        sound[0, ::4000] = 0.5
        level = GainSearch([sound], 16000, -16.0, -1.0).found()
        assert level.missed is Miss.PEAKS
        assert level.gain_db <= -16 - lufs(sound, 16000)
        assert level.lufs == pytest.approx(lufs(sound, 16000) + 5.02, abs=0.4)  # 0.5 to -1 dBTP

    def test_the_room_tone_counts(self):
        sound = speechlike(16000, 5, level=0.02)
        alone = GainSearch([sound], 16000, -45.0, -1.0).found()
        under = GainSearch([sound], 16000, -45.0, -1.0, tone_dbfs=-48.0).found()
        assert under.lufs == pytest.approx(-45, abs=0.1)
        assert under.gain_db < alone.gain_db - 1
        loud = GainSearch([sound], 16000, -45.0, -1.0, tone_dbfs=-30.0).found()
        assert loud.missed is Miss.TONE

    @pytest.mark.parametrize(("window", "n"), [(1, 5), (3, 9), (7, 7), (5, 23)])
    def test_a_running_maximum(self, window, n):
        values = np.random.default_rng(n).random(n, np.float32)
        expected = [values[i : i + window].max() for i in range(n - window + 1)]
        assert _running_maximum(values, window).tolist() == expected


class TestLevels:
    def test_a_sine(self):
        meter = LevelMeter(48000, 2)
        meter.feed(sine(1000, 2, 48000, 0.5).repeat(2, axis=0) + np.float32(0.1))
        found = meter.finish()
        assert found.peak_dbfs == pytest.approx(20 * np.log10(0.6), abs=0.01)
        assert found.true_peak_dbtp == pytest.approx(20 * np.log10(0.6), abs=0.5)  # its start is a step
        assert found.offset == pytest.approx(0.1, abs=1e-3)
        assert found.crest_db == pytest.approx(20 * np.log10(0.6 / np.sqrt(0.125 + 0.01)), abs=0.02)
        assert found.lufs == pytest.approx(-6.0, abs=0.15)
        assert "-6.0 LUFS" in str(found)

    def test_silence(self):
        meter = LevelMeter(16000, 1)
        meter.feed(np.zeros((1, 20000), np.float32))
        found = meter.finish()
        assert (str(found), found.crest_db, found.offset) == ("silence", 0, 0)

    def test_an_outline_has_every_extreme_and_a_bounded_size(self):
        rng = np.random.default_rng(0)
        for n in (1, 63, 64, 5000, 64 * COLUMNS * 2, 700001):
            sound = rng.normal(0, 0.1, (1, n)).astype(np.float32)
            sound[0, n * 2 // 3] = 0.9
            trace = Trace(16000, 1)
            for i in range(0, n, 9999):
                trace.feed(sound[:, i : i + 9999])
            low, high = trace.outline()
            assert len(low) <= 2 * COLUMNS
            assert (low.min(), high.max()) == (sound.min(), sound.max())
            at = int(np.argmax(high)) * trace._width
            assert at <= n * 2 // 3 < at + trace._width

    def test_a_spectrum_shows_a_full_scale_sine_at_0_db(self):
        for seconds in (3, 0.01):
            trace = Trace(16000, 1)
            trace.feed(sine(2000, seconds, 16000))
            hz, level = trace.spectrum()
            assert hz[np.argmax(level)] == pytest.approx(2000, abs=30)
            if seconds == 3:
                assert level.max() == pytest.approx(0, abs=0.3)
                assert level[np.abs(hz - 2000) > 300].max() < -50


class TestPicture:
    def metered(self, sound, rate=48000):
        meter = LevelMeter(rate, 1)
        for i in range(0, sound.shape[1], 30000):
            meter.feed(sound[:, i : i + 30000])
        return meter, meter.finish()

    def test_waveform_and_spectrum_lie_where_they_belong(self):
        quiet = sine(1000, 2, 48000, 0.25)
        (before, b), (after, a) = self.metered(quiet), self.metered(2 * quiet)
        picture = draw_mastering((before.trace, after.trace), (b, a), -1.0)
        assert (picture.shape, picture.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
        column = picture[TOP : TOP + WAVE, WIDTH // 2].tolist()
        rows = {
            tuple(c): [r + TOP for r, v in enumerate(column) if v == c] for c in map(list, (BEFORE, AFTER))
        }
        assert (min(rows[BEFORE]), max(rows[BEFORE])) == (wave_row(0.25), wave_row(-0.25))
        assert (min(rows[AFTER]), max(rows[AFTER])) == (wave_row(0.5), wave_row(-0.5))
        peak = frequency_column(1000, 24000)
        spectrum = picture[TOP + WAVE + 20 :, peak - 2 : peak + 3].reshape(-1, 5, 3).astype(int)
        green = np.flatnonzero((np.abs(spectrum - AFTER).sum(axis=2) < 60).any(axis=1))
        assert green[0] == pytest.approx(6.02 / 100 * (HEIGHT - TOP - WAVE - 20), abs=3)

    @pytest.mark.parametrize(
        ("seconds", "ticks"),
        [
            (0, [0]),
            (0.33, [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
            (5, [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
        ],
    )
    def test_times_are_round(self, seconds, ticks):
        assert time_ticks(seconds) == pytest.approx(ticks)
        assert len(time_ticks(seconds * 7777)) <= 13

    def test_axes_have_names(self):
        """The ink of the labels: seconds between waveform and spectrum, Hz at the bottom, dBFS at the left of both."""
        meter, levels = self.metered(np.zeros((1, 480000), np.float32))
        picture = draw_mastering((meter.trace, meter.trace), (levels, levels), -1.0)
        inked = picture.astype(int).min(axis=2) > 150
        assert inked[TOP + WAVE : TOP + WAVE + 20, ::].any(axis=0).sum() > 10 * 6  # ten times
        assert inked[HEIGHT - 20 :].any(axis=0).sum() > 8 * 15  # eight frequencies
        for rows in (slice(TOP, TOP + WAVE), slice(TOP + WAVE + 20, HEIGHT - 20)):
            assert inked[rows, :60].any(axis=1).sum() > 2 * 6

    @pytest.mark.parametrize("n", [1, 7, 961, 200000])
    @pytest.mark.parametrize("rate", [8000, 192000])
    def test_any_sound(self, n, rate):
        meter, levels = self.metered(sine(440, n / rate, rate, 0.9), rate)
        picture = draw_mastering((meter.trace, meter.trace), (levels, levels))
        assert picture.shape == (HEIGHT, WIDTH, 3)
        assert (picture != BACK).any()
