"""The pipeline of a render, stages ahead of each other: the same film, and nothing left behind however it ends."""

import gc
import itertools
import os
import random
import signal
import threading
import time
import weakref
from contextlib import closing

import numpy as np
import pytest
import torch
from media import decode

from talkinghead.nodes.core import video_encode
from talkinghead.nodes.core.frames import FrameStream, RunCancelled, RunContext, StageError
from talkinghead.nodes.core.plates import HostPlates
from talkinghead.nodes.core.pool import AvatarPool
from talkinghead.nodes.core.stage_thread import current_stage
from talkinghead.nodes.core.video_write import WriteOptions, write_video
from talkinghead.nodes.musetalk import speech as speech_module
from talkinghead.nodes.musetalk.model import MuseTalkNets
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech

DRAFT = WriteOptions(quality="draft", codec="libx264")


@pytest.fixture(autouse=True)
def _one_thread_count():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def film(tiny_model, avatar, tone):
    """Return a function: seconds -> a CompositeStream and its sound."""
    packet = avatar()

    def make(seconds, batch=4):
        audio = tone(seconds)
        crops = CropStream(tiny_model, packet, Speech(tiny_model, audio, packet.info.fps), batch)
        return CompositeStream(crops, packet), audio

    return make


def frames_of(stream, n, overlap):
    with torch.inference_mode():
        return torch.cat([c.frames for c in stream.chunks(RunContext(overlap=overlap), n)])


@pytest.mark.parametrize("layout", ["rgb", "nv12"])
def test_the_same_frames_ahead_or_not_for_every_chunk_size(film, layout):
    stream, _ = film(1.0)
    stream = stream if layout == "rgb" else stream.nv12("bt601")
    alone = frames_of(stream, 4, False)
    assert len(alone) == 25
    assert len(np.unique(alone.numpy().reshape(25, -1), axis=0)) == 25
    for n in (1, 3, 4, 8, 100):
        assert torch.equal(frames_of(stream, n, True), alone)


def test_a_sound_of_several_pieces_gives_the_same_frames(film, monkeypatch, tiny_model):
    """Pieces of 30 s would take a minute: here they last 1.28 s."""
    stream, _ = film(3.0)
    config = tiny_model.config.whisper
    real = speech_module.pieces
    monkeypatch.setattr(
        speech_module, "pieces", lambda clip, size, rate, report: real(clip, 20480, rate, report)
    )
    assert config.piece_samples > 20480
    assert torch.equal(frames_of(stream, 5, True), frames_of(stream, 8, False))


def test_each_stage_has_its_thread_and_the_consumer_makes_the_composite(film, monkeypatch, tmp_path):
    where = {}

    def note(owner, method, stage):
        real = getattr(owner, method)

        def noted(self, *args, **kwargs):
            where.setdefault(stage, set()).add(threading.current_thread().name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, noted)

    note(MuseTalkNets, "encode_audio", "features")
    note(MuseTalkNets, "forward", "neural")
    note(HostPlates, "blend", "composite")
    note(video_encode.VideoFile, "write", "encode")
    stream, audio = film(0.8)
    write_video(stream, tmp_path / "a.mp4", RunContext(), audio, DRAFT)
    main = threading.current_thread().name
    assert where == {
        "features": {"talkinghead Speech features"},
        "neural": {"talkinghead MuseTalk render"},
        "composite": {main},
        "encode": {"talkinghead-writer"},
    }
    where.clear()
    write_video(stream, tmp_path / "b.mp4", RunContext(overlap=False), audio, DRAFT)
    assert where == {
        "features": {main},
        "neural": {main},
        "composite": {main},
        "encode": {"talkinghead-writer"},
    }
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_one_after_the_other_means_that_the_encoder_is_waited_for(film, monkeypatch, tmp_path):
    busy, seen = threading.Event(), []
    write, forward = video_encode.VideoFile.write, MuseTalkNets.forward

    def slow_write(self, pixels):
        busy.set()
        time.sleep(0.002)
        write(self, pixels)
        busy.clear()

    def watched(self, latents, tokens):
        seen.append(busy.is_set())
        return forward(self, latents, tokens)

    monkeypatch.setattr(video_encode.VideoFile, "write", slow_write)
    monkeypatch.setattr(MuseTalkNets, "forward", watched)
    stream, audio = film(1.0)
    write_video(stream, tmp_path / "a.mp4", RunContext(overlap=False), audio, DRAFT)
    assert len(seen) == 7
    assert not any(seen)


STAGES = {
    "features": (MuseTalkNets, "encode_audio", "^Speech features: broken"),
    "neural": (MuseTalkNets, "forward", "^MuseTalk render, from frame 8 of 40: broken"),
    "composite": (HostPlates, "blend", "^Composite, from frame 8 of 40: broken"),
    "encode": (video_encode.VideoFile, "write", "^video writer, frame 2 of 40: ValueError: broken"),
}


@pytest.mark.parametrize("overlap", [True, False], ids=["threads", "one thread"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_in_any_stage_ends_all_and_names_it(film, monkeypatch, tmp_path, stage, overlap):
    owner, method, message = STAGES[stage]
    real, count = getattr(owner, method), itertools.count(1 if stage == "features" else -1)

    def broken(self, *args, **kwargs):
        if next(count) == 1:
            raise ValueError("broken")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, broken)
    stream, audio = film(1.6)
    with pytest.raises(StageError, match=message) as raised:
        write_video(stream, tmp_path / "a.mp4", RunContext(overlap=overlap), audio, DRAFT)
    assert isinstance(raised.value.__cause__, ValueError)
    assert os.listdir(tmp_path) == ["avatars"]


class Watched(FrameStream):
    """Passes a stream on and remembers its chunks, weakly."""

    stage = "watched"

    def __init__(self, source):
        self._source, self.info, self.refs = source, source.info, []

    def nv12(self, matrix, color_range="limited"):
        made = self._source.nv12(matrix, color_range)
        return None if made is None else self._over(made)

    def _over(self, made):
        other = Watched(made)
        other.refs = self.refs
        return other

    def generate(self, ctx, n):
        with closing(self._source.chunks(ctx, n)) as chunks:
            for chunk in chunks:
                self.refs.append(weakref.ref(chunk.frames))
                yield chunk.frames, None


class PooledContext(RunContext):
    """As in a server: models stay loaded, avatars are in a pool, pinned while a run uses them."""

    def __init__(self, pool, models, **kwargs):
        super().__init__(**kwargs)
        self._pool, self._models = pool, models

    def use_avatar(self, packet):
        return self._pool.use(packet, self.device)


@pytest.fixture
def _ctrl_c():
    """Ctrl-C raises KeyboardInterrupt, also where the shell started the tests in the background, deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def settings(film):
    pool = AvatarPool(1 << 26, idle_seconds=3600)
    stream, audio = film(0.8)
    models = {}

    def write(path, source=stream, **kwargs):
        return write_video(source, path, PooledContext(pool, models, **kwargs), audio, DRAFT)

    yield pool, stream, write
    pool.flush()
    until(lambda: not any(t.name == "avatar pool" for t in threading.enumerate()))


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def nothing_is_left(pool, refs, folder, allowed):
    gc.collect()
    assert not [r for r in refs if r() is not None]
    assert pool.stats().pinned == 0
    assert set(os.listdir(folder)) <= allowed
    stages = [t for t in threading.enumerate() if t.name.startswith("talkinghead")]
    assert stages == []


@pytest.mark.usefixtures("_ctrl_c")
def test_cancel_at_random_moments_leaves_nothing(settings, tmp_path):
    """Ten stops by the user and ten by Ctrl-C, anywhere between the first feature and the last frame."""
    pool, stream, write = settings
    target, rng = tmp_path / "a.mp4", random.Random(5)
    write(target)
    began = time.perf_counter()
    write(target)
    usual, whole = time.perf_counter() - began, target.read_bytes()
    target.unlink()
    stopped = 0
    for k in range(20):
        watched, stop = Watched(stream), threading.Event()
        act = stop.set if k % 2 else lambda: signal.raise_signal(signal.SIGINT)
        timer = threading.Timer(rng.random() * usual, act)
        try:
            timer.start()  # may be ended by its own Ctrl-C
            write(target, watched, is_cancelled=stop.is_set)
            timer.join()
        except (RunCancelled, KeyboardInterrupt):
            stopped += 1
        timer.join()
        # Ctrl-C may also come when the film has its name.
        assert not target.exists() or target.read_bytes() == whole
        target.unlink(missing_ok=True)
        nothing_is_left(pool, watched.refs, tmp_path, {"avatars"})
        assert current_stage() is None
    assert stopped >= 10
    write(target)
    assert target.read_bytes() == whole
    assert len(decode(target)) == 20


def test_memory_after_many_cancelled_runs_is_that_of_one(settings, tmp_path):
    """What Python allocates, counted: runs that were stopped in the middle add nothing."""
    import tracemalloc

    pool, _, write = settings

    def stopped_run(at):
        asked = itertools.count()
        with pytest.raises(RunCancelled):
            write(tmp_path / "a.mp4", is_cancelled=lambda: next(asked) >= at)

    for k in range(4):
        stopped_run(k)
    tracemalloc.start()
    try:
        stopped_run(2)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for k in range(12):
            stopped_run(k % 4)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # One chunk of four frames kept from one of them would be 46 kB.
    assert after - before < 20_000
