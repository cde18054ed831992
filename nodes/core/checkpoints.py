"""What model handles of every engine need of files: which checkpoints are whole, and what their bytes are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .model_catalog import BUNDLES, bundle_of, total_text
from .models import MissingModel, download_command, missing_text


@dataclass(frozen=True)
class CheckpointState:
    """A checkpoint that can be named, and the files it still lacks (paths below the models folder)."""

    name: str
    missing: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.missing


def describe_states(states: Sequence[CheckpointState], fallback: str, roots: tuple[Path, ...] = ()) -> str:
    """Say for each checkpoint whether it is ready, else what is missing and how to get it; one line each.

    fallback: bundle of what is no bundle itself (a fine-tune lacks what its base has).
    """
    lines = []
    for state in states:
        if state.ready:
            lines.append(f"{state.name}: ready")
            continue
        size = total_text(found[1] for name in state.missing if (found := bundle_of(name)))
        bundle = state.name if state.name in BUNDLES else fallback
        lines.append(
            f"{state.name}: missing {', '.join(state.missing)} ({size}); {download_command([bundle], roots)}"
        )
    return "\n".join(lines)


def stamp(path: Path) -> tuple[str, int, int]:
    """Return path, bytes and time of a file: changes when it does. MissingModel if it has gone."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise MissingModel(missing_text([path.name], [path.parent])) from error
    return str(path), status.st_size, status.st_mtime_ns


def sha256_once(path: Path) -> str:
    """SHA-256 of a file; kept in this process until its size or time changes."""
    return _sha256(*stamp(path))


@lru_cache(maxsize=32)
def _sha256(path: str, _size: int, _mtime_ns: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
