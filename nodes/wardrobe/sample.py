"""The clip that the wardrobe's graphs show themselves on, with the masks a tracker would have made of it.

Drawn by tools/demo/wardrobe.py; the masks are true to the pixel. They lie beside it as gray FFV1, so that ComfyUI's own
LoadVideo and Mask Cache's `file` can read copies of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from ..core.audio import MemoryAudio, open_audio
from ..core.frames import RunContext, TensorStream
from ..core.video_read import VideoStream
from .mask_file import read_mask_video

FOLDER = Path(__file__).with_name("samples")
SAMPLES = ("presenter",)


@dataclass(frozen=True)
class Sample:
    """frames: uint8 (T,H,W,3) at `fps`; sound: mono, as long as they are; garment, hands: float32 (T,H,W) of 0 and 1.
    What the hands hide is no garment."""

    frames: torch.Tensor
    fps: Fraction
    sound: MemoryAudio
    garment: torch.Tensor
    hands: torch.Tensor

    @property
    def stream(self) -> TensorStream:
        return TensorStream(self.frames, self.fps)


def sample_files(name: str) -> tuple[Path, Path, Path]:
    """Return the files of a sample: clip, garment, hands. ValueError for a name that is not in SAMPLES."""
    if name not in SAMPLES:
        raise ValueError(f"there is no sample clip {name!r}; use one of {', '.join(SAMPLES)}")
    return FOLDER / f"{name}.mp4", FOLDER / f"{name}_garment.mkv", FOLDER / f"{name}_hands.mkv"


def read_sample(name: str, ctx: RunContext | None = None) -> Sample:
    """Read a sample: `presenter` is 22 frames of 216x384 at 25 fps, a loop, 0.88 s of speech."""
    ctx = ctx or RunContext()
    clip, garment, hands = sample_files(name)
    stream = VideoStream(clip)
    frames = torch.cat([chunk.frames.clone() for chunk in stream.chunks(ctx, 8)])
    size = tuple(frames.shape[:3])
    heard = open_audio(clip)
    samples = np.concatenate(list(heard.blocks()), axis=-1)
    # AAC ends with its last block, up to 1023 samples behind the picture.
    samples = samples[:, : int(len(frames) * heard.sample_rate / stream.info.fps)]
    return Sample(
        frames,
        stream.info.fps,
        MemoryAudio(samples, heard.sample_rate, clip.name),
        read_mask_video(garment, size, ctx=ctx),
        read_mask_video(hands, size, ctx=ctx),
    )
