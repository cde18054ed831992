"""What a page can watch of a render while it runs: segments on disk and a handful of figures.

A PreviewRun taps the writer's packets (packet_tap), cuts them into fragmented MP4 (fragments) and keeps the newest
MAX_BYTES of it in files of one group of pictures each, below a folder of its own that goes when the render ends, however
it ends: the finished file replaces it. `notify` gets the state at most NOTIFY_PER_S times a second, and once at the end.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .fragments import FragmentMuxer, Segment
from .frames import FrameInfo
from .packet_tap import EncodedPacket
from .report import Report

MAX_BYTES = 128 << 20
"""Of segments on disk: at 2 Mbit/s, usual for a talking head, the last nine minutes."""

NOTIFY_PER_S = 4
READ_BYTES = 4 << 20

_log = logging.getLogger(__name__)


@dataclass
class _Group:
    """A file of segments, the first of which begins with a key frame; ends[i] is where segment first + i ends."""

    path: Path
    first: int
    ends: list[int] = field(default_factory=list)


class PreviewRun:
    """One render's preview: a PacketTap for the writer, segments and state for a server.

    `token` names it to clients: 128 random bits. Its segments lie in a folder below `folder`. Every method may be called
    from any thread. notify(state) is called in the tap's thread; what it raises costs that message only.
    """

    def __init__(
        self,
        folder: Path,
        report: Report,
        info: FrameInfo,
        notify: Callable[[dict], None],
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.token = secrets.token_hex(16)
        self._folder, self._report, self._info = folder / f"talkinghead-{self.token}", report, info
        self._notify, self._max_bytes, self._clock = notify, max_bytes, clock
        self._lock, self._muxing = threading.Lock(), threading.Lock()
        self._muxer: FragmentMuxer | None = None
        self._groups: deque[_Group] = deque()
        self._init, self._mime, self._problem = b"", "", ""
        self._next, self._bytes, self._seen = 0, 0, 0
        self._began, self._first_s, self._last_s = clock(), None, 0.0
        self._ended, self._told_at = "", float("-inf")

    # The tap

    def begin(self, video, sound) -> None:
        """Open the muxer; a codec that fragmented MP4 does not hold leaves the figures alone, with the reason."""
        try:
            self._folder.mkdir(parents=True)
            self._muxer = FragmentMuxer(video, sound, self._keep_init, self._keep)
        except Exception as e:
            self._give_up(e)

    def take(self, packet: EncodedPacket) -> None:
        """Mux a packet and tell about it when it is time."""
        with self._muxing:
            if self._muxer and not self._ended:
                try:
                    self._muxer.take(packet)
                except Exception as e:
                    self._give_up(e)
            if self._ended:
                return self._clear()
        if packet.video:
            self._seen += 1
            self._last_s = self._clock() - self._began
            if self._first_s is None:
                self._first_s = self._last_s
            if self._clock() - self._told_at >= 1 / NOTIFY_PER_S:
                self._tell()

    def end(self, complete: bool) -> None:
        """Remove the segments and tell a last time. Safe to call again, and while a tap hangs in `take`."""
        with self._lock:
            if self._ended:
                return
            self._ended = "finished" if complete else "stopped"
        # FFmpeg crashes when a muxer is closed that another thread is inside of; `take` closes it when it is out.
        if self._muxing.acquire(blocking=False):
            try:
                self._clear()
            finally:
                self._muxing.release()
        else:
            self._remove()
        self._tell()

    def _clear(self) -> None:
        if self._muxer:
            self._muxer.abandon()
        self._muxer = None
        self._remove()

    def _give_up(self, error: Exception) -> None:
        self._problem = f"no picture: {error}"
        _log.info("Talking Head: a preview has %s", self._problem)
        self._clear()

    def _remove(self) -> None:
        """Give the disk back; what a client has not read is gone."""
        with self._lock:
            self._groups.clear()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _keep_init(self, init: bytes, mime: str) -> None:
        self._init, self._mime = init, mime

    def _keep(self, segment: Segment) -> None:
        if segment.key or not self._groups:
            group = _Group(self._folder / f"{segment.number:08}.m4s", segment.number)
            with self._lock:
                self._groups.append(group)
        group = self._groups[-1]
        with open(group.path, "ab") as file:
            file.write(segment.data)
        with self._lock:
            group.ends.append((group.ends[-1] if group.ends else 0) + len(segment.data))
            self._next, self._bytes = segment.number + 1, self._bytes + len(segment.data)
            while self._bytes > self._max_bytes and len(self._groups) > 1:
                old = self._groups.popleft()
                self._bytes -= old.ends[-1]
                old.path.unlink()

    # What a server asks

    @property
    def running(self) -> bool:
        """Whether the render goes on; once False there is nothing to read any more."""
        return not self._ended

    @property
    def init(self) -> bytes:
        """The init segment; empty until there is one."""
        return self._init

    def read(self, first: int, limit: int = READ_BYTES) -> tuple[int, int, bytes]:
        """Return (number of the first one read, number after the last, bytes) of segments from `first` on.

        Whole segments of at most `limit` bytes in all, but at least one if there is one. If `first` is gone the answer
        begins at the oldest that is left, a key frame; if it does not exist yet the bytes are empty, and if the files
        were removed by someone else.
        """
        parts: list[bytes] = []
        size, number = 0, first
        # Under the lock, so that no file goes while it is read: what a client may ask for is small.
        with self._lock:
            for path, at, begin, end in self._from(first):
                if parts and size + end - begin > limit:
                    break
                try:
                    with open(path, "rb") as file:
                        file.seek(begin)
                        data = file.read(end - begin)
                except OSError:  # another server that starts clears a temp folder shared with this one
                    break
                parts.append(data)
                size, number = size + end - begin, at + 1
        return number - len(parts), number, b"".join(parts)

    def _from(self, first: int) -> Iterator[tuple[Path, int, int, int]]:
        """Yield (file, number, begin, end) of the segments from `first` on."""
        for group in self._groups:
            for at, end in enumerate(group.ends, group.first):
                if at >= first:
                    yield group.path, at, group.ends[at - group.first - 1] if at > group.first else 0, end

    def state(self) -> dict:
        """Return what the page is told: token, state, MIME type, length of the whole, segments there are, known figures.

        state: "running", "finished" or "stopped". first and next bound the segments that can be read; playback can
        start at first. problem says why there is no picture, "" if there is or will be one.
        """
        with self._lock:
            first = self._groups[0].first if self._groups and self._groups[0].ends else self._next
        return {
            "token": self.token,
            "state": self._ended or "running",
            "mime": self._mime,
            "seconds": float(self._info.seconds),
            "first": first,
            "next": self._next,
            "problem": self._problem,
            "figures": self._figures(),
        }

    def _figures(self) -> dict[str, object]:
        figures: dict[str, object] = {"frame": self._seen, "frames": self._info.n_frames}
        if self._first_s is not None:
            # From the second frame on: what comes before the first, loading above all, stands in its own figure.
            pace = (self._seen - 1) / max(self._last_s - self._first_s, 1e-6)
            figures["first_frame_s"] = round(self._first_s, 3)
            if self._seen > 1:
                figures["fps"] = round(pace, 1)
                figures["realtime"] = round(pace / float(self._info.fps), 2)
        return figures | reported_figures(dict(self._report.facts)) | _vram()

    def _tell(self) -> None:
        self._told_at = self._clock()
        try:
            self._notify(self.state())
        except Exception as e:
            _log.info("Talking Head: the page was not told of the preview: %s", e)


_SHOWN = {"stride mix": "strides", "viseme cache": "cache"}


def reported_figures(facts: dict[str, object]) -> dict[str, object]:
    """Return the facts of a Report that the page shows, by the page's names; what no stage has reported is absent."""
    figures = {name: str(facts[fact]) for fact, name in _SHOWN.items() if fact in facts}
    if "encoder" in facts:
        figures["encoder"] = str(facts["encoder"]).split(" ")[0]
    engines = [str(v).partition(",")[0] for k, v in facts.items() if k.endswith(" engine")]
    if engines:
        figures["backend"] = ", ".join(dict.fromkeys(engines))
    return figures


def _vram() -> dict[str, object]:
    """Return what this process has reserved on the current card, in MB, if it uses one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {"vram_mb": cuda.memory_reserved() >> 20}
