"""Parity of the audio path: log-mel, encoder states, positions, and which rows a frame hears."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.parity_measure import Result, Tolerance, close, exact, not_run, some
from .parity_recipe import Goldens
from .parity_windows import WINDOW_ROWS, Windows, current_windows, original_windows
from .whisper import log_mel, positional_encoding

LOG_MEL = Tolerance(2e-4)
_POSITIONS = Tolerance(5e-5)
_FILL = re.compile(r"fill_value_log_mel_cols_(\d+)_\d+")
_HALF_CHUNK = 40
"""The frame whose tokens `pe_half_applied` was made of."""


def encoder_states(goldens: Goldens, pcm16: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-mel (80, 3000) in float32 and the encoder's states (1500, 5, 384) of audio up to 30 s long."""
    mel = log_mel(pcm16.to(goldens.device).float()[None] / 32768)
    return mel[0], goldens.nets.encode_audio(mel)[0]


def window_tokens(states: Tensor, plan: Windows, frames: list[int]) -> Tensor:
    """Return the tokens (len(frames), 50, 384) of frames under upstream's rule: 10 rows of 5 states, zeros outside."""
    padded = torch.cat([states[: plan.valid_rows], torch.zeros_like(states[:1])])  # row -1 is the zero row
    return torch.stack([padded[plan.rows(frame)].flatten(0, 1) for frame in frames])


def audio_whisper(goldens: Goldens) -> Iterator[Result]:
    data, about = goldens.tensors("audio_whisper"), goldens.metadata("audio_whisper")
    mel, states = encoder_states(goldens, data["pcm16"])
    columns = data["log_mel"].shape[1]
    pairs = {"columns": (mel[:, :columns], data["log_mel"])}
    for key, value in about.items():
        if found := _FILL.fullmatch(key):
            tail = mel[:, int(found[1]) :]
            pairs["tail"] = (tail, torch.full_like(tail, float(value)))
    yield close("audio_whisper.log_mel", pairs, LOG_MEL)
    rows = states[data["hidden_rows_index"].to(states.device)]
    yield close("audio_whisper.hidden", {"rows": (rows, data["hidden_rows"])}, goldens.network)
    yield from _chunks(goldens, data, about, states)
    yield from _positions(goldens, data)


def _chunks(goldens: Goldens, data: dict, about: dict, states: Tensor) -> Iterator[Result]:
    pairs, sizes = {}, {"n_samples": (str(len(data["pcm16"])), about.get("n_samples"))}
    for key in data:
        if found := re.fullmatch(r"chunk_fps(\d+)", key):
            plan = current_windows(len(data["pcm16"]), int(found[1]))
            pairs[key] = (window_tokens(states, plan, data[f"{key}_index"].tolist()), data[key])
            shape = [plan.n_frames, WINDOW_ROWS * states.shape[1], states.shape[2]]
            sizes[f"{key}_shape"] = (str(shape), about.get(f"{key}_shape", str(shape)))
    yield close("audio_whisper.windows", pairs, goldens.network)
    yield exact("audio_whisper.sizes", sizes)


def _positions(goldens: Goldens, data: dict) -> Iterator[Result]:
    table = positional_encoding(5000, data["pe_row_4999"].shape[0], goldens.device)
    first = data["pe_first_50"]
    pairs = {"first": (table[: len(first)], first), "row 4999": (table[4999], data["pe_row_4999"])}
    yield close("audio_whisper.positions", pairs, _POSITIONS)
    frames = data.get("chunk_fps25_index", torch.zeros(0)).tolist()
    if _HALF_CHUNK not in frames:
        yield not_run("audio_whisper.positions_half", f"chunk {_HALF_CHUNK} at 25 fps is not stored")
        return
    chunk = data["chunk_fps25"][frames.index(_HALF_CHUNK)].half()
    half = chunk + positional_encoding(*chunk.shape, dtype=torch.float16)
    yield exact("audio_whisper.positions_half", {"sum": (half, data["pe_half_applied"])})


def audio_windows(goldens: Goldens) -> Iterator[Result]:
    """Every case of the table, results `exit` and `error` included."""
    described = goldens.json("audio_windows")
    pairs: dict[str, tuple] = {"window_rows": (WINDOW_ROWS, described["window_rows"])}
    cases = some(described["table"], "table") + described["rounding_and_fps_cases"]
    for case in cases:
        plan = current_windows(case["n_samples"], case["fps_arg"])
        label = f"{case['n_samples']} samples at {case['fps_arg']} fps"
        own = _described(plan, case)
        for key, value in own.items():
            if key in case or value is not None:
                pairs[f"{label}: {key}"] = (value, case.get(key))
    yield exact("audio_windows", pairs, f"{len(cases)} cases")


def _described(plan: Windows, case: dict) -> dict:
    """The plan in the golden's words; lists only where the case has them."""
    own = {
        "n_segments": plan.n_segments,
        "fps_used": plan.fps,
        "num_frames": plan.n_frames,
        "valid_rows": plan.valid_rows,
        "pad_unit": plan.pad_unit,
        "left_pad": plan.left_pad,
        "right_pad": plan.right_pad,
        "result": plan.result,
        "exit_at_frame": plan.exit_at,
        "error": plan.error,
    }
    if "start" in case:
        own["start"] = list(plan.starts)
    if "last_start" in case:
        own["last_start"] = plan.starts[-1] if plan.starts else None
    if "first_starts" in case:
        own["first_starts"] = list(plan.starts[: len(case["first_starts"])])
    if "literal_windows" in case:
        own["literal_windows"] = {frame: plan.rows(int(frame)) for frame in case["literal_windows"]}
    return own


def audio_windows_original(goldens: Goldens) -> Iterator[Result]:
    """The first v1.0 code: clamped rows, float fps, two chunks too many."""
    pairs, cases = {}, goldens.json("audio_windows_v1_original")["cases"]
    for case in cases:
        rows = original_windows(case["rows"], case["fps"]).tolist()
        label = f"{case['rows']} rows at {case['fps']} fps"
        own = {"num_chunks": len(rows)}
        own |= {"first": rows[: len(case["first"])], "last": rows[-len(case["last"]) :]}
        pairs |= {f"{label}: {key}": (value, case[key]) for key, value in own.items()}
    yield exact("audio_windows_v1_original", pairs, f"{len(cases)} cases")
