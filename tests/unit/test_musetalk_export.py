"""MuseTalk's networks as ONNX, toy size: each graph against torch, what joins them, and the command."""

import copy
import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from support import unavailable

from talkinghead.cli import main
from talkinghead.nodes.core import export_check
from talkinghead.nodes.core.export import BatchRange, export_form, export_onnx, open_onnx, outputs_by_name
from talkinghead.nodes.core.export_check import check_export
from talkinghead.nodes.core.export_model import graph_file, model_facts
from talkinghead.nodes.musetalk.engine import musetalk_stage
from talkinghead.nodes.musetalk.export import (
    DEFAULT_GRAPHS,
    GRAPHS,
    export_model,
    exportable,
    graph_spec,
    step_form,
)
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.model import MuseTalkNets, load_config, to_rgb_uint8


@pytest.fixture(scope="module", autouse=True)
def _exporter():
    for package in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            unavailable(f"{package} is not installed: pip install '.[dev]'")


@pytest.fixture(scope="module")
def full(tiny_weights):
    """MuseTalk's networks, toy size, random weights, fp32."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MuseTalkNets(load_config(tiny_weights)).eval()


@pytest.fixture(scope="module")
def nets(full):
    """The same in fp16, as on a GPU."""
    return copy.deepcopy(full).half()


@pytest.fixture(scope="module", params=["unet", "vae_decoder", "vae_encoder", "whisper"])
def exported(request, nets, tmp_path_factory):
    stage = exportable(nets, request.param)
    # The UNet's axis is a range: it is the one with the most to freeze. The others: one kind each is enough.
    batch = {"unet": BatchRange(1, 32), "vae_decoder": BatchRange(1, 8)}.get(request.param, BatchRange(2, 2))
    path = tmp_path_factory.mktemp("nets") / f"{request.param}.onnx"
    return stage, export_onnx(stage.module, stage.spec, path, batch)


def test_networks_equal_torch_with_eight_inputs(exported, nets):
    stage, graph = exported
    assert all(t["dtype"] == "float16" for t in graph.facts["inputs"] + graph.facts["outputs"])
    parity = check_export(graph, stage.module, stage.spec)
    assert parity.accepted, str(parity)
    assert parity.rows == 8
    assert stage.module.half() is stage.module  # still what it was
    if graph.name == "vae_decoder":
        # engines know Resize and convolution best; the transposed convolution is a CPU's
        assert graph.facts["operators"]["Resize"] == len(nets.config.vae.block_out_channels) - 1
        assert "ConvTranspose" not in graph.facts["operators"]


@pytest.mark.parametrize("name", GRAPHS)
def test_specs_are_what_the_networks_take_and_give(full, name):
    stage = exportable(full, name)
    given = stage.spec.sample(2, "cpu")
    assert {t.dtype for t in (*stage.spec.inputs, *stage.spec.outputs)} == {torch.float32}
    with torch.inference_mode():
        result = outputs_by_name(stage.spec, stage.module(*given.values()))
    assert {k: tuple(v.shape) for k, v in result.items()} == {
        t.name: (2, *t.shape) for t in stage.spec.outputs
    }
    assert graph_spec(full.config, name, torch.float16).inputs[0].dtype == torch.float16


def test_graphs_join_to_what_the_pipeline_does(full):
    with torch.inference_mode():
        given = exportable(full, "musetalk").spec.sample(3, "cpu")
        wanted = full(**given)
        generated = exportable(full, "unet").module(**given)
        joined = exportable(full, "vae_decoder").module(generated)
        torch.testing.assert_close(joined, wanted, rtol=0, atol=0)
        torch.testing.assert_close(exportable(full, "musetalk").module(**given), wanted, rtol=0, atol=0)
        size = full.config.crop_size
        rgb = torch.randint(0, 256, (2, size, size, 3), dtype=torch.uint8)
        masked, whole = full.network_inputs(rgb)
        encode = exportable(full, "vae_encoder").module
        encoded = torch.cat([encode(masked), encode(whole)], 1)
        torch.testing.assert_close(encoded, full.encode_crops(rgb), rtol=0, atol=1e-6)
        mel = exportable(full, "whisper").spec.sample(1, "cpu")["mel"]
        torch.testing.assert_close(
            exportable(full, "whisper").module(mel), full.encode_audio(mel), rtol=0, atol=0
        )


def test_the_step_form_finishes_like_the_stage(full):
    form = step_form(full)
    images = torch.tensor([[-1.0, 0.0, 2.0], [0.5, torch.nan, torch.inf]]).view(2, 3, 1, 1)
    done = form.finish({"images": images})
    assert done["finite"].tolist() == [True, False]
    assert torch.equal(done["crops"][0], to_rgb_uint8(images[:1])[0])
    assert done["crops"].dtype == torch.uint8
    assert [t.name for t in form.spec.outputs] == ["images"]


def test_the_engines_stage_is_exported_in_the_step_form(nets):
    spec, stage = musetalk_stage(nets, torch.device("cpu"))
    form = export_form(spec, stage)
    assert form.spec.name == "musetalk"
    assert form.spec.inputs == spec.inputs
    images = torch.zeros((2, *form.spec.outputs[0].shape), dtype=torch.float16)
    finished = form.finish({"images": images})
    assert {k: (tuple(v.shape), v.dtype) for k, v in finished.items()} == {
        t.name: ((2, *t.shape), t.dtype) for t in spec.outputs
    }


def test_unknown_graphs_are_named(tiny_model, tmp_path, nets):
    with pytest.raises(ValueError, match=r"'clip' is unknown.*vae_encoder"):
        exportable(nets, "clip")
    with pytest.raises(ValueError, match="'clip' is unknown"):
        export_model(tiny_model, tmp_path, ["unet", "clip"])
    assert list(tmp_path.iterdir()) == []


def test_file_names_and_facts_tell_what_is_in_them(tiny_model):
    half = replace(tiny_model, precision="fp16")
    assert graph_file(half, "unet", BatchRange(1, 32)) == "embedded-unet-fp16-b1-32.onnx"
    assert graph_file(tiny_model, "whisper", BatchRange(8, 8)) == "embedded-whisper-fp32-b8.onnx"
    facts = model_facts(MuseTalkModel())
    assert facts["files"]["model.safetensors"] == MuseTalkModel().identity
    assert DEFAULT_GRAPHS == GRAPHS[:4]


def test_the_command_exports_checks_and_prints(tiny_model, tmp_path, capsys):
    arguments = [
        "export",
        "--graphs",
        "whisper",
        "--batch",
        "2",
        "--precision",
        "fp16",
        "--out",
        str(tmp_path),
    ]
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["accepted"] is True
    graph = open_onnx(tmp_path / "embedded-whisper-fp16-b2.onnx", verify=True)
    assert shown["graphs"][0]["parity"] == graph.facts["parity"]
    assert graph.facts["parity"]["batches"] == [2]
    assert graph.facts["model"]["checkpoint"] == "embedded"


def test_a_refused_graph_makes_the_command_fail(tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(export_check.LEAST, "float32", (0.9, 1000.0))
    assert main(["export", "--graphs", "whisper", "--batch", "2", "--out", str(tmp_path)]) == 1
    assert "NOT accepted" in capsys.readouterr().out
    assert open_onnx(tmp_path / "embedded-whisper-fp32-b2.onnx").facts["parity"]["accepted"] is False


def test_what_was_not_compared_is_not_called_accepted(tiny_model, tmp_path, capsys):
    arguments = [
        "export",
        "--graphs",
        "whisper",
        "--batch",
        "1..4",
        "--no-check",
        "--json",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["accepted"] is False
    assert "parity" not in shown["graphs"][0]


def test_the_command_refuses_nonsense(tiny_model, tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert main(["export", "--batch", "1..99", *out]) == 2
    assert "1..99" in capsys.readouterr().err
    assert main(["export", "--graphs", "clip", *out]) == 2
    assert "vae_encoder" in capsys.readouterr().err
    assert main(["export", "--opset", "23", "--graphs", "whisper", *out]) == 2
    assert "opset 23" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
