"""Everything around LMDM against its goldens: schedule, conditions, speech windows, joined windows, smoothing.

Each function yields results for one golden file. Where upstream is wrong and the pack is not, what both share is
compared, and the note says what is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.parity_measure import Result, Tolerance, close, exact, not_run, some
from ..core.timeline import cycle_indices
from .audio2motion import MotionJoin, MotionStream, WindowScheme
from .condition import Condition, FaceShape, emotion_rows
from .geometry import pack_motion
from .hubert import ChunkRule, SpeechRows
from .parity_lmdm import source_pose
from .parity_recipe import DittoGoldens, seeded
from .schedule import (
    alphas_cumprod,
    cosine_betas,
    ddim_steps,
    official_noise_factors,
    time_pairs,
)
from .smooth import POSE, moving_average, smooth_source

_FLAGS = ("use_emotion", "use_shape", "use_eye_open", "use_eye_ball")
_SMOOTHED = ("exp", "kp", "pitch", "yaw", "roll", "t", "scale")


def schedule(goldens: DittoGoldens) -> Iterator[Result]:
    """Betas, what is left of the signal, coefficients and times of the steps."""
    stored, described = goldens.tensors("schedule"), goldens.json("schedule")
    tables = {
        "betas": (np.array(cosine_betas()), stored["betas_f64"]),
        "alphas_cumprod": (np.array(alphas_cumprod()), stored["alphas_cumprod_f32"]),
        "clipped": (int((cosine_betas() == cosine_betas().max()).sum()), described["beta_clip_hits"]),
    }
    yield close("schedule.tables", tables, Tolerance(2e-6))
    factors = {
        name: (own / stored[name], torch.ones_like(own))
        for name, own in zip(
            ("sqrt_recip1m_alphas_cumprod", "sqrt_recipm1_alphas_cumprod"),
            official_noise_factors(),
            strict=True,
        )
    }
    yield close("schedule.factors", factors, Tolerance(2e-6), "relative")
    first, rest = {}, {}
    for name in some([key for key in stored if key.endswith(".sigma")], "steps"):
        n = name.partition(".")[0]
        made = ddim_steps(int(n.removeprefix("steps")))[:-1]
        drift = torch.tensor([step.drift for step in made])
        rest[f"{n}.sigma"] = (torch.tensor([step.sigma for step in made]), stored[name])
        rest[f"{n}.signal"] = (torch.tensor([s.signal for s in made]), stored[f"{n}.alpha_next_sqrt"])
        first[n] = (drift[0], stored[f"{n}.c"][0])
        if len(made) > 1:
            rest[f"{n}.c"] = (drift[1:], stored[f"{n}.c"][1:])
    yield close("schedule.steps", rest, Tolerance(2e-6))
    yield close("schedule.first_c", first, Tolerance(5e-4), "upstream's is rounding noise")
    times = {}
    for name, pairs in described.items():
        if name.startswith("time_pairs_") and not name.endswith("_at"):
            own = [list(pair) for pair in time_pairs(int(name.split("_")[2]))]
            times[name] = (own[:5] + own[-5:] if name.endswith("last5") else own, pairs)
    yield exact("schedule.times", times)


def condition(goldens: DittoGoldens) -> Iterator[Result]:
    """Columns behind the speech for every option set, label vectors, widths."""
    stored, described = goldens.tensors("condition"), goldens.json("condition")
    speech, rows, speech_kept = seeded("cd.aud", (80, 1024)), {}, {}
    for name, case in described.items():
        if not isinstance(case, dict) or "idx" not in case:
            continue
        face = _face(stored, "ch" if case["ch_info"] else case["source"])
        emotion = case["emo"] if case["call_emo"] is None else case["call_emo"]
        emotion = stored[emotion] if isinstance(emotion, str) else emotion
        given = speech[: case["n"]]
        made = Condition(face, emotion, fixed_eyes=case["eye_f0_mode"]).rows(given, case["idx"])
        rows[name] = (made[:, 1024:], stored[f"{name}.tail"])
        speech_kept[name] = (made[:, :1024], given)
    yield close("condition.rows", rows, Tolerance(1e-5))
    yield exact("condition.speech", speech_kept)
    labels = {
        "one": (torch.cat([emotion_rows(i) for i in range(8)]), stored["emo_onehot_softmax_0_to_7"]),
        "3 4": (emotion_rows([3, 4])[0], stored["emo_list_3_4"]),
        "0 5 6": (emotion_rows([0, 5, 6])[0], stored["emo_list_0_5_6"]),
    }
    yield close("condition.labels", labels, Tolerance(1e-5))
    widths, start = {}, "dims use_emo,use_sc,use_eye_open,use_eye_ball="
    for name, shape in described.items():
        if name.startswith(start):
            used = [word.strip() == "True" for word in name.removeprefix(start).strip("()").split(",")]
            made = Condition(_face(stored, "img"), **dict(zip(_FLAGS, used, strict=True))).rows(speech, 0)
            widths[name] = (list(made.shape), shape)
    yield exact("condition.widths", widths)
    yield not_run(
        "condition.argument_edge_cases", "stricter than upstream: True and an empty list are refused as well"
    )


def joins(goldens: DittoGoldens) -> Iterator[Result]:
    """Blending, smoothing and feedback of windows; averaged template videos."""
    stored, described = goldens.tensors("audio2motion"), goldens.json("audio2motion")
    source, columns = pack_motion(source_pose(stored, "source")), described["columns"]
    for name, case in described.items():
        if not isinstance(case, dict):
            continue
        join, used, lengths = MotionJoin(_scheme(case), source), [], []
        for i in range(len(case["lengths_after_each_clip"])):
            used.append(join.kp_cond[0])
            join.add(0.3 * seeded(f"a2m.clip{i}", (1, 80, 265)))
            lengths.append(join.end)
        series = join.rows(0, join.end)
        pairs = {
            "kp_cond": (torch.stack(used), stored[f"{name}.kp_cond_used"]),
            "next kp_cond": (join.kp_cond, stored[f"{name}.kp_cond_next"]),
            "series": (series[:, columns], stored[f"{name}.res_cols"]),
            "norm": (float(series.double().norm()) / case["l2"], 1.0),
        }
        if name == "offline":
            cut = series[:250].clone()
            cut[:, POSE] = moving_average(cut[:, POSE], case["smo_k_d"])
            pairs["smoothed"] = (cut[:, columns], stored["offline.final_smoothed_250_cols"])
            pairs["limited"] = (cut[17].clamp(-0.4, 0.35), stored["offline.cvt_clip_frame17_265"])
        yield close(f"audio2motion.{name}", pairs, Tolerance(1e-5))
        scheme = join.scheme
        sizes = {
            "lengths": (lengths, case["lengths_after_each_clip"]),
            "valid": (scheme.valid, case["valid_clip_len"]),
            "fuse": (scheme.fuse, case["fuse_length"]),
        }
        yield exact(f"audio2motion.{name}.sizes", sizes)
    infos, pairs = {name: stored[f"smooth.in.{name}"] for name in _SMOOTHED}, {}
    for width in (4, 5, 13):
        made = smooth_source(infos, width)
        pairs |= {f"k{width}.{name}": (made[name], stored[f"smooth.k{width}.{name}"]) for name in _SMOOTHED}
    made = smooth_source(infos, 13, skip=("kp", "scale"))
    for name in ("exp", "kp"):
        pairs[f"k13 without kp, scale: {name}"] = (made[name], stored[f"smooth.k13_ignore_kp_scale.{name}"])
    yield close("audio2motion.template", pairs, Tolerance(1e-5))


def speech_windows(goldens: DittoGoldens) -> Iterator[Result]:
    """Which samples each window hears, and the rows that come of a stand-in encoder."""
    described, rows, windows = goldens.json("audio"), {}, {}
    for name, wanted in goldens.tensors("audio").items():
        kind, *sizes, n, _ = name.split(".")
        chunks = sizes[0].removeprefix("chunksize").split("_") if sizes else (3, 5, 2)
        encoder = MeanEncoder()
        stream = SpeechRows(encoder, ChunkRule(*map(int, chunks), online=kind == "online"), width=1)
        n = int(n.removeprefix("n"))
        made = torch.cat([stream.feed(np.arange(1, n + 1, dtype=np.float32)), stream.finish()])[:, 0]
        rows[name] = (made.double() / wanted[: len(made)], torch.ones(len(made)))
        if not sizes:
            table = described[kind][str(n)]["windows_in_audio_samples"]
            windows[name] = (encoder.windows, table[: -(-len(made) // 5)])
            windows[f"{name} rows"] = (len(made), -(-n // 640))
    left = "rows beyond the last frame, which upstream adds, are left out"
    yield close("audio.rows", rows, Tolerance(2e-6), f"relative; {left}")
    yield exact("audio.windows", windows, left)


def speech_order(goldens: DittoGoldens) -> Iterator[Result]:
    """In what order frames come of a stream, after how many rows, from which windows."""
    described = goldens.json("audio")
    for mode in ("offline", "online"):
        order, tables = {}, {}
        for name, case in described[f"{mode}_schedule"].items():
            overlap, n = int(name.split(".")[0].removeprefix("overlap")), case["fed"]
            if mode == "online" and overlap < 40:
                continue
            stream = NumberedStream(overlap, mode == "online")
            shown = torch.cat([*(stream.feed(i, min(i + 5, n)) for i in range(0, n, 5)), stream.finish()])
            wanted = case.get("emitted_audio_index", list(range(n)))[:n]
            wanted += range(len(wanted), n)
            order[name] = (shown, torch.tensor(wanted, dtype=torch.float32))
            tables[f"{name} windows"] = (stream.windows, case["lmdm_windows_first_last_unique"])
            if mode == "online":
                tables[f"{name} calls"] = (stream.calls, case["condition_calls_idx_n"])
                tables[f"{name} d0"] = (stream.reference, case["d0_exp_last"])
                template = cycle_indices(0, min(8, len(case["emitted_audio_index"])), 3, "pingpong")
                tables[f"{name} source"] = (template.tolist(), case["source_frame_index_first8"])
        yield close(f"audio.{mode}_order", order, Tolerance(1e-4), "as many frames as were fed")
        yield exact(f"audio.{mode}_tables", tables)
    ready = {}
    for overlap, table in described["online_fed_vs_ready"].items():
        stream, shown, own = NumberedStream(int(overlap), True), 0, []
        for fed, _ in table:
            shown += len(stream.feed(fed - 5, fed))
            own.append([fed, shown])
        ready[overlap] = (own, table)
    yield exact("audio.online_latency", ready)


class MeanEncoder:
    """The goldens' stand-in for HuBERT: frame k is the mean of samples 320 k .. 320 k + 399. Sample i holds i + 1."""

    def __init__(self) -> None:
        self.windows: list[list[int]] = []

    def __call__(self, window: np.ndarray) -> np.ndarray:
        at = int(np.flatnonzero(window)[0])
        start = int(window[at]) - 1 - at
        self.windows.append([start, start + len(window)])
        spans = [window[320 * k : 320 * k + 400] for k in range((len(window) - 400) // 320 + 1)]
        return np.array([[span.mean(dtype=np.float64)] for span in spans])


class NumberedStream:
    """The goldens' stand-in for network and speech: row k and frame k hold k. Keeps windows and calls as they do."""

    def __init__(self, overlap: int, online: bool) -> None:
        self.windows: list[list[int]] = []
        self.calls: list[list[int]] = []
        silence = _numbers(-overlap, 0) if online else None
        scheme = WindowScheme(overlap=overlap, online=online, smooth=0)
        self._stream = MotionStream(self._sample, self, scheme, torch.zeros(POSE.stop), silence)

    def feed(self, first: int, end: int) -> Tensor:
        return self._stream.feed(_numbers(first, end))[:, 0]

    def finish(self) -> Tensor:
        return self._stream.finish()[:, 0]

    @property
    def reference(self) -> float:
        return float(self._stream.reference[0, 0])

    def rows(self, speech: Tensor, start: int) -> Tensor:
        """As `Condition.rows`, with nothing added."""
        self.calls.append([start, len(speech)])
        return speech

    def _sample(self, kp_cond: Tensor, cond: Tensor) -> Tensor:
        audio = cond[0, :, 0]
        self.windows.append([int(audio[0]), int(audio[-1]), len(audio.unique())])
        return audio[None, :, None].expand(-1, -1, POSE.stop)


def _numbers(first: int, end: int) -> Tensor:
    return torch.arange(float(first), float(end))[:, None]


def _face(stored: dict[str, Tensor], name: str) -> FaceShape:
    return FaceShape(stored[f"{name}.eye_open"], stored[f"{name}.eye_ball"], stored[f"{name}.sc"])


def _scheme(case: dict[str, Any]) -> WindowScheme:
    free = case["fix_kp_cond_dim"]
    return WindowScheme(
        overlap=case["overlap_v2"],
        online=case["online_mode"],
        smooth=case["smo_k_d"],
        fix_every=case["fix_kp_cond"],
        fix_free=tuple(free) if free else None,
        upstream_smoothing=True,
    )
