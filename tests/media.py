"""Synthetic media with known content, made with PyAV and soundfile alone, never with the code under test.

A clip's frames carry their index as black and white bars (12 bits) over a colourful moving gradient, so a
decoded frame says which one it is. `import media` works in any test: tests/conftest.py puts tests/ on the path.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile as sf

BITS = 12


def numbered_frame(width: int, height: int, index: int) -> np.ndarray:
    """Return uint8 (H,W,3): a gradient that drifts with `index`, its bits as bars in the top quarter."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    phase = index * 0.05
    rgb = np.stack(
        [
            127 + 100 * np.sin(2 * np.pi * x / width + phase),
            127 + 100 * np.sin(2 * np.pi * y / height + 2 + phase),
            127 + 100 * np.cos(2 * np.pi * (x + y) / (width + height) - phase),
        ],
        axis=-1,
    )
    frame = np.rint(rgb).astype(np.uint8)
    for bit in range(BITS):
        left, right = width * bit // BITS, width * (bit + 1) // BITS
        frame[: height // 4, left:right] = 255 if index >> bit & 1 else 0
    return frame


def read_number(frame: np.ndarray) -> int:
    """Return the index drawn into a decoded frame (H,W,3); ValueError if a bar is neither black nor white."""
    height, width = frame.shape[:2]
    number = 0
    for bit in range(BITS):
        centre = (width * bit // BITS + width * (bit + 1) // BITS) // 2
        level = int(frame[height // 8, centre].mean())
        if 90 < level < 165:
            raise ValueError(f"bar {bit} has level {level}; the frame is blended or turned")
        number |= (level > 127) << bit
    return number


@dataclass(frozen=True)
class Clip:
    """A video file to write. rotation: degrees as FFmpeg's set_display_rotation (counter-clockwise turn of
    the shown picture); steps: frame durations in 1/30 s for a variable rate, cycled; sound: (channels, n)."""

    width: int = 128
    height: int = 96
    fps: Fraction = Fraction(25)
    n_frames: int = 20
    rotation: int = 0
    hflip: bool = False
    steps: tuple[int, ...] = ()
    colorspace: int = 2
    color_range: int = 0
    sound: np.ndarray | None = None
    sound_rate: int = 16000
    gop: int = 12

    def frame(self, index: int) -> np.ndarray:
        return numbered_frame(self.width, self.height, index)

    @property
    def times(self) -> list[Fraction]:
        """Start of each frame, and the end of the last one, in seconds."""
        tick = Fraction(1, 30) if self.steps else 1 / self.fps
        ticks = [self.steps[i % len(self.steps)] if self.steps else 1 for i in range(self.n_frames)]
        return [tick * sum(ticks[:i]) for i in range(self.n_frames + 1)]

    def shown_at(self, seconds: Fraction) -> int:
        """Return the index of the frame on screen at `seconds`."""
        return max(i for i in range(self.n_frames) if self.times[i] <= seconds)

    def write(self, path: Path) -> Path:
        times = self.times
        tick = Fraction(1, 30) if self.steps else 1 / self.fps
        with av.open(str(path), "w") as box:
            video = box.add_stream("libx264", rate=1 / tick, options={"crf": "8", "g": str(self.gop)})
            video.width, video.height, video.pix_fmt = self.width, self.height, "yuv420p"
            video.codec_context.time_base = tick
            video.codec_context.colorspace = self.colorspace
            video.codec_context.color_range = self.color_range
            if self.rotation or self.hflip:
                video.set_display_rotation(self.rotation, hflip=self.hflip)
            sound = None
            if self.sound is not None:
                sound = box.add_stream("aac", rate=self.sound_rate, layout=_layout(self.sound))
            matrix = {1: "ITU709", 6: "ITU601"}.get(self.colorspace, "ITU601")
            for i in range(self.n_frames):
                frame = av.VideoFrame.from_ndarray(self.frame(i), format="rgb24").reformat(
                    format="yuv420p", dst_colorspace=matrix, interpolation="AREA"
                )
                frame.pts, frame.time_base = int(times[i] / tick), tick
                frame.duration = int((times[i + 1] - times[i]) / tick)
                box.mux(video.encode(frame))
            box.mux(video.encode())
            if sound is not None:
                samples, layout = np.ascontiguousarray(self.sound), _layout(self.sound)
                block = av.AudioFrame.from_ndarray(samples, "fltp", layout)
                block.sample_rate, block.time_base = self.sound_rate, Fraction(1, self.sound_rate)
                block.pts = 0
                box.mux([*sound.encode(block), *sound.encode()])
        return path


def decode(path: Path) -> list[np.ndarray]:
    """Return all frames of a file as RGB (H,W,3) with PyAV's own defaults: tags honoured, not turned."""
    with av.open(str(path)) as box:
        return [frame.to_ndarray(format="rgb24") for frame in box.decode(video=0)]


def decode_sound(path: Path) -> tuple[np.ndarray, int]:
    """Return (float32 (channels, n), rate) of a file's first sound track as a player gives it."""
    with av.open(str(path)) as box:
        rate = box.streams.audio[0].codec_context.sample_rate
        return np.concatenate([f.to_ndarray() for f in box.decode(audio=0)], axis=1), rate


def sine(
    seconds: float, rate: int = 16000, channels: int = 1, hz: float = 440.0, level: float = 0.5
) -> np.ndarray:
    """Return float32 (channels, n); channel c sounds at hz * (c + 1)."""
    t = np.arange(round(seconds * rate)) / rate
    waves = [level * np.sin(2 * np.pi * hz * (c + 1) * t) for c in range(channels)]
    return np.stack(waves).astype(np.float32)


def sweep(seconds: float, rate: int = 16000, low: float = 100.0, high: float = 4000.0) -> np.ndarray:
    """Return float32 (1, n): a linear chirp, which unlike a sine shows any shift in time."""
    t = np.arange(round(seconds * rate)) / rate
    cycles = low * t + (high - low) * t * t / (2 * seconds)
    return (0.5 * np.sin(2 * np.pi * cycles))[None].astype(np.float32)


def speech_like(seconds: float, rate: int = 16000, seed: int = 0) -> np.ndarray:
    """Return float32 (1, n): syllables at 4 Hz of a buzzing voice with pauses and a little noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate)) / rate
    pitch = 2 * np.pi * np.cumsum(120 + 15 * np.sin(2 * np.pi * 0.7 * t)) / rate
    voice = sum(np.sin(k * pitch) / k for k in range(1, 12))
    syllables = np.clip(np.sin(2 * np.pi * 4 * t), 0, 1) * (np.sin(2 * np.pi * 0.4 * t) > -0.6)
    return (0.25 * voice * syllables + 0.001 * rng.standard_normal(len(t)))[None].astype(np.float32)


def impulse(n: int, at: int, channels: int = 1) -> np.ndarray:
    """Return float32 (channels, n) of silence with a short click whose peak is at sample `at`."""
    out = np.zeros((channels, n), np.float32)
    out[:, at - 3 : at + 4] = np.array([0.1, 0.3, 0.6, 0.9, 0.6, 0.3, 0.1])
    return out


def write_sound(path: Path, samples: np.ndarray, rate: int, subtype: str | None = None) -> Path:
    """Write (channels, n) as wav, flac, ogg or mp3, by the suffix; subtype as soundfile names it (PCM_24)."""
    sf.write(str(path), samples.T, rate, subtype=subtype)
    return path


def _layout(sound: np.ndarray) -> str:
    return {1: "mono", 2: "stereo", 6: "5.1"}[sound.shape[0]]
