"""LMDM with the weights and inputs of Ditto's golden recipe (tests/golden/ditto/recipe.json)."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.musetalk.model import load_strict, on_meta

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"
GAIN = json.loads((GOLDEN / "recipe.json").read_text())["gains"]["lmdm"]
REL_L2_FP32 = 5e-5


def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


def described(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def seeded(name: str, *shape: int) -> Tensor:
    """One randn call of a generator seeded by the name."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator)


def lmdm_weight(key: str, shape: tuple[int, ...]) -> Tensor:
    last = key.rpartition(".")[2]
    if last == "freqs":
        return 1.0 / 10000.0 ** (2 * torch.arange(shape[0], dtype=torch.float32) / (2 * shape[0]))
    noise = seeded(key, *shape)
    if last.startswith("null_cond"):
        return noise * 0.5
    if last in ("bias", "in_proj_bias"):
        return noise * 0.02
    if len(shape) == 1:
        return 1 + 0.02 * noise
    return noise * (GAIN / math.sqrt(math.prod(shape[1:])))


def build_lmdm() -> LMDM:
    net = on_meta(LMDM, LMDMConfig())
    load_strict(net, {k: lmdm_weight(k, tuple(v.shape)) for k, v in net.state_dict().items()}, "recipe")
    return net.eval().requires_grad_(False)


def inputs(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, 80, 265), cond_frame (B, 265), cond (B, 80, 1103)."""
    rows = range(batch)
    return (
        torch.stack([seeded(f"input.x.{b}", 80, 265) for b in rows]),
        torch.stack([0.5 * seeded(f"input.cond_frame.{b}", 265) for b in rows]),
        torch.stack([seeded(f"input.cond.{b}", 80, 1103) for b in rows]),
    )


def rel_l2(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return float((actual.double() - expected.double()).norm() / expected.double().norm())
