"""From a picture, a folder or a clip to a packet, built only if its content is not there yet."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from ..core.faces import FaceChoice
from ..core.frames import RunContext
from ..core.images import cover_box
from ..core.loop import AUTO_CYCLES
from ..core.packet import AvatarPacket, PacketError, open_packet
from ..core.timeline import fps_text
from .bake import bake
from .boxes import Box
from .find_faces import FaceTools, finder, given
from .handle import MuseTalkModel
from .options import AvatarOptions
from .presenters import check_new_id
from .source import Source, open_source

BUILD_VERSION = 1
"""Part of every content key: raised when the same input gives another packet."""
DEFAULT_MAX_FRAMES = 50
"""Two seconds at 25 fps."""
AUTO_PREFIX = "auto-"
AUTO_ID = re.compile(r"auto-[0-9a-f]{16}")
"""Names of avatars built just in time; users' names never look like them."""


@dataclass(frozen=True)
class BuildPlan:
    """What to make of a source. None means: the source's own, or what suits the model.

    size: width, height the pictures are scaled to fill. max_frames: 0 for all. boxes: one for all frames or one (or
    None) a frame, x1, y1, x2, y2 in pixels of the source's own pictures, instead of detection. face: which one, when
    there are several.
    """

    fps: Fraction | None = None
    size: tuple[int, int] | None = None
    max_frames: int = DEFAULT_MAX_FRAMES
    cycle: str = "auto"
    boxes: tuple[Box | None, ...] | None = None
    face: FaceChoice = FaceChoice()
    options: AvatarOptions | None = None

    def __post_init__(self) -> None:
        if self.cycle not in AUTO_CYCLES:
            raise ValueError(f"cycle {self.cycle!r} is unknown; use one of {', '.join(AUTO_CYCLES)}")
        if self.boxes and self.options and self.options.needs_parsing:
            raise ValueError(
                f"mask {self.options.mask!r} needs a parsed face, and this one is only a box; let the face be found, "
                "or use mask mouth or lower face"
            )

    def open(self, path: Path) -> Source:
        """Open a picture, a folder of pictures or a clip by this plan. ValueError names what is wrong with it."""
        limit = 1 if self.cycle == "still" else self.max_frames
        return open_source(path, self.fps, self.size, limit, (self.options or AvatarOptions()).background_rgb)


def content_key(model: MuseTalkModel, source: Source, plan: BuildPlan, tools: FaceTools | None) -> str:
    """Return 64 hex digits that name the packet `make_avatar` would build: equal keys, equal packets."""
    options = plan.options or AvatarOptions.default_for(model.version)
    what = {
        "build": BUILD_VERSION,
        "source": source.sha256,
        "fps": fps_text(source.fps),
        "frames": source.stream.info.n_frames,
        "size": plan.size,
        "cycle": plan.cycle,
        "boxes": plan.boxes,
        "face": None if plan.boxes else [plan.face.kind, plan.face.index, plan.face.point],
        "detector": None if plan.boxes else tools.detector.name,
        "parser": bool(tools and tools.labels) and options.needs_parsing,
        "options": options.to_dict(),
        "model": model.identity,
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def make_avatar(
    ctx: RunContext,
    model: MuseTalkModel,
    source: Source,
    plan: BuildPlan,
    tools: FaceTools | None,
    root: Path,
    avatar_id: str | None = None,
    rebuild: bool = False,
) -> tuple[AvatarPacket, bool]:
    """Return the packet of `source` in `root`, and whether it was built now: one of the same content is kept.

    Args:
        tools: finds the face; may be None when `plan.boxes` are given.
        avatar_id: name of the avatar; None names it by its content ("auto-..."), the just-in-time build.
        rebuild: build even if it is there.

    Raises:
        ValueError: a source without a usable face, or a name that cannot be; an existing packet stays as it was.
    """
    if tools is None and plan.boxes is None:
        raise ValueError("give a face box as x1,y1,x2,y2, or a detector that finds it")
    key = content_key(model, source, plan, tools)
    avatar_id = check_new_id(avatar_id) if avatar_id else f"{AUTO_PREFIX}{key[:16]}"
    if not rebuild and (packet := _built(root / avatar_id, key)):
        ctx.report.fact("avatar", f"{packet.path}: already built from the same content")
        return packet, False
    for note in source.notes:
        ctx.warn(note)
    options = plan.options or AvatarOptions.default_for(model.version)
    info = source.stream.info
    if plan.boxes:
        size = (info.width, info.height)
        find = given([b if b is None else cover_box(b, source.size, size) for b in plan.boxes])
    else:
        find = finder(ctx, tools, _scaled(plan.face, source), options)
    record = {"name": source.name, "sha256": source.sha256, "key": key}
    return bake(ctx, model, source.stream, find, root, avatar_id, plan.cycle, record, options), True


def _built(path: Path, key: str) -> AvatarPacket | None:
    try:
        packet = open_packet(path)
    except PacketError:
        return None
    return packet if packet.info.source.get("key") == key else None


def _scaled(choice: FaceChoice, source: Source) -> FaceChoice:
    """Return a point of the source's own pictures as one of the pictures scaled by the plan."""
    if choice.point is None:
        return choice
    x, y = (round(v) for v in choice.point)
    info = source.stream.info
    x, y, _, _ = cover_box((x, y, x + 1, y + 1), source.size, (info.width, info.height))
    return replace(choice, point=(float(x), float(y)))
