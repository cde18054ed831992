"""What frames hear of live sound: the rule computed directly, whatever the pieces the sound comes in."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.live_audio import ClipSound, LiveAudio
from talkinghead.nodes.core.mel import mel_filters
from talkinghead.nodes.core.timeline import frame_count, parse_fps, speech_row_start
from talkinghead.nodes.musetalk import live_speech
from talkinghead.nodes.musetalk.live_speech import LiveSpeech

ROWS, HOP, AHEAD = 60, 4, 4


@pytest.fixture(autouse=True)
def _short_window(monkeypatch):
    """1.2 s instead of 12: the window slides within a short clip."""
    monkeypatch.setattr(live_speech, "WINDOW_ROWS", ROWS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ctx():
    return RunContext()


def chirp(n, level=0.3):
    t = np.arange(n, dtype=np.float64) / 16000
    wave = np.sin(2 * np.pi * (180 + 300 * t) * t) * (np.sin(5 * t) > -0.3)
    return (level * wave + np.random.default_rng(1).standard_normal(n) * 1e-3).astype(np.float32)


def pushed(sound, step, rate=16000):
    audio = LiveAudio(rate, max_seconds=60)
    for i in range(0, len(sound), step):
        audio.push(sound[i : i + step])
    audio.end()
    return audio


def tokens(ctx, model, sound, fps=Fraction(25), n=8, first=None):
    """Tokens of all frames, and the sizes of the batches."""
    speech = LiveSpeech(model, sound, fps, first)
    parts = [t for t in speech.windows(ctx, n) if t is not None]
    total = sum(map(len, parts))
    assert speech.ends_at(total)
    assert not speech.ends_at(total - 1)
    return torch.cat(parts), [len(t) for t in parts]


def by_hand(nets, sound, fps, frame):
    """The rule for one frame, from the whole sound: float64 numpy for the mel, torch's encoder."""
    start = speech_row_start(frame, fps)
    end = 320 * (start + 10 + AHEAD)
    end = max(HOP * 320, -(-end // (HOP * 320)) * HOP * 320)
    ended = end > len(sound)
    end = min(end, len(sound))
    first = max(0, -(-end // 320) - ROWS)
    heard = np.zeros(ROWS * 320)
    heard[: end - first * 320] = sound[first * 320 : end]
    padded = np.pad(heard, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    spectrum = np.fft.rfft(np.stack([padded[k : k + 400] for k in range(0, ROWS * 320, 160)]) * window)
    level = np.log10(np.maximum(mel_filters(80).astype(np.float64) @ (np.abs(spectrum) ** 2).T, 1e-10))
    mel = (np.maximum(level, max(level.max(), 1.5) - 8) + 4) / 4
    with torch.inference_mode():
        states = nets.whisper.encode_part(torch.from_numpy(mel[None]).float(), torch.tensor([first]))[0]
    n_rows = len(sound) // 320 if ended else end // 320 - AHEAD
    rows = [
        states[r - first] if 0 <= r < n_rows else torch.zeros_like(states[0])
        for r in range(start, start + 10)
    ]
    return torch.stack(rows).flatten(0, 1)


@pytest.mark.parametrize("fps", ["1", "23.976", "25", "59.94"])
def test_every_frame_hears_what_the_rule_says(ctx, tiny_model, fps):
    sound, rate = chirp(40_123), parse_fps(fps)
    got, _ = tokens(ctx, tiny_model, pushed(sound, 1280), rate)
    assert len(got) == frame_count(len(sound), 16000, rate)
    nets = ctx.load(tiny_model)
    for frame in sorted(
        {0, 1, 2, len(got) // 2, len(got) - 4, len(got) - 2, len(got) - 1} & set(range(len(got)))
    ):
        wanted = by_hand(nets, sound, rate, frame)
        assert float((got[frame] - wanted).abs().max()) < 2e-3, frame
        assert wanted.abs().max() > 0.1


def test_live_equals_live_however_the_sound_comes(ctx, tiny_model):
    sound = chirp(24_570)
    whole, sizes = tokens(ctx, tiny_model, pushed(sound, len(sound)))
    assert sizes == [8, 8, 8, 8, 7]
    for step in (333, 1280, 5120, 10240):
        got, again = tokens(ctx, tiny_model, pushed(sound, step))
        assert torch.equal(got, whole)
        assert again == sizes
    assert torch.equal(tokens(ctx, tiny_model, ClipSound(MemoryAudio(sound, 16000)))[0], whole)


class OneByOne:
    """Sound that arrives block by block of a given size, and says so."""

    sample_rate, notes, waits = 16000, (), True

    def __init__(self, sound, step):
        self.sound, self.step, self.taken = sound, step, 0

    def blocks(self, poll=None):
        for i in range(0, len(self.sound), self.step):
            block = self.sound[i : i + self.step]
            self.taken += len(block)
            yield block


def test_sample_by_sample_and_at_another_rate(ctx, tiny_model):
    sound = chirp(6_001)
    whole, _ = tokens(ctx, tiny_model, pushed(sound, len(sound)))
    assert torch.equal(tokens(ctx, tiny_model, OneByOne(sound, 1))[0], whole)
    at_48 = chirp(30_001)
    whole, _ = tokens(ctx, tiny_model, pushed(at_48, len(at_48), 48000))
    assert len(whole) == 16
    assert torch.equal(tokens(ctx, tiny_model, pushed(at_48, 777, 48000))[0], whole)
    assert torch.equal(tokens(ctx, tiny_model, ClipSound(MemoryAudio(at_48, 48000)))[0], whole)


@pytest.mark.parametrize(
    ("n", "frames"), [(1, 1), (319, 1), (320, 1), (639, 1), (640, 1), (641, 2), (6400, 10), (6401, 11)]
)
def test_hardly_any_sound_and_ends_on_and_beside_a_frame_border(ctx, tiny_model, n, frames):
    got, _ = tokens(ctx, tiny_model, pushed(chirp(n), 640))
    assert len(got) == frames
    rows_heard = got[0].view(10, 2, 32).abs().amax((1, 2)) > 0
    assert rows_heard.tolist() == [False] * 4 + [r < n // 320 for r in range(6)]


def test_no_sound_is_no_frames(ctx, tiny_model):
    speech = LiveSpeech(tiny_model, pushed(chirp(0), 1), Fraction(25))
    assert [t for t in speech.windows(ctx, 8) if t is not None] == []
    assert speech.ends_at(0)


def test_a_batch_comes_as_soon_as_its_sound_is_there_and_not_before(ctx, tiny_model):
    """25 fps, batch 8: the last row of frame 7 ends at 400 ms, 80 ms of look-ahead: at 480 ms and no sample earlier."""
    audio, sound = LiveAudio(16000), chirp(16000)
    speech = LiveSpeech(tiny_model, audio, Fraction(25))
    given = speech.windows(ctx, 8)
    audio.push(sound[:7679])
    assert next(given) is None
    assert not speech.ends_at(8)
    audio.push(sound[7679:7680])
    assert len(next(given)) == 8
    assert not speech.ends_at(8)
    given.close()
    first = LiveSpeech(tiny_model, pushed(sound, 640), Fraction(25), first_batch=2)
    assert [len(t) for t in first.windows(ctx, 8) if t is not None] == [2, 8, 8, 7]


def test_at_one_frame_a_second_a_batch_waits_until_it_is_known_whether_a_frame_follows(ctx, tiny_model):
    audio = LiveAudio(16000)
    speech = LiveSpeech(tiny_model, audio, Fraction(1))
    given = speech.windows(ctx, 1)
    audio.push(chirp(16000))
    assert next(given) is None  # its sound is there, its successor may come or not
    audio.push(chirp(1))
    assert len(next(given)) == 1
    assert not speech.ends_at(1)
    audio.end()
    assert [len(t) for t in given if t is not None] == [1]
    assert speech.ends_at(2)


def test_the_floor_of_a_quiet_start_is_that_of_speech(ctx, tiny_model):
    """-60 dB of noise before the first word: as quiet for the encoder as it will be after it."""
    nets = ctx.load(tiny_model)
    _, stage = live_speech.live_stage(nets, torch.device("cpu"))
    seen = []
    nets_encoder = stage.nets.whisper.encode_part
    stage.nets.whisper.encode_part = lambda mel, first: seen.append(mel) or nets_encoder(mel, first)
    try:
        noise = (
            torch.from_numpy(np.random.default_rng(2).standard_normal(ROWS * 320).astype(np.float32))[None]
            * 1e-3
        )
        stage(noise, torch.zeros(1, dtype=torch.int64))
        stage(noise * 1e-9, torch.zeros(1, dtype=torch.int64))
    finally:
        del stage.nets.whisper.encode_part
    assert float(seen[1].min()) == float(seen[1].max()) == pytest.approx((1.5 - 8 + 4) / 4)
    assert float(seen[0].max()) < 0.2  # whisper's own floor would put this noise's loudest bin above 1


def test_a_failed_line_and_a_cancel_while_waiting_end_the_run(ctx, tiny_model):
    audio = LiveAudio(16000)
    given = LiveSpeech(tiny_model, audio, Fraction(25)).windows(ctx, 8)
    audio.push(chirp(3200))
    assert next(given) is None
    audio.fail(ConnectionError("line cut"))
    with pytest.raises(ConnectionError, match="line cut"):
        next(given)
    stop = []
    waiting = RunContext(is_cancelled=lambda: len(stop) > 2 or stop.append(1))
    with pytest.raises(RunCancelled):
        next(LiveSpeech(tiny_model, LiveAudio(16000), Fraction(25)).windows(waiting, 8))
    assert len(stop) == 3


def test_faults_of_the_sound_reach_the_report(tiny_model):
    ctx, sound = RunContext(), chirp(3200)
    sound[100] = np.nan
    sound[200] = 3.0
    tokens(ctx, tiny_model, pushed(sound, 640))
    assert len(ctx.report.warnings) == 2


def test_an_hour_holds_no_more_than_a_minute(tiny_model, monkeypatch):
    """What is kept does not grow: the buffer is of one size, nothing refers to old tokens."""
    ctx = RunContext()
    listener = live_speech._Listener(ctx, tiny_model, Fraction(25))
    monkeypatch.setattr(
        listener, "_evaluate", lambda count, rows: setattr(listener, "_frame", listener._frame + count)
    )
    second = np.ones(16000, np.float32)
    for _ in range(3600):
        list(listener.feed(second))
    assert listener._end == 3600 * 16000
    assert listener._frame == 3600 * 25 - 4
    assert len(listener._buffer) == 2 * ROWS * 320


@pytest.mark.parametrize(("frames", "ms"), [(1, 240), (2, 240), (4, 320), (8, 480)])
def test_the_sound_that_is_needed_is_what_the_rule_waits_for(ctx, tiny_model, frames, ms):
    needed = live_speech.sound_needed(tiny_model, frames, Fraction(25))
    assert needed == ms * 16
    audio, sound = LiveAudio(16000), chirp(needed)
    given = LiveSpeech(tiny_model, audio, Fraction(25)).windows(ctx, frames)
    audio.push(sound[:-1])
    assert next(given) is None
    audio.push(sound[-1:])
    assert len(next(given)) == frames
