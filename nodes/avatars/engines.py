"""One door to both engines for what nodes and the command line do with either: plans, face tools, avatars, speech, engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.frames import RunContext
from ..core.packet import AvatarPacket

if TYPE_CHECKING:
    from ..core.audio import AudioClip
    from ..core.engine_shelf import StageMaker
    from ..core.export import OnnxGraph
    from ..ditto.handle import DittoModel
    from ..ditto.speech import DittoSpeech
    from ..musetalk.handle import MuseTalkModel
    from ..musetalk.speech import Speech
    from .build import SourcePlan
    from .source import Source

    Model = MuseTalkModel | DittoModel

ENGINES = ("musetalk", "ditto")


def build_plan(model: Model, options: Any = None, **facts: Any) -> SourcePlan:
    """Return the plan of an avatar for `model`: `facts` are fields of `SourcePlan`.

    options: AvatarOptions for MuseTalk, DittoAvatarOptions for Ditto, None for the defaults. ValueError for the other's.
    """
    if model.engine == "ditto":
        from ..ditto.avatar_options import DittoAvatarOptions
        from ..ditto.make_avatar import DittoPlan

        if options is not None and not isinstance(options, DittoAvatarOptions):
            raise ValueError(
                "these avatar options are MuseTalk's, the model is Ditto; use Ditto Avatar Options"
            )
        return DittoPlan(**facts, options=options)
    from ..musetalk.make_avatar import BuildPlan
    from ..musetalk.options import AvatarOptions

    if options is not None and not isinstance(options, AvatarOptions):
        raise ValueError("these avatar options are Ditto's, the model is MuseTalk; use Avatar Options")
    return BuildPlan(**facts, options=options)


def open_tools(model: Model, plan: SourcePlan, detector: str, roots: Sequence[Path]) -> Any:
    """Return what finds faces for avatars of `model`, None where the plan has boxes. Errors name files that are missing."""
    if plan.boxes is not None:
        return None
    if model.engine == "ditto":
        from ..ditto.register import open_ditto_face_tools

        return open_ditto_face_tools(detector, roots)
    from ..musetalk.find_faces import open_face_tools
    from ..musetalk.options import AvatarOptions

    options = plan.options or AvatarOptions.default_for(model.version)
    return open_face_tools(detector, roots, options.needs_parsing)


def make_avatar(
    ctx: RunContext,
    model: Model,
    source: Source,
    plan: SourcePlan,
    tools: Any,
    root: Path,
    avatar_id: str | None = None,
    rebuild: bool = False,
) -> tuple[AvatarPacket, bool]:
    """Return the packet of `source`, and whether it was built now; see the engines' own `make_avatar`."""
    if model.engine == "ditto":
        from ..ditto.make_avatar import make_avatar as make
    else:
        from ..musetalk.make_avatar import make_avatar as make
    return make(ctx, model, source, plan, tools, root, avatar_id, rebuild)


def face_stage(model: Model) -> StageMaker:
    """Return the stage that draws the model's crops."""
    if model.engine == "ditto":
        from ..ditto.stages import ditto_stage

        return ditto_stage
    from ..musetalk.engine import musetalk_stage

    return musetalk_stage


def build_engine(
    ctx: RunContext, model: Model, batch: int, progress: Callable[[int, int], object] | None = None
) -> dict[str, object]:
    """Build, or find built, the engine that draws the model's crops; see `core.engine_build.build_engine`."""
    from ..core.engine_build import build_engine as build

    return build(ctx, model, face_stage(model), batch, progress)


def export_model(
    model: Model, folder: Path, names: Sequence[str] | None = None, **how: Any
) -> list[OnnxGraph]:
    """Write graphs of the model as ONNX, its usual ones if `names` is None; see `core.export_model.export_graphs`."""
    if model.engine == "ditto":
        from ..ditto.export import export_model as export
    else:
        from ..musetalk.export import export_model as export
    return export(model, folder, names, **how)


def hear(model: Model, audio: AudioClip, fps: Fraction) -> Speech | DittoSpeech:
    """Return what the presenter hears in every frame of a video at `fps`, by the model's own speech encoder."""
    if model.engine == "ditto":
        from ..ditto.speech import DittoSpeech

        return DittoSpeech(model, audio, fps)
    from ..musetalk.speech import Speech

    return Speech(model, audio, fps)
