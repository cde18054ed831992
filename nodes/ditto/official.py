"""The official weights: where their files may lie, and how they become our networks.

Files are those of digital-avatar/ditto-talkinghead, folder ditto_pytorch/models, as .pth or re-saved as .safetensors.
Layouts: appearance, motion, warp and decoder are plain state dicts (motion's keys begin with `detector.`, the decoder's
spectral norm is not folded); stitch_network holds a dict whose entry `retarget_shoulder` has keys with `module.`; lmdm
has the entry `model_state_dict`. Source: spec/ditto.md 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.checkpoint import load_state
from ..core.models import MissingModel, find_file, missing_text, need_file
from .config import OFFICIAL, DittoConfig

if TYPE_CHECKING:
    from .networks import DittoNets

_SUFFIXES = ("safetensors", "pth", "pt")
_HOMES = (
    "ditto",
    "ditto/ditto_pytorch/models",
    "ditto/models",
    "diffusers/digital-avatar/ditto-talkinghead/ditto_pytorch/models",
    "ditto_pytorch/models",
)
"""Below a root: our own folder, a snapshot of the hub repository in it, other places that snapshots go to."""
ONNX_HOMES = (
    "ditto",
    "ditto/ditto_pytorch/aux_models",
    "ditto/aux_models",
    "ditto/ditto_onnx",
    "diffusers/digital-avatar/ditto-talkinghead/ditto_pytorch/aux_models",
    "diffusers/digital-avatar/ditto-talkinghead/ditto_onnx",
    "ditto_pytorch/aux_models",
    "ditto_onnx",
)
"""The same for what exists as ONNX alone: HuBERT and the face networks (`exact_faces`), of either set."""
_HUBERT = ("hubert_streaming_fix_kv.onnx", "hubert.onnx")
_LMDM = "lmdm_v0.4_hubert"
_STITCH_ENTRY = "retarget_shoulder"


@dataclass(frozen=True)
class DittoFiles:
    """The files of the official PyTorch set."""

    appearance_extractor: Path
    motion_extractor: Path
    warp_network: Path
    decoder: Path
    stitch_network: Path
    lmdm: Path

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that the networks depend on."""
        return tuple(getattr(self, f.name) for f in fields(self))


def find_official(roots: tuple[Path, ...]) -> DittoFiles:
    """Return the files of the official set. MissingModel names every file that is not there."""
    found, missing = look_for(roots)
    if missing:
        raise MissingModel(missing_text(missing, roots))
    return DittoFiles(**found)


def find_hubert(roots: tuple[Path, ...]) -> Path:
    """Return HuBERT's ONNX file, which has no PyTorch form. MissingModel says where it is looked for."""
    return need_file([f"{home}/{name}" for home in ONNX_HOMES for name in _HUBERT], roots)


def look_for(
    roots: tuple[Path, ...], with_hubert: bool = False
) -> tuple[dict[str, Path | None], tuple[str, ...]]:
    """Return the files found (None for the others), and the names of those that are missing."""
    stems = {f.name: _LMDM if f.name == "lmdm" else f.name for f in fields(DittoFiles)}
    found = {
        part: find_file([f"{home}/{stem}.{suffix}" for home in _HOMES for suffix in _SUFFIXES], roots)
        for part, stem in stems.items()
    }
    missing = [f"ditto/{stems[part]}.pth" for part, path in found.items() if path is None]
    if with_hubert and find_file([f"{home}/{n}" for home in ONNX_HOMES for n in _HUBERT], roots) is None:
        missing.append(f"ditto/{_HUBERT[0]}")
    return found, tuple(missing)


def load_official(
    files: DittoFiles, dtype: torch.dtype = torch.float32, config: DittoConfig = OFFICIAL
) -> DittoNets:
    """Image networks for inference with the weights of `files`, on the CPU; memory peaks at about one copy of them.

    Raises:
        ValueError: a file is unreadable, or its tensors do not fit; names the file and the tensors.
    """
    # The networks' modules are not needed to list checkpoints.
    from ..core.weights import load_strict, on_meta
    from .networks import NETWORKS, DittoNets, cast_part

    nets = on_meta(DittoNets, config)
    for name, (part, _) in NETWORKS.items():
        path = getattr(files, name)
        state = read_network(name, path, nets)
        load_strict(getattr(nets, part), cast_part(part, state, dtype), str(path))
    return nets.eval().requires_grad_(False)


def read_network(name: str, path: Path, nets: DittoNets) -> dict[str, Tensor]:
    """Return the tensors of file `name` (a key of NETWORKS) under our keys: unwrapped, renamed, folded.

    Raises:
        ValueError: the file is unreadable, or does not have the keys and shapes of the network in `nets`.
    """
    if name == "stitch_network":
        state = load_state(path, entry=_STITCH_ENTRY)
        return {key.replace("module.", ""): value for key, value in state.items()}
    state = load_state(path)
    if name != "decoder":
        return state
    return _plain_decoder(state, path, nets)


def _plain_decoder(state: Mapping[str, Tensor], path: Path, nets: DittoNets) -> dict[str, Tensor]:
    from ..core.weights import check_fit
    from .decoder import fold_spectral_norm, is_folded, official_shapes

    if is_folded(state):
        return dict(state)
    # Held against the file's own keys first, so that a misfit is told in the file's words.
    wanted = {key: torch.empty(shape, device="meta") for key, shape in official_shapes(nets.decoder).items()}
    check_fit(wanted, state, f"{path} does not fit {type(nets.decoder).__name__}")
    try:
        return fold_spectral_norm(state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
