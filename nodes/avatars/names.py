"""Names of avatars: those of the demos, those of builds just in time, and which are left to users."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from ..core.packet import check_id

FOLDER = Path(__file__).parents[1] / "musetalk" / "embedded" / "presenters"
"""Pictures and clips of the demos, which both engines use."""
DITTO_SUFFIX = "-ditto"
AUTO_PREFIX = "auto-"
AUTO_ID = re.compile(r"auto-[0-9a-f]{16}")
"""Names of avatars built just in time; users' names never look like them."""


@lru_cache(maxsize=1)
def demo_presenters() -> dict[str, dict]:
    """Return what presenters.json says of each presenter: file, size, fps, cycle and one face box a frame."""
    return json.loads((FOLDER / "presenters.json").read_text("utf-8"))


def demo_ids() -> list[str]:
    """Return the ids of all demos: every presenter for MuseTalk under its own name, and for Ditto as `<name>-ditto`."""
    return [*demo_presenters(), *(name + DITTO_SUFFIX for name in demo_presenters())]


def demo_of(avatar_id: str) -> tuple[str, str] | None:
    """Return engine and presenter of the demo `avatar_id`, None if it is none."""
    if avatar_id not in demo_ids():
        return None
    if avatar_id in demo_presenters():
        return "musetalk", avatar_id
    return "ditto", avatar_id.removesuffix(DITTO_SUFFIX)


def demo_for(avatar_id: str, engine: str) -> str:
    """Return the id of the same demo for `engine`; any other id as it is."""
    demo = demo_of(avatar_id)
    return avatar_id if demo is None else next(i for i in demo_ids() if demo_of(i) == (engine, demo[1]))


def check_new_id(avatar_id: str) -> str:
    """Return `avatar_id` if a user may build an avatar of that name.

    The demos' names belong to the demos, whatever their case: some file systems take Demo for demo. Those that begin
    with `auto-` belong to just-in-time builds, which are cleared together.
    """
    check_id(avatar_id)
    if avatar_id.casefold() in {name.casefold() for name in demo_ids()}:
        raise ValueError(f"avatar name {avatar_id!r} is that of a demo; choose another")
    if avatar_id.casefold().startswith(AUTO_PREFIX):
        raise ValueError(
            f"avatar name {avatar_id!r} starts with {AUTO_PREFIX!r}, as avatars built just in time do; choose another"
        )
    return avatar_id
