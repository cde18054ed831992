"""Schedule, speech windows, conditions, joining of windows, and all of them together, against upstream's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity.lmdm_recipe import REL_L2_FP32, build_lmdm, described, golden, rel_l2, seeded

from talkinghead.nodes.ditto.audio2motion import (
    MotionJoin,
    MotionSampler,
    MotionStream,
    WindowScheme,
)
from talkinghead.nodes.ditto.condition import Condition, FaceShape, emotion_row, emotion_rows
from talkinghead.nodes.ditto.hubert import ChunkRule, SpeechRows
from talkinghead.nodes.ditto.schedule import (
    MotionNoise,
    alphas_cumprod,
    cosine_betas,
    ddim_steps,
    official_noise_factors,
    time_pairs,
)
from talkinghead.nodes.ditto.smooth import POSE, moving_average, smooth_source

JOINS, AUDIO = described("audio2motion"), described("audio")
A2M, SCHEDULE, CONDITIONS = golden("audio2motion"), golden("schedule"), golden("condition")
AUDIO_ROWS = golden("audio")
CASES = described("condition")
ROWS = [name for name, case in CASES.items() if isinstance(case, dict) and "idx" in case]
SCHEMES = [name for name, entry in JOINS.items() if isinstance(entry, dict)]


def motion_vector(info: dict, prefix: str) -> torch.Tensor:
    parts = [info[f"{prefix}.{key}"] for key in ("pitch", "yaw", "roll", "t", "exp")]
    return torch.cat([info[f"{prefix}.scale"] - 1, *parts], dim=1)


def close(actual, expected, atol):
    assert actual.shape == expected.shape
    assert (torch.as_tensor(actual).double() - expected.double()).abs().max().item() <= atol


def test_betas_and_what_is_left():
    close(torch.from_numpy(cosine_betas().copy()), SCHEDULE["betas_f64"], 1e-12)
    close(torch.from_numpy(alphas_cumprod().copy()), SCHEDULE["alphas_cumprod_f32"], 2e-6)
    assert (cosine_betas() == 0.999).sum() == described("schedule")["beta_clip_hits"]
    for own, name in zip(
        official_noise_factors(), ("sqrt_recip1m_alphas_cumprod", "sqrt_recipm1_alphas_cumprod"), strict=True
    ):
        assert torch.allclose(own, SCHEDULE[name], rtol=2e-6, atol=0)


@pytest.mark.parametrize("steps", [2, 4, 10, 25, 50])
def test_coefficients_of_the_steps(steps):
    made = ddim_steps(steps)[:-1]
    close(torch.tensor([s.sigma for s in made]), SCHEDULE[f"steps{steps}.sigma"], 2e-6)
    close(torch.tensor([s.signal for s in made]), SCHEDULE[f"steps{steps}.alpha_next_sqrt"], 2e-6)
    drift = torch.tensor([s.drift for s in made])
    wanted = SCHEDULE[f"steps{steps}.c"]
    close(drift[:1], wanted[:1], 5e-4)  # upstream's is rounding noise
    for own, official in zip(drift[1:], wanted[1:], strict=True):
        close(own, official, 2e-6)


def test_times_of_the_steps():
    tables = described("schedule")
    seen = 0
    for name, pairs in tables.items():
        if not name.startswith("time_pairs") or name.endswith("_at"):
            continue
        own = [list(pair) for pair in time_pairs(int(name.split("_")[2]))]
        assert (own[:5] + own[-5:] if name.endswith("last5") else own) == pairs
        seen += 1
    assert seen == 13


@pytest.mark.parametrize("name", ROWS)
def test_condition(name):
    case = CASES[name]
    source = "ch" if case["ch_info"] else case["source"]
    face = FaceShape(*(CONDITIONS[f"{source}.{part}"] for part in ("eye_open", "eye_ball", "sc")))
    emotion = case["emo"] if case["call_emo"] is None else case["call_emo"]
    emotion = CONDITIONS["emo_arr7"] if emotion == "emo_arr7" else emotion
    speech = seeded("cd.aud", 80, 1024)[: case["n"]]
    rows = Condition(face, emotion, fixed_eyes=case["eye_f0_mode"]).rows(speech, case["idx"])
    assert list(rows.shape) == case["shape"]
    assert torch.equal(rows[:, :1024], speech)
    close(rows[:, 1024:], CONDITIONS[f"{name}.tail"], 1e-5)


def test_emotions():
    close(torch.stack([emotion_row([i]) for i in range(8)]), CONDITIONS["emo_onehot_softmax_0_to_7"], 1e-6)
    close(emotion_row([3, 4]), CONDITIONS["emo_list_3_4"], 1e-6)
    close(emotion_rows([0, 5, 6])[0], CONDITIONS["emo_list_0_5_6"], 1e-6)


@pytest.mark.parametrize(
    ("emotion", "eye_open", "eye_ball", "shape", "width"),
    [
        (False, True, True, True, 1095),
        (True, True, True, False, 1040),
        (True, False, False, True, 1095),
        (False,) * 4 + (1024,),
    ],
)
def test_widths_without_some_parts(emotion, eye_open, eye_ball, shape, width):
    face = FaceShape(*(CONDITIONS[f"img.{part}"] for part in ("eye_open", "eye_ball", "sc")))
    condition = Condition(
        face, use_emotion=emotion, use_eye_open=eye_open, use_eye_ball=eye_ball, use_shape=shape
    )
    rows = condition.rows(seeded("cd.aud", 80, 1024), 0)
    assert rows.shape == (80, width)
    assert condition.extra == width - 1024
    key = f"dims use_emo,use_sc,use_eye_open,use_eye_ball={(emotion, shape, eye_open, eye_ball)}"
    assert CASES[key] == [80, width]


@pytest.mark.parametrize("name", SCHEMES)
def test_windows_are_joined_as_upstream_does(name):
    case = JOINS[name]
    free = case["fix_kp_cond_dim"]
    scheme = WindowScheme(
        overlap=case["overlap_v2"],
        online=case["online_mode"],
        smooth=case["smo_k_d"],
        fix_every=case["fix_kp_cond"],
        fix_free=tuple(free) if free else None,
        upstream_smoothing=True,
    )
    join = MotionJoin(scheme, motion_vector(A2M, "source"))
    for i, length in enumerate(case["lengths_after_each_clip"]):
        close(join.kp_cond[0], A2M[f"{name}.kp_cond_used"][i], 1e-5)
        join.add(0.3 * seeded(f"a2m.clip{i}", 1, 80, 265))
        assert join.end == length
    series = join.rows(0, join.end)
    close(series[:, JOINS["columns"]], A2M[f"{name}.res_cols"], 1e-5)
    close(join.kp_cond, A2M[f"{name}.kp_cond_next"], 1e-5)
    assert series.double().norm().item() == pytest.approx(case["l2"], rel=1e-6)
    assert (scheme.valid, scheme.fuse) == (case["valid_clip_len"], case["fuse_length"])
    if name == "offline":
        series = series[:250].clone()
        series[:, POSE] = moving_average(series[:, POSE], 3)
        close(series[:, JOINS["columns"]], A2M["offline.final_smoothed_250_cols"], 1e-5)


def fake_stream(name: str, seen: list, **options) -> MotionStream:
    """A stream whose speech row and motion frame k hold k; `seen` gets [first, last, different rows] of each window."""
    overlap, online = int(name.removeprefix("overlap")), options.get("online", True)
    scheme = WindowScheme(overlap=overlap, online=online, smooth=1)
    silence = torch.arange(-overlap, 0.0)[:, None].expand(-1, 1024) if online else None

    def sampler(kp_cond, cond):
        assert cond.shape == (1, 80, 1103)
        audio = cond[0, :, 0]
        seen.append([int(audio[0]), int(audio[-1]), len(audio.unique())])
        return audio[:, None].expand(-1, 265)[None]

    face = FaceShape(torch.zeros(1, 2), torch.zeros(1, 6), torch.zeros(63))
    return MotionStream(sampler, Condition(face), scheme, torch.zeros(265), silence)


def numbered(first: int, end: int) -> torch.Tensor:
    return torch.arange(float(first), float(end))[:, None].expand(-1, 1024)


@pytest.mark.parametrize("name", [n for n in AUDIO["online_schedule"] if not n.startswith("overlap10.")])
def test_online_windows_and_order(name):
    """The same windows and frames as upstream, less the frames it adds at the end; short speech is not dropped."""
    case, seen, made = AUDIO["online_schedule"][name], [], []
    stream = fake_stream(name.split(".")[0], seen)
    for first in range(0, case["fed"], 5):
        made.append(stream.feed(numbered(first, min(first + 5, case["fed"]))))
    made.append(stream.finish())
    shown = torch.cat(made)[:, 0]
    assert shown.tolist() == pytest.approx(list(range(case["fed"])), abs=1e-4)
    kept = case["emitted_audio_index"][: case["fed"]]
    assert shown[: len(kept)].tolist() == pytest.approx(kept, abs=1e-4)
    assert seen == case["lmdm_windows_first_last_unique"]


@pytest.mark.parametrize("overlap", AUDIO["online_fed_vs_ready"])
def test_online_latency(overlap):
    stream, ready = fake_stream(f"overlap{overlap}", []), 0
    for fed, wanted in AUDIO["online_fed_vs_ready"][overlap]:
        ready += len(stream.feed(numbered(fed - 5, fed)))
        assert (fed, ready) == (fed, wanted)


@pytest.mark.parametrize("name", AUDIO["offline_schedule"])
def test_offline_windows_and_order(name):
    case, seen = AUDIO["offline_schedule"][name], []
    stream = fake_stream(name.split(".")[0], seen, online=False)
    shown = torch.cat([stream.feed(numbered(0, case["fed"])), stream.finish()])
    assert case["identity"]
    assert shown[:, 0].tolist() == pytest.approx(list(range(case["fed"])), abs=1e-4)
    assert seen == case["lmdm_windows_first_last_unique"]


def mean_encoder(seen: list):
    """Upstream's stand-in: frame k is the mean of samples 320 k .. 320 k + 399 of its window."""

    def encode(window: np.ndarray) -> np.ndarray:
        real = np.flatnonzero(window)
        seen.append((int(window[real[0]]) - real[0], len(window)) if len(real) else None)
        count = (len(window) - 400) // 320 + 1
        return np.stack(
            [window[320 * k : 320 * k + 400].astype(np.float64).mean(keepdims=True) for k in range(count)]
        )

    return encode


@pytest.mark.parametrize("name", AUDIO_ROWS)
def test_speech_windows_and_rows(name):
    parts = name.split(".")
    n, online = int(parts[-2].removeprefix("n")), parts[0] == "online"
    sizes = [int(v) for v in parts[1].removeprefix("chunksize").split("_")] if len(parts) == 4 else (3, 5, 2)
    seen: list = []
    stream = SpeechRows(mean_encoder(seen), ChunkRule(*sizes, online=online), width=1)
    sound = np.arange(1, n + 1, dtype=np.float32)
    rows = torch.cat([stream.feed(sound), stream.finish()])[:, 0]
    wanted = AUDIO_ROWS[name]
    assert len(rows) == -(-n // 640)
    if not online and len(parts) == 3:
        assert len(rows) == AUDIO["offline"][str(n)]["ceil_exact"]
    assert torch.allclose(rows.double(), wanted[: len(rows)], rtol=1e-6, atol=1e-6)
    if len(parts) == 3:
        windows = AUDIO[parts[0]][str(n)]["windows_in_audio_samples"]
        starts = [entry[0] - 1 for entry in seen]  # sample i of the sound holds i + 1
        assert starts == [first for first, _ in windows[: len(starts)]]
        assert len(starts) == -(-len(rows) // 5)
        assert all(size == end - first for (_, size), (first, end) in zip(seen, windows, strict=False))


@pytest.mark.parametrize("width", [13, 5, 4])
def test_template_video_is_averaged(width):
    names = ("exp", "kp", "pitch", "yaw", "roll", "t", "scale")
    made = smooth_source({name: A2M[f"smooth.in.{name}"] for name in names}, width)
    for name in names:
        close(made[name], A2M[f"smooth.k{width}.{name}"], 1e-4 if name in ("pitch", "yaw", "roll") else 1e-5)
    made = smooth_source({name: A2M[f"smooth.in.{name}"] for name in names}, 13, skip=("kp", "scale"))
    assert torch.equal(made["kp"], A2M["smooth.in.kp"])
    close(made["exp"], A2M["smooth.k13_ignore_kp_scale.exp"], 1e-5)


def test_speech_to_motion_end_to_end():
    """100 rows, two windows of four steps, upstream's seed and its smoothing."""
    case, wanted = described("e2e_motion")["offline"], golden("e2e_motion")
    face = FaceShape(torch.tensor([case["eye_open"]]), torch.tensor([case["eye_ball"]]), wanted["source.kp"])
    scheme = WindowScheme(overlap=case["overlap_v2"], smooth=case["smo_k_d"], upstream_smoothing=True)
    sampler = MotionSampler(build_lmdm(), MotionNoise(1024, case["steps"], 1.0, (80, 265)))
    stream = MotionStream(sampler, Condition(face, case["emo"]), scheme, motion_vector(wanted, "source"))
    made = torch.cat([stream.feed(seeded("e2e.aud", 100, 1024)), stream.finish()])
    assert rel_l2(made, wanted["offline.res_kp_seq_265"]) <= REL_L2_FP32
