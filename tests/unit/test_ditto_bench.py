"""Ditto's bench: one run of everything on a small model, and the loop it compares with."""

from __future__ import annotations

import json
import threading

import ditto_speaker
import numpy as np
import pytest
import torch

from talkinghead import cli
from talkinghead.nodes.core.bench_live import LiveOptions
from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.ditto import bench_live, bench_model
from talkinghead.nodes.ditto import handle as handle_module
from talkinghead.nodes.ditto.bench import NETWORK, WHOLE, BenchOptions
from talkinghead.nodes.ditto.bench_baseline import OneFrameLoop, baseline_loops, compiled_blend, numpy_blend
from talkinghead.nodes.ditto.bench_live import DittoLive, run_live
from talkinghead.nodes.ditto.bench_model import MOTION_FRAMES, made_modules, scene_of
from talkinghead.nodes.ditto.model import save_modules
from talkinghead.nodes.ditto.putback import feather_mask, put_back

CPU = torch.device("cpu")
FRAME = (160, 128)


@pytest.fixture(autouse=True)
def _small_model(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("speaker")
    save_modules(ditto_speaker.modules(), folder, torch.float32)
    monkeypatch.setattr(bench_model, "EMBEDDED_DIR", folder)


def test_the_loop_is_the_pipeline_one_frame_at_a_time():
    nets = made_modules("embedded", CPU).nets
    scene = scene_of(nets.config, FRAME)
    with torch.inference_mode():
        face = nets(*(torch.from_numpy(a) for a in (scene.volume, scene.kp_source, scene.kp_driving)))[0]
        got = OneFrameLoop(nets, scene, numpy_blend)()
        alone = OneFrameLoop(nets, scene, None)()
    face = face.permute(1, 2, 0).numpy() * 255
    assert np.allclose(alone, face, atol=1e-3)
    side = nets.config.render_size
    whole = put_back(scene.frame, face, scene.c2o, feather_mask(side, side))
    difference = np.abs(got.astype(int) - rgb_to_nv12(whole[None], "bt601")[0])
    assert difference.max() <= 1
    assert (whole != scene.frame).mean() > 0.05


def test_the_compiled_blend_is_the_same_rule_but_for_its_rounding():
    rng = np.random.default_rng(0)
    mask, frame = rng.random((40, 50), np.float32), rng.integers(0, 256, (40, 50, 3), np.uint8)
    picture = 255 * rng.random((40, 50, 3), np.float32)
    pair = (blend(mask, picture, frame).astype(int) for blend in (numpy_blend, compiled_blend))
    assert np.abs(np.subtract(*pair)).max() <= 1


def test_half_precision_is_measured_beside_upstreams_own_way():
    exact, half = (made_modules("embedded", CPU, dtype) for dtype in (torch.float32, torch.float16))
    scene = scene_of(exact.config.nets, FRAME)
    loops = baseline_loops(half.nets, exact.nets, scene, "fp16")
    assert list(loops) == [
        "baseline",
        "baseline, fp16 weights",
        "baseline, compiled blend",
        "baseline, networks alone",
    ]
    with torch.inference_mode():
        made = [loop().copy().astype(int) for loop in list(loops.values())[:3]]
    assert np.abs(made[0] - made[1]).max() <= 8  # autocast has bfloat16 on a CPU
    assert np.abs(made[1] - made[2]).max() <= 1
    assert list(baseline_loops(exact.nets, None, scene, "fp32")) == [
        "baseline",
        "baseline, compiled blend",
        "baseline, networks alone",
    ]


def test_one_run_measures_everything(tmp_path, capsys):
    file = tmp_path / "bench.json"
    arguments = ["bench", "--engine", "ditto", "--size", "embedded", "--device", "cpu", "--quick"]
    arguments += ["--batches", "2", "--backends", "eager,fast,fast graph", "--frame", "160x128"]
    assert cli.main([*arguments, "--json", str(file)]) == 0
    facts = json.loads(file.read_text())
    rows = {(r["stage"], r["backend"], r["batch"]): r for r in facts["rows"]}
    for backend in ("eager", "fast"):
        for stage in ("warp", "decode", NETWORK, WHOLE):
            assert rows[stage, backend, 2]["fps"] > 0
        assert rows[WHOLE, backend, 2]["ratio"] == pytest.approx(
            rows[WHOLE, backend, 2]["fps"] / rows["baseline", "eager", 1]["fps"], rel=1e-3
        )
    assert len(rows["baseline", "eager", 1]["visits"]) == 2
    assert rows[NETWORK, "fast graph", 2]["skipped"] == "needs a CUDA device, this is cpu"
    assert rows["put back + NV12", "torch", 2]["fps"] > 0
    motion = rows[f"motion, 4 steps, {MOTION_FRAMES} frames", "eager", MOTION_FRAMES]
    assert motion["seconds"] == pytest.approx(MOTION_FRAMES / motion["fps"], abs=1e-3)
    assert set(facts["parity"]) == {"eager fp32", "fast fp32"}
    assert facts["parity"]["fast fp32"]["psnr_db"] > 80
    assert (facts["agreement"]["few"], facts["agreement"]["many"]) == (4, 50)
    out, err = capsys.readouterr()
    assert "4 steps of the motion against 50: cosine" in out
    assert "whole path, fast, fp32, batch 2:" in err


def test_random_weights_of_the_full_size_keep_what_is_exact(monkeypatch):
    small = ditto_speaker.CONFIG
    monkeypatch.setattr(bench_model, "RANDOM", small)
    before = torch.random.get_rng_state()
    half, exact = (made_modules("full", CPU, dtype) for dtype in (torch.float16, torch.float32))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert half.nets.weights_dtype == half.nets.warp.third.norm.running_var.dtype == torch.float16
    assert half.nets.warp.dense_motion_network.grid.dtype == half.lmdm.state_dict()["null_cond_embed"].dtype
    assert torch.equal(exact.nets.decoder.fc.weight.half(), half.nets.decoder.fc.weight)
    assert bench_model.RANDOM.speech_width == ditto_speaker.WIDTH


def test_options_that_cannot_be_are_refused():
    for kwargs, words in (
        ({"size": "tiny"}, "size 'tiny'"),
        ({"precisions": ("fp8",)}, "precision 'fp8' is unknown; use one of fp32, fp16"),
        ({"backends": ("fused",)}, "backend 'fused'"),
        ({"batches": (65,)}, "between 1 and 64"),
        ({"frame": (127, 128)}, "even sides of at least 128"),
    ):
        with pytest.raises(ValueError, match=words):
            BenchOptions(CPU, **kwargs)


def test_live_rows_of_a_small_model(monkeypatch):
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", bench_model.EMBEDDED_DIR)
    before = set(threading.enumerate())
    options = LiveOptions(CPU, frame=(128, 160), chunks_ms=(320,), repeats=1, seconds=2, memory_seconds=2)
    lines = []
    facts = run_live(options, lines.append)
    assert json.loads(json.dumps(facts)) == facts
    assert [(r["batch"], r["needed_ms"], r["pushed_ms"]) for r in facts["rows"]] == [(8, 885.0, 960)]
    assert [DittoLive().sound_needed(None, batch) for batch in (1, 10, 11)] == [14160, 14160, 20560]
    for row in facts["rows"]:
        assert 0 < row["ttff_least_ms"] <= row["ttff_ms"] <= row["ttff_most_ms"]
        assert row["steady_fps"] > 0
    assert set(facts["engines"]) == {
        *("ditto engine", "ditto condition engine", "ditto motion step engine"),
        *("put back", "motion"),
    }
    assert facts["warnings"] == []
    assert set(threading.enumerate()) <= before


def test_the_live_bench_of_the_full_size_takes_random_weights(monkeypatch):
    monkeypatch.setattr(bench_live, "RANDOM", ditto_speaker.CONFIG)
    monkeypatch.setattr(bench_model, "RANDOM", ditto_speaker.CONFIG)
    options = LiveOptions(
        CPU,
        size="full",
        frame=(128, 160),
        chunks_ms=(640,),
        repeats=1,
        seconds=2,
        memory_seconds=2,
        rest=True,
    )
    facts = run_live(options)
    assert (facts["size"], facts["rest"]) == ("full", True)
    assert facts["rows"][0]["steady_fps"] > 0
