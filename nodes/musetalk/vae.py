"""Autoencoder of Stable Diffusion 1.x shape, and the renaming of its older checkpoint formats.

Images (B, 3, H, W) in [-1, 1]; latents (B, latent_channels, H / 2**(levels-1), ...), NOT yet multiplied by
`scaling_factor`. Modules are registered in the order of the official state dict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from .config import VAEConfig
from .layers import Downsample, ResnetBlock, Upsample, attend, to_image, to_tokens

_EPS = 1e-6
_LOGVAR_RANGE = (-30.0, 20.0)


class _Attention(nn.Module):
    """Single-head attention over all pixels, with a skip."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, _EPS)
        self.to_q = nn.Linear(channels, channels)
        self.to_k = nn.Linear(channels, channels)
        self.to_v = nn.Linear(channels, channels)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = to_tokens(self.group_norm(x))
        mixed = attend(self.to_q(tokens), self.to_k(tokens), self.to_v(tokens), n_heads=1)
        return x + to_image(self.to_out[0](mixed), *x.shape[2:])


class _MidBlock(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([_Attention(channels, groups)])
        self.resnets = nn.ModuleList(ResnetBlock(channels, channels, groups, _EPS) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class _Level(nn.Module):
    """Residual blocks of one resolution and the step to the next one; `resize` is None at the end."""

    def __init__(self, c_in: int, c_out: int, n_layers: int, groups: int, resize: str | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            ResnetBlock(c_in if index == 0 else c_out, c_out, groups, _EPS) for index in range(n_layers)
        )
        if resize == "down":
            self.downsamplers = nn.ModuleList([Downsample(c_out, corner_pad=True)])
        elif resize == "up":
            self.upsamplers = nn.ModuleList([Upsample(c_out)])
        self.resize = resize

    def forward(self, x: Tensor) -> Tensor:
        for block in self.resnets:
            x = block(x)
        if self.resize is None:
            return x
        return self.downsamplers[0](x) if self.resize == "down" else self.upsamplers[0](x)


def _levels(channels: tuple[int, ...], n_layers: int, groups: int, resize: str) -> nn.ModuleList:
    last = len(channels) - 1
    return nn.ModuleList(
        _Level(channels[max(i - 1, 0)], c, n_layers, groups, resize if i < last else None)
        for i, c in enumerate(channels)
    )


class Encoder(nn.Module):
    """Image -> stacked mean and log-variance, before `quant_conv`."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        channels, groups = config.block_out_channels, config.norm_num_groups
        self.conv_in = nn.Conv2d(config.in_channels, channels[0], 3, padding=1)
        self.down_blocks = _levels(channels, config.layers_per_block, groups, "down")
        self.mid_block = _MidBlock(channels[-1], groups)
        self.conv_norm_out = nn.GroupNorm(groups, channels[-1], _EPS)
        self.conv_out = nn.Conv2d(channels[-1], 2 * config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x)), inplace=True))


class Decoder(nn.Module):
    """Latent after `post_quant_conv` -> image."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        channels, groups = config.block_out_channels[::-1], config.norm_num_groups
        self.conv_in = nn.Conv2d(config.latent_channels, channels[0], 3, padding=1)
        self.up_blocks = _levels(channels, config.layers_per_block + 1, groups, "up")
        self.mid_block = _MidBlock(channels[0], groups)
        self.conv_norm_out = nn.GroupNorm(groups, channels[-1], _EPS)
        self.conv_out = nn.Conv2d(channels[-1], config.out_channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(z))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x), inplace=True))


class AutoencoderKL(nn.Module):
    """The autoencoder; state-dict keys are the modern ones (see `normalize_vae_keys` for the others)."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        latent = config.latent_channels
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quant_conv = nn.Conv2d(2 * latent, 2 * latent, 1)
        self.post_quant_conv = nn.Conv2d(latent, latent, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and clamped log-variance of the latent, each (B, latent_channels, h, w).

        Args:
            x: (B, 3, H, W) in [-1, 1], sides multiples of 2 ** (levels - 1).

        Raises:
            ValueError: any other shape.
        """
        step = 2 ** (self.config.n_levels - 1)
        if x.ndim != 4 or x.shape[1] != self.config.in_channels or x.shape[2] % step or x.shape[3] % step:
            raise ValueError(
                f"VAE needs an image (batch, {self.config.in_channels}, H, W) with sides that divide by {step}, "
                f"got {tuple(x.shape)}"
            )
        mean, logvar = self.quant_conv(self.encoder(x)).chunk(2, dim=1)
        return mean, logvar.clamp(*_LOGVAR_RANGE)

    def decode(self, z: Tensor) -> Tensor:
        """Image (B, 3, H, W), about [-1, 1] and not clamped, of unscaled latents (B, latent_channels, h, w)."""
        if z.ndim != 4 or z.shape[1] != self.config.latent_channels:
            raise ValueError(
                f"VAE needs latents (batch, {self.config.latent_channels}, h, w), got {tuple(z.shape)}"
            )
        return self.decoder(self.post_quant_conv(z))

    def forward(self, x: Tensor) -> Tensor:
        """Round trip through the posterior mean."""
        return self.decode(self.encode(x)[0])


_LDM_PREFIX = "first_stage_model."
_LDM_MARK = re.compile(r"^(encoder\.down|decoder\.up|(en|de)coder\.mid)\.")
_LDM_PARTS = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")
_LDM_RULES = [
    (r"^encoder\.down\.", "encoder.down_blocks."),
    (r"\.block\.(\d+)\.", r".resnets.\1."),
    (r"\.(down|up)sample\.conv\.", r".\1samplers.0.conv."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.mid\.attn_1\.norm\.", ".mid_block.attentions.0.group_norm."),
    (r"\.mid\.attn_1\.([qkv])\.", r".mid_block.attentions.0.to_\1."),
    (r"\.mid\.attn_1\.proj_out\.", ".mid_block.attentions.0.to_out.0."),
    (r"coder\.norm_out\.", "coder.conv_norm_out."),
]
_LEGACY_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_LEGACY_RULE = re.compile(r"(\.mid_block\.attentions\.0)\.(query|key|value|proj_attn)\.")
_ATTENTION_WEIGHT = re.compile(r"\.mid_block\.attentions\.0\.to_(q|k|v|out\.0)\.weight$")


def _from_ldm(key: str, n_levels: int) -> str:
    for pattern, new in _LDM_RULES:
        key = re.sub(pattern, new, key)
    key = re.sub(r"\.mid\.block_(\d+)\.", lambda m: f".mid_block.resnets.{int(m[1]) - 1}.", key)
    # LDM numbers the decoder's levels by resolution, highest first; the modern names follow the data flow.
    return re.sub(r"^decoder\.up\.(\d+)\.", lambda m: f"decoder.up_blocks.{n_levels - 1 - int(m[1])}.", key)


def normalize_vae_keys(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a VAE state dict to the modern keys; tensors are shared, not copied.

    Known are the modern names (unchanged), the older attention names query/key/value/proj_attn, and the LDM layout
    with or without `first_stage_model.`. From an LDM file everything that is not part of the VAE is dropped;
    unknown names in the other layouts stay, so that a strict load reports them.
    """
    state = dict(state_dict)
    if any(k.startswith(_LDM_PREFIX) for k in state):
        state = {k.removeprefix(_LDM_PREFIX): v for k, v in state.items() if k.startswith(_LDM_PREFIX)}
    if any(_LDM_MARK.match(k) for k in state):
        levels = [int(m[1]) for k in state if (m := re.match(r"decoder\.up\.(\d+)\.", k))]
        n_levels = max(levels, default=0) + 1
        state = {_from_ldm(k, n_levels): v for k, v in state.items() if k.startswith(_LDM_PARTS)}
    out = {}
    for key, value in state.items():
        key = _LEGACY_RULE.sub(lambda m: f"{m[1]}.{_LEGACY_NAMES[m[2]]}.", key)
        if _ATTENTION_WEIGHT.search(key) and value.ndim == 4:
            value = value.flatten(1)
        out[key] = value
    return out
