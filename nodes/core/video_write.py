"""Write a FrameStream to a video file: producer in the caller's thread, encoding in a writer thread.

The stream (the end of its pipeline, ComfyUI's interrupts) runs in the thread that calls `write_video`; colour
conversion, the encoders of picture and sound run in one other thread behind a queue of two chunks, so memory does
not depend on length; with `RunContext.overlap` False the stream waits while that thread works. A stream that has a
quicker way to NV12 than its RGB converted is asked for that. The file is made under a temporary name in the target
folder and renamed when it is complete: an error, an interrupt or Ctrl-C leaves no file, and a file of that name that
was there before stays.
"""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from av.error import FFmpegError

from .audio import AudioClip
from .color import matrix_for_height
from .encoders import CODECS, QUALITIES
from .frames import FrameInfo, FrameStream, RunContext, StageError
from .host_copy import Arriving, HostCopies
from .packet_tap import PacketTap, TapThread
from .report import Report
from .stage_thread import wait_for_end
from .timeline import fps_text
from .video_encode import FORMATS, VideoFile

QUEUE_CHUNKS = 2
_POLL_S = 0.05
_serial = itertools.count()


@dataclass(frozen=True)
class WriteOptions:
    """codec "auto" (h264_nvenc where it opens, else libx264) or one of `encoders.CODECS`; quality draft, balanced, high.

    chunk: frames pulled from the stream at a time. metadata: text written into the file (ComfyUI: prompt
    and workflow as JSON). tap: gets every packet in a thread of its own, a live preview for one; it cannot harm the file.
    """

    codec: str = "auto"
    quality: str = "balanced"
    chunk: int = 8
    metadata: Mapping[str, str] = field(default_factory=dict)
    tap: PacketTap | None = None

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise ValueError(f"codec {self.codec!r} is unknown; use one of {', '.join(CODECS)}")
        if self.quality not in QUALITIES:
            raise ValueError(f"quality {self.quality!r} is unknown; use one of {', '.join(QUALITIES)}")
        if not 1 <= self.chunk <= 256:
            raise ValueError(f"a chunk of {self.chunk} frames is outside 1..256; 8 is a good start")


@dataclass(frozen=True)
class WriteResult:
    """The finished file. duration is n_frames / fps; padded: a row or column was added to an odd side;
    first_frame_s: from the call to the first frame in the encoder; seconds: the whole call."""

    path: Path
    width: int
    height: int
    fps: Fraction
    n_frames: int
    duration: Fraction
    encoder: str
    padded: bool
    size_bytes: int
    first_frame_s: float
    seconds: float


def write_video(
    stream: FrameStream,
    path: str | os.PathLike,
    ctx: RunContext,
    audio: AudioClip | None = None,
    options: WriteOptions | None = None,
) -> WriteResult:
    """Render `stream` into `path` (.mp4, .mov or .mkv) with its sound; missing folders are made.

    Raises ValueError for what cannot work (no frames, suffix, folder, named codec), StageError for what
    failed on the way, and lets RunCancelled, ComfyUI's interrupt and KeyboardInterrupt through.
    """
    began = time.perf_counter()
    options = options or WriteOptions()
    target = _check_target(path)
    stream = _encodable(stream)
    info = stream.info
    if info.n_frames == 0:
        raise ValueError("the stream has 0 frames; give at least one (is the audio empty?)")
    audio = _check_audio(audio, info, ctx.report)
    temp = target.with_name(f".{target.stem[:32]}.part-{os.getpid()}-{next(_serial)}{target.suffix}")
    tap, complete = TapThread(options.tap, ctx.report) if options.tap else None, False
    try:
        file = _open(temp, info, audio, options, ctx.report, tap)
        try:
            first_frame, n_frames = _run(stream, file, ctx, options.chunk)
        except BaseException:
            file.abandon()
            raise
        size = temp.stat().st_size
        os.replace(temp, target)
        complete = True
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    finally:
        if tap:
            tap.close(complete)
    if audio is not None:
        for note in getattr(audio, "notes", ()):
            ctx.warn(note)
    result = WriteResult(
        target,
        file.width,
        file.height,
        info.fps,
        n_frames,
        n_frames / info.fps,
        file.encoder,
        (file.width, file.height) != (info.width, info.height),
        size,
        first_frame - began,
        time.perf_counter() - began,
    )
    _tell(result, info, ctx.report)
    return result


def _encodable(stream: FrameStream) -> FrameStream:
    """Return the stream's NV12 form if it offers one and the sides need no padding, else the stream."""
    info = stream.info
    if info.layout == "nv12" or info.width % 2 or info.height % 2:
        return stream
    return stream.nv12(matrix_for_height(info.height)) or stream


def _check_target(path: str | os.PathLike) -> Path:
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(
            f"{target.name!r} does not end in one of {', '.join(FORMATS)}; choose .mp4 if unsure"
        )
    if target.is_dir():
        raise ValueError(f"{target} is a folder; give a file name in it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ValueError(f"cannot make the folder {target.parent}: {e.strerror}; choose another one") from e
    return target


def _check_audio(audio: AudioClip | None, info: FrameInfo, report: Report) -> AudioClip | None:
    if audio is None:
        return None
    if audio.n_samples < 1:
        report.warn("the sound has 0 samples; the video has no sound track")
        return None
    if info.seconds is None:
        return audio
    apart = Fraction(audio.n_samples, audio.sample_rate) - info.seconds
    if abs(apart) > 1 / info.fps:
        which = "longer" if apart > 0 else "shorter"
        report.warn(
            f"the sound is {abs(float(apart)):.3f} s {which} than the {float(info.seconds):.3f} s of video"
        )
    return audio


def _open(
    temp: Path,
    info: FrameInfo,
    audio: AudioClip | None,
    options: WriteOptions,
    report: Report,
    tap: TapThread | None,
) -> VideoFile:
    args, more = (temp, info, audio), (options.quality, dict(options.metadata), report, tap)
    try:
        try:
            return VideoFile(*args, options.codec, *more)
        except (OSError, FFmpegError) as e:
            # A card may refuse one more session although a probe opened before; FFmpeg then names a library, no file.
            if e.filename == str(temp) or (options.codec != "auto" and isinstance(e, OSError)):
                raise
            if options.codec != "auto":
                raise ValueError(
                    f"codec {options.codec} did not start ({e.strerror}); close other programs that encode, or choose "
                    "codec 'auto'"
                ) from e
            report.warn(f"the chosen encoder did not start ({e.strerror}); libx264 took over")
            return VideoFile(*args, "libx264", *more)
    except OSError as e:
        raise ValueError(
            f"cannot write in the folder {temp.parent}: {e.strerror or e}; choose a folder you may write to"
        ) from e


def _run(stream: FrameStream, file: VideoFile, ctx: RunContext, chunk: int) -> tuple[float, int]:
    """Feed the writer thread from the stream; return the clock at the first encoded frame, and the frames written."""
    total, done = stream.info.n_frames, 0
    writer, copies = _Writer(file, total), HostCopies(QUEUE_CHUNKS + 2)
    try:
        writer.start()
        with closing(stream.chunks(ctx, chunk)) as chunks:
            while True:
                with ctx.report.timed("wait for frames"):
                    item = next(chunks, None)
                if item is None:
                    break
                with ctx.report.timed("wait for writer"):
                    writer.put(copies.send(item.frames), ctx)
                    done = item.frame_start + item.num_frames
                    if ctx.overlap is False:
                        writer.drain(done, ctx)
                ctx.tick(done, total)
        if not done:
            raise ValueError("the stream ended without a frame; give at least one (was there any sound?)")
        with ctx.report.timed("wait for writer"):
            return writer.finish(ctx), done
    finally:
        writer.stop()


class _Writer:
    """The thread that encodes. Its error is raised in the caller at the next `put` or at `finish`."""

    def __init__(self, file: VideoFile, total: int | None) -> None:
        self._file, self._total, self._done = file, total, 0
        self._queue: queue.Queue[Arriving | None] = queue.Queue(QUEUE_CHUNKS)
        self._stop, self._written = threading.Event(), threading.Event()
        self._error, self._first = None, 0.0
        self._thread = threading.Thread(target=self._work, name="talkinghead-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, frames: Arriving | None, ctx: RunContext) -> None:
        while True:
            self._raise()
            try:
                return self._queue.put(frames, timeout=_POLL_S)
            except queue.Full:
                ctx.check_cancelled()

    def drain(self, frames: int, ctx: RunContext) -> None:
        """Wait until the first `frames` frames are encoded."""
        while self._done < frames:
            self._raise()
            if not self._written.wait(_POLL_S):
                ctx.check_cancelled()
            self._written.clear()

    def finish(self, ctx: RunContext) -> float:
        self.put(None, ctx)
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
            ctx.check_cancelled()
        self._raise()
        return self._first

    def stop(self) -> None:
        """End the thread after the frame it is at; return when it has ended."""
        self._stop.set()
        wait_for_end(self._thread)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    frames = self._queue.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if frames is None:
                    return self._file.finish()
                for pixels in frames.take():
                    if self._stop.is_set():
                        return None
                    self._file.write(pixels)
                    self._first = self._first or time.perf_counter()
                    self._done += 1
                frames.release()
                self._written.set()
        except BaseException as e:
            self._error = e

    def _raise(self) -> None:
        error = self._error
        if error is None:
            return
        where = f"video writer, frame {self._done}" + ("" if self._total is None else f" of {self._total}")
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StageError(
                f"{where}: the disk is full ({error.strerror}); free some space and run again"
            ) from error
        raise StageError(f"{where}: {type(error).__name__}: {error}") from error


def _tell(result: WriteResult, info: FrameInfo, report: Report) -> None:
    size = f"{result.width}x{result.height}"
    report.fact(
        "video",
        f"{size}, {result.n_frames} frames at {fps_text(result.fps)} fps, {float(result.duration):.2f} s",
    )
    if result.padded:
        report.fact("padded", f"{info.width}x{info.height} -> {size}")
        report.warn(
            f"4:2:0 video needs even sides: {info.width}x{info.height} became {size}, last row or column doubled"
        )
    report.fact("size_bytes", result.size_bytes)
    report.fact("first_frame_s", round(result.first_frame_s, 3))
    report.fact("fps_achieved", round(result.n_frames / result.seconds, 1))
