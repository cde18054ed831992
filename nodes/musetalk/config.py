"""Sizes of the MuseTalk networks as frozen dataclasses.

Field names of the UNet and the VAE are those of the published config files, so `musetalk.json` and the VAE's
`config.json` can be passed to `from_dict` as they are. Every size in the networks comes from here; the official
model and the embedded tiny one are the same code with other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..core.config_checks import (
    MAX_COUNT,
    MAX_LAYERS,
    MAX_LEVELS,
    check_counts,
    check_divides,
    check_fixed,
    check_positive,
    from_mapping,
)  # fmt: skip

HOP_SAMPLES = 160  # log-mel hop at 16 kHz; the encoder halves the rate once more, so one row lasts 20 ms

_MAX_POSITIONS = 1 << 24  # numbers in the table of token positions; the official model has 19,200

_DOWN_TYPES = ("DownBlock2D", "CrossAttnDownBlock2D")
_UP_TYPES = ("UpBlock2D", "CrossAttnUpBlock2D")


def _check_channels(owner: Any) -> None:
    channels = owner.block_out_channels
    is_list = isinstance(channels, tuple) and 1 <= len(channels) <= MAX_LEVELS
    if not is_list or any(type(c) is not int or not 1 <= c <= MAX_COUNT for c in channels):
        raise ValueError(
            f"{type(owner).__name__}.block_out_channels is {channels!r:.200}: give one positive whole number a level, at "
            f"most {MAX_COUNT}, for at most {MAX_LEVELS} levels"
        )
    check_divides(owner, "block_out_channels", "norm_num_groups")


@dataclass(frozen=True)
class WhisperConfig:
    """Audio encoder. One row of its output lasts 20 ms; a piece has `max_source_positions` rows."""

    n_mels: int = 80
    d_model: int = 384
    encoder_layers: int = 4
    encoder_attention_heads: int = 6
    encoder_ffn_dim: int = 1536
    max_source_positions: int = 1500

    def __post_init__(self) -> None:
        check_counts(self, *(f.name for f in fields(self)))
        check_counts(self, "encoder_layers", most=MAX_LAYERS)
        check_divides(self, "d_model", "encoder_attention_heads")
        if self.d_model % 2:
            raise ValueError(
                f"WhisperConfig.d_model is {self.d_model}: sine/cosine pairs need an even number"
            )

    @property
    def n_states(self) -> int:
        """States kept per row: the embedding and the output of every layer."""
        return self.encoder_layers + 1

    @property
    def piece_samples(self) -> int:
        """Samples at 16 kHz that fill one piece (480,000 = 30 s for the official encoder)."""
        return 2 * self.max_source_positions * HOP_SAMPLES

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WhisperConfig:
        """Build from a JSON object; unknown keys raise ValueError."""
        return from_mapping(cls, values)


@dataclass(frozen=True)
class UNetConfig:
    """Conditional UNet. `attention_head_dim` is the NUMBER of heads, a misnomer kept from the file format."""

    in_channels: int = 8
    out_channels: int = 4
    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)
    down_block_types: tuple[str, ...] = ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",)
    up_block_types: tuple[str, ...] = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3
    layers_per_block: int = 2
    norm_num_groups: int = 32
    norm_eps: float = 1e-5
    cross_attention_dim: int = 384
    attention_head_dim: int = 8
    flip_sin_to_cos: bool = True
    freq_shift: float = 0
    sample_size: int = 64  # nominal, never used
    act_fn: str = "silu"
    center_input_sample: bool = False
    downsample_padding: int = 1
    mid_block_scale_factor: float = 1

    def __post_init__(self) -> None:
        check_counts(self, "layers_per_block", most=MAX_LAYERS)
        check_counts(self, "in_channels", "out_channels", "norm_num_groups")
        check_counts(self, "cross_attention_dim", "attention_head_dim")
        _check_channels(self)
        check_positive(self, "norm_eps")
        check_divides(self, "block_out_channels", "attention_head_dim")
        check_fixed(self, act_fn="silu", center_input_sample=False)
        check_fixed(self, downsample_padding=1, mid_block_scale_factor=1)
        if type(self.freq_shift) not in (int, float) or not 0 <= self.freq_shift <= 1:
            raise ValueError(f"UNetConfig.freq_shift is {self.freq_shift!r:.40}: give 0 to 1 (upstream 0)")
        for name, allowed in (("down_block_types", _DOWN_TYPES), ("up_block_types", _UP_TYPES)):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or len(kinds) != self.n_levels or not set(kinds) <= set(allowed):
                raise ValueError(
                    f"UNetConfig.{name} is {kinds!r}: give one of {', '.join(allowed)} for each of the "
                    f"{self.n_levels} entries of block_out_channels"
                )

    @property
    def n_levels(self) -> int:
        """Resolutions the network works at; the input side must be a multiple of 2 ** (n_levels - 1)."""
        return len(self.block_out_channels)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UNetConfig:
        """Build from `musetalk.json` or our own section; keys starting with `_` are file metadata and ignored."""
        return from_mapping(cls, values)


@dataclass(frozen=True)
class VAEConfig:
    """Autoencoder. Images are in [-1, 1]; latents are multiplied by `scaling_factor` outside the VAE."""

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 4
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    layers_per_block: int = 2
    norm_num_groups: int = 32
    scaling_factor: float = 0.18215
    sample_size: int = 256  # nominal, never used
    act_fn: str = "silu"

    def __post_init__(self) -> None:
        check_counts(self, "layers_per_block", most=MAX_LAYERS)
        check_counts(self, "latent_channels", "norm_num_groups")
        _check_channels(self)
        check_fixed(self, in_channels=3, out_channels=3, act_fn="silu")
        check_positive(self, "scaling_factor")

    @property
    def n_levels(self) -> int:
        """Resolutions the network works at; an image side shrinks by 2 ** (n_levels - 1)."""
        return len(self.block_out_channels)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VAEConfig:
        """Build from the VAE's `config.json` or our own section; block type lists carry no choice and are skipped."""
        return from_mapping(cls, values, ignored=("down_block_types", "up_block_types"))


@dataclass(frozen=True)
class MuseTalkConfig:
    """The whole model. `crop_size` in pixels; `window_left/right` count video frames of audio around a frame."""

    name: str = "musetalk"
    crop_size: int = 256
    whisper: WhisperConfig = field(default_factory=WhisperConfig)
    unet: UNetConfig = field(default_factory=UNetConfig)
    vae: VAEConfig = field(default_factory=VAEConfig)
    window_left: int = 2
    window_right: int = 2
    masked_fraction: float = 0.5

    def __post_init__(self) -> None:
        check_counts(self, "crop_size")
        check_counts(self, "window_left", "window_right", least=0)
        check_positive(self, "masked_fraction")
        if self.n_tokens * self.whisper.d_model > _MAX_POSITIONS:
            raise ValueError(
                f"MuseTalkConfig: {self.n_tokens} audio tokens of {self.whisper.d_model} numbers a frame are too many: "
                f"make the windows or the encoder smaller"
            )
        step = 2 ** (self.vae.n_levels + self.unet.n_levels - 2)
        if self.crop_size % step:
            raise ValueError(
                f"MuseTalkConfig.crop_size is {self.crop_size}: {self.vae.n_levels} VAE levels and "
                f"{self.unet.n_levels} UNet levels need a multiple of {step}"
            )
        if not 0 < self.masked_from_row < self.crop_size:
            raise ValueError(
                f"MuseTalkConfig.masked_fraction is {self.masked_fraction!r}, it must leave and black out at "
                f"least one row of {self.crop_size}: give a share between 0 and 1 (upstream 0.5)"
            )
        wanted = {
            "unet.in_channels": (
                self.unet.in_channels,
                2 * self.vae.latent_channels,
                "twice vae.latent_channels",
            ),
            "unet.out_channels": (self.unet.out_channels, self.vae.latent_channels, "vae.latent_channels"),
            "unet.cross_attention_dim": (
                self.unet.cross_attention_dim,
                self.whisper.d_model,
                "whisper.d_model",
            ),
        }
        for name, (value, expected, why) in wanted.items():
            if value != expected:
                raise ValueError(
                    f"{name} is {value}, it must equal {why} = {expected}: the parts do not fit together"
                )

    @property
    def latent_size(self) -> int:
        """Side of the latent (32 for the official model)."""
        return self.crop_size // 2 ** (self.vae.n_levels - 1)

    @property
    def latent_channels(self) -> int:
        """Channels of one latent; the UNet takes two of them stacked."""
        return self.vae.latent_channels

    @property
    def n_states(self) -> int:
        """Encoder states per audio row (5 for the official model)."""
        return self.whisper.n_states

    @property
    def window_rows(self) -> int:
        """Audio rows of 20 ms a frame sees (10 for the official model)."""
        return 2 * (self.window_left + self.window_right + 1)

    @property
    def n_tokens(self) -> int:
        """Cross-attention tokens a frame gets, row-major over (row, state) (50 for the official model)."""
        return self.window_rows * self.n_states

    @property
    def masked_from_row(self) -> int:
        """First crop row that is blacked out for the masked latent."""
        return self.crop_size - round(self.crop_size * self.masked_fraction)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; `from_dict` of it gives an equal config."""
        return _lists(asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MuseTalkConfig:
        """Build from our `config.json`, or from upstream's `musetalk.json` (the UNet alone; the rest is official).

        Raises:
            ValueError: unknown keys (all are named) or values that do not fit, with what to change.
        """
        if isinstance(values, Mapping) and "block_out_channels" in values:
            return cls(unet=UNetConfig.from_dict(values))
        parts = {"whisper": WhisperConfig, "unet": UNetConfig, "vae": VAEConfig}
        built = dict(values) if isinstance(values, Mapping) else values
        for key, part in parts.items():
            if isinstance(built, dict) and key in built:
                built[key] = part.from_dict(built[key])
        return from_mapping(cls, built)


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lists(v) for k, v in value.items()}
    return [_lists(v) for v in value] if isinstance(value, (tuple, list)) else value


OFFICIAL = MuseTalkConfig()

EMBEDDED = MuseTalkConfig(
    name="musetalk-tiny",
    crop_size=128,
    whisper=WhisperConfig(d_model=128, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=512),
    unet=UNetConfig(
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=128,
        attention_head_dim=4,
    ),
    vae=VAEConfig(block_out_channels=(16, 24, 48, 64), layers_per_block=1, norm_num_groups=8),
)
