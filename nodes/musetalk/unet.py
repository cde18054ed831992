"""Conditional UNet of Stable Diffusion 1.x shape, any number of levels, with or without attention per level.

Sample (B, in_channels, h, w) and tokens (B, T, cross_attention_dim) in the dtype of the weights; h and w must be
multiples of 2 ** (levels - 1). Modules are registered in the order of the official state dict.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import UNetConfig
from .layers import Downsample, ResnetBlock, Upsample, attend, broadcast_scalar, to_image, to_tokens

_TRANSFORMER_NORM_EPS = 1e-6  # fixed by the architecture, unlike norm_eps of the residual blocks


class TimeProjection(nn.Module):
    """Sinusoid of the timestep: (B,) -> float32 (B, dim)."""

    def __init__(self, dim: int, cos_first: bool, freq_shift: float) -> None:
        super().__init__()
        self.dim, self.cos_first, self.freq_shift = dim, cos_first, freq_shift

    def forward(self, timestep: Tensor) -> Tensor:
        half = self.dim // 2
        index = torch.arange(half, device=timestep.device, dtype=torch.float32)
        phase = timestep[:, None] * torch.exp(index * (-math.log(10000.0) / (half - self.freq_shift)))
        pair = [phase.cos(), phase.sin()] if self.cos_first else [phase.sin(), phase.cos()]
        return F.pad(torch.cat(pair, dim=1), (0, self.dim % 2))


class TimeEmbedding(nn.Module):
    """Two linear layers on the sinusoid."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(dim, out_dim)
        self.linear_2 = nn.Linear(out_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Attention(nn.Module):
    """Multi-head attention; keys and values come from `context`, or from the input itself."""

    def __init__(self, dim: int, context_dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(context_dim, dim, bias=False)
        self.to_v = nn.Linear(context_dim, dim, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(dim, dim)])

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        return self.to_out[0](attend(self.to_q(x), self.to_k(context), self.to_v(context), self.n_heads))


class _GatedProjection(nn.Module):
    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, 2 * hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    """Gated feed-forward, four times as wide inside. Slot 1 was dropout; it keeps the key numbering."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.ModuleList([_GatedProjection(dim, 4 * dim), nn.Identity(), nn.Linear(4 * dim, dim)])

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](self.net[0](x))


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention, feed-forward, each pre-normalised and added to its input."""

    def __init__(self, dim: int, context_dim: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn1 = Attention(dim, dim, n_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.attn2 = Attention(dim, context_dim, n_heads)
        self.norm3 = nn.LayerNorm(dim)
        self.ff = FeedForward(dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    """One transformer block over the pixels of a feature map, between two 1x1 convolutions, with a skip."""

    def __init__(self, channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(config.norm_num_groups, channels, _TRANSFORMER_NORM_EPS)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        block = TransformerBlock(channels, config.cross_attention_dim, config.attention_head_dim)
        self.transformer_blocks = nn.ModuleList([block])
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        tokens = to_tokens(self.proj_in(self.norm(x)))
        for block in self.transformer_blocks:
            tokens = block(tokens, context)
        return x + self.proj_out(to_image(tokens, *x.shape[2:]))


class _Block(nn.Module):
    """Residual blocks of one resolution, each followed by attention when `attends`."""

    def __init__(
        self, widths: list[tuple[int, int]], attends: bool, time_dim: int, config: UNetConfig
    ) -> None:
        super().__init__()
        if attends:  # before the residual blocks: the order of the official state dict
            self.attentions = nn.ModuleList(SpatialTransformer(c_out, config) for _, c_out in widths)
        self.resnets = nn.ModuleList(
            ResnetBlock(c_in, c_out, config.norm_num_groups, config.norm_eps, time_dim)
            for c_in, c_out in widths
        )
        self.attends = attends

    def layer(self, index: int, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        x = self.resnets[index](x, time)
        return self.attentions[index](x, context) if self.attends else x


class DownBlock(_Block):
    """Returns the hidden state and the skips it leaves for the way up."""

    def __init__(self, widths: list, attends: bool, time_dim: int, config: UNetConfig, resize: bool) -> None:
        super().__init__(widths, attends, time_dim, config)
        if resize:
            self.downsamplers = nn.ModuleList([Downsample(widths[-1][1], corner_pad=False)])
        self.resize = resize

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips = []
        for index in range(len(self.resnets)):
            x = self.layer(index, x, time, context)
            skips.append(x)
        if self.resize:
            x = self.downsamplers[0](x)
            skips.append(x)
        return x, skips


class UpBlock(_Block):
    """Takes its skips off the end of the list, newest first."""

    def __init__(self, widths: list, attends: bool, time_dim: int, config: UNetConfig, resize: bool) -> None:
        super().__init__(widths, attends, time_dim, config)
        if resize:
            self.upsamplers = nn.ModuleList([Upsample(widths[-1][1])])
        self.resize = resize

    def forward(self, x: Tensor, skips: list[Tensor], time: Tensor, context: Tensor) -> Tensor:
        for index in range(len(self.resnets)):
            x = self.layer(index, torch.cat([x, skips.pop()], dim=1), time, context)
        return self.upsamplers[0](x) if self.resize else x


class MidBlock(nn.Module):
    """Residual block, attention, residual block at the lowest resolution."""

    def __init__(self, channels: int, time_dim: int, config: UNetConfig) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([SpatialTransformer(channels, config)])
        self.resnets = nn.ModuleList(
            ResnetBlock(channels, channels, config.norm_num_groups, config.norm_eps, time_dim)
            for _ in range(2)
        )

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        x = self.attentions[0](self.resnets[0](x, time), context)
        return self.resnets[1](x, time)


class UNet2DCondition(nn.Module):
    """The generator. Build it under `torch.device("meta")` when weights follow: initialising costs seconds."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.block_out_channels
        time_dim = 4 * channels[0]
        self.conv_in = nn.Conv2d(config.in_channels, channels[0], 3, padding=1)
        self.time_proj = TimeProjection(channels[0], config.flip_sin_to_cos, config.freq_shift)
        self.time_embedding = TimeEmbedding(channels[0], time_dim)
        skips, width = [channels[0]], channels[0]
        down, up = [], []
        for level, (kind, c) in enumerate(zip(config.down_block_types, channels, strict=True)):
            resize = level < config.n_levels - 1
            widths = [(width, c)] + [(c, c)] * (config.layers_per_block - 1)
            down.append(DownBlock(widths, kind.startswith("CrossAttn"), time_dim, config, resize))
            skips += [c] * (config.layers_per_block + resize)
            width = c
        mid = MidBlock(width, time_dim, config)
        for level, (kind, c) in enumerate(zip(config.up_block_types, reversed(channels), strict=True)):
            widths = []
            for _ in range(config.layers_per_block + 1):
                widths.append((width + skips.pop(), c))
                width = c
            resize = level < config.n_levels - 1
            up.append(UpBlock(widths, kind.startswith("CrossAttn"), time_dim, config, resize))
        self.down_blocks = nn.ModuleList(down)
        self.up_blocks = nn.ModuleList(up)
        self.mid_block = mid
        self.conv_norm_out = nn.GroupNorm(config.norm_num_groups, channels[0], config.norm_eps)
        self.conv_out = nn.Conv2d(channels[0], config.out_channels, 3, padding=1)

    def forward(self, sample: Tensor, encoder_hidden_states: Tensor, timestep: Tensor | float = 0) -> Tensor:
        """One pass.

        Args:
            sample: (B, in_channels, h, w).
            encoder_hidden_states: (B, T, cross_attention_dim), positions already added.
            timestep: a number, or a tensor with 1 or B values. MuseTalk always uses 0.

        Returns:
            (B, out_channels, h, w).

        Raises:
            ValueError: channels, token width or picture size that do not fit the config.
        """
        self._check(sample, encoder_hidden_states)
        time = self.time_proj(broadcast_scalar(timestep, sample.device)).to(sample.dtype)
        time = F.silu(self.time_embedding(time))
        x = self.conv_in(sample)
        skips = [x]
        for block in self.down_blocks:
            x, left = block(x, time, encoder_hidden_states)
            skips += left
        x = self.mid_block(x, time, encoder_hidden_states)
        for block in self.up_blocks:
            x = block(x, skips, time, encoder_hidden_states)
        return self.conv_out(F.silu(self.conv_norm_out(x), inplace=True))

    def _check(self, sample: Tensor, tokens: Tensor) -> None:
        step = 2 ** (self.config.n_levels - 1)
        if sample.ndim != 4 or sample.shape[1] != self.config.in_channels:
            raise ValueError(
                f"UNet needs a sample (batch, {self.config.in_channels}, h, w), got {tuple(sample.shape)}"
            )
        if sample.shape[2] % step or sample.shape[3] % step:
            raise ValueError(
                f"UNet sample is {sample.shape[2]}x{sample.shape[3]}: both sides must divide by {step}"
            )
        if (
            tokens.ndim != 3
            or tokens.shape[2] != self.config.cross_attention_dim
            or tokens.shape[0] != sample.shape[0]  # len() would freeze the batch of an exported graph
        ):
            raise ValueError(
                f"UNet needs tokens ({len(sample)}, n, {self.config.cross_attention_dim}), got {tuple(tokens.shape)}"
            )
