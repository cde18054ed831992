"""Live sessions over ComfyUI's server, each a websocket. The format: `core.live_protocol`.

A session has a thread of its own and a place among TALKINGHEAD_LIVE_SESSIONS (2). It shares
models, engines and warm avatars with the prompts, and takes turns with them at the network, a batch each. A prompt's
interrupt does not end it. Pages of other origins are refused; the client names an avatar and a checkpoint, never a path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from .comfy_nodes import ComfyContext, model_folders, search_roots
from .core.color import matrix_for_height
from .core.frames import FrameInfo, ModelHandle, RunContext
from .core.live_audio import LiveAudio
from .core.live_protocol import (
    MAX_BINARY,
    ProtocolError,
    StartRequest,
    event,
    parse_control,
    parse_start,
)
from .core.live_session import LiveSession, LiveStream, SessionSlots, stage
from .core.packet import AvatarPacket, PacketError
from .core.report import Report
from .core.streaming import StreamFrames
from .live_routes import SESSIONS, max_sessions

START_S = 10.0
"""A client says what it wants within this time."""
IDLE_S = 60.0
"""Without sound for so long a session ends; pauses are sent as silence."""
READ_S = 10.0
"""A client that takes nothing for so long is dropped."""
PING_S = 30.0
"""A connection on which nothing passes is closed by many proxies after 60 s; opening a large model may take longer."""
_RETRY_S = 0.02

_slots = SessionSlots(max_sessions())


class LiveContext(ComfyContext):
    """ComfyUI's device and models, with a stop of the session's own and without a progress bar."""

    def __init__(self, is_cancelled: Callable[[], bool], report: Report) -> None:
        super().__init__()
        self.report, self._is_cancelled, self._progress = report, is_cancelled, None

    def raise_if_cancelled(self) -> None:
        RunContext.raise_if_cancelled(self)


def open_stream(
    request: StartRequest, audio: LiveAudio, is_cancelled: Callable[[], bool], report: Report
) -> LiveStream:
    """Open what `request` asks for: avatar, the model of its engine, frames. Runs in the session's thread."""
    from .core.cadence import CadenceOptions

    ctx = LiveContext(is_cancelled, report)
    with stage("avatar"):
        avatar = _avatar(ctx, request.avatar)
    engine = _ditto if avatar.info.engine == "ditto" else _musetalk
    with stage("model"):
        card = ctx.device.type == "cuda"
        precision = request.precision or ("fp16" if card else "fp32")
        if precision == "fp8" and not card:
            raise ValueError(
                f"precision fp8 needs an NVIDIA card, this server computes on {ctx.device}; use fp32"
            )
        model, check_avatar, stream = engine(request.checkpoint, precision)
    with stage("avatar"):
        check_avatar(model, avatar)
    width, height = avatar.info.size
    matrix = None if width % 2 or height % 2 else matrix_for_height(height)
    info = FrameInfo(width, height, request.fps, None)
    if matrix:
        info = replace(info, layout="nv12", matrix=matrix, range="limited")
    cadence = CadenceOptions(request.cadence, rest=request.rest)
    return LiveStream(info, stream(ctx, model, avatar, audio, request.fps, matrix=matrix, cadence=cadence))


Engine = tuple[ModelHandle, Callable[..., None], StreamFrames]
"""Model handle, what checks an avatar against it, and what renders."""


def _musetalk(checkpoint: str, precision: str) -> Engine:
    from .musetalk.handle import EMBEDDED, MuseTalkModel
    from .musetalk.render import check_avatar
    from .musetalk.stream import stream_musetalk

    model = MuseTalkModel(checkpoint or EMBEDDED, precision, tuple(search_roots()))
    return model, check_avatar, stream_musetalk


def _ditto(checkpoint: str, precision: str) -> Engine:
    from .ditto.bake import check_avatar
    from .ditto.handle import EMBEDDED, DittoModel
    from .ditto.stream import stream_ditto

    return DittoModel(checkpoint or EMBEDDED, precision, tuple(search_roots())), check_avatar, stream_ditto


def _avatar(ctx: RunContext, name: str) -> AvatarPacket:
    """Open an avatar; an error does not tell the client where this server keeps its files."""
    from .avatars.presenters import resolve_avatar

    folders = model_folders("avatars")
    try:
        return resolve_avatar(ctx, name, folders)
    except PacketError as e:
        text = str(e)
    for folder in folders:
        text = text.replace(str(folder), "models/talkinghead/avatars")
    raise PacketError(text)


async def serve(request: web.Request) -> web.StreamResponse:
    """Serve one session, from the handshake to the close."""
    # No `heartbeat`: it closes what has not answered while nothing was read, which is how a fast client is held up.
    socket = web.WebSocketResponse(max_msg_size=2 * MAX_BINARY, compress=False)
    await socket.prepare(request)
    try:
        await _Connection(socket, request.transport).run()
    except ConnectionError:  # the client is gone
        logging.debug("Talking Head: a live client closed its connection")
    return socket


class _Connection:
    """One client: a task that sends, a task that receives, and the session between them."""

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        self._socket, self._transport = socket, transport
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()

    async def run(self) -> None:
        try:
            request = await self._first()
        except ProtocolError as e:
            return await self._refuse(e.stage, str(e), WSCloseCode.POLICY_VIOLATION)
        if request is None:
            return None
        session = LiveSession(request, partial(open_stream, request), self._ring)
        if not _slots.add(session):
            full = f"all {_slots.most} live sessions are in use; end one, try again later, or set {SESSIONS} higher"
            return await self._refuse("start", full, WSCloseCode.TRY_AGAIN_LATER)
        try:
            session.start()
            refused = await self._serve(session)
        finally:
            session.cancel()
            # The thread ends after the batch it is at; the place is free when it has, and then the client is told.
            # Not `join` in a worker of the loop: those are few and everyone's, and a model may take minutes to open.
            try:
                while not session.join(0):
                    await asyncio.sleep(_RETRY_S)
            finally:
                _slots.remove(session)
        if refused is not None:
            return await self._refuse(refused.stage, str(refused), WSCloseCode.POLICY_VIOLATION)
        await self._socket.close()
        return None

    async def _first(self) -> StartRequest | None:
        """Return the start request, None if the client goes before it."""
        message = await self._next(START_S)
        if message is None:
            raise ProtocolError(f"no start came within {START_S:.0f} s; send it first")
        if message.type == WSMsgType.BINARY:
            raise ProtocolError('the first message is text of type "start"; sound comes after it')
        return parse_start(message.data) if message.type == WSMsgType.TEXT else None

    async def _next(self, seconds: float | None) -> WSMessage | None:
        """Return the next message, None if none came within `seconds`. Pings and pongs are none.

        The timeout of `receive` begins anew with each of those, and a client that is there answers every ping.
        """
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            await asyncio.wait({receiving}, timeout=seconds)
            return receiving.result() if receiving.done() else None
        finally:
            receiving.cancel()

    async def _serve(self, session: LiveSession) -> ProtocolError | None:
        """Send and receive until the last message was sent or the client stops; return what it did wrong, if so."""
        tasks = [
            asyncio.create_task(work) for work in (self._send(session), self._receive(session), self._ping())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            next(task for task in tasks if task.done()).result()
        except ProtocolError as e:
            return e
        finally:
            session.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return None

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            await self._socket.ping()

    async def _receive(self, session: LiveSession) -> None:
        """Hand over what comes until the client cancels or goes. While there is no room, nothing is read."""
        idle: float | None = IDLE_S
        while True:
            message = await self._next(idle)
            if message is None:
                raise ProtocolError(f"no sound came for {IDLE_S:.0f} s; send silence in pauses, or end")
            if message.type == WSMsgType.BINARY:
                data = message.data
                while not session.push(data):
                    data = b""
                    await asyncio.sleep(_RETRY_S)
            elif message.type == WSMsgType.TEXT:
                if parse_control(message.data) == "cancel":
                    return
                session.end()
                idle = None
            else:  # closed, or an error that aiohttp has answered
                return

    async def _send(self, session: LiveSession) -> None:
        """Send what the session has until its last message."""
        while not session.finished:
            self._wake.clear()
            message = session.next_message()
            if message is None:
                if not session.finished:
                    await self._wake.wait()
            elif not await self._sent(message):
                return

    async def _sent(self, message: str | bytes) -> bool:
        """Send a message; False if the client is gone, or dropped because it took nothing for READ_S."""
        send = self._socket.send_str if isinstance(message, str) else self._socket.send_bytes
        # Not `wait_for`: before Python 3.12 it loses a cancel that comes as the message goes.
        sending = asyncio.ensure_future(send(message))
        try:
            await asyncio.wait({sending}, timeout=READ_S)
            if sending.done():
                sending.result()
                return True
        except ConnectionError:
            return False
        finally:
            sending.cancel()
        logging.warning("Talking Head: a live client took nothing for %.0f s and was dropped", READ_S)
        if self._transport is not None:
            self._transport.abort()
        return False

    async def _refuse(self, where: str, message: str, code: WSCloseCode) -> None:
        if await self._sent(event("error", stage=where, message=message)):
            await self._socket.close(code=code)

    def _ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the server ended meanwhile
            return
