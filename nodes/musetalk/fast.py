"""The fast form of the networks: `fast_nets(nets)` is called like `nets` and gives the same pictures sooner.

Weights are re-laid when it is made, once; calls allocate only through torch and never wait for the device, so they
can be captured in a CUDA graph. Without an NVIDIA card, or without Triton, the plain modules are called instead and
`reason` says why.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..core.kernel_ops import TritonOps, why_not
from ..core.rows import TorchOps
from .fast_unet import FastUNet
from .fast_vae import FastDecoder
from .model import MuseTalkNets, to_rgb_uint8


class PlainNets:
    """The modules as they are, with the calls of `FastNets`; `reason` says why there is nothing faster."""

    def __init__(self, nets: MuseTalkNets, reason: str) -> None:
        self.nets, self.reason = nets, reason

    def __call__(self, latents: Tensor, tokens: Tensor) -> Tensor:
        return self.nets(latents, tokens)

    def pixels(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        images = self.nets(latents, tokens)
        return to_rgb_uint8(images.nan_to_num()), images.isfinite().flatten(1).all(1)


class FastNets:
    """UNet and decoder on rows of pixels. Keeps `nets` alive: the large weights are shared."""

    reason: str | None = None

    def __init__(self, nets: MuseTalkNets, ops=None) -> None:
        self.nets = nets
        self.ops = ops or TritonOps()
        with torch.no_grad():
            self.unet, self.decoder = FastUNet(nets.unet, self.ops), FastDecoder(nets.vae, self.ops)

    def __call__(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Raw pictures (B, 3, crop, crop), about [-1, 1], as `MuseTalkNets.forward`."""
        with torch.no_grad(), _conv_search(latents.device):
            return self.decoder(self.latents(latents, tokens))[0]

    def pixels(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 RGB (B, crop, crop, 3) as `MuseTalkNets.predict`, and bool (B,): is the picture finite."""
        with torch.no_grad(), _conv_search(latents.device):
            return self.decoder(self.latents(latents, tokens), pixels=True)

    def latents(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """The UNet alone: generated latents, still multiplied by the scaling factor."""
        nets = self.nets
        tokens = tokens.to(nets.weights_device, nets.weights_dtype)
        tokens = tokens + nets.positions.to(nets.weights_dtype)
        return self.unet(latents.to(nets.weights_device, nets.weights_dtype), tokens)


def _conv_search(device: torch.device) -> AbstractContextManager:
    """Let cuDNN time its algorithms for every new shape, here only: the switch is the whole process's."""
    if device.type != "cuda":
        return nullcontext()
    cudnn = torch.backends.cudnn
    return cudnn.flags(True, True, 0, cudnn.deterministic, cudnn.allow_tf32)


def fast_nets(nets: MuseTalkNets, ops=None) -> FastNets | PlainNets:
    """Return the fastest form of `nets` that works where they are.

    Args:
        nets: loaded networks; they must stay where they are and unchanged.
        ops: TorchOps() runs the fast form without kernels (tests); default the Triton kernels.

    Returns:
        FastNets, or PlainNets with the reason: no NVIDIA card, float32 weights, or no triton package.
    """
    if isinstance(ops, TorchOps):
        return FastNets(nets, ops)
    reason = why_not(nets.weights_device)
    if reason is None and nets.weights_dtype == torch.float32:
        reason = "the fused kernels work in fp16 or bf16; choose precision fp16"
    return PlainNets(nets, reason) if reason else FastNets(nets, ops)
