"""Avatars of other programs, taken over as packets of our own."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from ..avatars.build import SourcePlan
from ..avatars.names import check_new_id
from ..core.packet import AvatarPacket
from ..core.packet_import import OFFICIAL_VAE, import_legacy
from .handle import MuseTalkModel
from .official import VERSIONS


def take_over(
    folder: Path,
    root: Path,
    avatar_id: str,
    frames: Path | None = None,
    fps: Fraction | None = None,
    roots: Sequence[Path] = (),
) -> tuple[AvatarPacket, tuple[str, ...]]:
    """Import the legacy or upstream avatar in `folder` as `root / avatar_id`; return it and notes for the user.

    Args:
        frames: picture, clip or folder of pictures, for a form that holds none (latents.pt, coords.pkl, masks.pkl,
            meta.json). A path that the meta names is not followed: it is another machine's.
        fps: rate of the avatar; default what the folder says, that of `frames`, else 25.
        roots: model folders: the packet is bound to the VAE found there, else to any official one.

    Raises:
        ValueError: a file that is missing, does not fit, or holds more than plain data (named; nothing of it is run).
    """
    check_new_id(avatar_id)
    stream = SourcePlan(fps=fps, max_frames=0).open(frames).stream if frames else None
    made = import_legacy(folder, root, avatar_id, stream, fps, _official(roots))
    return made.packet, made.notes


def _official(roots: Sequence[Path]) -> dict:
    for checkpoint in VERSIONS:
        try:
            return {"name": "legacy import", "sha256": MuseTalkModel(checkpoint, roots=tuple(roots)).identity}
        except ValueError:  # its files are not there
            continue
    return OFFICIAL_VAE
