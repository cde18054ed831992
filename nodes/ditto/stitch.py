"""Stitching network: moves driving key points so that the shoulders of source and result meet.

Key points are (B, n_keypoints, 3). Source: spec/ditto.md 4.5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import StitchConfig
from .layers import check_shape


class StitchNetwork(nn.Module):
    """MLP over both sets of key points: an offset for each, and one in x and y for all."""

    def __init__(self, config: StitchConfig) -> None:
        super().__init__()
        self.config = config
        n = 3 * config.n_keypoints
        sizes = (2 * n, *config.hidden_channels, n + 2)
        layers: list[nn.Module] = []
        for c_in, c_out in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(c_in, c_out), nn.ReLU()]
        self.mlp = nn.Sequential(*layers[:-1])

    def forward(self, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """Return corrected driving key points (B, n_keypoints, 3). ValueError for other shapes."""
        n = self.config.n_keypoints
        check_shape("source key points", kp_source, n, 3)
        check_shape("driving key points", kp_driving, n, 3)
        out = self.mlp(torch.cat([kp_source.flatten(1), kp_driving.flatten(1)], 1))
        offsets = out[:, : 3 * n].unflatten(1, (n, 3))
        # The common offset has no depth; padding by a zero keeps this free of writes into slices, which do not export.
        common = F.pad(out[:, None, 3 * n :], (0, 1))
        return kp_driving + offsets + common
