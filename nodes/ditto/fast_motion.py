"""A step of LMDM in fewer kernels for the same numbers, for a recorded graph: its time goes into their count.

Nothing is rounded anew; results differ from the plain network by the order of sums alone. What is done:
  scale and shift of every layer follow from the time vector alone: one product of stacked weights for all of them, the
    scale's 1 in its bias;
  keys and values of the memory, the same for every layer but for their weights: one product each;
  the rotation is one product of complex numbers, a neighbouring pair being one of them;
  time vector and time tokens are one product.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lmdm import LMDM, N_TIME_TOKENS, Attention, DecoderLayer

_FILMS = ("film1", "film2", "film3")


class FastStep(nn.Module):
    """`LMDM.denoise` of `lmdm`, whose tensors are shared where they stay as they are. Inference only."""

    def __init__(self, lmdm: LMDM) -> None:
        super().__init__()
        self.lmdm = lmdm
        layers: list[DecoderLayer] = list(lmdm.seqTransDecoder.stack)
        self.layers = nn.ModuleList(_Layer(layer) for layer in layers)
        films = [getattr(layer, name).block[1] for layer in layers for name in _FILMS]
        self.films = _stacked(
            (f.weight for f in films),
            (torch.cat([f.bias[: len(f.bias) // 2] + 1, f.bias[len(f.bias) // 2 :]]) for f in films),
        )
        cross = [layer.multihead_attn for layer in layers]
        self.keys = _stacked(*zip(*(_part(attention, 1) for attention in cross), strict=True))
        self.values = _stacked(*zip(*(_part(attention, 2) for attention in cross), strict=True))
        times = lmdm.to_time_cond[0], lmdm.to_time_tokens[0]
        self.times = _stacked((t.weight for t in times), (t.bias for t in times))
        rotary = lmdm.rotary
        self.register_buffer("turn", torch.complex(rotary.cos[:, ::2], rotary.sin[:, 1::2]), persistent=False)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor) -> Tensor:
        """Return x0; arguments and errors as of `LMDM.denoise`."""
        lmdm, dim = self.lmdm, self.lmdm.config.latent_dim
        lmdm.check(x, cond_frame, time)
        heads = lmdm.config.n_heads
        of_time = self.times(lmdm.time_mlp(time))
        vector = F.mish(of_time[:, None, :dim] + hidden).flatten(0, 1)
        films = self.films(vector).unflatten(-1, (len(self.layers), len(_FILMS), 2, 1, dim))
        time_tokens = of_time[:, None, dim:].unflatten(-1, (N_TIME_TOKENS, dim)).expand(-1, 2, -1, -1)
        memory = lmdm.norm_cond(torch.cat((tokens, time_tokens), dim=2)).flatten(0, 1)
        shape = (len(self.layers), heads, dim // heads)
        keys = self.keys(_turned(memory, self.turn)).unflatten(-1, shape)
        values = self.values(memory).unflatten(-1, shape)
        frame = cond_frame[:, None].expand(-1, x.shape[1], -1)
        state = lmdm.input_projection(torch.cat((x, frame), dim=-1))
        state = state[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
        turn = self.turn[: x.shape[1]]
        for i, layer in enumerate(self.layers):
            memory_parts = keys[:, :, i].transpose(1, 2), values[:, :, i].transpose(1, 2)
            state = layer(state, memory_parts, films[:, i], turn)
        conditional, unconditional = state.unflatten(0, (-1, 2)).unbind(dim=1)
        # The last layer is linear: guidance before it is guidance behind it, on half the rows.
        return lmdm.final_layer(torch.lerp(unconditional, conditional, lmdm.config.guidance))


class _Layer(nn.Module):
    """`lmdm.DecoderLayer` with scales, shifts and the memory's keys and values ready."""

    def __init__(self, layer: DecoderLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], films: Tensor, turn: Tensor) -> Tensor:
        """x (B, T, dim); memory: keys and values (B, heads, S, dim / heads); films (B, 3, 2, 1, dim)."""
        layer, dim = self.layer, x.shape[-1]
        (scale1, shift1), (scale2, shift2), (scale3, shift3) = (f.unbind(1) for f in films.unbind(1))
        attention, cross = layer.self_attn, layer.multihead_attn
        heads = attention.n_heads
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        normed = layer.norm1(x)
        q, k = F.linear(_turned(normed, turn), weight[: 2 * dim], bias[: 2 * dim]).chunk(2, dim=-1)
        v = F.linear(normed, weight[2 * dim :], bias[2 * dim :])
        mixed = _mixed(attention, _headed(q, heads), _headed(k, heads), _headed(v, heads))
        x = x + torch.addcmul(shift1, mixed, scale1)
        weight, bias = cross.in_proj_weight, cross.in_proj_bias
        q = F.linear(_turned(layer.norm2(x), turn), weight[:dim], bias[:dim])
        x = x + torch.addcmul(shift2, _mixed(cross, _headed(q, heads), *memory), scale2)
        hidden = layer.linear2(F.gelu(layer.linear1(layer.norm3(x))))
        return x + torch.addcmul(shift3, hidden, scale3)


def _stacked(weights: Iterable[Tensor], biases: Iterable[Tensor]) -> nn.Linear:
    """Return one linear layer that gives the outputs of several, one after the other."""
    weight, bias = torch.cat(list(weights)), torch.cat(list(biases))
    made = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    made.weight, made.bias = (nn.Parameter(value, requires_grad=False) for value in (weight, bias))
    return made


def _part(attention: Attention, which: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of queries, keys or values (0, 1, 2)."""
    return attention.in_proj_weight.chunk(3)[which], attention.in_proj_bias.chunk(3)[which]


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """As `RotaryEmbedding`: (B, T, dim) with `turn` (T, dim / 2) complex."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def _headed(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _mixed(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
