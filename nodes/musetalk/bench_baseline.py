"""The loop that our figures are compared with: MuseTalk as upstream runs it, and variants of its last step.

Batch 20, torch as it is on one stream, weights as constructed (contiguous): positions, UNet, VAE, pictures as uint8 on
the host. No composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from .model import MuseTalkNets, memory_format, to_rgb_uint8

BASELINE_BATCH = 20
BASELINE = "baseline"
ON_DEVICE = "baseline, uint8 on the device"
TORCH_ON_HOST = "baseline, torch on the host"
BLENDED = "baseline + CPU blend"


def baseline_loops(
    nets: MuseTalkNets, latents: Tensor, tokens: Tensor, blend: Callable[[np.ndarray], object]
) -> dict[str, Callable[[], object]]:
    """Return the loops by the name of their row; each makes uint8 pictures (n, crop, crop, 3) on the host.

    "baseline" is upstream's real shape: floats of the weights' dtype go to the host, become float32, and numpy scales,
    rounds and reverses the colours. "uint8 on the device" does that on the card and copies a quarter of the bytes; "torch
    on the host" does it with torch's threads. `blend` gets each picture of the last row.
    """

    def upstream() -> np.ndarray:
        pictures = (nets(latents, tokens) / 2 + 0.5).clamp(0, 1)
        pictures = pictures.detach().cpu().permute(0, 2, 3, 1).float().numpy()
        # Random weights in fp16 may overflow; upstream would cast the same.
        with np.errstate(invalid="ignore"):
            return (pictures * 255).round().astype("uint8")[..., ::-1]

    def on_device() -> Tensor:
        return to_rgb_uint8(nets(latents, tokens)).cpu()

    def torch_on_host() -> Tensor:
        pictures = (nets(latents, tokens) / 2 + 0.5).clamp(0, 1).cpu().permute(0, 2, 3, 1)
        return pictures.float().mul_(255).round_().to(torch.uint8)

    def blended() -> None:
        for face in on_device().numpy():
            blend(face)

    return {BASELINE: upstream, ON_DEVICE: on_device, TORCH_ON_HOST: torch_on_host, BLENDED: blended}


@contextmanager
def in_plain_layout(nets: nn.Module) -> Iterator[None]:
    """Lay the weights contiguously, as constructed; on a CPU they are laid as our pipeline has them afterwards."""
    for parameter in nets.parameters():
        parameter.data = parameter.data.contiguous()
    try:
        yield
    finally:
        lay_out(nets)


def lay_out(nets: nn.Module) -> None:
    """Lay the weights as the pipeline has them; on a card that is as constructed (`engine.contiguous_weights`)."""
    for name, parameter in nets.named_parameters():
        if parameter.ndim == 4 and parameter.device.type == "cpu":
            parameter.data = parameter.data.contiguous(memory_format=memory_format(name, parameter))
