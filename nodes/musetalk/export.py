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

from ..core.checkpoints import sha256_once
from ..core.engine_spec import StageSpec, TensorSpec
from ..core.export import OPSET, BatchRange, ExportForm, OnnxGraph, add_facts, export_onnx
from ..core.export_check import BATCHES, check_export
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


def graph_file(model: MuseTalkModel, name: str, batch: BatchRange) -> str:
    """File name that tells checkpoint, graph, precision and batch: "embedded-unet-fp16-b1-32.onnx"."""
    sizes = str(batch.low) if batch.fixed else f"{batch.low}-{batch.high}"
    return f"{model.checkpoint}-{name}-{model.precision}-b{sizes}.onnx"


def model_facts(model: MuseTalkModel) -> dict[str, Any]:
    """Which weights: checkpoint, precision, SHA-256 of every file of them (seconds for the official ones)."""
    return {
        "checkpoint": model.checkpoint,
        "precision": model.precision,
        "files": {path.name: sha256_once(path) for path in model.paths},
    }


def export_model(
    model: MuseTalkModel,
    folder: Path,
    names: Sequence[str] = DEFAULT_GRAPHS,
    batch: BatchRange | None = None,
    opset: int = OPSET,
    check: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] | None = None,
) -> list[OnnxGraph]:
    """Write graphs of `model` into `folder` and compare each with torch.

    Args:
        model: weights and precision (the graphs' precision too).
        folder: made if it is missing.
        names: of GRAPHS.
        batch: default 1..32.
        opset: 18 to 20.
        check: run `check_export` and keep its figures in the sidecar.
        tell: gets a line for each step.
        progress: (done, total) passes of a check.

    Returns:
        the graphs; `facts["parity"]` of each says whether it was accepted. A refused graph is kept, for looking at.

    Raises:
        ImportError, ValueError, OSError: as `export_onnx` and `check_export`; ValueError too for precision fp8.
    """
    batch = batch or BatchRange(1, 32)
    unknown = [name for name in names if name not in GRAPHS]
    if unknown:
        raise ValueError(f"graph {unknown[0]!r} is unknown; there are {', '.join(GRAPHS)}")
    if model.precision == "fp8":
        raise ValueError(
            "a graph is fp32 or fp16; fp8 layers are chosen on the card: export with precision fp16"
        )
    facts, nets, graphs = {"model": model_facts(model)}, model.build(), []
    for name in names:
        stage = exportable(nets, name)
        path = Path(folder) / graph_file(model, name, batch)
        graph = export_onnx(stage.module, stage.spec, path, batch, opset, facts)
        tell(f"{path}: {graph.facts['nodes']} nodes, opset {opset}, {graph.facts['seconds']} s")
        if check:
            sizes = [size for size in BATCHES if size in batch] or [batch.high]
            parity = check_export(graph, stage.module, stage.spec, sizes, progress=progress)
            tell(f"{name}: {parity}")
            graph = add_facts(graph, parity=parity.as_dict())
        graphs.append(graph)
    return graphs
