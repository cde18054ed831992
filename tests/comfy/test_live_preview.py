"""A render over HTTP, watched while it runs: events, segments that play, other origins refused, nothing left."""

from __future__ import annotations

import io
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import av
import pytest
from harness.outcome import decode, files_of
from stub_engine import read_index
from test_server import RATE, stub_prompt

EVENT = "talkinghead.preview"

pytestmark = pytest.mark.comfy


def get(server, path: str, **headers: str) -> tuple[int, dict, bytes]:
    """Return status, headers and body, of a refusal too."""
    request = urllib.request.Request(
        server.url + path, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as e:
        return e.code, dict(e.headers), e.read()


class Page:
    """Follows the events of one run and reads its segments, as the page does."""

    def __init__(self, server):
        self.server, self.events, self.answers = server, [], {}
        self.init, self.body, self.next, self.files = b"", b"", 0, set()

    def __call__(self, what: str, data: dict) -> bool:
        if what != EVENT:
            return False
        self.events.append(data)
        if data["state"] == "running" and data["next"] > self.next:
            self.read(data["token"])
        return False

    def read(self, token: str) -> None:
        base = f"/talkinghead/preview/{token}"
        if not self.init:
            status, self.headers, self.init = get(self.server, f"{base}/init")
            assert status == 200
            self.answers = {
                "foreign origin": get(self.server, f"{base}/init", Origin="http://evil.example")[0],
                "foreign site": get(self.server, f"{base}/init", Sec_Fetch_Site="cross-site")[0],
                "sister site": get(self.server, f"{base}/segments", Sec_Fetch_Site="same-site")[0],
                "own origin": get(self.server, f"{base}/init", Origin=self.server.url)[0],
                "own site": get(self.server, f"{base}/init", Sec_Fetch_Site="same-origin")[0],
                "with prefix": get(self.server, f"/api{base}/init")[0],
                "no number": get(self.server, f"{base}/segments?from=-1")[0],
                "far ahead": get(self.server, f"{base}/segments?from=99999")[0],
                "traversal": get(self.server, f"{base}/..%2f..%2fuser/init")[0],
                "another name": get(self.server, f"{base}/00000000.m4s")[0],
                "guess": get(self.server, f"/talkinghead/preview/{'0' * 32}/init")[0],
                "path for token": get(self.server, "/talkinghead/preview/..%2ftemp/init")[0],
            }
            self.files = {f for f in files_of(self.server) if "talkinghead-" in f}
        status, headers, body = get(self.server, f"{base}/segments?from={self.next}")
        if status == 200:
            assert int(headers["X-First"]) == self.next
            self.next = int(headers["X-Next"])
            self.body += body


def test_a_render_is_watched_while_it_runs(client, comfy_server):
    before, page = files_of(comfy_server), Page(comfy_server)
    prompt = stub_prompt(samples=6 * RATE, sleep_s=0.1, prefix="watched")
    run = client.run(prompt, interrupt_when=page)
    assert run.status == "success", run

    assert {e["node"] for e in page.events} == {"3"}
    assert len({e["token"] for e in page.events}) == 1
    assert [e["state"] for e in page.events[:-1]] == ["running"] * (len(page.events) - 1)
    assert page.events[-1]["state"] == "finished"
    assert len(page.events) <= run.seconds * 5 + 2

    status = page.answers
    assert {k: status[k] for k in ("foreign origin", "foreign site", "sister site")} == dict.fromkeys(
        ("foreign origin", "foreign site", "sister site"), 403
    )
    assert (status["own origin"], status["own site"], status["with prefix"]) == (200, 200, 200)
    assert (status["no number"], status["far ahead"]) == (400, 204)
    assert (status["traversal"], status["another name"], status["guess"]) == (404, 404, 404)
    assert status["path for token"] == 404
    assert page.headers["Content-Type"] == "video/mp4"
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["X-Content-Type-Options"] == "nosniff"

    shown = decode(page.init + page.body)
    numbers = [read_index(f) for f in shown.frames]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 100, "150 frames are rendered; the page had most of them before the end"
    assert shown.audio_s > 3
    with av.open(io.BytesIO(page.init + page.body)) as box:
        assert box.streams.video[0].start_time == box.streams.audio[0].start_time == 0
    codec = re.fullmatch(r'video/mp4; codecs="avc1\.[0-9A-F]{6},mp4a\.40\.2"', page.events[-1]["mime"])
    assert codec, page.events[-1]["mime"]

    figures = page.events[-1]["figures"]
    assert (figures["frame"], figures["frames"]) == (150, 150)
    assert "264" in figures["encoder"]
    assert 0 < figures["first_frame_s"] < 5
    assert 8 <= figures["fps"] <= 85, "a chunk of 8 frames takes 0.1 s and more"

    assert page.files, "segments were in temp/"
    [film] = files_of(comfy_server) - before
    assert film.endswith(".mp4")
    ended = get(comfy_server, f"/talkinghead/preview/{page.events[-1]['token']}/segments")
    assert ended[0] == 204, "gone, and not an error of who asks late"


def test_one_endless_answer_holds_the_preview_too(client, comfy_server):
    """For pages that may not use MediaSource; it ends with the run, also for a reader that never reads."""
    got, idle = [], []

    def follow(what: str, data: dict) -> bool:
        if what == EVENT and data["next"] and not idle:
            path = f"/talkinghead/preview/{data['token']}/stream"
            assert get(comfy_server, path, Origin="http://evil.example")[0] == 403
            where = urllib.parse.urlsplit(comfy_server.url)
            idle.append(socket.create_connection((where.hostname, where.port)))
            idle[0].sendall(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
            reader.append(pool.submit(lambda: got.append(get(comfy_server, path))))
        return False

    reader = []
    with ThreadPoolExecutor() as pool:
        run = client.run(stub_prompt(samples=3 * RATE, sleep_s=0.1, prefix="endless"), interrupt_when=follow)
        reader[0].result(30)
    with idle[0] as connection:
        connection.settimeout(30)
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):  # the last chunk: the server has ended the answer
            piece = connection.recv(1 << 16)
            assert piece, "closed in the middle of a chunk"
            answer += piece
    assert run.status == "success", run
    [(status, headers, body)] = got
    assert (status, headers["Content-Type"]) == (200, "video/mp4")
    numbers = [read_index(f) for f in decode(body).frames]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 40, "75 frames are rendered"


def test_an_interrupt_ends_the_preview_and_leaves_nothing(client, comfy_server):
    before, page = files_of(comfy_server), Page(comfy_server)

    def stop_soon(what: str, data: dict) -> bool:
        page(what, data)
        return page.next >= 2

    run = client.run(stub_prompt(samples=20 * RATE, sleep_s=0.1, prefix="stopped"), interrupt_when=stop_soon)
    assert run.status == "interrupted", run
    assert page.body
    assert [data["state"] for what, data in run.custom_events if what == EVENT][-1] == "stopped"
    assert files_of(comfy_server) == before


def test_two_writers_of_one_graph_have_a_preview_each(client, comfy_server):
    prompt = stub_prompt(samples=RATE, sleep_s=0.02, prefix="first")
    other = stub_prompt(samples=RATE, sleep_s=0.02, colour=0x2020C0, prefix="second")
    prompt["12"] = other["2"]
    prompt["13"] = other["3"] | {"inputs": other["3"]["inputs"] | {"frames": ["12", 0]}}
    run = client.run(prompt)
    assert run.status == "success", run
    tokens = {data["node"]: data["token"] for what, data in run.custom_events if what == EVENT}
    assert set(tokens) == {"3", "13"}
    assert tokens["3"] != tokens["13"]


def test_without_a_client_nothing_is_kept(client, comfy_server):
    """A script that posts a prompt and polls the history pays for no preview."""
    before = files_of(comfy_server)
    status, answer = client.post("/prompt", {"prompt": stub_prompt(samples=RATE // 2, prefix="alone")})
    assert status == 200
    seen = set()
    for _ in range(600):
        seen |= {f for f in files_of(comfy_server) if "talkinghead-" in f}
        entry = client.get(f"/history/{answer['prompt_id']}").get(answer["prompt_id"])
        if entry:
            break
        time.sleep(0.02)
    assert entry["status"]["status_str"] == "success"
    assert not seen
    assert len(files_of(comfy_server) - before) == 1
