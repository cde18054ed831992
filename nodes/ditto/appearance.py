"""Appearance extractor: a picture -> the feature volume that the warping network bends.

Pictures (B, 3, S, S) RGB in 0..1; volumes (B, volume_channels, depth, s, s) with s = S / 2 ** (levels - 1): official
256 -> (32, 16, 64, 64). Modules are registered in the order of the official state dict. Source: spec/ditto.md 4.1.
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from .config import AppearanceConfig
from .layers import ConvNorm, ResBlock3d


class AppearanceExtractor(nn.Module):
    """Convolutions down to the volume's side, the channels folded into depth, 3-D residual blocks."""

    def __init__(self, config: AppearanceConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.block_out_channels
        self.first = ConvNorm(3, channels[0])
        self.down_blocks = nn.ModuleList(
            ConvNorm(c_in, c_out) for c_in, c_out in zip(channels[:-1], channels[1:], strict=True)
        )
        self.second = nn.Conv2d(channels[-1], config.volume_channels * config.volume_depth, 1)
        self.resblocks_3d = nn.Sequential(
            OrderedDict((f"3dr{i}", ResBlock3d(config.volume_channels)) for i in range(config.n_res_blocks))
        )

    def forward(self, image: Tensor) -> Tensor:
        """Return the volume of pictures (B, 3, S, S), S a multiple of `config.shrink`. ValueError for other shapes."""
        step = self.config.shrink
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % step or image.shape[3] % step:
            raise ValueError(
                f"the appearance extractor needs pictures (batch, 3, H, W) with sides that divide by {step}, got "
                f"{tuple(image.shape)}"
            )
        x = self.first(image)
        for block in self.down_blocks:
            x = F.avg_pool2d(block(x), 2)
        volume = self.second(x).unflatten(1, (self.config.volume_channels, self.config.volume_depth))
        return self.resblocks_3d(volume)
