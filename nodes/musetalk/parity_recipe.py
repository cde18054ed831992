"""What the goldens are made of: weights and pictures that follow from names and integers, and the files themselves.

Weights need no file: every tensor is seeded by the crc32 of its name (README of the goldens, section 1). Pictures are BGR
uint8 (H, W, 3) as upstream has them (section 3).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..core.parity_measure import Tolerance
from .config import OFFICIAL, MuseTalkConfig, UNetConfig
from .model import MuseTalkNets, build_nets, load_strict, on_meta

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_LOW_PRECISION = {"fp16": Tolerance(3e-2, rms=4e-3), "bf16": Tolerance(0.2, rms=3e-2)}
_FP32_CPU, _FP32_OTHER = Tolerance(5e-5), Tolerance(2e-4)
_REDUCED = {"block_out_channels": (32, 64, 128, 128), "norm_num_groups": 8}


def recipe_tensor(key: str, shape: tuple[int, ...] | list[int]) -> Tensor:
    """Return the weight `key` of the recipe, float32 on the CPU (int64 0 for a batch-norm counter)."""
    if key.endswith("num_batches_tracked"):
        return torch.zeros(tuple(shape), dtype=torch.int64)
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(key.encode("utf-8")))
    noise = torch.randn(tuple(shape), generator=generator, dtype=torch.float32)
    if key.endswith("running_mean"):
        return noise.mul_(0.02)
    if key.endswith("running_var"):
        return noise.abs_().mul_(0.02).add_(1)
    if len(shape) >= 2:
        return noise.div_(math.sqrt(math.prod(shape[1:])))
    return noise.mul_(0.02).add_(1) if key.endswith("weight") else noise.mul_(0.02)


def recipe_network(cls: type[nn.Module], config: object, dtype: torch.dtype, device: str) -> nn.Module:
    """Return `cls(config)` with the recipe's weights, ready for inference."""
    module = on_meta(cls, config)
    state = {}
    for key, value in module.state_dict().items():
        weight = recipe_tensor(key, value.shape)
        state[key] = weight.to(dtype) if weight.is_floating_point() else weight
    load_strict(module, state, "the recipe's weights")
    return _laid_out(module.eval().requires_grad_(False), dtype, device)


def recipe_nets(config: MuseTalkConfig, dtype: torch.dtype, device: str) -> MuseTalkNets:
    """Return the three networks as one model; the seeds are those of the names without `unet.` and so on."""
    described = on_meta(MuseTalkNets, config).state_dict()
    state = {key: recipe_tensor(key.partition(".")[2], value.shape) for key, value in described.items()}
    return _laid_out(build_nets(config, state, "the recipe's weights", dtype), dtype, device)


def _laid_out(module: nn.Module, dtype: torch.dtype, device: str) -> nn.Module:
    """`module` on the device. A CPU convolves halves ten times as fast in channels_last order."""
    if dtype != torch.float32 and torch.device(device).type == "cpu":
        module = module.to(memory_format=torch.channels_last)
    return module.to(device)


def synthetic_frame(height: int = 360, width: int = 640, k: int = 0) -> np.ndarray:
    """Return frame(h, w, k): colour ramps under a checkerboard."""
    y, x = np.mgrid[0:height, 0:width]
    check = 40 * ((x // 16 + y // 16) % 2)
    blue = (x * 215 // (width - 1) + check * (k % 2) + 7 * k) % 256
    green = (y * 215 // (height - 1) + check + 13 * k) % 256
    red = ((x + y) * 215 // (width + height - 2) + check * ((k + 1) % 2) + 29 * k) % 256
    return np.stack([blue, green, red], -1).astype(np.uint8)


def synthetic_face(k: int = 0) -> np.ndarray:
    """Return face256(k), (256, 256, 3)."""
    y, x = np.mgrid[0:256, 0:256]
    blue = np.clip(255 - ((x - 128) ** 2 + (y - 128) ** 2) // 160, 0, 255)
    green = ((3 * x + 2 * y + 40 * k) // 4) % 256
    red = np.clip(120 * ((x // 8 + y // 8) % 2) + 60 + x // 4, 0, 255)
    return np.stack([blue, green, red], -1).astype(np.uint8)


def crc32(array: np.ndarray) -> int:
    """Return the crc32 of the array's bytes in C order."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def rgb_batch(bgr: np.ndarray) -> Tensor:
    """Return a BGR picture as a batch of one RGB crop, uint8 (1, H, W, 3)."""
    return torch.from_numpy(np.ascontiguousarray(bgr[None, ..., ::-1]))


class Goldens:
    """One directory of golden files, and the networks to hold against it, on one device in one precision.

    Preparation of pictures, masks and windows knows no precision; log-mel and face parsing stay float32, as upstream.
    ValueError for a directory that is not there or an unknown precision.
    """

    def __init__(self, directory: Path, device: str = "cpu", dtype: str = "fp32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"precision {dtype!r} is unknown; use one of {', '.join(DTYPES)}")
        if not Path(directory).is_dir():
            raise ValueError(f"{directory} is not a directory; give one of the form of tests/golden/musetalk")
        self.directory, self.device, self.precision = Path(directory), device, dtype
        self.dtype = DTYPES[dtype]
        self._arrays: dict[str, dict[str, np.ndarray]] = {}
        self.float32 = _FP32_CPU if torch.device(device).type == "cpu" else _FP32_OTHER
        self.network = _LOW_PRECISION.get(dtype, self.float32)
        self.image = Tolerance(1) if dtype == "fp32" else Tolerance(8, mean=1)

    @property
    def is_fp32(self) -> bool:
        return self.precision == "fp32"

    def has(self, name: str) -> bool:
        """Return whether the directory holds the file `name`."""
        return (self.directory / name).is_file()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of `name`.safetensors, on the CPU."""
        with safe_open(self.directory / f"{name}.safetensors", "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}

    def metadata(self, name: str) -> Mapping[str, str]:
        """Return the text fields of `name`.safetensors."""
        with safe_open(self.directory / f"{name}.safetensors", "pt") as file:
            return file.metadata() or {}

    def json(self, name: str) -> dict[str, Any]:
        """Return the content of `name`.json."""
        return json.loads((self.directory / f"{name}.json").read_text(encoding="utf-8"))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of `name`.npz, read once: do not write to them."""
        if name not in self._arrays:
            with np.load(self.directory / f"{name}.npz", allow_pickle=False) as file:
                self._arrays[name] = dict(file)
        return self._arrays[name]

    def cast(self, value: Tensor) -> Tensor:
        """Return an input of the networks on their device in their precision."""
        return value.to(self.device, self.dtype)

    @cached_property
    def reduced_config(self) -> MuseTalkConfig:
        """The official model with the narrow UNet and VAE of the fast goldens."""
        unet = replace(OFFICIAL.unet, **_REDUCED)
        if self.has("manifest_unet_reduced.json"):
            unet = UNetConfig.from_dict(self.json("manifest_unet_reduced")["config"])
        return MuseTalkConfig(unet=unet, vae=replace(OFFICIAL.vae, **_REDUCED))

    @cached_property
    def nets(self) -> MuseTalkNets:
        """Whisper encoder, reduced UNet and reduced VAE with the recipe's weights."""
        return recipe_nets(self.reduced_config, self.dtype, self.device)
