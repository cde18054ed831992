"""The stub engine: a test double that turns audio into frames with no network in between.

Each frame says its own index and how loud its stretch of audio is, in blocks large enough to survive a
video encoder, over a field of the avatar's colour. So a test reads back from an MP4 which frame it got,
when, for which audio and which avatar. The stub can be slow, and can fail at a frame it is told.

The class is derived from the FrameStream of whoever asks: the pack's modules have another name inside
ComfyUI than outside.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from types import ModuleType

import torch

INDEX_BITS = 16
MIN_SIDE = 64
STAGE = "stub engine"


def stub_stream(
    waveform: torch.Tensor,
    sample_rate: int,
    fps: Fraction,
    size: tuple[int, int] = (128, 128),
    *,
    colour: tuple[int, int, int] = (40, 90, 160),
    sleep_s: float = 0.0,
    fail_at_frame: int = -1,
    frames: ModuleType | None = None,
):
    """Return a StubEngineStream for `waveform` (channels, samples) in -1..1; ceil(seconds * fps) frames.

    size is (width, height); sleep_s is spent before every chunk; frames is the pack's core.frames module,
    `talkinghead.nodes.core.frames` if it is not given.
    """
    frames = frames or importlib.import_module("talkinghead.nodes.core.frames")
    return _stream_class(frames)(waveform, sample_rate, fps, size, colour, sleep_s, fail_at_frame)


@cache
def _stream_class(frames: ModuleType) -> type:
    timeline = importlib.import_module(".timeline", frames.__package__)

    class StubEngineStream(frames.FrameStream):
        stage = STAGE

        def __init__(self, waveform, sample_rate, fps, size, colour, sleep_s, fail_at_frame):
            if min(size) < MIN_SIDE:
                raise ValueError(f"{STAGE}: {size[0]}x{size[1]} is too small, {MIN_SIDE} is the least")
            self._mono = waveform.mean(dim=0)
            self._rate, self._colour = sample_rate, colour
            self._sleep_s, self._fail_at = sleep_s, fail_at_frame
            n_frames = timeline.frame_count(self._mono.shape[0], sample_rate, fps)
            self.info = frames.FrameInfo(*size, fps, n_frames)

        def generate(self, ctx, n: int) -> Iterator[tuple[torch.Tensor, None]]:
            for start in range(0, self.info.n_frames, n):
                end = min(start + n, self.info.n_frames)
                if self._sleep_s:
                    time.sleep(self._sleep_s)
                if start <= self._fail_at < end:
                    raise ValueError(f"told to fail at frame {self._fail_at}")
                yield torch.stack([self._frame(i) for i in range(start, end)]), None

        def _frame(self, index: int) -> torch.Tensor:
            info = self.info
            frame = torch.tensor(self._colour, dtype=torch.uint8).expand(info.frame_shape).contiguous()
            bits = [255 * (index >> bit & 1) for bit in range(INDEX_BITS)]
            top = torch.tensor(bits, dtype=torch.uint8).repeat_interleave(info.width // INDEX_BITS)
            frame[: info.height // 4, : top.shape[0]] = top[:, None]
            frame[info.height // 4 : info.height // 2] = self._energy(index)
            return frame

        def _energy(self, index: int) -> int:
            """Root mean square of the frame's samples, 0..1 as 0..255."""
            first = timeline.frame_to_sample(index, self._rate, self.info.fps)
            last = timeline.frame_to_sample(index + 1, self._rate, self.info.fps)
            return round(255 * float(self._mono[first:last].square().mean().sqrt().nan_to_num()))

    return StubEngineStream


def read_index(frame: torch.Tensor) -> int:
    """Return which frame an (H, W, 3) uint8 picture says it is."""
    width = frame.shape[1] // INDEX_BITS
    rows = slice(frame.shape[0] // 16, frame.shape[0] * 3 // 16)
    centres = [bit * width + width // 2 for bit in range(INDEX_BITS)]
    return sum((frame[rows, x].float().mean().item() > 127) << bit for bit, x in enumerate(centres))


def read_energy(frame: torch.Tensor) -> float:
    """Return how loud an (H, W, 3) uint8 picture says its audio is, 0..1."""
    rows = slice(frame.shape[0] * 5 // 16, frame.shape[0] * 7 // 16)
    return frame[rows].float().mean().item() / 255


def read_colour(frame: torch.Tensor) -> tuple[float, float, float]:
    """Return the avatar's colour in an (H, W, 3) uint8 picture."""
    return tuple(frame[frame.shape[0] * 5 // 8 :].float().mean(dim=(0, 1)).tolist())
