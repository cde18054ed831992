"""The only clock of the pack: frame indices, sample indices and rates, in exact integers.

A frame index never comes from a float product: `floor(t * 25)` on doubles loses frames at 1.16, 2.28,
2.32 and 4.52 s. Rates are `Fraction`s; 29.97 means 30000/1001.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

MIN_FPS, MAX_FPS = Fraction(1), Fraction(240)
MAX_RATE_TERM = 1_000_000
MAX_RATE_TEXT = 32
_RATE = re.compile(r"\d+(\.\d+)?(/\d+)?")
SPEECH_ROWS_PER_SECOND = 50
"""Whisper's encoder gives one row per 20 ms."""
SPEECH_ROWS_BEFORE = 4
"""A frame's window starts 80 ms before it (two frames of left context at 25 fps)."""

CYCLES = ("still", "loop", "pingpong")


def parse_fps(value: str | int | float | Fraction) -> Fraction:
    """Return the exact rate for `value`: a number, "N", "N/D" or a decimal such as "29.97".

    A non-integer decimal within 0.01 of n*1000/1001 (n = 24, 30, 48, 60, 90, 120, 144, 240) means that
    NTSC rate; other decimals are taken as they are written. Raises ValueError outside 1..240 fps.
    """
    # Only plain decimals: Fraction("1e99999999") would compute that power.
    text = str(value).strip()
    try:
        rate = Fraction(text) if len(text) <= MAX_RATE_TEXT and _RATE.fullmatch(text) else None
    except ZeroDivisionError:
        rate = None
    if rate is None:
        raise ValueError(
            f"fps {text[:MAX_RATE_TEXT]!r} is not a rate; give a number such as 25, 29.97 or 30000/1001"
        )
    if rate.denominator not in (1, 1001):
        for n in (24, 30, 48, 60, 90, 120, 144, 240):
            ntsc = Fraction(n * 1000, 1001)
            if abs(rate - ntsc) < Fraction(1, 100):
                rate = ntsc
                break
    if not MIN_FPS <= rate <= MAX_FPS:
        raise ValueError(f"fps {value} is outside {MIN_FPS}..{MAX_FPS}; choose a rate in that range")
    if rate.numerator > MAX_RATE_TERM:
        raise ValueError(
            f"fps {value} is {rate}; containers hold terms up to {MAX_RATE_TERM}: round it, such as {float(rate):.3f}"
        )
    return rate


def fps_text(fps: Fraction) -> str:
    """Write a rate so that `parse_fps` reads the same one: "25" or "30000/1001"."""
    return str(fps.numerator) if fps.denominator == 1 else f"{fps.numerator}/{fps.denominator}"


def frame_count(n_samples: int, sample_rate: int, fps: Fraction) -> int:
    """Return the frames that cover `n_samples` of audio: ceil(seconds * fps), 0 only for no audio."""
    return -(-n_samples * fps.numerator // (sample_rate * fps.denominator))


def frame_to_sample(frame: int, sample_rate: int, fps: Fraction) -> int:
    """Return the first sample at or after the start of `frame`."""
    return -(-frame * sample_rate * fps.denominator // fps.numerator)


def sample_to_frame(sample: int, sample_rate: int, fps: Fraction) -> int:
    """Return the frame on screen while `sample` plays."""
    return sample * fps.numerator // (sample_rate * fps.denominator)


def speech_row_start(frame: int, fps: Fraction, rows_per_second: int = SPEECH_ROWS_PER_SECOND) -> int:
    """Return the first speech row of a frame's window; rows below 0 or past the end are zeros.

    floor(i * 50 / fps) - 4, upstream's rule for 25..49 fps, kept at every rate so that the lips keep
    their place in time.
    """
    return frame * rows_per_second * fps.denominator // fps.numerator - SPEECH_ROWS_BEFORE


def cycle_indices(start: int, count: int, n_frames: int, cycle: str) -> np.ndarray:
    """Return which of an avatar's `n_frames` each of `count` output frames from `start` shows (int64).

    still and loop repeat from the first frame; pingpong plays forward, then backward with the turning
    frames shown twice, as upstream does (period 2 * n_frames).
    """
    if cycle not in CYCLES:
        raise ValueError(f"cycle {cycle!r} is unknown; use one of {', '.join(CYCLES)}")
    if n_frames < 1:
        raise ValueError(f"an avatar needs at least one frame, this one has {n_frames}")
    at = np.arange(start, start + count, dtype=np.int64)
    if cycle != "pingpong":
        return at % n_frames
    at %= 2 * n_frames
    return np.where(at < n_frames, at, 2 * n_frames - 1 - at)


def retime_indices(n_in: int, fps_in: Fraction, fps_out: Fraction) -> np.ndarray:
    """Return, for a clip brought to `fps_out`, the source frame on screen at each output frame's start."""
    n_out = -(-n_in * fps_out.numerator * fps_in.denominator // (fps_out.denominator * fps_in.numerator))
    num, den = fps_in.numerator * fps_out.denominator, fps_in.denominator * fps_out.numerator
    return np.minimum(np.arange(n_out, dtype=np.int64) * num // den, n_in - 1)
