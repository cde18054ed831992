"""Ditto's stages: parts make the whole, engines keep its numbers, graphs hold at batch 1 and 8 with eight inputs."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from ditto_model_parts import tiny_modules
from ditto_parts import TINY, inputs, tiny_nets
from support import unavailable

from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_spec import EngineSkipped
from talkinghead.nodes.core.export import BatchRange, export_form, export_onnx, outputs_by_name
from talkinghead.nodes.core.export_check import check_export
from talkinghead.nodes.ditto.stages import (
    GRAPHS,
    as_crops,
    ditto_spec,
    ditto_stage,
    exportable,
    render_by_parts,
)

NAMES = ("volume", "kp_source", "kp_driving")


@pytest.fixture(scope="module")
def modules():
    return tiny_modules()


@pytest.fixture(scope="module")
def nets(modules):
    return modules.nets


@pytest.fixture(scope="module")
def eight():
    given = inputs(TINY, 8)
    return {name: given[name] for name in NAMES}


def test_parts_make_the_whole(modules, nets, eight):
    _, stage = ditto_stage(modules, torch.device("cpu"))
    motion, decode = (exportable(nets, name).module for name in GRAPHS)
    with torch.inference_mode():
        whole = stage(**eight)
        parts = render_by_parts(nets, motion, decode, **eight)
        faces = nets(*eight.values())
    assert torch.equal(whole["crops"], parts["crops"])
    assert whole["finite"].all()
    side = TINY.render_size
    assert (whole["crops"].shape, whole["crops"].dtype) == ((8, side, side, 3), torch.uint8)
    assert (whole["crops"].permute(0, 3, 1, 2) - 255 * faces).abs().max() <= 0.5
    assert len({crop.numpy().tobytes() for crop in whole["crops"]}) == 8


def test_an_engine_pads_its_last_batch_and_keeps_the_numbers(modules, eight):
    spec, stage = ditto_stage(modules, torch.device("cpu"))
    engine = open_engine(spec, stage, EngineOptions("eager", batch=4), "cpu")
    with torch.inference_mode():
        expected = torch.cat([stage(**{n: v[i : i + 4] for n, v in eight.items()})["crops"] for i in (0, 4)])
        for n in (1, 3, 8):
            got = engine(**{name: value[:n] for name, value in eight.items()})
            assert torch.equal(got["crops"], expected[:n])
    engine.close()


@pytest.mark.parametrize("name", GRAPHS)
def test_specs_are_what_the_graphs_take_and_give(nets, name):
    form = exportable(nets, name)
    with torch.inference_mode():
        result = outputs_by_name(form.spec, form.module(*form.spec.sample(2, "cpu").values()))
    assert {k: (tuple(v.shape), v.dtype) for k, v in result.items()} == {
        t.name: ((2, *t.shape), t.dtype) for t in form.spec.outputs
    }


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_equal_torch_with_eight_inputs(name, eight, tmp_path):
    for package in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            unavailable(f"{package} is not installed: pip install '.[dev]'")
    nets = tiny_nets(torch.float16)
    form = exportable(nets, name)
    graph = export_onnx(form.module, form.spec, tmp_path / f"{name}.onnx", BatchRange(1, 8))
    parity = check_export(graph, form.module, form.spec)
    assert parity.accepted, str(parity)
    assert (parity.rows, parity.batches) == (8, (1, 8))
    assert "GridSample" not in graph.facts["operators"]


def test_precisions_of_the_stage():
    spec = ditto_spec(tiny_nets(torch.float16))
    dtypes = {t.name: t.dtype for t in spec.inputs}
    assert dtypes == {"volume": torch.float16, "kp_source": torch.float32, "kp_driving": torch.float32}


def test_a_face_of_no_numbers_is_told():
    faces = torch.full((3, 3, 4, 4), 0.5)
    faces[1, 2, 3, 0], faces[2, 0, 0, 1] = torch.nan, torch.inf
    done = as_crops(faces)
    assert done["finite"].tolist() == [True, False, False]
    assert done["crops"][0].eq(128).all()  # 127.5, to even
    assert done["crops"][1, 3, 0].tolist() == [128, 128, 0]
    assert done["crops"][2, 0, 1].tolist() == [255, 128, 128]


def test_unknown_graphs_are_refused(modules, nets):
    with pytest.raises(ValueError, match="'warp' is unknown; there are ditto_motion, ditto_decode"):
        exportable(nets, "warp")
    with pytest.raises(EngineSkipped, match="5-D grid_sample"):
        export_form(*ditto_stage(modules, torch.device("cpu")))
