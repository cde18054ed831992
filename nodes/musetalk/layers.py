"""Convolution blocks the UNet and the VAE share. Tensors are (B, C, H, W); any memory format."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResnetBlock(nn.Module):
    """Two normalised 3x3 convolutions with a skip; `time_dim` adds a projected time vector between them."""

    def __init__(self, c_in: int, c_out: int, groups: int, eps: float, time_dim: int | None = None) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, c_in, eps)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        if time_dim is not None:
            self.time_emb_proj = nn.Linear(time_dim, c_out)
        self.norm2 = nn.GroupNorm(groups, c_out, eps)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else None

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """`time` is the ACTIVATED time vector, (1 or B, time_dim): SiLU of it is shared by all blocks."""
        hidden = self.conv1(F.silu(self.norm1(x), inplace=True))
        if time is not None:
            hidden = hidden + self.time_emb_proj(time)[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden), inplace=True))
        return hidden.add_(x if self.conv_shortcut is None else self.conv_shortcut(x))


class Downsample(nn.Module):
    """Halve the resolution. `corner_pad` pads right and bottom only (VAE) instead of all sides (UNet)."""

    def __init__(self, channels: int, corner_pad: bool) -> None:
        super().__init__()
        self.corner_pad = corner_pad
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=0 if corner_pad else 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)) if self.corner_pad else x)


class Upsample(nn.Module):
    """Double the resolution by repetition, then a 3x3 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._transposed(x)
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _transposed(self, x: Tensor) -> Tensor:
        """The same sum with repeated pixels added up in the kernel first: 4 products an output instead of 9.

        A 4x4 transposed convolution of stride 2; halves the time on a CPU and rounds about 1e-6 differently.
        Exported graphs keep the plain form, which engines know best.
        """
        kernel = self.conv.weight.flip(2, 3).transpose(0, 1)
        kernel = sum(F.pad(kernel, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1))
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(x, kernel, self.conv.bias, stride=2, padding=1)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, T, C) -> (B, n_heads, T, C / n_heads), a view."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, n_heads: int) -> Tensor:
    """Softmax attention over (B, T, C) inputs with scale 1/sqrt(head size); returns (B, T, C)."""
    q, k, v = (split_heads(x, n_heads) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H*W, C); free of copies for channels_last input."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def to_image(tokens: Tensor, height: int, width: int) -> Tensor:
    """(B, H*W, C) -> (B, C, H, W) with channels_last strides, a view."""
    return tokens.unflatten(1, (height, width)).permute(0, 3, 1, 2)


def broadcast_scalar(value: Tensor | float, device: torch.device) -> Tensor:
    """A number or tensor as a 1-D float32 tensor; filled on the device, so it can be captured in a graph."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=torch.float32).reshape(-1)
    return torch.full((1,), float(value), device=device, dtype=torch.float32)
