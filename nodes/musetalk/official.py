"""The official weights: where their files may lie, and how they become our networks.

UNet: a plain state dict with its musetalk.json. VAE: a diffusers folder (present or older attention names) or a
single LDM file. Whisper: a transformers folder or OpenAI's tiny.pt. Names of the places: spec/musetalk.md 2.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.checkpoint import load_state
from ..core.models import MissingModel, find_file, missing_text, safe_relative
from .config import OFFICIAL, MuseTalkConfig, UNetConfig, VAEConfig, WhisperConfig

if TYPE_CHECKING:
    from .model import MuseTalkNets

VERSIONS = {"musetalk-1.5": "musetalkV15", "musetalk-1.0": "musetalk"}
"""Checkpoint -> its folder in the official repository."""
UNET_CONFIG = "musetalk.json"
_EMBEDDED = "embedded"  # the name of the checkpoint that has no files
_UNET_NAMES = ("unet.safetensors", "unet.pth", "pytorch_model.safetensors", "pytorch_model.bin", "unet.bin")
_HOMES = ("musetalk", "diffusers/TMElyralab/MuseTalk", "")
"""Below a root: our own folder or a snapshot of the hub repository, the older node's place, a checkout's models/."""
_VAE_FOLDERS = ("sd-vae", "sd-vae-ft-mse")
_VAE_NAMES = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
_VAE_SINGLE = tuple(
    f"{folder}vae-ft-mse-840000-ema-pruned*.{suffix}"
    for folder in ("vae/", "")
    for suffix in ("safetensors", "ckpt", "pt")
)
_WHISPER_NAMES = ("model.safetensors", "pytorch_model.bin", "tiny.pt")


@dataclass(frozen=True)
class OfficialFiles:
    """The files of one checkpoint. Configs of VAE and whisper are None where the weights come alone."""

    unet: Path
    unet_config: Path
    vae: Path
    vae_config: Path | None
    whisper: Path
    whisper_config: Path | None

    @property
    def weights(self) -> tuple[Path, ...]:
        return self.unet, self.vae, self.whisper

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that the networks depend on."""
        return tuple(path for f in fields(self) if (path := getattr(self, f.name)))


def find_official(checkpoint: str, roots: tuple[Path, ...]) -> OfficialFiles:
    """Return the files of `checkpoint` (musetalk-1.5, musetalk-1.0 or the folder name of a fine-tune).

    Raises:
        MissingModel: names every file that is not there.
    """
    parts, missing = look_for(checkpoint, roots)
    if missing:
        raise MissingModel(missing_text(missing, roots, checkpoint if checkpoint in VERSIONS else None))
    return OfficialFiles(
        parts["unet"], parts["config"], parts["vae"], _beside(parts["vae"]),
        parts["whisper"], _beside(parts["whisper"]),
    )  # fmt: skip


def look_for(checkpoint: str, roots: tuple[Path, ...]) -> tuple[dict[str, Path | None], tuple[str, ...]]:
    """Return the files found (unet, config, vae, whisper) and the names of those that are missing."""
    folder = VERSIONS.get(checkpoint, checkpoint)
    homes = [f"{home}/{folder}".lstrip("/") for home in _HOMES if home or checkpoint in VERSIONS]
    parts: dict[str, Path | None] = {"unet": None, "config": None}
    # Both from one folder: a json beside another version's weights says nothing about them.
    for root in roots:
        for home in homes:
            unet = find_file([f"{home}/{name}" for name in _UNET_NAMES], [root])
            config = find_file([f"{home}/{UNET_CONFIG}"], [root])
            if (unet is not None) + (config is not None) > sum(p is not None for p in parts.values()):
                parts = {"unet": unet, "config": config}
    parts["vae"] = find_file(
        [f"{home}/{f}/{n}".lstrip("/") for home in _HOMES for f in _VAE_FOLDERS for n in _VAE_NAMES], roots
    ) or find_file(_VAE_SINGLE, roots)
    parts["whisper"] = find_file(
        [f"{home}/whisper/{n}".lstrip("/") for home in _HOMES for n in _WHISPER_NAMES], roots
    )
    official_unet = "unet.pth" if folder == VERSIONS["musetalk-1.5"] else "pytorch_model.bin"
    names = {
        "config": f"musetalk/{folder}/{UNET_CONFIG}",
        "unet": f"musetalk/{folder}/{official_unet}",
        "vae": f"musetalk/sd-vae/{_VAE_NAMES[0]}",
        "whisper": f"musetalk/whisper/{_WHISPER_NAMES[0]}",
    }
    return parts, tuple(name for part, name in names.items() if parts[part] is None)


def fine_tunes(roots: tuple[Path, ...]) -> list[str]:
    """Names of the other folders below `musetalk/` of a root that hold a UNet and its musetalk.json, sorted.

    Left out are names that stand for another checkpoint, and those that cannot be looked for: they would stop every list.
    """
    found = set()
    for root in roots:
        for config in Path(root).glob(f"musetalk/*/{UNET_CONFIG}"):
            name = config.parent.name
            if any((config.parent / n).is_file() for n in _UNET_NAMES) and _can_be_named(name):
                found.add(name)
    return sorted(found - {*VERSIONS, *VERSIONS.values(), _EMBEDDED})


def _can_be_named(name: str) -> bool:
    try:
        safe_relative(name)
        name.encode("utf-8")  # ComfyUI's menus go out as UTF-8
    except ValueError:
        return False
    return True


def official_config(files: OfficialFiles, base: MuseTalkConfig = OFFICIAL) -> MuseTalkConfig:
    """Sizes of the networks from the files' configs; what they do not say is as in `base`.

    Raises:
        ValueError: a config is no JSON, of another model, or the faulty first upload of v1.5.
    """
    unet = _unet_config(files.unet_config)
    vae = base.vae
    if files.vae_config is not None:
        values = _json(files.vae_config)
        # Newer diffusers write more than we know; what changes the network changes its tensors, which are checked.
        known = {f.name for f in fields(VAEConfig)}
        with _named(files.vae_config):
            vae = VAEConfig.from_dict({k: v for k, v in values.items() if k in known})
    whisper = base.whisper
    if files.whisper_config is not None:
        whisper = _whisper_config(files.whisper_config)
    with _named(files.unet_config, files.vae_config, files.whisper_config):
        return MuseTalkConfig(
            files.unet.parent.name, base.crop_size, whisper, unet, vae,
            base.window_left, base.window_right, base.masked_fraction,
        )  # fmt: skip


def load_official(
    files: OfficialFiles, dtype: torch.dtype = torch.float32, base: MuseTalkConfig = OFFICIAL
) -> MuseTalkNets:
    """Networks for inference with the weights of `files`, on the CPU; memory peaks at about one copy of them.

    Raises:
        ValueError: a file is unreadable, or its tensors do not fit; names the file and the tensors.
    """
    # The networks' modules are not needed to list checkpoints.
    from .model import MuseTalkNets, on_meta
    from .vae import normalize_vae_keys

    nets = on_meta(MuseTalkNets, official_config(files, base))
    _fill(nets, "unet", load_state(files.unet), files.unet, dtype)
    _fill(nets, "vae", normalize_vae_keys(load_state(files.vae)), files.vae, dtype)
    _fill(nets, "whisper", normalize_whisper_keys(load_state(files.whisper)), files.whisper, dtype)
    return nets.eval().requires_grad_(False)


def _fill(nets: MuseTalkNets, part: str, state: dict[str, Tensor], source: Path, dtype: torch.dtype) -> None:
    from .model import load_strict, memory_format

    network: nn.Module = getattr(nets, part)
    # First against tensors without memory: a misfit is named before anything large is copied.
    shapes = {k: torch.empty(v.shape, dtype=v.dtype, device="meta") for k, v in state.items()}
    load_strict(network, shapes, str(source))
    ready = {}
    for key in list(state):
        value = state.pop(key)  # so that the file's copy goes as ours comes
        ready[key] = value.to(dtype, copy=True, memory_format=memory_format(f"{part}.{key}", value))
    load_strict(network, ready, str(source))


_OPENAI_MARK = "encoder.blocks."
_OPENAI_RULES = [
    (r"^encoder\.", ""),
    (r"^positional_embedding$", "embed_positions.weight"),
    (r"^ln_post\.", "layer_norm."),
    (r"^blocks\.", "layers."),
    (r"\.attn\.(query|key|value|out)\.", lambda m: f".self_attn.{m[1] if m[1] == 'out' else m[1][0]}_proj."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
]
_WHISPER_PREFIXES = ("model.encoder.", "encoder.")
_NOT_ENCODER = ("model.decoder.", "decoder.", "proj_out.")


def normalize_whisper_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a whisper state dict to the encoder's own keys; the decoder is dropped, tensors are shared.

    Known are transformers' names with `model.encoder.`, `encoder.` or no prefix, and OpenAI's. Unknown names stay,
    so that a strict load reports them.
    """
    rules = _OPENAI_RULES if any(key.startswith(_OPENAI_MARK) for key in state) else []
    out = {}
    for key, value in state.items():
        if key.startswith(_NOT_ENCODER):
            continue
        for pattern, new in rules:
            key = re.sub(pattern, new, key)
        for prefix in _WHISPER_PREFIXES:
            key = key.removeprefix(prefix)
        out[key] = value
    return out


def _whisper_config(path: Path) -> WhisperConfig:
    values, names = _json(path), {"n_mels": "num_mel_bins"}
    known = {f.name: names.get(f.name, f.name) for f in fields(WhisperConfig)}
    missing = [name for name in known.values() if name not in values]
    if missing:
        raise ValueError(f"{path} is no config of a whisper model: {', '.join(missing)} is missing")
    with _named(path):
        return WhisperConfig(**{ours: values[theirs] for ours, theirs in known.items()})


def _unet_config(path: Path) -> UNetConfig:
    values = _json(path)
    channels = (values.get("in_channels"), values.get("out_channels"))
    if channels == (32, 16):
        raise ValueError(
            f"{path} has in_channels 32 and out_channels 16: it is the faulty file of the first v1.5 upload, the "
            f"weights have 8 and 4. Get it again (talkinghead models download musetalk-1.5); the musetalk.json of "
            f"v1.0 fits as well"
        )
    with _named(path):
        return UNetConfig.from_dict(values)


@contextmanager
def _named(*paths: Path | None) -> Iterator[None]:
    """Put the files in front of what is wrong with their values."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{', '.join(str(p) for p in paths if p)}: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): get it again") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not a JSON object: get it again")
    return values


def _beside(weights: Path) -> Path | None:
    config = weights.parent / "config.json"
    single = weights.name == "tiny.pt" or weights.name.startswith("vae-ft-mse")
    return config if config.is_file() and not single else None
