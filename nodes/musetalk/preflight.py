"""What building a MuseTalk avatar of a source would do, without building it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from ..avatars.preflight import (
    Preflight,
    about_audio,
    about_source,
    coverage,
    first_frame,
    sample_frames,
)
from ..core.audio import AudioClip
from ..core.blend import clamp_box, crop_geometry
from ..core.frames import RunContext
from .bake import MAX_UPSCALE
from .find_faces import FaceTools, boxes_of
from .handle import MuseTalkModel
from .make_avatar import BuildPlan
from .options import AvatarOptions
from .preview import draw_geometry


def preflight(
    ctx: RunContext,
    path: Path,
    model: MuseTalkModel,
    plan: BuildPlan,
    tools: FaceTools | None,
    audio: AudioClip | None = None,
    fps: Fraction = Fraction(25),
) -> Preflight:
    """Look at `path` as `make_avatar` would with `plan`, without building. `fps` is the rate of the video to make.

    Raises ValueError for a source that cannot be read at all.
    """
    from ..core.face_track import track_face

    source = plan.open(path)
    options = plan.options or AvatarOptions.default_for(model.version)
    facts, problems = about_source(source, path, plan), []
    facts += about_audio(audio, fps, problems)
    picture, box, stops = first_frame(ctx, source), None, False
    if plan.boxes:
        info = source.stream.info
        box = next((clamp_box(b, info.width, info.height) for b in plan.scaled_boxes(source) if b), None)
    else:
        frames = sample_frames(ctx, source)
        track = track_face(
            len(frames),
            lambda i: frames[i],
            tools.detector,
            plan.scaled_face(source),
            1,
            check=ctx.check_cancelled,
        )
        stops = not track.found.any()
        facts.append(coverage(track.found, source, options.missing, problems))
        if not stops:
            at = int(np.flatnonzero(track.found)[0])
            picture, box = frames[at], boxes_of(track, frames.shape[1], options, tools.is_exact)[at]
    picture = picture.copy()
    if box is not None:
        facts.append(_about_size(box, model, problems))
        draw_geometry(picture, box, crop_geometry(box), None, None)
    return Preflight(tuple(facts), tuple(problems), stops, picture, box)


def _about_size(box, model: MuseTalkModel, problems: list[str]) -> str:
    side, drawn = max(box[2] - box[0], box[3] - box[1]), model.config.crop_size
    if side > MAX_UPSCALE * max(256, drawn):
        problems.append(f"the face is {side} px, the network draws {drawn}: it will look soft")
    return f"face box: {box[0]},{box[1]},{box[2]},{box[3]} ({side / drawn:.1f} times what the network draws)"
