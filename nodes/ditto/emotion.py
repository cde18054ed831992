"""Emotions as people write them: "happy", "happy 0.7, surprise 0.3", or over time "0 s neutral; 2.5 s happy"."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from .condition import EMOTIONS, mixed_emotion
from .hubert import FPS

MAX_SECONDS = 3600
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*s\s+(.+)", re.DOTALL)
_PART = re.compile(r"([a-z]+)(?:\s+(\d+(?:\.\d+)?))?")


def emotion_weights(text: str) -> Tensor:
    """Return (m, 8) weights, one row for each frame of 25 fps; the last row stays.

    Args:
        text: names with weights (any scale, 1 if not given), separated by commas; or several of these behind times, "0 s
            neutral; 2.5 s happy 0.7, sad 0.3", between which the weights change evenly. Before the first time that mix
            stands, behind the last that one.

    Raises:
        ValueError: unknown names, weights that are all 0, times that do not grow or lie beyond an hour.
    """
    entries = [entry.strip() for entry in text.lower().split(";") if entry.strip()]
    if len(entries) == 1 and not _TIME.fullmatch(entries[0]):
        return _mix(entries[0], text)
    keys = [_keyed(entry, text) for entry in entries]
    if not keys:
        raise ValueError(f"emotion {text!r:.80} is empty: {_how()}")
    times = [time for time, _ in keys]
    if any(b <= a for a, b in zip(times, times[1:], strict=False)) or times[-1] > MAX_SECONDS:
        raise ValueError(f"emotion {text!r:.120}: times must grow and end within {MAX_SECONDS} s")
    frames = np.arange(int(-(-times[-1] * FPS // 1)) + 1) / float(FPS)
    mixes = torch.cat([mix for _, mix in keys]).numpy()
    columns = [np.interp(frames, [float(t) for t in times], mixes[:, i]) for i in range(len(EMOTIONS))]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _keyed(entry: str, text: str) -> tuple[Fraction, Tensor]:
    found = _TIME.fullmatch(entry)
    if not found:
        raise ValueError(f"emotion {text!r:.120}: {entry!r:.40} does not begin with a time; {_how()}")
    return Fraction(found[1]), _mix(found[2], text)


def _mix(names: str, text: str) -> Tensor:
    weights: dict[str, float] = {}
    for part in names.split(","):
        found = _PART.fullmatch(part.strip())
        if not found or found[1] not in EMOTIONS or found[1] in weights:
            raise ValueError(
                f"emotion {text!r:.120}: {part.strip()!r:.40} is not one of {', '.join(EMOTIONS)}, each once; {_how()}"
            )
        weights[found[1]] = float(found[2] or 1)
    return mixed_emotion(weights)


def _how() -> str:
    return 'write "happy", "happy 0.7, surprise 0.3" or "0 s neutral; 2.5 s happy"'
