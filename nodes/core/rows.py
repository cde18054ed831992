"""Pixels as rows: the layout of the fast convolution path, and its operations in plain torch.

A batch of pictures is a matrix (rows, channels): channels_last without the picture's shape, so that a convolution's
input and output are views of it. Between the convolutions stand few, large steps, each of which reads and writes a
tensor once: normalise and activate; add bias, skip and take the statistics for the next normalisation.

`TorchOps` says what every step means; `kernel_ops.TritonOps` does the same on a GPU and is compared with it.
Group statistics travel as `Sums`: mean and squared distance per tile and channel, merged by Chan's formula.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MOST_TILE = 128
E4M3_MAX = 448.0
"""Largest number of the 8-bit format with four bits of exponent and three of mantissa."""


@dataclass(frozen=True)
class Grid:
    """Where the pixels of `batch` pictures of height x width stand among the rows: line by line."""

    batch: int
    height: int
    width: int

    @property
    def held(self) -> int:
        """Rows of one picture."""
        return self.height * self.width

    @property
    def rows(self) -> int:
        return self.batch * self.held

    @property
    def tile(self) -> int:
        """Rows a statistic covers: the largest power of two up to 128 that divides `held`."""
        return min(_MOST_TILE, self.held & -self.held)

    @property
    def tiles(self) -> int:
        """Tiles of one picture."""
        return self.held // self.tile

    def doubled(self) -> Grid:
        return Grid(self.batch, 2 * self.height, 2 * self.width)

    def pack(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> rows (rows, C), a view of channels_last input."""
        return x.permute(0, 2, 3, 1).reshape(self.rows, -1)

    def unpack(self, rows: Tensor) -> Tensor:
        """Rows (rows, C) -> (B, C, H, W) with channels_last strides, a view."""
        return rows.view(self.batch, self.height, self.width, -1).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Sums:
    """Statistics of a row matrix: mean and m2 (sum of squared distances), float32 (batch, tiles, C)."""

    mean: Tensor
    m2: Tensor


@dataclass(frozen=True, eq=False)
class Norm:
    """Group normalisation: float32 gamma and beta (C,)."""

    gamma: Tensor
    beta: Tensor
    groups: int
    eps: float

    @classmethod
    def of(cls, module: nn.GroupNorm) -> Norm:
        return cls(module.weight.float(), module.bias.float(), module.num_groups, module.eps)


@dataclass(frozen=True, eq=False)
class ConvWeight:
    """Weights of a convolution of rows, without bias.

    rows: (outputs, side * side * inputs), the taps of an output line by line, channels innermost; of a `doubling` one
    (4 * outputs, 4 * inputs), the four phases after each other. made: dtype of the result. Quantised ones are e4m3
    and so is their input: `step` is what 1 stored there is worth, `scale` float32 (len(rows),) the same for the sums.
    """

    rows: Tensor
    side: int
    doubling: bool
    made: torch.dtype
    step: float | None = None
    scale: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor) -> ConvWeight:
        """Of a 3x3 kernel (outputs, inputs, 3, 3)."""
        return cls(weight.permute(0, 2, 3, 1).flatten(1).contiguous(), weight.shape[2], False, weight.dtype)

    @classmethod
    def doubling_of(cls, weight: Tensor) -> ConvWeight:
        """Of "repeat pixels, then this 3x3 kernel"."""
        phases = torch.cat(phase_kernels(weight.float())).to(weight.dtype)
        return cls(phases.permute(0, 2, 3, 1).flatten(1).contiguous(), 2, True, weight.dtype)

    @property
    def inputs(self) -> int:
        return self.rows.shape[1] // self.side**2

    @property
    def outputs(self) -> int:
        return len(self.rows) // (4 if self.doubling else 1)

    @property
    def taps(self) -> Tensor:
        """(len(rows), inputs, side, side) with channels_last strides, a view."""
        return self.rows.view(-1, self.side, self.side, self.inputs).permute(0, 3, 1, 2)

    def quantised(self, step: float) -> ConvWeight:
        """In e4m3: every line by its largest weight, the input by `step`."""
        weights = self.rows.float()
        steps = weights.abs().amax(1).clamp(min=1e-12) / E4M3_MAX
        rows = (weights / steps[:, None]).to(torch.float8_e4m3fn)
        return replace(self, rows=rows, step=step, scale=steps * step)


@dataclass(frozen=True, eq=False)
class LinearWeight:
    """Weights (outputs, inputs) of a product of rows, bias (outputs,) or None.

    Quantised ones are e4m3 and so is their input: `scales` are what 1 stored there and what 1 stored in the weights is
    worth, float32 scalars on the device, `step` the first of them.
    """

    weight: Tensor
    bias: Tensor | None
    made: torch.dtype
    step: float | None = None
    scales: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
        return cls(weight, bias, weight.dtype)

    def quantised(self, step: float) -> LinearWeight:
        """In e4m3, the weights by the largest of them: one scale is what the card's matrix product takes."""
        weights = self.weight.float()
        own = weights.abs().max().clamp(min=1e-12) / E4M3_MAX
        stored = (weights / own).to(torch.float8_e4m3fn)
        return replace(self, weight=stored, step=step, scales=(torch.full_like(own, step), own))


def phase_kernels(kernel: Tensor) -> list[Tensor]:
    """Split "repeat pixels, then 3x3" into four 2x2 kernels, one for each position in the doubled grid.

    Repeated pixels are the same number, so their weights can be added first: 4 products an output instead of 9.
    An even line sees the input lines (y-1, y) with weights (w0, w1 + w2), an odd one (y, y+1) with (w0 + w1, w2);
    columns alike. Exact but for rounding.

    Args:
        kernel: (C_out, C_in, 3, 3), float32 or better.

    Returns:
        Four (C_out, C_in, 2, 2) in the order (even, even), (even, odd), (odd, even), (odd, odd).
    """
    first, middle, last = kernel.unbind(2)
    lines = [torch.stack([first, middle + last], 2), torch.stack([first + middle, last], 2)]
    phases = []
    for part in lines:
        left, centre, right = part.unbind(3)
        phases += [torch.stack([left, centre + right], 3), torch.stack([left + centre, right], 3)]
    return phases


class ConvSteps:
    """Convolutions with what follows them, made of the steps of the class that inherits."""

    def conv_sums(self, x: Tensor, weight: ConvWeight, grid: Grid) -> tuple[Tensor, Sums]:
        """Convolved rows and their statistics."""
        h = self._convolved(x, weight, grid)
        return h, self.sums(h, grid)

    def conv_add(
        self, x: Tensor, weight: ConvWeight, bias: Tensor, skip: Tensor, grid: Grid
    ) -> tuple[Tensor, Sums]:
        """Convolved rows + bias (outputs,) + skip, and their statistics."""
        return self.add(self._convolved(x, weight, grid), bias, skip, grid)

    def conv_double(self, x: Tensor, weight: ConvWeight, bias: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        """Rows of the doubled grid, bias added, and their statistics."""
        phases = self._taken(x, weight, grid).permute(0, 2, 3, 1).contiguous()
        return self.shuffle(phases.unflatten(3, (4, weight.outputs)), bias, grid.doubled())

    def _convolved(self, x: Tensor, weight: ConvWeight, grid: Grid) -> Tensor:
        return grid.pack(self._taken(x, weight, grid))

    @staticmethod
    def _taken(x: Tensor, weight: ConvWeight, grid: Grid) -> Tensor:
        if weight.scale is None:
            return F.conv2d(grid.unpack(x), weight.taps, padding=1)
        made = F.conv2d(grid.unpack(x.float()), weight.taps.float(), padding=1)
        return (made * weight.scale[:, None, None]).to(weight.made)


class TorchOps(ConvSteps):
    """The operations of the fast path in plain torch: slow, for the CPU and as the measure of the kernels."""

    name = "torch"

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        """Rows (..., inputs) -> (..., outputs)."""
        if weight.scales is None:
            return F.linear(x, weight.weight, weight.bias)
        made = F.linear(x.float(), weight.weight.float()) * weight.scales[0] * weight.scales[1]
        return (made if weight.bias is None else made + weight.bias.float()).to(weight.made)

    def quantise(self, x: Tensor, step: float) -> Tensor:
        """x / step as e4m3, at most 448."""
        return (x.float() / step).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)

    def sums(self, x: Tensor, grid: Grid) -> Sums:
        """Statistics of rows (rows, C)."""
        v = x.float().view(grid.batch, grid.tiles, grid.tile, -1)
        mean = v.mean(2)
        return Sums(mean, (v - mean[:, :, None]).square().sum(2))

    def scale_shift(self, sums: Sums, norm: Norm, bias: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """What normalises x + bias: float32 (B, C) factors of x and terms. `bias` float32 (C,)."""
        batch, tiles, channels = sums.mean.shape
        grouped = (batch, tiles, norm.groups, channels // norm.groups)
        mean, m2 = (sums.mean + bias).view(grouped), sums.m2.view(grouped)
        centre = mean.mean((1, 3), keepdim=True)
        spread = (m2 + grid.tile * (mean - centre).square()).sum((1, 3), keepdim=True)
        gamma, beta, bias = (t.view(1, 1, *grouped[2:]) for t in (norm.gamma, norm.beta, bias))
        scale = (spread / (grid.held * grouped[3]) + norm.eps).rsqrt() * gamma
        shift = beta + (bias - centre) * scale
        return scale.view(batch, channels), shift.view(batch, channels)

    def apply(
        self, x: Tensor, scale: Tensor, shift: Tensor, grid: Grid, silu: bool, step: float | None = None
    ) -> Tensor:
        """Rows * scale + shift of their picture, then SiLU if asked; with `step` quantised."""
        v = x.float().view(grid.batch, grid.held, -1) * scale[:, None] + shift[:, None]
        v = (F.silu(v) if silu else v).view(grid.rows, -1)
        return v.to(x.dtype) if step is None else self.quantise(v, step)

    def add(self, h: Tensor, bias: Tensor, skip: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        """h + bias + skip and its statistics."""
        v = (h.float() + skip.float() + bias).to(h.dtype)
        return v, self.sums(v, grid)

    def concat(self, a: Tensor, b: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        """Channels of a, then of b, and their statistics."""
        v = torch.cat([a, b], 1)
        return v, self.sums(v, grid)

    def shuffle(self, phases: Tensor, bias: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        """Rows of `grid` (the doubled one) out of (B, H/2 + 1, W/2 + 1, 4, C) phases, + bias, and statistics."""
        h, w = grid.height // 2, grid.width // 2
        parts = [phases[:, i : i + h, j : j + w, 2 * i + j] for i in (0, 1) for j in (0, 1)]
        v = torch.stack(parts, 3).unflatten(3, (2, 2)).permute(0, 1, 3, 2, 4, 5).reshape(grid.rows, -1)
        v = (v.float() + bias).to(phases.dtype)
        return v, self.sums(v, grid)

    def last_conv(
        self, x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, grid: Grid, pixels: bool
    ) -> tuple[Tensor, Tensor | None]:
        """SiLU(x * scale + shift), then 3x3 to three channels.

        Args:
            weight: (C_in, 32), column tap * 3 + channel, the last five zero.
            bias: float32 (3,).
            pixels: give uint8 (B, H, W, 3) of the range [-1, 1] and bool (B,) whether a picture is finite;
                else (B, 3, H, W) in the dtype of `x` and None.
        """
        kernel = weight[:, :27].view(-1, 3, 3, 3).permute(3, 0, 1, 2).float()
        image = grid.unpack(self.apply(x, scale, shift, grid, True)).float()
        out = F.conv2d(image, kernel, bias, padding=1)
        if not pixels:
            return out.to(x.dtype), None
        finite = (out.abs() < torch.finfo(torch.float16).max).flatten(1).all(1)
        out = out.nan_to_num(0.0, 0.0, 0.0) * 127.5 + 127.5
        return out.clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(), finite

    def geglu(self, x: Tensor) -> Tensor:
        """First half of the columns times GELU of the second."""
        value, gate = x.float().chunk(2, -1)
        return (value * F.gelu(gate)).to(x.dtype)

    def add_norm(
        self, x: Tensor, h: Tensor | None, norm: nn.LayerNorm, step: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """x + h (x itself without h), and its layer normalisation, with `step` quantised."""
        v = x if h is None else (x.float() + h.float()).to(x.dtype)
        normed = F.layer_norm(
            v.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps
        )
        return v, normed.to(x.dtype) if step is None else self.quantise(normed, step)
