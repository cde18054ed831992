"""The browser client of the page on live sessions: a microphone in, a film that plays while it is made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile
from support import OUT, ROOT, unavailable

HERE = Path(__file__).resolve().parent

pytestmark = [pytest.mark.comfy, pytest.mark.browser]


def test_the_example_of_the_page_plays_in_a_browser(comfy_server, tmp_path):
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not shutil.which("node"):
        unavailable("node is not installed")
    if not (HERE / "node_modules" / "playwright-core").is_dir():
        unavailable("playwright-core is not installed; `make test` does it where npm is")
    if not chromium:
        unavailable("no Chromium: set CHROMIUM or install one (Debian: apt install chromium)")
    spoken, rate = soundfile.read(ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac", dtype="int16")
    sound, shot = tmp_path / "microphone.wav", OUT / "browser" / "live_session.png"
    soundfile.write(sound, spoken, rate)
    shot.parent.mkdir(parents=True, exist_ok=True)
    page = ROOT / "web" / "docs" / "live_server.md"
    command = ["node", str(HERE / "live_session.mjs"), "--url", comfy_server.url, "--page", str(page)]
    done = subprocess.run(
        [*command, "--sound", str(sound), "--out", str(shot)],
        capture_output=True,
        text=True,
        env={**os.environ, "CHROMIUM": chromium},
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    print(report)
    assert (report["width"], report["height"]) == (512, 512)
    assert report["at"] > 0.4
    assert report["ready"] >= 2, "there is a frame to show"
    assert report["light"] > 60, "a picture, and not an empty canvas"
