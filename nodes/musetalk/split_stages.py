"""MuseTalk's networks as two engine stages, for whoever does something to the latents in between.

UNet: latents and tokens in, generated latents out. Decoder: generated latents in, finished uint8 crops out. Together
they give what `engine.musetalk_stage` gives; layers are never stored in fp8 here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.engine_spec import StageFunction, StageSpec, TensorSpec
from ..core.export import ExportForm
from .engine import contiguous_weights
from .model import MuseTalkNets, to_rgb_uint8

UNET, DECODER = "musetalk unet", "musetalk decoder"


class UNetHalf(nn.Module):
    """In: latents (B, 2 * latent_channels, h, w) and tokens (B, n_tokens, d_model), positions not added, in the dtype
    of the weights. Out: generated (B, latent_channels, h, w) of the same dtype, multiplied by the scaling factor, and
    finite bool (B,)."""

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.nets = nets

    def forward(self, latents: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        nets = self.nets
        return _flagged(nets.unet(latents, tokens + nets.positions.to(nets.weights_dtype)))

    @property
    def records_fast_form(self) -> bool:
        """As `MuseTalkStage.records_fast_form`."""
        return _why_plain(self.nets) is None

    def fast_form(self) -> tuple[StageFunction | None, str | None]:
        """The UNet on re-laid weights and fused kernels, or None and why not."""
        nets, reason = self.nets, _why_plain(self.nets)
        if reason:
            return None, reason
        from ..core.kernel_ops import TritonOps
        from .fast import no_search
        from .fast_unet import FastUNet

        with torch.no_grad():
            unet = FastUNet(nets.unet, TritonOps(nets.weights_device))

        def stage(latents: Tensor, tokens: Tensor) -> dict[str, Tensor]:
            with torch.no_grad(), no_search(latents.device):
                return _flagged(unet(latents, tokens + nets.positions.to(nets.weights_dtype)))

        return stage, None

    def export_form(self) -> ExportForm:
        """The form that TensorRT gets: latents out, flags made of them by torch."""
        from .export import exportable

        form = exportable(self.nets, "unet")
        return ExportForm(form.module, form.spec, lambda outputs: _flagged(outputs["generated"]))


class DecoderHalf(nn.Module):
    """In: generated (B, latent_channels, h, w) in the dtype of the weights, as `UNetHalf` gives them. Out: crops uint8
    (B, crop, crop, 3) and finite bool (B,), false where latents or picture are not numbers."""

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.nets = nets

    def forward(self, generated: Tensor) -> dict[str, Tensor]:
        nets = self.nets
        return _pictures(nets.vae.decode(generated / nets.config.vae.scaling_factor), generated)

    @property
    def records_fast_form(self) -> bool:
        """As `MuseTalkStage.records_fast_form`."""
        return _why_plain(self.nets) is None

    def fast_form(self) -> tuple[StageFunction | None, str | None]:
        """The decoder on re-laid weights and fused kernels, or None and why not."""
        nets, reason = self.nets, _why_plain(self.nets)
        if reason:
            return None, reason
        from ..core.kernel_ops import TritonOps
        from .fast import no_search
        from .fast_vae import FastDecoder

        with torch.no_grad():
            decoder = FastDecoder(nets.vae, TritonOps(nets.weights_device))

        def stage(generated: Tensor) -> dict[str, Tensor]:
            with torch.no_grad(), no_search(generated.device):
                crops, finite = decoder(generated, pixels=True)
            return {"crops": crops, "finite": finite & _rows_finite(generated)}

        return stage, None

    def export_form(self) -> ExportForm:
        """The form that TensorRT gets: raw images out, crops and flags made of them by torch."""
        from .export import exportable

        form = exportable(self.nets, "vae_decoder")
        return ExportForm(form.module, form.spec, lambda outputs: _pictures(outputs["images"]))


def unet_stage(nets: MuseTalkNets, device: torch.device) -> tuple[StageSpec, UNetHalf]:
    """Return what an engine needs of the UNet of `nets`, which lie on `device`."""
    if device.type == "cuda":
        contiguous_weights(nets)
    latents, tokens, generated, _, finite = _tensors(nets)
    return StageSpec(UNET, inputs=(latents, tokens), outputs=(generated, finite)), UNetHalf(nets)


def decoder_stage(nets: MuseTalkNets, device: torch.device) -> tuple[StageSpec, DecoderHalf]:
    """Return what an engine needs of the decoder of `nets`, which lie on `device`."""
    if device.type == "cuda":
        contiguous_weights(nets)
    _, _, generated, crops, finite = _tensors(nets)
    return StageSpec(DECODER, inputs=(generated,), outputs=(crops, finite)), DecoderHalf(nets)


def _tensors(nets: MuseTalkNets) -> tuple[TensorSpec, ...]:
    config, dtype = nets.config, nets.weights_dtype
    side, channels, crop = config.latent_size, config.latent_channels, config.crop_size
    return (
        TensorSpec("latents", (2 * channels, side, side), dtype),
        TensorSpec("tokens", (config.n_tokens, config.whisper.d_model), dtype),
        TensorSpec("generated", (channels, side, side), dtype),
        TensorSpec("crops", (crop, crop, 3), torch.uint8),
        TensorSpec("finite", (), torch.bool),
    )


def _why_plain(nets: MuseTalkNets) -> str | None:
    from .fast import why_plain

    return why_plain(nets)


def _rows_finite(values: Tensor) -> Tensor:
    return values.isfinite().flatten(1).all(1)


def _flagged(generated: Tensor) -> dict[str, Tensor]:
    return {"generated": generated, "finite": _rows_finite(generated)}


def _pictures(images: Tensor, generated: Tensor | None = None) -> dict[str, Tensor]:
    finite = _rows_finite(images)
    if generated is not None:
        finite = finite & _rows_finite(generated)
    return {"crops": to_rgb_uint8(images.nan_to_num()), "finite": finite}
