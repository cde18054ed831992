"""A hub on loopback: HEAD and GET with the headers huggingface_hub reads, ranges, and faults on demand."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Served:
    """One path of the server. `record` are the bytes the headers speak of, `body` what is sent.

    cut_at: bytes after which the line breaks, once for each entry. token: needed to read it.
    location: where the hub says the bytes are. moves_get: where only a GET is sent.
    """

    body: bytes
    record: bytes | None = None
    small: bool = False
    cut_at: list[int] = field(default_factory=list)
    token: str | None = None
    status: int = 200
    ranges: bool = True
    location: str | None = None
    moves_get: str | None = None

    @property
    def etag(self) -> str:
        data = self.body if self.record is None else self.record
        if self.small:
            return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return hashlib.sha256(data).hexdigest()


class HubServer:
    """`files` maps paths to `Served`; `log` holds (method, path, Range), `tokens` the Authorization of every request."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.log: list[tuple[str, str, str | None]] = []
        self.tokens: list[str | None] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *args: None  # clients hang up on purpose
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def gets(self, path: str = "") -> list[str | None]:
        """Range headers of the GETs of `path`."""
        return [r for method, p, r in self.log if method == "GET" and path in p]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, send: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.log.append((self.command, path, self.headers.get("Range")))
        self.hub.tokens.append(self.headers.get("Authorization"))
        served = self.hub.files.get(path)
        if served is None:
            return self._refuse(404, "EntryNotFound" if "/resolve/" in path else "")
        if served.token and self.headers.get("Authorization") != f"Bearer {served.token}":
            return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if served.status != 200:
            return self._refuse(served.status, "")
        body, start = served.body, 0
        if served.ranges and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= len(body):
                return self._refuse(416, "")
        moved = served.location or (served.moves_get if send else None)
        self.send_response(302 if moved else 206 if start else 200)
        if moved:
            self.send_header("Location", moved)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", "0" if moved else str(len(body) - start))
        self.send_header("ETag", f'"{served.etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(len(body if served.record is None else served.record)))
        self.end_headers()
        if not send or moved:
            return None
        end = served.cut_at.pop(0) if served.cut_at else len(body)
        self.wfile.write(body[start:end])
        if end < len(body):
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
        return None

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
