"""MuseTalkModel: names a checkpoint and how to run it; what the MUSETALK_MODEL socket carries."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import MuseTalkConfig
    from .model import MuseTalkNets

EMBEDDED = "embedded"
EMBEDDED_DIR = Path(__file__).parent / "embedded"
CHECKPOINTS = (EMBEDDED,)
PRECISIONS = ("fp32",)


@dataclass(frozen=True)
class MuseTalkModel:
    """A handle without weights: `build()` makes the module, `identity` names the weights by content."""

    checkpoint: str = EMBEDDED
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError(
                f"checkpoint {self.checkpoint!r} is unknown; this version has {', '.join(CHECKPOINTS)}"
            )
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown; use one of {', '.join(PRECISIONS)}")

    @property
    def key(self) -> Hashable:
        return ("musetalk", self.checkpoint, self.precision, self.identity)

    @property
    def folder(self) -> Path:
        """Where model.safetensors and config.json lie."""
        return EMBEDDED_DIR

    @cached_property
    def config(self) -> MuseTalkConfig:
        from .model import load_config

        return load_config(self.folder)

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the weights file."""
        return hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest()

    def build(self) -> MuseTalkNets:
        from .model import load_nets

        return load_nets(self.folder)
