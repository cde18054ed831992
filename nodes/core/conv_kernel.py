"""Convolution of e4m3 rows as a Triton kernel: scales, bias, skip and statistics in its epilogue.

Implicit GEMM. A tile of the output is a piece of a line; for each tap the tensor memory accelerator fetches that piece,
moved by the tap, and fills what lies outside the picture with zeros: no padding, no index arithmetic. So it needs
compute capability 9.0.

Why e4m3 only: on an H200, batch 16, its inner loop ran at 953 to 1,191 TFLOP/s, and at 611 to 667 in fp16, where cuDNN
runs at 640 to 718 (and e4m3 no faster). In fp16 it lost more than its epilogue saves.

Import only behind `kernel_ops.why_not`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .kernel_ops import CONV_PIXELS
from .kernels import store_sums_about
from .rows import ConvWeight, Grid, Sums

_WARPS, _STAGES = 4, 3


@triton.jit(do_not_specialize=["height", "width"])
def _conv(
    x, weight, scale, bias, skip, out, mean, m2, height, width, n_out,
    C: tl.constexpr, SIDE: tl.constexpr, PHASES: tl.constexpr,
    PIXELS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    # x (batch, height, width, C) and weight (PHASES * n_out, SIDE * SIDE * C) are descriptors. Neighbouring programs
    # read the same pixels: first the columns, then the phases, then the places.
    PER_TAP: tl.constexpr = C // BK
    n_cols = n_out // BN
    pid = tl.program_id(0)
    col = pid % n_cols * BN
    phase = pid // n_cols % PHASES
    place = pid // (n_cols * PHASES)
    n_x = width // PIXELS
    line = place // n_x
    b = line // height
    left, top = place % n_x * PIXELS, line % height
    # A 3x3 kernel starts one pixel before; phase (i, j) of a doubling one starts at (i - 1, j - 1).
    y0, x0 = top - 1 + phase // 2, left - 1 + phase % 2
    acc = tl.zeros((PIXELS, BN), tl.float32)
    for k in range(SIDE * SIDE * PER_TAP):
        tap = k // PER_TAP
        c = k % PER_TAP * BK
        pixels = x.load([b, y0 + tap // SIDE, x0 + tap % SIDE, c]).reshape(PIXELS, BK)
        acc = tl.dot(pixels, weight.load([phase * n_out + col, tap * C + c]).T, acc)
    cols = col + tl.arange(0, BN)
    acc = acc * tl.load(scale + phase * n_out + cols)[None, :]
    at_x = left + tl.arange(0, PIXELS)
    if PHASES == 4:
        row = (line.to(tl.int64) * 2 + phase // 2) * 2 * width + 2 * at_x + phase % 2
    else:
        row = line.to(tl.int64) * width + at_x
    at = row[:, None] * n_out + cols[None, :]
    if ADD or PHASES == 4:
        acc = acc + tl.load(bias + cols)[None, :]
    if ADD:
        acc = acc + tl.load(skip + at).to(tl.float32)
    v = acc.to(out.dtype.element_ty)
    tl.store(out + at, v)
    # Any equal parts of a picture may be the tiles of its statistics. Sums about zero: what cancels in them for a mean
    # far above the spread is lost in the 8 bits of the next input anyway.
    zero = tl.zeros((BN,), tl.float32)
    tile = place.to(tl.int64) * PHASES + phase
    store_sums_about(v.to(tl.float32), zero, cols, cols < n_out, tile, mean, m2, n_out, PIXELS)


def convolve(
    x: Tensor, weight: ConvWeight, grid: Grid, bias: Tensor | None = None, skip: Tensor | None = None
) -> tuple[Tensor, Sums]:
    """Convolve rows of `grid` and take statistics of what is stored.

    Args:
        x: e4m3 (rows, C).
        weight: quantised; see `kernel_ops.conv_fits`.
        bias: float32 (outputs,), for a doubling weight or with a skip.
        skip: rows as the result, or None; not for a doubling weight.

    Returns:
        rows (rows, outputs) in `weight.made`, of the doubled grid for a doubling weight, and their statistics.
    """
    made, phases = (grid.doubled(), 4) if weight.doubling else (grid, 1)
    outputs, inputs = weight.outputs, weight.inputs
    block_n, block_k = (128 if n % 128 == 0 else 64 for n in (outputs, inputs))
    pictures = x.view(grid.batch, grid.height, grid.width, inputs)
    taken = TensorDescriptor.from_tensor(pictures, [1, 1, CONV_PIXELS, block_k])
    kernels = TensorDescriptor.from_tensor(weight.rows, [block_n, block_k])
    out = torch.empty(made.rows, outputs, dtype=weight.made, device=x.device)
    shape = (grid.batch, made.tiles, outputs)
    sums = Sums(*(torch.empty(shape, dtype=torch.float32, device=x.device) for _ in range(2)))
    places = grid.batch * grid.held // CONV_PIXELS
    _conv[(places * phases * (outputs // block_n),)](
        taken, kernels, weight.scale, bias, skip, out, sums.mean, sums.m2, grid.height, grid.width, outputs,
        C=inputs, SIDE=weight.side, PHASES=phases, PIXELS=CONV_PIXELS, BN=block_n, BK=block_k, ADD=skip is not None,
        num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return out, sums
