"""Convolution blocks of the fast networks: weights with their biases folded into the steps that follow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.rows import ConvWeight, Grid, Norm, Sums
from .layers import ResnetBlock


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class FastResnet:
    """A residual block on rows. `time` is the activated time vector, float32 (1, time_dim): a constant here."""

    QUANTISABLE = ("conv1", "conv2")

    def __init__(self, block: ResnetBlock, time: Tensor | None = None) -> None:
        self.norm1, self.norm2 = Norm.of(block.norm1), Norm.of(block.norm2)
        self.conv1, self.conv2 = ConvWeight.of(block.conv1.weight), ConvWeight.of(block.conv2.weight)
        self.bias1, self.bias2 = block.conv1.bias.float(), block.conv2.bias.float()
        if time is not None:
            project = block.time_emb_proj
            self.bias1 = self.bias1 + F.linear(time, project.weight.float(), project.bias.float())[0]
        self.shortcut = None
        if block.conv_shortcut is not None:
            self.shortcut = block.conv_shortcut.weight.flatten(1)
            self.bias2 = self.bias2 + block.conv_shortcut.bias.float()
        self.zero = torch.zeros_like(self.norm1.beta)

    def __call__(self, ops, x: Tensor, sums: Sums, grid: Grid) -> tuple[Tensor, Sums]:
        """Rows and their statistics -> the block's rows and theirs."""
        scale, shift = ops.scale_shift(sums, self.norm1, self.zero, grid)
        h = ops.apply(x, scale, shift, grid, True, self.conv1.step)
        h, sums = ops.conv_sums(h, self.conv1, grid)
        scale, shift = ops.scale_shift(sums, self.norm2, self.bias1, grid)
        h = ops.apply(h, scale, shift, grid, True, self.conv2.step)
        skip = x if self.shortcut is None else F.linear(x, self.shortcut)
        return ops.conv_add(h, self.conv2, self.bias2, skip, grid)


class FastUpsample:
    """Doubled resolution and its 3x3 convolution as four 2x2 convolutions, one for each phase."""

    QUANTISABLE = ("conv",)

    def __init__(self, conv: nn.Conv2d) -> None:
        self.conv, self.bias = ConvWeight.doubling_of(conv.weight), conv.bias.float()

    def __call__(self, ops, x: Tensor, grid: Grid) -> tuple[Tensor, Sums, Grid]:
        """Rows -> rows of the doubled grid, their statistics, and that grid."""
        given = x if self.conv.step is None else ops.quantise(x, self.conv.step)
        x, sums = ops.conv_double(given, self.conv, self.bias, grid)
        return x, sums, grid.doubled()
