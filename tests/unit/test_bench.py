"""The bench: its arithmetic by known numbers, and one run of everything on this machine."""

import json
import time

import pytest
import torch

from talkinghead import cli
from talkinghead.nodes.core.bench import Row, advise, copy_gbps, likeness, machine_facts, median_ms, table
from talkinghead.nodes.musetalk import bench as musetalk_bench
from talkinghead.nodes.musetalk.bench import BenchOptions, run_bench

CPU = torch.device("cpu")


def test_the_median_ignores_one_slow_call():
    pauses = iter([0.0, 0.0, 0.2, 0.0, 0.0, 0.0])
    assert median_ms(lambda: time.sleep(next(pauses)), CPU, seconds=0, least=5) < 100


def test_a_longer_call_is_called_less_often():
    calls = []
    median_ms(lambda: (calls.append(1), time.sleep(0.02)), CPU, seconds=0.1, least=1, most=50)
    assert 2 <= len(calls) <= 7
    calls.clear()
    median_ms(lambda: calls.append(1), CPU, seconds=10, least=1, most=7)
    assert len(calls) == 8  # and the warm-up


def test_likeness_of_known_pairs():
    a = torch.tensor([1.0, 0.0, -1.0])
    assert likeness(a, a, 2.0) == (pytest.approx(1.0), float("inf"))
    cosine, psnr = likeness(a, a + 0.02, 2.0)
    assert psnr == pytest.approx(40.0, abs=0.01)
    assert cosine < 1
    assert not likeness(a, a * float("nan"), 2.0)[1] > 0


def row(stage, backend, batch, fps):
    return Row(stage, backend, "fp16", batch, fps=fps)


def test_advice_takes_the_smallest_batch_near_the_best():
    whole = [row("whole", "a", 8, 97.5), row("whole", "a", 16, 100.0), row("whole", "b", 4, 50.0)]
    network = [row("net", "a", 8, 121.875), row("net", "a", 16, 130.0)]
    advice = advise(whole, network)
    assert (advice.backend, advice.batch) == ("a", 8)
    # A frame takes 10.256 ms, 8.205 of them in the network.
    assert advice.fps[1] == pytest.approx(97.5)
    assert advice.fps[2] == pytest.approx(1000 / (8.2051 / 2 + 2.0513), rel=1e-3)
    assert advice.fps[3] == pytest.approx(1000 / (8.2051 / 3 + 2.0513), rel=1e-3)


def test_no_advice_without_a_measurement():
    with pytest.raises(ValueError, match="nothing to recommend"):
        advise([Row("whole", "a", "fp16", 8, skipped="no card")], [])


def test_the_table_shows_numbers_and_reasons():
    text = table(
        [
            Row("net", "eager", "fp32", 8, fps=12.5, share=0.25, ratio=2.0, memory_mb=7),
            Row("net", "cuda graph", "fp32", 8, skipped="no card"),
        ]
    ).splitlines()
    assert text[0].split() == [
        "stage",
        "backend",
        "precision",
        "batch",
        "fps",
        "ms",
        "of",
        "peak",
        "x",
        "baseline",
        "MB",
    ]
    assert text[1].split() == ["net", "eager", "fp32", "8", "12.5", "80.000", "25%", "2.00", "7"]
    assert text[2].endswith("skipped: no card")


def test_machine_facts_name_machine_torch_and_commit():
    facts = machine_facts(CPU)
    assert facts["torch"] == torch.__version__
    assert facts["commit"]
    assert facts["cpu"]
    assert "card" not in facts
    assert copy_gbps(CPU, 8) > 0


@pytest.mark.parametrize(
    ("change", "named"),
    [({"size": "huge"}, "huge"), ({"precisions": ("fp8",)}, "fp8"), ({"backends": ("x",)}, "'x'")]
    + [({"batches": (0,)}, "1 and 64"), ({"batches": ()}, "1 and 64"), ({"frame": (255, 256)}, "255x256")],
)
def test_bad_options_are_named(change, named):
    with pytest.raises(ValueError, match=named):
        BenchOptions(CPU, **change)


def test_one_run_of_everything(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(musetalk_bench, "BASELINE_BATCH", 2)
    monkeypatch.setattr(musetalk_bench, "BenchOptions", lambda *a, **k: BenchOptions(*a, **{**k, "least": 1}))
    out = tmp_path / "new" / "bench.json"
    command = ["bench", "--device", "cpu", "--batches", "1,2", "--frame", "256x256", "--quick", "--calibrate"]
    assert cli.main([*command, "--json", str(out)]) == 0
    facts = json.loads(out.read_text(encoding="utf-8"))
    rows = {(r["stage"], r["backend"], r["batch"]): r for r in facts["rows"]}
    base = rows["baseline", "upstream loop", 2]
    again = rows["baseline, again", "upstream loop", 2]
    for stage in ("UNet", "VAE decode", "UNet + VAE", "composite + NV12", "whole path"):
        for batch in (1, 2):
            assert rows[stage, "eager", batch]["fps"] > 0
    assert rows["UNet + VAE", "eager", 2]["ratio"] == pytest.approx(
        rows["UNet + VAE", "eager", 2]["fps"] / max(base["fps"], again["fps"]), rel=1e-3
    )
    assert "CUDA" in rows["UNet + VAE", "cuda graph", 2]["skipped"]
    assert "NVIDIA" in rows["UNet + VAE", "fused graph", 2]["skipped"]
    assert facts["parity"]["eager fp32"]["psnr_db"] > 90
    assert facts["gflop"]["UNet + VAE"] == pytest.approx(
        facts["gflop"]["UNet"] + facts["gflop"]["VAE decode"], abs=0.02
    )
    shown = capsys.readouterr().out
    assert "recommended: backend eager" in shown
    assert "stride 3" in shown


def test_the_command_refuses_bad_lists(capsys):
    assert cli.main(["bench", "--device", "cpu", "--batches", "8,many"]) == 2
    assert "8,many" in capsys.readouterr().err
    assert run_bench.__doc__
