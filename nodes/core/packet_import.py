"""Making a packet of an avatar folder that other MuseTalk software wrote (its forms: legacy_read.py).

Nothing of it is run, and nothing is written before all of it has been checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .blend import clamp_box, crop_geometry
from .frames import FrameStream, RunContext
from .legacy_read import FORMS, LegacyAvatar, LegacyFrames, StreamFrames, legacy_source, read_legacy
from .packet import (
    AvatarInfo,
    AvatarPacket,
    PacketDraft,
    PacketError,
    check_new_place,
    file_sha256,
    preview_jpeg,
)
from .report import FrameList
from .timeline import parse_fps

DEFAULT_FPS = Fraction(25)
OFFICIAL_VAE: Mapping[str, Any] = {"name": "legacy import", "sha256": "official-vae"}
"""What made the latents, as far as anyone knows: the legacy forms do not say."""
_EXPANDS = (1.5, 1.2)
_SETTLE_EVERY = 64


@dataclass(frozen=True)
class Imported:
    """form: which of legacy_read.FORMS it was. notes: what was changed or guessed on the way."""

    packet: AvatarPacket
    form: str
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Geometry:
    boxes: np.ndarray  # int (N,4), inside the frame
    crops: np.ndarray  # int (N,8)
    masks: list[np.ndarray]
    found: np.ndarray  # bool (N,)


def import_legacy(
    folder: Path,
    root: Path,
    avatar_id: str,
    frames: FrameStream | None = None,
    fps: Fraction | None = None,
    model: Mapping[str, Any] = OFFICIAL_VAE,
    ctx: RunContext | None = None,
) -> Imported:
    """Write the legacy avatar in `folder` as the packet `root / avatar_id`.

    A list that runs forward and back is stored once as pingpong, one of equal entries as a still, others as a loop.
    Boxes are cut at the frame's edges; an entry without a usable box is kept as a frame without a face.

    Args:
        frames: the pictures (RGB), for the form of four files only; the first of them are used.
        fps: rate of the avatar; default what the folder says, or that of `frames`, else 25.
        model: name and sha256 of the weights whose VAE made the latents.

    Raises:
        UnsafePickle: something in it asks for more than plain data; its name is in the message.
        PacketError: files missing, damaged or not fitting each other; pictures missing.
    """
    ctx = ctx or RunContext()
    check_new_place(root, avatar_id)
    legacy = read_legacy(folder)
    notes = list(legacy.notes)
    pictures = _pictures(folder, legacy, frames, notes)
    geometry = _geometry(legacy, pictures.size, notes)
    n, cycle = _fold(legacy, geometry, pictures)
    if n > pictures.n:
        raise PacketError(
            f"{folder.name} has {n} entries, the pictures given are {pictures.n}; give those it was made from"
        )
    if legacy.frames is None and pictures.n > n:
        notes.append(f"the first {n} of the {pictures.n} pictures given are used")
    if n < legacy.n:
        notes.append(f"{legacy.n} entries are stored as {n} ({cycle}): the rest repeats them")
    own = frames.info.fps if legacy.frames is None and frames is not None else None
    info = AvatarInfo(
        id=avatar_id,
        engine="musetalk",
        size=pictures.size,
        fps=fps or told_rate(legacy.facts, own, notes),
        n_frames=n,
        cycle=cycle,
        model=dict(model),
        source={"name": folder.name, "sha256": files_sha256(folder, FORMS[legacy.form]), "form": legacy.form},
    )
    packet = _write(ctx, root, info, pictures, legacy.latents[:n], geometry)
    for note in notes:
        ctx.warn(note)
    return Imported(packet, legacy.form, tuple(notes))


def _write(ctx, root, info: AvatarInfo, pictures: LegacyFrames, latents, geometry: _Geometry) -> AvatarPacket:
    n, (width, height) = info.n_frames, info.size
    masks = geometry.masks[:n]
    with PacketDraft(root) as draft:
        frames = draft.frames(n, height, width)
        for i, picture in enumerate(pictures.read(ctx, n)):
            ctx.check_cancelled()
            frames[i] = picture
            if i % _SETTLE_EVERY == _SETTLE_EVERY - 1:
                draft.settle()
            ctx.tick(i + 1, n)
        draft.tensors("latents.safetensors", {"latents": latents})
        draft.tensors(
            "geometry.safetensors",
            {
                "boxes": torch.from_numpy(geometry.boxes[:n].astype(np.int32)),
                "crops": torch.from_numpy(geometry.crops[:n].astype(np.int32)),
                "found": torch.from_numpy(geometry.found[:n].copy()),
                "mask": torch.from_numpy(np.concatenate([m.ravel() for m in masks])),
                "mask_offsets": torch.tensor(np.cumsum([0] + [m.size for m in masks]), dtype=torch.int64),
                "mask_shapes": torch.tensor([m.shape for m in masks], dtype=torch.int32),
            },
        )
        return draft.finish(info, preview_jpeg(np.array(frames[0])))


def _pictures(
    folder: Path, legacy: LegacyAvatar, frames: FrameStream | None, notes: list[str]
) -> LegacyFrames:
    if legacy.frames is not None:
        if frames is not None:
            notes.append(f"{folder.name} has its own pictures, those given are not used")
        return legacy.frames
    if frames is None:
        named = legacy_source(folder)
        hint = f" (it says it was made from {named!r})" if named else ""
        raise PacketError(
            f"{folder.name} is of the form of four files, which holds no pictures{hint}; "
            "give the picture, folder or clip it was made from as well"
        )
    return StreamFrames(frames)


def _geometry(legacy: LegacyAvatar, size: tuple[int, int], notes: list[str]) -> _Geometry:
    """Return boxes inside the frame, and crops that fit masks and boxes; a bad entry borrows its neighbour's."""
    boxes: list[tuple | None] = []
    cut, lost = FrameList(), FrameList()
    for box in (tuple(row) for row in legacy.boxes.tolist()):
        try:
            boxes.append(clamp_box(box, *size, minimum=1))
        except ValueError:
            boxes.append(None)
    cut.add(0, [b is not None and b != tuple(o) for b, o in zip(boxes, legacy.boxes.tolist(), strict=True)])
    lost.add(0, [b is None for b in boxes])
    known = [i for i, b in enumerate(boxes) if b is not None]
    if not known:
        raise PacketError(
            f"coords.pkl: no box lies inside the pictures of {size[0]}x{size[1]}, the first is "
            f"{legacy.boxes[0].tolist()}; are these the pictures the avatar was made from?"
        )
    if cut:
        notes.append(f"boxes of entries {cut} left the picture and are cut at its edge")
    if lost:
        notes.append(f"entries {lost} have no usable box: they are shown as they are")
    crops = {i: _crop(legacy, i, boxes[i]) for i in known}
    near = [min(known, key=lambda k, i=i: abs(k - i)) for i in range(legacy.n)]
    return _Geometry(
        boxes=np.array([boxes[k] for k in near]),
        crops=np.array([crops[k] for k in near]),
        masks=[np.ascontiguousarray(legacy.masks[k]) for k in near],
        found=np.array([b is not None for b in boxes]),
    )


def _crop(legacy: LegacyAvatar, i: int, box: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return the eight numbers of entry i's crop: where its mask lies, and the box inside it."""
    rows, columns = legacy.masks[i].shape
    own = tuple(legacy.boxes[i].tolist())
    given = [] if legacy.crops is None else [tuple(legacy.crops[i].tolist())]
    # Four files: the mask's size tells which square (or the box alone) its maker used.
    for x1, y1, x2, y2 in given or [*(crop_geometry(own, e)[:4] for e in _EXPANDS), own, box]:
        covers = x1 <= box[0] and y1 <= box[1] and box[2] <= x2 and box[3] <= y2
        if (y2 - y1, x2 - x1) == (rows, columns) and covers:
            return (x1, y1, x2, y2, box[0] - x1, box[1] - y1, box[2] - box[0], box[3] - box[1])
    crop = f"crop {list(given[0])}" if given else "the square around it"
    raise PacketError(
        f"entry {i}: mask of {columns}x{rows}, box {list(own)} and {crop} do not fit each other; build the avatar anew"
    )


def fold(n: int, same: Callable[[int, int], bool]) -> tuple[int, str]:
    """Return how many of `n` entries to keep, and the cycle that gives back the list; `same` compares two of them."""
    if all(same(0, i) for i in range(1, n)):
        return 1, "still"
    if n % 2 == 0 and all(same(i, n - 1 - i) for i in range(n // 2)):
        return n // 2, "pingpong"
    return n, "loop"


def _fold(legacy: LegacyAvatar, geometry: _Geometry, pictures: LegacyFrames) -> tuple[int, str]:
    """Return how many entries to keep, and the cycle that gives back the list."""

    def same(i: int, j: int) -> bool:
        return (
            geometry.found[i] == geometry.found[j]
            and np.array_equal(geometry.boxes[i], geometry.boxes[j])
            and np.array_equal(geometry.crops[i], geometry.crops[j])
            and torch.equal(legacy.latents[i], legacy.latents[j])
            and np.array_equal(geometry.masks[i], geometry.masks[j])
            and pictures.same(i, j)
        )

    return fold(legacy.n, same)


def told_rate(facts: Mapping[str, Any], otherwise: Fraction | None, notes: list[str]) -> Fraction:
    """Return the rate that a legacy avatar's JSON says, else `otherwise`, else 25 with a note."""
    told = facts.get("fps")
    if isinstance(told, (int, float, str)) and not isinstance(told, bool):
        try:
            return parse_fps(told)
        except ValueError:
            notes.append(f"its rate {told!r} is none and is not used")
    if otherwise is None:
        notes.append(f"it says no rate, {DEFAULT_FPS} fps is taken")
    return otherwise or DEFAULT_FPS


def files_sha256(folder: Path, names: Sequence[str]) -> str:
    """Return a hash over names and contents of the files (or folders of files) of a legacy avatar."""
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        for file in sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]:
            digest.update(
                f"{name}/{file.name}\0".encode("utf-8", "surrogateescape") + file_sha256(file).encode()
            )
    return digest.hexdigest()
