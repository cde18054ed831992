"""Ditto through the engine cache's doors: built, measured against fp32, exported, by the command too."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from ditto_model_parts import tiny_modules
from support import unavailable

from talkinghead.cli import main
from talkinghead.nodes.avatars.engines import build_engine, export_model, face_stage
from talkinghead.nodes.core.engine_build import measure_parity
from talkinghead.nodes.core.export import open_onnx
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.ditto import export as export_module
from talkinghead.nodes.ditto import handle as handle_module
from talkinghead.nodes.ditto.handle import DittoModel
from talkinghead.nodes.ditto.model import save_modules
from talkinghead.nodes.ditto.stages import GRAPHS, ditto_stage


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ditto")
    save_modules(tiny_modules(), folder, torch.float32)
    return folder


@pytest.fixture
def model(weights, monkeypatch):
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", weights)
    return DittoModel()


def test_parity_tells_halves_from_the_exact_ones(model):
    ctx, half = RunContext(), replace(model, precision="fp16")
    assert face_stage(model) is ditto_stage
    exact = measure_parity(ctx, model, ditto_stage, ctx.engine(model, ditto_stage, 1))
    assert exact == {"cosine": 1.0, "psnr_db": 999.0, "rows": 1}
    figures = measure_parity(ctx, half, ditto_stage, ctx.engine(half, ditto_stage, 4))
    assert figures["rows"] == 4
    assert 40 < figures["psnr_db"] < 999


def test_building_reports_what_runs_and_refuses_what_cannot(model):
    steps = []
    facts = build_engine(RunContext(), model, 2, lambda done, total: steps.append((done, total)))
    assert (facts["backend"], facts["batch"]) == ("eager", 2)
    assert "name" not in facts
    assert steps == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(ValueError, match="cuda graph cannot be built here: needs a CUDA device"):
        build_engine(RunContext(), replace(model, backend="cuda graph"), 2)


def test_the_commands_take_ditto(model, tmp_path, capsys):
    base = ["--engine", "ditto", "--json", "--models", str(tmp_path)]
    assert main(["engine", "build", *base, "--batch", "2", "--device", "cpu"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert built["backend"] == "eager"
    assert built["parity"]["psnr_db"] > 60
    assert built["report"]["ditto engine"] == "eager, batch 2, on cpu"
    assert main(["export", *base, "--graphs", "unet"]) == 2
    assert "graph 'unet' is unknown; there are ditto_motion, ditto_decode" in capsys.readouterr().err


def test_both_graphs_are_written_by_default(model, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        export_module, "export_graphs", lambda *args, **how: seen.update(names=args[3], **how) or []
    )
    assert export_model(model, tmp_path, check=False) == []
    assert seen == {"names": GRAPHS, "check": False}


def test_a_graph_is_written_and_checked(model, tmp_path):
    for package in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            unavailable(f"{package} is not installed: pip install '.[dev]'")
    [graph] = export_model(model, tmp_path, ["ditto_decode"])
    assert graph.path.name == "embedded-ditto_decode-fp32-b1-32.onnx"
    facts = open_onnx(graph.path).facts
    assert facts["parity"]["accepted"]
    assert facts["parity"]["batches"] == [1, 8]
    assert facts["model"]["files"]["model.safetensors"] == model.identity
