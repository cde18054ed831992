"""LMDM: the transformer that denoises a window of motion, given speech, emotion, eyes and face shape.

x (B, window, motion_dim) with one time per row; cond (B, window, cond_dim); cond_frame (B, motion_dim), the frame before
the window. float32, as upstream keeps it. Modules are registered in the order of the official
state dict. Every pass runs twice, with and without the condition, as rows of one batch. Source: spec/ditto.md 4.6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config_checks import MAX_LAYERS, check_counts, from_mapping
from .schedule import official_noise_factors

N_TIME_TOKENS = 2
_THETA = 10000.0


@dataclass(frozen=True)
class LMDMConfig:
    """Sizes of the network; the defaults are those of lmdm_v0.4_hubert.

    motion_dim: numbers that describe a frame. cond_dim: numbers that condition one. window: frames of a pass.
    guidance: how far to go from the unconditional prediction towards the conditional one; 1 is no guidance.
    """

    motion_dim: int = 265
    cond_dim: int = 1103
    window: int = 80
    latent_dim: int = 512
    n_heads: int = 8
    ff_dim: int = 1024
    n_layers: int = 8
    n_cond_layers: int = 2
    guidance: float = 2.0

    def __post_init__(self) -> None:
        sizes = [f.name for f in fields(self) if f.name != "guidance"]
        check_counts(self, *sizes)
        check_counts(self, "n_layers", "n_cond_layers", most=MAX_LAYERS)
        if self.latent_dim % (2 * self.n_heads):
            raise ValueError(
                f"LMDMConfig.latent_dim is {self.latent_dim}: {self.n_heads} heads of an even width need a multiple of "
                f"{2 * self.n_heads}"
            )
        if type(self.guidance) not in (int, float) or not 0 <= self.guidance <= 100:
            raise ValueError(f"LMDMConfig.guidance is {self.guidance!r:.40}: give 0 to 100 (upstream 2)")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LMDMConfig:
        """Build from a JSON object; unknown keys raise ValueError."""
        return from_mapping(cls, values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


EMBEDDED = LMDMConfig(
    cond_dim=128 + 79, latent_dim=192, n_heads=6, ff_dim=384, n_layers=4, n_cond_layers=2, guidance=1.0
)
"""The motion network of the embedded engine, on 128 numbers of its own speech encoder."""


class RotaryEmbedding(nn.Module):
    """Turns neighbouring pairs of numbers by position * frequency, over the full width, before heads are split.

    `freqs` stands in official files and is checked against the formula; the tables follow the formula, so that a file
    in halves, or a move to another device, does not change them.
    """

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        freqs = 1.0 / _THETA ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * freqs
        self.register_buffer("freqs", freqs)
        sin = torch.stack((-angles.sin(), angles.sin()), dim=-1).flatten(-2)
        self.register_buffer("cos", angles.cos().repeat_interleave(2, dim=-1), persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, dim) with T up to the length of the tables; position 0 first."""
        # (a, b) -> (a cos - b sin, b cos + a sin) in three kernels: a step of the network is bound by their number.
        swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(x * self.cos[: x.shape[1]], swapped, self.sin[: x.shape[1]])

    def _load_from_state_dict(self, state: Mapping[str, Tensor], prefix: str, *args: Any) -> None:
        given = state.get(prefix + "freqs")
        if given is not None and given.shape == self.freqs.shape and not given.is_meta:
            own = self.freqs.to(given.device)
            if not torch.allclose(given.float(), own, rtol=1e-2, atol=1e-6):  # 1e-6: fp16 has no smaller ones
                raise ValueError(
                    f"{prefix}freqs is not 1 / {_THETA:.0f} ** (2 i / {2 * len(own)}): this checkpoint is of another model family"
                )
        super()._load_from_state_dict(state, prefix, *args)


class Attention(nn.Module):
    """Multi-head attention with one joint input projection; queries and keys may differ from values."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * dim))
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, T, dim), (B, S, dim), (B, S, dim) -> (B, T, dim)."""
        dim = query.shape[-1]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if query is key:
            q, k = F.linear(query, weight[: 2 * dim], bias[: 2 * dim]).chunk(2, dim=-1)
        else:
            q = F.linear(query, weight[:dim], bias[:dim])
            k = F.linear(key, weight[dim : 2 * dim], bias[dim : 2 * dim])
        v = F.linear(value, weight[2 * dim :], bias[2 * dim :])
        q, k, v = (x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for x in (q, k, v))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _FiLM(nn.Module):
    """Scale and shift from the time vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Mish(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, activated: Tensor) -> Tensor:
        """`activated` (B, dim) has passed Mish: the layers share it."""
        scale, shift = self.block[1](activated)[:, None].chunk(2, dim=-1)
        return torch.addcmul(shift, x, 1 + scale)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each pre-normalised and added to its input."""

    def __init__(self, config: LMDMConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        dim = config.latent_dim
        self.self_attn = Attention(dim, config.n_heads)
        self.linear1 = nn.Linear(dim, config.ff_dim)
        self.linear2 = nn.Linear(config.ff_dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        turned = self.rotary(normed)
        x = x + self.self_attn(turned, turned, normed)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, feed-forward; each result is scaled and shifted by the time."""

    def __init__(self, config: LMDMConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        dim = config.latent_dim
        self.self_attn = Attention(dim, config.n_heads)
        self.multihead_attn = Attention(dim, config.n_heads)
        self.linear1 = nn.Linear(dim, config.ff_dim)
        self.linear2 = nn.Linear(config.ff_dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.film1 = _FiLM(dim)
        self.film2 = _FiLM(dim)
        self.film3 = _FiLM(dim)
        self.rotary = rotary

    def forward(self, x: Tensor, memory: Tensor, turned_memory: Tensor, time: Tensor) -> Tensor:
        normed = self.norm1(x)
        turned = self.rotary(normed)
        x = x + self.film1(self.self_attn(turned, turned, normed), time)
        turned = self.rotary(self.norm2(x))
        x = x + self.film2(self.multihead_attn(turned, turned_memory, memory), time)
        return x + self.film3(self.linear2(F.gelu(self.linear1(self.norm3(x)))), time)


class _TimeSinusoid(nn.Module):
    """(B,) -> (B, dim): sines, then cosines; the slowest frequency is 1 / 10000."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        half = dim // 2
        step = -math.log(10000.0) / max(half - 1, 1)
        freqs = torch.exp(torch.arange(half, dtype=torch.float32) * step)
        self.register_buffer("freqs", freqs, persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        phase = time[:, None].to(self.freqs.dtype) * self.freqs
        return torch.cat((phase.sin(), phase.cos()), dim=-1)


class _DecoderStack(nn.Module):
    def __init__(self, layers: list[DecoderLayer]) -> None:
        super().__init__()
        self.stack = nn.ModuleList(layers)


class LMDM(nn.Module):
    """The network. `encode` once a window, `denoise` once a step; `forward` is the official graph, both in one."""

    def __init__(self, config: LMDMConfig | None = None) -> None:
        super().__init__()
        config = config or LMDMConfig()
        self.config = config
        dim = config.latent_dim
        rotary = RotaryEmbedding(dim, config.window + N_TIME_TOKENS)
        self.null_cond_embed = nn.Parameter(torch.empty(1, config.window, dim))
        self.null_cond_hidden = nn.Parameter(torch.empty(1, dim))
        nn.init.normal_(self.null_cond_embed)
        nn.init.normal_(self.null_cond_hidden)
        self.rotary = rotary
        self.time_mlp = nn.Sequential(_TimeSinusoid(dim), nn.Linear(dim, 4 * dim), nn.Mish())
        self.to_time_cond = nn.Sequential(nn.Linear(4 * dim, dim))
        self.to_time_tokens = nn.Sequential(nn.Linear(4 * dim, N_TIME_TOKENS * dim))
        self.norm_cond = nn.LayerNorm(dim)
        self.input_projection = nn.Linear(2 * config.motion_dim, dim)
        self.cond_encoder = nn.Sequential(
            *(EncoderLayer(config, rotary) for _ in range(config.n_cond_layers))
        )
        self.cond_projection = nn.Linear(config.cond_dim, dim)
        self.non_attn_cond_projection = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim)
        )
        self.seqTransDecoder = _DecoderStack([DecoderLayer(config, rotary) for _ in range(config.n_layers)])
        self.final_layer = nn.Linear(dim, config.motion_dim)
        of_x, of_x0 = official_noise_factors()
        self.register_buffer("noise_of_x", of_x, persistent=False)
        self.register_buffer("noise_of_x0", of_x0, persistent=False)

    @property
    def weights_device(self) -> torch.device:
        """Device of the weights. Not called `device`: ComfyUI's ModelPatcher sets that name on what it holds."""
        return self.final_layer.weight.device

    def encode(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Turn the condition of a window into what every step of it shares.

        Args:
            cond: (B, window, cond_dim).

        Returns:
            tokens (B, 2, window, latent_dim) and hidden (B, 2, latent_dim), with the condition and without.

        Raises:
            ValueError: another shape.
        """
        cfg = self.config
        if tuple(cond.shape[1:]) != (cfg.window, cfg.cond_dim):
            raise ValueError(
                f"LMDM needs a condition (batch, {cfg.window}, {cfg.cond_dim}), got {tuple(cond.shape)}: "
                f"it was made for another model, or the window is not padded"
            )
        tokens = self.cond_encoder(self.cond_projection(cond))
        hidden = self.non_attn_cond_projection(tokens.mean(dim=1))
        none = self.null_cond_embed.expand_as(tokens), self.null_cond_hidden.expand_as(hidden)
        return torch.stack((tokens, none[0]), dim=1), torch.stack((hidden, none[1]), dim=1)

    def predictions(
        self, x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor
    ) -> Tensor:
        """x0 with the condition and without it, (B, 2, window, motion_dim); arguments as of `denoise`."""
        self.check(x, cond_frame, time)
        h = self.time_mlp(time)
        time_vector = F.mish(self.to_time_cond(h)[:, None] + hidden).flatten(0, 1)
        time_tokens = self.to_time_tokens(h).unflatten(-1, (1, N_TIME_TOKENS, -1)).expand(-1, 2, -1, -1)
        memory = self.norm_cond(torch.cat((tokens, time_tokens), dim=2)).flatten(0, 1)
        turned_memory = self.rotary(memory)
        frame = cond_frame[:, None].expand(-1, x.shape[1], -1)
        hidden_x = self.input_projection(torch.cat((x, frame), dim=-1))
        hidden_x = hidden_x[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
        for layer in self.seqTransDecoder.stack:
            hidden_x = layer(hidden_x, memory, turned_memory, time_vector)
        return self.final_layer(hidden_x).unflatten(0, (-1, 2))

    def denoise(self, x: Tensor, cond_frame: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor) -> Tensor:
        """Predict the clean motion.

        Args:
            x: noisy motion (B, window, motion_dim).
            cond_frame: (B, motion_dim), the frame that the window follows.
            tokens, hidden: from `encode`.
            time: (B,) training step of each row, 0..999, whole or float32.

        Returns:
            x0 (B, window, motion_dim), with guidance.

        Raises:
            ValueError: shapes of another model, or one time for several rows.
        """
        both = self.predictions(x, cond_frame, tokens, hidden, time)
        conditional, unconditional = both.unbind(dim=1)
        return unconditional + self.config.guidance * (conditional - unconditional)

    def forward(
        self, x: Tensor, cond_frame: Tensor, cond: Tensor, time_cond: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One guided step under the names of the official graph: (pred_noise, x_start), both of x's shape."""
        x_start = self.denoise(x, cond_frame, *self.encode(cond), time_cond)
        at = time_cond.long()
        pred_noise = self.noise_of_x[at, None, None] * x - x_start / self.noise_of_x0[at, None, None]
        return pred_noise, x_start

    def check(self, x: Tensor, cond_frame: Tensor, time: Tensor) -> None:
        """ValueError for shapes that `denoise` does not take."""
        cfg = self.config
        if tuple(x.shape[1:]) != (cfg.window, cfg.motion_dim):
            raise ValueError(
                f"LMDM needs motion (batch, {cfg.window}, {cfg.motion_dim}), got {tuple(x.shape)}: "
                f"it was made for another model"
            )
        if cond_frame.shape != (x.shape[0], cfg.motion_dim) or time.shape != (x.shape[0],):
            raise ValueError(
                f"LMDM needs a condition frame ({x.shape[0]}, {cfg.motion_dim}) and a time ({x.shape[0]},), got "
                f"{tuple(cond_frame.shape)} and {tuple(time.shape)}: give one for every row of the batch"
            )


def load_lmdm(path: Path, config: LMDMConfig | None = None) -> LMDM:
    """Return the network with the weights of lmdm_v0.4_hubert.pth, or of the same re-saved, for inference on the CPU.

    float32 whatever the file holds.

    Raises:
        ValueError: the file is unreadable or does not fit the config; names the file and the tensors.
    """
    from ..core.checkpoint import load_state
    from ..core.weights import load_strict, on_meta

    net = on_meta(LMDM, config or LMDMConfig())
    # Copies even where the dtype fits: views into a mapped file are unaligned and change results in the last bit.
    state = {key: value.to(torch.float32, copy=True) for key, value in load_state(path).items()}
    try:
        load_strict(net, state, str(path))
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    return net.eval().requires_grad_(False)
