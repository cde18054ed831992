"""The demo presenters that ship with the pack: small pictures and clips, built into packets on first use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ..core.frames import RunContext, TensorStream
from ..core.packet import AvatarPacket, PacketError, file_sha256, find_packet, open_packet
from ..core.timeline import parse_fps
from .names import FOLDER, demo_ids, demo_of, demo_presenters
from .source import read_source

_OPEN_TRIES = 4


def resolve_avatar(ctx: RunContext, avatar_id: str, roots: Sequence[Path]) -> AvatarPacket:
    """Return the packet `avatar_id` from the first root that has it; demo presenters are built when needed.

    A demo made by other weights or from other pictures is made anew, in the first root. PacketError lists
    what there is if the name is unknown.
    """
    demo = demo_of(avatar_id)
    if demo is None:
        return _open_built(avatar_id, roots)
    engine, name = demo
    model = _embedded(engine)
    file = FOLDER / demo_presenters()[name]["file"]
    source = {"name": file.name, "sha256": file_sha256(file)}
    try:
        packet = open_packet(find_packet(avatar_id, roots))
        if dict(packet.info.source) == source and packet.info.model.get("sha256") == model.identity:
            return packet
    except PacketError:
        pass
    return _build(ctx, engine, model, name, roots[0], avatar_id, source)


def _embedded(engine: str):
    """Return the handle of the weights that the demos of `engine` are made with."""
    if engine == "ditto":
        from ..ditto.handle import DittoModel

        return DittoModel()
    from ..musetalk.handle import MuseTalkModel

    return MuseTalkModel()


def _build(
    ctx: RunContext, engine: str, model, name: str, root: Path, avatar_id: str, source: dict
) -> AvatarPacket:
    demo = demo_presenters()[name]
    fps = parse_fps(demo["fps"])
    stream = TensorStream(torch.from_numpy(read_source(FOLDER / demo["file"], fps=fps).frames), fps)
    boxes = [tuple(b) for b in demo["boxes"]]
    if engine == "ditto":
        from ..ditto.bake import bake
        from ..ditto.given_faces import given

        return bake(ctx, model, stream, given(boxes), root, avatar_id, demo["cycle"], source)
    from ..musetalk.bake import Faces, bake

    return bake(ctx, model, stream, lambda _: Faces(boxes), root, avatar_id, demo["cycle"], source)


def _open_built(avatar_id: str, roots: Sequence[Path]) -> AvatarPacket:
    for attempt in range(_OPEN_TRIES):
        try:
            return open_packet(find_packet(avatar_id, roots))
        except PacketError as e:
            # Between the two renames of a rebuild by another process there is no packet.
            if attempt == _OPEN_TRIES - 1:
                raise PacketError(f"{e}; the demos are {', '.join(demo_ids())}") from None
            time.sleep(0.05)
    raise AssertionError("the loop returns or raises")
