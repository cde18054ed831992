"""Scripts that drive ComfyUI's page in a headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import unavailable

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def page_script(comfy_server):
    """Return a function that runs a script of this folder on the server's page: (script, *arguments) -> its report."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not shutil.which("node"):
        unavailable("node is not installed")
    if not (HERE / "node_modules" / "playwright-core").is_dir():
        unavailable("playwright-core is not installed; `make test` does it where npm is")
    if not chromium:
        unavailable("no Chromium: set CHROMIUM or install one (Debian: apt install chromium)")

    def run(script: str, *args: str) -> dict:
        done = subprocess.run(
            ["node", str(HERE / script), "--url", comfy_server.url, *args],
            capture_output=True,
            text=True,
            env={**os.environ, "CHROMIUM": chromium},
            timeout=300,
        )
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert done.returncode == 0, json.dumps(report, indent=1) + done.stderr
        return report

    return run
