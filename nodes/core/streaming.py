"""The interface of live rendering, the same for every engine: sound in as it comes, frames out as soon as they can be.

`stream_musetalk` and `stream_ditto` are two; an engine of another kind offers a function of this shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Protocol, TypeVar

from .audio import AudioClip
from .color import MATRICES
from .frames import FrameChunk, FrameStream, RunContext
from .live_audio import LiveAudio
from .packet import AvatarPacket

Model = TypeVar("Model", contravariant=True)

FEATURES = ("file", "live")


class StreamFrames(Protocol[Model]):
    """Renders speech while it arrives."""

    def __call__(
        self,
        ctx: RunContext,
        model: Model,
        avatar: AvatarPacket,
        audio: LiveAudio | AudioClip,
        fps: Fraction | int | str = Fraction(25),
        *,
        batch: int = 8,
        mask_mode: str = "mouth",
        seam_mode: str = "feather",
        matrix: str | None = None,
        features: str | None = None,
    ) -> Iterator[FrameChunk]:
        """Yield ceil(seconds * fps) full frames in chunks of at most `batch`, numbered from 0, the last one marked.

        Args:
            audio: live sound, or a clip; the same sound gives the same frames however it is cut.
            batch: frames the network runs at once and a chunk holds; fewer come sooner.
            matrix: "bt709" or "bt601" for NV12 of limited range, on ctx.device if that is a card; None for RGB.
            features: "file" hears the whole sound, as a rendered file does (clips only, their default); "live" only what
                has arrived, by the engine's named rule.

        Closing the iterator ends the run. Errors in the arguments are raised by the call; what fails later is a
        StageError that names the stage.
        """


def check_matrix(matrix: str | None) -> None:
    """Raise ValueError unless `matrix` is one, or None for RGB."""
    if matrix is not None and matrix not in MATRICES:
        raise ValueError(f"matrix {matrix!r} is unknown; use one of {', '.join(MATRICES)}, or None for RGB")


def check_features(audio: LiveAudio | AudioClip, features: str | None) -> str:
    """Return which of FEATURES hear `audio`, None standing for its default. ValueError for what it has not."""
    live = isinstance(audio, LiveAudio)
    features = features or ("live" if live else "file")
    if features not in FEATURES:
        raise ValueError(f"features {features!r} must be one of {', '.join(FEATURES)}")
    if live and features == "file":
        raise ValueError(
            "features 'file' need the whole sound before the first frame; live sound has 'live' only"
        )
    return features


def in_colours(frames: FrameStream, matrix: str | None, avatar: AvatarPacket) -> FrameStream:
    """Return full frames of `avatar` as RGB or NV12; see `StreamFrames`. ValueError for NV12 of odd sides."""
    if matrix is None:
        return frames
    converted = frames.nv12(matrix)
    if converted is None:
        width, height = avatar.info.size
        raise ValueError(f"NV12 needs even sides, avatar {avatar.info.id!r} has {width}x{height}; use RGB")
    return converted
