"""Building blocks that several of Ditto's networks use. Names of the members are those of the official state dicts."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


class ConvNorm(nn.Module):
    """Convolution that keeps the size, batch norm (eps 1e-5) and an activation; 2-D or 3-D."""

    def __init__(
        self, c_in: int, c_out: int, dims: int = 2, activation: Callable[[Tensor], Tensor] = F.relu
    ) -> None:
        super().__init__()
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
        self.conv = conv(c_in, c_out, 3, padding=1)
        self.norm = norm(c_out)
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self._activation(self.norm(self.conv(x)))


class ResBlock3d(nn.Module):
    """Two convolutions, each after batch norm and ReLU, and a skip."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.norm1 = nn.BatchNorm3d(channels)
        self.norm2 = nn.BatchNorm3d(channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(hidden)))


def check_shape(what: str, x: Tensor, *wanted: int) -> None:
    """Raise ValueError where `x` is not (batch, *wanted)."""
    if x.ndim != len(wanted) + 1 or tuple(x.shape[1:]) != wanted:
        sizes = ", ".join(map(str, wanted))
        raise ValueError(f"{what} must be (batch, {sizes}), got {tuple(x.shape)}: it is of another model")
