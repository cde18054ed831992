"""One door to both engines for what nodes and the command line do with either; the model says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .build import SourcePlan

if TYPE_CHECKING:
    from ..core.audio import AudioClip


@dataclass(frozen=True)
class AvatarMaker:
    """What one engine has for building avatars.

    plan: its SourcePlan, with `options` of the class `options`. open_tools: kind of detector, model folders, plan ->
    face tools. make: as `make_avatar` of either engine. preflight: as `preflight` of either engine.
    """

    plan: type[SourcePlan]
    options: type
    open_tools: Callable[[str, Sequence[Path], SourcePlan], Any]
    make: Callable[..., Any]
    preflight: Callable[..., Any]


def maker_of(model) -> AvatarMaker:
    """Return what builds avatars for `model`, a MuseTalkModel or a DittoModel."""
    return _ditto() if model.engine == "ditto" else _musetalk()


def _musetalk() -> AvatarMaker:
    from ..musetalk.find_faces import open_face_tools
    from ..musetalk.make_avatar import BuildPlan, make_avatar
    from ..musetalk.options import AvatarOptions
    from ..musetalk.preflight import preflight

    def open_tools(kind: str, roots: Sequence[Path], plan: BuildPlan):
        return open_face_tools(kind, roots, plan.options is not None and plan.options.needs_parsing)

    return AvatarMaker(BuildPlan, AvatarOptions, open_tools, make_avatar, preflight)


def _ditto() -> AvatarMaker:
    from ..ditto.avatar_options import DittoAvatarOptions
    from ..ditto.make_avatar import DittoPlan, make_avatar
    from ..ditto.preflight import preflight
    from ..ditto.register import open_ditto_face_tools

    def open_tools(kind: str, roots: Sequence[Path], plan: DittoPlan):
        return open_ditto_face_tools(kind, roots)

    return AvatarMaker(DittoPlan, DittoAvatarOptions, open_tools, make_avatar, preflight)


def hear(model, audio: AudioClip, fps: Fraction):
    """Return what the presenter hears in every frame of a video at `fps`: the SPEECH of the model's engine."""
    if model.engine == "ditto":
        from ..ditto.speech import DittoSpeech

        return DittoSpeech(model, audio, fps)
    from ..musetalk.speech import Speech

    return Speech(model, audio, fps)
