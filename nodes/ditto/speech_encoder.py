"""The embedded engine's speech encoder: a small transformer on log-mel, in the place of HuBERT.

It takes the same windows and gives as many frames as HuBERT does, so `hubert.ChunkRule` and `hubert.SpeechRows` serve
both. It hears one window alone: levels are absolute, so silence stays silence whatever was said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config_checks import MAX_LAYERS, check_counts, check_divides, from_mapping
from ..core.mel import HOP_SAMPLES, N_FFT, mel_filters, mel_level
from .hubert import OFFLINE
from .lmdm import Attention

WINDOW_SAMPLES = OFFLINE.window
N_FRAMES = WINDOW_SAMPLES // (2 * HOP_SAMPLES)
"""Frames of a window (20): one every 20 ms, as HuBERT's."""
_FLOOR, _MIDDLE, _RANGE = -7.0, -3.0, 4.0
"""log10 of the power: levels below the floor (-80 dB of full scale) are silence; what lies between is put around 0."""


@dataclass(frozen=True)
class SpeechEncoderConfig:
    """Sizes. width: numbers of a frame."""

    width: int = 128
    n_layers: int = 3
    n_heads: int = 4
    ff_dim: int = 384
    n_mels: int = 80

    def __post_init__(self) -> None:
        check_counts(self, "width", "n_heads", "ff_dim", "n_mels")
        check_counts(self, "n_layers", most=MAX_LAYERS)
        check_divides(self, "width", "n_heads")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeechEncoderConfig:
        """Build from a JSON object; unknown keys raise ValueError."""
        return from_mapping(cls, values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Layer(nn.Module):
    """Self-attention and feed-forward, each pre-normalised and added to its input."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn = Attention(config.width, config.n_heads)
        self.norm2 = nn.LayerNorm(config.width)
        self.linear1 = nn.Linear(config.width, config.ff_dim)
        self.linear2 = nn.Linear(config.ff_dim, config.width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attn(normed, normed, normed)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class SpeechEncoder(nn.Module):
    """Windows of samples -> frames. `forward` is `encode` of `levels`; training changes what lies between."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.conv1 = nn.Conv1d(config.n_mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, padding=1)
        self.conv3 = nn.Conv1d(width, width, 4, stride=2, padding=1)
        self.positions = nn.Parameter(torch.zeros(1, N_FRAMES, width))
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("hann", torch.hann_window(N_FFT), persistent=False)
        self.register_buffer("filters", torch.from_numpy(mel_filters(config.n_mels)), persistent=False)

    @property
    def weights_device(self) -> torch.device:
        """Device of the weights. Not called `device`: ComfyUI's ModelPatcher sets that name on what it holds."""
        return self.positions.device

    def levels(self, samples: Tensor) -> Tensor:
        """Return the log10 mel power (B, n_mels, 40) of windows (B, 6480), float32 at 16 kHz. ValueError for others."""
        if samples.ndim != 2 or samples.shape[1] != WINDOW_SAMPLES:
            raise ValueError(
                f"the speech encoder needs windows (batch, {WINDOW_SAMPLES}), got {tuple(samples.shape)}"
            )
        return mel_level(samples.float(), self.hann, self.filters)

    def encode(self, levels: Tensor) -> Tensor:
        """Return frames (B, 20, width) of log10 mel power (B, n_mels, 40)."""
        x = (levels.clamp(min=_FLOOR) - _MIDDLE) / _RANGE
        x = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        x = F.gelu(self.conv3(x)).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, samples: Tensor) -> Tensor:
        """Return frames (B, 20, width) at 50 Hz of windows of samples (B, 6480)."""
        return self.encode(self.levels(samples))
