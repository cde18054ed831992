"""SPADE decoder: warped features -> picture; and the folding of the spectral norm of the official weights.

Features (B, in_channels, s, s); pictures (B, 3, grow * s, grow * s) RGB in 0..1: official (256, 64, 64) -> (3, 512,
512). The network here holds plain weights. Official files hold `weight_orig` with the vectors of the old spectral-norm
hook instead (`official_shapes`, `fold_spectral_norm`). Source: spec/ditto.md 4.4; SPADE: Park et al. 2019, arXiv
1903.07291.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import SHUFFLE, DecoderConfig

SLOPE = 0.2
_NORMALISED = ("conv_0", "conv_1", "conv_s")
_ORIG, _LEFT, _RIGHT = ".weight_orig", ".weight_u", ".weight_v"


class _Spade(nn.Module):
    """Instance norm (eps 1e-5) with scale and shift from the condition map, which has the size of `x`."""

    def __init__(self, channels: int, condition: int, hidden: int) -> None:
        super().__init__()
        self.mlp_shared = nn.Sequential(nn.Conv2d(condition, hidden, 3, padding=1), nn.ReLU())
        self.mlp_gamma = nn.Conv2d(hidden, channels, 3, padding=1)
        self.mlp_beta = nn.Conv2d(hidden, channels, 3, padding=1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden = self.mlp_shared(condition)
        return F.instance_norm(x) * (1 + self.mlp_gamma(hidden)) + self.mlp_beta(hidden)


class _SpadeBlock(nn.Module):
    """Two convolutions, each after SPADE and leaky ReLU, and a skip, which is projected where the channels change."""

    def __init__(self, c_in: int, c_out: int, condition: int, hidden: int) -> None:
        super().__init__()
        mid = min(c_in, c_out)
        self.conv_0 = nn.Conv2d(c_in, mid, 3, padding=1)
        self.conv_1 = nn.Conv2d(mid, c_out, 3, padding=1)
        self.conv_s = nn.Conv2d(c_in, c_out, 1, bias=False) if c_in != c_out else None
        self.norm_0 = _Spade(c_in, condition, hidden)
        self.norm_1 = _Spade(mid, condition, hidden)
        self.norm_s = _Spade(c_in, condition, hidden) if c_in != c_out else None

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden = self.conv_0(F.leaky_relu(self.norm_0(x, condition), SLOPE))
        hidden = self.conv_1(F.leaky_relu(self.norm_1(hidden, condition), SLOPE))
        skip = x if self.conv_s is None else self.conv_s(self.norm_s(x, condition))
        return skip + hidden


class SpadeDecoder(nn.Module):
    """The decoder. The condition of every SPADE is the decoder's own input, repeated to the size at hand."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        c, condition, hidden = config.channels, config.in_channels, config.hidden_channels
        self.fc = nn.Conv2d(condition, c, 3, padding=1)
        for i in range(config.n_middle):
            setattr(self, f"G_middle_{i}", _SpadeBlock(c, c, condition, hidden))
        for i, c_out in enumerate(config.up_channels):
            setattr(self, f"up_{i}", _SpadeBlock(c, c_out, condition, hidden))
            c = c_out
        self.conv_img = nn.Sequential(
            nn.Conv2d(c, 3 * SHUFFLE * SHUFFLE, 3, padding=1), nn.PixelShuffle(SHUFFLE)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return pictures (B, 3, grow * s, grow * s) in 0..1. ValueError for features of another model."""
        if features.ndim != 4 or features.shape[1] != self.config.in_channels:
            raise ValueError(
                f"the decoder needs features (batch, {self.config.in_channels}, H, W), got {tuple(features.shape)}"
            )
        condition = features
        x = self.fc(features)
        for i in range(self.config.n_middle):
            x = getattr(self, f"G_middle_{i}")(x, condition)
        for i in range(len(self.config.up_channels)):
            x, condition = (F.interpolate(v, scale_factor=2.0, mode="nearest") for v in (x, condition))
            x = getattr(self, f"up_{i}")(x, condition)
        return self.conv_img(F.leaky_relu(x, SLOPE)).sigmoid()


def official_shapes(decoder: SpadeDecoder) -> dict[str, tuple[int, ...]]:
    """Return key -> shape of the official file for this decoder, in the file's order: spectral norm not folded."""
    own = {key: tuple(value.shape) for key, value in decoder.state_dict().items()}
    shapes = {}
    for key, shape in own.items():
        module, _, leaf = key.rpartition(".")
        if not module.endswith(_NORMALISED):
            shapes[key] = shape
        elif leaf == "weight":  # the hook removed it and appended its three tensors
            if (bias := f"{module}.bias") in own:
                shapes[bias] = own[bias]
            shapes[module + _ORIG] = shape
            shapes[module + _LEFT] = shape[:1]
            shapes[module + _RIGHT] = (shape[1] * shape[2] * shape[3],)
    return shapes


def is_folded(state: Mapping[str, Tensor]) -> bool:
    """Return whether the state dict holds plain weights."""
    return not any(key.endswith(_ORIG) for key in state)


def fold_spectral_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn a decoder's official state dict into plain weights: weight_orig / (u . W v), with the stored u and v.

    No power iteration: the stored vectors are those the weights were trained with (one more changes the picture by 12 %
    with untrained vectors). Other tensors are shared, not copied; the divisor is computed in double precision.

    Raises:
        ValueError: u or v is missing, is of another size, or gives a divisor of 0; names the key.
    """
    out = {}
    for key, value in state.items():
        if key.endswith((_LEFT, _RIGHT)):
            continue
        if not key.endswith(_ORIG):
            out[key] = value
            continue
        module = key.removesuffix(_ORIG)
        missing = [module + part for part in (_LEFT, _RIGHT) if module + part not in state]
        if missing:
            raise ValueError(
                f"{key} needs {' and '.join(missing)} beside it: the file is incomplete, get it again"
            )
        out[f"{module}.weight"] = _folded(value, state[module + _LEFT], state[module + _RIGHT], key)
    return out


def _folded(weight: Tensor, u: Tensor, v: Tensor, key: str) -> Tensor:
    if weight.ndim < 2 or u.numel() != weight.shape[0] or v.numel() * weight.shape[0] != weight.numel():
        raise ValueError(
            f"{key} {tuple(weight.shape)} and its vectors {tuple(u.shape)} and {tuple(v.shape)} do not fit together: "
            f"the file is of another model"
        )
    norm = torch.dot(u.flatten().double(), weight.flatten(1).double() @ v.flatten().double())
    if not norm.isfinite() or norm == 0:
        raise ValueError(
            f"{key} has the spectral norm {norm.item():g}, which cannot be divided by: get the file again"
        )
    return (weight.double() / norm).to(weight.dtype)
