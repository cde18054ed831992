"""Log-mel of 16 kHz mono: Slaney filters on 25 ms windows every 10 ms, and whisper's floor and scale."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SAMPLE_RATE_HZ = 16_000
N_FFT = 400
HOP_SAMPLES = 160
_LINEAR_HZ = (
    200.0 / 3.0
)  # Slaney scale: 66.7 Hz a mel below 1 kHz, logarithmic above (27 mels for a factor 6.4)
_BREAK_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27.0


def _hz_to_mel(hz: np.ndarray) -> np.ndarray:
    above = _BREAK_HZ / _LINEAR_HZ + np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(hz < _BREAK_HZ, hz / _LINEAR_HZ, above)


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    start = _BREAK_HZ / _LINEAR_HZ
    return np.where(
        mel < start, mel * _LINEAR_HZ, _BREAK_HZ * np.exp((np.maximum(mel, start) - start) * _LOG_STEP)
    )


@lru_cache(maxsize=4)
def mel_filters(n_mels: int) -> np.ndarray:
    """Triangles of unit area on the Slaney scale, 0..8000 Hz: float32 (n_mels, N_FFT // 2 + 1)."""
    top = SAMPLE_RATE_HZ / 2
    edges = _mel_to_hz(np.linspace(0.0, float(_hz_to_mel(np.array(top))), n_mels + 2))
    bins = np.linspace(0.0, top, N_FFT // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    area = 2.0 / (edges[2:] - edges[:-2])
    return (np.maximum(0.0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)


def mel_level(audio: Tensor, window: Tensor, filters: Tensor) -> Tensor:
    """Mel power of float32 (B, n) samples as log10: (B, n_mels, n / 160), without a floor.

    window: `torch.hann_window(N_FFT)`; filters: `mel_filters`; both on the device of `audio`.
    """
    spectrum = torch.stft(
        audio, N_FFT, HOP_SAMPLES, window=window, center=True, pad_mode="reflect", return_complex=True
    )
    power = spectrum[..., :-1].abs().square()
    return (filters @ power).clamp(min=1e-10).log10()


def floored(level: Tensor, peak: Tensor) -> Tensor:
    """Whisper's log-mel of a `mel_level`: what lies more than 80 dB under `peak` is raised to there, then scaled."""
    return (torch.maximum(level, peak - 8.0) + 4.0) / 4.0
