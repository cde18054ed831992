"""MuseTalkModel: names a checkpoint and how to run it; what the MUSETALK_MODEL socket carries."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.checkpoints import CheckpointState, describe_states, sha256_once, stamp
from ..core.engine_backends import AUTO, check_backend
from .official import VERSIONS, OfficialFiles, find_official, fine_tunes, look_for, official_config

if TYPE_CHECKING:
    from ..core.engine_spec import EngineIdentity
    from .config import MuseTalkConfig
    from .model import MuseTalkNets

EMBEDDED = "embedded"
EMBEDDED_DIR = Path(__file__).parent / "embedded"
CHECKPOINTS = (EMBEDDED, *VERSIONS)
"""Those that always have a name; folders of fine-tunes add theirs (`available`)."""
PRECISIONS = ("fp32", "fp16", "fp8")
_FP8_BACKENDS = (AUTO, "cuda graph")


@dataclass(frozen=True)
class MuseTalkModel:
    """A handle without weights: `build()` makes the module, `identity` names what packets depend on by content.

    Args:
        checkpoint: "embedded", "musetalk-1.5", "musetalk-1.0", or the folder name of a fine-tune.
        precision: "fp32" or "fp16", of weights and arithmetic; "fp8": fp16, and e4m3 in the layers that bear it on a
            card that has it (see `fast_fp8`).
        roots: models folders to look in, first wins; not needed for the embedded one.
        backend: what runs the networks: "auto", or one of core.engine_backends.BACKENDS to start at.

    Raises:
        MissingModel: a file of the checkpoint is not there; the message says how to get it.
        ValueError: an unknown name, or fp8 for a backend that has none.
    """

    checkpoint: str = EMBEDDED
    precision: str = "fp32"
    roots: tuple[Path, ...] = ()
    backend: str = AUTO

    engine = "musetalk"

    def __post_init__(self) -> None:
        check_backend(self.backend)
        object.__setattr__(self, "roots", tuple(Path(root) for root in self.roots))
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
        if self.precision == "fp8" and self.backend not in _FP8_BACKENDS:
            raise ValueError(
                f"backend {self.backend} has no fp8; choose backend {' or '.join(_FP8_BACKENDS)}, or precision fp16"
            )
        if self.checkpoint == EMBEDDED:
            return
        known = [*CHECKPOINTS, *fine_tunes(self.roots)]
        if self.checkpoint not in known:
            raise ValueError(f"checkpoint {self.checkpoint!r} is unknown; there are {', '.join(known)}")
        find_official(self.checkpoint, self.roots)

    @property
    def key(self) -> Hashable:
        """Changes whenever a file of the weights does; the backend is no part of it, the weights are the same."""
        return ("musetalk", self.checkpoint, self.precision, tuple(stamp(path) for path in self.paths))

    @property
    def version(self) -> str:
        """ "embedded", "1.0" or "1.5": whose masks and margins are the default. Fine-tunes are taken for 1.5."""
        if self.checkpoint == EMBEDDED:
            return EMBEDDED
        return "1.0" if self.checkpoint == "musetalk-1.0" else "1.5"

    @property
    def folder(self) -> Path:
        """Where the UNet's file lies."""
        return EMBEDDED_DIR if self.checkpoint == EMBEDDED else self.files.unet.parent

    @property
    def files(self) -> OfficialFiles:
        """The files of an official checkpoint. ValueError for the embedded one, which is one file of its own."""
        if self.checkpoint == EMBEDDED:
            raise ValueError("the embedded checkpoint has no official files")
        return find_official(self.checkpoint, self.roots)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file the networks depend on."""
        if self.checkpoint == EMBEDDED:
            return EMBEDDED_DIR / "model.safetensors", EMBEDDED_DIR / "config.json"
        return self.files.all

    @cached_property
    def config(self) -> MuseTalkConfig:
        if self.checkpoint != EMBEDDED:
            return official_config(self.files)
        from .model import load_config

        return load_config(EMBEDDED_DIR)

    @property
    def identity(self) -> str:
        """SHA-256 of the file that packets depend on: the VAE's (the embedded model is one file)."""
        return sha256_once(
            EMBEDDED_DIR / "model.safetensors" if self.checkpoint == EMBEDDED else self.files.vae
        )

    @property
    def engine_identity(self) -> EngineIdentity:
        """What a built engine of this model depends on."""
        from ..core.engine_spec import EngineIdentity

        return EngineIdentity(self.precision, self.config.to_dict(), self._weights_sha256)

    def _weights_sha256(self) -> str:
        """One SHA-256 over those of every file; takes seconds for the full model the first time."""
        digests = [sha256_once(path) for path in self.paths]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def build(self) -> MuseTalkNets:
        """Networks on the CPU, ready for inference. ValueError names the file that is damaged or does not fit."""
        import torch

        from .model import load_nets
        from .official import load_official

        dtype = torch.float32 if self.precision == "fp32" else torch.float16
        nets = (
            load_nets(EMBEDDED_DIR, dtype)
            if self.checkpoint == EMBEDDED
            else load_official(self.files, dtype)
        )
        nets.wants_fp8 = self.precision == "fp8"
        return nets


def available(roots: tuple[Path, ...] = ()) -> list[CheckpointState]:
    """Return every checkpoint that can be named, with what it lacks; looks at names only, so it is quick."""
    roots = tuple(Path(root) for root in roots)
    states = [CheckpointState(EMBEDDED)]
    for name in (*VERSIONS, *fine_tunes(roots)):
        states.append(CheckpointState(name, look_for(name, roots)[1]))
    return states


def describe(roots: tuple[Path, ...] = ()) -> str:
    """Say for each checkpoint whether it is ready, else what is missing and how to get it; one line each."""
    return describe_states(available(roots), "musetalk-1.5", roots)
