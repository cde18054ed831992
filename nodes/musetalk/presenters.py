"""The demo presenters that ship with the pack: small pictures and clips, built into packets on first use."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..core.frames import RunContext
from ..core.packet import AvatarPacket, PacketError, check_id, file_sha256, find_packet, open_packet
from ..core.timeline import parse_fps
from .bake import build_avatar
from .handle import MuseTalkModel
from .source import read_source

_OPEN_TRIES = 4
_JUST_IN_TIME = "auto-"
FOLDER = Path(__file__).parent / "embedded" / "presenters"


@lru_cache(maxsize=1)
def demo_presenters() -> dict[str, dict]:
    """Return what presenters.json says of each demo: file, size, fps, cycle and one face box a frame."""
    return json.loads((FOLDER / "presenters.json").read_text("utf-8"))


def check_new_id(avatar_id: str) -> str:
    """Return `avatar_id` if a user may build an avatar of that name.

    The demos' names belong to the demos, whatever their case: some file systems take Demo for demo. Those that begin
    with `auto-` belong to just-in-time builds, which are cleared together.
    """
    check_id(avatar_id)
    if avatar_id.casefold() in {name.casefold() for name in demo_presenters()}:
        raise ValueError(f"avatar name {avatar_id!r} is that of a demo; choose another")
    if avatar_id.casefold().startswith(_JUST_IN_TIME):
        raise ValueError(
            f"avatar name {avatar_id!r} starts with {_JUST_IN_TIME!r}, as avatars built just in time do; choose another"
        )
    return avatar_id


def resolve_avatar(ctx: RunContext, avatar_id: str, roots: Sequence[Path]) -> AvatarPacket:
    """Return the packet `avatar_id` from the first root that has it; demo presenters are built when needed.

    A demo made by other weights or from other pictures is made anew, in the first root. PacketError lists
    what there is if the name is unknown.
    """
    demo = demo_presenters().get(avatar_id)
    if demo is None:
        return _open_built(avatar_id, roots)
    model = MuseTalkModel()
    source = {"name": demo["file"], "sha256": file_sha256(FOLDER / demo["file"])}
    try:
        packet = open_packet(find_packet(avatar_id, roots))
        if dict(packet.info.source) == source and packet.info.model.get("sha256") == model.identity:
            return packet
    except PacketError:
        pass
    frames = read_source(FOLDER / demo["file"], fps=parse_fps(demo["fps"])).frames
    boxes = [tuple(b) for b in demo["boxes"]]
    fps = parse_fps(demo["fps"])
    return build_avatar(ctx, model, frames, boxes, roots[0], avatar_id, fps, demo["cycle"], source)


def _open_built(avatar_id: str, roots: Sequence[Path]) -> AvatarPacket:
    for attempt in range(_OPEN_TRIES):
        try:
            return open_packet(find_packet(avatar_id, roots))
        except PacketError as e:
            # Between the two renames of a rebuild by another process there is no packet.
            if attempt == _OPEN_TRIES - 1:
                raise PacketError(f"{e}; the demos are {', '.join(demo_presenters())}") from None
            time.sleep(0.05)
    raise AssertionError("the loop returns or raises")
