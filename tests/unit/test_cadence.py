"""The plan: keys, what lies between them, rest. Cases 8 and 9 at the level of the plan."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.cadence import (
    EASE,
    LOOK_AHEAD,
    MODES,
    Cadence,
    CadenceOptions,
    StrideMix,
    plan_frames,
    slerp,
)
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.timeline import parse_fps

FPS = Fraction(25)
LOW, MID, HIGH = EASE


def plan(energies, mode="dense", rest=False, usable=None, fps=FPS, **options):
    return list(plan_frames(energies, CadenceOptions(mode, rest=rest, **options), fps, usable))


def keys(plans):
    return [p.frame for p in plans if p.is_key]


def weights(plans):
    return [p.weight for p in plans]


@pytest.mark.parametrize(
    ("mode", "n", "expected"),
    [
        ("dense", 5, [0, 1, 2, 3, 4]),
        ("2", 7, [0, 2, 4, 6]),
        ("2", 8, [0, 2, 4, 6, 7]),
        ("3", 7, [0, 3, 6]),
        ("3", 8, [0, 3, 6, 7]),
        ("3", 9, [0, 3, 6, 8]),
        ("3", 1, [0]),
        ("2", 2, [0, 1]),
    ],
)
def test_fixed_strides_end_on_a_key(mode, n, expected):
    plans = plan([0.1] * n, mode)
    assert keys(plans) == expected
    assert [p.frame for p in plans] == list(range(n))
    between = {i: (max(k for k in expected if k <= i), min(k for k in expected if k >= i)) for i in range(n)}
    assert {p.frame: (p.left, p.right) for p in plans} == between


def test_a_frame_between_two_keys_knows_its_place():
    p = plan([0.1] * 7, "3")[4]
    assert (p.left, p.right, p.stride) == (3, 6, 3)
    assert p.position == pytest.approx(1 / 3)


def test_adaptive_is_dense_where_the_loudness_changes():
    quiet, steady = [0.001] * 7, [0.1] * 7
    moving = [0.1, 0.2, 0.1, 0.2]
    plans = plan([*quiet, *steady, *moving, *steady], "adaptive")
    # 7: the step up; 14 is still at 0.1; 15..18 change, 18 back to 0.1; after it every second
    assert keys(plans) == [0, 3, 6, 7, 9, 11, 13, 15, 16, 17, 18, 20, 22, 24]
    assert [p.stride for p in plans[:6]] == [3] * 6
    assert plans[8].stride == 2


def test_a_change_within_a_stride_is_a_key_of_its_own():
    energies = [0.1] * 6
    energies[1] = 0.11  # would lie between 0 and 2
    assert keys(plan(energies, "adaptive")) == [0, 1, 2, 4, 5]
    assert keys(plan(energies, "adaptive", flux_threshold=0.02)) == [0, 2, 4, 5]
    assert keys(plan(energies, "adaptive", flux_threshold=0.02, rms_threshold=0.2)) == [0, 3, 5]


def test_no_loudness_is_below_a_threshold_of_0():
    assert 0.0 not in weights(plan([0.0] * 40, rest=True, rms_threshold=0))
    assert keys(plan([0.0] * 5, "adaptive", rms_threshold=0)) == [0, 2, 4]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rest", [False, True])
def test_rules_that_every_plan_keeps(mode, rest):
    draw = np.random.default_rng(7)
    options = CadenceOptions(mode, rest=rest)
    for trial in range(60):
        runs = draw.integers(1, 14, 12)
        level = draw.choice([0.0, 0.002, 0.005, 0.03, 0.2], 12)
        energies = np.repeat(level, runs) * draw.uniform(0.9, 1.1, runs.sum())
        usable = draw.random(len(energies)) > (0.1 if trial % 2 else -1)
        pulled = []
        source = (pulled.append(e) or e for e in energies.tolist())
        plans = []
        for p in plan_frames(source, options, FPS, usable):
            plans.append(p)
            assert len(pulled) - p.frame - 1 <= LOOK_AHEAD
        assert [p.frame for p in plans] == list(range(len(energies)))
        around_it = np.concatenate([[0.0], energies, [0.0]])
        for p in plans:
            i = p.frame
            assert (p.stride == 0) == (p.weight == 0 or not usable[i])
            if energies[i] >= options.rms_threshold:
                assert p.weight == 1
            if i:
                assert abs(p.weight - plans[i - 1].weight) <= MID - LOW + 1e-9
            if p.stride and not p.is_key:
                around = plans[p.left : p.right + 1]
                assert around[0].is_key
                assert around[-1].is_key
                assert all(q.stride and (q.left, q.right) == (p.left, p.right) for q in around[1:-1])
                assert p.left < i < p.right
                assert p.right - p.left <= options.stride(*around_it[i : i + 3])
            if p.is_key and i + 1 < len(plans) and plans[i + 1].stride == 0:
                assert p.left == i  # a run ends on a key
            if p.stride and (i == 0 or not plans[i - 1].stride or i + 1 == len(plans)):
                assert p.is_key
        if not rest:
            assert set(weights(plans)) == {1.0}


def spoken(*parts, rate=16000):
    """Parts (seconds, loudness): a tone of that RMS, or with "noise" white noise."""
    draw, out = np.random.default_rng(3), []
    for seconds, rms in parts:
        n = round(seconds * rate)
        if isinstance(rms, str):
            out.append(draw.normal(0, 10 ** (-60 / 20), n))
        else:
            out.append(rms * 2**0.5 * np.sin(2 * np.pi * 220 * np.arange(n) / rate))
    return MemoryAudio(np.concatenate(out).astype(np.float32), rate)


@pytest.mark.parametrize("pause", [0.0, "noise"])
@pytest.mark.parametrize("mode", MODES)
def test_the_mouth_rests_between_two_tones(pause, mode):
    """Case 8: 1 s tone, 1 s of silence or of noise at -60 dBFS, 1 s tone."""
    audio = spoken((1, 0.2), (1, pause), (1, 0.2))
    plans = list(Cadence(audio, FPS, CadenceOptions(mode)).plan())
    closing, opening = [HIGH, MID, LOW], [LOW, MID, HIGH]
    assert weights(plans) == [1] * 27 + closing + [0] * 17 + opening + [1] * 25
    assert [p.frame for p in plans if p.weight == 0] == list(range(30, 47))
    assert all(plans[i].is_key for i in (47, 29, 74))


def test_the_mouth_stays_shut_before_and_after_speech():
    plans = list(Cadence(spoken((0.4, 0.0), (0.4, 0.2), (1, "noise")), FPS).plan())
    assert weights(plans)[:11] == [0] * 7 + [LOW, MID, HIGH, 1]
    assert weights(plans)[20:] == [1, 1, HIGH, MID, LOW] + [0] * 20


def test_the_closure_of_a_plosive_is_no_pause():
    plans = list(Cadence(spoken((0.4, 0.1), (0.16, 0.0), (0.4, 0.1)), FPS).plan())
    assert set(weights(plans)) == {1.0}


def test_a_pause_that_ends_while_the_mouth_closes_turns_without_a_jump():
    shown = {5: [], 6: [HIGH, MID, MID, HIGH], 7: [HIGH, MID, LOW, MID, HIGH]}
    for quiet, turn in shown.items():
        got = weights(plan([0.1] * 3 + [0.0] * quiet + [0.1] * 3, rest=True))
        assert got == [1] * (3 + quiet - len(turn)) + turn + [1] * 3


def test_hysteresis():
    soft = 0.006  # between the thresholds: neither starts a rest nor ends one
    assert set(weights(plan([0.1] * 3 + [soft] * 30, rest=True))) == {1.0}
    after = weights(plan([0.1] * 3 + [0.0] * 8 + [soft] * 10 + [0.008] * 2, rest=True))
    assert after == [1] * 5 + [HIGH, MID, LOW] + [0] * 10 + [LOW, MID, HIGH, 1, 1]


@pytest.mark.parametrize(("fps", "quiet"), [("12.5", 2), ("25", 3), ("30", 4), ("60", 8)])
def test_rest_begins_after_the_same_time_at_every_rate(fps, quiet):
    plans = plan([0.1] + [0.0] * 40, rest=True, fps=parse_fps(fps))
    assert weights(plans)[: quiet + 2] == [1] * quiet + [HIGH, MID]


def test_frames_that_cannot_be_drawn_are_never_interpolated_across():
    usable = [True] * 4 + [False] * 2 + [True] * 7
    plans = plan([0.1] * 13, "3", usable=usable)
    assert keys(plans) == [0, 3, 6, 9, 12]
    assert [p.frame for p in plans if p.stride == 0] == [4, 5]
    plans = plan([0.1] * 13, "3", usable=[i != 5 for i in range(13)])
    assert keys(plans) == [0, 3, 4, 6, 9, 12]


@pytest.mark.parametrize("mode", MODES)
def test_a_tail_of_no_whole_batch_keeps_its_frames(mode):
    """Case 9: 13.94 s are 349 frames, the last of them a key."""
    audio = spoken((13.94, 0.2))
    cadence = Cadence(audio, FPS, CadenceOptions(mode))
    plans = list(cadence.plan())
    assert cadence.n_frames == len(plans) == 349
    assert plans[-1].is_key


def test_loudness_of_any_rate_and_of_broken_samples():
    samples = spoken((1, 0.2), rate=44100).samples.copy()
    cadence = Cadence(MemoryAudio(samples, 44100), FPS)
    assert list(cadence.energies())[2:-2] == pytest.approx([0.2] * 21, rel=0.01)
    samples[0, 5000] = np.nan
    report = Report()
    assert np.isfinite(list(Cadence(MemoryAudio(samples, 44100), FPS).energies(report))).all()
    assert len(report.warnings) == 1


def test_a_cadence_belongs_to_its_speech():
    audio = spoken((0.5, 0.2))
    cadence = Cadence(audio, FPS)
    cadence.check(audio, FPS)
    cadence.check(spoken((0.5, 0.2)), FPS)  # the same sound, loaded again
    with pytest.raises(ValueError, match=r"planned at 25 fps, the speech has 30000/1001"):
        cadence.check(audio, parse_fps("29.97"))
    with pytest.raises(ValueError, match=r"other sound \(0.50 s\) than the speech \(0.60 s\)"):
        cadence.check(spoken((0.6, 0.2)), FPS)
    with pytest.raises(ValueError, match="other sound"):
        cadence.check(spoken((0.5, 0.21)), FPS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "4"}, "cadence '4' is unknown; use one of dense, 2, 3, adaptive"),
        ({"rms_threshold": -0.1}, "rms_threshold -0.1 is outside 0..1"),
        ({"flux_threshold": float("nan")}, "flux_threshold nan is outside 0..1"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        CadenceOptions(**options)


def exact_slerp(a, b, t):
    """float64, from the angle between the vectors by its sine and cosine, not by the units' product."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    la, lb = np.linalg.norm(a), np.linalg.norm(b)
    angle = 2 * np.arctan2(np.linalg.norm(a / la - b / lb), np.linalg.norm(a / la + b / lb))
    if abs(np.cos(angle)) > 0.9995:
        return (1 - t) * a + t * b
    side = b / lb - np.cos(angle) * a / la  # Gram-Schmidt: the other axis of the plane
    side /= np.linalg.norm(side)
    direction = np.cos(t * angle) * a / la + np.sin(t * angle) * side
    return direction * ((1 - t) * la + t * lb)


def test_slerp_is_the_formula():
    draw = np.random.default_rng(2)
    a = draw.normal(0, 1, (40, 4, 16, 16)).astype(np.float32)
    b = draw.normal(0, 1.5, a.shape).astype(np.float32)
    b[10:20] = a[10:20] * 1.7 + 0.3 * b[10:20]
    b[20:30] = a[20:30] * 1.2 + 0.001 * b[20:30]  # nearly parallel: the straight line
    t = draw.random(40).astype(np.float32)
    t[:2] = 0, 1
    got = slerp(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(t)).numpy()
    assert got.dtype == np.float32
    for i in range(40):
        wanted = exact_slerp(a[i], b[i], float(t[i]))
        error = np.linalg.norm(got[i].ravel() - wanted) / np.linalg.norm(wanted)
        assert error < 2e-6, i
    bend = [np.linalg.norm(exact_slerp(a[i], b[i], 0.5) - (a[i] + b[i]).ravel() / 2) for i in range(10)]
    assert min(bend) > 1  # or the straight line would pass


def test_slerp_of_vectors_without_a_turning_plane_is_a_straight_line():
    a = torch.ones(5, 8)
    b = torch.stack([-a[0], torch.zeros(8), 3 * a[0], torch.full((8,), float("nan")), a[0]])
    got = slerp(a, b, torch.tensor([0.25, 0.25, 0.5, 0.5, 0.3]))
    wanted = torch.tensor([0.5, 0.75, 2.0, float("nan"), 1.0])[:, None].expand(5, 8)
    assert torch.allclose(got, wanted, equal_nan=True)
    assert torch.equal(slerp(torch.zeros(1, 4), torch.zeros(1, 4), torch.tensor([0.5])), torch.zeros(1, 4))
    half = slerp(torch.tensor([[1.0, 0]]).half(), torch.tensor([[0, 2.0]]).half(), torch.tensor([0.5]).half())
    assert half.dtype == torch.float32
    assert torch.allclose(half, torch.full((1, 2), 1.5 / 2**0.5))


def test_the_mix_adds_up():
    energies = [0.0] * 4 + [0.1] * 6 + [0.0] * 10
    mix, report = StrideMix(), Report()
    for p in plan(energies, "2", rest=True, usable=[i != 7 for i in range(20)]):
        mix.add(p)
    assert mix.frames == 20
    assert sum(mix.shares().values()) == pytest.approx(19 / 20)
    mix.tell(report)
    assert report.facts["frames at rest"] == mix.at_rest == 6
    assert report.facts["key frames"] == f"{mix.keys} of 20"
    assert report.facts["stride mix"].startswith("every frame 15 %, every 2nd ")
