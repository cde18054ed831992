"""Live motion: the online scheme as it is documented, whatever the pieces the sound comes in, as early as it can be."""

from __future__ import annotations

import threading
from fractions import Fraction

import ditto_speaker as speaker
import numpy as np
import pytest
import torch
from ditto_speaker import SpeakerContext, SpeakerModel, avatar, clip

from talkinghead.nodes.core.cadence import Cadence, CadenceOptions, plan_frames
from talkinghead.nodes.core.frames import RunCancelled, StageError
from talkinghead.nodes.core.live_audio import ClipSound, LiveAudio
from talkinghead.nodes.core.timeline import frame_count
from talkinghead.nodes.ditto.audio2motion import MotionSampler, MotionStream, WindowScheme
from talkinghead.nodes.ditto.condition import Condition, FaceShape
from talkinghead.nodes.ditto.drive import KeypointDriver
from talkinghead.nodes.ditto.geometry import pack_motion
from talkinghead.nodes.ditto.hubert import ONLINE, SpeechRows, silence_rows
from talkinghead.nodes.ditto.live_motion import LiveDittoSpeech
from talkinghead.nodes.ditto.motion_cache import MOTIONS
from talkinghead.nodes.ditto.motion_edit import MotionEdits
from talkinghead.nodes.ditto.motion_plan import Motion, MotionOptions
from talkinghead.nodes.ditto.posing import source_poses
from talkinghead.nodes.ditto.schedule import MotionNoise

FPS, MODEL = Fraction(25), SpeakerModel()


@pytest.fixture(autouse=True)
def _alone():
    threads, before = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    assert set(threading.enumerate()) <= threads


def pushed(samples, step, rate=16000):
    audio = LiveAudio(rate, max_seconds=60)
    for i in range(0, len(samples), step):
        audio.push(samples[i : i + step])
    audio.end()
    return audio


def live(sound, fps=FPS, face=None, edits=None, **options):
    speech = LiveDittoSpeech(MODEL, sound, fps)
    return Motion(MODEL, face or avatar(), speech, MotionOptions(**options), edits=edits or MotionEdits())


def pulled(recipe, n=8, cadence=None, ctx=None):
    batches = [b for b in recipe.keypoints(ctx or SpeakerContext(), n, cadence) if b is not None]
    assert [len(b.usable) for b in batches[:-1]] == [n] * (len(batches) - 1)
    assert [b.is_last for b in batches] == [False] * (len(batches) - 1) + [True]
    assert [b.start for b in batches] == list(range(0, n * len(batches), n))
    return torch.cat([b.kp_driving for b in batches])


@torch.inference_mode()
def test_it_is_the_documented_scheme():
    """Windows of 80 with 70 shared, 70 rows of silence in front, each window from the source but for its pose."""
    samples, nets = speaker.sound(3), speaker.modules()
    encode = lambda windows: nets.speech(torch.from_numpy(windows)).numpy()  # noqa: E731
    rows = SpeechRows(encode, ONLINE, speaker.WIDTH, 1)
    ctx, face = SpeakerContext(), avatar()
    with ctx.use_avatar(face) as resident:
        reader = resident.reader
    source = source_poses(reader.pose)
    scheme = WindowScheme(70, True, 3, fix_every=1, fix_free=(0, 202))
    stream = MotionStream(
        MotionSampler(nets.lmdm, MotionNoise(0, 4, 1.0, (80, 265))),
        Condition(FaceShape(reader.eye_open, reader.eye_ball, source.kp[0])),
        scheme,
        pack_motion(source),
        silence_rows(encode, 70, ONLINE, 1),
    )
    made = torch.cat([stream.feed(rows.feed(samples)), stream.feed(rows.finish(75)), stream.finish()])
    wanted = KeypointDriver(source, True, stitch=nets.nets.stitch, origin=stream.reference[0])(made)[1]
    got = pulled(live(pushed(samples, 1000)))
    assert got.shape == (75, 21, 3)
    assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("cadence", [None, CadenceOptions("adaptive")])
def test_pieces_of_sound_change_nothing(cadence):
    samples = speaker.sound(3.3)
    wanted = pulled(live(ClipSound(clip(3.3))), 8, cadence)
    assert len(wanted) == 83
    for step, n in ((160, 8), (1111, 5), (len(samples), 64)):
        assert torch.equal(pulled(live(pushed(samples, step)), n, cadence), wanted)


@pytest.mark.parametrize("rate", [16000, 24000, 48000])
@pytest.mark.parametrize("fps", [Fraction(25), Fraction(30000, 1001), Fraction(50), Fraction(1)])
def test_every_frame_that_the_sound_covers(rate, fps):
    for n in (1, rate // 50, rate + 1):
        made = pulled(live(pushed(speaker.sound(2, rate)[:n], 4000, rate), fps), 8, CadenceOptions("2"))
        assert len(made) == frame_count(n, rate, fps)
        assert made.isfinite().all()


def test_no_sound_no_frames():
    audio = LiveAudio(16000)
    audio.end()
    assert not [b for b in live(audio).keypoints(SpeakerContext(), 8) if b is not None]


class Growing:
    """Sound that is there up to what was allowed; `ready` says how many frames came of how much."""

    sample_rate, notes = 16000, []

    def __init__(self, samples, step=160):
        self.samples, self.step, self.taken = samples, step, 0

    @property
    def waits(self):
        return self.taken < len(self.samples)

    def blocks(self, poll=None):
        while self.taken < len(self.samples):
            block = self.samples[self.taken : self.taken + self.step]
            self.taken += len(block)
            yield block


def test_frames_come_as_early_as_the_scheme_allows():
    """Ten frames for every ten rows, the first when 20 rows are there: 0.885 s of sound, then 0.4 s each."""
    sound = Growing(speaker.sound(3))
    came = []
    for batch in live(sound).keypoints(SpeakerContext(overlap=False), 5):
        if batch is not None and not batch.is_last:
            came.append(sound.taken)
    needed = [6480 - 1920 + 3200 * (2 * (k // 2 + 2) - 1) for k in range(len(came))]
    early = [c for c in zip(came, needed, strict=True) if c[1] <= 3 * 16000]
    assert len(early) >= 10
    assert all(wanted <= taken < wanted + 160 for taken, wanted in early)


def test_edits_hear_live_sound_as_they_hear_a_file():
    edits = MotionEdits(brow_raise=1.0, brow_furrow=1.0, squint=1.0)
    samples = speaker.sound(2.5)
    wanted = pulled(live(ClipSound(clip(2.5)), edits=edits))
    assert torch.equal(pulled(live(pushed(samples, 777), edits=edits), 3), wanted)
    assert not torch.equal(pulled(live(ClipSound(clip(2.5)))), wanted)


def test_a_cadence_rests_the_lips_live_as_planned():
    samples = speaker.sound(4)
    samples[24000:44000] = 0
    ctx = SpeakerContext()
    options = CadenceOptions("dense", rest=True)
    from talkinghead.nodes.core.audio import MemoryAudio

    audio = MemoryAudio(samples, 16000)
    rested = pulled(live(pushed(samples, 500)), 8, options, ctx)
    plain = pulled(live(pushed(samples, 500)), 8)
    plans = list(plan_frames(Cadence(audio, FPS, options).energies(), options, FPS))
    spoken = [p.frame for p in plans if p.weight == 1]
    quiet = [p.frame for p in plans if p.weight == 0 and p.frame > 40]
    assert torch.equal(rested[spoken], plain[spoken])
    assert len(quiet) > 10
    assert (rested[quiet] - plain[quiet]).abs().amax((1, 2)).min() > 1e-4
    assert ctx.report.facts["frames at rest"] == sum(p.weight == 0 for p in plans)


def test_it_is_never_kept():
    MOTIONS.clear()
    ctx = SpeakerContext()
    pulled(live(ClipSound(clip(1))), ctx=ctx)
    assert MOTIONS.n_bytes == 0
    assert "motion: made live" in ctx.report.text()


def test_a_stop_while_waiting_for_sound_is_heard():
    audio, stop = LiveAudio(16000), threading.Event()
    ctx = SpeakerContext(is_cancelled=stop.is_set)
    batches = live(audio).keypoints(ctx, 8)
    audio.push(np.zeros(3200, np.float32))
    assert next(batches) is None
    stop.set()
    with pytest.raises(RunCancelled):
        for _ in batches:
            pass


def test_sound_that_fails_names_the_stage():
    audio = LiveAudio(16000)
    audio.push(speaker.sound(1))
    audio.fail(OSError("the microphone is gone"))
    with pytest.raises(StageError, match="Speech features: the microphone is gone"):
        pulled(live(audio))


def test_what_cannot_be_live_is_refused():
    with pytest.raises(ValueError, match=r"overlap 30 is outside 40\.\.79 for live sound"):
        live(ClipSound(clip(1)), overlap=30)
    with pytest.raises(ValueError, match="give CadenceOptions"):
        live(ClipSound(clip(1))).keypoints(SpeakerContext(), 8, Cadence(clip(1), FPS))
