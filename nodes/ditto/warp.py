"""Warping network: bends the source's feature volume from its key points to the driving ones.

Steps that can run apart, because two of them are 5-D grid_sample, which some backends lack (*):
`DenseMotionNetwork.gather` (*) | `.estimate` | `sample_volume` (*) | `WarpNetwork.project`. `WarpNetwork.motion` is
the first two, `forward` all of them.

Volumes (B, C, D, H, W); key points (B, n_keypoints, 3), x, y, z in -1..1 over W, H, D. Key points, grids and the
deformation are float32 whatever the weights are: in fp16 a place is off by up to 1/64 of a cell. Source:
spec/ditto.md 4.3; the scheme is that of Wang et al. 2021, arXiv 2011.15126.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import WarpConfig
from .layers import ConvNorm, check_shape

_HEAT_VARIANCE = 0.01


class DenseMotionParts(NamedTuple):
    """What the dense motion network computes on the way, for parity; shapes with the official sizes."""

    compressed: Tensor
    """(B, 4, 16, 64, 64)."""
    sparse_motion: Tensor
    """(B, 22, 16, 64, 64, 3) float32: where each motion would take a cell from."""
    deformed_feature: Tensor
    """(B, 22, 4, 16, 64, 64)."""
    heatmap: Tensor
    """(B, 22, 1, 16, 64, 64) float32."""
    hourglass_input: Tensor
    """(B, 110, 16, 64, 64)."""
    hourglass_output: Tensor
    """(B, 142, 16, 64, 64)."""
    mask: Tensor
    """(B, 22, 16, 64, 64) float32, sums to 1 over the motions."""
    deformation: Tensor
    """(B, 16, 64, 64, 3) float32, x, y, z in -1..1."""
    occlusion: Tensor
    """(B, 1, 64, 64) in 0..1."""


class _Encoder(nn.Module):
    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.down_blocks = nn.ModuleList(
            ConvNorm(c_in, c_out, dims=3) for c_in, c_out in zip(channels[:-1], channels[1:], strict=True)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = [x]
        for block in self.down_blocks:
            maps.append(_in_planes(lambda x: F.avg_pool2d(x, 2), block(maps[-1])))
        return maps


class _Decoder(nn.Module):
    """Steps up, each joined by the map of its size; `channels` are those of the maps, finest first."""

    def __init__(self, channels: tuple[int, ...], last: int) -> None:
        super().__init__()
        n_steps = len(channels) - 1
        outs = [*channels[n_steps - 1 : 0 : -1], last]
        skips = channels[n_steps - 1 :: -1]
        blocks, c_in = [], channels[-1]
        for c_out, skip in zip(outs, skips, strict=True):
            blocks.append(ConvNorm(c_in, c_out, dims=3))
            c_in = c_out + skip
        self.up_blocks = nn.ModuleList(blocks)
        self.conv = nn.Conv3d(c_in, c_in, 3, padding=1)
        self.norm = nn.BatchNorm3d(c_in)

    def forward(self, maps: list[Tensor]) -> Tensor:
        x = maps[-1]
        for block, skip in zip(self.up_blocks, reversed(maps[:-1]), strict=True):
            doubled = _in_planes(lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), x)
            x = torch.cat([block(doubled), skip], 1)
        return F.relu(self.norm(self.conv(x)))


class _Hourglass(nn.Module):
    """U-shaped network that leaves the depth as it is."""

    def __init__(self, config: WarpConfig) -> None:
        super().__init__()
        channels = (config.hourglass_in, *config.hourglass_channels[1:])
        self.encoder = _Encoder(channels)
        self.decoder = _Decoder(channels, config.hourglass_channels[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class DenseMotionNetwork(nn.Module):
    """Key points -> where every cell of the result is taken from, and how much of it can be seen."""

    def __init__(self, config: WarpConfig) -> None:
        super().__init__()
        self.config = config
        self.hourglass = _Hourglass(config)
        wide, pad = config.hourglass_out, config.mask_kernel // 2
        self.mask = nn.Conv3d(wide, config.n_motions, config.mask_kernel, padding=pad)
        self.compress = nn.Conv3d(config.volume_channels, config.compressed_channels, 1)
        self.norm = nn.BatchNorm3d(config.compressed_channels)
        self.occlusion = nn.Conv2d(wide * config.volume_depth, 1, config.mask_kernel, padding=pad)
        grid = coordinate_grid(config.volume_depth, config.volume_size, config.volume_size)
        self.register_buffer("grid", grid, persistent=False)

    def ways(self, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """Return (B, n_motions, 3) float32: from each driving key point back to the source's; motion 0 stands still."""
        return F.pad(kp_source.float() - kp_driving.float(), (0, 0, 1, 0))

    def heatmaps(self, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """Return (B, n_motions, 1, D, H, W): bumps at the driving key points less those at the source's, 0 first."""
        heat = _bumps(self.grid, kp_driving.float()) - _bumps(self.grid, kp_source.float())
        return F.pad(heat, (0, 0, 0, 0, 0, 0, 1, 0))[:, :, None]

    def compressed(self, volume: Tensor) -> Tensor:
        """Return (B, compressed_channels, D, H, W); depends on the source alone."""
        return F.relu(self.norm(self.compress(volume)))

    def deformed(self, compressed: Tensor, ways: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features moved by each motion (B, n_motions, C, D, H, W), and where they come from (..., 3)."""
        cfg = self.config
        places = self.grid + ways[:, :, None, None, None]
        # All motions in one call, stacked along the depth of what is sampled: no copies of the features.
        stacked = sample_volume(compressed, places.flatten(1, 2))
        return stacked.unflatten(2, (cfg.n_motions, cfg.volume_depth)).transpose(1, 2), places

    def gather(self, volume: Tensor, kp_driving: Tensor, kp_source: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `estimate` takes: maps (B, hourglass_in, D, H, W) and `ways`."""
        ways = self.ways(kp_source, kp_driving)
        deformed, _ = self.deformed(self.compressed(volume), ways)
        return _joined(self.heatmaps(kp_source, kp_driving), deformed), ways

    def estimate(self, maps: Tensor, ways: Tensor) -> tuple[Tensor, Tensor]:
        """Return (deformation (B, D, H, W, 3) float32, occlusion (B, 1, H, W)): convolutions and sums alone."""
        wide = self.hourglass(maps)
        return self.deformation(self.choice(wide), ways), self.visible(wide)

    def choice(self, wide: Tensor) -> Tensor:
        """Return the share of each motion in every cell, (B, n_motions, D, H, W) float32."""
        return self.mask(wide).float().softmax(1)

    def visible(self, wide: Tensor) -> Tensor:
        """Return the occlusion (B, 1, H, W) in 0..1: 0 where the source shows nothing of it."""
        return self.occlusion(wide.flatten(1, 2)).sigmoid()

    def deformation(self, choice: Tensor, ways: Tensor) -> Tensor:
        """Return where every cell is taken from (B, D, H, W, 3): the shares add up to 1, so the grid is added once.

        No matrix product: with TF32 switched on it would round the coordinates.
        """
        return self.grid + (choice[..., None] * ways[:, :, None, None, None]).sum(1)

    def parts(self, volume: Tensor, kp_driving: Tensor, kp_source: Tensor) -> DenseMotionParts:
        """Return all that is computed on the way, the results last."""
        ways, compressed = self.ways(kp_source, kp_driving), self.compressed(volume)
        deformed, sparse = self.deformed(compressed, ways)
        heat = self.heatmaps(kp_source, kp_driving)
        maps = _joined(heat, deformed)
        wide = self.hourglass(maps)
        choice = self.choice(wide)
        results = self.deformation(choice, ways), self.visible(wide)
        return DenseMotionParts(compressed, sparse, deformed, heat, maps, wide, choice, *results)

    def forward(self, volume: Tensor, kp_driving: Tensor, kp_source: Tensor) -> tuple[Tensor, Tensor]:
        """Return (deformation (B, D, H, W, 3) float32, occlusion (B, 1, H, W))."""
        return self.estimate(*self.gather(volume, kp_driving, kp_source))


class WarpNetwork(nn.Module):
    """The warping network: dense motion, the sampling, and two convolutions that make the decoder's input."""

    def __init__(self, config: WarpConfig) -> None:
        super().__init__()
        self.config = config
        self.dense_motion_network = DenseMotionNetwork(config)
        flat = config.volume_channels * config.volume_depth
        self.third = ConvNorm(flat, config.out_channels, activation=F.leaky_relu)
        self.fourth = nn.Conv2d(config.out_channels, config.out_channels, 1)

    def motion(self, volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> tuple[Tensor, Tensor]:
        """Return (deformation (B, D, H, W, 3) float32, occlusion (B, 1, H, W)).

        Args:
            volume: (B, volume_channels, D, H, W) of the source.
            kp_source: (B, n_keypoints, 3).
            kp_driving: (B, n_keypoints, 3).

        Raises:
            ValueError: shapes of another model, or different batches.
        """
        cfg = self.config
        size = cfg.volume_size
        check_shape("the feature volume", volume, cfg.volume_channels, cfg.volume_depth, size, size)
        check_shape("source key points", kp_source, cfg.n_keypoints, 3)
        check_shape("driving key points", kp_driving, cfg.n_keypoints, 3)
        if not len(volume) == len(kp_source) == len(kp_driving):
            raise ValueError(
                f"{len(volume)} feature volumes, {len(kp_source)} source and {len(kp_driving)} driving key points: give "
                f"one of each for every frame"
            )
        return self.dense_motion_network(volume, kp_driving, kp_source)

    def project(self, warped: Tensor, occlusion: Tensor) -> Tensor:
        """Return the decoder's input (B, out_channels, H, W) of a warped volume and the occlusion."""
        return self.fourth(self.third(warped.flatten(1, 2))) * occlusion

    def forward(self, volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """Return the decoder's input (B, out_channels, H, W). Arguments as those of `motion`."""
        deformation, occlusion = self.motion(volume, kp_source, kp_driving)
        return self.project(sample_volume(volume, deformation), occlusion)


def sample_volume(volume: Tensor, places: Tensor) -> Tensor:
    """Take cells of volumes (B, C, D, H, W) at `places` (B, d, h, w, 3): trilinear, zeros outside.

    The grid puts cell centres at the ends of -1..1, and the sampling puts the outer edges there: the network was trained
    with this mismatch. Returns (B, C, d, h, w) in the volume's dtype; computed in that of `places`.
    """
    taken = F.grid_sample(
        volume.to(places.dtype), places, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return taken.to(volume.dtype)


def coordinate_grid(depth: int, height: int, width: int) -> Tensor:
    """Return (depth, height, width, 3): x, y, z of every cell, from -1 at the first to 1 at the last."""
    z, y, x = (torch.arange(n, dtype=torch.float32) / (n - 1) * 2 - 1 for n in (depth, height, width))
    return torch.stack(
        [
            x.expand(depth, height, width),
            y[:, None].expand(depth, height, width),
            z[:, None, None].expand(depth, height, width),
        ],
        -1,
    )


def _joined(heat: Tensor, deformed: Tensor) -> Tensor:
    """Heat map and features of each motion side by side, in one channel axis: (B, hourglass_in, D, H, W)."""
    return torch.cat([heat.to(deformed.dtype), deformed], 2).flatten(1, 2)


def _in_planes(resize: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a 2-D operation to every plane of (B, C, D, H, W). The 3-D ones lack halves on the CPU."""
    return resize(x.flatten(1, 2)).unflatten(1, x.shape[1:3])


def _bumps(grid: Tensor, points: Tensor) -> Tensor:
    """Gaussians at `points` (B, K, 3), 1 at the centre: (B, K, D, H, W)."""
    squares = (grid - points[:, :, None, None, None]).square().sum(-1)
    return (squares * (-0.5 / _HEAT_VARIANCE)).exp()
