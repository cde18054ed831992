"""Run API-format workflows on a ComfyUI server.

    python tests/comfy/harness/client.py workflows/api/x.json --url http://127.0.0.1:8188 --set 3.seed=7

As a script it prints the outcome as JSON; exit code 0 only for a run that succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

if __package__:
    from .websocket import WebSocket
else:  # run as a script
    from websocket import WebSocket

Event = Callable[[str, dict], bool]
PREVIEW, TEXT, PREVIEW_WITH_METADATA = 1, 3, 4


@dataclass
class Run:
    """What became of one prompt; `status` is success, error, interrupted, rejected or timeout."""

    status: str = "unknown"
    prompt_id: str = ""
    outputs: dict = field(default_factory=dict)
    errors: list = field(default_factory=list)
    node_errors: dict = field(default_factory=dict)
    cached_nodes: list = field(default_factory=list)
    progress: dict = field(default_factory=dict)
    previews: dict = field(default_factory=dict)
    texts: dict = field(default_factory=dict)
    custom_events: list = field(default_factory=list)
    seconds: float = 0.0

    def files(self, node: str) -> list[dict]:
        """Return what `node` showed that /view can give: dicts of filename, subfolder, type."""
        return [
            item
            for items in self.outputs.get(node, {}).values()
            if isinstance(items, list)
            for item in items
            if isinstance(item, dict) and "filename" in item
        ]


class Client:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.client_id = uuid.uuid4().hex

    def get_bytes(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read()

    def get(self, path: str) -> dict:
        return json.loads(self.get_bytes(path))

    def post(self, path: str, body: dict) -> tuple[int, dict]:
        """Return the status and the answer, of a refusal too."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read()
        try:
            return status, json.loads(text) if text else {}
        except ValueError:
            return status, {"error": text.decode(errors="replace")}

    def forget(self) -> None:
        """Have the server drop cached outputs and models, and return when it has.

        `/free` only raises a flag, which the worker lowers after the prompt it takes next: a prompt queued at once
        may still be answered from the cache. So a prompt of its own goes between.
        """
        status, answer = self.post("/free", {"unload_models": True, "free_memory": True})
        if status != 200:
            raise RuntimeError(f"/free answered {status}: {answer}")
        between = {
            "1": {"class_type": "PrimitiveInt", "inputs": {"value": 0}},
            "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
        }
        run = self.run(between)
        if run.status != "success":
            raise RuntimeError(f"the prompt after /free: {run}")

    def upload(self, path: Path, subfolder: str = "") -> dict:
        """Put a file of any kind into the input folder (the route calls the field image, whatever it is)."""
        edge = uuid.uuid4().hex
        body = b""
        for name, value in (("type", "input"), ("overwrite", "true"), ("subfolder", subfolder)):
            body += f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        body += (
            f'--{edge}\r\nContent-Disposition: form-data; name="image"; filename="{path.name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        body += path.read_bytes() + f"\r\n--{edge}--\r\n".encode()
        request = urllib.request.Request(
            self.url + "/upload/image", body, {"Content-Type": f"multipart/form-data; boundary={edge}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def view(self, item: dict) -> bytes:
        query = urllib.parse.urlencode({k: item.get(k, "") for k in ("filename", "subfolder", "type")})
        return self.get_bytes("/view?" + query)

    def run(self, prompt: dict, timeout: float = 300.0, interrupt_when: Event | None = None) -> Run:
        """Queue a prompt, follow it to its end, and return what became of it.

        interrupt_when(message type, data) is asked for each message; its first True posts /interrupt.
        """
        where = urllib.parse.urlsplit(self.url)
        socket = WebSocket(where.hostname, where.port or 80, f"/ws?clientId={self.client_id}")
        began, run = time.monotonic(), Run()
        try:
            socket.send(
                json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}}).encode()
            )
            status, answer = self.post("/prompt", {"prompt": prompt, "client_id": self.client_id})
            run.node_errors = answer.get("node_errors", {})
            if status != 200:
                run.status, run.errors = "rejected", [answer.get("error")]
                return run
            run.prompt_id = answer["prompt_id"]
            self._follow(socket, run, began + timeout, interrupt_when)
        finally:
            socket.close()
        run.seconds = round(time.monotonic() - began, 3)
        run.outputs = self._history(run.prompt_id).get("outputs", {})
        return run

    def _history(self, prompt_id: str) -> dict:
        for _ in range(50):  # the entry lands just after the last message
            entry = self.get(f"/history/{prompt_id}").get(prompt_id)
            if entry:
                return entry
            time.sleep(0.1)
        return {}

    def _follow(self, socket: WebSocket, run: Run, end: float, interrupt_when: Event | None) -> None:
        run.status = "timeout"
        while time.monotonic() < end:
            message = socket.recv(0.25)
            if message is None:
                continue
            if isinstance(message, bytes):
                _note_binary(message, run)
                continue
            message = json.loads(message)
            what, data = message.get("type"), message.get("data") or {}
            if data.get("prompt_id") not in (None, run.prompt_id):
                continue
            if interrupt_when and interrupt_when(what, data):
                interrupt_when = None
                self.post("/interrupt", {"prompt_id": run.prompt_id})
            if _note(what, data, run):
                return


def _note(what: str, data: dict, run: Run) -> bool:
    """Enter a message into the run; True if it was the last."""
    if what == "progress":
        run.progress.setdefault(str(data.get("node")), []).append((data["value"], data["max"]))
    elif what == "execution_cached":
        run.cached_nodes = data.get("nodes", [])
    elif what in ("execution_error", "execution_interrupted", "execution_success"):
        run.status = what.removeprefix("execution_")
        if run.status != "success":
            run.errors.append({k: v for k, v in data.items() if not k.startswith("current_")})
        return True
    elif what not in ("status", "progress_state", "feature_flags") and not what.startswith("execut"):
        run.custom_events.append((what, data))
    return False


def _note_binary(message: bytes, run: Run) -> None:
    event, length = struct.unpack(">II", message[:8])
    if event == PREVIEW:
        run.previews["?"] = run.previews.get("?", 0) + 1
    elif event == PREVIEW_WITH_METADATA:  # length of a JSON block, that block, the picture
        node = json.loads(message[8 : 8 + length]).get("node_id", "?")
        run.previews[node] = run.previews.get(node, 0) + 1
    elif event == TEXT:  # length of the node's id, the id, the text
        node = message[8 : 8 + length].decode()
        run.texts.setdefault(node, []).append(message[8 + length :].decode())


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("workflow", type=Path)
    p.add_argument("--url", default=os.environ.get("COMFY_URL", "http://127.0.0.1:8188"))
    p.add_argument("--set", action="append", default=[], metavar="NODE.INPUT=VALUE")
    p.add_argument("--timeout", type=float, default=600.0)
    a = p.parse_args(argv)
    prompt = json.loads(a.workflow.read_text())
    if isinstance(prompt.get("nodes"), list):
        p.error("this is a UI-format workflow; export it in API format")
    for pair in a.set:
        where, _, value = pair.partition("=")
        node, _, name = where.partition(".")
        try:
            prompt[node]["inputs"][name] = json.loads(value)
        except ValueError:
            prompt[node]["inputs"][name] = value
    run = Client(a.url).run(prompt, a.timeout)
    print(json.dumps(asdict(run), indent=1))
    return 0 if run.status == "success" else 1


if __name__ == "__main__":
    sys.exit(main())
