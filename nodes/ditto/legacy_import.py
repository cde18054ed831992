"""Making a packet of an avatar folder that other Ditto software wrote (its forms: legacy_read.py).

Nothing of it is run, and nothing is left of an import that fails. Frames and volumes are copied one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.frames import RunContext
from ..core.packet import (
    AvatarInfo,
    AvatarPacket,
    DittoReader,
    PacketDraft,
    PacketError,
    check_new_place,
    preview_jpeg,
)
from ..core.packet_import import Imported, files_sha256, fold, told_rate
from ..core.report import FrameList
from .bake import OFFICIAL_EXTRACTORS
from .eyes import NO_EYE_BALL
from .given_faces import OPEN_EYES
from .legacy_read import DITTO_FORMS, LegacyDitto, read_legacy_ditto
from .putback import feather_mask, touched_part, warp_into

_SETTLE_EVERY = 16
_MASKS_ALIKE = 0.02
"""Mean difference from our mask, inside the part of the frame that either touches, up to which masks count as the same."""


def import_legacy_ditto(
    folder: Path,
    root: Path,
    avatar_id: str,
    fps: Fraction | None = None,
    model: Mapping[str, Any] = OFFICIAL_EXTRACTORS,
    ctx: RunContext | None = None,
) -> Imported:
    """Write the legacy avatar in `folder` as the packet `root / avatar_id`.

    A list that runs forward and back is stored once as pingpong, one of equal entries as a still, others as a loop.
    Its masks are not taken over: ours are made of the crop, and the notes say where they differ. The form does not say
    how the eyes are: without eye_open and eye_ball in its x_s_info they count as open and looking ahead.

    Args:
        fps: rate of the avatar; default what the folder says, else 25.
        model: name and sha256 of the weights whose extractors made the features.

    Raises:
        UnsafePickle: something in it asks for more than plain data; its name is in the message.
        PacketError: files missing, damaged or not fitting each other; grids that are no affine map.
    """
    ctx = ctx or RunContext()
    check_new_place(root, avatar_id)
    legacy = read_legacy_ditto(folder)
    notes: list[str] = []
    lost = FrameList()
    lost.add(0, (~legacy.placed).tolist())
    if lost:
        notes.append(f"entries {lost} do not have their face in the frame: they are shown as they are")
    n, cycle = _fold(legacy)
    if n < legacy.n:
        notes.append(f"{legacy.n} entries are stored as {n} ({cycle}): the rest repeats them")
    if legacy.eye_open is None or legacy.eye_ball is None:
        notes.append("it does not say how the eyes are: they count as open, looking ahead")
    notes += _about_masks(legacy, n)
    info = AvatarInfo(
        id=avatar_id,
        engine="ditto",
        size=legacy.frames.size,
        fps=fps or told_rate(legacy.facts, None, notes),
        n_frames=n,
        cycle=cycle,
        model=dict(model),
        source={
            "name": folder.name,
            "sha256": files_sha256(folder, DITTO_FORMS[legacy.form]),
            "form": legacy.form,
        },
    )
    packet = _write(ctx, root, info, legacy)
    for note in notes:
        ctx.warn(note)
    return Imported(packet, legacy.form, tuple(notes))


def _write(ctx: RunContext, root: Path, info: AvatarInfo, legacy: LegacyDitto) -> AvatarPacket:
    n, (width, height) = info.n_frames, info.size
    rows = {**{name: legacy.pose[name] for name in DittoReader.POSE}, **_eyes(legacy)}
    rows = {name: series[:n].numpy() for name, series in rows.items()}
    rows |= {"c2o": legacy.c2o[:n], "found": legacy.placed[:n]}
    shapes = {name: series.shape for name, series in rows.items()}
    with PacketDraft(root, "ditto") as draft:
        frames = draft.frames(n, height, width)
        out = draft.arrays("features.safetensors", {"f_s": (n, *legacy.volumes.shape[1:]), **shapes})
        for name, series in rows.items():
            out[name][:] = series
        for i, picture in enumerate(legacy.frames.read(ctx, n)):
            ctx.check_cancelled()
            volume = legacy.volumes[i].half()
            if not bool(volume.isfinite().all()):
                raise PacketError(f"f_s.pt: entry {i} is not finite in fp16; build the avatar anew")
            frames[i], out["f_s"][i] = picture, volume.numpy()
            if i % _SETTLE_EVERY == _SETTLE_EVERY - 1:
                draft.settle()
            ctx.tick(i + 1, n)
        preview = preview_jpeg(np.array(frames[0]))
        del frames, out  # Windows does not rename a folder whose files are mapped
        return draft.finish(info, preview)


def _eyes(legacy: LegacyDitto) -> dict[str, torch.Tensor]:
    if legacy.eye_open is not None and legacy.eye_ball is not None:
        return {"eye_open": legacy.eye_open, "eye_ball": legacy.eye_ball}
    return {
        name: torch.from_numpy(np.tile(np.float32(value), (legacy.n, 1)))
        for name, value in (("eye_open", OPEN_EYES), ("eye_ball", NO_EYE_BALL))
    }


def _fold(legacy: LegacyDitto) -> tuple[int, str]:
    """Return how many entries to keep, and the cycle that gives back the list."""

    def same(i: int, j: int) -> bool:
        return (
            all(torch.equal(rows[i], rows[j]) for rows in legacy.pose.values())
            and legacy.placed[i] == legacy.placed[j]
            and np.array_equal(legacy.c2o[i], legacy.c2o[j])
            and torch.equal(legacy.volumes[i], legacy.volumes[j])
            and legacy.frames.same(i, j)
        )

    return fold(legacy.n, same)


def _about_masks(legacy: LegacyDitto, n: int) -> list[str]:
    """Return a note if the masks of its first, middle or last entry are not those that we make of the crop."""
    if legacy.masks is None:
        return []
    width, height = legacy.frames.size
    if tuple(legacy.masks.shape[1:]) != (1, height, width):
        return [f"its masks are {tuple(legacy.masks.shape[1:])}, not those of the frames, and are not used"]
    ours = feather_mask()
    worst = 0.0
    for i in sorted({0, n // 2, n - 1}):
        part = touched_part(legacy.c2o[i], len(ours), width, height)
        x1, y1, x2, y2 = part
        theirs = legacy.masks[i, 0].float().numpy()
        inside = theirs[y1:y2, x1:x2]
        off = np.abs(inside - warp_into(ours, legacy.c2o[i], part)).sum()
        outside = np.abs(theirs).sum() - np.abs(inside).sum()
        worst = max(worst, float((off + outside) / inside.size))
    if worst <= _MASKS_ALIKE:
        return []
    return [
        f"its masks differ from ours by {worst:.2f} on average: ours are used, the seam will lie elsewhere"
    ]
