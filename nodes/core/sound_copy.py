"""AAC that is in a file already goes into the new one packet by packet, neither decoded nor encoded again.

Only from MP4 and its kin into MP4 and MOV: both keep the encoder's delay as an edit list, so the first sample stays the
first. Matroska notes it elsewhere and would start 1024 samples late.
"""

from __future__ import annotations

from fractions import Fraction

import av

from .audio import AudioClip
from .audio_file import FileAudio
from .media_open import open_media
from .report import Report

_FROM, _INTO = "mp4", ("mp4", "mov")


class CopiedSound:
    """The sound track of an open file: packets of `path`, muxed as far as the pictures have come."""

    def __init__(self, box: av.container.OutputContainer, path, report: Report) -> None:
        self._box, self._report, self._at = box, report, Fraction(0)
        self._source = open_media(path)
        track = self._source.streams.best("audio")
        self.stream = box.add_stream_from_template(track)
        self._packets = self._source.demux(track)
        self._ahead: av.Packet | None = self._next()
        codec = track.codec_context
        report.fact("sound", f"aac {codec.sample_rate} Hz {codec.layout.name}, copied from {path.name}")

    def _next(self) -> av.Packet | None:
        try:
            # The last packet of a demuxer is empty.
            return next((p for p in self._packets if p.size and p.pts is not None), None)
        except av.error.FFmpegError as e:  # a finished render is worth more than its sound
            self._report.warn(f"the sound ends at {float(self._at):.2f} s ({e.strerror}); the rest is silent")
            return None

    def advance(self, seconds: Fraction) -> None:
        """Mux the packets that begin before `seconds`."""
        while self._ahead is not None and self._ahead.pts * Fraction(self._ahead.time_base) < seconds:
            packet = self._ahead
            self._at = packet.pts * Fraction(packet.time_base)
            packet.stream = self.stream
            self._box.mux(packet)
            self._ahead = self._next()

    def finish(self) -> None:
        """Mux the rest."""
        while self._ahead is not None:
            self.advance(self._ahead.pts * Fraction(self._ahead.time_base) + 1)
        self.close()

    def close(self) -> None:
        self._packets.close()
        self._source.close()


def copied_sound(
    box: av.container.OutputContainer, clip: AudioClip, kind: str, report: Report
) -> CopiedSound | None:
    """Return the track of `clip` as copied packets, or None if it has to be encoded for a file of this kind."""
    if kind not in _INTO or not isinstance(clip, FileAudio) or clip.notes:
        return None
    try:
        with open_media(clip.path) as source:
            track = source.streams.best("audio")
            if _FROM not in source.format.name.split(",") or track is None or track.codec.name != "aac":
                return None
            first = next(source.decode(track), None)
            # Time 0 has to be the first sample: what comes before it, or a later start, is said in ways that get lost.
            if first is None or first.pts != 0 or first.sample_rate != clip.sample_rate:
                return None
    except (av.error.FFmpegError, OSError):
        return None
    return CopiedSound(box, clip.path, report)
