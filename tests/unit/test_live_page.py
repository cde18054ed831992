"""The page on live rendering: its example runs as it stands, and its bounds hold for the model that ships."""

import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from support import ROOT

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


def test_the_example_runs_as_it_stands(tmp_path, speech):
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    samples, rate = speech
    soundfile.write(tmp_path / "speech.wav", samples[: rate * 2 // 5], rate)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["0 (8, 768, 512) False", "8 (2, 768, 512) True"]


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
