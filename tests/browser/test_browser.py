"""The page itself: a saved graph opens, is queued by the page's own code, runs, and the video plays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


def graphs() -> list[Path]:
    return sorted((ROOT / "workflows").glob("*.json"))


@pytest.mark.parametrize("graph", graphs(), ids=lambda p: p.stem)
def test_a_shipped_graph_opens_and_means_the_same_as_its_twin(smoke, graph):
    out = SHOTS / graph.stem
    report = smoke(graph, out, "--no-queue")
    assert report["page_errors"] == []
    twin = json.loads((graph.parent / "api" / graph.name).read_text("utf-8"))
    page = json.loads((out / "prompt_api.json").read_text("utf-8"))
    assert page.keys() == twin.keys()
    for node, wanted in twin.items():
        assert page[node]["class_type"] == wanted["class_type"]
        # the page adds values of its own, such as the state of an audio player
        assert {k: page[node]["inputs"].get(k) for k in wanted["inputs"]} == wanted["inputs"], f"node {node}"


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
