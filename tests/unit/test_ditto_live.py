"""Live rendering with Ditto end to end: the frames of the batch path, marked right, whatever the sound does."""

from __future__ import annotations

import threading
from fractions import Fraction

import ditto_speaker
import numpy as np
import pytest
import torch
from ditto_render_parts import ditto_avatar

from talkinghead.nodes.avatars.composite import composite_stream
from talkinghead.nodes.core.cadence import CadenceOptions
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.video_write import WriteOptions, write_video
from talkinghead.nodes.ditto import handle as handle_module
from talkinghead.nodes.ditto.handle import DittoModel
from talkinghead.nodes.ditto.model import save_modules
from talkinghead.nodes.ditto.motion_plan import Motion, MotionOptions
from talkinghead.nodes.ditto.render import DittoCropStream
from talkinghead.nodes.ditto.speech import DittoSpeech
from talkinghead.nodes.ditto.stream import stream_ditto

OPTIONS = MotionOptions(steps=2)


@pytest.fixture(autouse=True)
def _alone():
    threads, before = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    assert set(threading.enumerate()) <= threads


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ditto")
    save_modules(ditto_speaker.modules(), folder, torch.float32)
    return folder


@pytest.fixture
def model(weights, monkeypatch):
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", weights)
    return DittoModel()


@pytest.fixture
def avatar(model, tmp_path):
    return ditto_avatar(tmp_path, model, n_keypoints=ditto_speaker.K)


def live(samples, step=1280, rate=16000):
    audio = LiveAudio(rate, max_seconds=60)
    for i in range(0, len(samples), step):
        audio.push(samples[i : i + step])
    audio.end()
    return audio


def stream(model, packet, audio, *args, ctx=None, **kwargs):
    return stream_ditto(ctx or RunContext(), model, packet, audio, *args, options=OPTIONS, **kwargs)


def checked(chunks, frames):
    """All frames of the chunks, whose numbering and last mark are right."""
    with torch.inference_mode():
        chunks = list(chunks)
    assert [c.chunk_idx for c in chunks] == list(range(len(chunks)))
    assert [c.frame_start for c in chunks] == np.cumsum([0, *(c.num_frames for c in chunks[:-1])]).tolist()
    assert [c.is_last for c in chunks] == [False] * (len(chunks) - 1) + [True]
    out = torch.cat([c.frames for c in chunks])
    assert len(out) == frames
    return out


def test_of_a_clip_the_stream_is_the_batch_path_bit_for_bit(model, avatar):
    audio, ctx = ditto_speaker.clip(0.5), RunContext()
    motion = Motion(model, avatar, DittoSpeech(model, audio, Fraction(25)), OPTIONS)
    batch = composite_stream(DittoCropStream(model, avatar, motion), avatar)
    with torch.inference_mode():
        whole = torch.cat([c.frames for c in batch.chunks(ctx, 5)])
        planes = torch.cat([c.frames for c in batch.nv12("bt601").chunks(ctx, 5)])
    assert len({frame.numpy().tobytes() for frame in whole}) == 13
    assert torch.equal(checked(stream(model, avatar, audio), 13), whole)
    assert torch.equal(checked(stream(model, avatar, audio, matrix="bt601"), 13), planes)


def test_live_frames_do_not_depend_on_the_pushes(model, avatar):
    sound = ditto_speaker.sound(1.21)
    kwargs = {"cadence": CadenceOptions("2"), "matrix": "bt709"}
    whole = checked(stream(model, avatar, live(sound, len(sound)), **kwargs), 31)
    for step in (640, 5120):
        assert torch.equal(checked(stream(model, avatar, live(sound, step), **kwargs), 31), whole)
    by_clip = stream(model, avatar, ditto_speaker.clip(1.21), features="live", **kwargs)
    assert torch.equal(checked(by_clip, 31), whole)
    file = checked(stream(model, avatar, ditto_speaker.clip(1.21), **kwargs), 31)
    assert not torch.equal(file, whole)  # or the comparisons prove nothing


@pytest.mark.parametrize(("fps", "n", "frames"), [("1", 16001, 2), ("30", 16000, 30), ("59.94", 8008, 30)])
def test_the_last_chunk_is_marked_at_every_rate(model, avatar, fps, n, frames):
    sound = ditto_speaker.sound(3)[:n]
    checked(stream(model, avatar, live(sound, 640), fps, batch=4), frames)


def test_frames_come_while_sound_is_still_missing(model, avatar):
    audio, sound = LiveAudio(16000), ditto_speaker.sound(2)
    chunks = stream(model, avatar, audio)
    audio.push(sound[: int(0.885 * 16000)])
    chunk = next(chunks)
    assert (chunk.frame_start, chunk.num_frames, chunk.is_last) == (0, 8, False)
    audio.end()
    rest = list(chunks)
    assert sum(c.num_frames for c in rest) == 15  # 0.885 s are 22.1 frames
    assert rest[-1].is_last


def test_no_sound_gives_no_chunk(model, avatar):
    assert list(stream(model, avatar, live(np.zeros(0, np.float32)))) == []


def test_a_film_is_written_and_a_stream_may_never_begin(model, avatar, tmp_path):
    crops = stream(model, avatar, live(ditto_speaker.sound(1)))
    crops.close()  # never begun
    motion = Motion(model, avatar, DittoSpeech(model, ditto_speaker.clip(1), Fraction(25)), OPTIONS)
    film = composite_stream(DittoCropStream(model, avatar, motion), avatar)
    options = WriteOptions(codec="libx264", quality="draft")
    result = write_video(film, tmp_path / "a.mp4", RunContext(), ditto_speaker.clip(1), options)
    assert (result.n_frames, result.duration) == (25, 1)


def test_a_stop_is_heard_while_it_waits_for_sound(model, avatar):
    stopped = threading.Event()
    ctx = RunContext(is_cancelled=stopped.is_set)
    audio = LiveAudio(16000)
    audio.push(ditto_speaker.sound(0.9))
    chunks = stream(model, avatar, audio, ctx=ctx)
    next(chunks)
    threading.Timer(0.05, stopped.set).start()
    with pytest.raises(RunCancelled):
        list(chunks)
    assert len(checked(stream(model, avatar, ditto_speaker.clip(0.4), ctx=RunContext()), 10)) == 10


def test_what_cannot_work_is_refused_at_the_call(model, avatar, tmp_path):
    odd = ditto_avatar(tmp_path, model, "odd", size=(161, 120), n_keypoints=ditto_speaker.K)
    for kwargs, said in (
        ({"features": "late"}, "features 'late'"),
        ({"features": "file"}, "need the whole sound"),
        ({"batch": 0}, "batch 0"),
        ({"mask_mode": "mouth only"}, "mask mode 'mouth only' is for MuseTalk"),
        ({"fps": 0}, "fps 0 is outside"),
        ({"matrix": "bt2020"}, "matrix 'bt2020' is unknown; use one of bt709, bt601"),
        ({"memory": "disk"}, "memory 'disk'"),
        ({"smooth": (4, 2)}, "window"),
        ({"avatar": odd, "matrix": "bt709"}, "161x120"),
    ):
        given = {"model": model, "avatar": avatar, "audio": LiveAudio(16000)} | kwargs
        with pytest.raises(ValueError, match=said):
            stream_ditto(RunContext(), **given)
