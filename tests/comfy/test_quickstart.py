"""The shipped quickstart graph through the API of a real server, with the embedded engine."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import soundfile
import torch
from harness.outcome import decode, files_of, run_well
from support import ROOT

pytestmark = pytest.mark.comfy

WORKFLOW = ROOT / "workflows" / "api" / "musetalk_quickstart.json"


def quickstart(**changes) -> dict:
    """Return the graph with `node__input` set to other values."""
    prompt = copy.deepcopy(json.loads(WORKFLOW.read_text("utf-8")))
    for key, value in changes.items():
        node, name = key.split("__")
        prompt[node[1:]]["inputs"][name] = value
    return prompt


def video(client, run):
    [item] = run.files("7")
    return decode(client.view(item))


@pytest.fixture(scope="module")
def spoken(client):
    run = run_well(client, quickstart())
    return run, video(client, run)


def sample_seconds() -> float:
    return soundfile.info(ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac").duration


def test_quickstart_makes_a_whole_video_with_sound(spoken):
    run, made = spoken
    seconds = sample_seconds()
    assert len(made.frames) == int(np.ceil(round(seconds * 25, 6)))
    assert tuple(made.frames.shape[1:]) == (512, 512, 3)
    assert abs(made.audio_s - seconds) <= 1 / 25 + 0.1
    assert run.progress["7"]


def test_the_video_carries_the_graph_that_made_it(client, spoken):
    import io

    import av

    [item] = spoken[0].files("7")
    with av.open(io.BytesIO(client.view(item))) as file:
        held = json.loads(file.metadata["prompt"])
    assert held["7"]["class_type"] == "TalkingHeadWriteVideo"


def test_the_mouth_moves_and_the_rest_is_the_avatar(spoken):
    _, made = spoken
    from talkinghead.nodes.avatars.names import FOLDER, demo_presenters
    from talkinghead.nodes.avatars.source import read_source

    boxes = demo_presenters()["demo_loop"]["boxes"]
    own = torch.from_numpy(read_source(FOLDER / "demo_loop.mp4").frames)
    difference = (made.frames.int() - own[torch.arange(len(made.frames)) % len(own)].int()).abs().float()
    lips = []
    for i, frame in enumerate(difference):
        x1, y1, x2, y2 = boxes[i % len(boxes)]
        w, h = x2 - x1, y2 - y1
        lips.append(float(frame[y1 + 6 * h // 10 : y1 + 9 * h // 10, x1 + w // 4 : x2 - w // 4].mean()))
        frame[(y1 + y2) // 2 - 4 : y2 + 4, x1 - 4 : x2 + 4] = 0
        # what is left is the codec's own error
        assert float(frame.mean()) < 2, f"frame {i} changed outside the lower face"
    quiet, loud = np.percentile(lips, [10, 90])
    assert loud > 1.3 * quiet, f"lips differ from the avatar's by {quiet:.2f} to {loud:.2f} levels"


def test_the_same_prompt_is_fully_cached(client, spoken):
    second = run_well(client, quickstart())
    assert sorted(second.cached_nodes) == [str(i) for i in range(1, 8)]


def test_changed_audio_renders_again_and_equals_a_fresh_run(client, comfy_server, spoken):
    t = np.arange(8000) / 16000
    name = "other tone.wav"
    soundfile.write(comfy_server.base / "input" / name, 0.5 * np.sin(1300 * t), 16000)
    prompt = quickstart()
    prompt["1"] = {"class_type": "LoadAudio", "inputs": {"audio": name}}
    run = run_well(client, prompt)
    assert not {"3", "5", "6", "7"} & set(run.cached_nodes)
    changed = video(client, run)
    assert len(changed.frames) == 13
    client.forget()
    fresh = run_well(client, prompt)
    assert not fresh.cached_nodes
    again = video(client, fresh)
    assert torch.equal(again.frames, changed.frames)


def test_an_interrupt_in_the_middle_then_a_good_run(client, comfy_server):
    before = files_of(comfy_server)
    prompt = quickstart(n7__filename_prefix="tests/interrupted")
    run = client.run(prompt, interrupt_when=lambda what, data: what == "progress" and data.get("node") == "7")
    assert run.status == "interrupted", run
    assert files_of(comfy_server) == before
    assert len(video(client, run_well(client, prompt)).frames) > 50


def test_two_avatars_interleaved(client, spoken):
    """One graph renders two avatars from one speech; the first equals the run that had it alone."""
    prompt = quickstart(n7__filename_prefix="tests/first")
    for node in ("4", "5", "6", "7"):
        twin = copy.deepcopy(prompt[node])
        for name, value in twin["inputs"].items():
            if isinstance(value, list) and value[0] in ("4", "5", "6"):
                twin["inputs"][name] = [f"1{value[0]}", value[1]]
        prompt[f"1{node}"] = twin
    prompt["14"]["inputs"]["avatar"] = "demo_loop2"
    prompt["17"]["inputs"]["filename_prefix"] = "tests/second"
    run = run_well(client, prompt)
    assert torch.equal(video(client, run).frames, spoken[1].frames)
    [item] = run.files("17")
    other = decode(client.view(item))
    assert len(other.frames) == len(spoken[1].frames)
    assert float((other.frames.int() - spoken[1].frames.int()).abs().float().mean()) > 10


def test_free_text_and_its_report(client):
    prompt = quickstart(n1__text="One, two.", n1__voice="piper: joe", n7__filename_prefix="tests/text")
    prompt["8"] = {"class_type": "PreviewAny", "inputs": {"source": ["7", 1]}}
    run = run_well(client, prompt)
    assert len(video(client, run).frames) >= 10
    assert "encoder" in run.outputs["8"]["text"][0]


def test_an_avatar_of_your_own_from_picture_and_box(client, comfy_server):
    from talkinghead.nodes.avatars.names import FOLDER, demo_presenters

    box = demo_presenters()["demo"]["boxes"][0]
    (comfy_server.base / "input" / "face.png").write_bytes((FOLDER / "demo.png").read_bytes())
    prompt = quickstart(n7__filename_prefix="tests/own")
    prompt["9"] = {"class_type": "LoadImage", "inputs": {"image": "face.png"}}
    build = {"model": ["2", 0], "image": ["9", 0], "name": "own", "fps": "25", "cycle": "still"}
    prompt["4"] = {
        "class_type": "TalkingHeadBuildAvatar",
        "inputs": {**build, "box": ",".join(map(str, box))},
    }
    assert len(video(client, run_well(client, prompt)).frames) > 50
    assert (comfy_server.base / "models" / "talkinghead" / "avatars" / "own" / "packet.json").is_file()
    listed = client.get("/object_info/TalkingHeadLoadAvatar")["TalkingHeadLoadAvatar"]["input"]["required"][
        "avatar"
    ]
    assert "own" in json.dumps(listed)


def test_images_door_both_ways(client):
    prompt = quickstart()
    prompt["7"] = {
        "class_type": "TalkingHeadFramesToImages",
        "inputs": {"frames": ["6", 0], "start": 10, "count": 5},
    }
    prompt["8"] = {"class_type": "TalkingHeadImagesToFrames", "inputs": {"image": ["7", 0], "fps": "25"}}
    write = {"frames": ["8", 0], "filename_prefix": "tests/door", "codec": "auto", "quality": "high"}
    prompt["10"] = {"class_type": "TalkingHeadWriteVideo", "inputs": write}
    run = run_well(client, prompt)
    [item] = run.files("10")
    assert len(decode(client.view(item)).frames) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n3__fps": "fast"}, "fps 'fast' is not a rate"),
        ({"n4__avatar": "nobody"}, "nobody"),
        ({"n4__avatar": "../../etc"}, "../../etc"),
        ({"n7__filename_prefix": "../../outside"}, "outside"),
        ({"n1__voice": "piper: nobody", "n1__text": "x"}, "nobody"),
    ],
)
def test_bad_input_is_named_and_the_next_run_works(client, comfy_server, changes, message):
    before = files_of(comfy_server)
    run = client.run(quickstart(**changes))
    assert run.status in ("error", "rejected")
    assert message in json.dumps([run.errors, run.node_errors])
    assert files_of(comfy_server) == before


def test_a_cadence_in_the_graph(client, comfy_server):
    """Half a second of tone, half a second of silence: every second frame drawn, then a still mouth."""
    t = np.arange(8000) / 16000
    sound = np.concatenate([0.5 * np.sin(1300 * t), np.zeros(8000)])
    soundfile.write(comfy_server.base / "input" / "tone and silence.wav", sound, 16000)
    prompt = quickstart(n7__filename_prefix="tests/cadence", n4__avatar="demo")
    prompt["1"] = {"class_type": "LoadAudio", "inputs": {"audio": "tone and silence.wav"}}
    prompt["8"] = {"class_type": "TalkingHeadCadence", "inputs": {"speech": ["3", 0], "mode": "2"}}
    prompt["8"]["inputs"] |= {"rms_threshold": 0.008, "flux_threshold": 0.0035, "rest": True}
    prompt["5"]["inputs"]["cadence"] = ["8", 0]
    prompt["9"] = {"class_type": "PreviewImage", "inputs": {"images": ["8", 1]}}
    prompt["10"] = {"class_type": "PreviewAny", "inputs": {"source": ["7", 1]}}
    run = run_well(client, prompt)
    assert len(video(client, run).frames) == 25
    [report] = run.outputs["10"]["text"]
    assert "frames at rest: 7" in report
    assert "musetalk unet engine: eager" in report
    [shown] = run.files("9")
    assert client.view(shown)[:4] == b"\x89PNG"
