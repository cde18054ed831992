"""Ditto's image networks as one model: building, filling, saving.

Pictures (B, 3, crop, crop) RGB in 0..1, volumes (B, C, D, h, w), key points (B, n_keypoints, 3) float32, rendered faces
(B, 3, render_size, render_size) in 0..1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.weights import load_strict, on_meta
from .appearance import AppearanceExtractor
from .config import DittoConfig
from .decoder import SpadeDecoder
from .motion import MotionExtractor
from .stitch import StitchNetwork
from .warp import WarpNetwork

NETWORKS: dict[str, tuple[str, type[nn.Module]]] = {
    "appearance_extractor": ("appearance", AppearanceExtractor),
    "motion_extractor": ("motion", MotionExtractor),
    "warp_network": ("warp", WarpNetwork),
    "decoder": ("decoder", SpadeDecoder),
    "stitch_network": ("stitch", StitchNetwork),
}
"""Name of the official file, without its suffix -> (field of DittoConfig and member of DittoNets, class)."""

HALF_PARTS = ("appearance", "warp", "decoder")
"""Parts that run in the model's precision. Motion and stitching stay float32, as upstream's fastest set has them."""


class DittoNets(nn.Module):
    """The five image networks of one `DittoConfig`, on one device.

    Constructing it initialises the weights (for training). To load weights use `build_nets`, which skips that.
    """

    def __init__(self, config: DittoConfig) -> None:
        super().__init__()
        self.config = config
        for part, cls in NETWORKS.values():
            setattr(self, part, cls(getattr(config, part)))

    @property
    def weights_dtype(self) -> torch.dtype:
        """Dtype of the parts in HALF_PARTS."""
        return self.decoder.fc.weight.dtype

    @property
    def weights_device(self) -> torch.device:
        """Device of the weights. Not called `device`: ComfyUI's ModelPatcher sets that name on what it holds."""
        return self.decoder.fc.weight.device

    def forward(self, volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """Return faces (B, 3, render_size, render_size) of source volumes moved to the driving key points."""
        volume = volume.to(self.weights_device, self.weights_dtype)
        return self.decoder(self.warp(volume, kp_source, kp_driving))


def part_dtype(part: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the weights of `part` in a model of precision `dtype`."""
    return dtype if part in HALF_PARTS else torch.float32


def cast_part(part: str, state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return copies of a part's tensors in its dtype; counters stay whole numbers.

    The casting happens here and not by `module.to(dtype)`, which would round the warp's coordinates too. Copies even
    where the dtype fits: views into a mapped file are unaligned and change results in the last bit.
    """
    wanted = part_dtype(part, dtype)
    return {k: v.to(wanted if v.is_floating_point() else v.dtype, copy=True) for k, v in state.items()}


def build_nets(
    config: DittoConfig, state: Mapping[str, Tensor], source: str, dtype: torch.dtype = torch.float32
) -> DittoNets:
    """Networks for inference with the weights of `state` (keys prefixed `appearance.` and so on), on the CPU.

    Raises:
        ValueError: tensors missing, unknown or misshapen; names `source` and the tensors.
    """
    nets = on_meta(DittoNets, config)
    ready = {}
    for key, value in state.items():
        part, _, rest = key.partition(".")
        ready.update({f"{part}.{k}": v for k, v in cast_part(part, {rest: value}, dtype).items()})
    load_strict(nets, ready, source)
    return nets.eval().requires_grad_(False)


def load_nets(folder: Path, dtype: torch.dtype = torch.float32) -> DittoNets:
    """Networks saved by `save_nets` in `folder` (image_nets.safetensors and config.json).

    Raises:
        ValueError: a file is missing, is not JSON, or does not fit the config; the message names it.
    """
    config, weights = Path(folder) / "config.json", Path(folder) / "image_nets.safetensors"
    for path in (config, weights):
        if not path.is_file():
            raise ValueError(f"{path} is missing: reinstall the pack, or save the networks again")
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{config} is not valid JSON ({error}): reinstall the pack") from error
    return build_nets(DittoConfig.from_dict(values), load_file(weights), str(weights), dtype)


def save_nets(nets: DittoNets, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write `image_nets.safetensors` (floats cast to `dtype`) and `config.json` into `folder`, creating it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        k: v.detach().to("cpu", dtype if v.is_floating_point() else v.dtype).contiguous()
        for k, v in nets.state_dict().items()
    }
    save_file(state, folder / "image_nets.safetensors", metadata={"format": "pt", "model": nets.config.name})
    text = json.dumps(nets.config.to_dict(), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
