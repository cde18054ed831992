"""The embedded model's own speech encoder, in the place of HuBERT: a window of sound to rows every 20 ms.

In and out as HuBERT has them, so `hubert.ChunkRule` serves both: 6480 samples give 20 frames. Each frame hears the window
alone. float32, whatever the precision of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.config_checks import MAX_LAYERS, check_counts, from_mapping
from ..core.mel import N_FFT, mel_filters, mel_level

WINDOW_SAMPLES, WINDOW_FRAMES = 6480, 20


@dataclass(frozen=True)
class SpeechEncoderConfig:
    """width: numbers of a row. n_mels: mel bins. channels: inside. n_layers: residual convolutions over time."""

    width: int = 96
    n_mels: int = 80
    channels: int = 128
    n_layers: int = 4

    def __post_init__(self) -> None:
        check_counts(self, "width", "n_mels", "channels")
        check_counts(self, "n_layers", most=MAX_LAYERS)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeechEncoderConfig:
        """Build from a JSON object; unknown keys raise ValueError."""
        return from_mapping(cls, values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.first = nn.Conv1d(channels, channels, 5, padding=2)
        self.second = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


class SpeechEncoder(nn.Module):
    """samples (B, 6480) float32 at 16 kHz in -1..1 -> frames (B, 20, width)."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.enter = nn.Conv1d(config.n_mels, config.channels, 3, padding=1)
        self.halve = nn.Conv1d(config.channels, config.channels, 2, stride=2)
        self.layers = nn.ModuleList(_Residual(config.channels) for _ in range(config.n_layers))
        self.leave = nn.Conv1d(config.channels, config.width, 1)
        self.register_buffer("hann", torch.hann_window(N_FFT), persistent=False)
        filters = torch.from_numpy(mel_filters(config.n_mels))
        self.register_buffer("filters", filters, persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        if samples.ndim != 2 or samples.shape[1] != WINDOW_SAMPLES:
            raise ValueError(
                f"the speech encoder takes (batch, {WINDOW_SAMPLES}) samples, got {tuple(samples.shape)}"
            )
        level = mel_level(samples, self.hann, self.filters)[..., : 2 * WINDOW_FRAMES]
        x = torch.nn.functional.gelu(self.enter(level / 4 + 1))
        x = self.halve(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x).transpose(1, 2)
