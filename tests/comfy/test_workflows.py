"""The shipped graphs of avatars through the API of a real server: portrait, video loop, fleet; the loader's combo."""

from __future__ import annotations

import json
import re
import shutil

import cv2
import numpy as np
import pytest
import soundfile
from faces import clip as face_clip
from faces import gray, portrait
from harness.outcome import decode, run_well
from support import ROOT

pytestmark = pytest.mark.comfy

PRESENTERS = ROOT / "nodes" / "musetalk" / "embedded" / "presenters"


def graph(name: str, **changes) -> dict:
    """Return a shipped graph with `n<node>__<input>` set to other values."""
    prompt = json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text("utf-8"))
    for key, value in changes.items():
        node, widget = key[1:].split("__")
        prompt[node]["inputs"][widget] = value
    return prompt


@pytest.fixture
def inputs(comfy_server):
    folder = comfy_server.base / "input"
    folder.mkdir(exist_ok=True)
    return folder


def write(path, picture):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", picture[..., ::-1])[1].tobytes())


def test_portrait_from_a_picture_to_a_video(client, inputs):
    picture, box = portrait(400, 300, face_width=110)
    write(inputs / "ünï face.png", picture)
    run = run_well(client, graph("musetalk_portrait", n2__image="ünï face.png"))
    [item] = run.files("8")
    frames = decode(client.view(item)).frames.numpy()
    assert frames.shape[1:] == (300, 400, 3)
    assert len(frames) > 50
    x1, y1, x2, y2 = (round(v) for v in box)
    moved = np.abs(frames.astype(int) - frames[0]).max(0).max(2)
    assert moved[(y1 + y2) // 2 : y2, x1:x2].max() > 40
    assert moved[: (y1 + y2) // 2 - 8].max() < 25  # the codec's own
    [shown] = run.files("9")
    assert client.view(shown)[:4] == b"\x89PNG"


def test_pauses_between_two_sounds_are_still(client, inputs):
    """Half a second of tone in place of the sentence: 2.5 s, of which the middle 1.5 are silent."""
    tone = 0.5 * np.sin(1300 * np.arange(11025) / 22050)
    soundfile.write(inputs / "tone.wav", tone, 22050)
    prompt = graph(
        "musetalk_pauses", n4__avatar="demo", n7__filename_prefix="tests/pauses", n7__quality="high"
    )
    prompt["1"] = {"class_type": "LoadAudio", "inputs": {"audio": "tone.wav"}}
    run = run_well(client, prompt)
    [shown] = run.files("7")
    frames = decode(client.view(shown)).frames
    assert len(frames) == 63
    moved = np.abs(np.diff(frames[27:46].numpy().astype(int), axis=0)).max()  # no key frame among them
    assert moved <= 6  # the codec's own
    [picture] = run.files("9")
    assert client.view(picture)[:4] == b"\x89PNG"


def test_video_loop_with_a_gap_keeps_every_frame(client, comfy_server, inputs):
    from talkinghead.nodes.core.frames import RunContext, TensorStream
    from talkinghead.nodes.core.timeline import parse_fps
    from talkinghead.nodes.core.video_write import WriteOptions, write_video

    frames, _ = face_clip(12, 320, 240, 90, faceless=range(5, 8))
    import torch

    stream = TensorStream(torch.from_numpy(frames), parse_fps("25"))
    write_video(stream, inputs / "presenter.mp4", RunContext(), None, WriteOptions(quality="high"))
    run = run_well(client, graph("musetalk_video_loop", n3__cycle="loop"))
    [item] = run.files("8")
    shown = decode(client.view(item)).frames.numpy()
    assert len(shown) > 50
    for i, frame in enumerate(shown):
        if i % 12 in (5, 6, 7):
            assert np.abs(frame.astype(int) - gray(320, 240)).mean() < 2, i
    report = run.outputs["9"]["text"][0]
    assert report.startswith(
        "verdict: can be built, but\nproblem: 25% of the frames looked at have no face: 5-7"
    )
    assert "clip: 320x240, 25 fps, 0.48 s, h264, no sound" in report


def test_fleet_of_a_folder(client, inputs):
    for i in range(3):
        write(
            inputs / "presenters" / f"p{i}.png", portrait(200, 200, face_width=70, tint=(1 - i / 10, 1, 1))[0]
        )
    (inputs / "presenters" / "broken.png").write_bytes(b"no picture")
    run = run_well(client, graph("musetalk_fleet"))
    report = run.outputs["3"]["text"][0]
    assert report.startswith("3 of 4 ready (0 kept), 1 failed\n")
    assert re.search(r"^broken: failed .*broken.png", report, re.M)
    names = client.get("/object_info/TalkingHeadLoadAvatar")["TalkingHeadLoadAvatar"]
    assert {"p0", "p1", "p2"} <= set(json.dumps(names).replace('"', " ").replace(",", " ").split())
    shutil.rmtree(inputs / "presenters")


def test_a_checkpoint_that_is_not_there_is_refused_with_the_way_to_get_it(client, inputs):
    write(inputs / "face.png", portrait(200, 200, face_width=70)[0])
    for name in ("musetalk-1.5", "musetalk-1.5 (not installed)"):
        run = client.run(graph("musetalk_portrait", n1__checkpoint=name, n2__image="face.png"))
        assert run.status == "rejected"
        assert "-m ComfyUI-TalkingHead models download musetalk-1.5" in json.dumps(run.node_errors)


@pytest.mark.parametrize("name", ["../../secret.mp4", "/etc/hostname"])
def test_no_path_of_a_graph_leaves_the_input_folder(client, inputs, name):
    run = client.run(graph("musetalk_video_loop", n2__file=name, n3__file=name))
    assert run.status == "rejected"
    assert "in ComfyUI's input folder" in json.dumps(run.node_errors)
