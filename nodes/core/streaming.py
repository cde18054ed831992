"""The interface of live rendering, the same for every engine: sound in as it comes, frames out as soon as they can be.

`stream_musetalk` is one; an engine of another kind offers a function of this shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Protocol, TypeVar

from .audio import AudioClip
from .frames import FrameChunk, RunContext
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
