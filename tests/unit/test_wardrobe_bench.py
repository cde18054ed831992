"""The wardrobe's bench: what it draws, that it sees working memory, and its limits on a small clip."""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import pytest
import torch

from talkinghead import cli
from talkinghead.cli import bench_wardrobe as cli_bench
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.wardrobe import bench
from talkinghead.nodes.wardrobe.composite import blockiness

SMALL, CROP = (240, 320), (192, 256)


def test_the_drawn_clip_is_a_clip():
    stream = bench.DrawnFrames(11, SMALL)
    one, two = (torch.cat([c.frames for c in stream.chunks(RunContext(), n)]) for n in (4, 11))
    assert torch.equal(one, two)
    assert one.shape == (11, 320, 240, 3)
    assert not torch.equal(one[0], one[1])
    garment, hands = bench.drawn_masks(3)
    assert garment.shape == hands.shape == (3, 960, 736)
    assert 0.1 < float((garment * hands).sum() / garment.sum()) < 0.3
    row = (hands[0, 960 * 3 // 5 - 100] > 0).numpy()
    ends = np.flatnonzero(np.diff(row.astype(int)))
    assert set(np.diff(ends)[1:8:2]) == {4}  # between the fingers of a hand
    assert not blockiness(garment).suspicious


def test_speed_of_every_stage():
    found = bench.run_speed(2, SMALL, CROP)
    assert set(bench.CHAIN) < set(found["ms"])
    assert all(0 < best <= median for best, median in found["ms"].values())
    assert found["chain_ms"] == pytest.approx(sum(found["ms"][name][0] for name in bench.CHAIN), abs=0.02)
    assert found["chain_ratio"] == pytest.approx(found["chain_ms"] / found["lerp_ms"], rel=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process can be reset on Linux only")
def test_working_memory_is_seen(monkeypatch):
    def wasteful(*given):
        held = np.ones(96 << 20, np.uint8)
        return (pixel_mask(*given), held[:0])[0]

    pixel_mask = bench.pixel_mask
    monkeypatch.setattr(bench, "pixel_mask", wasteful)
    found = bench.run_memory(9, SMALL, CROP)
    own = {s.stage: s.own_mb for s in found["stages"]}
    assert own.pop("pixel mask") >= 90
    assert max(own.values()) < 60
    assert found["own_mb"] >= 90
    made = {s.stage: s.made_mb for s in found["stages"]}
    frames = 4 * 9 * CROP[0] * CROP[1]  # the aligned box is no smaller
    assert made["pixel mask"] >= (frames >> 20) - 1
    assert made["tracked masks (inputs)"] in (2 * made["pixel mask"], 2 * made["pixel mask"] + 1)


def test_the_command_says_every_figure(monkeypatch, capsys, tmp_path):
    memory = {"stages": [bench.StageMemory("subject crop", 7, 3)], "own_mb": 3, "peak_mb": 11}
    asked = []
    monkeypatch.setattr(bench, "run_memory", lambda n: asked.append(n) or memory)
    speed = {"ms": {"composite": (2.5, 3.0)}, "lerp_ms": 0.5, "chain_ms": 20.0, "chain_ratio": 40.0}
    monkeypatch.setattr(bench, "run_speed", lambda rounds: speed)
    path = tmp_path / "a.json"
    assert cli.main(["bench", "--wardrobe", "--quick", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert asked == [24]
    assert "20.0 ms (limit 80), 40.0 times a plain lerp of the crop (0.5 ms)" in said
    assert "own memory at most 3 MB (limit 1500); with all outputs 11 MB" in said
    kept = json.loads(path.read_text())
    assert kept["memory"]["stages"] == [{"stage": "subject crop", "made_mb": 7, "own_mb": 3}]
    assert kept["speed"]["ms"]["composite"] == [2.5, 3.0]

    def nothing(n):
        raise OSError("the kernel does not say VmHWM")

    monkeypatch.setattr(bench, "run_memory", nothing)
    facts = cli_bench.bench_wardrobe(argparse.Namespace(quick=False))
    assert "memory: not measured, the kernel does not say VmHWM" in capsys.readouterr().out
    assert "memory" not in facts
