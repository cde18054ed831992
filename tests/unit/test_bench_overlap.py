"""The overlap bench: its order of visits and its arithmetic by known numbers, and one real run."""

import argparse
import json

import pytest
import torch

from talkinghead import cli
from talkinghead.cli import bench as cli_bench
from talkinghead.nodes.musetalk import bench_overlap
from talkinghead.nodes.musetalk.bench_overlap import (
    OverlapOptions,
    _row,
    overlap_table,
    run_overlap,
)

CPU = torch.device("cpu")


class KnownFilm:
    """Visits with figures that are given; the warm-up visits are far off."""

    def __init__(self, sequential, overlapped):
        self.left = {False: [1.0, *sequential, 1.0], True: [1.0, *overlapped]}
        self.order = []

    def visit(self, overlap, report=None):
        self.order.append(overlap)
        seconds = {
            "neural": 6.0,
            "speech features": 1.0,
            "composite": 1.0,
            "convert": 0.5,
            "encode": 1.0,
            "sound": 0.5,
        }
        return self.left[overlap].pop(0), 1.5 if overlap else 1.2, seconds | {"wait for frames": 99.0}


def test_visits_alternate_and_medians_are_compared():
    film = KnownFilm([10.0, 12.0, 11.0], [20.0, 13.2, 13.0])
    row = _row(film, 3)
    assert film.order == [False, True] * 4 + [False]
    assert row.fps == {"sequential": [10.0, 12.0, 11.0], "overlapped": [20.0, 13.2, 13.0]}
    assert row.ratio == pytest.approx(13.2 / 11.0)
    assert row.busy == {"features": 1.0, "network": 6.0, "composite": 1.0, "encoder": 2.0}
    assert row.cpu == row.busy
    assert row.bound == pytest.approx(10 / 6, abs=1e-3)
    assert row.cores == {"sequential": 1.2, "overlapped": 1.5}


def test_a_real_run_gives_every_figure(tiny_model, tmp_path, monkeypatch):
    before = torch.get_num_threads()
    options = OverlapOptions(CPU, batch=4, threads=(1,), seconds=1, visits=1, frame=(96, 96))
    told = []
    facts = run_overlap(options, told.append)
    assert torch.get_num_threads() == before
    assert facts["frames"] == 25
    assert facts["engine"] == "eager, batch 4, on cpu"
    [row] = facts["rows"]
    assert row == told[0].as_dict()
    assert row["threads"] == 1
    assert min(row["busy"].values()) > 0
    assert min(row["cpu"].values()) > 0
    assert min(row["fps"]["sequential"] + row["fps"]["overlapped"]) > 0
    text = overlap_table(json.loads(json.dumps(facts)))
    assert f"overlapped / sequential {row['ratio']:.2f}" in text
    assert "25 frames of 96x96, batch 4" in text


def test_the_command_prints_and_keeps_them(monkeypatch, tmp_path, capsys):
    row = bench_overlap.OverlapRow(
        1,
        {"sequential": [10.0], "overlapped": [12.0]},
        1.2,
        {"features": 1.0, "network": 3.0},
        {"features": 1.0, "network": 9.0},
        {"sequential": 1.0, "overlapped": 1.3},
        1.333,
    )
    facts = {
        "machine": {"cpu": "some"}, "frame": [512, 512], "frames": 100, "batch": 8, "engine": "eager",
        "encoder": "x", "rows": [row.as_dict()],
    }  # fmt: skip
    seen = []
    monkeypatch.setattr(bench_overlap, "run_overlap", lambda options, tell: (seen.append(options), facts)[1])
    assert (
        cli.main(["bench", "--overlap", "--quick", "--device", "cpu", "--json", str(tmp_path / "o.json")])
        == 0
    )
    out = capsys.readouterr().out
    assert "torch threads 1: overlapped / sequential 1.20" in out
    assert "processor time: features 1.00 s (10%), network 9.00 s (90%)" in out
    assert "network 3.00 s (75%); sum / busiest 1.33" in out
    assert json.loads((tmp_path / "o.json").read_text()) == facts
    assert seen[0].threads == (0, 1)
    assert seen[0].frame == (512, 512)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="0 visits"):
        OverlapOptions(CPU, visits=0)
    args = argparse.Namespace(size="full", overlap=True)
    with pytest.raises(ValueError, match="embedded engine"):
        cli_bench._bench_overlap(args, CPU)
