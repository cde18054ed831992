"""Frames and their sound as the bytes of a video that is watched while it is made.

Each call gives what can leave at that moment. MP4 is cut into a fragment a packet: `frag_duration` does that without
loss, FFmpeg's `frag_every_frame` beside sound loses one frame in seven. The header waits for the first sound packet
(`delay_moov`), which is where the track's start becomes known. `max_interleave_delta` lets packets pass as they come:
sorted by time, a frame waits until sound from behind it has left the AAC encoder, which holds back two packets. At the
end of a batch of 8 frames with 80 ms of later sound that kept back 4 frames at 16 kHz and 1 at 48 kHz; passed as they
come it is 1 and 0. Raw H.264 keeps nothing back.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np

from .aac_track import AacTrack
from .encoders import QUALITIES, live_options
from .frames import FrameInfo
from .pictures import Pictures, even_size
from .report import Report
from .video_encode import choose_encoder

_FLAGS = "+frag_keyframe+delay_moov+default_base_moof+skip_trailer"
"""skip_trailer: the index of fragments that a trailer holds would grow as long as the session lasts."""
_FRAGMENT_US = 10000
"""Shorter than any packet of sound (1024 samples) and any frame."""
_FIRST_SOUND = Fraction(1, 5)
"""Seconds of sound that go in before the first frame: the header then leaves with the second."""
_AHEAD = Fraction(1, 2)
"""Seconds by which sound may enter the file before its frame."""
_AAC = "mp4a.40.2"
_START_CODE = b"\x00\x00\x01"


class SoundBuffer:
    """Sound on its way from the client to the track: float32 (channels, n); at most `max_seconds` wait in it.

    One thread pushes, one takes.
    """

    def __init__(self, sample_rate: int, channels: int, max_seconds: float) -> None:
        self.sample_rate, self.channels = sample_rate, channels
        self._most = int(max_seconds * sample_rate)
        self._parts: deque[np.ndarray] = deque()
        self._lock = threading.Lock()
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def room(self) -> int:
        """Samples that still fit."""
        return max(0, self._most - self._held)

    def push(self, samples: np.ndarray) -> None:
        """Append samples. ValueError if they do not fit: ask `room` first."""
        if samples.shape[1] > self.room():
            raise ValueError(f"{samples.shape[1]} samples do not fit, there is room for {self.room()}")
        if samples.shape[1]:
            with self._lock:
                self._parts.append(samples)
                self._held += samples.shape[1]

    def take(self, count: int) -> np.ndarray:
        """Return the next samples, at most `count`; as many as there are."""
        taken, got = [], 0
        with self._lock:
            while got < count and self._parts:
                part = self._parts.popleft()
                if got + part.shape[1] > count:
                    self._parts.appendleft(part[:, count - got :])
                    part = part[:, : count - got]
                taken.append(part)
                got += part.shape[1]
            self._held -= got
        return np.concatenate(taken, axis=1) if taken else np.zeros((self.channels, 0), np.float32)


class LiveEncoder:
    """One video. `codec` is its name for players, such as "avc1.42C01E,mp4a.40.2"; `encoder` what makes it.

    Args:
        info: the frames that come in; n_frames need not be known.
        output: "mp4" with the sound of `sound`, or "h264" without any.
        quality: "draft" or "balanced".
        sound: where the client's samples come from; those of a frame should be there when the frame is written.
    """

    def __init__(
        self, info: FrameInfo, output: str, quality: str, sound: SoundBuffer, report: Report | None = None
    ) -> None:
        report = report or Report()
        self._info, self.width, self.height = info, *even_size(info)
        self.encoder, why = choose_encoder("auto", self.width, self.height)
        form = _Mp4 if output == "mp4" else _AnnexB
        try:
            self._form = form(info, self.encoder, quality, sound)
        except (OSError, av.error.FFmpegError) as e:
            # A card may refuse one more session although a probe opened before.
            if self.encoder == "libx264":
                raise
            report.warn(f"{self.encoder} did not start ({e}); libx264 took over")
            self.encoder, why = "libx264", "what was chosen did not start"
            self._form = form(info, self.encoder, quality, sound)
        self.codec = self._form.codec
        self.n_frames = 0
        report.fact("encoder", f"{self.encoder}, low latency ({why})")

    def write(self, frames: np.ndarray) -> Iterator[bytes]:
        """Encode the next frames, (n, *info.frame_shape); yield bytes as they can leave, none of them empty."""
        for pixels in frames:
            data = self._form.write(pixels, self.n_frames)
            self.n_frames += 1
            if data:
                yield data
        data = self._form.hear(self.n_frames)
        if data:
            yield data

    def finish(self) -> bytes:
        """Encode the rest of the sound, close the video and return its last bytes; none if there was no frame."""
        if not self.n_frames:
            self.abandon()
            return b""
        return self._form.finish()

    def abandon(self) -> None:
        """Give up what the encoders hold; also after `finish`."""
        self._form.abandon()


class _Sink:
    """Where the muxer writes; it cannot seek, so nothing is ever patched afterwards."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class _Mp4:
    def __init__(self, info: FrameInfo, encoder: str, quality: str, sound: SoundBuffer) -> None:
        self._info, self._sound, self._sink = info, sound, _Sink()
        self._pictures = Pictures(info, encoder)
        options = {"movflags": _FLAGS, "frag_duration": str(_FRAGMENT_US), "max_interleave_delta": "1"}
        self._box = av.open(self._sink, "w", format="mp4", options=options)
        try:
            settings = live_options(encoder, QUALITIES[quality], info.fps)
            self._video = self._box.add_stream(encoder, rate=info.fps, options=settings)
            self._pictures.set_up(self._video.codec_context)
            self._video.time_base = 1 / info.fps
            self._track = AacTrack(self._box, sound.sample_rate, sound.channels)
            self._box.start_encoding()
            self.codec = f"{_avc_name(self._video.codec_context.extradata)},{_AAC}"
        except BaseException:
            self.abandon()
            raise

    def write(self, pixels: np.ndarray, index: int) -> bytes:
        if not index:
            self._take_sound(_FIRST_SOUND)
        self._box.mux(self._video.encode(self._pictures.make(pixels, index)))
        self._take_sound((index + 1) / self._info.fps)
        return self._sink.take()

    def hear(self, n_frames: int) -> bytes:
        """Encode the sound that is there: it pushes the last frame out."""
        self._take_sound(n_frames / self._info.fps + _AHEAD)
        return self._sink.take()

    def _take_sound(self, seconds: Fraction) -> None:
        samples = self._sound.take(math.floor(seconds * self._track.rate) - self._track.sent)
        if samples.shape[1]:
            self._box.mux(self._track.encode(samples))

    def finish(self) -> bytes:
        self._box.mux(self._video.encode(None))
        while self._sound.held:
            self._box.mux(self._track.encode(self._sound.take(self._track.rate)))
        self._box.mux(self._track.finish())
        self._box.close()
        return self._sink.take()

    def abandon(self) -> None:
        try:
            self._box.close()
        except Exception:  # without a frame there is no header to close; nobody reads it anyway
            return


class _AnnexB:
    def __init__(self, info: FrameInfo, encoder: str, quality: str, sound: SoundBuffer) -> None:
        self._sound, self._pictures = sound, Pictures(info, encoder)
        context = av.CodecContext.create(encoder, "w")
        context.options = live_options(encoder, QUALITIES[quality], info.fps)
        context.framerate = info.fps
        self._pictures.set_up(context)
        # The parameter sets apart, to be put before every key frame by us: not every encoder repeats them.
        context.flags |= av.codec.context.Flags.global_header
        context.open()
        self._context, self._head = context, bytes(context.extradata)
        self.codec = _avc_name(self._head)

    def write(self, pixels: np.ndarray, index: int) -> bytes:
        return self._joined(self._context.encode(self._pictures.make(pixels, index)))

    def hear(self, n_frames: int) -> bytes:
        """Drop the sound: there is no track, and nothing may pile up."""
        self._sound.take(self._sound.held)
        return b""

    def finish(self) -> bytes:
        self.hear(0)
        return self._joined(self._context.encode(None))

    def _joined(self, packets: Iterable[av.Packet]) -> bytes:
        return b"".join((self._head if p.is_keyframe else b"") + bytes(p) for p in packets)

    def abandon(self) -> None:
        return


def _avc_name(extradata: bytes) -> str:
    """Return RFC 6381's name of a stream, avc1.PPCCLL: profile, constraints and level of its sequence parameter set."""
    at = extradata.find(_START_CODE)
    while at >= 0:
        unit = extradata[at + 3 :]
        if len(unit) >= 4 and unit[0] & 31 == 7:
            return f"avc1.{unit[1:4].hex().upper()}"
        at = extradata.find(_START_CODE, at + 3)
    raise ValueError("the encoder gave no sequence parameter set; choose another output or encoder")
