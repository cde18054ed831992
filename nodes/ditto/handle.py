"""DittoModel: names a checkpoint and how to run it; what the DITTO_MODEL socket carries."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.checkpoints import CheckpointState, describe_states, sha256_once, stamp
from ..core.engine_backends import AUTO, check_backend
from .official import DittoFiles, find_hubert, find_official, look_for

if TYPE_CHECKING:
    from ..core.engine_spec import EngineIdentity
    from .model import DittoModelConfig, DittoModules

EMBEDDED, OFFICIAL = "embedded", "ditto"
EMBEDDED_DIR = Path(__file__).parent / "embedded"
CHECKPOINTS = (EMBEDDED, OFFICIAL)
PRECISIONS = ("fp32", "fp16")


@dataclass(frozen=True)
class DittoModel:
    """A handle without weights: `build()` makes the modules, `identity` names what packets depend on by content.

    Args:
        checkpoint: "embedded", or "ditto" for the official files.
        precision: "fp32" or "fp16", of the picture networks; key points, motion and speech are fp32 always.
        roots: models folders to look in, first wins; not needed for the embedded one.
        backend: what runs the networks: "auto", or one of core.engine_backends.BACKENDS to start at.

    Raises:
        MissingModel: a file of the checkpoint is not there; the message says how to get it.
        ValueError: an unknown name.
    """

    checkpoint: str = EMBEDDED
    precision: str = "fp32"
    roots: tuple[Path, ...] = ()
    backend: str = AUTO

    engine = "ditto"

    def __post_init__(self) -> None:
        check_backend(self.backend)
        object.__setattr__(self, "roots", tuple(Path(root) for root in self.roots))
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError(f"checkpoint {self.checkpoint!r} is unknown; there are {', '.join(CHECKPOINTS)}")
        if self.checkpoint == OFFICIAL:
            find_official(self.roots)
            find_hubert(self.roots)

    @property
    def key(self) -> Hashable:
        """Changes whenever a file of the weights does; the backend is no part of it, the weights are the same."""
        return ("ditto", self.checkpoint, self.precision, tuple(stamp(path) for path in self.paths))

    @property
    def version(self) -> str:
        """ "embedded" or "official"."""
        return EMBEDDED if self.checkpoint == EMBEDDED else "official"

    @property
    def files(self) -> DittoFiles:
        """The files of the official checkpoint. ValueError for the embedded one, which is one file of its own."""
        if self.checkpoint == EMBEDDED:
            raise ValueError("the embedded checkpoint has no official files")
        return find_official(self.roots)

    @property
    def hubert(self) -> Path | None:
        """HuBERT's ONNX file; None for the embedded checkpoint, whose speech encoder is one of its networks."""
        return None if self.checkpoint == EMBEDDED else find_hubert(self.roots)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file the networks depend on; HuBERT's is not among them, it is no module."""
        if self.checkpoint == EMBEDDED:
            return EMBEDDED_DIR / "model.safetensors", EMBEDDED_DIR / "config.json"
        return self.files.all

    @cached_property
    def config(self) -> DittoModelConfig:
        from .model import OFFICIAL_MODEL, load_config

        return load_config(EMBEDDED_DIR) if self.checkpoint == EMBEDDED else OFFICIAL_MODEL

    @property
    def identity(self) -> str:
        """SHA-256 over the files that packets depend on: the two extractors' (the embedded model is one file)."""
        if self.checkpoint == EMBEDDED:
            return sha256_once(EMBEDDED_DIR / "model.safetensors")
        files = self.files
        return _joined([files.appearance_extractor, files.motion_extractor])

    @property
    def engine_identity(self) -> EngineIdentity:
        """What a built engine of this model depends on."""
        from ..core.engine_spec import EngineIdentity

        return EngineIdentity(self.precision, self.config.to_dict(), lambda: _joined(self.paths))

    def build(self) -> DittoModules:
        """Networks on the CPU, ready for inference. ValueError names the file that is damaged or does not fit."""
        import torch

        from .model import load_modules, load_official_modules

        dtype = torch.float32 if self.precision == "fp32" else torch.float16
        if self.checkpoint == EMBEDDED:
            return load_modules(EMBEDDED_DIR, dtype)
        return load_official_modules(self.files, dtype)


def available(roots: tuple[Path, ...] = ()) -> list[CheckpointState]:
    """Return every checkpoint that can be named, with what it lacks; looks at names only, so it is quick."""
    missing = look_for(tuple(Path(root) for root in roots), with_hubert=True)[1]
    return [CheckpointState(EMBEDDED), CheckpointState(OFFICIAL, missing)]


def describe(roots: tuple[Path, ...] = ()) -> str:
    """Say for each checkpoint whether it is ready, else what is missing and how to get it; one line each."""
    return describe_states(available(roots), OFFICIAL, roots)


def _joined(paths) -> str:
    return hashlib.sha256(" ".join(sha256_once(path) for path in paths).encode()).hexdigest()
