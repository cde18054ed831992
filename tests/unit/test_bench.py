"""The bench: its arithmetic by known numbers, and one run of everything on this machine."""

import json
import subprocess
import time
from dataclasses import replace

import pytest
import torch

from talkinghead import cli
from talkinghead.nodes.core import bench
from talkinghead.nodes.core.bench import (
    Row,
    advise,
    commit_of_pack,
    copy_gbps,
    likeness,
    machine_facts,
    median_ms,
    table,
)
from talkinghead.nodes.musetalk import bench as musetalk_bench
from talkinghead.nodes.musetalk.bench import BenchOptions, run_bench, settable
from talkinghead.nodes.musetalk.bench_baseline import baseline_loops
from talkinghead.nodes.musetalk.bench_engines import EngineBench

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


def test_the_stride_is_the_smallest_with_a_quarter_to_spare():
    def stride(fps):
        return advise([row("whole", "a", 8, fps)], [row("net", "a", 8, fps)]).stride

    # All of the time is the network's: fps times stride, and 25 * 1.25 = 31.25 are wanted.
    assert [stride(fps) for fps in (31.25, 31.2, 15.6, 10.4, 5.0)] == [1, 2, 3, 3, 3]


def test_a_stamp_goes_before_git_and_another_repository_is_not_ours(monkeypatch, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    answer = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    )
    commit = answer.stdout.strip()
    monkeypatch.delenv("TALKINGHEAD_COMMIT", raising=False)
    monkeypatch.setattr(bench.importlib.metadata, "distribution", no_package)
    assert commit_of_pack(tmp_path) == commit
    (tmp_path / "custom_nodes").mkdir()
    assert commit_of_pack(tmp_path / "custom_nodes") == "unknown (no git)"
    monkeypatch.setattr(bench.importlib.metadata, "distribution", lambda name: Installed())
    assert commit_of_pack(tmp_path / "custom_nodes") == "0123456789ab"
    (tmp_path / "file").write_text("x")
    subprocess.run([*git, "add", "file"], check=True)
    assert commit_of_pack(tmp_path) == f"{commit}+changes"
    monkeypatch.setenv("TALKINGHEAD_COMMIT", "abc123")
    assert commit_of_pack(tmp_path) == machine_facts(CPU)["commit"] == "abc123"


def no_package(name):
    raise bench.importlib.metadata.PackageNotFoundError(name)


class Installed:
    """A package that pip installed from git."""

    def read_text(self, name):
        assert name == "direct_url.json"
        return '{"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}}'


class Decoder(torch.nn.Module):
    """Gives known raw images, and counts."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.calls = 0

    def forward(self, latents, tokens):
        self.calls += 1
        # -1.2 .. 1.2 beyond the range, another colour each channel
        ramp = torch.linspace(-1.2, 1.2, 48).reshape(1, 3, 4, 4)
        return ramp.expand(len(latents), -1, -1, -1).to(latents.dtype)


def test_the_baseline_is_upstreams_arithmetic():
    nets, seen = Decoder(), []
    latents = torch.zeros(2, 8, 4, 4, dtype=torch.float16)
    loops = baseline_loops(nets, latents, latents, seen.append)
    assert list(loops)[0] == "baseline"
    made = loops["baseline"]()
    assert (made.dtype.name, made.shape) == ("uint8", (2, 4, 4, 3))
    ramp = (torch.linspace(-1.2, 1.2, 48).half() / 2 + 0.5).clamp(0, 1).float()
    wanted = (ramp * 255).round().byte().reshape(3, 4, 4).permute(1, 2, 0).flip(2)  # BGR
    assert torch.equal(torch.from_numpy(made[1].copy()), wanted)
    for name in ("baseline, uint8 on the device", "baseline, torch on the host"):
        other = loops[name]()
        assert (other.int() - torch.from_numpy(made[..., ::-1].copy()).int()).abs().max() <= 1
    loops["baseline + CPU blend"]()
    assert len(seen) == 2
    assert nets.calls == 4


def test_settings_are_those_that_a_user_can_choose():
    rows = [row("whole", name, 8, 10.0) for name in ("eager", "cuda graph", "fused", "fused graph")]
    assert [r.backend for r in settable(rows)] == ["eager", "cuda graph"]
    assert settable(rows)[1] == replace(rows[3], backend="cuda graph")
    absent = [*rows[:2], replace(rows[3], fps=0.0, skipped="old card")]
    assert [r.fps for r in settable(absent) if r.backend == "cuda graph"] == [10.0, 0.0]


def test_an_engine_opens_in_a_new_process():
    with EngineBench(CPU, "embedded") as engines:
        found = engines._in_new_process(Row("", "eager", "fp32", 1))
        refused = engines._in_new_process(Row("", "cuda graph", "fp32", 1))
        folder = engines.cache
        assert folder.is_dir()
    assert 0 < found.seconds < 30
    assert found.held_mb is None
    assert "needs a CUDA device" in refused.skipped
    assert not folder.exists()


def test_no_advice_without_a_measurement():
    with pytest.raises(ValueError, match="nothing to recommend"):
        advise([Row("whole", "a", "fp16", 8, skipped="no card")], [])


def test_the_table_shows_numbers_and_reasons():
    text = table(
        [
            Row("net", "eager", "fp32", 8, fps=12.5, share=0.25, ratio=2.0, ratio_eager=1.5, memory_mb=7),
            Row("net", "cuda graph", "fp32", 8, skipped="no card"),
            Row("open", "cuda graph", "fp32", 8, seconds=1.234, held_mb=(10, 30, 11)),
        ]
    ).splitlines()
    heads = "stage backend precision batch fps ms of peak x baseline x eager MB s MB held"
    assert text[0].split() == heads.split()
    assert text[1].split() == ["net", "eager", "fp32", "8", "12.5", "80.000", "25%", "2.00", "1.50", "7"]
    assert text[2].endswith("skipped: no card")
    assert text[3].split() == ["open", "cuda", "graph", "fp32", "8", "1.23", "10", "/", "30", "/", "11"]


def test_machine_facts_name_machine_torch_and_commit():
    facts = machine_facts(CPU)
    assert facts["torch"] == torch.__version__
    assert facts["commit"]
    assert facts["cpu"]
    assert "card" not in facts
    assert copy_gbps(CPU, 8) > 0


@pytest.mark.parametrize(
    ("change", "named"),
    [({"size": "huge"}, "huge"), ({"precisions": ("fp4",)}, "fp4"), ({"backends": ("x",)}, "'x'")]
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
    base = rows["baseline", "eager", 2]
    device, host = (rows[f"baseline, {n}", "eager", 2] for n in ("uint8 on the device", "torch on the host"))
    for stage in ("UNet", "VAE decode", "UNet + VAE", "composite + NV12", "whole path"):
        for batch in (1, 2):
            assert rows[stage, "eager", batch]["fps"] > 0
    best = max(r["fps"] for r in (base, device, host))
    for made in (rows["UNet + VAE", "eager", 2], rows["whole path", "eager", 1], device):
        assert made["ratio"] == pytest.approx(made["fps"] / base["fps"], rel=1e-3)
        assert made["ratio_eager"] == pytest.approx(made["fps"] / best, rel=1e-3)
    # Before, in the middle, after: the median counts.
    for each in (base, device, host):
        assert len(each["visits"]) == 3
        assert each["fps"] == pytest.approx(sorted(each["visits"])[1])
    assert rows["open cached engine", "eager", 1]["seconds"] > 0
    assert "CUDA" in rows["open cached engine", "cuda graph", 1]["skipped"]
    assert "CUDA" in rows["UNet + VAE", "cuda graph", 2]["skipped"]
    assert "NVIDIA" in rows["UNet + VAE", "fused graph", 2]["skipped"]
    assert facts["parity"]["eager fp32"]["psnr_db"] > 90
    assert facts["gflop"]["UNet + VAE"] == pytest.approx(
        facts["gflop"]["UNet"] + facts["gflop"]["VAE decode"], abs=0.02
    )
    shown = capsys.readouterr().out
    mastering = facts["mastering"]
    assert mastering["factor"] == pytest.approx(60e3 / mastering["ms"], rel=0.05)
    assert mastering["factor"] > 20  # 40 are promised, on cores that nobody else uses
    assert f"mastering: 60 s of speech in {mastering['ms']:.0f} ms" in shown
    nv12 = facts["nv12"]
    assert nv12["size"].startswith("256x256, face 94 px")
    assert nv12["ratio"] == pytest.approx(nv12["convert_ms"] / nv12["splice_ms"], rel=0.05)
    assert f"area spliced {nv12['splice_ms']:.2f} ms, {nv12['ratio']:.1f}x" in shown
    assert "recommended: backend eager" in shown
    assert "stride 3" in shown
    assert "recommended stride: " in shown


def test_the_command_refuses_bad_lists(capsys):
    assert cli.main(["bench", "--device", "cpu", "--batches", "8,many"]) == 2
    assert "8,many" in capsys.readouterr().err
    assert run_bench.__doc__
