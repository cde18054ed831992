"""Live sessions on a real ComfyUI server, with the embedded engine: sound in over a websocket, a film out."""

from __future__ import annotations

import http.client
import io
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import av
import numpy as np
import pytest
import soundfile
import torch
from harness.outcome import decode
from harness.websocket import BINARY, WebSocket
from support import ROOT
from test_server import stub_prompt

pytestmark = pytest.mark.comfy

SAMPLE = ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac"
PIECE_S = 0.08


@cache
def speech(seconds: float) -> tuple[np.ndarray, int]:
    """The demo's sentence: int16 (n,) and its rate."""
    sound, rate = soundfile.read(SAMPLE, dtype="int16")
    return sound[: round(seconds * rate)], rate


class Session:
    """A client: sends a sentence in pieces of 80 ms and reads until the server closes."""

    def __init__(self, server, **fields) -> None:
        self.rate = speech(1)[1]
        start = {"type": "start", "version": 1, "avatar": "demo", "sample_rate": self.rate} | fields
        self.socket = WebSocket("127.0.0.1", server.port, "/talkinghead/live", 120)
        self.events, self.video = [], b""
        self.socket.send(json.dumps(start).encode())

    def read(self, until: str | None = None) -> None:
        """Read up to an event of type `until`, or up to the end."""
        while True:
            try:
                message = self.socket.recv(120)
            except ConnectionError:
                return
            assert message is not None, "the server is silent"
            if isinstance(message, bytes):
                self.video += message
                continue
            self.events.append(json.loads(message))
            if self.events[-1]["type"] == until:
                return

    def say(self, seconds: float) -> None:
        sound, rate = speech(seconds)
        piece = round(PIECE_S * rate)
        for at in range(0, len(sound), piece):
            self.socket.send(sound[at : at + piece].tobytes(), BINARY)
        self.socket.send(b'{"type": "end"}')

    def of(self, kind: str) -> list[dict]:
        return [e for e in self.events if e["type"] == kind]


def talk(server, seconds, **fields) -> Session:
    session = Session(server, **fields)
    session.read("ready")
    session.say(seconds)
    session.read()
    session.socket.close()
    return session


def mouth_motion(frames: torch.Tensor, avatar: str) -> tuple[float, float]:
    """Mean change from frame to frame in the lower face of a still presenter, and elsewhere, in levels."""
    from talkinghead.nodes.avatars.names import demo_presenters

    x1, y1, x2, y2 = demo_presenters()[avatar]["boxes"][0]
    change = (frames[1:].int() - frames[:-1].int()).abs().float().mean(dim=-1)
    inside = torch.zeros(change.shape[1:], dtype=torch.bool)
    inside[(y1 + y2) // 2 : y2, x1 + (x2 - x1) // 4 : x2 - (x2 - x1) // 4] = True
    around = torch.ones_like(inside)
    around[max(0, (y1 + y2) // 2 - 16) : y2 + 16, max(0, x1 - 16) : x2 + 16] = False
    return float(change[:, inside].mean()), float(change[:, around].mean())


def test_speech_comes_back_as_a_film(comfy_server):
    session = talk(comfy_server, 3)
    kinds = [e["type"] for e in session.events]
    assert kinds[0] == "ready"
    assert kinds[-1] == "done", session.events
    assert not session.of("error")
    [ready], [done] = session.of("ready"), session.of("done")
    film = decode(session.video)
    assert len(film.frames) == done["frames"] == 75
    assert film.fps == 25
    assert (ready["height"], ready["width"]) == tuple(film.frames.shape[1:3])
    assert 3 <= film.audio_s <= 3 + 2048 / session.rate
    inside, around = mouth_motion(film.frames, "demo")
    assert inside > 4 * around, f"lips move by {inside:.2f} levels a frame, the rest by {around:.2f}"
    assert inside > 0.5
    with av.open(io.BytesIO(session.video)) as file:
        times = [f.pts * f.time_base for f in file.decode(video=0)]
        assert times == [i / film.fps for i in range(75)]
    print("stats:", session.of("stats"), "done:", done)


def test_two_sessions_and_a_prompt_at_once(comfy_server, client):
    """Each session has its own avatar, cadence and film; an interrupted prompt takes neither with it."""
    other = {"avatar": "demo_loop2", "output": "h264", "cadence": "2", "rest": True}
    both = [Session(comfy_server, avatar="demo"), Session(comfy_server, **other)]
    with ThreadPoolExecutor(3) as pool:

        def whole(session):
            session.read("ready")
            session.say(1)
            session.read()

        films = [pool.submit(whole, session) for session in both]
        slow = stub_prompt(samples=24000 * 20, sleep_s=0.2, prefix="beside")
        run = client.run(slow, interrupt_when=lambda what, data: what == "progress")
        for film in films:
            film.result(120)
    assert run.status == "interrupted"
    assert [s.events[-1]["type"] for s in both] == ["done", "done"], [s.events[-1] for s in both]
    assert len(decode(both[0].video).frames) == 25
    with av.open(io.BytesIO(both[1].video), format="h264") as file:
        assert len(list(file.decode(video=0))) == 25


def test_what_cannot_be_is_said_in_words(comfy_server):
    for fields, stage, words in (
        ({"avatar": "nobody"}, "avatar", "nobody"),
        ({"checkpoint": "musetalk-9"}, "model", "musetalk-9"),
        ({"precision": "fp64"}, "model", "fp64"),
        ({"fps": 500}, "protocol", "500"),
    ):
        session = Session(comfy_server, **fields)
        session.read()
        [error] = session.events
        assert (error["type"], error["stage"]) == ("error", stage)
        assert words in error["message"]


@pytest.mark.parametrize("path", ["/talkinghead/live", "/api/talkinghead/live"])
def test_a_page_of_another_origin_is_refused(comfy_server, path):
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    for headers, status in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": f"http://127.0.0.1:{comfy_server.port}"}, 101),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", comfy_server.port, timeout=30)
        connection.request("GET", path, headers=upgrade | headers)
        assert connection.getresponse().status == status, headers
        connection.close()


def test_the_example_client_of_the_page_works(comfy_server, tmp_path):
    page = (ROOT / "web" / "docs" / "live_server.md").read_text("utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.S)
    source, target = tmp_path / "speech.wav", tmp_path / "sample.mp4"
    sound, rate = speech(1.0)
    soundfile.write(source, sound, rate)
    url = f"ws://127.0.0.1:{comfy_server.port}/talkinghead/live"
    done = subprocess.run(
        [sys.executable, "-c", code, url, str(source), str(target)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert '"type": "done", "frames": 25' in done.stdout
    assert len(decode(target.read_bytes()).frames) == 25
