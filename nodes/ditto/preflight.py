"""What building a Ditto avatar of a source would do, without building it."""

from __future__ import annotations

import math
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
from ..core.frames import RunContext
from .avatar_options import DittoAvatarOptions
from .bake import MAX_UPSCALE, tensor_shapes
from .crop import CROP_SIZE
from .given_faces import given
from .handle import DittoModel
from .make_avatar import DittoPlan, registrar
from .preview import draw_crop, face_square
from .register import DittoFaceTools

_OUTSIDE = 0.25
"""Share of a crop that may lie outside the picture without a word: the shoulders of a portrait often do."""


def preflight(
    ctx: RunContext,
    path: Path,
    model: DittoModel,
    plan: DittoPlan,
    tools: DittoFaceTools | None,
    audio: AudioClip | None = None,
    fps: Fraction = Fraction(25),
) -> Preflight:
    """Look at `path` as `make_avatar` would with `plan`, without building. `fps` is the rate of the video to make.

    Raises ValueError for a source that cannot be read at all.
    """
    source, options = plan.open(path), plan.options or DittoAvatarOptions()
    volume = 2 * math.prod(tensor_shapes(model.config, 1)["f_s"])
    facts, problems = about_source(source, path, plan, volume), []
    facts += about_audio(audio, fps, problems)
    picture, c2o, stops = first_frame(ctx, source), None, False
    try:
        if plan.boxes:
            boxes = [box for box in plan.scaled_boxes(source) if box is not None]
            c2o = options.place(given(boxes[:1])(picture[None]).c2o)[0]
        else:
            frames = sample_frames(ctx, source)
            seen = registrar(ctx, plan, source, tools)(frames)
            facts.append(coverage(seen.found, source, options.missing, problems))
            at = int(np.flatnonzero(seen.found)[0])
            picture, c2o = frames[at], options.place(seen.c2o)[at]
    except ValueError as e:  # no face, or not the one that was asked for
        problems.append(str(e))
        stops = True
    picture, box = picture.copy(), None
    if c2o is not None:
        facts.append(_about_crop(c2o, picture.shape[1::-1], model, problems))
        corners = face_square(options) @ c2o[:2, :2].T + c2o[:2, 2]
        box = tuple(int(v) for v in (*np.floor(corners.min(0)), *np.ceil(corners.max(0))))
        draw_crop(picture, c2o, options)
    return Preflight(tuple(facts), tuple(problems), stops, picture, box)


def _about_crop(c2o: np.ndarray, size: tuple[int, int], model: DittoModel, problems: list[str]) -> str:
    side, drawn = float(np.linalg.norm(c2o[:2, 0])) * CROP_SIZE, model.config.nets.render_size
    x, y = c2o[:2] @ (CROP_SIZE / 2, CROP_SIZE / 2, 1)
    if side > MAX_UPSCALE * drawn:
        problems.append(f"the crop is {side:.0f} px, the network draws {drawn}: it will look soft")
    steps = (np.arange(16) + 0.5) * CROP_SIZE / 16
    at = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2) @ c2o[:2, :2].T + c2o[:2, 2]
    outside = 1 - float(((at >= 0) & (at < size)).all(1).mean())
    if outside > _OUTSIDE:
        problems.append(
            f"{outside:.0%} of the crop lie outside the picture and are black for the network: a picture with more room "
            "around the head gives a better face"
        )
    return f"crop: {side:.0f} px around {x:.0f},{y:.0f} ({side / drawn:.1f} times what the network draws)"
