"""The live bench: it measures what it says, leaves nothing behind, and prints as it goes."""

import json
import threading

import numpy as np
import pytest
import torch

from talkinghead.cli import main
from talkinghead.nodes.core.bench import speech_like
from talkinghead.nodes.core.bench_live import LiveOptions, live_table
from talkinghead.nodes.musetalk import bench_engines, bench_live, live_speech
from talkinghead.nodes.musetalk.bench_live import run_live

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch, tiny_model):
    monkeypatch.setattr(live_speech, "WINDOW_ROWS", 60)
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def quick(**changes):
    return LiveOptions(
        CPU,
        **{"frame": (128, 160), "chunks_ms": (320,), "repeats": 2, "seconds": 2, "memory_seconds": 3}
        | changes,
    )


def test_rows_memory_and_lines_of_a_run(tmp_path):
    lines = []
    facts = run_live(quick(batches=(4,), chunks_ms=(80, 640)), lines.append)
    assert json.loads(json.dumps(facts)) == facts
    assert [(r["batch"], r["chunk_ms"], r["needed_ms"], r["pushed_ms"]) for r in facts["rows"]] == [
        (4, 80, 320, 320),
        (4, 640, 320, 640),
    ]
    for row in facts["rows"]:
        assert 0 < row["ttff_least_ms"] <= row["ttff_ms"] <= row["ttff_most_ms"]
        assert row["steady_fps"] > 0
    assert facts["engines"]["musetalk engine"] == "eager, batch 4, on cpu"
    assert "on the CPU" in facts["engines"]["composite"]
    assert facts["memory"][-1]["frames"] > 60
    assert all(s["process_mb"] is None or s["process_mb"] > 10 for s in facts["memory"])
    assert len(live_table(facts["rows"]).splitlines()) == 3
    assert "cold" in lines[1]
    assert "TTFF" in lines[2]
    assert facts["warnings"] == []


def test_the_full_size_is_random_weights_of_the_official_shape(monkeypatch, tiny_model):
    tiny = tiny_model.config
    for module in (bench_live, bench_engines):
        monkeypatch.setattr(module, "OFFICIAL", tiny)
    facts = run_live(quick(size="full", seconds=2, memory_seconds=2, repeats=1, rest=True))
    assert (facts["size"], facts["rest"]) == ("full", True)
    assert {"musetalk unet engine", "musetalk decoder engine"} <= set(facts["engines"])
    assert facts["rows"][0]["steady_fps"] > 0


def test_the_sound_is_the_same_however_it_is_cut():
    whole = speech_like(0, 4000)
    assert np.array_equal(np.concatenate([speech_like(0, 1000), speech_like(1000, 3000)]), whole)
    assert 0.1 < np.abs(whole).max() <= 1


def test_what_cannot_be_measured_is_refused():
    for changes, said in (
        ({"repeats": 0}, "repeats"),
        ({"chunks_ms": (5,)}, "between 20 and 2000"),
        ({"frame": (129, 160)}, "129x160"),
    ):
        with pytest.raises(ValueError, match=said):
            quick(**changes)


def test_the_command_prints_a_table_and_writes_json(monkeypatch, capsys, tmp_path):
    seen = []

    def fake(options, tell):
        seen.append(options)
        tell("as it goes")
        return facts

    facts = run_live(quick(seconds=2, repeats=1))
    monkeypatch.setattr(bench_live, "run_live", fake)
    out = tmp_path / "deep" / "live.json"
    argv = [
        "bench",
        "--live",
        "--device",
        "cpu",
        "--quick",
        "--frame",
        "256x128",
        "--batches",
        "4,2",
        "--rest",
        "--json",
        str(out),
    ]
    assert main(argv) == 0
    [options] = seen
    assert (options.frame, options.batches, options.size, options.precision) == (
        (256, 128),
        (4, 2),
        "embedded",
        "fp32",
    )
    assert options.rest
    shown = capsys.readouterr()
    assert "as it goes" in shown.err
    assert "TTFF ms" in shown.out
    assert "cold, from the call" in shown.out
    assert json.loads(out.read_text("utf-8")) == facts
