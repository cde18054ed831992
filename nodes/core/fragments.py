"""Fragmented MP4 (ISO/IEC 14496-12 clause 8.8) from packets that were encoded for something else.

Nothing is encoded here: the packets of a file are muxed a second time, into an init segment and media segments that a
browser's MediaSource takes as they come. Segments are cut at key frames and after SEGMENT_S of pictures; memory is one
segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import av

from .mp4_boxes import BoxReader, codec_strings, sample_counts
from .packet_tap import EncodedPacket

if TYPE_CHECKING:
    from av import AudioStream, VideoStream

SEGMENT_S = Fraction(1, 4)
"""The picture gets to the page this much later; shorter ones cost more requests than they save waiting."""

# With empty_moov the first picture would come late by the encoder's delay of the sound (82.7 ms at 25 fps, measured);
# delay_moov writes the edit list that holds it. frag_every_frame loses frames beside sound.
_FLAGS = "frag_keyframe+delay_moov+default_base_moof+skip_trailer"


@dataclass(frozen=True)
class Segment:
    """A moof and its mdat, whole. key: it begins with a key frame, so playback may start here.

    number counts from 0; first_frame and n_frames of the picture track; n_frames is 0 if only sound is left.
    """

    number: int
    first_frame: int
    n_frames: int
    key: bool
    data: bytes


class FragmentMuxer:
    """Muxes packets to segments. `on_init(bytes, MIME type with codecs)` is called once before the first `on_segment`.

    The streams are templates, read while the object is made; they may be used up by their encoder at the same time.
    ValueError (or an FFmpeg error) if fragmented MP4 does not hold a codec.
    """

    def __init__(
        self,
        video: VideoStream,
        sound: AudioStream | None,
        on_init: Callable[[bytes, str], None],
        on_segment: Callable[[Segment], None],
        segment_s: Fraction = SEGMENT_S,
    ) -> None:
        self._on_init, self._on_segment = on_init, on_segment
        self._boxes, self._head, self._moof = BoxReader(), b"", b""
        self._frames, self._sent, self._number = 0, 0, 0
        self._keys: deque[int] = deque()
        self._video_id = 1
        options = {
            "movflags": _FLAGS,
            "frag_duration": str(round(segment_s * 1_000_000)),
            # A sound that ends before the pictures must not hold them back; the default is 10 s.
            "max_interleave_delta": "1000000",
        }
        self._box = av.open(self, "w", format="mp4", options=options)
        try:
            self._video = self._box.add_stream_from_template(video)
            if video.codec_context.name in ("libx265", "hevc_nvenc", "hevc"):
                self._video.codec_context.codec_tag = "hvc1"  # Safari knows HEVC by no other name
            self._sound = None if sound is None else self._box.add_stream_from_template(sound)
            self._box.start_encoding()
        except BaseException:
            self.abandon()
            raise

    def take(self, packet: EncodedPacket) -> None:
        """Mux the next packet; calls back for each segment that it completes."""
        stream = self._video if packet.video else self._sound
        copy = av.Packet(packet.data)
        copy.pts, copy.dts, copy.duration = packet.pts, packet.dts, packet.duration
        copy.time_base, copy.is_keyframe, copy.stream = packet.time_base, packet.key, stream
        if packet.video:
            if packet.key:
                self._keys.append(self._frames)
            self._frames += 1
        self._box.mux(copy)

    def finish(self) -> None:
        """Write what is held as the last segments."""
        self._box.close()
        if self._moof or self._boxes.rest:
            raise ValueError(f"the stream ended inside a box, {self._boxes.rest} bytes of it are there")

    def abandon(self) -> None:
        """Close without caring for what is held."""
        self._on_init = self._on_segment = lambda *_: None
        try:
            self._box.close()
        except Exception:  # what it would have written is not wanted
            return

    def write(self, data: bytes) -> int:
        """Take bytes of the muxer (this object is the file it writes to)."""
        for kind, box in self._boxes.feed(data):
            if kind == b"moof":
                self._moof = box
            elif kind == b"mdat":
                self._segment(self._moof + box)
                self._moof = b""
            elif not self._number and kind in (b"ftyp", b"moov"):
                self._head += box
                if kind == b"moov":
                    self._init()
        return len(data)

    def _init(self) -> None:
        codecs = codec_strings(self._head)
        self._video_id = next(iter(codecs))
        self._on_init(self._head, f'video/mp4; codecs="{",".join(codecs.values())}"')

    def _segment(self, data: bytes) -> None:
        n_frames = sample_counts(self._moof).get(self._video_id, 0)
        key = False
        while self._keys and self._keys[0] < self._sent + n_frames:
            key = self._keys.popleft() == self._sent or key
        segment = Segment(self._number, self._sent, n_frames, key, data)
        self._number, self._sent = self._number + 1, self._sent + n_frames
        self._on_segment(segment)
