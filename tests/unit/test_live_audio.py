"""Sound that arrives while it is used: the values of the whole sound, bounded, and nobody waits for ever. Row 13."""

import threading
import time

import numpy as np
import pytest

from talkinghead.nodes.core.audio import MemoryAudio, mono_blocks
from talkinghead.nodes.core.live_audio import LiveAudio


def noise(n, channels=1, level=0.2):
    return (np.random.default_rng(4).standard_normal((channels, n)) * level).astype(np.float32)


def heard(audio, poll=None):
    return np.concatenate([np.zeros(0, np.float32), *audio.blocks(poll)])


def in_thread(function):
    """Run `function` beside the test; return a function that waits for its end and gives its result or error."""
    kept = []

    def work():
        try:
            kept.append(function())
        except BaseException as e:
            kept.append(e)

    thread = threading.Thread(target=work)
    thread.start()

    def result():
        thread.join(20)
        assert not thread.is_alive()
        return kept[0]

    return result


@pytest.mark.parametrize(
    ("rate", "channels"), [(16000, 1), (48000, 2), (44100, 1), (24000, 1), (8000, 1), (1000, 1)]
)
def test_it_is_the_whole_sound_at_16_khz_however_it_is_cut(rate, channels):
    sound = noise(rate * 3 // 2 + 7, channels)
    whole = np.concatenate(list(mono_blocks(MemoryAudio(sound, rate))))
    for step in (rate // 100 + 3, rate // 12, sound.shape[1]):
        audio = LiveAudio(rate, channels)
        for i in range(0, sound.shape[1], step):
            assert audio.push(sound[:, i : i + step], timeout=0)
        audio.end()
        got = heard(audio)
        assert len(got) == len(whole)
        assert np.array_equal(got, whole)
        assert audio.taken == audio.pushed == sound.shape[1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_hardly_any_sound(count):
    audio = LiveAudio(16000)
    audio.push(np.full(count, 0.5, np.float32))
    audio.end()
    audio.end()
    assert heard(audio).tolist() == [0.5] * count


def test_a_few_samples_at_another_rate():
    audio = LiveAudio(48000)
    audio.push(np.full(2, 0.5, np.float32))
    audio.end()
    assert len(heard(audio)) == 1


def test_int16_and_the_producers_buffer_is_its_own():
    audio = LiveAudio(16000)
    buffer = np.array([32767, -32768, 0], np.int16)
    audio.push(buffer)
    floats = np.array([[0.25, 0.5]], np.float32)
    audio.push(floats)
    floats[:] = buffer[:] = 9 if floats.size > 3 else 0
    audio.end()
    assert heard(audio).tolist() == [32767 / 32768, -1.0, 0.0, 0.25, 0.5]


def test_bad_samples_are_repaired_and_noted():
    audio = LiveAudio(16000, 2)
    sound = np.full((2, 6), 0.5, np.float32)
    sound[0, 2], sound[1, 3], sound[:, 5] = np.nan, np.inf, 4.0
    audio.push(sound[:, :2])
    audio.push(sound[:, 2:])
    audio.end()
    assert heard(audio).tolist() == [0.5, 0.5, 0.25, 0.25, 0.5, 1.0]
    bad, hot = audio.notes
    assert "2 NaN or Inf samples set to 0, first at 2" in bad
    assert "1 samples above full scale clipped to 1, loudest 4" in hot


def test_wrong_sound_is_refused_by_name():
    with pytest.raises(ValueError, match="sample rate 10 is not"):
        LiveAudio(10)
    with pytest.raises(ValueError, match="0 channels"):
        LiveAudio(16000, 0)
    with pytest.raises(ValueError, match="max_seconds 0"):
        LiveAudio(16000, 1, 0)
    audio = LiveAudio(16000, 2)
    for wrong, said in (
        (np.zeros(4, np.float32), r"shaped \(2, n\), not \(4,\)"),
        (np.zeros((4, 2), np.float32), r"not \(4, 2\)"),
        (np.zeros((2, 4)), "float64"),
    ):
        with pytest.raises(ValueError, match=said):
            audio.push(wrong)
    audio.end()
    with pytest.raises(ValueError, match="has ended"):
        audio.push(np.zeros((2, 4), np.float32))
    assert heard(audio).tolist() == []
    with pytest.raises(ValueError, match="consumer already"):
        audio.blocks()


def test_a_full_queue_holds_the_producer_up_and_is_all_or_nothing():
    audio = LiveAudio(16000, max_seconds=0.1)
    assert audio.push(np.zeros(1000, np.float32), timeout=0)
    assert not audio.push(np.ones(601, np.float32), timeout=0.01)
    assert audio.pushed == 1000
    assert audio.push(np.ones(600, np.float32), timeout=0)
    assert audio.queued_seconds * 16000 == 1600
    waiting = in_thread(lambda: audio.push(np.ones(9000, np.float32)))  # longer than the queue
    blocks = audio.blocks()
    got = [next(blocks), next(blocks)]
    assert waiting() is True
    audio.end()
    got += list(blocks)
    assert sum(map(len, got)) == 10600
    assert np.concatenate(got).sum() == 9600


def test_what_waits_wakes_when_the_other_side_is_gone():
    def full():
        audio = LiveAudio(16000, max_seconds=0.1)
        audio.push(np.zeros(1600, np.float32))
        return audio

    for stop, said in (
        (lambda audio: audio.end(), "has ended"),
        (lambda audio: audio.fail(OSError("line cut")), "line cut"),
    ):
        audio = full()
        waiting = in_thread(lambda audio=audio: audio.push(np.zeros(1600, np.float32)))
        time.sleep(0.02)
        stop(audio)
        assert said in str(waiting())
    audio = full()
    blocks = audio.blocks()
    next(blocks)
    audio.push(np.zeros(1600, np.float32))
    waiting = in_thread(lambda: audio.push(np.zeros(1600, np.float32)))
    time.sleep(0.02)
    blocks.close()
    assert "nobody listens" in str(waiting())


def test_a_failure_reaches_the_consumer_as_it_is():
    audio, error = LiveAudio(16000), ConnectionError("line cut")
    blocks = audio.blocks()
    result = in_thread(lambda: next(blocks))
    audio.fail(error)
    assert result() is error
    with pytest.raises(ValueError, match="line cut"):
        audio.push(np.zeros(1, np.float32))


def test_a_waiting_consumer_asks_whether_to_stop():
    class Stop(BaseException):
        pass

    asked = []

    def poll():
        asked.append(1)
        if len(asked) > 3:
            raise Stop

    with pytest.raises(Stop):
        heard(LiveAudio(16000), poll)


def test_endless_sound_takes_no_more_memory():
    import tracemalloc

    audio, got = LiveAudio(48000, max_seconds=1.0), 0
    blocks = audio.blocks()
    second = noise(48000)
    peaks = []
    tracemalloc.start()
    for k in range(120):
        audio.push(second)
        got += len(next(blocks))
        if k == 10:
            tracemalloc.reset_peak()
        if k in (20, 119):
            peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    audio.end()
    assert got + sum(map(len, blocks)) == 120 * 16000
    assert peaks[1] <= peaks[0] * 1.05 + 4096
