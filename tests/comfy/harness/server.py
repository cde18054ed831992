"""Start and stop a ComfyUI server from a source tree.

The tree stays as it is: the server gets a base directory of its own, into which custom-node folders are
linked, and ends by its process id.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

FOLDERS = ("custom_nodes", "input", "output", "temp", "user", "models")
START_S = 180.0
ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ComfyServer:
    """A server on 127.0.0.1, as a context manager.

    packs: folder name in custom_nodes -> path of the pack; base: an empty directory of this server's own.
    """

    def __init__(
        self, tree: Path, base: Path, packs: Mapping[str, Path], log: Path, args: tuple = ("--cpu",)
    ):
        self.tree, self.base, self.packs, self.log, self.args = tree, base, packs, log, args
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = base / "output"
        self.temp = base / "temp"
        self.version = "?"
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> ComfyServer:
        self._link_packs()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.tree,
                env={**os.environ, **ENV},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches pytest first, which ends the server
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server: its own clean way out first, then harder."""
        for how, seconds in ((signal.SIGINT, 15), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if not self.running():
                break
            self._process.send_signal(how)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _link_packs(self) -> None:
        for folder in FOLDERS:
            (self.base / folder).mkdir(parents=True, exist_ok=True)
        for name, path in self.packs.items():
            (self.base / "custom_nodes" / name).symlink_to(path, target_is_directory=True)

    def _command(self) -> list[str]:
        return [
            sys.executable,
            str(self.tree / "main.py"),
            *("--listen", "127.0.0.1", "--port", str(self.port)),
            *("--base-directory", str(self.base)),
            *("--database-url", f"sqlite:///{self.base / 'user' / 'comfyui.db'}"),
            "--disable-auto-launch",
            "--disable-api-nodes",
            *self.args,
        ]

    def _wait_until_up(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if not self.running():
                raise RuntimeError(f"the server ended at its start; {self.log}:\n{self.tail()}")
            try:
                with urllib.request.urlopen(self.url + "/system_stats", timeout=2) as answer:
                    self.version = json.load(answer)["system"].get("comfyui_version", "?")
                return
            except (OSError, ValueError):
                time.sleep(0.2)
        raise TimeoutError(f"no answer within {START_S:.0f} s; {self.log}:\n{self.tail()}")
