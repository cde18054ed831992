"""Live rendering end to end: the frames of the batch path, marked right, whatever the sound does."""

import threading
from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.frames import RunCancelled, RunContext, StageError
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.timeline import parse_fps
from talkinghead.nodes.core.video_write import WriteOptions, write_video
from talkinghead.nodes.musetalk import live_speech
from talkinghead.nodes.musetalk.live_distance import feature_distance, mouth_distance
from talkinghead.nodes.musetalk.live_speech import LiveSpeech
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.musetalk.stream import stream_musetalk


@pytest.fixture(autouse=True)
def _small_and_alone(monkeypatch):
    monkeypatch.setattr(live_speech, "WINDOW_ROWS", 60)
    threads, before = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    assert set(threading.enumerate()) <= threads


def live(samples, step=1280, rate=16000):
    audio = LiveAudio(rate, max_seconds=60)
    for i in range(0, len(samples), step):
        audio.push(samples[i : i + step])
    audio.end()
    return audio


def checked(chunks, frames):
    """All frames of the chunks, whose numbering and last mark are right."""
    chunks = list(chunks)
    assert [c.chunk_idx for c in chunks] == list(range(len(chunks)))
    assert [c.frame_start for c in chunks] == np.cumsum([0, *(c.num_frames for c in chunks[:-1])]).tolist()
    assert [c.is_last for c in chunks] == [False] * (len(chunks) - 1) + [True]
    out = torch.cat([c.frames for c in chunks])
    assert len(out) == frames
    return out


def test_of_a_clip_the_stream_is_the_batch_path_bit_for_bit(tiny_model, avatar, tone):
    packet, audio, ctx = avatar(), tone(1.0), RunContext()
    batch = CompositeStream(CropStream(tiny_model, packet, Speech(tiny_model, audio, Fraction(25))), packet)
    whole = torch.cat([c.frames for c in batch.chunks(ctx, 5)])
    assert torch.equal(checked(stream_musetalk(ctx, tiny_model, packet, audio), 25), whole)
    planes = torch.cat([c.frames for c in batch.nv12("bt601").chunks(ctx, 5)])
    streamed = stream_musetalk(ctx, tiny_model, packet, audio, matrix="bt601")
    assert torch.equal(checked(streamed, 25), planes)


@pytest.mark.parametrize("matrix", [None, "bt709"])
def test_live_frames_do_not_depend_on_the_pushes(tiny_model, avatar, tone, matrix):
    packet, sound, ctx = avatar(), tone(1.01).samples[0], RunContext()
    whole = checked(stream_musetalk(ctx, tiny_model, packet, live(sound, len(sound)), matrix=matrix), 26)
    for step in (320, 5120):
        again = checked(stream_musetalk(ctx, tiny_model, packet, live(sound, step), matrix=matrix), 26)
        assert torch.equal(again, whole)
    by_clip = stream_musetalk(ctx, tiny_model, packet, tone(1.01), matrix=matrix, features="live")
    assert torch.equal(checked(by_clip, 26), whole)
    file = checked(stream_musetalk(ctx, tiny_model, packet, tone(1.01), matrix=matrix), 26)
    assert not torch.equal(file, whole)  # or the comparisons prove nothing


@pytest.mark.parametrize(
    ("fps", "n", "frames"), [("1", 16000, 1), ("1", 16001, 2), ("1", 40000, 3), ("59.94", 8008, 30)]
)
def test_the_last_chunk_is_marked_at_every_rate(tiny_model, avatar, tone, fps, n, frames):
    sound = tone(3).samples[0][:n]
    for batch in (1, 2):
        chunks = stream_musetalk(
            RunContext(), tiny_model, avatar(), live(sound, 640), parse_fps(fps), batch=batch
        )
        checked(chunks, frames)


def test_frames_come_while_sound_is_still_missing(tiny_model, avatar, tone):
    audio, sound, ctx = LiveAudio(16000), tone(2).samples[0], RunContext()
    chunks = stream_musetalk(ctx, tiny_model, avatar(), audio, batch=8, first_batch=2)
    audio.push(sound[:3840])
    chunk = next(chunks)
    assert (chunk.num_frames, chunk.is_last) == (2, False)
    audio.push(sound[3840:8960])
    chunk = next(chunks)
    assert (chunk.frame_start, chunk.num_frames, chunk.is_last) == (2, 8, False)
    audio.end()
    rest = list(chunks)
    assert [(c.frame_start, c.num_frames, c.is_last) for c in rest] == [(10, 4, True)]


def test_no_sound_gives_no_chunk_and_no_film(tiny_model, avatar, tmp_path):
    packet = avatar()
    assert list(stream_musetalk(RunContext(), tiny_model, packet, live(np.zeros(0, np.float32)))) == []
    stream = CompositeStream(
        CropStream(tiny_model, packet, LiveSpeech(tiny_model, live(np.zeros(0, np.float32)), Fraction(25))),
        packet,
    )
    with pytest.raises(ValueError, match="without a frame"):
        write_video(stream, tmp_path / "a.mp4", RunContext())
    assert [p.name for p in tmp_path.iterdir()] == ["avatars"]


def test_a_live_stream_can_be_written_and_its_end_is_its_length(tiny_model, avatar, tone, tmp_path):
    packet, told = avatar(), []
    ctx = RunContext(progress=lambda *a: told.append(a))
    stream = CompositeStream(
        CropStream(tiny_model, packet, LiveSpeech(tiny_model, live(tone(1.0).samples[0]), Fraction(25))),
        packet,
    )
    assert (stream.info.n_frames, stream.info.seconds) == (None, None)
    options = WriteOptions(codec="libx264", quality="draft")
    result = write_video(stream, tmp_path / "a.mp4", ctx, tone(1.0), options)
    assert (result.n_frames, result.duration) == (25, 1)
    assert told == []


def test_what_cannot_work_is_refused_at_the_call(tiny_model, avatar, tone):
    packet, ctx = avatar(), RunContext()
    odd = avatar("odd", size=(97, 80))
    for kwargs, said in (
        ({"features": "late"}, "features 'late'"),
        ({"features": "file"}, "need the whole sound"),
        ({"first_batch": 9}, "first_batch 9"),
        ({"batch": 0}, "batch 0"),
        ({"mask_mode": "x"}, "mask mode 'x'"),
        ({"fps": 0}, "fps 0 is outside"),
        ({"fps": "fast"}, "fps 'fast' is not a rate"),
        ({"matrix": "bt2020"}, "matrix 'bt2020' is unknown; use one of bt709, bt601"),
    ):
        with pytest.raises(ValueError, match=said):
            stream_musetalk(ctx, tiny_model, packet, LiveAudio(16000), **kwargs)
    with pytest.raises(ValueError, match="goes with features 'live'"):
        stream_musetalk(ctx, tiny_model, packet, tone(1), first_batch=2)
    with pytest.raises(ValueError, match="97x80"):
        stream_musetalk(ctx, tiny_model, odd, LiveAudio(16000), matrix="bt709")


def test_a_stream_that_was_never_begun_leaves_the_sound_alone(tiny_model, avatar, tone):
    audio = LiveAudio(16000, max_seconds=1.0)
    stream_musetalk(RunContext(), tiny_model, avatar(), audio).close()
    audio.push(tone(0.5).samples[0])
    audio.end()
    assert sum(map(len, audio.blocks())) == 8000


def test_closing_early_wakes_the_producer(tiny_model, avatar, tone):
    audio = LiveAudio(16000, max_seconds=0.1)
    said = []

    def produce():
        try:
            while True:
                audio.push(tone(0.1).samples[0])
        except ValueError as e:
            said.append(str(e))

    thread = threading.Thread(target=produce)
    thread.start()
    chunks = stream_musetalk(RunContext(), tiny_model, avatar(), audio)
    next(chunks)
    chunks.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "nobody listens" in said[0]


def test_a_broken_line_and_a_cancel_end_the_run_by_name(tiny_model, avatar, tone):
    audio = LiveAudio(16000)
    chunks = stream_musetalk(RunContext(), tiny_model, avatar(), audio)
    audio.push(tone(0.6).samples[0])
    next(chunks)
    audio.fail(ConnectionError("line cut"))
    with pytest.raises(StageError, match="Speech features: line cut"):
        next(chunks)
    flag = []
    ctx = RunContext(is_cancelled=lambda: len(flag) > 3 or flag.append(1))
    with pytest.raises(RunCancelled):
        list(stream_musetalk(ctx, tiny_model, avatar(), LiveAudio(16000)))
    audio = LiveAudio(16000)
    chunks = stream_musetalk(RunContext(), tiny_model, avatar(), audio)
    audio.fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        next(chunks)


def test_distances_are_measured_and_told(tiny_model, avatar, tone):
    ctx = RunContext()
    distance = feature_distance(ctx, tiny_model, tone(1.0))
    assert 0.01 < distance.relative < 1
    assert 0.5 < distance.cosine < 1
    assert str(distance) in ctx.report.facts["live features against the whole file's"]
    mouth = mouth_distance(ctx, tiny_model, avatar(), tone(1.0))
    assert 20 < mouth.worst <= mouth.mouth < 100
    faceless = avatar("none", boxes=[(20, 10, 70, 70)] + [None] * 4)
    assert mouth_distance(ctx, tiny_model, faceless, tone(0.5)).mouth < 100
