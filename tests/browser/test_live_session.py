"""The browser client of the page on live sessions: a microphone in, a film that plays while it is made."""

from __future__ import annotations

import pytest
import soundfile
from support import OUT, ROOT

pytestmark = [pytest.mark.comfy, pytest.mark.browser]


def test_the_example_of_the_page_plays_in_a_browser(page_script, tmp_path):
    spoken, rate = soundfile.read(ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac", dtype="int16")
    sound, shot = tmp_path / "microphone.wav", OUT / "browser" / "live_session.png"
    soundfile.write(sound, spoken, rate)
    shot.parent.mkdir(parents=True, exist_ok=True)
    page = ROOT / "web" / "docs" / "live_server.md"
    report = page_script("live_session.mjs", "--page", str(page), "--sound", str(sound), "--out", str(shot))
    print(report)
    assert (report["width"], report["height"]) == (512, 512)
    assert report["at"] > 0.4
    assert report["ready"] >= 2, "there is a frame to show"
    assert report["light"] > 60, "a picture, and not an empty canvas"
