"""What will happen, before it happens: size, rate, turning and sound of a source, in plain lines, for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..core.audio import AudioClip
from ..core.frames import RunContext
from ..core.report import FrameList
from ..core.timeline import fps_text, frame_count
from ..core.video_read import describe, probe_video
from .build import SourcePlan
from .source import Source

_SAMPLES = 25
"""Frames looked at, all in memory (155 MB of 1080x1920): a longer source is sampled evenly."""


@dataclass(frozen=True, eq=False)
class Preflight:
    """facts: lines for the user, notes of the reader among them. problems: what will go wrong or look bad; empty means
    all is well; stops: nothing could be built. picture: uint8 (H, W, 3), the first frame with a face (else the first
    frame), its face drawn in; box: of that face, or None."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    stops: bool
    picture: np.ndarray
    box: tuple[int, int, int, int] | None

    def text(self) -> str:
        verdict = "cannot be built" if self.stops else "ready" if not self.problems else "can be built, but"
        return "\n".join([f"verdict: {verdict}", *(f"problem: {p}" for p in self.problems), *self.facts])


def about_source(source: Source, path: Path, plan: SourcePlan, frame_bytes: int = 0) -> list[str]:
    """Return what is known of the source; `frame_bytes`: on disk for each frame, beside its pixels."""
    info = source.stream.info
    facts = [f"source: {source.name}, {source.kind}"]
    if source.kind == "video":
        facts.append(f"clip: {describe(probe_video(path))}")
    facts.append(f"avatar: {info.n_frames} frames of {info.width}x{info.height} at {fps_text(info.fps)} fps")
    size = info.n_frames * (info.width * info.height * 3 + frame_bytes)
    facts.append(f"on disk: about {size / 2**20:.0f} MB")
    return facts + [f"note: {note}" for note in source.notes]


def about_audio(audio: AudioClip | None, fps: Fraction, problems: list[str]) -> list[str]:
    """Return how long the video of `audio` will be; add to `problems` if it has no frame."""
    if audio is None:
        return []
    n = frame_count(audio.n_samples, audio.sample_rate, fps)
    if not n:
        problems.append("the audio is empty: no frame would be made")
    return [
        f"audio: {float(audio.seconds):.2f} s at {audio.sample_rate} Hz: a video of {n} frames at {fps_text(fps)} fps"
    ]


def coverage(found: np.ndarray, source: Source, missing: str, problems: list[str]) -> str:
    """Say in how many of the frames looked at there is a face, bool (n,); add to `problems` what is not all well."""
    n, share = len(found), float(found.mean())
    if not share:
        problems.append("no face was found: give a picture with a visible face, or its box")
    elif share < 1:
        without = FrameList()
        without.add(0, (~found).tolist())
        which = f": {without}" if n == source.stream.info.n_frames else ""
        done = {"hold": "the nearest face is held", "error": "they must be cut before it can be built"}
        problems.append(
            f"{1 - share:.0%} of the frames looked at have no face{which}; {done.get(missing, 'they are shown as they are')}"
        )
    return f"face: in {share:.0%} of {n} frames looked at"


def first_frame(ctx: RunContext, source: Source) -> np.ndarray:
    """Return the first picture of the source, uint8 (H, W, 3)."""
    chunks = source.stream.chunks(ctx, 1)
    try:
        return next(chunks).frames.numpy()[0]
    finally:
        chunks.close()


def sample_frames(ctx: RunContext, source: Source) -> np.ndarray:
    """Return at most _SAMPLES frames, evenly spaced, first and last in: they alone are in memory."""
    n = source.stream.info.n_frames
    wanted = set(np.linspace(0, n - 1, min(n, _SAMPLES)).round().astype(int).tolist())
    kept = []
    for chunk in source.stream.chunks(ctx, 8):
        kept += [chunk.frames[i].numpy() for i in range(chunk.num_frames) if chunk.frame_start + i in wanted]
    return np.stack(kept)
