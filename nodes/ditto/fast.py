"""Rendering with less work for the same numbers: norms folded, convolutions joined, one of them before the upsampling.

Nothing is trained or rounded anew; results differ from the plain networks by the order of sums alone. What is done:
  warp: batch norms become part of the convolutions in front of them;
  decoder: the first convolutions of all SPADEs of a level are one, and for the levels that see a repeated condition map
    it runs on the small map (25 products a pixel of it instead of 144 at four times the side, 16 instead of 36 at twice);
  decoder: scale and shift of a SPADE are one convolution, and the two SPADEs of a block that see the same input share its
    normalised form.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .decoder import SLOPE, SpadeDecoder
from .networks import DittoNets
from .warp import WarpNetwork

_BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)


class FastNets(nn.Module):
    """Warping and decoding of `nets`, whose tensors are shared where they stay as they are. Inference only."""

    def __init__(self, nets: DittoNets) -> None:
        super().__init__()
        self.warp = fold_batch_norms(nets.warp)
        self.decoder = FastDecoder(nets.decoder)
        self.eval().requires_grad_(False)

    def forward(self, volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """Return faces (B, 3, S, S) in 0..1, as `DittoNets.forward`."""
        return self.decoder(self.warp(volume, kp_source, kp_driving))


def fold_batch_norms(warp: WarpNetwork) -> WarpNetwork:
    """Return the network with every batch norm folded into the convolution before it; `warp` stays as it is."""
    # Everything that is not replaced below stays shared: only the modules are copied.
    shared = {id(tensor): tensor for tensor in (*warp.parameters(), *warp.buffers())}
    folded = copy.deepcopy(warp, shared)
    for module in list(folded.modules()):
        for conv in ("conv", "compress"):
            if isinstance(getattr(module, conv, None), nn.Module) and isinstance(module.norm, _BATCH_NORMS):
                setattr(module, conv, _folded(getattr(module, conv), module.norm))
                module.norm = nn.Identity()
    return folded


def _folded(conv: nn.Conv2d | nn.Conv3d, norm: nn.BatchNorm2d | nn.BatchNorm3d) -> nn.Module:
    scale = norm.weight.float() / (norm.running_var.float() + norm.eps).sqrt()
    out = copy.copy(conv)
    out._parameters = dict(conv._parameters)
    weight = conv.weight.float() * scale.view(-1, *[1] * (conv.weight.ndim - 1))
    bias = (conv.bias.float() - norm.running_mean.float()) * scale + norm.bias.float()
    out.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)
    out.bias = nn.Parameter(bias.to(conv.bias.dtype), requires_grad=False)
    return out


class FastDecoder(nn.Module):
    """The SPADE decoder, level by level: `SpadeDecoder` says what it computes."""

    def __init__(self, decoder: SpadeDecoder) -> None:
        super().__init__()
        config = decoder.config
        self.fc, self.conv_img = decoder.fc, decoder.conv_img
        blocks = [[getattr(decoder, f"G_middle_{i}") for i in range(config.n_middle)]]
        blocks += [[getattr(decoder, f"up_{i}")] for i in range(len(config.up_channels))]
        self.levels = nn.ModuleList(_Level(level, 2**i) for i, level in enumerate(blocks))

    def forward(self, features: Tensor) -> Tensor:
        """Return pictures (B, 3, grow * s, grow * s) in 0..1."""
        x = self.fc(features)
        for i, level in enumerate(self.levels):
            x = level(F.interpolate(x, scale_factor=2.0, mode="nearest") if i else x, features)
        return self.conv_img(F.leaky_relu(x, SLOPE)).sigmoid()


class _Level(nn.Module):
    """Blocks of one size, `scale` times the condition map's."""

    def __init__(self, blocks: list[nn.Module], scale: int) -> None:
        super().__init__()
        spades = [s for b in blocks for s in (b.norm_0, b.norm_1, b.norm_s) if s is not None]
        shared = [spade.mlp_shared[0] for spade in spades]
        weight = torch.cat([conv.weight for conv in shared])
        self.first = _RepeatedConv(weight, torch.cat([conv.bias for conv in shared]), scale)
        self.hidden = [conv.out_channels for conv in shared]
        self.blocks = nn.ModuleList(_Block(block) for block in blocks)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden = iter(self.first(condition).split(self.hidden, 1))
        for block in self.blocks:
            x = block(x, [next(hidden) for _ in block.styles])
        return x


class _Block(nn.Module):
    """`decoder._SpadeBlock` on hidden maps that are ready."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv_0, self.conv_1, self.conv_s = block.conv_0, block.conv_1, block.conv_s
        spades = [block.norm_0, block.norm_1, *([block.norm_s] if block.conv_s is not None else [])]
        self.styles = nn.ModuleList(_Style(spade) for spade in spades)

    def forward(self, x: Tensor, hidden: list[Tensor]) -> Tensor:
        normed = F.instance_norm(x)
        inner = self.conv_0(F.leaky_relu(self.styles[0](normed, hidden[0]), SLOPE))
        inner = self.styles[1](F.instance_norm(inner), hidden[1])
        inner = self.conv_1(F.leaky_relu(inner, SLOPE))
        return (x if self.conv_s is None else self.conv_s(self.styles[2](normed, hidden[2]))) + inner


class _Style(nn.Module):
    """Scale and shift of a SPADE from its hidden map, in one convolution; the scale's 1 lies in the bias."""

    def __init__(self, spade: nn.Module) -> None:
        super().__init__()
        gamma, beta = spade.mlp_gamma, spade.mlp_beta
        self.weight = nn.Parameter(torch.cat([gamma.weight, beta.weight]), requires_grad=False)
        self.bias = nn.Parameter(torch.cat([gamma.bias + 1, beta.bias]), requires_grad=False)

    def forward(self, normed: Tensor, hidden: Tensor) -> Tensor:
        scale, shift = F.conv2d(hidden, self.weight, self.bias, padding=1).chunk(2, 1)
        return torch.addcmul(shift, normed, scale)


class _RepeatedConv(nn.Module):
    """ReLU of a 3x3 convolution of a map whose pixels are repeated `scale` times, computed from the small map.

    Along one axis, a pixel of a repeated one sees: the first of them its left neighbour's value and twice its own, the
    last twice its own and the right neighbour's, all between three times its own. The kernel's taps are added up
    accordingly, for each of the kinds along both axes.
    """

    def __init__(self, weight: Tensor, bias: Tensor, scale: int) -> None:
        super().__init__()
        self.scale, self.channels = scale, len(weight)
        if scale == 1:
            self.kernels = nn.ParameterList([nn.Parameter(weight, requires_grad=False)])
        else:
            wide = weight.float()
            across = _ends(wide, 3), wide.sum(3, keepdim=True)
            pairs = [_ends(a, 2) for a in across] + [a.sum(2, keepdim=True) for a in across]
            self.kernels = nn.ParameterList(
                nn.Parameter(kernel.to(weight.dtype), requires_grad=False) for kernel in pairs
            )
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.scale == 1:
            return F.relu(F.conv2d(x, self.kernels[0], self.bias, padding=1))
        ends = self._corners(x, self.kernels[0])
        if self.scale == 2:
            return torch.stack([_interleaved(line, 2) for line in ends], 3).flatten(2, 3)
        # Kernel 1: ends of lines, middle columns; 2: middle lines, ends of columns; 3: neither.
        top_mid, bottom_mid = self._part(x, self.kernels[1], (0, 0, 1, 1), 2)
        left_mid, right_mid = self._part(x, self.kernels[2], (1, 1, 0, 0), 3)
        centre = F.relu(F.conv2d(x, self.kernels[3], self.bias))
        lines = (
            _interleaved((ends[0][0], top_mid, ends[0][1]), self.scale),
            _interleaved((left_mid, centre, right_mid), self.scale),
            _interleaved((ends[1][0], bottom_mid, ends[1][1]), self.scale),
        )
        middle = [lines[1]] * (self.scale - 2)
        return torch.stack([lines[0], *middle, lines[2]], 3).flatten(2, 3)

    def _corners(self, x: Tensor, kernel: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """First and last line of the repeated pixels, of each the first and last column."""
        h, w = x.shape[2:]
        out = F.relu(F.conv2d(F.pad(x, (1, 1, 1, 1)), kernel, self.bias.repeat(4)))
        kinds = out.split(self.channels, 1)
        cut = [kinds[2 * i + j][:, :, i : i + h, j : j + w] for i in (0, 1) for j in (0, 1)]
        return (cut[0], cut[1]), (cut[2], cut[3])

    def _part(self, x: Tensor, kernel: Tensor, pad: tuple[int, ...], axis: int) -> tuple[Tensor, Tensor]:
        """The kinds that are an end along `axis` alone."""
        out = F.relu(F.conv2d(F.pad(x, pad), kernel, self.bias.repeat(2)))
        first, last = out.split(self.channels, 1)
        n = x.shape[axis]
        return first.narrow(axis, 0, n), last.narrow(axis, 1, n)


def _ends(kernel: Tensor, axis: int) -> Tensor:
    """Two-tap kernels of the first and the last repeated pixel along `axis`, one after the other in the outputs."""
    a, b, c = kernel.split(1, axis)
    return torch.cat([torch.cat([a, b + c], axis), torch.cat([a + b, c], axis)])


def _interleaved(columns: tuple[Tensor, ...], scale: int) -> Tensor:
    """Columns of repeated pixels side by side: (B, C, h, scale * w)."""
    first, *middle, last = columns
    return torch.stack([first, *middle * (scale - 2), last], 4).flatten(3, 4)
