"""The fast form of the networks: `fast_nets(nets)` is called like `nets` and gives the same pictures sooner.

Weights are re-laid when it is made, once; calls allocate only through torch and never wait for the device, so they
can be captured in a CUDA graph. Without an NVIDIA card, or without Triton, the plain modules are called instead and
`reason` says why.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..core.kernel_ops import CONV_CAPABILITY, TritonOps, why_not
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
        self.ops = ops or TritonOps(nets.weights_device)
        with torch.no_grad():
            self.unet, self.decoder = FastUNet(nets.unet, self.ops), FastDecoder(nets.vae, self.ops)

    def __call__(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Raw pictures (B, 3, crop, crop), about [-1, 1], as `MuseTalkNets.forward`."""
        with torch.no_grad(), no_search(latents.device):
            return self.decoder(self._generate(latents, tokens))[0]

    def pixels(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 RGB (B, crop, crop, 3) as `MuseTalkNets.predict`, and bool (B,): is the picture finite."""
        with torch.no_grad(), no_search(latents.device):
            return self.decoder(self._generate(latents, tokens), pixels=True)

    def decode(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder alone, of what `latents` gives: pixels and finite as `pixels`."""
        with torch.no_grad(), no_search(latents.device):
            return self.decoder(latents, pixels=True)

    def latents(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """The UNet alone: generated latents, still multiplied by the scaling factor."""
        with torch.no_grad(), no_search(latents.device):
            return self._generate(latents, tokens)

    def _generate(self, latents: Tensor, tokens: Tensor) -> Tensor:
        nets = self.nets
        tokens = tokens.to(nets.weights_device, nets.weights_dtype)
        tokens = tokens + nets.positions.to(nets.weights_dtype)
        return self.unet(latents.to(nets.weights_device, nets.weights_dtype), tokens)


def no_search(device: torch.device) -> AbstractContextManager:
    """Keep cuDNN from timing its algorithms, whoever switched that on: for these layouts its first choice is as fast.

    H200, decoder, fp16: 931 fps without and 863 with a search at batch 16. A full search of batch 32 took 31 s and
    reserved 39 GB.
    """
    if device.type != "cuda":
        return nullcontext()
    cudnn = torch.backends.cudnn
    return cudnn.flags(True, False, cudnn.benchmark_limit, cudnn.deterministic, cudnn.allow_tf32)


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
    reason = why_plain(nets)
    return PlainNets(nets, reason) if reason else FastNets(nets, ops)


def why_plain(nets: MuseTalkNets) -> str | None:
    """Say why `fast_nets` would give the plain modules where `nets` are, or None if it gives the fast form."""
    reason = why_not(nets.weights_device)
    if reason is None and nets.weights_dtype == torch.float32:
        reason = "the fused kernels work in fp16 or bf16; choose precision fp16"
    return reason


def why_no_fp8(device: torch.device) -> str | None:
    """Say why layers cannot be stored in fp8 on `device`, or None if they can."""
    reason = why_not(device)
    if reason is None and torch.cuda.get_device_capability(device) < CONV_CAPABILITY:
        reason = "this needs compute capability 9.0 (Hopper) or newer"
    return reason
