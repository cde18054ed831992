"""Pictures for an avatar out of a file: a still, or the first seconds of a clip."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..core.frames import RunContext
from ..core.image_read import read_image
from ..core.images import cover
from ..core.packet import file_sha256
from ..core.video_read import VideoStream

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
DEFAULT_MAX_FRAMES = 50
"""Two seconds at 25 fps: enough for a loop, 39 MB of 512x512 frames."""


@dataclass(frozen=True)
class Source:
    """frames uint8 (N,H,W,3) RGB at `fps`; size (width, height) of the file's own pictures, its name and sha256."""

    frames: np.ndarray
    fps: Fraction
    size: tuple[int, int]
    name: str
    sha256: str

    @property
    def record(self) -> dict:
        return {"name": self.name, "sha256": self.sha256}


def read_source(
    path: Path,
    fps: Fraction | None = None,
    size: tuple[int, int] | None = None,
    max_frames: int = DEFAULT_MAX_FRAMES,
    ctx: RunContext | None = None,
) -> Source:
    """Read an image, or up to `max_frames` of a video, at `fps` (the clip's own if None; 25 for a still).

    With `size` (width, height) the pictures are scaled to fill it, the middle kept. Errors are those of
    the readers: a missing or undecodable file is named.
    """
    if path.suffix.lower() in IMAGE_SUFFIXES:
        frames, fps = read_image(path)[None], fps or Fraction(25)
    else:
        stream = VideoStream(path, fps=fps, limit=max_frames)
        fps = stream.info.fps
        chunks = stream.chunks(ctx or RunContext(), 8)
        frames = np.concatenate([c.frames.numpy() for c in chunks])
    own_size = (frames.shape[2], frames.shape[1])
    if size:
        frames = np.stack([cover(f, *size) for f in frames])
    return Source(frames, fps, own_size, path.name, file_sha256(path))
