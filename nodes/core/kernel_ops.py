"""The operations of `rows.TorchOps` by the Triton kernels: same names, same meaning, on a CUDA device.

Nothing here waits for the device or allocates outside torch, so calls can be captured in a CUDA graph.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn

from .rows import ConvSteps, ConvWeight, Grid, LinearWeight, Norm, Sums

_BLOCK = 64
_LEAST_CAPABILITY = (8, 0)
CONV_CAPABILITY = (9, 0)
CONV_PIXELS = 128
"""Pixels in a tile of the convolution kernel, and rows in a tile of the statistics it takes."""


def why_not(device: torch.device) -> str | None:
    """Reason why the kernels cannot run on `device`, or None if they can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the fused kernels need an NVIDIA card, this is {device}"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "the fused kernels need compute capability 8.0 (Ampere) or newer"
    if importlib.util.find_spec("triton") is None:
        return "the triton package is missing (Windows: pip install triton-windows)"
    return None


def conv_fits(weight: ConvWeight, grid: Grid) -> bool:
    """Whether the convolution kernel takes it: lines of whole tiles, channels in blocks of 64.

    Tiles of several shorter lines were right in most runs and wrong in some (Triton 3.6, H200): the compiler does not
    guard the shared memory of a reshaped box. A tile within one line is loaded without reshaping.
    """
    return grid.width % CONV_PIXELS == 0 and weight.inputs % 64 == 0 and weight.outputs % 64 == 0


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


class TritonOps(ConvSteps):
    """One object serves any number of networks; it keeps nothing but the kernels.

    Convolutions are cuDNN's, those of quantised weights our own on Hopper and newer.
    """

    name = "triton"

    def __init__(self, device: torch.device | None = None) -> None:
        import triton

        from . import kernels

        self._k, self._cdiv = kernels, triton.cdiv
        self._own_convolutions = (
            device is not None
            and device.type == "cuda"
            and torch.cuda.get_device_capability(device) >= CONV_CAPABILITY
        )

    def _own(self, weight: ConvWeight, grid: Grid):
        """The convolution kernel's module where it takes this one, else None."""
        if weight.scale is None or not self._own_convolutions:
            return None
        from . import conv_kernel

        return conv_kernel if conv_fits(weight, grid) else None

    def conv_sums(self, x: Tensor, weight: ConvWeight, grid: Grid) -> tuple[Tensor, Sums]:
        own = self._own(weight, grid)
        return own.convolve(x, weight, grid) if own else super().conv_sums(x, weight, grid)

    def conv_add(
        self, x: Tensor, weight: ConvWeight, bias: Tensor, skip: Tensor, grid: Grid
    ) -> tuple[Tensor, Sums]:
        own = self._own(weight, grid)
        if own is None:
            return super().conv_add(x, weight, bias, skip, grid)
        return own.convolve(x, weight, grid, bias, skip)

    def conv_double(self, x: Tensor, weight: ConvWeight, bias: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        own = self._own(weight, grid)
        return own.convolve(x, weight, grid, bias) if own else super().conv_double(x, weight, bias, grid)

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        if weight.scales is None:
            return torch.nn.functional.linear(x, weight.weight, weight.bias)
        rows, (a, b) = x.flatten(0, -2), weight.scales
        made = torch._scaled_mm(
            rows, weight.weight.t(), scale_a=a, scale_b=b, bias=weight.bias, out_dtype=weight.made, use_fast_accum=True
        )  # fmt: skip
        return made.unflatten(0, x.shape[:-1])

    def quantise(self, x: Tensor, step: float) -> Tensor:
        out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        self._k.quantise[(self._cdiv(x.numel(), 4096),)](x, out, x.numel(), 1 / step, BLOCK=4096, num_warps=8)
        return out

    def _launch(self, grid: Grid, channels: int, warps: int = 4) -> tuple[tuple[int, int], dict]:
        block = min(_BLOCK, _pow2(channels))
        blocks = (grid.batch * grid.tiles, self._cdiv(channels, block))
        return blocks, {"TILE": grid.tile, "BLOCK": block, "num_warps": warps}

    @staticmethod
    def _new_sums(grid: Grid, channels: int, device: torch.device) -> Sums:
        shape = (grid.batch, grid.tiles, channels)
        return Sums(*(torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2)))

    def sums(self, x: Tensor, grid: Grid) -> Sums:
        channels = x.shape[1]
        made = self._new_sums(grid, channels, x.device)
        blocks, options = self._launch(grid, channels, warps=2)  # 3.6 TB/s instead of 2.4
        self._k.tile_sums[blocks](x, made.mean, made.m2, channels, **options)
        return made

    def scale_shift(self, sums: Sums, norm: Norm, bias: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        batch, tiles, channels = sums.mean.shape
        scale, shift = (torch.empty(batch, channels, device=bias.device) for _ in range(2))
        size = channels // norm.groups
        self._k.scale_shift[(batch, norm.groups)](
            sums.mean, sums.m2, bias, norm.gamma, norm.beta, scale, shift, tiles, channels, norm.eps,
            TILE=grid.tile, GROUP=size, GROUP_PAD=_pow2(size), BLOCK=min(128, max(16, _pow2(tiles))), num_warps=4,
        )  # fmt: skip
        return scale, shift

    def apply(
        self, x: Tensor, scale: Tensor, shift: Tensor, grid: Grid, silu: bool, step: float | None = None
    ) -> Tensor:
        out, channels = (
            torch.empty_like(x, dtype=x.dtype if step is None else torch.float8_e4m3fn),
            x.shape[1],
        )
        tile, block = min(64, grid.tile), min(128, _pow2(channels))
        tiles = grid.held // tile
        self._k.apply[(grid.batch * tiles, self._cdiv(channels, block))](
            x,
            scale,
            shift,
            out,
            tiles,
            channels,
            1 / (step or 1),
            SILU=silu,
            TILE=tile,
            BLOCK=block,
            num_warps=4,
        )
        return out

    def add(self, h: Tensor, bias: Tensor, skip: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        out, channels = torch.empty_like(h), h.shape[1]
        made = self._new_sums(grid, channels, h.device)
        blocks, options = self._launch(grid, channels)
        self._k.add[blocks](h, bias, skip, out, made.mean, made.m2, channels, **options)
        return out, made

    def concat(self, a: Tensor, b: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        channels = a.shape[1] + b.shape[1]
        out = a.new_empty(grid.rows, channels)
        made = self._new_sums(grid, channels, a.device)
        blocks, options = self._launch(grid, channels)
        self._k.concat[blocks](a, b, out, made.mean, made.m2, a.shape[1], b.shape[1], **options)
        return out, made

    def shuffle(self, phases: Tensor, bias: Tensor, grid: Grid) -> tuple[Tensor, Sums]:
        channels = bias.shape[0]
        out = phases.new_empty(grid.rows, channels)
        made = self._new_sums(grid, channels, phases.device)
        blocks, options = self._launch(grid, channels)
        self._k.shuffle[blocks](
            phases, bias, out, made.mean, made.m2, grid.tiles, grid.height, grid.width, channels, **options
        )
        return out, made

    def last_conv(
        self, x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, grid: Grid, pixels: bool
    ) -> tuple[Tensor, Tensor | None]:
        channels, n_out = x.shape[1], weight.shape[1]
        block = max(16, _pow2(channels))
        padded = weight
        if block != weight.shape[0]:
            padded = torch.nn.functional.pad(weight, (0, 0, 0, block - weight.shape[0]))
        parts = torch.empty(n_out, grid.rows, dtype=torch.float32, device=x.device)
        self._k.norm_dot[(grid.batch * grid.tiles,)](
            x, scale, shift, padded, parts, grid.tiles, grid.rows, channels,
            N_OUT=n_out, TILE=grid.tile, BLOCK=block, num_warps=8,
        )  # fmt: skip
        shape = (grid.batch, grid.height, grid.width, 3)
        bad = torch.zeros(grid.batch, dtype=torch.int32, device=x.device)
        if pixels:
            out = torch.empty(shape, dtype=torch.uint8, device=x.device)
        else:
            out = x.new_empty(grid.batch, 3, grid.height, grid.width)
        tile = 256
        self._k.gather_taps[(self._cdiv(grid.height * grid.width, tile), grid.batch)](
            parts, bias, out, bad, grid.rows, grid.height, grid.width,
            PIXELS=pixels, TILE=tile, num_warps=4,
        )  # fmt: skip
        return out, bad == 0 if pixels else None

    def geglu(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], half)
        rows = x.numel() // x.shape[-1]
        block = min(128, _pow2(half))
        blocks = (self._cdiv(rows, 16), self._cdiv(half, block))
        self._k.geglu[blocks](x, out, rows, half, ROWS=16, BLOCK=block, num_warps=4)
        return out

    def add_norm(
        self, x: Tensor, h: Tensor | None, norm: nn.LayerNorm, step: float | None = None
    ) -> tuple[Tensor, Tensor]:
        width = x.shape[-1]
        out = x if h is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=x.dtype if step is None else torch.float8_e4m3fn)
        self._k.add_norm[(x.numel() // width,)](
            x, x if h is None else h, norm.weight, norm.bias, out, normed, width, norm.eps, 1 / (step or 1),
            ADD=h is not None, BLOCK=_pow2(width), num_warps=4 if width > 512 else 2,
        )  # fmt: skip
        return out, normed
