"""Motion extractor: a picture -> head pose, expression and canonical key points. ConvNeXt V2 with seven linear heads.

Pictures (B, 3, S, S) RGB in 0..1, not normalised further. Angles come as logits over bins of 3 degrees
(`geometry.degrees_from_logits`). Source: spec/ditto.md 4.2; GRN: Woo et al. 2023, arXiv 2301.00808.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import MotionConfig

_EPS = 1e-6


class MotionOutput(NamedTuple):
    """What the heads say, in the order of the official network. Key points are flat: index 3 * k + axis."""

    pitch: Tensor
    """(B, n_bins) logits, as are `yaw` and `roll`."""
    yaw: Tensor
    roll: Tensor
    t: Tensor
    """(B, 3) translation."""
    exp: Tensor
    """(B, 3 * n_keypoints) expression: offsets of the key points."""
    scale: Tensor
    """(B, 1)."""
    kp: Tensor
    """(B, 3 * n_keypoints) canonical key points."""


class _ResponseNorm(nn.Module):
    """Global response normalisation over (B, H, W, C)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(1, 1, 1, channels))
        self.beta = nn.Parameter(torch.empty(1, 1, 1, channels))
        nn.init.zeros_(self.gamma)
        nn.init.zeros_(self.beta)

    def forward(self, x: Tensor) -> Tensor:
        # Squares of a whole map overflow fp16.
        norm = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32)
        share = (norm / (norm.mean(-1, keepdim=True) + _EPS)).to(x.dtype)
        return self.gamma * (x * share) + self.beta + x


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=_EPS)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.grn = _ResponseNorm(4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        hidden = self.pwconv2(self.grn(F.gelu(self.pwconv1(hidden))))
        return x + hidden.permute(0, 3, 1, 2)


class _ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (B, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_EPS)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNeXt(nn.Module):
    """Backbone and heads; `forward` gives the pooled features."""

    def __init__(self, config: MotionConfig) -> None:
        super().__init__()
        dims = config.dims
        stem = nn.Sequential(nn.Conv2d(3, dims[0], config.stem, config.stem), _ChannelNorm(dims[0]))
        steps = (
            nn.Sequential(_ChannelNorm(c_in), nn.Conv2d(c_in, c_out, 2, 2))
            for c_in, c_out in zip(dims[:-1], dims[1:], strict=True)
        )
        self.downsample_layers = nn.ModuleList([stem, *steps])
        self.stages = nn.ModuleList(
            nn.Sequential(*(_Block(c) for _ in range(depth)))
            for c, depth in zip(dims, config.depths, strict=True)
        )
        self.norm = nn.LayerNorm(dims[-1], eps=_EPS)
        self.fc_kp = nn.Linear(dims[-1], 3 * config.n_keypoints)
        self.fc_scale = nn.Linear(dims[-1], 1)
        self.fc_pitch = nn.Linear(dims[-1], config.n_bins)
        self.fc_yaw = nn.Linear(dims[-1], config.n_bins)
        self.fc_roll = nn.Linear(dims[-1], config.n_bins)
        self.fc_t = nn.Linear(dims[-1], 3)
        self.fc_exp = nn.Linear(dims[-1], 3 * config.n_keypoints)

    def forward(self, x: Tensor) -> Tensor:
        for step, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(step(x))
        return self.norm(x.mean((-2, -1)))


class MotionExtractor(nn.Module):
    """The extractor; its one member carries the prefix of the official keys."""

    def __init__(self, config: MotionConfig) -> None:
        super().__init__()
        self.config = config
        self.detector = _ConvNeXt(config)

    def features(self, image: Tensor) -> Tensor:
        """Return the pooled features (B, dims[-1]) of pictures (B, 3, S, S). ValueError for other shapes."""
        step = self.config.shrink
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % step or image.shape[3] % step:
            raise ValueError(
                f"the motion extractor needs pictures (batch, 3, H, W) with sides that divide by {step}, got "
                f"{tuple(image.shape)}"
            )
        return self.detector(image)

    def heads(self, features: Tensor) -> MotionOutput:
        """Return what the heads make of pooled features."""
        return MotionOutput(
            *(getattr(self.detector, f"fc_{name}")(features) for name in MotionOutput._fields)
        )

    def forward(self, image: Tensor) -> MotionOutput:
        """Return pose, expression and key points of pictures (B, 3, S, S)."""
        return self.heads(self.features(image))
