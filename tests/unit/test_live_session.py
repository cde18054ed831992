"""Live sessions without sockets or networks: order of messages, bounds, cancel, errors, and that nothing stays."""

import gc
import io
import json
import threading
import time
import weakref

import av
import numpy as np
import pytest
import torch
from live_fakes import RATE, FakeStream, wait_until
from media import read_number, speech_like

from talkinghead.nodes.core import live_session
from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_spec import StageSpec, TensorSpec
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.live_protocol import ProtocolError, StartRequest
from talkinghead.nodes.core.live_session import LiveSession, Outbox, SessionSlots
from talkinghead.nodes.core.turns import device_turns

PIECE = RATE * 8 // 100 * 2
"""Bytes of 80 ms."""


@pytest.fixture(autouse=True)
def _no_thread_stays():
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before)


def pcm(seconds):
    return (speech_like(seconds, RATE)[0] * 32767).astype("<i2").tobytes()


def session_of(fake, output="mp4", **fields):
    session = LiveSession(StartRequest("demo", RATE, output=output, quality="draft", **fields), fake.open)
    session.start()
    return session


def push_all(session, data, piece=PIECE, taken=None):
    """Send as a client does that reads meanwhile; returns the messages taken."""
    taken = [] if taken is None else taken
    for at in range(0, len(data), piece):
        chunk = data[at : at + piece]
        while not session.push(chunk):
            chunk = b""
            take(session, taken)
            wait_until(lambda: True)
    return taken


def take(session, taken):
    while (message := session.next_message()) is not None:
        taken.append(message)


def take_all(session, taken):
    def done():
        take(session, taken)
        return session.finished

    wait_until(done)
    assert session.join(20)
    events = [json.loads(m) for m in taken if isinstance(m, str)]
    return events, b"".join(m for m in taken if isinstance(m, bytes))


def numbers(video):
    with av.open(io.BytesIO(video)) as file:
        return [read_number(f.to_ndarray(format="rgb24")) for f in file.decode(video=0)]


def test_sound_in_video_out():
    fake = FakeStream()
    session = session_of(fake)
    taken = push_all(session, pcm(3.01))
    session.end()
    events, video = take_all(session, taken)
    kinds = [e["type"] for e in events]
    assert kinds[0] == "ready"
    assert kinds[-1] == "done"
    assert kinds.count("done") == 1
    assert (events[0]["width"], events[0]["height"], events[0]["fps"]) == (128, 96, "25")
    assert events[0]["codec"].startswith("avc1.")
    assert events[0]["facts"]["engine"] == "fake"
    assert events[-1]["frames"] == 76
    assert 0 < events[-1]["ttff_s"] <= events[-1]["took_s"]
    assert numbers(video) == list(range(76))
    with av.open(io.BytesIO(video)) as file:
        heard = sum(f.samples for f in file.decode(audio=0))
    assert round(3.01 * RATE) <= heard <= round(3.01 * RATE) + 2048
    assert fake.closed_in.name == "talkinghead-live"


def test_raw_video_leaves_no_sound_behind():
    session = session_of(FakeStream(), "h264")
    taken = push_all(session, pcm(2))
    session.end()
    _, video = take_all(session, taken)
    assert numbers(video) == list(range(50))
    assert session._sound.held == 0


def test_no_sound_at_all_is_a_film_of_no_frames():
    session = session_of(FakeStream())
    session.end()
    events, video = take_all(session, [])
    assert [e["type"] for e in events] == ["ready", "done"]
    assert events[-1]["frames"] == 0
    assert events[-1]["ttff_s"] is None
    assert video == b""


def test_a_sample_cut_in_two_is_whole_and_a_rest_is_told():
    session = session_of(FakeStream())
    taken = push_all(session, pcm(1) + b"\x01", piece=333)
    session.end()
    events, video = take_all(session, taken)
    assert numbers(video) == list(range(25))
    assert [e["message"] for e in events if e["type"] == "warning"] == [
        "the sound ended 1 of 2 bytes into a sample; they were dropped"
    ]


def test_a_client_that_is_too_fast_is_made_to_wait_and_loses_nothing():
    gate = threading.Event()
    fake = FakeStream(hook=lambda start: gate.wait(20))
    session = session_of(fake)
    data, at, refused = pcm(12), 0, 0
    while at < len(data):
        if session.push(data[at : at + PIECE]):
            at += PIECE
            continue
        if not refused:  # taken so far: the queue, and what the stream had pulled before it stood still
            assert at / 2 / RATE <= live_session.WAITING_SOUND_S + 3
        refused += 1
        gate.set()
        wait_until(lambda: session.push(b""))
        at += PIECE
    session.end()
    events, video = take_all(session, [])
    assert refused
    assert numbers(video) == list(range(300))
    assert events[-1]["frames"] == 300


def test_a_message_may_hold_more_sound_than_may_wait(monkeypatch):
    """As 1 MiB does: 65 s at 8 kHz, of the 30 s that may wait."""
    monkeypatch.setattr(live_session, "WAITING_SOUND_S", 1.0)
    monkeypatch.setattr(live_session, "TRACK_SOUND_S", 3.5)
    session, taken, held = session_of(FakeStream()), [], []

    def accepted(data):
        take(session, taken)
        took = session.push(data)
        held.append(session._sound.held)
        return took

    if not accepted(pcm(1)):
        wait_until(lambda: accepted(b""))
    if not accepted(pcm(8)):
        wait_until(lambda: accepted(b""))
    session.end()
    events, _ = take_all(session, taken)
    assert (events[-1]["type"], events[-1]["frames"]) == ("done", 25 * 9)
    assert max(held) <= 3.5 * RATE


def test_what_waits_for_a_client_that_does_not_read_is_bounded(monkeypatch):
    monkeypatch.setattr(live_session, "MAX_OUTPUT_BYTES", 6000)
    fake = FakeStream()
    session = session_of(fake)
    piece = pcm(0.08)
    refused = False
    while session._outbox.held < 6000:
        refused = not session.push(b"" if refused else piece)
        time.sleep(0.002)
    stuck = fake.batches
    while session.push(b"" if refused else piece):
        refused = False
    held, sound = session._outbox.held, session._sound.held / RATE
    assert held < 6000 + 40_000, "one batch at the most beyond"
    assert sound < live_session.WAITING_SOUND_S + 3
    assert fake.batches <= stuck + 1
    session.cancel()  # whoever owns the socket gave the client up
    assert session.join(20)
    assert session.finished
    assert session._outbox.held == 0
    assert fake.closed_in.name == "talkinghead-live"


@pytest.mark.parametrize("when", ["waiting for sound", "in a batch", "at once"])
def test_a_client_that_is_gone_leaves_nothing(when):
    inside, gate = threading.Event(), threading.Event()

    def hook(start):
        inside.set()
        gate.wait(20)

    fake = FakeStream(hook=hook if when == "in a batch" else None)
    session = session_of(fake)
    if when != "at once":
        push_all(session, pcm(0.4))
    if when == "in a batch":
        assert inside.wait(20)
    if when == "waiting for sound":
        wait_until(lambda: fake.batches == 1)
    session.cancel()
    gate.set()
    assert session.join(20)
    assert session.finished
    assert session.next_message() is None
    assert session.push(b"\x00" * PIECE), "late sound is dropped quietly"
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("fake", "stage", "message"),
    [
        (
            FakeStream(fail_open=ValueError("no avatar 'x'; there are demo")),
            "open",
            "no avatar 'x'; there are demo",
        ),
        (FakeStream(fail_open=MemoryError()), "open", "MemoryError"),
        (FakeStream(hook=lambda start: 1 // (16 - start)), "render", "division"),
    ],
)
def test_an_error_ends_the_session_and_names_its_stage(fake, stage, message):
    session = session_of(fake)
    taken = push_all(session, pcm(2))
    events, _ = take_all(session, taken)
    assert events[-1]["type"] == "error"
    assert events[-1]["stage"] == stage
    assert message in events[-1]["message"]
    assert fake.closed_in is None or fake.closed_in.name == "talkinghead-live"
    assert session.push(b"\x00" * PIECE)


def test_an_error_that_names_its_stage_keeps_it():
    error = ValueError("no such avatar")
    error.stage = "avatar"
    events, _ = take_all(session_of(FakeStream(fail_open=error)), [])
    assert events == [{"type": "error", "stage": "avatar", "message": "no such avatar"}]


def test_frames_the_encoder_cannot_take_are_its_error():
    fake = FakeStream()
    whole = fake._chunk

    def wrong(start, count):
        chunk = whole(start, count)
        return type(chunk)(chunk.chunk_idx, start, count, chunk.frames[:, :-2], False)

    fake._chunk = wrong
    session = session_of(fake)
    taken = push_all(session, pcm(1))
    events, _ = take_all(session, taken)
    assert events[-1]["stage"] == "encode"


def test_frames_after_an_error_do_not_come_but_those_before_do():
    def hook(start):
        if start >= 32:
            raise RuntimeError("the network is ill")

    session = session_of(FakeStream(hook=hook), "h264")
    taken = push_all(session, pcm(3))
    events, video = take_all(session, taken)
    assert "the network is ill" in events[-1]["message"]
    assert numbers(video) == list(range(32))


def test_after_end_nothing_but_cancel_may_come():
    session = session_of(FakeStream())
    push_all(session, pcm(0.2))
    session.end()
    with pytest.raises(ProtocolError, match="sound came after end"):
        session.push(b"\x00\x00")
    with pytest.raises(ProtocolError, match="end came twice"):
        session.end()
    session.cancel()
    assert session.join(20)


def test_stats_come_twice_a_second_at_most():
    now = [100.0]
    figures = live_session._Figures(StartRequest("demo", RATE), lambda: now[0])
    audio = LiveAudio(RATE)
    figures.heard()
    now[0] += 0.35
    figures.sent()
    assert figures.stats(8, audio) is None
    now[0] += 0.25
    first = figures.stats(15, audio)
    assert first == {"frames": 15, "ttff_s": 0.35, "fps": 25.0, "realtime": 1.0, "queue_s": 0.0}
    now[0] += 0.49
    assert figures.stats(25, audio) is None
    now[0] += 0.51
    audio.push(np.zeros(RATE // 2, np.float32))
    assert figures.stats(27, audio) == {
        "frames": 27,
        "ttff_s": 0.35,
        "fps": 12.0,
        "realtime": 0.48,
        "queue_s": 0.5,
    }
    assert figures.total(27)["seconds"] == 1.08


def test_two_sessions_share_the_network_in_turns():
    spec = StageSpec(
        "probe", (TensorSpec("x", (1,), torch.float32),), (TensorSpec("y", (1,), torch.float32),)
    )
    order, started, turns = [], threading.Barrier(2), device_turns("cpu:0")

    def network(x):
        me = int(x[0, 0])
        # A batch lasts until the other session asks for its own, or has no more.
        wait_until(lambda: turns.waiting or order.count(1 - me) == 7)
        order.append(me)
        return {"y": x}

    def session(name):
        engine = open_engine(spec, network, EngineOptions(backend="eager", batch=8), "cpu")

        def hook(start):
            if not start:
                started.wait(20)
            engine(x=torch.full((8, 1), float(name)))

        return session_of(FakeStream(hook=hook), "h264")

    both = [session(0), session(1)]
    for one in both:
        assert push_all(one, pcm(2)) == [], "all of it waits in the queue"
        one.end()
    for one in both:
        assert numbers(take_all(one, [])[1]) == list(range(50))
    assert sorted(order) == [0] * 7 + [1] * 7
    assert all(x != y for x, y in zip(order, order[1:], strict=False)), order


def test_places_are_limited_and_come_back():
    slots = SessionSlots(2)
    a, b, c = (LiveSession(StartRequest("demo", RATE), FakeStream().open) for _ in range(3))
    assert slots.add(a)
    assert slots.add(b)
    assert not slots.add(c)
    slots.remove(a)
    slots.remove(a)
    assert slots.running == 1
    assert slots.add(c)


def test_a_session_that_never_started_can_be_joined():
    session = LiveSession(StartRequest("demo", RATE), FakeStream().open)
    session.cancel()
    assert session.join(1)


def test_the_outbox_says_when_there_is_something():
    rung = []
    box = Outbox(10, lambda: rung.append(1))
    box.put("hello", lambda: None)
    box.put(b"world!", lambda: None)
    assert len(rung) == 2
    assert box.held == 11

    class Stopped(BaseException):
        pass

    polls = []

    def poll():
        polls.append(1)
        if len(polls) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        box.put("no room", poll)
    assert [box.get(), box.get(), box.get()] == ["hello", b"world!", None]
    assert not box.drained
    box.close(drop=False)
    assert box.drained
