"""From a picture, a folder or a clip to a Ditto packet, built only if its content is not there yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..avatars.build import SourcePlan, build_once
from ..avatars.build import content_key as key_of
from ..avatars.source import Source
from ..core.frames import RunContext
from ..core.packet import AvatarPacket
from .avatar_options import DittoAvatarOptions
from .bake import Register, bake
from .given_faces import given
from .handle import DittoModel
from .register import DittoFaceTools, Registered, register

BUILD_VERSION = 1
"""Part of every content key: raised when the same input gives another packet."""


@dataclass(frozen=True)
class DittoPlan(SourcePlan):
    """What to make of a source. boxes: those of faces, see `given_faces`. options: None for upstream's."""

    options: DittoAvatarOptions | None = None

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        return (self.options or DittoAvatarOptions()).background_rgb


def content_key(model: DittoModel, source: Source, plan: DittoPlan, tools: DittoFaceTools | None) -> str:
    """Return 64 hex digits that name the packet `make_avatar` would build: equal keys, equal packets."""
    return key_of(
        {
            **plan.facts(source),
            "engine": "ditto",
            "build": BUILD_VERSION,
            "detector": None if plan.boxes else tools.name,
            "options": (plan.options or DittoAvatarOptions()).to_dict(),
            "model": model.identity,
        }
    )


def make_avatar(
    ctx: RunContext,
    model: DittoModel,
    source: Source,
    plan: DittoPlan,
    tools: DittoFaceTools | None,
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
    find = given(plan.scaled_boxes(source)) if plan.boxes else registrar(ctx, plan, source, tools)

    def build(name: str, record: dict) -> AvatarPacket:
        return bake(ctx, model, source.stream, find, root, name, plan.cycle, record, plan.options)

    key = content_key(model, source, plan, tools)
    return build_once(ctx, source, key, root, avatar_id, rebuild, build)


def registrar(ctx: RunContext, plan: DittoPlan, source: Source, tools: DittoFaceTools) -> Register:
    """Return what registers the chosen face in frames with `tools`."""

    def find(frames: np.ndarray) -> Registered:
        choice = plan.scaled_face(source)
        return register(len(frames), frames.__getitem__, tools, choice, ctx.check_cancelled)

    return find
