"""The builder against NVIDIA's own library: TensorRT-RTX has the API of TensorRT 11 and builds without a card.

Skipped unless its packages are there: pip install tensorrt-rtx (hundreds of MB). It shows that names, signatures and
graphs are right; nothing runs, and its plans are for RTX cards.
"""

import importlib.util
import sys

import pytest
import torch
from torch import nn

from talkinghead.nodes.core import tensorrt_build
from talkinghead.nodes.core.engine_spec import StageSpec, TensorSpec
from talkinghead.nodes.core.export import BatchRange, OnnxGraph, export_onnx
from talkinghead.nodes.core.tensorrt_build import PlanOptions, Profile, build_plan, import_tensorrt
from talkinghead.nodes.core.tensorrt_engine import PlanRefused, load_plan

SPEC = StageSpec(
    "toy",
    inputs=(TensorSpec("image", (8, 16, 16), torch.float16),),
    outputs=(TensorSpec("out", (8, 16, 16), torch.float16),),
)


@pytest.fixture(scope="module", autouse=True)
def trt():
    if importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip("the tensorrt-rtx package is not installed")
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed")
    try:
        import tensorrt_rtx_bindings as trt
    except ImportError as error:
        pytest.skip(f"TensorRT-RTX does not load: {error}")
    return trt


@pytest.fixture
def rt(trt, monkeypatch):
    """The library in TensorRT's place, building for an RTX 50: without a card it has to be told which."""
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    set_options = tensorrt_build._set_options

    def for_blackwell(rt, config, options):
        set_options(rt, config, options)
        config.num_compute_capabilities = 1
        assert config.set_compute_capability(trt.ComputeCapability.SM120, 0)

    monkeypatch.setattr(tensorrt_build, "_set_options", for_blackwell)
    return import_tensorrt()


@pytest.fixture(scope="module")
def graph(trt, tmp_path_factory):
    class Toy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, image):
            return image + self.conv(nn.functional.silu(self.norm(image)))

    path = tmp_path_factory.mktemp("real") / "toy.onnx"
    return export_onnx(Toy().half(), SPEC, path, BatchRange(1, 8))


def test_a_plan_is_built_and_its_timing_cache_kept(rt, graph, tmp_path):
    seen, cache = [], tmp_path / "timing"
    options = PlanOptions(Profile(1, 4, 8), workspace_mib=256, timing_cache=cache)
    facts = build_plan(graph, SPEC, tmp_path / "toy.plan", options, lambda *step: seen.append(step), rt)
    assert (tmp_path / "toy.plan").stat().st_size == facts["bytes"] > 1000
    assert facts["tensorrt"] == rt.module.__version__
    assert cache.stat().st_size > 0
    assert seen
    cache.write_bytes(b"of another card")
    build_plan(graph, SPEC, tmp_path / "toy.plan", options, tensorrt=rt)
    assert cache.read_bytes() != b"of another card"


def test_progress_stops_a_real_build(rt, graph, tmp_path):
    def stop(phase, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_plan(graph, SPEC, tmp_path / "toy.plan", PlanOptions(Profile.static(4)), stop, rt)
    assert list(tmp_path.iterdir()) == []


def test_the_real_parsers_words_reach_the_message(rt, graph, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph at all")
    with pytest.raises(RuntimeError, match=r"cannot read broken\.onnx: .+"):
        build_plan(
            OnnxGraph(broken, graph.facts), SPEC, tmp_path / "x", PlanOptions(Profile.static(4)), tensorrt=rt
        )


def test_names_that_are_not_the_graphs_are_refused(rt, graph, tmp_path):
    other = StageSpec("toy", (TensorSpec("picture", (8, 16, 16), torch.float16),), SPEC.outputs)
    with pytest.raises(RuntimeError, match="could not build|refuses the profile"):
        build_plan(graph, other, tmp_path / "x.plan", PlanOptions(Profile.static(4)), tensorrt=rt)


def test_random_bytes_are_no_plan(rt, tmp_path):
    plan = tmp_path / "toy.plan"
    plan.write_bytes(bytes(range(64)))
    with pytest.raises(PlanRefused, match=r"10\.15\.1 on sm_75.*TensorRT says"):
        load_plan(rt, plan, {"tensorrt": "10.15.1", "sm": "sm_75"})
