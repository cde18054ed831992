"""One open video file: its encoder, colour tags and an AAC track, encoded or copied, that keeps pace with the pictures.

Frames enter as uint8 RGB (H,W,3) of any size >= 2 or as NV12 (H*3/2,W); pts are frame numbers in 1/fps,
audio pts are samples. Sound is pulled from its clip in pieces, never whole. Nothing here knows of threads,
streams or final file names: that is `video_write`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from .aac_track import AAC_RATES, AacTrack
from .audio import AudioClip
from .encoders import ENCODERS, QUALITIES, Quality, encoder_options, encoder_problem
from .frames import FrameInfo
from .interrupt import is_interrupt
from .packet_tap import TappedBox, TapThread
from .pictures import Pictures, even_size
from .report import Report
from .sound_copy import CopiedSound, copied_sound
from .thread_priority import callers_scheduling

FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
AUDIO_PIECE = 8192

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

    `info` describes the frames that come in; `width` and `height` are those of the file (even). `tap` gets a copy of
    every packet; the file is the same with and without.
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
        tap: TapThread | None = None,
    ) -> None:
        self._info, self._report, self._done = info, report, 0
        self._copied: CopiedSound | None = None
        self.encoder, why = choose_encoder(codec, *even_size(info))
        self._pictures = Pictures(info, self.encoder)
        self.width, self.height = self._pictures.width, self._pictures.height
        kind = FORMATS[path.suffix.lower()]
        if ENCODERS[self.encoder].kind == "AV1" and kind == "mov":
            raise ValueError(
                f"{self.encoder} writes AV1, which {path.suffix} does not hold; choose .mp4 or .mkv"
            )
        options = {} if kind == "matroska" else {"movflags": "+faststart+use_metadata_tags"}
        self._box = av.open(os.path.abspath(path), "w", format=kind, options=options)
        if tap:
            self._box = TappedBox(self._box, tap)
        try:
            for name, value in metadata.items():
                self._box.metadata[name] = value
            settings = self._add_video(QUALITIES[quality], kind)
            self._sound = None
            if audio is not None:
                self._copied = copied_sound(self._box, audio, kind, report)
                self._sound = self._copied or _Sound(self._box, audio, report)
            with callers_scheduling():
                self._box.start_encoding()
            if tap:
                tap.begin(self._video, self._sound and self._sound.stream)
        except BaseException:
            self.abandon()
            raise
        report.fact("encoder", f"{self.encoder} {settings} ({why})")
        report.fact("color", f"{self._pictures.matrix} {self._pictures.range}")

    def _add_video(self, quality: Quality, kind: str) -> str:
        encoder = ENCODERS[self.encoder]
        options, settings = encoder_options(self.encoder, quality, self._info.fps)
        self._video = self._box.add_stream(self.encoder, rate=self._info.fps, options=options)
        if encoder.tag and kind != "matroska":
            self._video.codec_context.codec_tag = encoder.tag
        self._pictures.set_up(self._video.codec_context)
        self._video.time_base = 1 / self._info.fps
        return settings

    def write(self, pixels: np.ndarray) -> None:
        """Encode the next frame, shaped info.frame_shape, and the sound that belongs beside it."""
        with self._report.timed("convert"):
            picture = self._pictures.make(pixels, self._done)
        with self._report.timed("encode"):
            self._box.mux(self._video.encode(picture))
        self._done += 1
        if self._sound:
            with self._report.timed("sound"):
                self._sound.advance(self._done / self._info.fps)

    def finish(self) -> None:
        """Write what the encoders still hold and close the file."""
        with self._report.timed("encode"):
            self._box.mux(self._video.encode(None))
        if self._sound:
            with self._report.timed("sound"):
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


class _Sound:
    """The AAC track: cleans, downmixes and resamples its clip piece by piece, from sample 0."""

    def __init__(self, box: av.container.OutputContainer, clip: AudioClip, report: Report) -> None:
        self._box, self._clip, self._report = box, clip, report
        rate = clip.sample_rate
        self._rate = rate if rate in AAC_RATES else next((r for r in AAC_RATES if rate <= r <= 48000), 48000)
        self._layout = "mono" if clip.channels == 1 else "stereo"
        self._track = AacTrack(box, self._rate, min(2, clip.channels))
        self.stream = self._track.stream
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
            self._sent += piece.shape[1]
            self._box.mux(self._track.encode(piece))

    def finish(self) -> None:
        self.advance(Fraction(self._length, self._rate))
        self._box.mux(self._track.finish())
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
