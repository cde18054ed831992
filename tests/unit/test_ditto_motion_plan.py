"""Motion as a recipe: the same frames for any batch, rate and run; what is kept; what a user can do wrong."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import ditto_speaker as speaker
import pytest
import torch
from ditto_speaker import SpeakerContext, SpeakerModel, avatar, clip

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.cadence import Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunCancelled
from talkinghead.nodes.core.timeline import parse_fps
from talkinghead.nodes.ditto.audio2motion import MotionSampler, MotionStream, WindowScheme
from talkinghead.nodes.ditto.condition import Condition, FaceShape
from talkinghead.nodes.ditto.drive import KeypointDriver
from talkinghead.nodes.ditto.geometry import pack_motion
from talkinghead.nodes.ditto.motion import MotionOutput
from talkinghead.nodes.ditto.motion_cache import MOTIONS, MotionCache
from talkinghead.nodes.ditto.motion_edit import MotionEdits
from talkinghead.nodes.ditto.motion_plan import Motion, MotionOptions
from talkinghead.nodes.ditto.schedule import MotionNoise
from talkinghead.nodes.ditto.smooth import smooth_pose
from talkinghead.nodes.ditto.speech import DittoSpeech

FPS = Fraction(25)
MODEL = SpeakerModel()


@pytest.fixture(autouse=True)
def _alone():
    MOTIONS.clear()
    threads, before = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    MOTIONS.clear()
    assert set(threading.enumerate()) <= threads


def motion(seconds=4, fps=FPS, face=None, audio=None, **options) -> Motion:
    given = {"smooth": options.pop("smooth", None), "edits": options.pop("edits", MotionEdits())}
    audio = audio or clip(seconds)
    return Motion(MODEL, face or avatar(), DittoSpeech(MODEL, audio, fps), MotionOptions(**options), **given)


def pulled(recipe: Motion, n: int = 8, cadence=None, ctx=None):
    """Return the batches of a whole run, checked to be gapless."""
    batches = list(recipe.keypoints(ctx or SpeakerContext(), n, cadence))
    start = 0
    for batch in batches:
        assert batch.start == start
        start += len(batch.usable)
    assert [len(batch.usable) for batch in batches[:-1]] == [n] * (len(batches) - 1)
    assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert start == recipe.n_frames
    return batches


def joined(batches, name="kp_driving"):
    return torch.cat([getattr(batch, name) for batch in batches])


def by_hand(recipe: Motion, smooth=False) -> torch.Tensor:
    """Motion at 25 fps straight from the network, and the driver on all of it at once."""
    nets, ctx = speaker.modules(), SpeakerContext()
    with ctx.use_avatar(recipe.avatar) as resident:
        reader = resident.reader
    source = MotionOutput(*(reader.pose[name] for name in MotionOutput._fields))
    rows = torch.cat(list(recipe.speech.rows(ctx)))
    noise = MotionNoise(0, 4, 1.0, (80, 265))
    face = FaceShape(reader.eye_open, reader.eye_ball, source.kp[:1])
    stream = MotionStream(
        MotionSampler(nets.lmdm, noise), Condition(face), WindowScheme(), pack_motion(source)[:1]
    )
    made = torch.cat([stream.feed(rows), stream.finish()])
    made = smooth_pose(made) if smooth else made
    with torch.inference_mode():
        return KeypointDriver(source, True, stitch=nets.nets.stitch, origin=made[0])(made)[1]


@pytest.mark.parametrize("smooth", [False, True])
def test_a_still_is_driven_by_the_whole_motion(smooth):
    recipe = motion()
    recipe = recipe.with_smoothing() if smooth else recipe
    assert torch.allclose(joined(pulled(recipe)), by_hand(recipe, smooth), atol=1e-5)


@pytest.mark.parametrize("fps", ["25", "30000/1001", "50", "7"])
@pytest.mark.parametrize("cadence", [None, CadenceOptions("adaptive")])
def test_batches_change_nothing(fps, cadence):
    recipe = motion(3.3, parse_fps(fps))
    wanted = pulled(recipe, 64, cadence)
    for n in (1, 5):
        made = pulled(recipe, n, cadence)
        for name in ("kp_driving", "kp_source", "avatar_index", "usable"):
            assert torch.equal(joined(made, name), joined(wanted, name))
    assert joined(wanted).isfinite().all()


def test_made_anew_it_is_the_same_and_another_seed_is_not():
    wanted = joined(pulled(motion()))
    MOTIONS.clear()
    state = torch.get_rng_state()
    assert torch.equal(joined(pulled(motion())), wanted)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(joined(pulled(motion(seed=1))), wanted, atol=1e-3)


@pytest.mark.parametrize("fps", [Fraction(50), Fraction(75)])
def test_frames_that_stand_on_motion_frames_are_those(fps):
    step = int(fps / FPS)
    whole = joined(pulled(motion(3)))
    assert torch.equal(joined(pulled(motion(3, fps)))[::step], whole)


def test_an_odd_rate_moves_as_the_motion_does():
    """Frame k at k / fps: its key points lie near those of the motion around that time."""
    fps = Fraction(30000, 1001)
    whole, made = joined(pulled(motion(4))), joined(pulled(motion(4, fps)))
    assert len(made) == -(-4 * 30000 // 1001)
    for k in (1, 37, 118):
        at = k * FPS / fps
        i, share = int(at), float(at - int(at))
        between = whole[i] * (1 - share) + whole[min(i + 1, 99)] * share
        assert (made[k] - between).abs().max() <= 0.02 + 0.2 * (whole[i] - whole[min(i + 1, 99)]).abs().max()


def test_what_was_made_is_kept_for_edits_smoothing_rate_and_cadence():
    first = SpeakerContext()
    pulled(motion(), ctx=first)
    assert "made: 4 steps" in first.report.text()
    for other in (
        motion(smooth=(5, 2)),
        motion(edits=MotionEdits(head=0.5)),
        motion(fps=Fraction(30)),
        motion(),
    ):
        ctx = SpeakerContext()
        pulled(other, 5, CadenceOptions("2"), ctx)
        assert "motion: kept from before" in ctx.report.text()
        assert "speech features" not in ctx.report.seconds
    for other in (
        motion(steps=5),
        motion(eta=0.0),
        motion(emotion="happy"),
        motion(overlap=20),
        motion(average=0),
        motion(fixed_eyes=True),
        motion(face=avatar(seed=4)),
        motion(audio=clip(4, seed=1)),
    ):
        ctx = SpeakerContext()
        pulled(other, ctx=ctx)
        assert "motion: made" in ctx.report.text()


def test_a_run_that_was_stopped_keeps_nothing():
    with closing(motion(8).keypoints(SpeakerContext(), 8)) as batches:
        next(batches)
    assert MOTIONS.n_bytes == 0
    stop = iter([False] * 4)
    ctx = SpeakerContext(is_cancelled=lambda: next(stop, True), overlap=False)
    with pytest.raises(RunCancelled):
        list(motion(8).keypoints(ctx, 8))
    assert MOTIONS.n_bytes == 0
    pulled(motion(8))
    assert MOTIONS.n_bytes == 200 * 265 * 4


def test_the_cache_is_bounded_and_the_last_used_stay():
    cache = MotionCache(max_bytes=3 * 40)
    for key in "abc":
        cache.put(("k", key), torch.zeros(10))
    cache.get(("k", "a"))
    cache.put(("k", "d"), torch.zeros(10))
    assert [cache.get(("k", key)) is not None for key in "abcd"] == [True, False, True, True]
    cache.put(("k", "e"), torch.zeros(31))
    assert cache.get(("k", "e")) is None
    assert cache.n_bytes == 120
    assert cache.may_have("k")
    assert not cache.may_have("l")
    pieces = [torch.full((4,), float(i)) for i in range(10)]
    assert len(list(cache.recorded(pieces, lambda: ("l", "long")))) == 10
    assert not cache.may_have("l")
    list(cache.recorded(pieces[:3], lambda: ("l", "short")))
    assert cache.get(("l", "short")).tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_sound_is_not_hashed_before_the_first_frame_unless_it_may_be_known():
    class Counted(MemoryAudio):
        asked = 0

        def fingerprint(self):
            self.asked += 1
            return super().fingerprint()

    audio = Counted(speaker.sound(8), 16000)
    with closing(motion(audio=audio).keypoints(SpeakerContext(), 8)) as batches:
        next(batches)
        assert audio.asked == 0
    pulled(motion(audio=audio))
    assert audio.asked == 1
    ctx = SpeakerContext()
    pulled(motion(audio=MemoryAudio(speaker.sound(8), 16000)), ctx=ctx)
    assert "kept from before" in ctx.report.text()
    ctx = SpeakerContext()
    pulled(motion(audio=MemoryAudio(speaker.sound(8, seed=5), 16000)), ctx=ctx)
    assert "motion: made" in ctx.report.text()


def test_a_loop_keeps_its_own_pose_and_its_own_frames():
    """A 30 fps loop under 25 fps speech: each frame is driven on the picture that is shown, by the lips alone."""
    loop = avatar(7, Fraction(30))
    made = pulled(motion(3, face=loop))
    index = joined(made, "avatar_index")
    assert index.tolist() == [int(k * Fraction(30, 25)) % 7 for k in range(75)]
    moved = (joined(pulled(motion(3, face=loop, edits=MotionEdits(mouth=0.0)))) - joined(made)).abs().amax(2)
    assert moved.max() > 1e-3
    still = motion(3, face=loop, edits=MotionEdits(keys=()))
    apart = (joined(pulled(still)) - joined(pulled(still), "kp_source")).abs().max()
    with torch.inference_mode():
        kp = joined(pulled(still), "kp_source")
        stitched = (speaker.modules().nets.stitch(kp, kp) - kp).abs().max()
    assert apart <= stitched + 1e-5


def test_two_avatars_at_the_same_time_stay_apart():
    """And a second sound through the same avatar is that of a fresh run."""
    one, other = motion(3, face=avatar(3)), motion(3, face=avatar(4), audio=clip(3, seed=2))
    wanted = [joined(pulled(recipe)) for recipe in (one, other)]
    MOTIONS.clear()
    made: list[list] = [[], []]
    for pair in zip(one.keypoints(SpeakerContext(), 8), other.keypoints(SpeakerContext(), 8), strict=True):
        for kept, batch in zip(made, pair, strict=True):
            kept.append(batch.kp_driving)
    assert all(torch.equal(torch.cat(got), want) for got, want in zip(made, wanted, strict=True))
    second = motion(3, face=avatar(3), audio=clip(3, seed=2))
    after = joined(pulled(second))
    MOTIONS.clear()
    assert torch.equal(joined(pulled(second)), after)


def test_the_last_part_of_a_batch_is_not_lost():
    made = pulled(motion(Fraction(1394, 100)), 16)
    assert sum(len(batch.usable) for batch in made) == 349


def test_frames_without_a_face_are_not_usable():
    loop = avatar(5, found=[True, False, True, True, False])
    usable = joined(pulled(motion(1, face=loop)), "usable")
    assert usable.tolist() == [True, False, True, True, False] * 5


@pytest.mark.parametrize("n_samples", [1, 639, 640, 641, 16000 * 3 + 1])
@pytest.mark.parametrize("fps", [FPS, Fraction(30000, 1001), Fraction(1), Fraction(240)])
def test_very_short_sound_has_all_its_frames(n_samples, fps):
    audio = MemoryAudio(speaker.sound(4)[:n_samples], 16000)
    made = pulled(motion(audio=audio, fps=fps), 8)
    assert joined(made).isfinite().all()
    assert joined(made, "usable").all()


def test_sound_of_nan_is_silence_with_a_warning():
    samples = speaker.sound(2)
    samples[5000:5003] = float("nan")
    ctx = SpeakerContext()
    made = pulled(motion(audio=MemoryAudio(samples, 16000)), ctx=ctx)
    assert joined(made).isfinite().all()
    assert "3 NaN or Inf samples set to 0" in ctx.report.text()


def test_motion_that_is_no_number_shows_the_avatar_and_says_so(monkeypatch):
    from talkinghead.nodes.ditto import audio2motion

    real = audio2motion.sample

    def sample(*args):
        made = real(*args)
        made[:, 30] = float("nan")
        return made

    monkeypatch.setattr(audio2motion, "sample", sample)
    ctx = SpeakerContext()
    made = pulled(motion(2, average=0), ctx=ctx)
    assert joined(made).isfinite().all()
    assert (~joined(made, "usable")).nonzero()[:, 0].tolist() == [30]
    assert "frames 30: the motion is no number" in ctx.report.text()


def test_a_cadence_keeps_its_keys_and_rests_the_lips():
    audio = MemoryAudio(speaker.sound(4) * (torch.arange(64000) < 32000).numpy(), 16000)
    recipe = motion(audio=audio)
    dense = joined(pulled(recipe))
    cadence = Cadence(audio, FPS, CadenceOptions("3", rest=False))
    keys = [plan.frame for plan in cadence.plan() if plan.is_key]
    made = joined(pulled(recipe, cadence=cadence))
    assert torch.equal(made[keys], dense[keys])
    assert 0 < len(keys) < 50
    assert not torch.equal(made, dense)
    resting = CadenceOptions("dense", rest=True)
    ctx = SpeakerContext()
    rested = joined(pulled(recipe, cadence=resting, ctx=ctx))
    quiet = [
        plan.frame for plan in Cadence(audio, FPS, resting).plan() if plan.weight == 0 and plan.frame > 50
    ]
    assert len(quiet) > 30
    assert "frames at rest" in ctx.report.facts
    spoken = [plan.frame for plan in Cadence(audio, FPS, resting).plan() if plan.weight == 1]
    assert torch.equal(rested[spoken], dense[spoken])
    assert (rested[quiet] - dense[quiet]).abs().max() > 1e-3
    assert (rested[quiet[1:]] - rested[quiet[:-1]]).abs().amax((1, 2)).min() > 0  # the head goes on


def test_memory_does_not_grow(monkeypatch):
    from talkinghead.nodes.ditto import motion_run

    held = []

    class Counted(motion_run.MotionSeries):
        def drop_before(self, frame):
            super().drop_before(frame)
            held.append(len(self._rows))

    monkeypatch.setattr(motion_run, "MotionSeries", Counted)
    monkeypatch.setattr(MOTIONS, "max_bytes", 1000)
    pulled(motion(60), 8)
    assert max(held) < 500
    assert MOTIONS.n_bytes == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MotionOptions(steps=1), "1 steps are outside 2..50"),
        (lambda: MotionOptions(steps=51), "51 steps are outside"),
        (lambda: MotionOptions(steps=True), "True steps are outside"),
        (lambda: MotionOptions(eta=1.5), "eta 1.5 is outside 0..1"),
        (lambda: MotionOptions(seed=0.5), "seed 0.5 is no whole number"),
        (lambda: MotionOptions(emotion="bored"), "'bored' is not one of angry"),
        (lambda: MotionOptions(overlap=80), "overlap 80 is outside 0..79"),
        (lambda: MotionOptions(average=-1), "smooth -1 is outside"),
        (lambda: motion(smooth=(4, 2)), "window 4 and order 2"),
        (lambda: motion().keypoints(SpeakerContext(), 0), "at least one frame, not 0"),
        (
            lambda: motion().keypoints(SpeakerContext(), 8, Cadence(clip(3), FPS)),
            "planned for other sound",
        ),
        (
            lambda: motion().keypoints(SpeakerContext(), 8, Cadence(clip(4), Fraction(30))),
            "planned at 30 fps",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_what_does_not_belong_together_is_refused():
    face, other = avatar(), SpeakerModel("another")
    with pytest.raises(ValueError, match="heard by another model"):
        Motion(other, face, DittoSpeech(MODEL, clip(1), FPS))
    wrong = replace(face, info=replace(face.info, engine="musetalk"))
    with pytest.raises(ValueError, match="'mia' is for MuseTalk, this model is Ditto"):
        Motion(MODEL, wrong, DittoSpeech(MODEL, clip(1), FPS))
