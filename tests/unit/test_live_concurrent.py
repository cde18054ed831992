"""Sessions beside each other: they share models, engines and avatars, and each gets the frames it would get alone."""

import json
import threading
from fractions import Fraction

import pytest
import torch
from live_fakes import wait_until

from talkinghead.nodes.core.frames import FrameInfo, RunContext
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.live_protocol import StartRequest
from talkinghead.nodes.core.live_session import LiveSession, LiveStream
from talkinghead.nodes.musetalk import live_speech
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
    wait_until(lambda: set(threading.enumerate()) <= threads)


class Shared(RunContext):
    """A session's context on the models of another, as a server's."""

    def __init__(self, outer, is_cancelled):
        super().__init__(outer.device, is_cancelled=is_cancelled)
        self._outer = outer

    def using_models(self):
        return self._outer.using_models()

    def load(self, handle):
        return self._outer.load(handle)

    def _shelf(self, handle):
        return self._outer._shelf(handle)


def streamed(ctx, model, packet, clip, step):
    audio = LiveAudio(16000, max_seconds=60)
    for start in range(0, clip.n_samples, step):
        audio.push(clip.samples[0, start : start + step])
    audio.end()
    return torch.cat([c.frames for c in stream_musetalk(ctx, model, packet, audio, matrix="bt601")])


def test_each_gets_the_frames_it_would_get_alone(tiny_model, avatar, tone):
    packets = [avatar("red"), avatar("blue", (40, 40, 200), n=3)]
    clips = [tone(1.1), tone(1.3, hz=400.0)]
    alone = [streamed(RunContext(), tiny_model, p, c, 1280) for p, c in zip(packets, clips, strict=True)]
    file = CompositeStream(
        CropStream(tiny_model, packets[0], Speech(tiny_model, clips[0], Fraction(25)), 3), packets[0]
    )
    film = torch.cat([c.frames for c in file.chunks(RunContext(), 3)])
    outer, got, failed = RunContext(), {}, []

    def run(name, work):
        try:
            got[name] = work(Shared(outer, lambda: False))
        except BaseException as e:
            failed.append(e)

    works = {
        "first": lambda ctx: streamed(ctx, tiny_model, packets[0], clips[0], 1280),
        "second": lambda ctx: streamed(ctx, tiny_model, packets[1], clips[1], 999),
        "prompt": lambda ctx: torch.cat([c.frames for c in file.chunks(ctx, 3)]),
    }
    threads = [threading.Thread(target=run, args=item) for item in works.items()]
    closer = threading.Event()

    def close_engines():
        # A prompt that wants the memory, again and again.
        while not closer.wait(0.02):
            outer.close_engines()

    threads.append(threading.Thread(target=close_engines))
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join(60)
        assert not thread.is_alive()
    closer.set()
    threads[-1].join(20)
    assert failed == []
    assert torch.equal(got["first"], alone[0])
    assert torch.equal(got["second"], alone[1])
    assert torch.equal(got["prompt"], film)


def test_a_whole_session_on_the_real_stream(tiny_model, avatar, tone):
    """Opened, rendered and encoded; cancelled in the middle the next one is as good."""
    packet, outer = avatar(), RunContext()
    clip = tone(1.0)
    sound = (clip.samples[0] * 32767).astype("<i2").tobytes()

    def open_stream(audio, is_cancelled, report):
        ctx = Shared(outer, is_cancelled)
        info = FrameInfo(*packet.info.size, Fraction(25), 0, "nv12", "bt601", "limited")
        return LiveStream(info, stream_musetalk(ctx, tiny_model, packet, audio, matrix="bt601"))

    def run(stop_early):
        session = LiveSession(StartRequest("red", 16000, output="h264", quality="draft"), open_stream)
        session.start()
        for start in range(0, len(sound), 2560):
            wait_until(lambda at=start: session.push(sound[at : at + 2560]))
        if stop_early:
            session.cancel()
        else:
            session.end()
        events = []

        def done():
            while (message := session.next_message()) is not None:
                if isinstance(message, str):
                    events.append(json.loads(message))
            return session.finished

        wait_until(done)
        assert session.join(20)
        return events

    first = run(stop_early=False)
    assert first[-1]["type"] == "done", first
    assert first[-1]["frames"] == 25
    run(stop_early=True)
    assert run(stop_early=False)[-1]["frames"] == 25
