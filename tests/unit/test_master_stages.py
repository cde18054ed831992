"""Stages of mastering on signals whose result is known: filters, sibilants, joins, room tone, ducking."""

import numpy as np
import pytest
from scipy.signal import butter, sosfilt, sosfreqz

from talkinghead.nodes.tts.mastering.blocks import Fir, Hops, Queue, Reference, half_sine
from talkinghead.nodes.tts.mastering.deesser import DeEsser
from talkinghead.nodes.tts.mastering.duck import Ducker
from talkinghead.nodes.tts.mastering.filters import LowPass, Splitter
from talkinghead.nodes.tts.mastering.joins import Joiner, settle_ends
from talkinghead.nodes.tts.mastering.room_tone import RoomTone
from talkinghead.nodes.tts.mastering.sibilants import TerminalFricatives

RATES = [16000, 22050, 48000]


def run(stage, sound, size=16384):
    parts = [stage.feed(sound[:, i : i + size]) for i in range(0, sound.shape[1], size)]
    return np.concatenate([*parts, stage.finish()], axis=1)


def tone(hz, seconds, rate, level=0.5):
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)[None]


def hiss(seconds, rate, level=0.2, seed=0):
    """Noise in 5-7.5 kHz: an /s/."""
    white = np.random.default_rng(seed).normal(0, 1, round(seconds * rate))
    band = sosfilt(butter(6, [5000, 7500], "band", fs=rate, output="sos"), white)
    return (level * band / band.std()).astype(np.float32)[None]


def silence(seconds, rate):
    return np.zeros((1, round(seconds * rate)), np.float32)


def decibel(a, b, rate, start, end):
    """Level of a against b in a stretch of time, dB."""
    cut = slice(round(start * rate), round(end * rate))
    powers = [np.square(x[0, cut], dtype=np.float64).mean() for x in (a, b)]
    return 10 * np.log10(powers[0] / powers[1])


class TestBlocks:
    @pytest.mark.parametrize("taps", [1, 5, 301])
    @pytest.mark.parametrize("n", [0, 1, 4, 299, 5000])
    def test_fir_is_a_convolution_at_its_own_place(self, taps, n):
        rng = np.random.default_rng(taps)
        kernel, sound = rng.normal(0, 1, taps), rng.normal(0, 1, (2, n)).astype(np.float32)
        for size in (1000, 7):
            fir, parts = Fir([kernel, 2 * kernel], 2, taps // 2), []
            for i in range(0, n, size):
                parts.append(fir.feed(sound[:, i : i + size]))
            parts.append(fir.finish())
            made, doubled = (np.concatenate(p, axis=1) for p in zip(*parts, strict=True))
            expected = [np.convolve(row, kernel)[taps // 2 :][:n] if n else row for row in sound]
            np.testing.assert_allclose(made, expected, atol=2e-5 * taps**0.5)
            np.testing.assert_allclose(doubled, 2 * made, atol=1e-5 * taps**0.5)

    def test_a_smoothed_step_is_a_raised_cosine(self):
        step = np.concatenate([np.zeros(50), np.ones(150)])
        made = np.convolve(step, half_sine(100))[50:150]
        np.testing.assert_allclose(made, 0.5 - 0.5 * np.cos(np.pi * (np.arange(100) + 1) / 100), atol=1e-3)

    def test_queue(self):
        queue = Queue(2)
        assert queue.take(0).shape == (2, 0)
        for i in range(5):
            queue.push(np.full((2, 3), i, np.float32))
        assert queue.take(4)[0].tolist() == [0, 0, 0, 1]
        assert queue.peek().shape == (2, 11)
        assert (queue.take(11)[1, -1], queue.n) == (4, 0)

    def test_the_reference_knows_what_comes_and_forgets_slowly(self):
        hops = Hops(8000)
        power = np.concatenate([np.zeros(1000), np.full(200, 1.0), np.full(3000, 1e-6)])
        reference = Reference(hops)
        parts = [reference.feed(p) for p in np.array_split(power, 7)]
        made = np.concatenate([*parts, reference.finish()])
        assert len(made) == len(power)
        assert (made[:700] == -200).all()
        assert made[790:920].tolist() == pytest.approx([0] * 130, abs=0.01)
        # 250 ms ahead of its place: the last 50 ms end at 1.225 s.
        assert made[3000] == pytest.approx(-3 * (3.25 - 1.2), abs=0.2)


class TestLowPass:
    @pytest.mark.parametrize("rate", [22050, 48000, 192000])
    def test_fourth_order_at_9600_hz(self, rate):
        impulse = np.zeros((1, rate // 2), np.float32)
        impulse[0, 0] = 1
        response = np.abs(np.fft.rfft(run(LowPass(rate, 1), impulse)[0]))
        hz = np.fft.rfftfreq(rate // 2, 1 / rate)
        level = dict(zip(hz.round().astype(int).tolist(), 20 * np.log10(response), strict=True))
        assert level[9600] == pytest.approx(-3.01, abs=0.02)
        assert level[1000] == pytest.approx(0, abs=0.01)
        assert level[6000] == pytest.approx(0, abs=0.15)
        if rate == 192000:
            assert level[19200] == pytest.approx(-24.1, abs=1)  # 24 dB per octave
        exact = butter(4, 9600, fs=rate, output="sos")
        np.testing.assert_allclose(response, np.abs(sosfreqz(exact, hz, fs=rate)[1]), atol=1e-5)

    def test_state_goes_from_block_to_block(self):
        sound = np.random.default_rng(0).normal(0, 0.3, (2, 9000)).astype(np.float32)
        whole = run(LowPass(22050, 2), sound, 9000)
        np.testing.assert_array_equal(run(LowPass(22050, 2), sound, 13), whole)


class TestDeEsser:
    def test_the_band_is_flat_within_and_70_db_down_at_9_khz(self):
        impulse = np.zeros((1, 48000), np.float32)
        impulse[0, 1000] = 1
        split = Splitter(48000, 1)
        parts = [split.feed(impulse), split.finish()]
        band, low = (
            20 * np.log10(np.abs(np.fft.rfft(np.concatenate(p, 1)[0])) + 1e-9)
            for p in zip(*parts, strict=True)
        )
        assert np.abs(band[5300:7700]).max() < 0.1
        assert band[:4300].max() < -68
        assert band[8700:].max() < -68
        assert np.abs(low[:2500]).max() < 0.1
        assert low[3500:].max() < -68

    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize("level", [1, 0.01])
    def test_loud_sibilants_go_down_by_at_most_7_db_and_voice_stays(self, rate, level):
        voice = tone(200, 0.5, rate, 0.3)
        sound = np.concatenate(
            [voice, hiss(0.15, rate, 0.21), voice, hiss(0.15, rate, 0.03), voice], axis=1
        ) * np.float32(level)
        stage = DeEsser(rate, 1)
        made = run(stage, sound)
        assert made.shape == sound.shape
        assert -7.01 < decibel(made, sound, rate, 0.52, 0.63) < -4
        assert 5 < stage.deepest_db <= 7
        # An /s/ that lies 17 dB under the voice is no louder than it should be.
        assert decibel(made, sound, rate, 1.17, 1.28) == pytest.approx(0, abs=0.05)
        middle = slice(round(0.1 * rate), round(0.45 * rate))
        np.testing.assert_array_equal(made[:, middle], sound[:, middle])

    def test_it_never_takes_more_than_it_is_allowed(self):
        sound = np.concatenate([tone(200, 0.5, 22050, 0.02), hiss(0.3, 22050, 0.3)], axis=1)
        for most in (2.0, 7.0):
            made = run(DeEsser(22050, 1, most), sound)
            assert decibel(made, sound, 22050, 0.55, 0.75) == pytest.approx(-most, abs=0.6)
            assert decibel(made, sound, 22050, 0.55, 0.75) > -most - 0.01

    @pytest.mark.parametrize("rate", [22050, 44100, 48000])
    def test_9_khz_is_untouched(self, rate):
        for seconds in (1.0, 0.15):
            sound = np.concatenate(
                [tone(200, 0.3, rate), tone(9000, seconds, rate), silence(0.3, rate)], axis=1
            )
            for stage in (DeEsser(rate, 1), TerminalFricatives(rate, 1)):
                np.testing.assert_array_equal(run(stage, sound), sound)

    def test_channels_stay_in_balance(self):
        left = np.concatenate([tone(200, 0.5, 22050, 0.3), hiss(0.2, 22050)], axis=1)
        made = run(DeEsser(22050, 2), np.concatenate([left, left / 2]))
        np.testing.assert_allclose(made[0], 2 * made[1], atol=1e-6)


class TestTerminalFricatives:
    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize("level", [1, 0.01])
    def test_150_ms_become_65_ms_and_a_release_of_25_ms(self, rate, level):
        parts = [
            silence(0.2, rate),
            tone(200, 0.4, rate, 0.3),
            hiss(0.15, rate),
            silence(0.5, rate),
            tone(200, 0.3, rate),
        ]
        sound = np.concatenate(parts, axis=1) * np.float32(level)
        stage = TerminalFricatives(rate, 1)
        made = run(stage, sound)
        assert (made.shape, stage.shortened) == (sound.shape, 1)
        onset = 0.6
        np.testing.assert_array_equal(
            made[:, : round((onset + 0.06) * rate)], sound[:, : round((onset + 0.06) * rate)]
        )
        gain = made[0] / np.where(sound[0] == 0, 1, sound[0])
        loud = np.abs(sound[0]) > 0.02 * level
        at = (np.arange(len(gain)) / rate - onset) * 1000
        shape = 1 - (1 - 10**-1.5) * (0.5 - 0.5 * np.cos(np.pi * np.clip((at - 65) / 25, 0, 1)))
        inside = loud & (at > 0) & (at < 150)
        # The onset is known to 3 ms; the steepest millisecond of the release is 6 %.
        assert np.abs(gain - shape)[inside].max() < 0.2
        fall = at[inside][gain[inside] < 0.5][0]
        assert fall == pytest.approx(77.5, abs=3.5)
        assert decibel(made, sound, rate, onset + 0.095, onset + 0.148) == pytest.approx(-30, abs=0.2)
        again = slice(round(1.25 * rate), None)  # the next sound starts whole
        np.testing.assert_array_equal(made[:, again], sound[:, again])

    def test_the_release_has_no_step(self):
        """A steady tone within the fricative shows the gain alone: its steps are those of a raised cosine."""
        rate = 48000
        steady = np.concatenate([tone(6000, 0.15, rate), silence(0.3, rate)], axis=1)
        made = run(TerminalFricatives(rate, 1), np.concatenate([tone(200, 0.3, rate, 0.5), steady], axis=1))
        envelope = np.abs(made[0, round(0.3 * rate) : round(0.45 * rate)]).reshape(-1, 8).max(axis=1) / 0.5
        steepest = (1 - 10**-1.5) * np.pi / 2 * 8 / (0.025 * rate)
        assert np.abs(np.diff(envelope[2:-2])).max() < 1.1 * steepest

    @pytest.mark.parametrize(
        ("before", "fricative", "after"),
        [
            pytest.param("voice", 0.15, "voice", id="within a word"),
            pytest.param("voice", 0.06, "pause", id="short"),
            pytest.param("voice", 0.15, "closure", id="before a stop"),
            pytest.param("voice", 0.9, "pause", id="longer than any fricative"),
            pytest.param("voice", 0.1, "cluster", id="in front of a stop and another one"),
        ],
    )
    def test_others_stay(self, before, fricative, after):
        rate, voice = 22050, tone(200, 0.4, 22050)
        behind = {
            "voice": [voice],
            "pause": [silence(0.4, rate)],
            "cluster": [hiss(0.015, rate, 0.02), hiss(0.06, rate), silence(0.4, rate)],
            "closure": [silence(0.07, rate), hiss(0.02, rate), voice],
        }[after]
        sound = np.concatenate([voice, hiss(fricative, rate), *behind], axis=1)
        stage = TerminalFricatives(rate, 1)
        np.testing.assert_array_equal(run(stage, sound), sound)
        assert stage.shortened == 0

    def test_the_end_of_the_sound_is_a_pause(self):
        rate = 22050
        sound = np.concatenate([tone(200, 0.4, rate), hiss(0.2, rate)], axis=1)
        made = run(TerminalFricatives(rate, 1), sound)
        assert decibel(made, sound, rate, 0.5, 0.59) == pytest.approx(-30, abs=0.2)

    def test_the_pause_behind_it_stays_down_until_the_next_sound(self):
        rate = 22050
        bed = np.random.default_rng(3).normal(0, 0.001, (1, 2 * rate)).astype(np.float32)
        sound = np.concatenate(
            [tone(200, 0.4, rate), hiss(0.15, rate), silence(1, rate), tone(200, 0.45, rate)], axis=1
        )
        sound = sound + bed
        made = run(TerminalFricatives(rate, 1), sound)
        assert decibel(made, sound, rate, 0.7, 1.45) == pytest.approx(-30, abs=0.1)
        up = round(1.5 * rate)  # 50 ms before the next sound
        np.testing.assert_array_equal(made[:, up:], sound[:, up:])


class TestJoins:
    def test_ends_are_silent_to_the_nearest_zero(self):
        rate, rng = 22050, np.random.default_rng(0)
        reach = round(0.0015 * rate)
        for _ in range(20):
            sound = sosfilt(butter(2, 2000, fs=rate, output="sos"), rng.normal(0, 0.5, (1, 4000))).astype(
                np.float32
            )
            sound = sound[:, 100 : 100 + rng.integers(500, 3000)]
            made = settle_ends(sound, rate)
            np.testing.assert_array_equal(made[:, reach + 1 : -reach - 1], sound[:, reach + 1 : -reach - 1])
            around = np.pad(made[0], 1)
            steepest = np.abs(np.diff(sound[0])).max()
            assert np.abs(np.diff(around)).max() <= steepest
            assert np.abs(around[[1, -2]]).max() <= steepest

    def test_without_a_zero_it_fades(self):
        made = settle_ends(np.full((1, 1000), 0.5, np.float32), 22050)
        assert np.abs(np.diff(np.pad(made[0], 1))).max() < 0.5 * np.pi / 2 / 33 * 1.1
        assert (made[0, 40:-40] == 0.5).all()

    def test_channels_that_cross_apart_fade(self):
        rate = 48000
        sound = np.concatenate([tone(700, 0.1, rate), np.roll(tone(700, 0.1, rate), 17)])[:, 9:-9]
        made = settle_ends(sound, rate)
        steepest = np.abs(np.diff(sound)).max() + 0.5 * np.pi / 2 / 72
        assert np.abs(np.diff(np.pad(made, ((0, 0), (1, 1))))).max() <= steepest
        np.testing.assert_array_equal(made[:, 73:-73], sound[:, 73:-73])

    @pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 70])
    def test_short_sentences(self, n):
        made = settle_ends(np.full((2, n), 0.5, np.float32), 22050)
        assert made.shape == (2, n)
        assert np.isfinite(made).all()
        assert np.abs(made).max(initial=0) <= 0.5

    def test_silent_and_settled_ends_stay(self):
        sound = np.concatenate([silence(0.01, 22050), tone(300, 0.05, 22050), silence(0.01, 22050)], axis=1)
        np.testing.assert_array_equal(settle_ends(sound, 22050), sound)

    def test_lengths_add_up(self):
        sentences = [np.full((1, n), 0.1, np.float32) for n in (1000, 0, 777, 1)]
        joiner = Joiner(1000, pause_s=0.2)
        assert [joiner.feed(s).shape[1] for s in sentences] == [1000, 0, 977, 201]
        joiner = Joiner(1000, pause_s=0.0, reach_s=None)
        made = np.concatenate([joiner.feed(s) for s in sentences], axis=1)
        np.testing.assert_array_equal(made, np.full((1, 1778), 0.1, np.float32))

    def test_a_join_does_not_click(self):
        """Two tones cut anywhere, joined: above 4 kHz there is no more than in their own abrupt starts."""
        rate, worst = 22050, 0.0
        highpass = butter(6, 4000, "high", fs=rate, output="sos")
        for shift in (7, 25, 40, 61):
            a, b = (tone(hz, 0.5, rate)[:, shift:-shift] for hz in (220, 330))
            raw = np.concatenate([a, b], axis=1)
            joiner = Joiner(rate, pause_s=0.0)
            made = np.concatenate([joiner.feed(a), joiner.feed(b)], axis=1)
            clicks = [
                np.abs(sosfilt(highpass, x[0])[a.shape[1] - 50 : a.shape[1] + 90]).max() for x in (raw, made)
            ]
            worst = max(worst, clicks[1] / 0.5)
        assert worst < 0.05


class TestRoomTone:
    @pytest.mark.parametrize("rate", RATES)
    def test_level(self, rate):
        made = run(RoomTone(rate, 2, -52.0), np.zeros((2, 20 * rate), np.float32))
        level = 20 * np.log10(made.std(axis=1))
        assert level.tolist() == pytest.approx([-52, -52], abs=0.15)
        assert abs(np.corrcoef(made)[0, 1]) < 0.05
        # The first milliseconds too: it does not start from nothing.
        starts = [RoomTone(rate, 1, -52.0, seed).feed(np.zeros((1, 8), np.float32)) for seed in range(300)]
        assert 20 * np.log10(np.std(starts)) == pytest.approx(-52, abs=0.6)

    def test_seed(self):
        sound = tone(200, 1, 16000)
        one, again, two = (run(RoomTone(16000, 1, seed=s), sound) for s in (1, 1, 2))
        np.testing.assert_array_equal(one, again)
        np.testing.assert_array_equal(run(RoomTone(16000, 1, seed=1), sound, 77), one)
        assert np.abs(one - two).max() > 1e-4

    def test_the_global_generator_is_left_alone(self):
        np.random.seed(3)
        state = np.random.get_state()[1].copy()
        run(RoomTone(16000, 1), silence(0.1, 16000))
        np.testing.assert_array_equal(np.random.get_state()[1], state)


class TestDucking:
    RATE = 16000

    def mixed(self, main, other, depth=12.0, size=4096):
        stage = Ducker(self.RATE, 1, depth)
        parts = [
            stage.feed(main[:, i : i + size], other[:, i : i + size]) for i in range(0, main.shape[1], size)
        ]
        return np.concatenate([*parts, stage.finish()], axis=1)

    def scene(self):
        voice = tone(150, 1, self.RATE, 0.4)
        return np.concatenate(
            [silence(1, self.RATE), voice, silence(0.2, self.RATE), voice, silence(1.5, self.RATE)], axis=1
        )

    def test_the_other_goes_down_while_one_speaks(self):
        main = self.scene()
        other = tone(1000, main.shape[1] / self.RATE, self.RATE, 0.2)
        under = self.mixed(main, other) - main
        assert under.shape == main.shape
        for start, end, level in ((0, 0.9, 0), (1.0, 3.2, -12), (2.0, 2.2, -12), (3.9, 4.7, 0)):
            assert decibel(under, other, self.RATE, start, end) == pytest.approx(level, abs=0.1)
        np.testing.assert_array_equal(self.mixed(main, np.zeros_like(main)), main)

    def test_the_sidechain_is_free_of_clicks(self):
        """What the moving gain adds to a pure tone stays close to it: beyond 400 Hz off there is nothing."""
        main = self.scene()
        other = tone(3000, main.shape[1] / self.RATE, self.RATE, 0.5)
        under = self.mixed(main, other) - main
        away = sosfilt(butter(8, [2600, 3400], "bandstop", fs=self.RATE, output="sos"), under[0])
        middle = slice(2000, -2000)
        assert 20 * np.log10(np.abs(away[middle]).max() / 0.5) < -75
        envelope = np.abs(under[0]).reshape(-1, 16).max(axis=1) / 0.5
        steepest = 0.75 * np.pi / 2 * 16 / (0.06 * self.RATE)
        assert np.abs(np.diff(envelope[2:-2])).max() < 1.1 * steepest

    @pytest.mark.parametrize("n", [1, 100, 5000])
    def test_short(self, n):
        main, other = tone(150, n / self.RATE, self.RATE), tone(700, n / self.RATE, self.RATE)
        made = self.mixed(main, other)
        assert made.shape == (1, n)
        assert np.isfinite(made).all()
