"""The page itself: a saved graph opens, is queued by the page's own code, runs, and the video plays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graph_lint import recorded, signatures
from support import OUT, ROOT

SHOTS = OUT / "browser"

pytestmark = [pytest.mark.comfy, pytest.mark.browser]


@pytest.fixture(scope="module")
def smoke(page_script):
    """Return a function that opens a workflow in the page: (path, folder for screenshots, *arguments) -> report."""

    def run(workflow: Path, out: Path, *args: str) -> dict:
        return page_script("smoke.mjs", "--out", str(out), "--workflow", str(workflow), *args)

    return run


def save(prompt: dict, path: Path) -> Path:
    path.write_text(json.dumps(prompt))
    return path


def test_a_stub_graph_becomes_a_ui_graph_and_runs(smoke, tmp_path):
    prompt = {
        "1": {"class_type": "TestTone", "inputs": {"samples": 12000, "sample_rate": 24000, "volume": 0.5}},
        "2": {"class_type": "PreviewAudio", "inputs": {"audio": ["1", 0]}},
    }
    ui = tmp_path / "ui.json"
    report = smoke(save(prompt, tmp_path / "api.json"), SHOTS / "stub", "--api-to-ui", str(ui))
    print(report)
    assert report["run"]["status"] == "success"
    report = smoke(ui, SHOTS / "stub", "--no-queue")


GRAPHS = sorted((ROOT / "workflows").glob("*.json"))


@pytest.fixture(scope="module")
def opened(page_script):
    """Return what the page says of every shipped graph, opened one after the other."""
    report = page_script("graphs.mjs", "--out", str(SHOTS / "graphs"), *map(str, GRAPHS))
    return report["graphs"]


@pytest.fixture(scope="module")
def known(client):
    return signatures(client.get("/object_info"))


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda p: p.stem)
def test_a_shipped_graph_opens_and_means_the_same_as_its_twin(opened, known, graph):
    """Of nodes that only a newer ComfyUI or another pack has, the page knows their places and links and no more."""
    report = opened[graph.stem]
    twin = json.loads((graph.parent / "api" / graph.name).read_text("utf-8"))
    absent = {n["class_type"] for n in twin.values()} - set(known)
    assert absent <= set(recorded()), "a node that nobody has"
    assert set(report["missing"]) == absent
    assert report["page_errors"] == []
    assert report["overlaps"] == []
    assert report["prompt"].keys() == twin.keys()
    for node, wanted in twin.items():
        page, inputs = report["prompt"][node], wanted["inputs"]
        if wanted["class_type"] in absent:
            inputs = {k: v for k, v in inputs.items() if isinstance(v, list)}
        else:
            assert page["class_type"] == wanted["class_type"]
            here = known[wanted["class_type"]]["inputs"]
            # "format.codec" of SaveVideo: a newer ComfyUI nests what an older one has side by side
            nests = {k for k, spec in here.items() if spec["type"] in ("DYNAMIC", "AUTOGROW")}
            inputs = {k: v for k, v in inputs.items() if "." not in k or k.split(".")[0] in nests}
        # the page adds values of its own, such as the state of an audio player
        assert {k: page["inputs"].get(k) for k in inputs} == inputs, f"node {node}"


def test_the_quickstart_runs_from_the_page_and_its_video_plays(smoke):
    out = SHOTS / "musetalk_quickstart"
    report = smoke(ROOT / "workflows" / "musetalk_quickstart.json", out, "--timeout", "240")
    print(json.dumps(report["run"]), json.dumps(report["media"]))
    assert report["page_errors"] == []
    assert report["failed_requests"] == []
    assert report["console_errors"] == []
    [video] = [m for m in report["media"] if m["tag"] == "video"]
    assert video["loaded"], "the player has frames to show"
    assert (video["width"], video["height"]) == (512, 512)
    assert video["seconds"] > 1
    assert video["at"] == pytest.approx(1, abs=0.1), "the video can be sought"
    assert video["light"] > 20, "the player shows a picture"
    assert (out / "done.png").stat().st_size > 10_000


def test_the_wardrobe_runs_from_the_page_and_shows_film_pictures_and_numbers(smoke):
    out = SHOTS / "wardrobe_core_cpu"
    report = smoke(ROOT / "workflows" / "wardrobe_core_cpu.json", out, "--timeout", "240")
    print(json.dumps(report["run"]), json.dumps(report["media"]))
    for what in ("page_errors", "failed_requests", "console_errors", "overlaps"):
        assert report[what] == [], what
    [video] = [m for m in report["media"] if m["tag"] == "video"]
    assert video["loaded"]
    assert (video["width"], video["height"]) == (216, 384)
    assert video["light"] > 20
