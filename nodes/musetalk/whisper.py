"""Audio side: log-mel, the whisper encoder with all its hidden states, and the tokens' positional table.

Audio is mono float32 at 16 kHz. A piece of `WhisperConfig.piece_samples` samples (30 s) gives twice
`max_source_positions` mel frames of 10 ms and `max_source_positions` rows of 20 ms. Features depend on the whole
piece (zero padding, one floor for all of it): a short buffer does not give the numbers of the full file.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.host_copy import upload
from ..core.mel import N_FFT, floored, mel_filters, mel_level
from .config import WhisperConfig
from .layers import attend


def log_mel(audio: Tensor, n_mels: int = 80, piece_samples: int = 480_000) -> Tensor:
    """Log-mel of one piece per batch item.

    Args:
        audio: (B, n) samples at 16 kHz in [-1, 1], n <= piece_samples; padded with zeros to the piece.
        n_mels: mel bins.
        piece_samples: length of a piece, a multiple of 160.

    Returns:
        float32 (B, n_mels, piece_samples / 160) on the device of `audio`.

    Raises:
        ValueError: wrong number of axes, or more samples than a piece.
    """
    if audio.ndim != 2:
        raise ValueError(
            f"log_mel needs audio (batch, samples), got shape {tuple(audio.shape)}: add the batch axis"
        )
    if audio.shape[1] > piece_samples:
        raise ValueError(
            f"log_mel got {audio.shape[1]} samples, a piece has {piece_samples}: cut the audio first"
        )
    audio = F.pad(audio.to(torch.float32), (0, piece_samples - audio.shape[1]))
    window = torch.hann_window(N_FFT, device=audio.device)
    level = mel_level(audio, window, upload(torch.from_numpy(mel_filters(n_mels)), audio.device))
    return floored(level, level.amax(dim=(1, 2), keepdim=True))


def positional_encoding(
    n_tokens: int, dim: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Sine/cosine table (n_tokens, dim) that is added to a frame's audio tokens; it is in no checkpoint.

    The table is made in float32 and rounded to `dtype`: add it to tokens of the same dtype, as upstream does. It is
    made on the CPU: CUDA's float32 sines are off by 5e-4 at position 4999.
    """
    if n_tokens < 1 or dim < 2 or dim % 2:
        raise ValueError(f"positional_encoding needs n_tokens >= 1 and an even dim, got {n_tokens} and {dim}")
    position = torch.arange(n_tokens, dtype=torch.float32)[:, None]
    step = torch.arange(0, dim, 2, dtype=torch.float32)
    phase = position * torch.exp(step * (-math.log(10000.0) / dim))
    return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1).to(device, dtype)


def _sinusoids(length: int, dim: int) -> Tensor:
    """Whisper's own position table: all sines, then all cosines. Checkpoints carry it; training starts from it."""
    rate = torch.exp(-math.log(10000.0) / max(dim // 2 - 1, 1) * torch.arange(dim // 2))
    phase = torch.arange(length)[:, None] * rate
    return torch.cat([phase.sin(), phase.cos()], dim=1)


class _SelfAttention(nn.Module):
    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim)
        self.q_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.n_heads))


class _Layer(nn.Module):
    def __init__(self, dim: int, n_heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.self_attn = _SelfAttention(dim, n_heads)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class WhisperEncoder(nn.Module):
    """Whisper encoder that returns every hidden state (keys as in the file, without `model.encoder.`)."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.d_model
        self.conv1 = nn.Conv1d(config.n_mels, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_source_positions, dim)
        if not self.embed_positions.weight.is_meta:
            self.embed_positions.weight.data = _sinusoids(config.max_source_positions, dim)
        self.embed_positions.requires_grad_(False)
        layer = (dim, config.encoder_attention_heads, config.encoder_ffn_dim)
        self.layers = nn.ModuleList(_Layer(*layer) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(dim)

    def forward(self, mel: Tensor) -> Tensor:
        """Encode one piece per item.

        Args:
            mel: (B, n_mels, 2 * max_source_positions) log-mel in the dtype of the weights.

        Returns:
            (B, max_source_positions, n_states, d_model): embedding, each layer's output; the last one is normalised.

        Raises:
            ValueError: any other shape.
        """
        expected = (self.config.n_mels, 2 * self.config.max_source_positions)
        if mel.ndim != 3 or tuple(mel.shape[1:]) != expected:
            raise ValueError(
                f"WhisperEncoder needs mel (batch, {expected[0]}, {expected[1]}), got {tuple(mel.shape)}"
            )
        return self._states(mel, self.embed_positions.weight)

    def encode_part(self, mel: Tensor, first: Tensor) -> Tensor:
        """Encode rows that are not a whole piece, at their own places in it.

        Args:
            mel: (B, n_mels, 2 * rows) log-mel in the dtype of the weights, rows <= max_source_positions.
            first: int64 (B,), the number of the first row from the start of the sound; positions begin anew at every piece.

        Returns:
            (B, rows, n_states, d_model).
        """
        count = self.config.max_source_positions
        at = torch.arange(mel.shape[2] // 2, device=mel.device) + first[:, None]
        return self._states(mel, self.embed_positions.weight[at % count])

    def _states(self, mel: Tensor, positions: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel))))
        x = x.transpose(1, 2) + positions
        states = [x]
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        states[-1] = self.layer_norm(x)
        return torch.stack(states, dim=2)
