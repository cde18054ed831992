"""Read videos and pictures: upright, in the right colours, at a constant rate, never whole in memory.

Frame k of a stream at rate `fps` is the source frame on screen at k/fps after the first one: frames are
chosen by timestamp, so a variable-rate clip keeps its timing and a rate change neither drops the end nor
drifts. The display matrix is applied (all eight turns and mirrorings); width and height are those of the
upright picture. The stream's matrix and range tags are honoured, untagged YUV is read by its height.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch

from .color import RgbDecoder, matrix_for_height
from .frames import FrameInfo, FrameStream, RunContext
from .image_read import read_image as read_image
from .media_open import open_media
from .timeline import MAX_FPS, MIN_FPS, fps_text

STANDARD_RATES = tuple(
    Fraction(r)
    for n in (24, 25, 30, 48, 50, 60, 90, 100, 120, 144, 240)
    for r in ((n, Fraction(n * 1000, 1001)) if n % 25 else (n,))
)
_MATRIX_OF_TAG = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 7: "bt709", 9: "bt2020", 10: "bt2020"}
_FULL_RANGE_FORMATS = tuple("yuvj rgb bgr gbr argb abgr 0rgb 0bgr gray ya pal mono".split())


@dataclass(frozen=True)
class VideoProbe:
    """Facts of a video file, from its packets and its first frame.

    width, height: upright, pixels. fps: the constant rate, or for a variable-rate clip the one of its usual
    step. n_frames: packets in the file. seconds: first to the end of the last frame. rotation: degrees to
    turn clockwise, after `mirrored` flipped left and right. matrix, range: as tagged, else as assumed.
    """

    path: Path
    width: int
    height: int
    fps: Fraction
    average_rate: Fraction | None
    guessed_rate: Fraction | None
    is_vfr: bool
    n_frames: int
    seconds: Fraction
    first_pts: int
    time_base: Fraction
    rotation: int
    mirrored: bool
    codec: str
    pix_fmt: str
    matrix: str
    range: str
    tagged: bool
    has_audio: bool
    audio_rate_hz: int
    audio_channels: int
    notes: tuple[str, ...] = ()

    def frames_at(self, fps: Fraction) -> int:
        """Return the frames the clip has at `fps`; a timestamp may be off by one tick of its clock."""
        return max(1, math.ceil((self.seconds - self.time_base) * fps))


def probe_video(path: str | os.PathLike) -> VideoProbe:
    """Return the facts of a video; reads every packet header, decodes one frame.

    Raises ValueError if there is no such file, no video in it, no frame that decodes, or a playlist: those are not
    followed to the files they name.
    """
    source = Path(path)
    with _open(source) as box:
        stream = _video_stream(box, source)
        frame = _first_frame(box, stream, source)
        transpose, flip_x, flip_y = _orientation(frame)
        codec = stream.codec_context.name
        sound = box.streams.audio[0].codec_context if box.streams.audio else None
        rate_hz, channels = (sound.sample_rate, sound.channels) if sound else (0, 0)
        average, guessed = stream.average_rate, stream.guessed_rate
        aspect = stream.sample_aspect_ratio
        # libvpx keeps transparency beside the picture: the pixel format does not show it.
        is_clear = stream.metadata.get("alpha_mode") == "1" or _is_clear(frame, codec)
    first, seconds, n, is_vfr, fps, short = _timing(source, average, guessed)
    matrix, color_range, tagged = _colors(frame)
    notes = [short] if short else []
    if is_vfr:
        notes.append(f"{source.name} has a variable frame rate; frames are chosen by their timestamps")
    if aspect and aspect != 1:
        notes.append(f"{source.name} has pixels that are not square ({aspect}); they are used as they are")
    notes += _lost_in_rgb24(source.name, frame.format, is_clear)
    if frame.color_trc in (16, 18):
        notes.append(f"{source.name} is HDR; it is read without tone mapping and looks flat")
    height, width = (frame.width, frame.height) if transpose else (frame.height, frame.width)
    return VideoProbe(
        path=source,
        width=width,
        height=height,
        fps=fps,
        average_rate=Fraction(average) if average else None,
        guessed_rate=Fraction(guessed) if guessed else None,
        is_vfr=is_vfr,
        n_frames=n,
        seconds=seconds,
        first_pts=first,
        time_base=Fraction(frame.time_base),
        rotation=_ROTATION[transpose, flip_x, flip_y][0],
        mirrored=_ROTATION[transpose, flip_x, flip_y][1],
        codec=codec,
        pix_fmt=frame.format.name,
        matrix=matrix,
        range=color_range,
        tagged=tagged,
        has_audio=sound is not None,
        audio_rate_hz=rate_hz,
        audio_channels=channels,
        notes=tuple(notes),
    )


class VideoStream(FrameStream):
    """The frames of a video file as uint8 RGB at a constant rate, decoded when they are pulled.

    fps: output rate, default the file's own. start, limit: first output frame and how many, at that rate.
    Frames that do not decode are replaced by the one before and reported.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        fps: Fraction | None = None,
        start: int = 0,
        limit: int | None = None,
        probe: VideoProbe | None = None,
    ) -> None:
        self.probe = probe or probe_video(path)
        self.stage = f"read {self.probe.path.name}"
        fps = fps or self.probe.fps
        total = self.probe.frames_at(fps)
        if not 0 <= start < total:
            raise ValueError(
                f"start {start} is outside 0..{total - 1}, {self.probe.path.name} has {total} frames"
            )
        if limit is not None and limit < 1:
            raise ValueError(f"limit {limit} is below 1; leave it out to read to the end")
        self._start = start
        count = min(limit or total, total - start)
        self.info = FrameInfo(self.probe.width, self.probe.height, fps, count)

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, None]]:
        for note in self.probe.notes:
            ctx.warn(note)
        done, frames = 0, self._retimed(ctx)
        try:
            while done < self.info.n_frames:
                count = min(n, self.info.n_frames - done)
                out = np.empty((count, *self.info.frame_shape), np.uint8)
                for i in range(count):
                    out[i] = next(frames)
                done += count
                yield torch.from_numpy(out), None
        finally:
            frames.close()

    def _retimed(self, ctx: RunContext) -> Iterator[np.ndarray]:
        """Yield without end the picture on screen at start/fps, (start+1)/fps, ..."""
        probe, decoder = self.probe, RgbDecoder()
        source = self._decoded(ctx, self._start / self.info.fps)
        shown, ahead = next(source), next(source, None)
        k, picture = self._start, None
        try:
            while True:
                # Half a tick: a clock of milliseconds writes 66.67 as 67.
                limit = k / self.info.fps / probe.time_base + Fraction(1, 2)
                while ahead is not None and ahead[0] - probe.first_pts <= limit:
                    shown, ahead, picture = ahead, next(source, None), None
                if picture is None:
                    picture = _upright_rgb(shown[1], decoder, probe)
                yield picture
                k += 1
        finally:
            source.close()

    def _decoded(self, ctx: RunContext, seconds: Fraction) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (pts, frame) in order from the frame on screen at `seconds`, or from an earlier one."""
        probe = self.probe
        target = probe.first_pts + math.floor(seconds / probe.time_base)
        with _open(probe.path) as box:
            stream = _video_stream(box, probe.path)
            stream.thread_type = "AUTO"
            if seconds > 1:
                box.seek(target, stream=stream)
            frames = _decode(box, stream, ctx, probe)
            first = next(frames, None)
            if first is None or first[0] > target:  # some containers land behind the target
                frames.close()
                box.seek(probe.first_pts, stream=stream)
                frames = _decode(box, stream, ctx, probe)
                first = next(frames, None)
            if first is None:
                raise ValueError(f"{probe.path.name} has no frame that decodes; is the file damaged?")
            yield first
            yield from frames


def _decode(box, stream, ctx: RunContext, probe: VideoProbe) -> Iterator[tuple[int, av.VideoFrame]]:
    last = None
    step = round(1 / probe.fps / probe.time_base)
    for packet in box.demux(stream):
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            ctx.warn(f"{probe.path.name}: damaged data; the frame before is shown instead")
            continue
        for frame in frames:
            pts = frame.pts if frame.pts is not None else frame.dts
            if pts is None:
                pts = probe.first_pts if last is None else last + step
            if last is None or pts > last:
                last = pts
                yield pts, frame


def _open(path: Path):
    try:
        return open_media(path)
    except (av.error.FFmpegError, OSError) as e:
        raise ValueError(f"{path.name} cannot be read as a video ({e.strerror or e}); is it complete?") from e


def _video_stream(box, path: Path):
    for stream in box.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:
            return stream
    kinds = ", ".join(sorted({s.type for s in box.streams})) or "nothing"
    raise ValueError(f"{path.name} holds no video ({kinds} only); give a file with pictures")


def _first_frame(box, stream, path: Path) -> av.VideoFrame:
    for packet in box.demux(stream):
        try:
            for frame in packet.decode():
                return frame
        except av.error.FFmpegError:
            continue
    raise ValueError(f"{path.name} has 0 frames that decode; is the file complete?")


def _timing(path: Path, average, guessed) -> tuple[int, Fraction, int, bool, Fraction, str]:
    """Return (first pts, seconds, packets, is variable, constant rate, note or "") from the packets of the file."""
    packets, ends = [], {}
    with _open(path) as box:
        stream = _video_stream(box, path)
        tick = Fraction(stream.time_base)
        told = _told_seconds(box, stream)
        for p in box.demux():
            pts, length = p.pts if p.pts is not None else p.dts, p.duration or 0
            if not p.size or p.is_discard:
                continue
            if p.stream.index == stream.index:
                packets.append((pts, length))
            if pts is not None and p.time_base:
                ends[p.time_base] = max(ends.get(p.time_base, 0), pts + length)
    usual = Fraction(guessed or average or 25)
    short = _short_note(path, told, [base * end for base, end in ends.items()], usual)
    if any(pts is None for pts, _ in packets):  # raw streams: no clock of their own
        step = max(1, round(1 / usual / tick))
        packets = [(i * step, step) for i in range(len(packets))]
    packets.sort()
    pts = np.array([p for p, _ in packets], dtype=np.int64)
    steps = np.diff(pts)
    if not len(steps):
        last = packets[-1][1] or round(1 / usual / tick)
        return int(pts[0]), last * tick, len(pts), False, _within(usual), short
    median = int(np.median(steps))
    # The last packet of a file often carries no duration, or that of a stream with a hole.
    last = packets[-1][1] or median
    seconds = (int(pts[-1] - pts[0]) + last) * tick
    slack = max(2, median // 10)
    is_vfr = bool((np.abs(steps - median) > slack).any())
    fps = Fraction(guessed or 1 / (median * tick)) if is_vfr else _steady_rate(pts, tick, average)
    return int(pts[0]), seconds, len(pts), is_vfr, _within(fps), short


def _is_clear(frame: av.VideoFrame, codec: str) -> bool:
    """Whether a clip has transparency, by its first frame."""
    if not any(c.is_alpha for c in frame.format.components):
        return False
    # FFmpeg gives every GIF an alpha channel.
    return codec != "gif" or bool((frame.to_ndarray(format="rgba")[..., 3] < 255).any())


def _lost_in_rgb24(name: str, pixels: av.VideoFormat, is_clear: bool) -> list[str]:
    """Return what of a clip's pixels 8-bit RGB does not hold, as notes."""
    notes, bits = [], max(c.bits for c in pixels.components)
    if bits > 8:
        notes.append(
            f"{name} has {bits} bits a sample ({pixels.name}); it is rounded to 8 bits, what the networks take"
        )
    if is_clear:
        notes.append(
            f"{name} has transparency ({pixels.name}); it is ignored, the colours are used as they are"
        )
    return notes


def _told_seconds(box, stream) -> Fraction:
    """Return how long the container says it is, 0 where it does not: what it says is kept when its end is cut off."""
    if stream.duration:
        return stream.duration * Fraction(stream.time_base)
    return Fraction(box.duration or 0, av.time_base)


def _short_note(path: Path, told: Fraction, ends: list[Fraction], fps: Fraction) -> str:
    """Return a note if all streams end (at `ends` seconds) well before what the container says, else ""."""
    end = max(ends, default=told)
    # The last packet's length is often unknown, and some containers count a frame more.
    if told - end <= max(4 / fps, told / 50):
        return ""
    return (
        f"{path.name} says it lasts {float(told):.2f} s and ends at {float(end):.2f} s: it is cut short, get it again "
        "if you need the rest"
    )


def _steady_rate(pts: np.ndarray, tick: Fraction, average) -> Fraction:
    """Return the rate of evenly spaced timestamps, the nearest one that the clock's coarseness allows."""
    span = int(pts[-1] - pts[0])
    mean = Fraction(len(pts) - 1, span) / tick
    slack = mean * Fraction(3, 2) / span
    stated = Fraction(average) if average else mean
    for rate in (*((stated,) if stated in STANDARD_RATES else ()), *STANDARD_RATES, stated):
        if abs(rate - mean) <= slack:
            return rate
    return mean.limit_denominator(100_000)


def _within(fps: Fraction) -> Fraction:
    return min(max(fps, MIN_FPS), MAX_FPS)


def _colors(frame: av.VideoFrame) -> tuple[str, str, bool]:
    matrix = _MATRIX_OF_TAG.get(int(frame.colorspace))
    name = frame.format.name
    full = int(frame.color_range) == 2 or name.startswith(_FULL_RANGE_FORMATS)
    return matrix or matrix_for_height(frame.height), "full" if full else "limited", matrix is not None


_ROTATION = {  # (transpose, then flip x, then flip y) -> (clockwise degrees, mirrored before turning)
    (False, False, False): (0, False),
    (True, True, False): (90, False),
    (False, True, True): (180, False),
    (True, False, True): (270, False),
    (False, True, False): (0, True),
    (True, True, True): (90, True),
    (False, False, True): (180, True),
    (True, False, False): (270, True),
}


def _orientation(frame: av.VideoFrame) -> tuple[bool, bool, bool]:
    """Return (transpose, flip x, flip y) from the display matrix: x' = a x + c y, y' = b x + d y."""
    # By name: iterating gives the data in PyAV 18 and their names in 19.
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return False, False, False
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data)[:36])
    if abs(b) > abs(a):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def _upright_rgb(frame: av.VideoFrame, decoder: RgbDecoder, probe: VideoProbe) -> np.ndarray:
    turned = probe.rotation in (90, 270)
    size = (probe.height, probe.width) if turned else (probe.width, probe.height)
    rgb = decoder.convert(frame, probe.matrix, probe.range, *size)
    if probe.mirrored:
        rgb = rgb[:, ::-1]
    return np.rot90(rgb, -probe.rotation // 90) if probe.rotation else rgb


def describe(probe: VideoProbe) -> str:
    """Return one line for a report: size, rate, length, sound."""
    rate = f"{'variable, about ' if probe.is_vfr else ''}{fps_text(probe.fps)} fps"
    sound = f"{probe.audio_rate_hz} Hz x {probe.audio_channels}" if probe.has_audio else "no sound"
    turned = f", turned by {probe.rotation}" if probe.rotation else ""
    return (
        f"{probe.width}x{probe.height}{turned}, {rate}, {float(probe.seconds):.2f} s, {probe.codec}, {sound}"
    )
