"""What will happen, before it happens: size, rate, turning, sound and faces of a source, in plain lines."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..avatars.source import Source
from ..core.audio import AudioClip
from ..core.blend import clamp_box, crop_geometry
from ..core.faces import FaceTrack
from ..core.frames import RunContext
from ..core.images import cover_box
from ..core.report import FrameList
from ..core.timeline import fps_text, frame_count
from ..core.video_read import describe, probe_video
from .bake import MAX_UPSCALE
from .find_faces import FaceTools, boxes_of
from .handle import MuseTalkModel
from .make_avatar import BuildPlan
from .options import AvatarOptions
from .preview import draw_geometry

_SAMPLES = 25
"""Frames looked at, all in memory (155 MB of 1080x1920): a longer source is sampled evenly."""


@dataclass(frozen=True, eq=False)
class Preflight:
    """facts: lines for the user, notes of the reader among them. problems: what will go wrong or look bad; empty means
    all is well. picture: uint8 (H, W, 3), the first frame with a face (else the first frame); box: of that face, or
    None."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    stops: bool
    picture: np.ndarray
    box: tuple[int, int, int, int] | None

    def overlay(self) -> np.ndarray:
        """Return the picture with the box drawn in."""
        shown = self.picture.copy()
        if self.box is not None:
            draw_geometry(shown, self.box, crop_geometry(self.box), None, None)
        return shown

    def text(self) -> str:
        verdict = "cannot be built" if self.stops else "ready" if not self.problems else "can be built, but"
        return "\n".join([f"verdict: {verdict}", *(f"problem: {p}" for p in self.problems), *self.facts])


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
    facts, problems = _about(source, path, plan), []
    facts += _about_audio(audio, fps, problems)
    picture, box, stops = _first_frame(ctx, source), None, False
    if plan.boxes:
        info = source.stream.info
        size = (info.width, info.height)
        box = next((clamp_box(cover_box(b, source.size, size), *size) for b in plan.boxes if b), None)
    else:
        frames = _sample(ctx, source)
        track = track_face(
            len(frames), lambda i: frames[i], tools.detector, plan.face, 1, check=ctx.check_cancelled
        )
        stops = not track.found.any()
        facts.append(_coverage(track, source, problems))
        if not stops:
            at = int(np.flatnonzero(track.found)[0])
            options = plan.options or AvatarOptions.default_for(model.version)
            picture, box = frames[at], boxes_of(track, frames.shape[1], options, tools.is_exact)[at]
    if box is not None:
        facts.append(_about_size(box, model, problems))
    return Preflight(tuple(facts), tuple(problems), stops, picture, box)


def _about(source: Source, path: Path, plan: BuildPlan) -> list[str]:
    info = source.stream.info
    facts = [f"source: {source.name}, {source.kind}"]
    if source.kind == "video":
        facts.append(f"clip: {describe(probe_video(path))}")
    facts.append(f"avatar: {info.n_frames} frames of {info.width}x{info.height} at {fps_text(info.fps)} fps")
    facts.append(f"on disk: about {info.n_frames * info.width * info.height * 3 / 2**20:.0f} MB")
    return facts + [f"note: {note}" for note in source.notes]


def _about_audio(audio: AudioClip | None, fps: Fraction, problems: list[str]) -> list[str]:
    if audio is None:
        return []
    n = frame_count(audio.n_samples, audio.sample_rate, fps)
    if not n:
        problems.append("the audio is empty: no frame would be made")
    return [
        f"audio: {float(audio.seconds):.2f} s at {audio.sample_rate} Hz: a video of {n} frames at {fps_text(fps)} fps"
    ]


def _coverage(track: FaceTrack, source: Source, problems: list[str]) -> str:
    n, share = len(track.found), float(track.found.mean())
    if not share:
        problems.append("no face was found: give a picture with a visible face, or its box")
    elif share < 1:
        without = FrameList()
        without.add(0, (~track.found).tolist())
        which = f": {without}" if n == source.stream.info.n_frames else ""
        problems.append(
            f"{1 - share:.0%} of the frames looked at have no face{which}; they are shown as they are"
        )
    return f"face: in {share:.0%} of {n} frames looked at"


def _about_size(box, model: MuseTalkModel, problems: list[str]) -> str:
    side, drawn = max(box[2] - box[0], box[3] - box[1]), model.config.crop_size
    if side > MAX_UPSCALE * max(256, drawn):
        problems.append(f"the face is {side} px, the network draws {drawn}: it will look soft")
    return f"face box: {box[0]},{box[1]},{box[2]},{box[3]} ({side / drawn:.1f} times what the network draws)"


def _first_frame(ctx: RunContext, source: Source) -> np.ndarray:
    chunks = source.stream.chunks(ctx, 1)
    try:
        return next(chunks).frames.numpy()[0]
    finally:
        chunks.close()


def _sample(ctx: RunContext, source: Source) -> np.ndarray:
    """Return at most _SAMPLES frames, evenly spaced, first and last in: they alone are in memory."""
    n = source.stream.info.n_frames
    wanted = set(np.linspace(0, n - 1, min(n, _SAMPLES)).round().astype(int).tolist())
    kept = []
    for chunk in source.stream.chunks(ctx, 8):
        kept += [chunk.frames[i].numpy() for i in range(chunk.num_frames) if chunk.frame_start + i in wanted]
    return np.stack(kept)
