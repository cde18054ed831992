"""Upstream's rules for which audio rows a frame hears, faults included: for comparisons only.

The pack itself uses core.timeline (exact rates, zeros outside). Here everything is evaluated in doubles in upstream's
order, with the results `exit` (upstream ends the process) and `error`. Rows last 20 ms; a window has 10 of them.
Source: spec/musetalk.md section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SAMPLE_RATE_HZ = 16_000
PIECE_SAMPLES = 480_000
ROWS_PER_SECOND = 50
_LEFT, _RIGHT = 2, 2
WINDOW_ROWS = 2 * (_LEFT + _RIGHT + 1)
_NO_WINDOWS = "ValueError: torch.cat(): expected a non-empty list of Tensors"


@dataclass(frozen=True)
class Windows:
    """The plan for one audio. `starts` (n_frames,) are first rows, below 0 in the zeros in front.

    result is "ok", "exit" (at frame `exit_at`, whose window overruns the padded rows) or "error".
    """

    n_segments: int
    fps: int
    n_frames: int
    valid_rows: int
    pad_unit: int
    left_pad: int
    right_pad: int
    starts: tuple[int, ...]
    result: str
    exit_at: int | None = None
    error: str | None = None

    def rows(self, frame: int) -> list[int]:
        """Return the window's rows; -1 stands for zeros."""
        at = range(self.starts[frame], self.starts[frame] + WINDOW_ROWS)
        return [r if 0 <= r < self.valid_rows else -1 for r in at]


def current_windows(n_samples: int, fps: float) -> Windows:
    """Return the windows of the current code (v1.5, and v1.0 since the merge) for `n_samples` at 16 kHz.

    ValueError for a rate below 1 fps, which upstream cuts to 0.
    """
    rate = int(fps)
    if rate < 1:
        raise ValueError(f"fps {fps} is below 1: upstream cuts it to a whole number and divides by it")
    step = ROWS_PER_SECOND / rate
    valid = math.floor((n_samples / SAMPLE_RATE_HZ) * ROWS_PER_SECOND)
    n_frames = math.floor((n_samples / SAMPLE_RATE_HZ) * rate)
    unit = math.ceil(step)
    left, right = min(valid, _LEFT * unit), min(valid, 3 * _RIGHT * unit)
    firsts = [math.floor(i * step) for i in range(n_frames)]
    overrun = (i for i, first in enumerate(firsts) if first + WINDOW_ROWS > left + valid + right)
    exit_at = next(overrun, None)
    result = "error" if n_frames == 0 else "ok" if exit_at is None else "exit"
    return Windows(
        n_segments=-(-n_samples // PIECE_SAMPLES),
        fps=rate,
        n_frames=n_frames,
        valid_rows=valid,
        pad_unit=unit,
        left_pad=left,
        right_pad=right,
        starts=tuple(first - left for first in firsts),
        result=result,
        exit_at=exit_at,
        error=_NO_WINDOWS if result == "error" else None,
    )


def original_windows(n_rows: int, fps: float) -> np.ndarray:
    """Return the windows of the first v1.0 code: rows (n_chunks, 10), clamped to 0..n_rows-1.

    It stops only after a chunk that starts behind the last row: about two chunks too many.
    """
    steps = np.arange(-2 * _LEFT, WINDOW_ROWS - 2 * _LEFT)
    chunks, first = [], 0
    while first <= n_rows:
        first = int(len(chunks) * (ROWS_PER_SECOND / fps))
        chunks.append(np.clip(first + steps, 0, n_rows - 1))
    return np.stack(chunks)
