"""Avatars of other programs, taken over as packets of our own."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from ..core.legacy_read import FORMS, legacy_form
from ..core.packet import AvatarPacket
from ..core.packet_import import OFFICIAL_VAE, Imported, import_legacy
from .build import SourcePlan
from .names import check_new_id


def take_over(
    folder: Path,
    root: Path,
    avatar_id: str,
    frames: Path | None = None,
    fps: Fraction | None = None,
    roots: Sequence[Path] = (),
) -> tuple[AvatarPacket, tuple[str, ...]]:
    """Import the legacy or upstream avatar in `folder` as `root / avatar_id`; return it and notes for the user.

    Which engine's it is, its files say.

    Args:
        frames: picture, clip or folder of pictures, for a form that holds none (latents.pt, coords.pkl, masks.pkl,
            meta.json). A path that the meta names is not followed: it is another machine's.
        fps: rate of the avatar; default what the folder says, that of `frames`, else 25.
        roots: model folders: the packet is bound to the weights found there, else to any official ones.

    Raises:
        ValueError: a file that is missing, does not fit, or holds more than plain data (named; nothing of it is run).
    """
    from ..ditto.legacy_read import DITTO_FORMS

    check_new_id(avatar_id)
    if legacy_form(folder, {**FORMS, **DITTO_FORMS}) in DITTO_FORMS:
        made = _take_over_ditto(folder, root, avatar_id, frames, fps, roots)
    else:
        stream = SourcePlan(fps=fps, max_frames=0).open(frames).stream if frames else None
        made = import_legacy(folder, root, avatar_id, stream, fps, _official_musetalk(roots))
    return made.packet, made.notes


def _take_over_ditto(folder, root, avatar_id, frames, fps, roots) -> Imported:
    from ..ditto.bake import OFFICIAL_EXTRACTORS
    from ..ditto.handle import OFFICIAL, DittoModel
    from ..ditto.legacy_import import import_legacy_ditto

    if frames is not None:
        raise ValueError(f"{folder.name} is a Ditto avatar with its own pictures; leave out those given")
    try:
        sha256 = DittoModel(OFFICIAL, roots=tuple(roots)).identity
    except ValueError:  # its files are not there
        sha256 = OFFICIAL_EXTRACTORS["sha256"]
    return import_legacy_ditto(folder, root, avatar_id, fps, {**OFFICIAL_EXTRACTORS, "sha256": sha256})


def _official_musetalk(roots: Sequence[Path]) -> dict:
    from ..musetalk.handle import MuseTalkModel
    from ..musetalk.official import VERSIONS

    for checkpoint in VERSIONS:
        try:
            return {"name": "legacy import", "sha256": MuseTalkModel(checkpoint, roots=tuple(roots)).identity}
        except ValueError:  # its files are not there
            continue
    return dict(OFFICIAL_VAE)
