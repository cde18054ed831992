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
    from ..core.engine_shelf import StageMaker
    from ..core.export import OnnxGraph
    from ..core.frames import RunContext


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


def face_stage(model) -> StageMaker:
    """Return the stage that draws the model's crops."""
    if model.engine == "ditto":
        from ..ditto.stages import ditto_stage

        return ditto_stage
    from ..musetalk.engine import musetalk_stage

    return musetalk_stage


def build_engine(
    ctx: RunContext, model, batch: int, progress: Callable[[int, int], object] | None = None
) -> dict[str, object]:
    """Build, or find built, the engine that draws the model's crops; see `core.engine_build.build_engine`."""
    from ..core.engine_build import build_engine as build

    return build(ctx, model, face_stage(model), batch, progress)


def export_model(model, folder: Path, names: Sequence[str] | None = None, **how: Any) -> list[OnnxGraph]:
    """Write graphs of the model as ONNX, its usual ones if `names` is None; see `core.export_model.export_graphs`."""
    if model.engine == "ditto":
        from ..ditto.export import export_model as export
    else:
        from ..musetalk.export import export_model as export
    return export(model, folder, names, **how)
