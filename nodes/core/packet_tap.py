"""A second reader of the packets that go into a file, which can never harm the file.

The writer copies each encoded packet into a bounded queue and goes on; the tap reads it in a thread of its own. A tap
that raises, or falls behind by more than the queue holds, is dropped with one warning: the render goes on as without.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from .report import Report
from .stage_thread import wait_for_end

if TYPE_CHECKING:
    import av

MAX_PACKETS = 2048
MAX_BYTES = 64 << 20
"""What may wait for the tap: about 20 s of a render at live speed, or a disk that stalls that long."""

END_S = 5.0
_POLL_S = 0.05


@dataclass(frozen=True)
class EncodedPacket:
    """One encoded picture or block of sound. pts, dts and duration count `time_base` seconds."""

    video: bool
    data: bytes
    pts: int
    dts: int
    duration: int
    time_base: Fraction
    key: bool


class PacketTap(Protocol):
    """What may listen. `begin` is called in the writer's thread, the others in the tap's, in this order.

    begin: the opened output streams, readable only while it runs; sound is None for a silent file.
    end: once after begin, also after an error or a cancel; complete tells whether the file is finished.
    """

    def begin(self, video: av.VideoStream, sound: av.AudioStream | None) -> None: ...

    def take(self, packet: EncodedPacket) -> None: ...

    def end(self, complete: bool) -> None: ...


class TapThread:
    """Runs a tap beside the writer. `put` never waits; `close` waits at most END_S seconds for a tap that hangs."""

    def __init__(self, tap: PacketTap, report: Report) -> None:
        self._tap, self._report = tap, report
        self._queue: queue.Queue[EncodedPacket | None] = queue.Queue(MAX_PACKETS)
        self._lock, self._waiting = threading.Lock(), 0
        self._dropped, self._closed = threading.Event(), threading.Event()
        self._complete = False
        self._thread: threading.Thread | None = None

    def begin(self, video: av.VideoStream, sound: av.AudioStream | None) -> None:
        """Show the tap the streams and start its thread."""
        try:
            self._tap.begin(video, sound)
        except Exception as e:
            self._drop(f"{type(e).__name__}: {e}")
        self._thread = threading.Thread(target=self._work, name="talkinghead-tap", daemon=True)
        self._thread.start()

    def put(self, packet: av.Packet) -> None:
        """Copy a packet that is about to be muxed into the queue, or drop the tap if the queue is full."""
        if self._dropped.is_set() or self._thread is None or not packet.size:
            return
        with self._lock:
            full = self._waiting + packet.size > MAX_BYTES
            self._waiting += 0 if full else packet.size
        try:
            if full:
                raise queue.Full
            self._queue.put_nowait(_copied(packet))
        except queue.Full:
            self._drop(f"it fell behind by {self._queue.qsize()} packets")

    def close(self, complete: bool) -> None:
        """Let the tap read the rest if the file is `complete`, end it, and end its thread."""
        if self._thread is None:
            return
        self._complete = complete
        self._closed.set()
        with suppress(queue.Full):  # wakes a thread that waits; one behind a full queue does not wait
            self._queue.put_nowait(None)
        wait_for_end(self._thread, END_S)
        if self._thread.is_alive():
            self._drop(f"it did not end within {END_S:.0f} s")

    def _drop(self, why: str) -> None:
        if not self._dropped.is_set():
            self._dropped.set()
            self._report.warn(f"the live preview was given up, the video is whole: {why}")

    def _work(self) -> None:
        try:
            while not self._dropped.is_set() and not (self._closed.is_set() and not self._complete):
                try:
                    packet = self._queue.get(timeout=_POLL_S)
                except queue.Empty:
                    packet = None
                if packet is None:
                    if self._closed.is_set():
                        break
                    continue
                self._tap.take(packet)
                with self._lock:
                    self._waiting -= len(packet.data)
        except Exception as e:
            self._drop(f"{type(e).__name__}: {e}")
        # A dropped tap ends at once: what it holds is of no use until the file is done.
        try:
            self._tap.end(self._complete and not self._dropped.is_set())
        except Exception as e:
            self._drop(f"{type(e).__name__}: {e}")


class TappedBox:
    """An output container whose packets a tap gets before they are muxed; all else is the container's own."""

    def __init__(self, box: av.container.OutputContainer, tap: TapThread) -> None:
        self._box, self._tap = box, tap

    def mux(self, packets: av.Packet | Iterable[av.Packet]) -> None:
        packets = [packets] if hasattr(packets, "pts") else list(packets)
        for packet in packets:
            self._tap.put(packet)
        self._box.mux(packets)

    def __getattr__(self, name: str):
        return getattr(self._box, name)


def _copied(packet: av.Packet) -> EncodedPacket:
    pts = packet.pts if packet.pts is not None else packet.dts
    dts = packet.dts if packet.dts is not None else packet.pts
    base = Fraction(packet.time_base)
    return EncodedPacket(
        packet.stream.type == "video", bytes(packet), pts, dts, packet.duration, base, packet.is_keyframe
    )
