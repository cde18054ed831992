"""The shipped Ditto graphs through the API of a real server, with the embedded engine."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import soundfile
from harness.outcome import decode, run_well
from support import ROOT

pytestmark = pytest.mark.comfy

FRAMES = 40


def graph(name: str, sound: str) -> dict:
    """Return a shipped graph that speaks `sound` of the input folder instead of the sample sentence."""
    prompt = copy.deepcopy(json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text("utf-8")))
    prompt["1"] = {"class_type": "LoadAudio", "inputs": {"audio": sound}}
    return prompt


@pytest.fixture(scope="module")
def sound(comfy_server):
    """1.6 s of the sample sentence."""
    folder = comfy_server.base / "input"
    folder.mkdir(exist_ok=True)
    samples, rate = soundfile.read(ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac")
    soundfile.write(folder / "short.wav", samples[: FRAMES * rate // 25], rate)
    return "short.wav"


@pytest.fixture(scope="module")
def quick(client, sound):
    run = run_well(client, graph("ditto_quickstart", sound))
    [item] = run.files("8")
    return run, decode(client.view(item)).frames.numpy().astype(int)


def test_quickstart_moves_the_whole_head_and_nothing_else(quick):
    _, frames = quick
    assert frames.shape == (FRAMES, 512, 512, 3)
    moved = np.abs(frames - frames[0]).max(0).max(2)
    assert moved[480:, :16].max() < 25  # the codec's own
    mouth, forehead = moved[290:360, 200:310], moved[150:200, 200:310]
    assert mouth.max() > 40
    assert forehead.max() > 12  # a mouth alone would leave it


def test_quickstart_shows_the_motion(client, quick):
    [shown] = quick[0].files("9")
    assert client.view(shown)[:4] == b"\x89PNG"


def test_expressive_has_the_same_clock_and_another_motion(client, sound, quick):
    prompt = graph("ditto_expressive", sound)
    prompt["11"]["inputs"]["filename_prefix"] = "tests/expressive"
    run = run_well(client, prompt)
    [item] = run.files("11")
    frames = decode(client.view(item)).frames.numpy().astype(int)
    assert frames.shape == quick[1].shape
    assert np.abs(frames - quick[1]).mean() > 0.1


def test_an_avatar_of_the_other_engine_is_refused_with_what_to_load(client, sound):
    prompt = graph("ditto_quickstart", sound)
    prompt["3"]["inputs"]["avatar"] = "demo"
    run = client.run(prompt)
    assert run.status == "error"
    assert (
        "is for MuseTalk, this model is Ditto; load 'demo-ditto' instead"
        in run.errors[0]["exception_message"]
    )
