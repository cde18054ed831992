"""One live session: sound in, a thread that renders and encodes, messages out. All of it bounded.

    client -> LiveAudio and SoundBuffer -> render thread -> Outbox -> client

Nothing here knows of sockets. The client's side (`push`, `end`, `cancel`, `next_message`) never waits and is called from
one thread, an event loop for one; `on_output` says from the render thread that there is something to send.

A client that sends faster than its video is made finds `push` False and stops reading its socket until there is room. A
client that does not read fills the Outbox; the render thread then waits, until the client reads or is given up by
whoever owns the socket. Whatever ends a session (done, error, cancel, a client that is gone), its thread ends after the
batch it is at, the stream is closed in it, and nothing stays.

Turns between sessions, and between sessions and ComfyUI's prompts, are taken where the network runs: `turns`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from .frames import FrameChunk, FrameInfo, RunCancelled
from .host_copy import HostCopies
from .live_audio import LiveAudio
from .live_encode import LiveEncoder, SoundBuffer
from .live_protocol import PcmReader, ProtocolError, StartRequest, event
from .report import Report

WAITING_SOUND_S = 4.0
"""Sound that may wait for the renderer; a client that is further ahead is made to wait."""
PIECE_SOUND_S = 0.5
"""A message is taken in pieces of this length, as room comes: 1 MiB of 8 kHz is 65 s."""
TRACK_SOUND_S = 30.0
"""Sound that may wait for its frames: the above and all that a pipeline has in work (a batch of 8 is 0.8 s at 10 fps)."""
MAX_OUTPUT_BYTES = 4 << 20
"""Video that may wait for the client: half a minute of a talking head, and one fragment more."""
STATS_EVERY_S = 0.5
_POLL_S = 0.05


@dataclass(frozen=True)
class LiveStream:
    """What a session shows: frames as `info` says (n_frames is None: not known), as the sound allows."""

    info: FrameInfo
    chunks: Iterator[FrameChunk]


OpenStream = Callable[[LiveAudio, Callable[[], bool], Report], LiveStream]
"""Opens the stream of a session in its thread: its sound, whether it was cancelled, where to report."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say in which stage of a session an error came up; one that says so itself keeps its own."""
    try:
        yield
    except Exception as e:
        if not hasattr(e, "stage"):
            e.stage = name
        raise


class Outbox:
    """Messages for the client, text and bytes; the render thread waits while `max_bytes` are held."""

    def __init__(self, max_bytes: int, on_output: Callable[[], None]) -> None:
        self._most, self._on_output = max_bytes, on_output
        self._messages: deque[str | bytes] = deque()
        self._room = threading.Condition()
        self._held = 0
        self._closed = False

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return self._held

    @property
    def drained(self) -> bool:
        """Whether nothing is left and nothing will come."""
        with self._room:
            return self._closed and not self._messages

    def put(self, message: str | bytes, poll: Callable[[], None]) -> None:
        """Append a message; while there is no room, `poll` is called every 50 ms and may raise."""
        while True:
            poll()
            with self._room:
                if self._held < self._most:
                    break
                self._room.wait(_POLL_S)
        self.put_last(message)

    def put_last(self, message: str | bytes) -> None:
        """Append a message whether there is room or not."""
        with self._room:
            self._messages.append(message)
            self._held += len(message)
        self._on_output()

    def get(self) -> str | bytes | None:
        """Return the next message, None if there is none now."""
        with self._room:
            if not self._messages:
                return None
            message = self._messages.popleft()
            self._held -= len(message)
            self._room.notify_all()
            return message

    def close(self, drop: bool) -> None:
        """Say that nothing more comes; `drop`: forget what waits."""
        with self._room:
            self._closed = True
            if drop:
                self._messages.clear()
                self._held = 0
        self._on_output()


class LiveSession:
    """Made for one start request; runs from `start` until its last message was taken.

    Args:
        request: what the client asked for.
        open_stream: opens the avatar, the model and the frames.
        on_output: called from any thread when `next_message` has something, or the session has ended.
    """

    def __init__(
        self, request: StartRequest, open_stream: OpenStream, on_output: Callable[[], None] = lambda: None
    ) -> None:
        self.request, self._open_stream = request, open_stream
        self.audio = LiveAudio(request.sample_rate, request.channels, WAITING_SOUND_S)
        self.report = Report()
        self._sound = SoundBuffer(request.sample_rate, request.channels, TRACK_SOUND_S)
        self._pcm = PcmReader(request)
        self._parsed: np.ndarray | None = None
        self._piece = int(PIECE_SOUND_S * request.sample_rate)
        self._outbox = Outbox(MAX_OUTPUT_BYTES, on_output)
        self._cancelled = threading.Event()
        self._figures = _Figures(request)
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="talkinghead-live", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def push(self, data: bytes) -> bool:
        """Take a binary message; False if there is no room for all of it: ask again with b"" before anything else comes.

        ProtocolError: the message is too long, or the client had said that the sound ended.
        """
        if data:
            if self._ended:
                raise _late("sound came after end")
            self._parsed = self._pcm.read(data)
        while self._parsed is not None and self._parsed.shape[1]:
            if self._cancelled.is_set() or not self._thread.is_alive():
                return True  # nobody wants it any more
            # In pieces: a message may hold more than the buffers do, and would wait for room that never comes.
            piece = self._parsed[:, : self._piece]
            if self._sound.room() < piece.shape[1]:
                return False
            try:
                if not self.audio.push(piece, timeout=0):
                    return False
            except ValueError:  # its consumer has stopped: the session is about to say why
                return True
            self._sound.push(piece)
            self._figures.heard()
            self._parsed = self._parsed[:, piece.shape[1] :]
        return True

    def end(self) -> None:
        """Say that there is no more sound: the rest of the video follows. ProtocolError if it comes twice."""
        if self._ended:
            raise _late("end came twice")
        self._ended = True
        self.audio.end()

    def cancel(self) -> None:
        """Stop as soon as possible; nothing more is sent."""
        self._cancelled.set()
        self.audio.fail(RunCancelled("the session was cancelled"))

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def finished(self) -> bool:
        """Whether the last message was taken."""
        return self._outbox.drained

    def next_message(self) -> str | bytes | None:
        """Return the next message for the client, None if there is none now."""
        return self._outbox.get()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread; return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _poll(self) -> None:
        if self._cancelled.is_set():
            raise RunCancelled("the session was cancelled")

    def _send(self, message: str | bytes) -> None:
        self._outbox.put(message, self._poll)

    def _work(self) -> None:
        last: str | None = None
        try:
            with torch.inference_mode():
                last = self._render()
        except RunCancelled:
            last = None
        except BaseException as e:
            last = self._failure(e)
        finally:
            self.audio.end()
            if last is not None and not self.cancelled:
                self._outbox.put_last(last)
            self._outbox.close(drop=self.cancelled)

    def _render(self) -> str:
        with stage("open"):
            stream = self._open_stream(self.audio, self._cancelled.is_set, self.report)
        encoder = None
        try:
            with closing(stream.chunks):
                with stage("encode"):
                    request = self.request
                    encoder = LiveEncoder(
                        stream.info, request.output, request.quality, self._sound, self.report
                    )
                self._send(self._ready(encoder))
                self._run(stream.chunks, encoder)
            with stage("encode"):
                self._send_video(encoder.finish())
        finally:
            if encoder is not None:
                encoder.abandon()
        for note in [*self._pcm.notes(), *self.report.warnings]:
            self._send(event("warning", message=note))
        return event("done", frames=encoder.n_frames, **self._figures.total(encoder.n_frames))

    def _run(self, chunks: Iterator[FrameChunk], encoder: LiveEncoder) -> None:
        copies = HostCopies(1)
        while True:
            with stage("render"):
                self._poll()
                chunk = next(chunks, None)
                if chunk is None:
                    return
                arriving = copies.send(chunk.frames)
                frames = arriving.take()
            with stage("encode"):
                for data in encoder.write(frames):
                    self._send_video(data)
            arriving.release()
            stats = self._figures.stats(encoder.n_frames, self.audio)
            if stats:
                self._send(event("stats", **stats))

    def _send_video(self, data: bytes) -> None:
        if data:
            self._figures.sent()
            self._send(data)

    def _ready(self, encoder: LiveEncoder) -> str:
        container = "video/mp4" if self.request.output == "mp4" else "video/h264"
        return event(
            "ready",
            codec=encoder.codec,
            mime=f'{container}; codecs="{encoder.codec}"',
            encoder=encoder.encoder,
            width=encoder.width,
            height=encoder.height,
            fps=self.request.fps,
            facts={k: str(v) for k, v in self.report.facts.items()},
        )

    def _failure(self, error: BaseException) -> str:
        where = getattr(error, "stage", "session")
        if not isinstance(error, ValueError):
            logging.getLogger(__name__).error("live session, %s: %s", where, error, exc_info=error)
        return event("error", stage=where, message=str(error) or type(error).__name__)


class _Figures:
    """How fast a session is: seconds to its first bytes, frames a second, seconds of video a second."""

    def __init__(self, request: StartRequest, clock: Callable[[], float] = time.monotonic) -> None:
        self._fps, self._clock = request.fps, clock
        self._first_sound: float | None = None
        self._first_bytes: float | None = None
        self._shown_at, self._shown_frames = 0.0, 0

    def heard(self) -> None:
        if self._first_sound is None:
            self._first_sound = self._shown_at = self._clock()

    def sent(self) -> None:
        if self._first_bytes is None:
            self._first_bytes = self._clock()

    def stats(self, frames: int, audio: LiveAudio) -> dict[str, object] | None:
        """Return the figures since the last time, None if that is less than STATS_EVERY_S ago."""
        now = self._clock()
        since = now - self._shown_at
        if since < STATS_EVERY_S:
            return None
        fps = (frames - self._shown_frames) / since
        self._shown_at, self._shown_frames = now, frames
        return {
            "frames": frames,
            "ttff_s": self._ttff(),
            "fps": round(fps, 1),
            "realtime": round(fps / float(self._fps), 2),
            "queue_s": round(float(audio.queued_seconds), 3),
        }

    def total(self, frames: int) -> dict[str, object]:
        seconds = 0.0 if self._first_sound is None else self._clock() - self._first_sound
        return {
            "seconds": round(frames / float(self._fps), 3),
            "ttff_s": self._ttff(),
            "took_s": round(seconds, 3),
        }

    def _ttff(self) -> float | None:
        if self._first_bytes is None or self._first_sound is None:
            return None
        return round(self._first_bytes - self._first_sound, 4)


class SessionSlots:
    """Sessions that run at a time, `most` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._running: set[LiveSession] = set()
        self._lock = threading.Lock()

    def add(self, session: LiveSession) -> bool:
        """Take a place for `session`; False if all are taken."""
        with self._lock:
            if len(self._running) >= self.most:
                return False
            self._running.add(session)
            return True

    def remove(self, session: LiveSession) -> None:
        """Give the place back; a second time does nothing."""
        with self._lock:
            self._running.discard(session)

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._running)


def _late(what: str) -> ProtocolError:
    return ProtocolError(f"{what}; after end only cancel may come, start another session for more")
