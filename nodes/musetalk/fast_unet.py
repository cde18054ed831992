"""The UNet on rows of pixels: the same function as `unet.UNet2DCondition` at timestep 0, in fewer and larger steps.

What is folded when it is made: the time embedding (a constant, so a bias of the residual blocks), convolution biases
(into the normalisation or addition that follows), queries, keys and values of self-attention into one product, the
keys and values of all cross-attentions into one product, and the repetition of pixels into 2x2 kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.rows import Grid, LinearWeight, Norm, Sums
from .fast_blocks import FastResnet, FastUpsample, channels_last
from .unet import SpatialTransformer, UNet2DCondition


class _Transformer:
    """Weights of one spatial transformer; `keys` are its columns of the shared key and value product."""

    QUANTISABLE = ("qkv", "widen")

    def __init__(self, module: SpatialTransformer, keys: slice) -> None:
        [block] = module.transformer_blocks
        self.norm = Norm.of(module.norm)
        self.zero = torch.zeros_like(self.norm.beta)
        self.proj_in = module.proj_in.weight.flatten(1), module.proj_in.bias
        self.block, self.keys = block, keys
        own = block.attn1
        self.qkv = LinearWeight.of(torch.cat([own.to_q.weight, own.to_k.weight, own.to_v.weight]))
        self.widen = LinearWeight.of(block.ff.net[0].proj.weight, block.ff.net[0].proj.bias)
        self.out_weight = module.proj_out.weight.flatten(1)
        # The feed-forward's bias, sent through the last projection.
        last = block.ff.net[2].bias.float()
        self.out_bias = module.proj_out.bias.float() + self.out_weight.float() @ last


class FastUNet:
    """`unet` for inference at timestep 0; `ops` is TorchOps or TritonOps. Shares the large weights with `unet`."""

    def __init__(self, unet: UNet2DCondition, ops) -> None:
        self.ops, self.unet = ops, unet
        time = self._time(unet)
        self._keys: list[Tensor] = []
        self._columns = 0
        self._down = [self._block(block, time, "downsamplers") for block in unet.down_blocks]
        self._mid = self._block(unet.mid_block, time, "")
        self._up = [self._block(block, time, "upsamplers") for block in unet.up_blocks]
        self._key_weight = torch.cat(self._keys) if self._keys else None
        del self._keys
        self._in_weight = channels_last(unet.conv_in.weight)
        self._out_weight = channels_last(unet.conv_out.weight)
        self._out_norm = Norm.of(unet.conv_norm_out)
        self._out_zero = torch.zeros_like(self._out_norm.beta)

    def parts(self) -> Iterator[tuple[str, object]]:
        """Name and object of every block that has quantisable weights."""
        groups = [*((f"down {i}", g) for i, g in enumerate(self._down)), ("middle", self._mid)]
        groups += [(f"up {i}", g) for i, g in enumerate(self._up)]
        for name, (resnets, attentions, step) in groups:
            yield from ((f"unet {name} resnet {i}", part) for i, part in enumerate(resnets))
            yield from ((f"unet {name} attention {i}", part) for i, part in enumerate(attentions))
            if isinstance(step, FastUpsample):
                yield f"unet {name} upsample", step

    @staticmethod
    def _time(unet: UNet2DCondition) -> Tensor:
        sinusoid = unet.time_proj(torch.zeros(1, device=unet.conv_in.weight.device))
        one, two = unet.time_embedding.linear_1, unet.time_embedding.linear_2
        hidden = F.silu(F.linear(sinusoid, one.weight.float(), one.bias.float()))
        return F.silu(F.linear(hidden, two.weight.float(), two.bias.float()))

    def _block(self, block, time: Tensor, resize: str) -> tuple[list, list, object]:
        resnets = [FastResnet(r, time) for r in block.resnets]
        attentions = [self._transformer(a) for a in getattr(block, "attentions", [])]
        step = getattr(block, resize, None) if resize else None
        if step is not None:
            step = FastUpsample(step[0].conv) if resize == "upsamplers" else step[0].conv
        return resnets, attentions, step

    def _transformer(self, module: SpatialTransformer) -> _Transformer:
        cross = module.transformer_blocks[0].attn2
        self._keys += [cross.to_k.weight, cross.to_v.weight]
        first, self._columns = self._columns, self._columns + 2 * cross.to_k.weight.shape[0]
        return _Transformer(module, slice(first, self._columns))

    def __call__(self, sample: Tensor, tokens: Tensor) -> Tensor:
        """As `UNet2DCondition.forward(sample, tokens)`; the result has channels_last strides."""
        ops = self.ops
        grid = Grid(sample.shape[0], sample.shape[2], sample.shape[3])
        context = None
        if self._key_weight is not None:
            context = F.linear(tokens, self._key_weight)
        x = F.conv2d(channels_last(sample), self._in_weight, self.unet.conv_in.bias, padding=1)
        x = grid.pack(x)
        sums = ops.sums(x, grid)
        skips = [(x, sums)]
        for resnets, attentions, step in self._down:
            for index, resnet in enumerate(resnets):
                x, sums = self._layer(x, sums, grid, resnet, attentions, index, context)
                skips.append((x, sums))
            if step is not None:
                image = F.conv2d(grid.unpack(x), channels_last(step.weight), step.bias, stride=2, padding=1)
                grid = Grid(grid.batch, image.shape[2], image.shape[3])
                x = grid.pack(image)
                sums = ops.sums(x, grid)
                skips.append((x, sums))
        resnets, attentions, _ = self._mid
        x, sums = resnets[0](ops, x, sums, grid)
        x, sums = self._attend(x, sums, grid, attentions[0], context)
        x, sums = resnets[1](ops, x, sums, grid)
        for resnets, attentions, step in self._up:
            for index, resnet in enumerate(resnets):
                x, sums = ops.concat(x, skips.pop()[0], grid)
                x, sums = self._layer(x, sums, grid, resnet, attentions, index, context)
            if step is not None:
                x, sums, grid = step(ops, x, grid)
        scale, shift = ops.scale_shift(sums, self._out_norm, self._out_zero, grid)
        x = grid.unpack(ops.apply(x, scale, shift, grid, True))
        return F.conv2d(x, self._out_weight, self.unet.conv_out.bias, padding=1)

    def _layer(self, x, sums, grid: Grid, resnet: FastResnet, attentions: list, index: int, context):
        x, sums = resnet(self.ops, x, sums, grid)
        return self._attend(x, sums, grid, attentions[index], context) if attentions else (x, sums)

    def _attend(self, x: Tensor, sums: Sums, grid: Grid, t: _Transformer, context) -> tuple[Tensor, Sums]:
        ops, block, batch = self.ops, t.block, grid.batch
        scale, shift = ops.scale_shift(sums, t.norm, t.zero, grid)
        tokens = F.linear(ops.apply(x, scale, shift, grid, False), *t.proj_in)
        _, normed = ops.add_norm(tokens, None, block.norm1, t.qkv.step)
        width = tokens.shape[1]
        heads = (block.attn1.n_heads, width // block.attn1.n_heads)
        qkv = ops.linear(normed, t.qkv).view(batch, grid.held, 3, *heads).permute(2, 0, 3, 1, 4)
        mixed = self._mix(qkv[0], qkv[1], qkv[2], width)
        tokens, normed = ops.add_norm(tokens, _linear(block.attn1.to_out[0], mixed), block.norm2)
        query = F.linear(normed, block.attn2.to_q.weight).view(batch, grid.held, *heads).transpose(1, 2)
        pair = context[..., t.keys].unflatten(2, (2, *heads)).permute(2, 0, 3, 1, 4)
        mixed = self._mix(query, pair[0], pair[1], width)
        tokens, normed = ops.add_norm(
            tokens, _linear(block.attn2.to_out[0], mixed), block.norm3, t.widen.step
        )
        hidden = ops.geglu(ops.linear(normed, t.widen))
        tokens.addmm_(hidden, block.ff.net[2].weight.t())
        return ops.add(F.linear(tokens, t.out_weight), t.out_bias, x, grid)

    @staticmethod
    def _mix(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
        """Attention of (B, heads, T, d) views; rows (B * T, width)."""
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(-1, width)


def _linear(module: torch.nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, module.weight, module.bias)
