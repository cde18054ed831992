"""Triton kernels between the convolutions of a network whose tensors are rows of pixels (see `rows.Grid`).

Needs the `triton` package: import this module only behind `kernel_ops.why_not`. Arithmetic is float32, what is
stored is the network's dtype. A program works on TILE rows, all of one picture, and BLOCK channels.

The convolutions are in `conv_kernel`, or cuDNN's. Winograd's F(2x2, 3x3) for the 512-channel blocks lost: the decoder
ran at 858 instead of 910 fps on an H200.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Triton compiles these functions from their text: no docstrings inside, plain arithmetic only.
# Sizes are not specialised on: a new batch or picture size must not compile again. Channel counts are, for wide loads.


@triton.jit
def _store_sums(v, cols, in_range, tile, mean_ptr, m2_ptr, n_channels, TILE: tl.constexpr):
    # Mean and squared distance from it, of this tile alone: free of the cancellation that plain sums of squares have.
    mean = tl.sum(v, axis=0) / TILE
    d = v - mean[None, :]
    at = tile * n_channels + cols
    tl.store(mean_ptr + at, mean, mask=in_range)
    tl.store(m2_ptr + at, tl.sum(d * d, axis=0), mask=in_range)


@triton.jit
def _plus(a, b, c, d):
    return a + c, b + d


@triton.jit
def store_sums_about(v, pivot, cols, in_range, tile, mean_ptr, m2_ptr, n_channels, TILE: tl.constexpr):
    # The same in one reduction: squares about the tile's first pixel, which lies among the values.
    d = v - pivot[None, :]
    total, squares = tl.reduce((d, d * d), 0, _plus)
    at = tile * n_channels + cols
    tl.store(mean_ptr + at, pivot + total / TILE, mask=in_range)
    tl.store(m2_ptr + at, tl.maximum(squares - total * total / TILE, 0.0), mask=in_range)


@triton.jit
def tile_sums(x, mean, m2, n_channels, TILE: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    in_range = cols < n_channels
    at = rows[:, None] * n_channels + cols[None, :]
    v = tl.load(x + at, mask=in_range[None, :], other=0.0).to(tl.float32)
    pivot = tl.load(x + tile.to(tl.int64) * TILE * n_channels + cols, mask=in_range, other=0.0).to(tl.float32)
    store_sums_about(v, pivot, cols, in_range, tile, mean, m2, n_channels, TILE)


@triton.jit(do_not_specialize=["tiles"])
def scale_shift(
    mean, m2, bias, gamma, beta, scale, shift, tiles, n_channels, eps,
    TILE: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = tl.arange(0, GROUP_PAD)
    cols, in_range = g * GROUP + j, j < GROUP
    offset = tl.load(bias + cols, mask=in_range, other=0.0)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    for first in range(0, tiles, BLOCK):
        t = first + tl.arange(0, BLOCK)
        inside = (t < tiles)[:, None] & in_range[None, :]
        at = (b * tiles + t[:, None]) * n_channels + cols[None, :]
        total += tl.sum(tl.load(mean + at, mask=inside, other=0.0), axis=0)
    # Chan, Golub, LeVeque, 1979: squared distances of equal parts add up, with those of their means.
    centre = tl.sum(total + tiles * offset, axis=0) / (tiles * GROUP)
    spread = tl.zeros((GROUP_PAD,), tl.float32)
    for first in range(0, tiles, BLOCK):
        t = first + tl.arange(0, BLOCK)
        inside = (t < tiles)[:, None] & in_range[None, :]
        at = (b * tiles + t[:, None]) * n_channels + cols[None, :]
        d = tl.load(mean + at, mask=inside, other=0.0) + offset[None, :] - centre
        q = tl.load(m2 + at, mask=inside, other=0.0) + TILE * d * d
        spread += tl.sum(tl.where(inside, q, 0.0), axis=0)
    rstd = 1.0 / tl.sqrt(tl.sum(spread, axis=0) / (tiles * (TILE * GROUP)) + eps)
    s = tl.load(gamma + cols, mask=in_range, other=0.0) * rstd
    z = tl.load(beta + cols, mask=in_range, other=0.0) + (offset - centre) * s
    tl.store(scale + b * n_channels + cols, s, mask=in_range)
    tl.store(shift + b * n_channels + cols, z, mask=in_range)


@triton.jit
def _stored(v, out):
    # e4m3 has no infinity: what is too large becomes the largest number, NaN stays NaN.
    if out.dtype.element_ty == tl.float8e4nv:
        v = tl.where(v > 448.0, 448.0, tl.where(v < -448.0, -448.0, v))
    return v.to(out.dtype.element_ty)


@triton.jit(do_not_specialize=["tiles"])
def apply(
    x, scale, shift, out, tiles, n_channels, factor, SILU: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    in_range = cols < n_channels
    b = tile // tiles
    s = tl.load(scale + b * n_channels + cols, mask=in_range, other=0.0)
    z = tl.load(shift + b * n_channels + cols, mask=in_range, other=0.0)
    at = rows[:, None] * n_channels + cols[None, :]
    v = tl.load(x + at, mask=in_range[None, :], other=0.0).to(tl.float32) * s[None, :] + z[None, :]
    if SILU:
        v = v * tl.sigmoid(v)
    tl.store(out + at, _stored(v * factor, out), mask=in_range[None, :])


@triton.jit(do_not_specialize=["count"])
def quantise(x, out, count, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * factor
    tl.store(out + at, _stored(v, out), mask=inside)


@triton.jit
def add(h, bias, skip, out, mean, m2, n_channels, TILE: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    in_range = cols < n_channels
    at = rows[:, None] * n_channels + cols[None, :]
    v = tl.load(h + at, mask=in_range[None, :], other=0.0).to(tl.float32)
    v += tl.load(skip + at, mask=in_range[None, :], other=0.0).to(tl.float32)
    offset = tl.load(bias + cols, mask=in_range, other=0.0)
    v = (v + offset[None, :]).to(out.dtype.element_ty)
    tl.store(out + at, v, mask=in_range[None, :])
    first = tile.to(tl.int64) * TILE * n_channels + cols
    pivot = tl.load(h + first, mask=in_range, other=0.0).to(tl.float32) + offset
    pivot += tl.load(skip + first, mask=in_range, other=0.0).to(tl.float32)
    store_sums_about(v.to(tl.float32), pivot, cols, in_range, tile, mean, m2, n_channels, TILE)


@triton.jit
def concat(a, b, out, mean, m2, n_a, n_b, TILE: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    from_a, in_range = cols < n_a, cols < n_a + n_b
    v = tl.load(a + rows[:, None] * n_a + cols[None, :], mask=from_a[None, :], other=0.0)
    from_b = in_range & (cols >= n_a)
    w = tl.load(b + rows[:, None] * n_b + (cols - n_a)[None, :], mask=from_b[None, :], other=0.0)
    v = tl.where(from_a[None, :], v, w)
    tl.store(out + rows[:, None] * (n_a + n_b) + cols[None, :], v, mask=in_range[None, :])
    _store_sums(v.to(tl.float32), cols, in_range, tile, mean, m2, n_a + n_b, TILE)


@triton.jit(do_not_specialize=["tiles", "height", "width"])
def shuffle(
    phases, bias, out, mean, m2, tiles, height, width, n_channels, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # height and width of the output; phases (batch, height/2 + 1, width/2 + 1, 4, n_channels).
    tile = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    p = (tile % tiles) * TILE + tl.arange(0, TILE)
    y = p // width
    x = p - y * width
    in_range = cols < n_channels
    source = ((tile // tiles) * (height // 2 + 1) + (y + 1) // 2) * (width // 2 + 1) + (x + 1) // 2
    source = (source.to(tl.int64) * 4 + (y % 2) * 2 + x % 2) * n_channels
    v = tl.load(phases + source[:, None] + cols[None, :], mask=in_range[None, :], other=0.0).to(tl.float32)
    v = (v + tl.load(bias + cols, mask=in_range, other=0.0)[None, :]).to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * n_channels + cols[None, :], v, mask=in_range[None, :])
    _store_sums(v.to(tl.float32), cols, in_range, tile, mean, m2, n_channels, TILE)


@triton.jit(do_not_specialize=["tiles", "n_rows"])
def norm_dot(
    x, scale, shift, weight, out, tiles, n_rows, n_channels,
    N_OUT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # SiLU(x * scale + shift) @ weight with the normalised tensor kept in registers; weight (BLOCK, N_OUT). Written as
    # (N_OUT, n_rows), so that the sums over neighbours read whole lines.
    tile = tl.program_id(0)
    cols, o = tl.arange(0, BLOCK), tl.arange(0, N_OUT)
    rows = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    in_range = cols < n_channels
    b = tile // tiles
    s = tl.load(scale + b * n_channels + cols, mask=in_range, other=0.0)
    z = tl.load(shift + b * n_channels + cols, mask=in_range, other=0.0)
    at = rows[:, None] * n_channels + cols[None, :]
    v = tl.load(x + at, mask=in_range[None, :], other=0.0).to(tl.float32) * s[None, :] + z[None, :]
    v = (v * tl.sigmoid(v)).to(x.dtype.element_ty)
    w = tl.load(weight + cols[:, None] * N_OUT + o[None, :])
    tl.store(out + o[:, None].to(tl.int64) * n_rows + rows[None, :], tl.trans(tl.dot(v, w)))


@triton.jit(do_not_specialize=["n_rows", "height", "width"])
def gather_taps(
    parts, bias, out, finite, n_rows, height, width,
    PIXELS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # The nine shifted sums of a 3x3 convolution to three channels; parts float32 (32, n_rows), line tap * 3 + c.
    b = tl.program_id(1)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    y = i // width
    x = i - y * width
    inside = y < height
    row = b.to(tl.int64) * height * width + i
    bad = tl.zeros((TILE,), tl.int32)
    for c in tl.static_range(3):
        v = tl.zeros((TILE,), tl.float32) + tl.load(bias + c)
        for tap in tl.static_range(9):
            yy, xx = y + tap // 3 - 1, x + tap % 3 - 1
            near = inside & (yy >= 0) & (yy < height) & (xx >= 0) & (xx < width)
            at = row + (tap // 3 - 1) * width + tap % 3 - 1 + (tap * 3 + c) * n_rows
            v += tl.load(parts + at, mask=near, other=0.0)
        if PIXELS:
            bad += tl.where(inside & ~(tl.abs(v) < 65504.0), 1, 0)
            u = tl.minimum(tl.maximum(tl.where(tl.abs(v) < 65504.0, v, 0.0) * 127.5 + 127.5, 0.0), 255.0)
            # Half to even, as torch.round does: adding 2**23 leaves no bit behind the point.
            u = (u + 8388608.0) - 8388608.0
            tl.store(out + ((b * height + y).to(tl.int64) * width + x) * 3 + c, u.to(tl.uint8), mask=inside)
        else:
            to = ((b * 3 + c) * height + y).to(tl.int64) * width + x
            tl.store(out + to, v.to(out.dtype.element_ty), mask=inside)
    if PIXELS:
        tl.atomic_max(finite + b, tl.max(bad, axis=0))


@triton.jit(do_not_specialize=["n_rows"])
def geglu(x, out, n_rows, n_half, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < n_rows) & (cols < n_half)
    value = tl.load(x + row * 2 * n_half + cols, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + row * 2 * n_half + n_half + cols, mask=inside, other=0.0).to(tl.float32)
    gelu = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(out + row * n_half + cols, (value * gelu).to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_norm(x, h, gamma, beta, out, normed, width, eps, factor, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < width
    v = tl.load(x + row * width + cols, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        v = (v + tl.load(h + row * width + cols, mask=inside, other=0.0).to(tl.float32)).to(
            out.dtype.element_ty
        )
        tl.store(out + row * width + cols, v, mask=inside)
        v = v.to(tl.float32)
    mean = tl.sum(tl.where(inside, v, 0.0), axis=0) / width
    d = tl.where(inside, v - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / width + eps)
    g = tl.load(gamma + cols, mask=inside, other=0.0)
    z = tl.load(beta + cols, mask=inside, other=0.0)
    tl.store(normed + row * width + cols, _stored((d * rstd * g + z) * factor, normed), mask=inside)
