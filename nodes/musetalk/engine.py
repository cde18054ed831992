"""MuseTalk's networks as one engine stage: latents and audio tokens in, finished uint8 crops out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..core.engine_spec import StageFunction, StageSpec, TensorSpec, is_out_of_memory
from .model import MuseTalkNets, to_rgb_uint8

if TYPE_CHECKING:
    from ..core.export import ExportForm
    from .fast import FastNets

STAGE = "musetalk"


class MuseTalkStage(nn.Module):
    """UNet, decoder and the way to uint8 in one function.

    In: latents (B, 2 * latent_channels, h, w) and tokens (B, n_tokens, d_model), positions not added, in the dtype of
    the weights. Out: crops uint8 (B, crop, crop, 3) and finite bool (B,): whether all values of a crop were numbers;
    those that were not are 0 or the end of the range.
    """

    def __init__(self, nets: MuseTalkNets) -> None:
        super().__init__()
        self.nets = nets
        self.fast_note: str | None = None
        """What the report should say of the fast form, once it is made."""

    def forward(self, latents: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        decoded = self.nets(latents, tokens)
        finite = decoded.isfinite().flatten(1).all(1)
        return {"crops": to_rgb_uint8(decoded.nan_to_num()), "finite": finite}

    @property
    def records_fast_form(self) -> bool:
        """Whether the cuda graph backend gets `fast_form` here, which beats compiled code.

        H200, UNet and decoder in fp16: 643 fps recorded at batch 32 and 580 at 8, 485 compiled by Inductor at 16.
        """
        from .fast import why_plain

        return why_plain(self.nets) is None

    def fast_form(self) -> tuple[StageFunction | None, str | None]:
        """The same on re-laid weights and fused kernels, or None and why not; see `fast.py`."""
        from .fast import fast_nets

        fast = fast_nets(self.nets)
        if fast.reason:
            return None, fast.reason
        if self.nets.wants_fp8:
            self.fast_note = _quantised(fast)

        def stage(latents: Tensor, tokens: Tensor) -> dict[str, Tensor]:
            crops, finite = fast.pixels(latents, tokens)
            return {"crops": crops, "finite": finite}

        return stage, None

    def export_form(self) -> ExportForm:
        """The form that TensorRT gets: raw images out, crops and flags made of them by torch."""
        from .export import step_form

        return step_form(self.nets)


def _quantised(fast: FastNets) -> str:
    """Store what may be stored in fp8; the outcome, or why nothing is."""
    from .fast import why_no_fp8
    from .fast_fp8 import quantise

    if reason := why_no_fp8(fast.nets.weights_device):
        return f"no layer in fp8: {reason}; fp16 runs"
    try:
        return quantise(fast).text
    except (RuntimeError, MemoryError) as e:
        if not is_out_of_memory(e):
            raise
        return "no layer in fp8: no memory for the fp32 copy that it is measured against; fp16 runs"


def musetalk_stage(nets: MuseTalkNets, device: torch.device) -> tuple[StageSpec, MuseTalkStage]:
    """Return what an engine needs of `nets`, which lie on `device`."""
    if device.type == "cuda":
        contiguous_weights(nets)
    return musetalk_spec(nets), MuseTalkStage(nets)


def musetalk_spec(nets: MuseTalkNets) -> StageSpec:
    """Names, shapes and dtypes of the stage for the config and precision of `nets`."""
    config, dtype = nets.config, nets.weights_dtype
    side, crop = config.latent_size, config.crop_size
    return StageSpec(
        STAGE,
        inputs=(
            TensorSpec("latents", (2 * config.latent_channels, side, side), dtype),
            TensorSpec("tokens", (config.n_tokens, config.whisper.d_model), dtype),
        ),
        outputs=(
            TensorSpec("crops", (crop, crop, 3), torch.uint8),
            TensorSpec("finite", (), torch.bool),
        ),
    )


def contiguous_weights(nets: nn.Module) -> None:
    """Undo the channels_last weights of `build_nets` in place: with them an H200 ran the UNet at 372 instead of 755
    frames a second (fp16, batch 16, eager), for its GroupNorm is slow in that layout."""
    for parameter in nets.parameters():
        if parameter.ndim == 4 and not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()
