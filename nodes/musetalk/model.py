"""The three networks as one model: audio states, face-crop latents, generated crops; loading and saving.

Crops are uint8 RGB (B, crop, crop, 3); latents (B, 2 * latent_channels, h, w) hold the masked crop first, the
reference next, both already multiplied by the scaling factor; tokens are (B, n_tokens, d_model) WITHOUT positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.weights import load_strict, on_meta
from .config import MuseTalkConfig
from .unet import UNet2DCondition
from .vae import AutoencoderKL
from .whisper import WhisperEncoder, positional_encoding

EMBEDDED_DIR = Path(__file__).parent / "embedded"


class MuseTalkNets(nn.Module):
    """Whisper encoder, UNet and VAE of one `MuseTalkConfig`, in one dtype on one device.

    Constructing it initialises the weights (for training). To load weights use `build_nets`, which skips that.
    """

    def __init__(self, config: MuseTalkConfig) -> None:
        super().__init__()
        self.config = config
        self.whisper = WhisperEncoder(config.whisper)
        self.unet = UNet2DCondition(config.unet)
        self.vae = AutoencoderKL(config.vae)
        positions = positional_encoding(config.n_tokens, config.whisper.d_model)
        self.register_buffer("positions", positions, persistent=False)
        self.wants_fp8 = False
        """Whether the fast form may store layers in fp8; the modules themselves never do."""

    @property
    def weights_dtype(self) -> torch.dtype:
        """Dtype of the weights and of the arithmetic."""
        return self.unet.conv_in.weight.dtype

    @property
    def weights_device(self) -> torch.device:
        """Device of the weights. Not called `device`: ComfyUI's ModelPatcher sets that name on what it holds."""
        return self.unet.conv_in.weight.device

    def encode_audio(self, mel: Tensor) -> Tensor:
        """Log-mel (B, n_mels, 2 * rows) of any float dtype -> states (B, rows, n_states, d_model) in the weights' dtype."""
        return self.whisper(mel.to(self.weights_device, self.weights_dtype))

    def network_inputs(self, rgb: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 crops -> (masked, whole) VAE inputs in [-1, 1], (B, 3, crop, crop) in the weights' dtype."""
        size = self.config.crop_size
        if rgb.dtype != torch.uint8 or rgb.ndim != 4 or tuple(rgb.shape[1:]) != (size, size, 3):
            raise ValueError(
                f"face crops must be uint8 (batch, {size}, {size}, 3), got {rgb.dtype} {tuple(rgb.shape)}: "
                f"resize the crop to the model's size first"
            )
        whole = rgb.to(self.weights_device).permute(0, 3, 1, 2).contiguous().float() / 255.0
        masked = whole.clone()
        masked[:, :, self.config.masked_from_row :] = 0.0  # before normalising: black, i.e. -1, not grey
        return tuple(((x - 0.5) / 0.5).to(self.weights_dtype) for x in (masked, whole))

    @torch.no_grad()
    def encode_crops(self, rgb: Tensor, reference: Tensor | None = None) -> Tensor:
        """Latents of face crops, by the posterior mean (deterministic; the sample upstream draws is not).

        Args:
            rgb: uint8 (B, crop, crop, 3); its lower part is blacked out for the masked latent.
            reference: crops for the reference latent, same shape; default the same crops.

        Returns:
            (B, 2 * latent_channels, h, w) in the weights' dtype.

        Raises:
            ValueError: another size or dtype, or a different number of reference crops.
        """
        masked, whole = self.network_inputs(rgb)
        if reference is not None:
            if len(reference) != len(rgb):
                raise ValueError(f"{len(reference)} reference crops for {len(rgb)} crops: give one for each")
            whole = self.network_inputs(reference)[1]
        mean, _ = self.vae.encode(torch.cat([masked, whole]))
        return torch.cat((mean * self.config.vae.scaling_factor).chunk(2), dim=1)

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Raw decoded crops (B, 3, crop, crop), about [-1, 1], not clamped; differentiable."""
        cfg = self.config
        wanted = (2 * cfg.latent_channels, cfg.latent_size, cfg.latent_size)
        if tuple(latents.shape[1:]) != wanted:
            raise ValueError(
                f"latents must be (batch, {wanted[0]}, {wanted[1]}, {wanted[2]}), got {tuple(latents.shape)}"
            )
        if tuple(tokens.shape[1:]) != (cfg.n_tokens, cfg.whisper.d_model):
            raise ValueError(
                f"audio tokens must be (batch, {cfg.n_tokens}, {cfg.whisper.d_model}), got {tuple(tokens.shape)}: "
                f"the features were made for another model"
            )
        tokens = tokens.to(self.weights_device, self.weights_dtype)
        tokens = tokens + self.positions.to(self.weights_dtype)
        generated = self.unet(latents.to(self.weights_device, self.weights_dtype), tokens)
        return self.vae.decode(generated / cfg.vae.scaling_factor)

    @torch.no_grad()
    def predict(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Generate face crops.

        Args:
            latents: (B, 2 * latent_channels, h, w) from `encode_crops`.
            tokens: (B, n_tokens, d_model) audio window of each frame, positions not added.

        Returns:
            uint8 RGB (B, crop, crop, 3), contiguous.

        Raises:
            ValueError: shapes of another model.
        """
        return to_rgb_uint8(self(latents, tokens))


def to_rgb_uint8(images: Tensor) -> Tensor:
    """Decoded (B, 3, H, W) in [-1, 1] -> uint8 (B, H, W, 3), halves rounded to even."""
    unit = (images / 2 + 0.5).clamp(0, 1)
    return unit.float().mul_(255).round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def memory_format(key: str, value: Tensor) -> torch.memory_format:
    """Layout of the weight `key` (with its `unet.` or `vae.` in front); `build_nets` says why."""
    fast = value.ndim == 4 and key.startswith(("unet.", "vae.decoder.", "vae.post_quant_conv."))
    return torch.channels_last if fast else torch.preserve_format


def build_nets(
    config: MuseTalkConfig, state: Mapping[str, Tensor], source: str, dtype: torch.dtype = torch.float32
) -> MuseTalkNets:
    """Networks for inference with the weights of `state` (keys prefixed `whisper.`, `unet.`, `vae.`), on the CPU.

    UNet and decoder get channels_last weights, which CPUs run faster. The encoder must not: torch's channels_last
    GroupNorm adds up float32 squares one by one, and on the flat black half of a masked crop that put the latents
    off by 3e-4 (contiguous: 2e-6).
    """
    nets = on_meta(MuseTalkNets, config)
    # Copies even where the dtype fits: views into a mapped file are unaligned and change results in the last bit.
    state = {k: v.to(dtype, copy=True, memory_format=memory_format(k, v)) for k, v in state.items()}
    load_strict(nets, state, source)
    return nets.eval().requires_grad_(False)


def load_config(folder: Path) -> MuseTalkConfig:
    """Read `folder`/config.json. ValueError names the file if it is missing or damaged."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing: reinstall the pack, or make it with tools/train_demo.py")
    try:
        return MuseTalkConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}): reinstall the pack") from error


def load_nets(folder: Path, dtype: torch.dtype = torch.float32) -> MuseTalkNets:
    """Networks saved by `save_nets` in `folder` (model.safetensors and config.json).

    Raises:
        ValueError: a file is missing, is not JSON, or does not fit the config; the message names it.
    """
    config, weights = load_config(folder), Path(folder) / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"{weights} is missing: reinstall the pack, or make it with tools/train_demo.py")
    return build_nets(config, load_file(weights), str(weights), dtype)


def load_embedded(dtype: torch.dtype = torch.float32) -> MuseTalkNets:
    """The tiny model that ships with the pack, ready for inference on the CPU."""
    return load_nets(EMBEDDED_DIR, dtype)


def save_nets(nets: MuseTalkNets, path: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write `model.safetensors` (cast to `dtype`) and `config.json` into the folder `path`, creating it."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().to("cpu", dtype).contiguous() for k, v in nets.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt", "model": nets.config.name})
    (folder / "config.json").write_text(json.dumps(nets.config.to_dict(), indent=2) + "\n", encoding="utf-8")
