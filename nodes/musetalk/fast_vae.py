"""The VAE's decoder on rows of pixels: the same function as `AutoencoderKL.decode`, in fewer and larger steps.

Of 622 GFLOP for a 256x256 picture 97 are saved in the three upsamplings (2x2 kernels for each phase instead of 3x3
on repeated pixels). The last normalisation, convolution and conversion to bytes never store the normalised tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.rows import Grid, Norm, Sums
from .fast_blocks import FastResnet, FastUpsample, channels_last
from .vae import AutoencoderKL

_TAP_COLUMNS = 32  # 9 taps times 3 channels, rounded up to what a matrix unit takes


class _Attention:
    """Single-head attention; queries, keys and values in one product, the scale folded into the queries."""

    def __init__(self, module) -> None:
        self.norm = Norm.of(module.group_norm)
        self.zero = torch.zeros_like(self.norm.beta)
        scale = module.to_q.weight.shape[0] ** -0.5
        projections = ((module.to_q, scale), (module.to_k, 1.0), (module.to_v, 1.0))
        dtype = module.to_q.weight.dtype
        self.weight = torch.cat([p.weight.float() * factor for p, factor in projections]).to(dtype)
        self.bias = torch.cat([p.bias.float() * factor for p, factor in projections]).to(dtype)
        self.out_weight, self.out_bias = module.to_out[0].weight, module.to_out[0].bias.float()

    def __call__(self, ops, x: Tensor, sums: Sums, grid: Grid) -> tuple[Tensor, Sums]:
        scale, shift = ops.scale_shift(sums, self.norm, self.zero, grid)
        tokens = ops.apply(x, scale, shift, grid, False).view(grid.batch, grid.held, -1)
        query, key, value = F.linear(tokens, self.weight, self.bias).chunk(3, -1)
        # One head as wide as the channels, which the fused attention kernels do not take.
        mixed = torch.bmm(torch.bmm(query, key.transpose(1, 2)).softmax(-1), value)
        return ops.add(F.linear(mixed, self.out_weight).view(grid.rows, -1), self.out_bias, x, grid)


class FastDecoder:
    """`vae.decode` for inference, of latents still multiplied by the scaling factor. `ops`: TorchOps or TritonOps."""

    def __init__(self, vae: AutoencoderKL, ops) -> None:
        self.ops, decoder = ops, vae.decoder
        self._conv_in = decoder.conv_in
        quant, dtype = vae.post_quant_conv, decoder.conv_in.weight.dtype
        # Not folded into conv_in: that one pads with zeros AFTER the bias of this one.
        weight = (quant.weight.float() / vae.config.scaling_factor).to(dtype)
        self._quant = channels_last(weight), quant.bias
        self._in_weight = channels_last(decoder.conv_in.weight)
        mid = decoder.mid_block
        self._mid = FastResnet(mid.resnets[0]), _Attention(mid.attentions[0]), FastResnet(mid.resnets[1])
        self._levels = []
        for level in decoder.up_blocks:
            up = None if level.resize is None else FastUpsample(level.upsamplers[0].conv)
            self._levels.append(([FastResnet(block) for block in level.resnets], up))
        self._norm_out = Norm.of(decoder.conv_norm_out)
        self._zero = torch.zeros_like(self._norm_out.beta)
        kernel = decoder.conv_out.weight.float().permute(1, 2, 3, 0).flatten(1)
        kernel = F.pad(kernel, (0, _TAP_COLUMNS - kernel.shape[1])).to(dtype).contiguous()
        self._last = kernel, decoder.conv_out.bias.float()

    def parts(self) -> Iterator[tuple[str, object]]:
        """Name and object of every block that has quantisable weights."""
        yield "decoder middle resnet 0", self._mid[0]
        yield "decoder middle resnet 1", self._mid[2]
        for level, (resnets, up) in enumerate(self._levels):
            yield from ((f"decoder up {level} resnet {i}", part) for i, part in enumerate(resnets))
            if up is not None:
                yield f"decoder up {level} upsample", up

    def __call__(self, latents: Tensor, pixels: bool = False) -> tuple[Tensor, Tensor | None]:
        """Decode (B, latent_channels, h, w).

        Args:
            latents: multiplied by the scaling factor, as the UNet gives them.
            pixels: give uint8 RGB (B, H, W, 3) and bool (B,) whether a picture is finite,
                else raw (B, 3, H, W), about [-1, 1], and None.
        """
        ops = self.ops
        grid = Grid(latents.shape[0], latents.shape[2], latents.shape[3])
        latents = F.conv2d(channels_last(latents), *self._quant)
        x = grid.pack(F.conv2d(latents, self._in_weight, self._conv_in.bias, padding=1))
        sums = ops.sums(x, grid)
        for part in self._mid:
            x, sums = part(ops, x, sums, grid)
        for resnets, up in self._levels:
            for resnet in resnets:
                x, sums = resnet(ops, x, sums, grid)
            if up is not None:
                x, sums, grid = up(ops, x, grid)
        scale, shift = ops.scale_shift(sums, self._norm_out, self._zero, grid)
        return ops.last_conv(x, scale, shift, *self._last, grid, pixels)
