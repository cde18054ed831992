"""Sound files as clips: soundfile for what it opens, PyAV for the rest and for the sound of videos."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from .audio import BLOCK, AudioClip, need, positive, rebatch
from .media_open import open_media

MIN_GAP, MAX_GAP = 0.01, 60.0
"""Seconds. Time stamps of some containers jitter by milliseconds; hours mean a broken clock, not a gap."""

DAMAGE_STEP = 512
"""Samples tried at a time around a place that libsndfile cannot decode."""


class FileAudio(AudioClip):
    """A clip in a file, decoded again, block by block, each time it is read. Made by `open_file`."""

    def __init__(
        self, path: Path, rate: int, channels: int, n_samples: int, read: Callable[[], Iterator[np.ndarray]]
    ) -> None:
        super().__init__(rate, channels, n_samples, path.name)
        self.path, self._read, self._stat = path, read, _stat_key(path)

    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        """See AudioClip; ValueError if the file is not the one that was opened."""
        if _stat_key(self.path) != self._stat:
            raise ValueError(f"{self.path} has changed since it was opened; open it again")
        return rebatch(self._exact(), positive(size))

    def _exact(self) -> Iterator[np.ndarray]:
        left, source = self.n_samples, self._read()
        try:
            for block in source:
                yield block[:, :left]
                left -= min(left, block.shape[1])
                if not left:
                    return
        finally:
            source.close()
        self.note(f"the last {left} samples do not decode; silence stands there")
        while left:
            yield np.zeros((self.channels, min(left, BLOCK)), np.float32)
            left -= min(left, BLOCK)

    def note(self, text: str, problems: dict[str, int] | None = None) -> None:
        """Add a line to `notes`, once."""
        counts = ", ".join(f"{what} ({times}x)" for what, times in (problems or {}).items())
        text = f"{self.name}: {text}{': ' if counts else ''}{counts}"
        if text not in self.notes:
            self.notes.append(text)

    def fingerprint(self) -> str:
        return hashlib.sha256(
            repr((str(self.path.absolute()), *self._stat)).encode("utf-8", "surrogatepass")
        ).hexdigest()


def _stat_key(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def open_file(path: Path) -> FileAudio:
    """See `audio.open_audio`."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; check the path")
    return _open_soundfile(path) or _open_av(path)


def _open_soundfile(path: Path) -> FileAudio | None:
    try:
        import soundfile as sf
    except (ImportError, OSError):  # OSError: the package is there, its libsndfile is not
        return None
    try:
        with sf.SoundFile(path) as f:
            f.seek(f.frames - 1)  # a cut file may still name its full length: its last sample has to be there
            whole = f.frames > 0 and len(f.read(1, dtype="float32", always_2d=True)) == 1
            rate, channels, n, info = f.samplerate, f.channels, f.frames, f.extra_info
    except (sf.SoundFileError, TypeError, ValueError):
        return None
    if not whole:
        return None
    clip = FileAudio(path, rate, channels, n, lambda: _read_soundfile(path, clip))
    sizes = re.findall(r"^ *(?:data|SSND) : (\d+) \(should be (\d+)\)", info, re.MULTILINE)
    # 0xFFFFFFFF or nearly is what a recorder writes that cannot seek back; such a file is whole
    if any(int(b) < int(a) < 0xFFFFFF00 for a, b in sizes) or "lacks an end-of-stream bit" in info:
        clip.note(f"the file is cut short; the {float(clip.seconds):.2f} s that are there are used")
    return clip


def _read_soundfile(path: Path, clip: FileAudio) -> Iterator[np.ndarray]:
    done, whole = 0, True
    while done < clip.n_samples:
        for block in _read_from(path, done, BLOCK):
            done += len(block)
            yield np.ascontiguousarray(block.T)
        if done < clip.n_samples:  # what is lost here becomes silence, what follows stays in time
            end = min(clip.n_samples, done + BLOCK)
            while done < end:
                n = min(DAMAGE_STEP, end - done)
                block = next(_read_from(path, done, n), np.zeros((0, clip.channels), np.float32))
                if len(block) < n and whole:
                    whole = False
                    clip.note(f"damaged at {done / clip.sample_rate:.2f} s; what does not decode is silent")
                done += n
                yield np.concatenate([block.T, np.zeros((clip.channels, n - len(block)), np.float32)], axis=1)


def _read_from(path: Path, start: int, size: int) -> Iterator[np.ndarray]:
    """Yield float32 (n, channels) blocks from sample `start` on, until the end or the first damage."""
    import soundfile as sf

    try:
        with sf.SoundFile(path) as f:
            if start:
                f.seek(start)
            while len(block := f.read(size, dtype="float32", always_2d=True)):
                yield block
    except sf.SoundFileError:
        return


def _open_av(path: Path) -> FileAudio:
    problems: dict[str, int] = {}
    rate = channels = n = 0
    padding = 0
    for rate, block, padding in _decode_av(path, problems):  # noqa: B007 - the last ones count
        channels, n = block.shape[0], n + block.shape[1]
    n -= padding
    if not n:
        raise ValueError(
            f"{path}: its sound does not decode ({', '.join(problems) or 'empty'}); convert it to wav"
        )
    clip = FileAudio(path, rate, channels, n, lambda: (block for _, block, _ in _decode_av(path, {})))
    if problems:
        clip.note("damaged", problems)
    return clip


def _decode_av(path: Path, problems: dict[str, int]) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yield (rate, float32 (channels, n), padding) of a file's main sound track; count what is wrong in `problems`.

    padding: samples at the block's end that the container says are not sound; true of the last block only.

    The first frame fixes rate and layout, a track that changes them is converted back. What is missing
    between two frames (their time stamps say how much) becomes silence, so that the rest stays in time.
    """
    av = need("av", "av", f"reading {path.name}")
    try:
        container = open_media(path)
    except (av.error.FFmpegError, OSError) as e:
        raise ValueError(
            f"{path} is not a sound or video file that FFmpeg reads ({e}); convert it to wav"
        ) from e
    with container:
        stream = container.streams.best("audio")
        if stream is None:
            raise ValueError(f"{path} has no sound track; give a sound file, or a video with sound")
        n, resampler, kind, due = 0, None, None, None
        for frame in _frames(container, stream, problems, av.error.FFmpegError):
            new = frame.format.name, frame.layout.name, frame.sample_rate
            if resampler is None:
                rate, layout = frame.sample_rate, frame.layout
            if new != kind:
                kind, resampler = new, av.AudioResampler("fltp", layout, rate)
            if frame.time is not None:
                if due is not None and MIN_GAP < frame.time - due < MAX_GAP:
                    _count(problems, "a gap became silence")
                    gap = round((frame.time - due) * rate)
                    n += gap
                    yield rate, np.zeros((len(layout.channels), gap), np.float32), 0
                due = frame.time + frame.samples / frame.sample_rate
            padding = 0
            if frame.duration and frame.time_base == Fraction(
                1, frame.sample_rate
            ):  # exact clocks, as in mp4
                padding = max(0, frame.samples - frame.duration)
            for out in resampler.resample(frame):
                n += out.samples
                yield rate, out.to_ndarray(), padding if new[2] == rate else 0
        if n:
            _check_length(container, stream, n / rate, problems)


def _frames(container: Any, stream: Any, problems: dict[str, int], failure: type[Exception]) -> Iterator[Any]:
    """Yield the frames that decode; a packet that does not is counted and passed over."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except failure:
            packet = None
            _count(problems, "the file breaks off")
        if packet is None:
            return
        try:
            frames = packet.decode()
        except failure:
            _count(problems, "a packet does not decode")
            continue
        yield from frames


def _check_length(container: Any, stream: Any, seconds: float, problems: dict[str, int]) -> None:
    """Note a track that is clearly shorter than its header says (where headers say it, not guess it)."""
    if container.format.name in ("aac", "ac3", "eac3", "mpegts"):
        return
    said = float(stream.duration * stream.time_base) if stream.duration else 0.0
    if not said and len(container.streams) == 1 and container.duration:
        said = container.duration / 1e6
    if said - seconds > max(0.1, 0.01 * said):
        _count(problems, f"{seconds:.2f} s of sound where the header says {said:.2f} s")


def _count(problems: dict[str, int], text: str) -> None:
    problems[text] = problems.get(text, 0) + 1
