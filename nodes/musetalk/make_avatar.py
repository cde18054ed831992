"""From a picture, a folder or a clip to a packet, built only if its content is not there yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..avatars.build import SourcePlan, build_once
from ..avatars.build import content_key as key_of
from ..avatars.source import Source
from ..core.frames import RunContext
from ..core.packet import AvatarPacket
from .bake import bake
from .find_faces import FaceTools, finder, given
from .handle import MuseTalkModel
from .options import AvatarOptions

BUILD_VERSION = 1
"""Part of every content key: raised when the same input gives another packet."""


@dataclass(frozen=True)
class BuildPlan(SourcePlan):
    """What to make of a source. options: None for what suits the model."""

    options: AvatarOptions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.boxes and self.options and self.options.needs_parsing:
            raise ValueError(
                f"mask {self.options.mask!r} needs a parsed face, and this one is only a box; let the face be found, "
                "or use mask mouth or lower face"
            )

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        return (self.options or AvatarOptions()).background_rgb


def content_key(model: MuseTalkModel, source: Source, plan: BuildPlan, tools: FaceTools | None) -> str:
    """Return 64 hex digits that name the packet `make_avatar` would build: equal keys, equal packets."""
    options = plan.options or AvatarOptions.default_for(model.version)
    return key_of(
        {
            **plan.facts(source),
            "build": BUILD_VERSION,
            "detector": None if plan.boxes else tools.detector.name,
            "parser": bool(tools and tools.labels) and options.needs_parsing,
            "options": options.to_dict(),
            "model": model.identity,
        }
    )


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
    options = plan.options or AvatarOptions.default_for(model.version)
    if plan.boxes:
        find = given(plan.scaled_boxes(source))
    else:
        find = finder(ctx, tools, plan.scaled_face(source), options)

    def build(name: str, record: dict) -> AvatarPacket:
        return bake(ctx, model, source.stream, find, root, name, plan.cycle, record, options)

    key = content_key(model, source, plan, tools)
    return build_once(ctx, source, key, root, avatar_id, rebuild, build)
