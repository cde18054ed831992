"""Live sessions on a card: they share its stream and recorded engines, and each gets the frames it would get alone."""

from __future__ import annotations

import json
import threading
import time
from fractions import Fraction

import pytest
import torch

from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.bench import speech_like
from talkinghead.nodes.core.frames import FrameInfo, RunContext
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.live_protocol import StartRequest
from talkinghead.nodes.core.live_session import LiveSession, LiveStream
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.stream import stream_musetalk

pytestmark = pytest.mark.gpu

RATE, SECONDS = 16000, 4


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def packet(tmp_path):
    return resolve_avatar(RunContext("cuda"), "demo_loop", [tmp_path])


def frames(ctx, model, packet, first, batch):
    audio = LiveAudio(RATE, max_seconds=60)
    audio.push(speech_like(first, SECONDS * RATE))
    audio.end()
    chunks = stream_musetalk(ctx, model, packet, audio, batch=batch, matrix="bt601")
    return torch.cat([c.frames.cpu() for c in chunks])


def test_sessions_that_start_while_others_run_change_no_frame(packet):
    """Four at once, two batch sizes: engines are recorded on the stream on which the others are running.

    Equal bytes need the same engines: cuDNN may choose other algorithms for each recording.
    """
    model, jobs = MuseTalkModel(precision="fp16"), [(0, 8), (777, 8), (5000, 4), (9999, 4)]
    shared, got, failed = RunContext("cuda"), {}, []

    def run(job):
        try:
            with torch.inference_mode():
                got[job] = frames(shared.nested(), model, packet, *job)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join(120)
    assert failed == []
    for job in jobs:
        assert torch.equal(got[job], frames(shared.nested(), model, packet, *job)), job
        own = frames(RunContext("cuda"), model, packet, *job)
        apart = (got[job].int() - own.int()).abs()
        print(job, "most levels apart from engines of its own:", int(apart.max()))
        assert apart.max() <= 2, job


def test_a_session_from_sound_to_bytes(packet):
    """Prints seconds from the first sound to the first bytes, of the second session: the first opens the engines."""
    model, shared = MuseTalkModel(precision="fp16"), RunContext("cuda")

    def open_stream(audio, is_cancelled, report):
        info = FrameInfo(*packet.info.size, Fraction(25), None, "nv12", "bt601", "limited")
        return LiveStream(info, stream_musetalk(shared.nested(), model, packet, audio, matrix="bt601"))

    for _ in range(2):
        session = LiveSession(StartRequest("demo_loop", RATE, sample_format="f32"), open_stream)
        session.start()
        sound = speech_like(0, SECONDS * RATE).astype("<f4").tobytes()
        for start in range(0, len(sound), RATE // 100 * 8 * 4):
            piece = sound[start : start + RATE // 100 * 8 * 4]
            while not session.push(piece):
                piece = b""
                time.sleep(0.005)
        session.end()
        events = []
        while not session.finished:
            message = session.next_message()
            if message is None:
                time.sleep(0.002)
            elif isinstance(message, str):
                events.append(json.loads(message))
        assert session.join(20)
        assert events[-1]["type"] == "done", events
        assert events[-1]["frames"] == SECONDS * 25
        print(events[0]["encoder"], events[-1])
