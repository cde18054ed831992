"""Sizes of Ditto's image networks as frozen dataclasses.

Every size in the networks comes from here: the official model and the embedded tiny one are the same code with other
numbers. What two networks share (key points, the feature volume) is a field of both, and `DittoConfig` refuses a
pair that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.config_checks import (
    MAX_LAYERS,
    check_counts,
    check_sizes,
    from_mapping,
)

SHUFFLE = 2
"""Factor of the pixel shuffle that ends the decoder."""


@dataclass(frozen=True)
class AppearanceConfig:
    """Picture -> feature volume. Each entry of `block_out_channels` after the first halves the side."""

    block_out_channels: tuple[int, ...] = (64, 128, 256)
    volume_channels: int = 32
    volume_depth: int = 16
    n_res_blocks: int = 6

    def __post_init__(self) -> None:
        check_sizes(self, "block_out_channels")
        check_counts(self, "volume_channels", "volume_depth")
        check_counts(self, "n_res_blocks", most=MAX_LAYERS)

    @property
    def shrink(self) -> int:
        """Side of the picture / side of the volume."""
        return 2 ** (len(self.block_out_channels) - 1)


@dataclass(frozen=True)
class MotionConfig:
    """Picture -> pose and key points (ConvNeXt V2). `stem` is the side of the first patches."""

    depths: tuple[int, ...] = (3, 3, 9, 3)
    dims: tuple[int, ...] = (96, 192, 384, 768)
    n_keypoints: int = 21
    n_bins: int = 66
    stem: int = 4

    def __post_init__(self) -> None:
        check_sizes(self, "depths", "dims")
        check_counts(self, "n_keypoints", "n_bins", "stem")
        if len(self.depths) != len(self.dims) or max(self.depths) > MAX_LAYERS:
            raise ValueError(
                f"MotionConfig.depths is {self.depths!r} for {len(self.dims)} dims: give one number of blocks, at most "
                f"{MAX_LAYERS}, for each"
            )

    @property
    def shrink(self) -> int:
        """Side of the picture / side of the last feature map."""
        return self.stem * 2 ** (len(self.dims) - 1)


@dataclass(frozen=True)
class WarpConfig:
    """Volume and key points -> warped features. The hourglass halves the side once for each entry after the first.

    `hourglass_channels[0]` is what its last step up yields; the others are the outputs of the steps down.
    """

    n_keypoints: int = 21
    volume_channels: int = 32
    volume_depth: int = 16
    volume_size: int = 64
    compressed_channels: int = 4
    hourglass_channels: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    out_channels: int = 256
    mask_kernel: int = 7

    def __post_init__(self) -> None:
        check_counts(self, "n_keypoints", "volume_channels", "out_channels", "compressed_channels")
        # a single cell has no place on the grid from -1 to 1
        check_counts(self, "volume_depth", "volume_size", least=2)
        check_counts(self, "mask_kernel", most=15)
        check_sizes(self, "hourglass_channels")
        if self.mask_kernel % 2 == 0:
            raise ValueError(f"WarpConfig.mask_kernel is {self.mask_kernel}: give an odd number")
        if self.volume_size % self.hourglass_shrink:
            raise ValueError(
                f"WarpConfig.volume_size is {self.volume_size}: {len(self.hourglass_channels) - 1} steps of the "
                f"hourglass need a multiple of {self.hourglass_shrink}"
            )

    @property
    def hourglass_shrink(self) -> int:
        """Side of the volume / side of the hourglass's smallest map."""
        return 2 ** (len(self.hourglass_channels) - 1)

    @property
    def n_motions(self) -> int:
        """Motions to choose from in every cell: standing still, and one for each key point."""
        return self.n_keypoints + 1

    @property
    def hourglass_in(self) -> int:
        """Channels that enter the hourglass: a heat map and the compressed features for each motion (110)."""
        return self.n_motions * (self.compressed_channels + 1)

    @property
    def hourglass_out(self) -> int:
        """Channels that leave it: those of the last step up beside those that entered (142)."""
        return self.hourglass_channels[0] + self.hourglass_in


@dataclass(frozen=True)
class DecoderConfig:
    """Warped features -> picture. Each entry of `up_channels` doubles the side, the pixel shuffle once more."""

    in_channels: int = 256
    channels: int = 512
    n_middle: int = 6
    up_channels: tuple[int, ...] = (256, 64)
    hidden_channels: int = 128

    def __post_init__(self) -> None:
        check_counts(self, "in_channels", "channels", "hidden_channels")
        check_counts(self, "n_middle", most=MAX_LAYERS)
        check_sizes(self, "up_channels")

    @property
    def grow(self) -> int:
        """Side of the picture / side of the features."""
        return SHUFFLE * 2 ** len(self.up_channels)


@dataclass(frozen=True)
class StitchConfig:
    """Source and driving key points -> corrected driving key points."""

    n_keypoints: int = 21
    hidden_channels: tuple[int, ...] = (128, 128, 64)

    def __post_init__(self) -> None:
        check_counts(self, "n_keypoints")
        check_sizes(self, "hidden_channels", most_entries=MAX_LAYERS)


@dataclass(frozen=True)
class DittoConfig:
    """The image networks together. `crop_size` is the side of the pictures that enter, in pixels."""

    name: str = "ditto"
    crop_size: int = 256
    appearance: AppearanceConfig = field(default_factory=AppearanceConfig)
    motion: MotionConfig = field(default_factory=MotionConfig)
    warp: WarpConfig = field(default_factory=WarpConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)

    def __post_init__(self) -> None:
        check_counts(self, "crop_size")
        for part, step in (("appearance", self.appearance.shrink), ("motion", self.motion.shrink)):
            if self.crop_size % step:
                raise ValueError(
                    f"DittoConfig.crop_size is {self.crop_size}: {part} needs a multiple of {step}"
                )
        source = "appearance makes"
        wanted = {
            "warp.volume_channels": (self.warp.volume_channels, self.appearance.volume_channels, source),
            "warp.volume_depth": (self.warp.volume_depth, self.appearance.volume_depth, source),
            "warp.volume_size": (self.warp.volume_size, self.crop_size // self.appearance.shrink, source),
            "warp.n_keypoints": (self.warp.n_keypoints, self.motion.n_keypoints, "motion makes"),
            "stitch.n_keypoints": (self.stitch.n_keypoints, self.motion.n_keypoints, "motion makes"),
            "decoder.in_channels": (self.decoder.in_channels, self.warp.out_channels, "warp makes"),
        }
        for name, (value, expected, why) in wanted.items():
            if value != expected:
                raise ValueError(
                    f"DittoConfig: {name} is {value}, but {why} {expected}: the parts do not fit together"
                )

    @property
    def render_size(self) -> int:
        """Side of the pictures that come out (512 for the official model)."""
        return self.warp.volume_size * self.decoder.grow

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; `from_dict` of it gives an equal config."""
        return _lists(asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DittoConfig:
        """Build from the JSON object `to_dict` gives; unknown keys raise ValueError."""
        built = dict(values) if isinstance(values, Mapping) else values
        for key, part in PARTS.items():
            if isinstance(built, dict) and key in built:
                built[key] = from_mapping(part, built[key])
        return from_mapping(cls, built)


PARTS = {
    "appearance": AppearanceConfig,
    "motion": MotionConfig,
    "warp": WarpConfig,
    "decoder": DecoderConfig,
    "stitch": StitchConfig,
}
"""Field of `DittoConfig` -> class of its sizes."""


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lists(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


OFFICIAL = DittoConfig()

EMBEDDED = DittoConfig(
    name="ditto-tiny",
    crop_size=256,
    appearance=AppearanceConfig((16, 32, 48, 64), volume_channels=32, volume_depth=4, n_res_blocks=2),
    motion=MotionConfig(depths=(1, 2, 3, 1), dims=(24, 48, 96, 160)),
    warp=WarpConfig(
        volume_channels=32,
        volume_depth=4,
        volume_size=32,
        compressed_channels=2,
        hourglass_channels=(16, 32, 48, 64),
        out_channels=64,
        mask_kernel=3,
    ),
    decoder=DecoderConfig(in_channels=64, channels=64, n_middle=3, up_channels=(48, 24), hidden_channels=16),
    stitch=StitchConfig(hidden_channels=(64, 64)),
)
"""The tiny model that comes with the pack, for drawn presenters: 256 pixels in and out (tools/README.md)."""
