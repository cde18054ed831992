"""What stands between the products of LMDM as one Triton kernel: residual, scale and shift, LayerNorm, rotation.

Needs the `triton` package: import this module only behind `kernel_ops.why_not`. float32 throughout. A program works on one
row; numbers are taken in neighbouring pairs, which is what the rotation turns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

# Triton compiles the function from its text: no docstring inside, plain arithmetic only.


@triton.jit(do_not_specialize=["length", "film_stride"])
def _join(
    x, y, scale, shift, weight, bias, turn, out, normed, turned, length, film_stride, dim, eps,
    HALF: tl.constexpr, ADDS: tl.constexpr, NORMS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, HALF)
    inside = i < dim // 2
    even = row * dim + 2 * i
    a = tl.load(x + even, mask=inside, other=0.0)
    b = tl.load(x + even + 1, mask=inside, other=0.0)
    if ADDS:
        film = (row // length) * film_stride + 2 * i
        ya = tl.load(y + even, mask=inside, other=0.0)
        yb = tl.load(y + even + 1, mask=inside, other=0.0)
        a += ya * tl.load(scale + film, mask=inside, other=0.0) + tl.load(
            shift + film, mask=inside, other=0.0
        )
        b += yb * tl.load(scale + film + 1, mask=inside, other=0.0) + tl.load(
            shift + film + 1, mask=inside, other=0.0
        )
        tl.store(out + even, a, mask=inside)
        tl.store(out + even + 1, b, mask=inside)
    if NORMS:
        mean = (tl.sum(a, axis=0) + tl.sum(b, axis=0)) / dim
        da = tl.where(inside, a - mean, 0.0)
        db = tl.where(inside, b - mean, 0.0)
        spread = 1.0 / tl.sqrt((tl.sum(da * da, axis=0) + tl.sum(db * db, axis=0)) / dim + eps)
        na = da * spread * tl.load(weight + 2 * i, mask=inside, other=0.0) + tl.load(
            bias + 2 * i, mask=inside, other=0.0
        )
        nb = db * spread * tl.load(weight + 2 * i + 1, mask=inside, other=0.0) + tl.load(
            bias + 2 * i + 1, mask=inside, other=0.0
        )
        tl.store(normed + even, na, mask=inside)
        tl.store(normed + even + 1, nb, mask=inside)
        if TURNS:
            at = (row % length) * dim + 2 * i  # cosine and sine of a pair stand side by side
            cos = tl.load(turn + at, mask=inside, other=0.0)
            sin = tl.load(turn + at + 1, mask=inside, other=0.0)
            tl.store(turned + even, na * cos - nb * sin, mask=inside)
            tl.store(turned + even + 1, nb * cos + na * sin, mask=inside)


class TritonJoints:
    """`fast_motion.Joints` by the kernel, on a CUDA device."""

    name = "triton"

    def normed(self, x: Tensor, norm: nn.LayerNorm, turn: Tensor) -> tuple[Tensor, Tensor]:
        """See `fast_motion.Joints`."""
        normed, turned = torch.empty_like(x), torch.empty_like(x)
        self._run(x, x, (x, x), norm, turn, (x, normed, turned), adds=False)
        return normed, turned

    def joined(
        self,
        x: Tensor,
        y: Tensor,
        film: tuple[Tensor, Tensor],
        norm: nn.LayerNorm | None,
        turn: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `fast_motion.Joints`."""
        x, y, out = x.contiguous(), y.contiguous(), torch.empty_like(x)
        normed = None if norm is None else torch.empty_like(out)
        turned = None if norm is None or turn is None else torch.empty_like(out)
        self._run(x, y, film, norm, turn, (out, normed, turned), adds=True)
        return out, normed, turned

    def _run(self, x, y, film, norm, turn, outs, adds: bool) -> None:
        out, normed, turned = (x if t is None else t for t in outs)
        scale, shift = film
        rows, length, dim = x.shape
        angles = x if turn is None else torch.view_as_real(turn)
        weight, bias, eps = (x, x, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
        _join[(rows * length,)](
            x, y, scale, shift, weight, bias, angles, out, normed, turned, length, scale.stride(0), dim, eps,
            HALF=triton.next_power_of_2(dim // 2), ADDS=adds, NORMS=norm is not None, TURNS=turn is not None,
        )  # fmt: skip
