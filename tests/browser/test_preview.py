"""Write Video plays while the graph renders: in the classic canvas, in Nodes 2.0, with and without MediaSource."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support import OUT, unavailable

HERE = Path(__file__).resolve().parent
SHOTS = OUT / "browser" / "preview"

pytestmark = [pytest.mark.comfy, pytest.mark.browser]


@pytest.fixture(scope="module")
def seen(page_script, tmp_path_factory):
    """Return what preview.mjs saw in its three runs, all in one page."""
    stub = {"audio": ["1", 0], "fps": "25", "width": 320, "height": 320, "colour": 0x285AA0}
    prompt = {
        "1": {"class_type": "TestTone", "inputs": {"samples": 24000, "sample_rate": 24000, "volume": 0.5}},
        "2": {"class_type": "TestStubEngine", "inputs": stub | {"sleep_s": 0.25, "fail_at_frame": -1}},
        "3": {
            "class_type": "TalkingHeadWriteVideo",
            "inputs": {
                "frames": ["2", 0],
                "audio": ["1", 0],
                "filename_prefix": "tests/preview",
                "codec": "libx264",
                "quality": "balanced",
            },
        },
    }
    path = tmp_path_factory.mktemp("preview") / "api.json"
    path.write_text(json.dumps(prompt))
    report = page_script("preview.mjs", "--out", str(SHOTS), "--workflow", str(path))
    print(json.dumps(report))
    return report


@pytest.mark.parametrize("mode", ["classic", "nodes2", "stream"])
def test_the_node_plays_while_the_graph_renders(seen, mode):
    playing = seen[mode]["playing"]
    assert playing, f"nothing played before the run ended: {seen[mode]}"
    assert playing["shown"]
    assert playing["panels"] == 1
    assert (playing["width"], playing["height"]) == (320, 320)
    assert playing["muted"]
    assert not playing["paused"]
    assert playing["source"] == ("http:" if mode == "stream" else "blob:")
    if mode == "stream":
        assert abs(playing["time"] * 25 - playing["number"]) < 13, "the picture is that of its time"
    else:
        assert playing["number"] == 5, "sought to 5.5 frames, the player shows frame 5"
    assert "fps" in playing["text"]
    assert "first frame" in playing["text"]
    assert "libx264" in playing["text"]
    assert (SHOTS / f"{mode}.png").stat().st_size > 10_000


def test_a_finished_run_leaves_one_player_and_the_figures(seen):
    run = seen["nodes2"]
    assert run["status"] == "success"
    after = run["after"]
    assert (after["panels"], after["players"], after["films"]) == (1, 0, 1)
    assert "of 15" in after["text"][0], "150 frames and the few that make each prompt another one"
    assert after["saved"] == ["tests/preview", "libx264", "balanced", "off"], "the panel is not saved"


def test_a_workflow_opened_again_during_the_run_goes_on_playing(seen):
    run = seen["classic"]
    assert run["reopened"], "the new node found its run"
    assert run["reopened"]["panels"] == 1
    assert run["oldPlayers"] == 0, "the old node's player is gone"
    assert run["status"] == "interrupted"
    assert run["after"]["players"] == 0
    assert "stopped" in run["after"]["text"][0]


def test_a_node_deleted_during_the_run_takes_its_player_along(seen):
    run = seen["stream"]
    for left in (run["removed"], run["after"]):
        assert (left["panels"], left["players"], left["films"]) == (0, 0, 0)
    assert run["status"] == "interrupted"


def test_the_page_has_nothing_to_complain_of(seen):
    assert seen["page_errors"] == []
    assert seen["console_errors"] == []
    assert seen["failed_requests"] == []


def test_the_feeder_alone():
    """Segments in order, room made when the browser's buffer is full, a late start, an end, with a fake MediaSource."""
    if not shutil.which("node"):
        unavailable("node is not installed")
    done = subprocess.run(
        ["node", "--test", str(HERE / "feeder.test.mjs")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 6" in done.stdout
