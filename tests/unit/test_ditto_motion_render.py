"""Motion and render together, from a packet on disk: the same faces in any batch and chunk, of a file and live."""

from __future__ import annotations

import threading
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest
import torch
from ditto_render_parts import ditto_avatar

from talkinghead.nodes.core.cadence import CadenceOptions
from talkinghead.nodes.core.frames import RunContext, StageError
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.ditto.live_motion import LiveDittoSpeech
from talkinghead.nodes.ditto.motion_cache import MOTIONS
from talkinghead.nodes.ditto.motion_edit import MotionEdits
from talkinghead.nodes.ditto.motion_plan import Motion, MotionOptions
from talkinghead.nodes.ditto.render import DittoCropStream
from talkinghead.nodes.ditto.speech import DittoSpeech

FPS = Fraction(25)


@pytest.fixture(autouse=True)
def _alone():
    MOTIONS.clear()
    threads, before = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    MOTIONS.clear()
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def face(ditto_model, tmp_path):
    return ditto_avatar(tmp_path, ditto_model, n=3, faceless=(1,), fps=Fraction(30))


def rendered(stream, n=8, ctx=None):
    chunks = list(stream.chunks(ctx or RunContext(), n))
    placed = [chunk.placement for chunk in chunks]
    return (
        torch.cat([chunk.frames for chunk in chunks]),
        torch.cat([p.avatar_index for p in placed]),
        torch.cat([p.usable for p in placed]),
    )


@pytest.mark.parametrize("cadence", [None, CadenceOptions("2")])
def test_chunks_change_nothing(ditto_model, face, tone, cadence):
    speech = DittoSpeech(ditto_model, tone(1.3), FPS)
    motion = Motion(ditto_model, face, speech, MotionOptions(steps=2), (5, 2), MotionEdits(blink="timed"))
    whole = rendered(DittoCropStream(ditto_model, face, motion, cadence=cadence), 64)
    assert len(whole[0]) == 33
    assert whole[1].tolist() == [int(k * Fraction(30, 25)) % 3 for k in range(33)]
    assert torch.equal(whole[2], whole[1] != 1)
    assert whole[0].float().std(0).max() > 0
    for n in (1, 8):
        made = rendered(DittoCropStream(ditto_model, face, motion, cadence=cadence), n)
        assert all(torch.equal(a, b) for a, b in zip(made, whole, strict=True))


def test_live_sound_is_the_same_however_it_comes(ditto_model, face, tone):
    samples = tone(1.5).samples[0]

    def made(step, n):
        audio = LiveAudio(16000, max_seconds=10)
        for i in range(0, len(samples), step):
            audio.push(samples[i : i + step])
        audio.end()
        motion = Motion(ditto_model, face, LiveDittoSpeech(ditto_model, audio, FPS), MotionOptions(steps=2))
        return rendered(DittoCropStream(ditto_model, face, motion), n)

    whole = made(len(samples), 64)
    assert len(whole[0]) == 38
    for step, n in ((160, 8), (1234, 3)):
        assert all(torch.equal(a, b) for a, b in zip(made(step, n), whole, strict=True))


def test_a_render_that_is_left_ends_its_threads(ditto_model, face, tone):
    motion = Motion(ditto_model, face, DittoSpeech(ditto_model, tone(30), FPS), MotionOptions(steps=2))
    with closing(DittoCropStream(ditto_model, face, motion).chunks(RunContext(), 8)) as chunks:
        assert next(chunks).num_frames == 8
    assert MOTIONS.n_bytes == 0


def test_a_failing_encoder_is_named_and_the_next_run_works(ditto_model, face, tone, monkeypatch):
    from talkinghead.nodes.ditto.speech_encoder import SpeechEncoder

    motion = Motion(ditto_model, face, DittoSpeech(ditto_model, tone(1), FPS), MotionOptions(steps=2))
    stream = DittoCropStream(ditto_model, face, motion)

    def broken(self, samples):
        raise ValueError("no ears")

    with monkeypatch.context() as patched:
        patched.setattr(SpeechEncoder, "forward", broken)
        with pytest.raises(StageError, match="Speech features: no ears"):
            rendered(stream)
    assert len(rendered(stream)[0]) == 25


def test_silence_is_rendered_too(ditto_model, face):
    from talkinghead.nodes.core.audio import MemoryAudio

    speech = DittoSpeech(ditto_model, MemoryAudio(np.zeros(16000, np.float32), 16000), FPS)
    ctx = RunContext()
    cadence = CadenceOptions("adaptive")
    frames, _, usable = rendered(
        DittoCropStream(ditto_model, face, Motion(ditto_model, face, speech), cadence=cadence), ctx=ctx
    )
    assert len(frames) == 25
    assert usable.any()
    assert ctx.report.facts["frames at rest"] == 25
