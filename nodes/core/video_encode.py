"""One open video file: its encoder, colour tags and an AAC track, encoded or copied, that keeps pace with the pictures.

Frames enter as uint8 RGB (H,W,3) of any size >= 2 or as NV12 (H*3/2,W); pts are frame numbers in 1/fps,
audio pts are samples. Sound is pulled from its clip in pieces, never whole. Nothing here knows of threads,
streams or final file names: that is `video_write`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from .audio import AudioClip
from .color import Nv12Encoder, color_tags, matrix_for_height, nv12_planes, pad_to_even, plane_view
from .encoders import ENCODERS, QUALITIES, Quality, encoder_options, encoder_problem
from .frames import FrameInfo
from .interrupt import is_interrupt
from .report import Report
from .sound_copy import CopiedSound, copied_sound

FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
AAC_RATES = (7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
AUDIO_PIECE = 8192
X264_THREADS = 3
"""Fixed, so that a film has the same bytes on every machine. 512x512 on 2 shared cores, a busy torch producer
beside it: 1 thread costs 25-40 % more wall time than 2 or 3; CPU time is the same (draft 5.1, balanced 6.4,
high 12 ms a frame, 0.9 of it colour)."""

_DOWN = math.sqrt(0.5)
_STEREO = {  # rows left, right; FFmpeg's default channel order for the count; LFE is left out
    5: np.array([[1, 0, _DOWN, _DOWN, 0], [0, 1, _DOWN, 0, _DOWN]]),
    6: np.array([[1, 0, _DOWN, 0, _DOWN, 0], [0, 1, _DOWN, 0, 0, _DOWN]]),
    8: np.array([[1, 0, _DOWN, 0, _DOWN, 0, _DOWN, 0], [0, 1, _DOWN, 0, 0, _DOWN, 0, _DOWN]]),
}


def choose_encoder(codec: str, width: int, height: int) -> tuple[str, str]:
    """Return (encoder, why). ValueError if a named encoder does not open."""
    if codec == "auto":
        problem = encoder_problem("h264_nvenc", width, height)
        if problem is None:
            return "h264_nvenc", "opens on this machine"
        return "libx264", f"h264_nvenc does not open here: {problem}"
    problem = encoder_problem(codec, width, height)
    if problem:
        there = [name for name in ENCODERS if name != codec and encoder_problem(name, width, height) is None]
        raise ValueError(
            f"codec {codec} does not open for {width}x{height}: {problem}; choose codec 'auto'"
            + (f" or one that does: {', '.join(there)}" if there else "")
        )
    return codec, "asked for"


class VideoFile:
    """Writes frames and their sound to `path`; call `write`, then `finish`, or `abandon` at any time.

    `info` describes the frames that come in; `width` and `height` are those of the file (even).
    """

    def __init__(
        self,
        path: Path,
        info: FrameInfo,
        audio: AudioClip | None,
        codec: str,
        quality: str,
        metadata: dict[str, str],
        report: Report,
    ) -> None:
        self._info, self._report, self._done = info, report, 0
        self._copied: CopiedSound | None = None
        self.width, self.height = info.width + info.width % 2, info.height + info.height % 2
        matrix = info.matrix or matrix_for_height(self.height)
        color_range = info.range or "limited"
        self._tags = color_tags(matrix, color_range)
        self._converter = None
        if info.layout == "rgb":
            self._converter = Nv12Encoder(self.width, self.height, matrix, color_range)
        self.encoder, why = choose_encoder(codec, self.width, self.height)
        kind = FORMATS[path.suffix.lower()]
        if ENCODERS[self.encoder].kind == "AV1" and kind == "mov":
            raise ValueError(
                f"{self.encoder} writes AV1, which {path.suffix} does not hold; choose .mp4 or .mkv"
            )
        options = {} if kind == "matroska" else {"movflags": "+faststart+use_metadata_tags"}
        self._box = av.open(os.path.abspath(path), "w", format=kind, options=options)
        try:
            for name, value in metadata.items():
                self._box.metadata[name] = value
            settings = self._add_video(QUALITIES[quality], kind)
            self._sound = None
            if audio is not None:
                self._copied = copied_sound(self._box, audio, kind, report)
                self._sound = self._copied or _Sound(self._box, audio, report)
            self._box.start_encoding()
        except BaseException:
            self.abandon()
            raise
        report.fact("encoder", f"{self.encoder} {settings} ({why})")
        report.fact("color", f"{matrix} {color_range}")

    def _add_video(self, quality: Quality, kind: str) -> str:
        fps, encoder = self._info.fps, ENCODERS[self.encoder]
        options, settings = encoder_options(self.encoder, quality, fps)
        self._video = self._box.add_stream(self.encoder, rate=fps, options=options)
        context = self._video.codec_context
        context.width, context.height, context.pix_fmt = self.width, self.height, encoder.pix_fmt
        if encoder.tag and kind != "matroska":
            context.codec_tag = encoder.tag
        context.time_base = self._video.time_base = 1 / fps
        context.color_range, context.colorspace = self._tags.range, self._tags.colorspace
        context.color_primaries, context.color_trc = self._tags.primaries, self._tags.trc
        if self.encoder == "libx264":
            context.thread_count = X264_THREADS
        return settings

    def write(self, pixels: np.ndarray) -> None:
        """Encode the next frame, shaped info.frame_shape, and the sound that belongs beside it."""
        with self._timed("convert"):
            picture = self._picture(pixels)
        with self._timed("encode"):
            self._box.mux(self._video.encode(picture))
        self._done += 1
        if self._sound:
            with self._timed("sound"):
                self._sound.advance(self._done / self._info.fps)

    def _picture(self, pixels: np.ndarray) -> av.VideoFrame:
        layout = ENCODERS[self.encoder].pix_fmt
        picture = av.VideoFrame(self.width, self.height, layout)
        y = plane_view(picture.planes[0], self.width, self.height)
        half = (self.height // 2, self.width // 2, 2)
        if layout == "nv12":
            uv = plane_view(picture.planes[1], self.width, self.height // 2).reshape(half)
        else:
            uv = np.empty(half, np.uint8)
        if self._converter:
            self._converter.convert(pad_to_even(pixels[None])[0], y, uv)
        else:
            y[:], uv[:] = nv12_planes(pixels)
        if layout != "nv12":
            for k in range(2):
                plane_view(picture.planes[1 + k], half[1], half[0])[:] = uv[..., k]
        picture.pts, picture.time_base, picture.duration = self._done, 1 / self._info.fps, 1
        picture.color_range, picture.colorspace = self._tags.range, self._tags.colorspace
        picture.color_primaries, picture.color_trc = self._tags.primaries, self._tags.trc
        return picture

    def finish(self) -> None:
        """Write what the encoders still hold and close the file."""
        with self._timed("encode"):
            self._box.mux(self._video.encode(None))
        if self._sound:
            with self._timed("sound"):
                self._sound.finish()
        self._box.close()

    def abandon(self) -> None:
        """Close the file whatever state it is in."""
        if self._copied:
            self._copied.close()
        try:
            self._box.close()
        except Exception:  # a full disk fails again while closing; the file is removed anyway
            return

    def _timed(self, stage: str) -> AbstractContextManager:
        return self._report.timed(stage)


class _Sound:
    """The AAC track: cleans, downmixes and resamples its clip piece by piece, from sample 0."""

    def __init__(self, box: av.container.OutputContainer, clip: AudioClip, report: Report) -> None:
        self._box, self._clip, self._report = box, clip, report
        rate = clip.sample_rate
        self._rate = rate if rate in AAC_RATES else next((r for r in AAC_RATES if rate <= r <= 48000), 48000)
        self._layout = "mono" if clip.channels == 1 else "stereo"
        self._stream = box.add_stream("aac", rate=self._rate, layout=self._layout)
        self._stream.codec_context.bit_rate = 96000 * min(2, clip.channels)
        self._length = -(-clip.n_samples * self._rate // rate)
        self._sent, self._bad, self._peak = 0, 0, 1.0
        self._pieces = self._prepared()
        report.fact("sound", f"aac {self._rate} Hz {self._layout}")
        if rate != self._rate:
            report.warn(f"AAC has no {rate} Hz; the sound was resampled to {self._rate} Hz")
        if clip.channels > 2:
            how = "front, centre and surround" if clip.channels in _STEREO else "the mean"
            report.warn(f"the sound has {clip.channels} channels; mixed down to stereo from {how}")

    def advance(self, seconds: Fraction) -> None:
        """Encode until the track reaches `seconds` or its end."""
        while self._sent < min(self._length, seconds * self._rate):
            piece = next(self._pieces)[:, : self._length - self._sent]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), "fltp", self._layout)
            frame.sample_rate, frame.time_base, frame.pts = self._rate, Fraction(1, self._rate), self._sent
            self._sent += piece.shape[1]
            self._box.mux(self._stream.encode(frame))

    def finish(self) -> None:
        self.advance(Fraction(self._length, self._rate))
        self._box.mux(self._stream.encode(None))
        if self._bad:
            self._report.warn(f"the sound had {self._bad} NaN or infinite samples; they became silence")
        if self._peak > 1:
            self._report.warn(f"the sound peaks at {self._peak:.3g}, above full scale 1.0; it was clipped")

    def _prepared(self) -> Iterator[np.ndarray]:
        """Yield float32 (1 or 2, n) at the track's rate: the clip, then silence without end."""
        if self._rate == self._clip.sample_rate:
            yield from self._mixed()
        else:
            resampler = av.AudioResampler("fltp", self._layout, self._rate)
            for at, piece in self._numbered():
                frame = av.AudioFrame.from_ndarray(piece, "fltp", self._layout)
                frame.sample_rate, frame.pts = self._clip.sample_rate, at
                yield from (out.to_ndarray() for out in resampler.resample(frame))
            yield from (out.to_ndarray() for out in resampler.resample(None))
        while True:
            yield np.zeros((min(2, self._clip.channels), AUDIO_PIECE), np.float32)

    def _numbered(self) -> Iterator[tuple[int, np.ndarray]]:
        at = 0
        for piece in self._mixed():
            yield at, np.ascontiguousarray(piece)
            at += piece.shape[1]

    def _mixed(self) -> Iterator[np.ndarray]:
        """Yield the clip's blocks, finite, within full scale, one or two channels."""
        blocks, got = self._clip.blocks(AUDIO_PIECE), 0
        while got < self._clip.n_samples:
            try:
                block = next(blocks)
            except Exception as e:  # also StopIteration: a finished render is worth more than its sound
                if is_interrupt(e):
                    raise
                at = got / self._clip.sample_rate
                self._report.warn(
                    f"the sound ends at {at:.2f} s ({type(e).__name__}: {e}); the rest is silent"
                )
                return
            got += block.shape[1]
            yield self._clean(block)

    def _clean(self, block: np.ndarray) -> np.ndarray:
        finite = np.isfinite(block)
        if not finite.all():
            self._bad += int(finite.size - finite.sum())
            block = np.where(finite, block, np.float32(0))
        if block.shape[0] > 2:
            mix = _STEREO.get(block.shape[0], np.ones((2, block.shape[0])))
            block = (mix / mix.sum(axis=1, keepdims=True)) @ block
        self._peak = max(self._peak, float(np.abs(block).max(initial=0)))
        return block.clip(-1, 1).astype(np.float32)
