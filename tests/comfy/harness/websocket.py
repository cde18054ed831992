"""The few parts of RFC 6455 that a client of a local server needs."""

from __future__ import annotations

import base64
import secrets
import socket
import struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class WebSocket:
    def __init__(self, host: str, port: int, path: str, timeout: float = 30.0) -> None:
        self.sock = socket.create_connection((host, port), timeout=timeout)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.sock.sendall(
            (
                f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        self._buffer, self._kind, self._parts = b"", TEXT, []
        while b"\r\n\r\n" not in self._buffer:
            self._receive()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        status = head.split(b"\r\n")[0]
        if b" 101 " not in status:
            raise ConnectionError(status.decode(errors="replace"))

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data

    def _frame(self) -> tuple[bool, int, bytes]:
        # Nothing leaves the buffer before the frame is whole, so a time-out in the middle loses nothing.
        at = 2
        self._fill(at)
        first, n = self._buffer[0], self._buffer[1] & 127
        if n >= 126:
            at = 4 if n == 126 else 10
            self._fill(at)
            n = int.from_bytes(self._buffer[2:at], "big")
        self._fill(at + n)
        data, self._buffer = self._buffer[at : at + n], self._buffer[at + n :]
        return bool(first & 128), first & 15, data

    def _fill(self, n: int) -> None:
        while len(self._buffer) < n:
            self._receive()

    def send(self, payload: bytes, opcode: int = TEXT) -> None:
        n, mask = len(payload), secrets.token_bytes(4)
        if n < 126:
            head = bytes([128 | opcode, 128 | n])
        elif n < 65536:
            head = bytes([128 | opcode, 128 | 126]) + struct.pack(">H", n)
        else:
            head = bytes([128 | opcode, 128 | 127]) + struct.pack(">Q", n)
        self.sock.sendall(head + mask + bytes(c ^ mask[i & 3] for i, c in enumerate(payload)))

    def recv(self, timeout: float) -> str | bytes | None:
        """Return one whole message, text or binary, or None if none came in time.

        Raises ConnectionError when the server closes the connection.
        """
        self.sock.settimeout(timeout)
        try:
            while True:
                final, opcode, data = self._frame()
                if opcode == PING:
                    self.send(data, PONG)
                elif opcode == CLOSE:
                    raise ConnectionError("the server closed the connection")
                elif opcode != PONG:
                    self._kind = opcode or self._kind
                    self._parts.append(data)
                    if final:
                        whole, self._parts = b"".join(self._parts), []
                        return whole.decode() if self._kind == TEXT else whole
        except TimeoutError:
            return None

    def close(self) -> None:
        try:
            self.send(b"", CLOSE)
        except OSError:
            pass
        self.sock.close()
