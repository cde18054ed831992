"""The route of live sessions behind a real aiohttp server, with streams that need no network."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import av
import numpy as np
import pytest
from aiohttp import WSServerHandshakeError, web
from aiohttp.test_utils import TestClient, TestServer
from live_fakes import RATE, FakeStream, wait_until
from media import read_number, speech_like

pytestmark = pytest.mark.comfy

PIECE = RATE * 8 // 100 * 2


@pytest.fixture
def routes(node_classes, monkeypatch):
    """The module, two places, every session on `routes.fake`; afterwards no session and no thread is left."""
    package = node_classes["TalkingHeadWriteVideo"].__module__.rpartition(".")[0]
    module = importlib.import_module(f"{package}.live_socket_routes")
    session = importlib.import_module(f"{package}.core.live_session")
    monkeypatch.setattr(module, "_slots", session.SessionSlots(2))
    monkeypatch.setattr(module, "fake", FakeStream(), raising=False)
    monkeypatch.setattr(module, "open_stream", lambda request, *rest: module.fake.open(*rest))
    before = set(threading.enumerate())
    yield module
    assert module._slots.running == 0
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if t.name == "talkinghead-live"])


def route_of(routes):
    return importlib.import_module(routes.__name__.replace("live_socket_routes", "live_routes"))


@pytest.mark.parametrize(
    ("wanted", "where", "said"),
    [
        ({"precision": "fp8"}, "model", "precision fp8 needs an NVIDIA card, this server computes on cpu"),
        ({"avatar": "nobody"}, "avatar", "no avatar 'nobody' in models/talkinghead/avatars"),
    ],
)
def test_what_cannot_be_opened_is_refused_before_sound(node_classes, wanted, where, said):
    package = node_classes["TalkingHeadWriteVideo"].__module__.rpartition(".")[0]
    module, protocol, audio, report = (
        importlib.import_module(f"{package}.{name}")
        for name in ("live_socket_routes", "core.live_protocol", "core.live_audio", "core.report")
    )
    start = protocol.StartRequest(**{"avatar": "demo", "sample_rate": RATE} | wanted)
    with pytest.raises(ValueError, match=said) as raised:
        module.open_stream(start, audio.LiveAudio(RATE), lambda: False, report.Report())
    assert raised.value.stage == where
    assert "/models/" not in str(raised.value).replace("models/talkinghead", "", 1)


def serve(routes, talk, handler=None):
    """Run `talk(client)` against a server with the route."""

    async def run():
        app = web.Application()
        app.router.add_get("/talkinghead/live", handler or route_of(routes).live)
        async with TestClient(TestServer(app)) as client:
            await asyncio.wait_for(talk(client), 60)

    asyncio.run(run())


def connect(client, **headers):
    return client.ws_connect("/talkinghead/live", headers=headers)


def start(**fields):
    base = {"type": "start", "version": 1, "avatar": "demo", "sample_rate": RATE, "quality": "draft"}
    return json.dumps(base | fields)


def pcm(seconds):
    return (speech_like(seconds, RATE)[0] * 32767).astype("<i2").tobytes()


async def read_all(ws):
    events, video = [], b""
    async for message in ws:
        if isinstance(message.data, str):
            events.append(json.loads(message.data))
        else:
            video += message.data
    return events, video


async def send_sound(ws, seconds):
    data = pcm(seconds)
    for at in range(0, len(data), PIECE):
        await ws.send_bytes(data[at : at + PIECE])


def test_a_session_from_start_to_close(routes):
    async def talk(client):
        async with connect(client) as ws:
            await ws.send_str(start(output="h264"))
            await send_sound(ws, 2)
            await ws.send_str('{"type": "end"}')
            events, video = await read_all(ws)
            assert ws.close_code == 1000
        assert [e["type"] for e in events if e["type"] != "stats"] == ["ready", "done"]
        assert events[-1]["frames"] == 50
        with av.open(io.BytesIO(video), format="h264") as file:
            assert [read_number(f.to_ndarray(format="rgb24")) for f in file.decode(video=0)] == list(
                range(50)
            )

    serve(routes, talk)


@pytest.mark.parametrize("engine", ["musetalk", "ditto"])
@pytest.mark.parametrize(("fields", "plain"), [({}, True), ({"cadence": "3", "rest": True}, False)])
def test_the_avatars_engine_renders_at_the_cadence_that_was_asked_for(
    node_classes, monkeypatch, engine, fields, plain
):
    """The session's own `open_stream`, with the avatar and the render put in its place."""
    package = node_classes["TalkingHeadWriteVideo"].__module__.rpartition(".")[0]
    checks = {"musetalk": "musetalk.render", "ditto": "ditto.bake"}[engine]
    routes, wire, stream, presenters, handle, render = (
        importlib.import_module(f"{package}.{name}")
        for name in (
            "live_socket_routes",
            "core.live_protocol",
            f"{engine}.stream",
            "avatars.presenters",
            f"{engine}.handle",
            checks,
        )
    )
    avatar, seen = SimpleNamespace(info=SimpleNamespace(size=(96, 80), engine=engine)), {}

    def rendered(ctx, model, *args, **kwargs):
        seen.update(kwargs, model=model)
        return iter(())

    monkeypatch.setattr(presenters, "resolve_avatar", lambda *a: avatar)
    monkeypatch.setattr(render, "check_avatar", lambda *a: None)
    monkeypatch.setattr(stream, f"stream_{engine}", rendered)
    request = wire.parse_start(start(**fields))
    made = routes.open_stream(request, None, lambda: False, None)
    assert (made.info.layout, made.info.matrix, seen["matrix"]) == ("nv12", "bt601", "bt601")
    assert type(seen["model"]).__module__ == handle.__name__
    assert seen["cadence"].is_plain == plain
    assert (seen["cadence"].mode, seen["cadence"].rest) == (request.cadence, request.rest)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_origins_are_refused(routes, headers):
    async def talk(client):
        with pytest.raises(WSServerHandshakeError) as refused:
            await connect(client, **headers)
        assert refused.value.status == 403

    serve(routes, talk)


def test_a_page_of_the_server_itself_is_let_in(routes):
    async def talk(client):
        origin = f"http://{client.host}:{client.port}"
        async with connect(client, Origin=origin, **{"Sec-Fetch-Site": "same-origin"}) as ws:
            await ws.send_str(start())
            await ws.send_str('{"type": "end"}')
            events, _ = await read_all(ws)
        assert events[-1]["type"] == "done"

    serve(routes, talk)


@pytest.mark.parametrize(
    ("send", "says"),
    [
        ("hello", "is not JSON"),
        (start(version=9), "version 9"),
        (start(avatar="../x"), "is not a name"),
        (b"\x00\x00", 'the first message is text of type "start"'),
    ],
)
def test_a_bad_start_is_told_and_closed(routes, send, says):
    async def talk(client):
        async with connect(client) as ws:
            await (ws.send_str(send) if isinstance(send, str) else ws.send_bytes(send))
            events, _ = await read_all(ws)
            assert ws.close_code == 1008
        [error] = events
        assert (error["type"], error["stage"]) == ("error", "protocol")
        assert says in error["message"]

    serve(routes, talk)


@pytest.mark.parametrize(
    ("send", "says"),
    [
        ('{"type": "text", "text": "hello"}', "text is not available"),
        (start(), "unknown here"),
        (b"\x00" * (2**20 + 2), "longer than 1048576"),
    ],
)
def test_what_must_not_follow_ends_the_session_with_a_reason(routes, send, says):
    async def talk(client):
        async with connect(client) as ws:
            await ws.send_str(start())
            await send_sound(ws, 0.5)
            await (ws.send_str(send) if isinstance(send, str) else ws.send_bytes(send))
            events, _ = await read_all(ws)
        assert events[-1]["type"] == "error"
        assert says in events[-1]["message"]

    serve(routes, talk)


def test_a_message_beyond_all_measure_closes_the_connection(routes):
    async def talk(client):
        async with connect(client) as ws:
            await ws.send_str(start())
            await ws.send_bytes(b"\x00" * (3 << 20))
            await read_all(ws)
            assert ws.close_code == 1009

    serve(routes, talk)


def test_who_says_nothing_is_not_waited_for(routes, monkeypatch):
    monkeypatch.setattr(routes, "START_S", 0.1)
    monkeypatch.setattr(routes, "IDLE_S", 0.2)

    async def talk(client):
        async with connect(client) as ws:
            events, _ = await read_all(ws)
        assert "no start came" in events[0]["message"]
        async with connect(client) as ws:
            await ws.send_str(start())
            events, _ = await read_all(ws)
        assert "send silence in pauses" in events[-1]["message"]

    serve(routes, talk)


@pytest.mark.parametrize("started", [False, True])
def test_who_only_answers_pings_says_nothing(routes, monkeypatch, started):
    monkeypatch.setattr(routes, "START_S", 0.4)
    monkeypatch.setattr(routes, "IDLE_S", 0.4)
    monkeypatch.setattr(routes, "PING_S", 0.1)

    async def talk(client):
        async with connect(client) as ws:
            if started:
                await ws.send_str(start())
            events = asyncio.create_task(read_all(ws))
            while not events.done():
                await ws.ping()
                await asyncio.sleep(0.1)
            said = events.result()[0][-1]["message"]
        assert ("no sound came" if started else "no start came") in said

    serve(routes, talk)


def test_a_client_that_is_held_up_is_not_taken_for_gone(routes, monkeypatch):
    """A model that loads, with more sound behind it than is read meanwhile: the pong is behind that sound."""
    monkeypatch.setattr(routes, "PING_S", 0.1)
    gate = threading.Event()
    routes.fake = FakeStream(hook=lambda first: gate.wait(20))

    async def talk(client):
        async with connect(client) as ws:
            await ws.send_str(start())
            asyncio.get_running_loop().call_later(1, gate.set)
            receiving = asyncio.create_task(read_all(ws))
            await send_sound(ws, 25)
            await ws.send_str('{"type": "end"}')
            events, _ = await receiving
            assert ws.close_code == 1000
        assert (events[-1]["type"], events[-1]["frames"]) == ("done", 625)

    serve(routes, talk)


def test_after_end_the_video_may_take_its_time(routes, monkeypatch):
    monkeypatch.setattr(routes, "IDLE_S", 0.3)
    routes.fake = FakeStream(hook=lambda first: threading.Event().wait(0.25))

    async def talk(client):
        async with connect(client) as ws:
            await ws.send_str(start())
            await send_sound(ws, 1)
            await ws.send_str('{"type": "end"}')
            events, _ = await read_all(ws)
        assert events[-1] | {"took_s": 0, "ttff_s": 0} == {
            "type": "done",
            "frames": 25,
            "seconds": 1.0,
            "took_s": 0,
            "ttff_s": 0,
        }

    serve(routes, talk)


def test_a_third_session_is_refused_until_a_place_is_free(routes):
    async def talk(client):
        async with connect(client) as one, connect(client) as two:
            for ws in (one, two):
                await ws.send_str(start())
                assert json.loads((await ws.receive()).data)["type"] == "ready"
            async with connect(client) as three:
                await three.send_str(start())
                events, _ = await read_all(three)
                assert three.close_code == 1013
            assert "all 2 live sessions are in use" in events[0]["message"]
            await one.send_str('{"type": "cancel"}')
            events, _ = await read_all(one)
            assert events == []
            assert one.close_code == 1000
            async with connect(client) as three:
                await three.send_str(start())
                await three.send_str('{"type": "end"}')
                assert (await read_all(three))[0][-1]["type"] == "done"

    serve(routes, talk)


@pytest.mark.parametrize("inside", [False, True])
def test_a_client_that_vanishes_leaves_nothing(routes, inside):
    entered, gate = threading.Event(), threading.Event()
    hook = (lambda first: (entered.set(), gate.wait(20))) if inside else None
    routes.fake = FakeStream(hook=hook)

    async def talk(client):
        ws = await connect(client)
        await ws.send_str(start())
        assert json.loads((await ws.receive()).data)["type"] == "ready"
        await send_sound(ws, 1)
        if inside:
            await asyncio.to_thread(entered.wait, 20)
        ws._response.connection.transport.abort()
        gate.set()
        while routes._slots.running:
            await asyncio.sleep(0.01)

    serve(routes, talk)
    assert routes.fake.closed_in is not None or not routes.fake.threads, "closed, unless it had not begun"


def test_sessions_that_end_slowly_keep_no_worker_of_the_server(routes):
    gate, begun = threading.Event(), []
    routes.fake = FakeStream(hook=lambda first: begun.append(first) or gate.wait(20))

    async def talk(client):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        try:
            for count in (1, 2):
                ws = await connect(client)
                await ws.send_str(start())
                await send_sound(ws, 1)
                # A session that is left before it has begun ends at once, and its slot is free again.
                while len(begun) < count:
                    await asyncio.sleep(0.01)
                assert routes._slots.running == count
                ws._response.connection.transport.abort()
            await asyncio.sleep(0.1)
            assert await asyncio.wait_for(asyncio.to_thread(int, "7"), 10) == 7
        finally:
            gate.set()
        while routes._slots.running:
            await asyncio.sleep(0.01)

    serve(routes, talk)


def test_an_error_of_the_render_reaches_the_client(routes):
    routes.fake = FakeStream(hook=lambda first: 1 // (8 - first))

    async def talk(client):
        async with connect(client) as ws:
            await ws.send_str(start())
            await send_sound(ws, 1)
            events, _ = await read_all(ws)
        assert (events[-1]["type"], events[-1]["stage"]) == ("error", "render")
        assert "division" in events[-1]["message"]

    serve(routes, talk)


def test_a_client_that_does_not_read_is_dropped(routes, monkeypatch, caplog):
    monkeypatch.setattr(routes, "READ_S", 0.5)
    noise = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)
    routes.fake = FakeStream(picture=lambda i: np.roll(noise, 3 * i, 1), size=(256, 256))

    async def small_buffer(request):
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return await routes.serve(request)

    async def talk(client):
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, (client.host, client.port))
        head = "GET /talkinghead/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        await loop.sock_sendall(deaf, head.encode())
        await loop.sock_sendall(deaf, masked(start(output="h264").encode(), 1))
        await loop.sock_sendall(deaf, masked(pcm(3), 2))
        while not routes._slots.running:
            await asyncio.sleep(0.01)
        while routes._slots.running:
            await asyncio.sleep(0.01)
        deaf.close()

    serve(routes, talk, small_buffer)
    assert routes.fake.closed_in is not None
    assert "took nothing for" in caplog.text


def masked(payload: bytes, opcode: int) -> bytes:
    """A websocket frame of a client, its mask all zeros."""
    return bytes([128 | opcode, 128 | 127]) + len(payload).to_bytes(8, "big") + bytes(4) + payload


def test_a_prompts_interrupt_is_not_a_sessions(routes):
    import comfy.model_management as mm

    stopped = threading.Event()
    ctx = routes.LiveContext(stopped.is_set, routes.Report())
    mm.interrupt_current_processing(True)
    try:
        ctx.check_cancelled()
        assert mm.processing_interrupted(), "it is still there for the prompt"
    finally:
        mm.interrupt_current_processing(False)
    ctx.tick(1, 2)
    stopped.set()
    with pytest.raises(BaseException, match="stopped by the user") as e:
        ctx.check_cancelled()
    assert type(e.value).__name__ == "RunCancelled"


@pytest.mark.parametrize(("text", "most"), [("0", 0), ("7", 7), ("many", 2), ("-1", 2), ("1000", 2)])
def test_the_number_of_sessions_is_the_owners_to_say(routes, monkeypatch, text, most):
    monkeypatch.setenv(routes.SESSIONS, text)
    assert route_of(routes).max_sessions() == most
    table = web.RouteTableDef()
    monkeypatch.setattr(route_of(routes), "prompt_server", lambda: SimpleNamespace(routes=table))
    route_of(routes).register()
    assert [route.path for route in table] == (["/talkinghead/live"] if most else [])
    route_of(routes).register()
    assert len(table) <= 1, "a second copy of the pack adds none"
