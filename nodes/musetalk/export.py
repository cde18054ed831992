"""The MuseTalk networks as graphs for other runtimes: UNet, VAE decoder, VAE encoder, Whisper encoder, the whole step.

Inputs and outputs have the dtype of the weights, as in the pipeline, and its meaning: tokens come without positions
(they are added inside), latents multiplied by the scaling factor, images raw in about [-1, 1]. Images are not clamped:
that would turn an infinity into white, and the render must see it to fall back. The timestep is 0, frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.engine_spec import StageSpec, TensorSpec
from ..core.export import ExportForm, OnnxGraph
from ..core.export_model import check_names, export_graphs
from .config import MuseTalkConfig
from .handle import MuseTalkModel
from .model import MuseTalkNets, to_rgb_uint8

GRAPHS = ("unet", "vae_decoder", "vae_encoder", "whisper", "musetalk")
"""`musetalk` is UNet and decoder in one graph: the step of a frame."""
DEFAULT_GRAPHS = GRAPHS[:4]


class UNetStage(nn.Module):
    """latents (B, 8, h, w), tokens (B, T, d) without positions -> generated (B, 4, h, w)."""

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.unet = nets.unet
        self.register_buffer(
            "positions", nets.positions.to(nets.weights_device, nets.weights_dtype), persistent=False
        )

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        return self.unet(latents, tokens + self.positions)


class DecoderStage(nn.Module):
    """generated (B, 4, h, w), still scaled -> images (B, 3, crop, crop), not clamped."""

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.decoder, self.post_quant_conv = nets.vae.decoder, nets.vae.post_quant_conv
        self.scaling_factor = nets.config.vae.scaling_factor

    def forward(self, generated: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(generated / self.scaling_factor))


class EncoderStage(nn.Module):
    """images (B, 3, crop, crop) in [-1, 1] -> latents (B, 4, h, w), posterior mean, scaled."""

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.vae = nets.vae
        self.scaling_factor = nets.config.vae.scaling_factor

    def forward(self, images: Tensor) -> Tensor:
        return self.vae.encode(images)[0] * self.scaling_factor


class StepStage(nn.Module):
    """latents and tokens -> images: `MuseTalkNets.forward` without the audio encoder's weights."""

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.generate, self.decode = UNetStage(nets), DecoderStage(nets)

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        return self.decode(self.generate(latents, tokens))


def step_form(nets: MuseTalkNets) -> ExportForm:
    """The stage of `engine.py` as an engine file holds it: raw images out, made crops and flags by torch."""

    def finish(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        images = outputs["images"]
        finite = images.isfinite().flatten(1).all(1)
        return {"crops": to_rgb_uint8(images.nan_to_num()), "finite": finite}

    form = exportable(nets, "musetalk")
    return ExportForm(form.module, form.spec, finish)


def exportable(nets: MuseTalkNets, name: str) -> ExportForm:
    """One of GRAPHS of these networks, sharing their weights. ValueError for another name."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r} is unknown; there are {', '.join(GRAPHS)}")
    modules: dict[str, Callable[[], nn.Module]] = {
        "unet": lambda: UNetStage(nets),
        "vae_decoder": lambda: DecoderStage(nets),
        "vae_encoder": lambda: EncoderStage(nets),
        "whisper": lambda: nets.whisper,
        "musetalk": lambda: StepStage(nets),
    }
    module = modules[name]().eval().requires_grad_(False)
    return ExportForm(module, graph_spec(nets.config, name, nets.weights_dtype))


def graph_spec(config: MuseTalkConfig, name: str, dtype: torch.dtype) -> StageSpec:
    """Names and shapes (without the batch) of a graph's tensors, all of `dtype`."""
    side, channels, crop = config.latent_size, config.latent_channels, config.crop_size
    whisper = config.whisper
    shapes = {
        "latents": (2 * channels, side, side),
        "tokens": (config.n_tokens, whisper.d_model),
        "generated": (channels, side, side),
        "encoded": (channels, side, side),
        "images": (3, crop, crop),
        "mel": (whisper.n_mels, 2 * whisper.max_source_positions),
        "states": (whisper.max_source_positions, whisper.n_states, whisper.d_model),
    }
    inputs, outputs = {
        "unet": (("latents", "tokens"), ("generated",)),
        "vae_decoder": (("generated",), ("images",)),
        "vae_encoder": (("images",), ("encoded",)),
        "whisper": (("mel",), ("states",)),
        "musetalk": (("latents", "tokens"), ("images",)),
    }[name]
    tensors = {key: TensorSpec(key, shape, dtype) for key, shape in shapes.items()}
    return StageSpec(name, tuple(tensors[key] for key in inputs), tuple(tensors[key] for key in outputs))


def export_model(
    model: MuseTalkModel, folder: Path, names: Sequence[str] | None = None, **how: Any
) -> list[OnnxGraph]:
    """Write graphs of GRAPHS, DEFAULT_GRAPHS if `names` is None; `how` and the rest: see `export_graphs`.

    Raises:
        ValueError: precision fp8 too.
    """
    names = names or DEFAULT_GRAPHS
    check_names(names, GRAPHS)
    if model.precision == "fp8":
        raise ValueError(
            "a graph is fp32 or fp16; fp8 layers are chosen on the card: export with precision fp16"
        )
    return export_graphs(model, exportable, folder, names, **how)
