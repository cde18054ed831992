"""Windows as a stream: every frame once and in place, whatever the chunks; upstream's faults that end here."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from ditto_motion_parts import SPEECH_WIDTH, TINY, run_stream, speech, tiny_condition, tiny_lmdm, tiny_stream

from talkinghead.nodes.core.frames import RunCancelled
from talkinghead.nodes.ditto.audio2motion import MotionJoin, MotionStream, WindowScheme
from talkinghead.nodes.ditto.smooth import POSE, moving_average

OFFLINE, LIVE = WindowScheme(), WindowScheme.live()


@pytest.fixture(scope="module")
def net():
    return tiny_lmdm()


@pytest.mark.parametrize(
    "scheme", [OFFLINE, LIVE, WindowScheme(75, True), WindowScheme(40, True), WindowScheme(0)]
)
@pytest.mark.parametrize("n", [0, 1, 5, 10, 79, 80, 81, 163])
def test_as_many_frames_as_were_fed(net, scheme, n):
    """Upstream online: 5 rows gave no frame, 163 gave 170."""
    made = run_stream(tiny_stream(net, scheme), speech(n), 5)
    assert made.shape == (n, TINY.motion_dim)
    assert made.isfinite().all()


@pytest.mark.parametrize("scheme", [OFFLINE, LIVE, WindowScheme(upstream_smoothing=True)])
@pytest.mark.parametrize("step", [1, 7, 64])
def test_chunks_change_nothing(net, scheme, step):
    wanted = run_stream(tiny_stream(net, scheme), speech(170))
    assert torch.equal(run_stream(tiny_stream(net, scheme), speech(170), step), wanted)


def recorded(clips: list, seen: list | None = None):
    """A sampler that keeps what it is given and returns seeded noise."""

    def sampler(kp_cond, cond):
        if seen is not None:
            seen.append((kp_cond.clone(), cond.clone()))
        generator = torch.Generator().manual_seed(len(clips))
        clips.append(torch.randn(1, 80, TINY.motion_dim, generator=generator))
        return clips[-1]

    return sampler


def noise_stream(scheme: WindowScheme, clips: list, seen: list | None = None, **options) -> MotionStream:
    silence = torch.zeros(scheme.warm_up, SPEECH_WIDTH) if scheme.online else None
    source = torch.linspace(-1, 1, TINY.motion_dim)
    return MotionStream(recorded(clips, seen), tiny_condition(), scheme, source, silence, **options)


@pytest.mark.parametrize(
    "scheme", [OFFLINE, LIVE, WindowScheme(60, True, 5, upstream_smoothing=True), WindowScheme(79, smooth=80)]
)
def test_what_a_stream_forgets_is_not_missed(scheme):
    """Against one join of the same windows that keeps all of its rows."""
    clips: list = []
    stream = noise_stream(scheme, clips)
    made = run_stream(stream, speech(230), 5)
    join = MotionJoin(scheme, torch.linspace(-1, 1, TINY.motion_dim))
    for clip in clips:
        join.add(clip)
    whole = join.rows(scheme.warm_up, scheme.warm_up + 230)
    assert torch.equal(made[:, POSE.stop :], whole[:, POSE.stop :])
    if not scheme.online:
        assert torch.allclose(made[:, POSE], moving_average(whole[:, POSE], scheme.smooth), atol=1e-5)
    assert torch.equal(stream._join.kp_cond, join.kp_cond)


@pytest.mark.parametrize("scheme", [OFFLINE, LIVE])
def test_memory_does_not_grow(scheme):
    stream, rows = noise_stream(scheme, []), speech(80)
    held = []
    for _ in range(40):
        stream.feed(rows)
        held.append((len(stream._join._rows), len(stream._speech)))
    assert max(held) <= (5 * 80, 80)
    assert stream._join.end > 3000
    with pytest.raises(IndexError):
        stream._join.rows(0, 10)


def test_a_joint_is_a_ramp_between_two_windows():
    clips: list = []
    made = run_stream(noise_stream(WindowScheme(smooth=0), clips), speech(150))
    first, second = clips[0][0], clips[1][0]
    assert torch.equal(made[:70], first[:70])
    for j in range(10):
        assert torch.allclose(made[70 + j], first[70 + j] * (1 - j / 10) + second[j] * j / 10, atol=1e-6)
    assert torch.equal(made[80:140], second[10:70])


def test_every_frame_is_averaged_once():
    """Upstream's offline pass averages the joints twice, and online leaves the newest frames as they are."""
    rough = run_stream(noise_stream(WindowScheme(smooth=0), []), speech(200))
    made = run_stream(noise_stream(OFFLINE, []), speech(200), 5)
    assert torch.allclose(made[:, POSE], moving_average(rough[:, POSE], 3), atol=1e-6)
    assert torch.equal(made[:, POSE.stop :], rough[:, POSE.stop :])
    other = run_stream(noise_stream(WindowScheme(upstream_smoothing=True), []), speech(200))
    assert not torch.allclose(made[70:81, POSE], other[70:81, POSE], atol=1e-2)

    rough = run_stream(noise_stream(WindowScheme(70, True, 0), []), speech(45), 5)
    made = run_stream(noise_stream(WindowScheme(70, True), []), speech(45), 5)
    inside = [k for k in range(1, 44) if k % 10 not in (9,)]
    assert torch.allclose(made[inside][:, POSE], moving_average(rough[:, POSE], 3)[inside], atol=1e-6)
    assert torch.allclose(made[-1, POSE], rough[-2:, POSE].mean(0), atol=1e-6)


@pytest.mark.parametrize("scheme", [OFFLINE, LIVE, WindowScheme(50, True), WindowScheme(30)])
def test_look_ahead_is_the_worst_delay(scheme):
    stream, shown, worst = noise_stream(scheme, []), 0, 0
    for fed in range(1, 331):
        shown += len(stream.feed(speech(1)))
        worst = max(worst, fed - 1 - shown)
    assert worst + 1 == scheme.look_ahead


def test_what_a_window_continues_from():
    seen: list = []
    run_stream(
        noise_stream(WindowScheme(70, True, 0, fix_every=2, fix_free=(0, 202)), clips := [], seen), speech(40)
    )
    source = torch.linspace(-1, 1, TINY.motion_dim)
    join = MotionJoin(WindowScheme(70, True, 0), source)
    assert torch.equal(seen[0][0][0], source)
    for i, (clip, (kp_cond, _)) in enumerate(zip(clips[:-1], seen[1:], strict=True)):
        join.add(clip)
        frame = join.rows(join.end - 71, join.end - 70)[0]
        assert torch.equal(kp_cond[0, :202], frame[:202])
        assert torch.equal(kp_cond[0, 202:], source[202:] if i % 2 else frame[202:])
    assert len(seen) == 5


def test_conditions_of_the_last_window():
    """Offline the last row is repeated; online its speech is, and the eyes go on."""
    seen: list = []
    run_stream(noise_stream(OFFLINE, [], seen), speech(30))
    cond = seen[0][1][0]
    assert torch.equal(cond[:30], tiny_condition().rows(speech(30), 0))
    assert torch.equal(cond[30:], cond[29].expand(50, -1))
    seen.clear()
    run_stream(noise_stream(LIVE, [], seen), speech(15))
    cond = seen[1][1][0]
    assert torch.equal(cond[60:75], tiny_condition().rows(speech(15), 0))
    assert torch.equal(cond[75:, :SPEECH_WIDTH], speech(15)[-1].expand(5, -1))
    assert torch.equal(cond[75:, SPEECH_WIDTH:], tiny_condition().rows(speech(20), 0)[15:, SPEECH_WIDTH:])


def test_a_seed_says_everything(net):
    """Upstream: results depend on what drew from the global generators before."""
    state = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    wanted = run_stream(tiny_stream(net, OFFLINE, seed=3), speech(150))
    assert torch.equal(state[0], torch.random.get_rng_state())
    assert np.array_equal(state[1], np.random.get_state()[1])
    assert state[2] == random.getstate()
    torch.rand(7), np.random.rand(7), random.random()
    assert torch.equal(run_stream(tiny_stream(net, OFFLINE, seed=3), speech(150)), wanted)
    assert not torch.allclose(run_stream(tiny_stream(net, OFFLINE, seed=4), speech(150)), wanted, atol=0.1)


def test_windows_have_starts_of_their_own(net):
    """Reseeding for each window would repeat the same movement."""
    still = speech(1).expand(220, -1)
    made = run_stream(tiny_stream(net, WindowScheme(0, smooth=0, fix_every=1)), still)
    assert not torch.allclose(made[:80], made[80:160], atol=0.05)


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("steps", [2, 3, 5, 50])
def test_no_step_count_gives_nan(net, steps, eta):
    assert run_stream(tiny_stream(net, OFFLINE, steps=steps, eta=eta), speech(80)).isfinite().all()


def test_limits_in_doubles_leave_floats():
    """Upstream: a float64 limit made all that follows float64, which the next network refuses."""
    limits = np.stack(
        [np.full(TINY.motion_dim, -0.4), np.full(TINY.motion_dim, 0.35), *np.zeros((2, TINY.motion_dim))]
    )
    made = run_stream(noise_stream(OFFLINE, [], limits=limits), speech(90))
    assert made.dtype == torch.float32
    assert made.min() == np.float32(-0.4)
    assert made.max() == np.float32(0.35)
    with pytest.raises(
        ValueError, match=r"limits are \(2, 5\): give the least and the largest value, \(2, 208\)"
    ):
        noise_stream(OFFLINE, [], limits=np.zeros((2, 5)))


def test_a_stop_passes_through():
    def stopped(kp_cond, cond):
        raise RunCancelled

    stream = MotionStream(stopped, tiny_condition(), OFFLINE, torch.zeros(TINY.motion_dim))
    with pytest.raises(RunCancelled):
        stream.feed(speech(80))


def test_settings_that_would_lose_frames():
    with pytest.raises(ValueError, match=r"overlap 10 would never show its first frames: give 40\.\.79"):
        noise_stream(WindowScheme(10, True), [])
    with pytest.raises(
        ValueError, match=r"overlap 80 is outside 0\.\.79; upstream has 10 offline, 70 online"
    ):
        WindowScheme(80)
    with pytest.raises(ValueError, match=r"smooth 81 is outside 0\.\.80"):
        WindowScheme(smooth=81)
    with pytest.raises(ValueError, match="needs 70 rows of silence before its first frame, got 0"):
        MotionStream(recorded([]), tiny_condition(), LIVE, torch.zeros(TINY.motion_dim))


def test_a_finished_stream_is_over():
    stream = noise_stream(OFFLINE, [])
    run_stream(stream, speech(3))
    for call in (stream.finish, lambda: stream.feed(speech(3))):
        with pytest.raises(RuntimeError, match="this motion stream is finished"):
            call()
