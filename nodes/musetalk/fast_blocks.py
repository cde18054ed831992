"""Convolution blocks of the fast networks: weights with their biases folded into the steps that follow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.rows import Grid, Norm, Sums, phase_kernels
from .layers import ResnetBlock


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class FastResnet:
    """A residual block on rows. `time` is the activated time vector, float32 (1, time_dim): a constant here."""

    def __init__(self, block: ResnetBlock, time: Tensor | None = None) -> None:
        self.norm1, self.norm2 = Norm.of(block.norm1), Norm.of(block.norm2)
        self.weight1, self.weight2 = channels_last(block.conv1.weight), channels_last(block.conv2.weight)
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
        h = conv_rows(ops.apply(x, scale, shift, grid, True), self.weight1, grid)
        scale, shift = ops.scale_shift(ops.sums(h, grid), self.norm2, self.bias1, grid)
        h = conv_rows(ops.apply(h, scale, shift, grid, True), self.weight2, grid)
        return ops.add(h, self.bias2, x if self.shortcut is None else F.linear(x, self.shortcut), grid)


class FastUpsample:
    """Doubled resolution and its 3x3 convolution as one 2x2 convolution with four times the channels."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self.weight = channels_last(torch.cat(phase_kernels(conv.weight.float())).to(conv.weight.dtype))
        self.bias = conv.bias.float()

    def __call__(self, ops, x: Tensor, grid: Grid) -> tuple[Tensor, Sums, Grid]:
        """Rows -> rows of the doubled grid, their statistics, and that grid."""
        phases = F.conv2d(grid.unpack(x), self.weight, padding=1).permute(0, 2, 3, 1).contiguous()
        grid = grid.doubled()
        x, sums = ops.shuffle(phases.unflatten(3, (4, self.bias.shape[0])), self.bias, grid)
        return x, sums, grid


def conv_rows(x: Tensor, weight: Tensor, grid: Grid) -> Tensor:
    """3x3 convolution of rows, without bias."""
    return grid.pack(F.conv2d(grid.unpack(x), weight, padding=1))
