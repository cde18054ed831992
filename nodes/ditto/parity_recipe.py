"""What Ditto's goldens are made of: weights and inputs that follow from their names, and the files themselves.

Rules: recipe.json of the goldens. A weight is seeded by the crc32 of its key in the official file; an input by that of
its name, with the directory's `input_salt` in front, if recipe.json has one.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from ..core.parity_measure import Tolerance
from ..core.weights import load_strict, on_meta
from .config import OFFICIAL
from .decoder import SpadeDecoder, fold_spectral_norm, official_shapes
from .networks import NETWORKS

GAINS = {
    "appearance_extractor": 1.2,
    "motion_extractor": 1.0,
    "warp_network": 1.4,
    "decoder": 1.0,
    "stitch_network": 1.0,
    "lmdm": 0.7,
}
"""Module -> factor of its weights of two or more dimensions."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_PLAIN_INPUTS = {
    "feature_3d": (32, 16, 64, 64),
    "feature": (256, 64, 64),
    "x": (80, 265),
    "cond": (80, 1103),
}
_FP32_CPU = Tolerance(1e-3, relative=5e-5)
_FP32_OTHER = Tolerance(4e-3, relative=2e-4)
# The largest differences of the README's simulation: 0.0214 in fp16, 0.271 in bf16, where a picture's edge moves.
_LOW_PRECISION = {"fp16": Tolerance(0.1, relative=5e-3), "bf16": Tolerance(1.0, relative=4e-2)}


def seeded(name: str, shape: Sequence[int], uniform: bool = False) -> Tensor:
    """Return the draw of `name`: standard normal or, with `uniform`, from 0..1; float32 on the CPU."""
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(name.encode("utf-8")))
    draw = torch.rand if uniform else torch.randn
    return draw(tuple(shape), generator=generator, dtype=torch.float32)


def recipe_state(module: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return the recipe's weights for the keys of `module` (a name of GAINS), float32 (int64 for counters)."""
    state: dict[str, Tensor] = {}
    for key, shape in shapes.items():
        prefix, _, leaf = key.rpartition(".")
        if leaf == "weight_u":
            continue
        if leaf == "weight_v":  # needs u before it is rounded
            u = seeded(f"{prefix}.weight_u", shapes[f"{prefix}.weight_u"]).double()
            u /= u.norm()
            v = state[f"{prefix}.weight_orig"].flatten(1).double().T @ u
            state[f"{prefix}.weight_u"] = u.float()
            state[key] = (v / v.norm()).float()
        else:
            state[key] = _weight(key, leaf, tuple(shape), GAINS[module])
    return state


def _weight(key: str, leaf: str, shape: tuple[int, ...], gain: float) -> Tensor:
    if leaf == "num_batches_tracked":
        return torch.zeros((), dtype=torch.int64)
    if leaf == "freqs":
        powers = torch.arange(0, 2 * shape[0], 2, dtype=torch.float32) / (2 * shape[0])
        return 1.0 / 10000**powers
    noise = seeded(key, shape)
    if leaf == "weight_orig":
        return noise.mul_(2 / math.sqrt(math.prod(shape[1:])))
    if leaf in ("weight", "in_proj_weight") and len(shape) >= 2:
        return noise.mul_(gain / math.sqrt(math.prod(shape[1:])))
    if leaf == "weight":
        return noise.mul_(0.02).add_(1)
    if leaf == "running_var":
        return noise.abs_().mul_(0.02).add_(1)
    return noise.mul_({"gamma": 0.2, "null_cond_embed": 0.5, "null_cond_hidden": 0.5}.get(leaf, 0.02))


def recipe_network(name: str, config: Any = None) -> nn.Module:
    """Return network `name` (a key of NETWORKS) with the recipe's weights, float32 on the CPU, ready for inference."""
    part, cls = NETWORKS[name]
    module = on_meta(cls, getattr(OFFICIAL, part) if config is None else config)
    if isinstance(module, SpadeDecoder):
        state = fold_spectral_norm(recipe_state(name, official_shapes(module)))
    else:
        state = recipe_state(name, {key: value.shape for key, value in module.state_dict().items()})
    load_strict(module, state, "the recipe's weights")
    return module.eval().requires_grad_(False)


class DittoGoldens:
    """One directory of Ditto's golden files and what they are compared under: device and precision.

    ValueError for a directory that is not there or an unknown precision.
    """

    def __init__(self, directory: Path, device: str = "cpu", dtype: str = "fp32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"precision {dtype!r} is unknown; use one of {', '.join(DTYPES)}")
        if not Path(directory).is_dir():
            raise ValueError(f"{directory} is not a directory; give one of the form of tests/golden/ditto")
        self.directory, self.device, self.precision = Path(directory), device, dtype
        self.dtype = DTYPES[dtype]
        self._networks: dict[str, nn.Module] = {}
        fp32 = _FP32_CPU if torch.device(device).type == "cpu" else _FP32_OTHER
        self.network = _LOW_PRECISION.get(dtype, fp32)

    def has(self, name: str) -> bool:
        """Return whether the directory holds the file `name`."""
        return (self.directory / name).is_file()

    def json(self, name: str) -> dict[str, Any]:
        """Return the content of `name`.json."""
        return json.loads((self.directory / f"{name}.json").read_text(encoding="utf-8"))

    def tensors(self, name: str, prefix: str = "") -> dict[str, Tensor]:
        """Return the tensors of `name`.safetensors whose names begin with `prefix`, on the CPU."""
        with safe_open(self.directory / f"{name}.safetensors", "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys() if key.startswith(prefix)}

    def names(self, name: str) -> list[str]:
        """Return the names of the tensors of `name`.safetensors."""
        with safe_open(self.directory / f"{name}.safetensors", "pt") as file:
            return list(file.keys())

    @cached_property
    def has_own_norms(self) -> bool:
        """Return whether the norms of nets_stats.json are those of the inputs: with a salt they may be of others.

        Told by the tensors that nets.safetensors holds in full.
        """
        if not self.salt:
            return True
        stored, stats = self.tensors("nets"), self.json("nets_stats")
        full = [key for key, value in stats.items() if value["sample"] == "full" and key in stored]
        return all(
            math.isclose(stored[key].double().norm().item(), stats[key]["l2"], rel_tol=1e-5) for key in full
        )

    @cached_property
    def without_salt(self) -> DittoGoldens:
        """The same directory, its inputs as if there were no salt."""
        plain = DittoGoldens(self.directory, self.device, self.precision)
        plain.salt = ""
        return plain

    @cached_property
    def salt(self) -> str:
        """Text in front of every input's name before it is hashed; none in the shipped goldens."""
        return self.json("recipe").get("input_salt", "") if self.has("recipe.json") else ""

    def net(self, name: str) -> nn.Module:
        """Return network `name` with the recipe's weights on the device in the precision; built once."""
        if name not in self._networks:
            module = recipe_network(name)
            # Parameters alone: buffers that are no weights, the warp's grid, stay float32.
            for tensor in [*module.parameters(), *_statistics(module)]:
                tensor.data = tensor.data.to(self.dtype)
            self._networks[name] = module.to(self.device)
        return self._networks[name]

    def drop(self, name: str) -> None:
        """Let go of a network that is not needed again."""
        self._networks.pop(name, None)

    def cast(self, value: Tensor) -> Tensor:
        """Return an input of the networks on their device in their precision."""
        return value.to(self.device, self.dtype)

    def draw(self, name: str, shape: Sequence[int], uniform: bool = False) -> Tensor:
        """Return the draw of an input's name (`input.` or `ddim.`), salted."""
        return seeded(self.salt + name, shape, uniform)

    def inputs(self, what: str, batch: int, cast: bool = True) -> Tensor:
        """Return `batch` items of the input `what`, see `one_input`."""
        stacked = torch.stack([self.one_input(what, b) for b in range(batch)])
        return self.cast(stacked) if cast else stacked

    def one_input(self, what: str, b: int) -> Tensor:
        """Return item `b` of an input of recipe.json: image, feature_3d, kp_source, kp_driving or feature of the picture
        networks, x, cond_frame or cond of LMDM; float32 on the CPU. KeyError for another."""
        if what == "image":
            low = self.draw(f"input.image_lo.{b}", (1, 3, 8, 8), uniform=True)
            high = self.draw(f"input.image_hi.{b}", (1, 3, 256, 256), uniform=True)
            smooth = F.interpolate(low, size=(256, 256), mode="bilinear", align_corners=False)
            return (0.75 * smooth + 0.25 * high)[0]
        if what == "kp_source":
            return 0.35 * self.draw(f"input.kp_source.{b}", (21, 3))
        if what == "kp_driving":
            return self.one_input("kp_source", b) + 0.2 * self.draw(f"input.kp_delta.{b}", (21, 3))
        if what == "cond_frame":
            return 0.5 * self.draw(f"input.cond_frame.{b}", (265,))
        return self.draw(f"input.{what}.{b}", _PLAIN_INPUTS[what])


def first_values(value: Tensor) -> dict[str, Any]:
    """Return what input_probes.json tells of a tensor: first (4), last, mean, std, l2, min, max."""
    flat = value.double().flatten()
    numbers = {name: getattr(flat, name)().item() for name in ("mean", "min", "max")}
    std = flat.std(correction=0).item()
    return {
        "first": flat[:4].tolist(),
        "last": flat[-1].item(),
        "std": std,
        "l2": flat.norm().item(),
        **numbers,
    }


def _statistics(module: nn.Module) -> list[Tensor]:
    """Running means and variances of batch norms."""
    return [b for name, b in module.named_buffers() if name.endswith(("running_mean", "running_var"))]
