"""Weights of the golden recipe (README section 1): every tensor follows from its name and shape."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from talkinghead.nodes.musetalk.config import MuseTalkConfig, UNetConfig, VAEConfig
from talkinghead.nodes.musetalk.model import load_strict, on_meta
from talkinghead.nodes.musetalk.parity_recipe import recipe_tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "musetalk"
ATOL_FP32 = 5e-5
ATOL_LOG_MEL = 2e-4


def recipe_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Recipe weights for every tensor of the module, in its order."""
    return {key: recipe_tensor(key, value.shape) for key, value in module.state_dict().items()}


def manifest(name: str) -> dict:
    return json.loads((GOLDEN / f"manifest_{name}.json").read_text())


def golden(name: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


def golden_metadata(name: str) -> dict[str, str]:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        return file.metadata()


def face256(k: int) -> torch.Tensor:
    """The synthetic face of README section 3 as uint8 RGB (256, 256, 3)."""
    y, x = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    distance = (x - 128) ** 2 + (y - 128) ** 2
    blue = (255 - distance // 160).clamp(0, 255)
    green = ((3 * x + 2 * y + 40 * k) // 4) % 256
    red = (120 * ((x // 8 + y // 8) % 2) + 60 + x // 4).clamp(0, 255)
    return torch.stack([red, green, blue], dim=-1).to(torch.uint8)


def build(cls: type[torch.nn.Module], config) -> torch.nn.Module:
    """A network with recipe weights, ready for inference."""
    module = on_meta(cls, config)
    load_strict(module, recipe_state(module), "recipe")
    return module.eval().requires_grad_(False)


def reduced_config() -> MuseTalkConfig:
    """The official model with the narrow UNet and VAE of the fast goldens."""
    overrides = manifest("vae")["reduced_config_overrides"]
    return MuseTalkConfig(
        unet=UNetConfig.from_dict(manifest("unet_reduced")["config"]),
        vae=VAEConfig.from_dict({**manifest("vae")["config"], **overrides}),
    )


def max_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    assert actual.shape == expected.shape
    return (actual.double() - expected.double()).abs().max().item()


def assert_half_precision(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """README section 2: largest and rms error of a network run in float16 or bfloat16 on a CPU."""
    worst, rms = (3e-2, 4e-3) if dtype == torch.float16 else (0.2, 3e-2)
    error = actual.double() - expected.double()
    assert error.abs().max().item() <= worst
    assert error.square().mean().sqrt().item() <= rms
