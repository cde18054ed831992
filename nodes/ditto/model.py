"""Ditto's networks as one model: images, motion diffusion, and the embedded model's speech encoder; loading and saving."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.weights import load_strict, on_meta
from .config import OFFICIAL, DittoConfig
from .lmdm import LMDM, LMDMConfig
from .networks import DittoNets, cast_part
from .speech_encoder import SpeechEncoder, SpeechEncoderConfig

EMBEDDED_DIR = Path(__file__).parent / "embedded"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
HUBERT_WIDTH = 1024
_CONDITION_EXTRA = 16
"""Columns of a condition beside speech and key points: emotion 8, eye openness 2, eye balls 6."""


@dataclass(frozen=True)
class DittoModelConfig:
    """Sizes of the whole model.

    speech: None where HuBERT listens. from_avatar: movement counts from the avatar's own pose, at which this model's motion
    starts, and not from the motion's first frame as upstream has it: an emotion shows then from the start on.
    """

    name: str
    nets: DittoConfig
    lmdm: LMDMConfig
    speech: SpeechEncoderConfig | None = None
    from_avatar: bool = False

    def __post_init__(self) -> None:
        motion = self.nets.motion
        flat = 3 * motion.n_keypoints
        wanted = {
            "motion_dim": 1 + 3 * motion.n_bins + 3 + flat,
            "cond_dim": self.speech_width + _CONDITION_EXTRA + flat,
        }
        for name, value in wanted.items():
            if getattr(self.lmdm, name) != value:
                raise ValueError(
                    f"LMDMConfig.{name} is {getattr(self.lmdm, name)}, but {motion.n_keypoints} key points, "
                    f"{motion.n_bins} bins and speech rows of {self.speech_width} make {value}: the parts do not fit together"
                )

    @property
    def speech_width(self) -> int:
        """Numbers of a speech row."""
        return HUBERT_WIDTH if self.speech is None else self.speech.width

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; `from_dict` of it gives an equal config."""
        speech = None if self.speech is None else self.speech.to_dict()
        return {
            "name": self.name,
            "nets": self.nets.to_dict(),
            "lmdm": self.lmdm.to_dict(),
            "speech": speech,
            "from_avatar": self.from_avatar,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DittoModelConfig:
        """Build from the JSON object `to_dict` gives. ValueError for another object."""
        keys = {"name", "nets", "lmdm", "speech", "from_avatar"}
        if not isinstance(values, Mapping) or set(values) != keys:
            raise ValueError(f"a Ditto config is a JSON object with {', '.join(sorted(keys))}")
        speech = values["speech"]
        return cls(
            str(values["name"]),
            DittoConfig.from_dict(values["nets"]),
            LMDMConfig.from_dict(values["lmdm"]),
            None if speech is None else SpeechEncoderConfig.from_dict(speech),
            values["from_avatar"] is True,
        )


OFFICIAL_MODEL = DittoModelConfig("ditto", OFFICIAL, LMDMConfig())


class DittoModules(nn.Module):
    """All networks of one `DittoModelConfig` on one device. Picture networks have the model's precision, see
    `networks.HALF_PARTS`; key points, motion and speech are float32 in every model."""

    def __init__(self, config: DittoModelConfig) -> None:
        super().__init__()
        self.config = config
        self.nets = DittoNets(config.nets)
        self.lmdm = LMDM(config.lmdm)
        self.speech = None if config.speech is None else SpeechEncoder(config.speech)

    @property
    def weights_device(self) -> torch.device:
        """Device of the weights. Not called `device`: ComfyUI's ModelPatcher sets that name on what it holds."""
        return self.nets.weights_device

    @property
    def weights_dtype(self) -> torch.dtype:
        """Dtype of the picture networks."""
        return self.nets.weights_dtype


def build_modules(
    config: DittoModelConfig, state: Mapping[str, Tensor], source: str, dtype: torch.dtype = torch.float32
) -> DittoModules:
    """Networks for inference with the weights of `state` (keys prefixed `nets.`, `lmdm.`, `speech.`), on the CPU.

    Raises:
        ValueError: tensors missing, unknown or misshapen; names `source` and the tensors.
    """
    made = _empty(config)
    ready: dict[str, Tensor] = {}
    for key, value in state.items():
        member, _, rest = key.partition(".")
        part, _, name = rest.partition(".")
        if member == "nets":
            ready.update({f"nets.{part}.{k}": v for k, v in cast_part(part, {name: value}, dtype).items()})
        else:
            wanted = torch.float32 if value.is_floating_point() else value.dtype
            ready[key] = value.to(wanted, copy=True)
    load_strict(made, ready, source)
    return made.eval().requires_grad_(False)


def _empty(config: DittoModelConfig) -> DittoModules:
    return on_meta(DittoModules, config)


def load_config(folder: Path) -> DittoModelConfig:
    """Read `folder`/config.json. ValueError names the file if it is missing or damaged."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(f"{path} is missing: reinstall the pack, or save the model again")
    try:
        return DittoModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}): reinstall the pack") from error


def load_modules(folder: Path, dtype: torch.dtype = torch.float32) -> DittoModules:
    """Networks saved by `save_modules` in `folder`.

    Raises:
        ValueError: a file is missing, is not JSON, or does not fit the config; the message names it.
    """
    config, weights = load_config(folder), Path(folder) / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{weights} is missing: reinstall the pack, or save the model again")
    return build_modules(config, load_file(weights), str(weights), dtype)


def save_modules(modules: DittoModules, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write model.safetensors (floats cast to `dtype`) and config.json into `folder`, creating it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Copies: the layers of LMDM share one table, which the file format refuses.
    state = {
        k: v.detach().to("cpu", dtype if v.is_floating_point() else v.dtype, copy=True).contiguous()
        for k, v in modules.state_dict().items()
    }
    save_file(state, folder / WEIGHTS, metadata={"format": "pt", "model": modules.config.name})
    text = json.dumps(modules.config.to_dict(), indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def load_official_modules(
    files, dtype: torch.dtype = torch.float32, config: DittoModelConfig = OFFICIAL_MODEL
) -> DittoModules:
    """Networks with the weights of `official.DittoFiles`, on the CPU.

    Raises:
        ValueError: a file is unreadable, or its tensors do not fit; names the file and the tensors.
    """
    from .lmdm import load_lmdm
    from .official import load_official

    made = _empty(config)
    made.nets = load_official(files, dtype, config.nets)
    made.lmdm = load_lmdm(files.lmdm, config.lmdm)
    return made.eval().requires_grad_(False)
