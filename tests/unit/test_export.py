"""ONNX export: real graphs of toy size, compared with torch in onnxruntime; what must be refused is refused."""

import importlib.util
import json
import os
import sys
import time
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from support import unavailable
from torch import nn

from talkinghead.nodes.core.engine_spec import StageSpec, TensorSpec
from talkinghead.nodes.core.export import (
    SCRATCH,
    STALE_SECONDS,
    BatchRange,
    ExportForm,
    add_facts,
    cpu_copy,
    export_form,
    export_onnx,
    open_onnx,
    outputs_by_name,
    scratch_folder,
    sidecar_of,
)
from talkinghead.nodes.core.export_check import Parity, check_export, open_session, run_session

SPEC = StageSpec(
    "toy",
    inputs=(TensorSpec("left", (6,), torch.float32), TensorSpec("right", (2, 6), torch.float32)),
    outputs=(TensorSpec("first", (40,), torch.float32), TensorSpec("second", (2,), torch.float32)),
)


@pytest.fixture(scope="module", autouse=True)
def _exporter():
    for package in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            unavailable(f"{package} is not installed: pip install '.[dev]'")


class Toy(nn.Module):
    """Two inputs, two outputs of unlike shapes: swapped names cannot pass."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 40)

    def forward(self, left, right):
        return self.project(left), (right * left[:, None]).sum(2)


class Mixes(Toy):
    """Rows see each other: right for one row, wrong for a batch."""

    def forward(self, left, right):
        return super().forward(left - left.mean(0, keepdim=True), right)


class Freezes(Toy):
    """Works for the batch it was shown."""

    def forward(self, left, right):
        return self.project(left) * len(left), right.sum(2)


@pytest.fixture(scope="module")
def toy():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Toy()


@pytest.fixture(scope="module")
def toy_graph(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    return export_onnx(
        toy, SPEC, folder / "toy.onnx", BatchRange(1, 16), facts={"model": {"checkpoint": "toy"}}
    )


@pytest.fixture
def copied(toy_graph, tmp_path):
    """The toy's three files in a folder of their own, to be damaged."""
    for file in toy_graph.path.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / toy_graph.path.name


def test_three_files_whole_with_names_batch_and_hashes(toy_graph):
    folder = toy_graph.path.parent
    assert sorted(p.name for p in folder.iterdir()) == ["toy.onnx", "toy.onnx.data", "toy.onnx.json"]
    facts = json.loads(sidecar_of(toy_graph.path).read_text("utf-8"))
    assert facts["batch"] == [1, 16]
    assert facts["opset"] == 18
    assert facts["model"] == {"checkpoint": "toy"}
    assert [t["name"] for t in facts["inputs"]] == ["left", "right"]
    assert facts["outputs"][1] == {"name": "second", "shape": [2], "dtype": "float32"}
    assert set(facts["made_with"]) == {"torch", "onnx", "onnxscript"}
    model = onnx.load(toy_graph.path, load_external_data=False)
    assert facts["nodes"] == len(model.graph.node) == sum(facts["operators"].values())
    assert [d.dim_param != "" for d in model.graph.input[1].type.tensor_type.shape.dim] == [
        True,
        False,
        False,
    ]
    assert model.graph.initializer[0].external_data[0].value == "toy.onnx.data"
    assert open_onnx(toy_graph.path, verify=True).identity == toy_graph.identity


def test_the_file_tells_nothing_of_the_machine_that_made_it(toy_graph):
    model = onnx.load(toy_graph.path, load_external_data=False)
    assert not any(node.metadata_props for node in model.graph.node)
    assert b".py" not in toy_graph.path.read_bytes()


def test_a_graph_equals_torch_at_every_batch(toy, toy_graph):
    parity = check_export(toy_graph, toy, SPEC)
    assert parity.accepted
    assert (parity.rows, parity.batches) == (8, (1, 8))
    assert parity.max_abs < 1e-5
    odd = check_export(toy_graph, toy, SPEC, batches=(3, 5), rows=7)  # tails of 1 and 2 rows
    assert odd.accepted
    assert odd.rows == 7


def test_the_check_counts_its_passes(toy, toy_graph):
    seen = []
    check_export(toy_graph, toy, SPEC, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (24, 24)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_other_weights_are_not_accepted(toy, toy_graph):
    other = Toy()
    parity = check_export(toy_graph, other, SPEC)
    assert not parity.accepted
    assert "NOT accepted" in str(parity)
    assert parity.as_dict()["accepted"] is False


def test_rows_that_see_each_other_are_not_accepted(tmp_path):
    module = Mixes()
    graph = export_onnx(module, SPEC, tmp_path / "mixes.onnx", BatchRange(1, 16))
    assert check_export(graph, module, SPEC, batches=(1,)).accepted  # as one row it is right
    assert not check_export(graph, module, SPEC, batches=(1, 8)).accepted


def test_weights_that_are_not_finite_are_named(toy_graph):
    module = Toy()
    module.project.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match="first is not finite"):
        check_export(toy_graph, module, SPEC)


def test_not_finite_output_of_the_graph_is_not_accepted(toy, toy_graph):
    given = SPEC.sample(2, "cpu")
    session = open_session(toy_graph.path)
    assert np.isfinite(run_session(session, SPEC, given, 2)["first"]).all()
    assert not Parity(0.0, 0.0, float("inf"), 8, (1,), "float32").accepted
    assert (
        json.loads(json.dumps(Parity(1.0, float("inf"), 0.0, 8, (1,), "float32").as_dict()))["psnr_db"]
        == "inf"
    )


@pytest.mark.parametrize(
    ("batches", "inputs", "message"),
    [
        ((17,), None, r"1\.\.16.*17"),
        ((1,), {"left": torch.zeros(2, 6)}, "right must be.*missing"),
        ((1,), {"left": torch.zeros(2, 6), "right": torch.zeros(2, 6, 2)}, "right must be"),
        ((1,), {"left": torch.zeros(2, 6), "right": torch.zeros(2, 2, 6).double()}, "float64"),
        ((1,), {"left": torch.zeros(2, 6), "right": torch.zeros(3, 2, 6)}, r"\[2, 3\] rows"),
        ((1,), {"left": torch.zeros(0, 6), "right": torch.zeros(0, 2, 6)}, r"\[0\] rows"),
    ],
)
def test_checks_that_cannot_be_made(toy, toy_graph, batches, inputs, message):
    with pytest.raises(ValueError, match=message):
        check_export(toy_graph, toy, SPEC, batches, inputs=inputs)


def test_a_fixed_batch_is_written_and_checked_padded(toy, tmp_path):
    graph = export_onnx(toy, SPEC, tmp_path / "toy.onnx", BatchRange(3, 3))
    dims = onnx.load(graph.path, load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_value == 3
    parity = check_export(graph, toy, SPEC)
    assert parity.accepted
    assert parity.batches == (3,)
    one = export_onnx(toy, SPEC, tmp_path / "one.onnx", BatchRange(1, 1))
    assert check_export(one, toy, SPEC).batches == (1,)


def test_a_module_that_freezes_the_batch_is_refused_for_a_range(tmp_path):
    with pytest.raises(ValueError, match=r"batch 1\.\.8.*fixed batch"):
        export_onnx(Freezes(), SPEC, tmp_path / "toy.onnx", BatchRange(1, 8))
    assert list(tmp_path.iterdir()) == []
    assert export_onnx(Freezes(), SPEC, tmp_path / "toy.onnx", BatchRange(4, 4)).batch.fixed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": SPEC.outputs[:1]}, "returned 2 tensors, its spec names 1"),
        ({"outputs": SPEC.outputs[::-1]}, r"second as torch\.float32 \(2, 40\)"),
        ({"outputs": (replace(SPEC.outputs[0], dtype=torch.float16), SPEC.outputs[1])}, r"torch\.float16"),
    ],
)
def test_a_spec_that_lies_is_refused(toy, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        export_onnx(toy, replace(SPEC, **changes), tmp_path / "toy.onnx", BatchRange(1, 8))
    assert list(tmp_path.iterdir()) == []


def test_impossible_wishes(toy, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        export_onnx(toy, SPEC, tmp_path / "toy.bin", BatchRange(1, 8))
    with pytest.raises(ValueError, match=r"opset 23 is outside 18\.\.20"):
        export_onnx(toy, SPEC, tmp_path / "toy.onnx", BatchRange(1, 8), opset=23)


def test_without_onnxscript_it_says_what_to_install(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match="pip install onnx onnxscript"):
        export_onnx(toy, SPEC, tmp_path / "toy.onnx", BatchRange(1, 8))


def test_a_failed_export_keeps_the_old_files(toy, copied, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        export_onnx(toy, SPEC, copied, BatchRange(1, 8))
    assert open_onnx(copied, verify=True).batch == BatchRange(1, 16)
    assert len(list(copied.parent.iterdir())) == 3


def test_an_export_replaces_an_older_one(copied):
    graph = export_onnx(Toy(), SPEC, copied, BatchRange(2, 2), opset=20)
    again = open_onnx(copied, verify=True)
    assert again.facts == graph.facts
    assert again.facts["opset"] == 20
    assert again.batch == BatchRange(2, 2)


def test_it_exports_inside_inference_mode(toy, tmp_path):
    with torch.inference_mode():
        graph = export_onnx(toy, SPEC, tmp_path / "toy.onnx", BatchRange(1, 8))
    assert check_export(graph, toy, SPEC, batches=(2,)).accepted


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: sidecar_of(p).unlink(), "no sidecar"),
        (lambda p: sidecar_of(p).write_text("{"), "not valid JSON"),
        (lambda p: sidecar_of(p).write_text("{}"), "not a talkinghead-onnx"),
        (lambda p: p.with_name("toy.onnx.data").unlink(), r"toy\.onnx\.data is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), r"toy\.onnx has \d+ bytes instead of \d+"),
    ],
)
def test_damaged_exports_are_named(copied, damage, message):
    damage(copied)
    with pytest.raises(ValueError, match=message):
        open_onnx(copied)


def test_changed_weights_are_found_by_their_hash(copied):
    data = copied.with_name("toy.onnx.data")
    data.write_bytes(bytes(data.stat().st_size))
    open_onnx(copied)
    with pytest.raises(ValueError, match="has changed since"):
        open_onnx(copied, verify=True)


def test_scratch_folders_go_and_old_ones_with_them(tmp_path):
    parent = tmp_path / "new"
    with pytest.raises(OSError, match="full"), scratch_folder(parent) as work:
        (work / "half").write_bytes(b"x")
        raise OSError("disk full")
    assert list(parent.iterdir()) == []
    for name, age in (("dead", 2 * STALE_SECONDS), ("running", 60)):
        with scratch_folder(parent) as work:
            (parent / f"{SCRATCH}{name}").mkdir()
        os.utime(parent / f"{SCRATCH}{name}", (time.time() - age,) * 2)
    (parent / "mine").mkdir()
    with scratch_folder(parent):
        pass
    assert sorted(p.name for p in parent.iterdir()) == [f"{SCRATCH}running", "mine"]


def test_facts_can_be_added(copied):
    graph = add_facts(open_onnx(copied), parity={"cosine": 1.0})
    assert open_onnx(copied).facts == graph.facts
    assert graph.facts["parity"] == {"cosine": 1.0}
    assert graph.facts["opset"] == 18


@pytest.mark.parametrize("text", ["", "0", "1..0", "8..4", "1..65", "a", "1-8", "1..2..3", "-1"])
def test_impossible_batches(text):
    with pytest.raises(ValueError, match="batch"):
        BatchRange.parse(text)


def test_batches_are_read_and_written():
    assert BatchRange.parse(" 8 ") == BatchRange(8, 8)
    assert str(BatchRange.parse("1..32")) == "1..32"
    assert 32 in BatchRange(1, 32)
    assert 33 not in BatchRange(1, 32)


def test_outputs_by_name_wants_their_number():
    a, b = torch.zeros(1), torch.ones(1)
    assert outputs_by_name(SPEC, (a, b)) == {"first": a, "second": b}
    with pytest.raises(ValueError, match="returned 1 tensors, its spec names 2"):
        outputs_by_name(SPEC, a)


def test_cpu_copy_shares_what_fits_and_leaves_the_module_alone(toy):
    assert cpu_copy(toy) is toy
    assert cpu_copy(toy, torch.float32) is toy
    half = cpu_copy(toy, torch.float16)
    assert half.project.weight.dtype == torch.float16
    assert toy.project.weight.dtype == torch.float32
    torch.testing.assert_close(half.project.weight.float(), toy.project.weight, rtol=1e-3, atol=1e-4)
    norm = nn.BatchNorm1d(2)  # a counter that is no float stays one
    assert cpu_copy(norm, torch.float64).num_batches_tracked.dtype == torch.int64


def test_a_stage_without_a_form_is_exported_by_its_names(toy, tmp_path):
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.toy = toy

        def forward(self, right, left):
            first, second = self.toy(left, right)
            return {"second": second, "first": first}

    form = export_form(SPEC, Stage())
    graph = export_onnx(form.module, form.spec, tmp_path / "toy.onnx", BatchRange(1, 4))
    assert check_export(graph, toy, SPEC, batches=(1, 4)).accepted
    own = ExportForm(toy, SPEC)
    assert export_form(SPEC, type("Own", (), {"export_form": lambda self: own})()) is own
