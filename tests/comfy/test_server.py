"""The contracts of frame streams, proved through a real ComfyUI server before any network is in play."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from harness.outcome import Decoded, decode, files_of, run_well
from stub_engine import read_colour, read_energy, read_index

pytestmark = pytest.mark.comfy

RATE = 24000
RED, BLUE = 0xC02020, 0x2020C0
AAC_PRIMING_S = 2048 / RATE


def stub_prompt(samples=RATE, fps="25", volume=0.5, colour=RED, sleep_s=0.0, fail_at_frame=-1, prefix="stub"):
    """Return tone (1) -> stub engine (2) -> Write Video (3), the report shown by (4)."""
    stub = {
        "audio": ["1", 0],
        "fps": fps,
        "width": 128,
        "height": 128,
        "colour": colour,
        "sleep_s": sleep_s,
        "fail_at_frame": fail_at_frame,
    }
    write = {
        "frames": ["2", 0],
        "audio": ["1", 0],
        "filename_prefix": f"tests/{prefix}",
        "codec": "auto",
        "quality": "balanced",
    }
    tone = {"samples": samples, "sample_rate": RATE, "volume": volume}
    return {
        "1": {"class_type": "TestTone", "inputs": tone},
        "2": {"class_type": "TestStubEngine", "inputs": stub},
        "3": {"class_type": "TalkingHeadWriteVideo", "inputs": write},
        "4": {"class_type": "PreviewAny", "inputs": {"source": ["3", 1]}},
    }


def video_of(client, run) -> Decoded:
    [item] = run.files("3")
    return decode(client.view(item))


@pytest.mark.parametrize(
    ("samples", "fps"), [(1200, "30000/1001"), (7200, "24"), (RATE, "25"), (334_560, "60")]
)
def test_every_frame_arrives_in_its_place(client, samples, fps):
    run = run_well(client, stub_prompt(samples, fps))
    video, seconds = video_of(client, run), samples / RATE
    n = math.ceil(Fraction(samples, RATE) * Fraction(fps))
    assert [read_index(f) for f in video.frames] == list(range(n))
    assert video.fps == Fraction(fps)
    assert abs(video.audio_s - seconds) <= 1 / Fraction(fps) + AAC_PRIMING_S
    assert run.outputs["3"]["animated"] == [True]
    report = run.outputs["4"]["text"][0]
    assert f"{n} frames" in report
    assert "264" in report


def test_frames_follow_the_sound(client):
    loud = video_of(client, run_well(client, stub_prompt(volume=0.8)))
    energy = np.array([read_energy(f) for f in loud.frames])
    t = torch.arange(RATE) / RATE
    tone = 0.8 * torch.sin(2 * torch.pi * 220 * t) * torch.sin(torch.pi * t).square()
    expected = tone.reshape(25, -1).square().mean(dim=1).sqrt().numpy()
    assert np.abs(energy - expected).max() < 0.02


def test_an_interrupt_leaves_no_file_and_the_next_run_is_good(client, comfy_server):
    before = files_of(comfy_server)
    slow = stub_prompt(samples=20 * RATE, sleep_s=0.3, prefix="interrupted")
    midway = set()

    def first_progress(what: str, data: dict) -> bool:
        if what != "progress" or data.get("node") != "3":
            return False
        midway.update(files_of(comfy_server))
        return True

    run = client.run(slow, interrupt_when=first_progress)
    assert run.status == "interrupted", run
    assert midway > before, "the unfinished file exists while the run goes on"
    assert run.seconds < 10, "a chunk takes 0.3 s, the whole run 19 s"
    assert files_of(comfy_server) == before
    again = video_of(client, run_well(client, stub_prompt(samples=RATE // 2, prefix="interrupted")))
    assert [read_index(f) for f in again.frames] == list(range(13))


def test_an_error_names_its_stage_and_the_server_survives(client, comfy_server):
    before = files_of(comfy_server)
    run = client.run(stub_prompt(samples=2 * RATE, fail_at_frame=30, prefix="failed"))
    assert run.status == "error"
    [error] = run.errors
    assert error["node_type"] == "TalkingHeadWriteVideo"
    assert "stub engine" in error["exception_message"]
    assert "told to fail at frame 30" in error["exception_message"]
    assert files_of(comfy_server) == before
    again = video_of(client, run_well(client, stub_prompt(samples=2 * RATE, prefix="failed")))
    assert len(again.frames) == 50


def test_the_same_prompt_is_fully_cached(client, comfy_server):
    prompt = stub_prompt(volume=0.41, prefix="twice")
    first, before = run_well(client, prompt), files_of(comfy_server)
    second = run_well(client, prompt)
    assert not first.cached_nodes
    assert sorted(second.cached_nodes) == ["1", "2", "3", "4"]
    assert files_of(comfy_server) == before


def test_changed_audio_is_not_served_from_the_cache(client):
    base = video_of(client, run_well(client, stub_prompt(volume=0.42)))
    run = run_well(client, stub_prompt(volume=0.84))
    assert not run.cached_nodes
    changed = video_of(client, run)
    assert not torch.equal(changed.frames, base.frames)
    client.forget()
    fresh = run_well(client, stub_prompt(volume=0.84))
    assert not fresh.cached_nodes
    assert torch.equal(video_of(client, fresh).frames, changed.frames)


def test_two_avatars_in_turn_do_not_mix(comfy_server):
    """Two clients queue at the same time, three prompts each, of two colours and lengths."""
    from harness.client import Client

    def queue(colour: int, samples: int) -> list[Decoded]:
        client, videos = Client(comfy_server.url), []
        for turn in range(3):
            prompt = stub_prompt(samples + turn * 960, colour=colour, prefix=f"in-turn-{colour:06x}")
            videos.append(video_of(client, run_well(client, prompt)))
        return videos

    with ThreadPoolExecutor() as pool:
        jobs = {colour: pool.submit(queue, colour, n) for colour, n in ((RED, RATE), (BLUE, RATE // 2))}
    results = {colour: job.result() for colour, job in jobs.items()}
    for colour, first in ((RED, 25), (BLUE, 13)):
        assert [len(v.frames) for v in results[colour]] == [first, first + 1, first + 2]
        for video in results[colour]:
            assert [read_index(f) for f in video.frames] == list(range(len(video.frames)))
            assert_colour(video, colour)


def test_two_avatars_in_one_graph_do_not_mix(client):
    prompt = stub_prompt(colour=RED, prefix="both-red")
    other = stub_prompt(colour=BLUE, prefix="both-blue")
    prompt["12"] = other["2"]
    prompt["13"] = other["3"] | {"inputs": other["3"]["inputs"] | {"frames": ["12", 0]}}
    run = run_well(client, prompt)
    for node, colour in (("3", RED), ("13", BLUE)):
        [item] = run.files(node)
        assert_colour(decode(client.view(item)), colour)


def assert_colour(video: Decoded, colour: int) -> None:
    wanted = (colour >> 16, colour >> 8 & 255, colour & 255)
    for frame in video.frames:
        assert max(abs(a - b) for a, b in zip(read_colour(frame), wanted, strict=True)) < 4


def test_every_node_describes_itself(client):
    nodes = {k: v for k, v in client.get("/object_info").items() if k.startswith("TalkingHead")}
    assert "TalkingHeadWriteVideo" in nodes
    for node_id, info in nodes.items():
        assert info["category"].startswith("Talking Head/"), node_id
        assert len(info["description"]) > 40, node_id
        inputs = {**info["input"].get("required", {}), **info["input"].get("optional", {})}
        for name, (_, *options) in inputs.items():
            assert options, f"{node_id}.{name} has no tooltip"
            assert options[0].get("tooltip"), f"{node_id}.{name} has no tooltip"


def test_every_node_has_a_page_that_the_server_gives(client):
    for node_id in client.get("/object_info"):
        if node_id.startswith("TalkingHead"):
            page = client.get_bytes(f"/extensions/ComfyUI-TalkingHead/docs/{node_id}.md").decode()
            assert page.startswith("# "), node_id
