"""TensorRT on a card: the embedded model built, equal to torch, found again, and its memory back."""

import gc
import importlib.util
from dataclasses import replace

import pytest
import torch

from talkinghead.nodes.core.engine_build import measure_parity
from talkinghead.nodes.core.engine_spec import EngineSkipped
from talkinghead.nodes.core.export import cpu_copy
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.onnx_engine import find_device, import_plugin, takes_capability
from talkinghead.nodes.core.tensorrt_build import import_tensorrt
from talkinghead.nodes.musetalk.engine import musetalk_stage
from talkinghead.nodes.musetalk.export import exportable
from talkinghead.nodes.musetalk.handle import MuseTalkModel

pytestmark = pytest.mark.gpu
MIN_COSINE, MIN_PSNR_DB = 0.9999, 50.0


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def tensorrt():
    """TensorRT, or TensorRT-RTX in its place where the card is an RTX."""
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed: plans are built from ONNX")
    try:
        import_tensorrt()
    except ImportError as missing:
        try:
            if not takes_capability(torch.cuda.get_device_capability()):
                pytest.skip(f"{missing}; and TensorRT-RTX does not take this card")
            find_device(*import_plugin())
        except EngineSkipped as why:
            pytest.skip(f"{missing}; {why}")


def opened(model, batch, cache):
    ctx = RunContext("cuda", engine_cache=cache)
    return ctx, ctx.engine(replace(model, backend="tensorrt"), musetalk_stage, batch)


def in_use():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free  # TensorRT's own allocations are not in torch's count


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_built_equal_and_found_again(tensorrt, tmp_path, precision):
    model = MuseTalkModel(precision=precision)
    ctx, engine = opened(model, 8, tmp_path)
    assert engine.backend == "tensorrt", engine.skipped
    figures = measure_parity(ctx, model, musetalk_stage, engine)
    print(precision, figures, engine.memory_bytes >> 20, "MB", ctx.report.facts)
    assert figures["cosine"] >= MIN_COSINE
    assert figures["psnr_db"] >= MIN_PSNR_DB
    given = engine.spec.sample(13, "cuda", seed=4)
    first, name = engine(**given), engine.cached
    assert name
    assert torch.equal(engine(**given)["crops"], first["crops"])
    engine.close()
    again = opened(model, 8, tmp_path)
    assert again[1].cached == name
    assert torch.equal(again[1](**given)["crops"], first["crops"])
    assert "engine built" not in again[0].report.facts


def test_memory_comes_back(tensorrt, tmp_path):
    model = MuseTalkModel(precision="fp16")
    opened(model, 8, tmp_path)[1].close()  # libraries take theirs once
    before = in_use()
    for _ in range(3):
        ctx, engine = opened(model, 8, tmp_path)
        given = engine.spec.sample(8, "cuda")
        for _ in range(20):
            engine(**given)
        engine.close()
        del ctx, engine, given
    assert in_use() <= before * 1.02


def test_a_module_on_the_card_is_copied_to_the_cpu_without_moving():
    nets = MuseTalkModel(precision="fp16").build().cuda()
    stage = exportable(nets, "musetalk")
    allocated = torch.cuda.memory_allocated()
    copied = cpu_copy(stage.module, torch.float32)
    assert torch.cuda.memory_allocated() == allocated
    assert {p.device.type for p in copied.parameters()} == {"cpu"}
    assert {p.device.type for p in stage.module.parameters()} == {"cuda"}
    given = stage.spec.sample(2, "cuda")
    with torch.inference_mode():
        a = stage.module(**given).float().cpu()
        b = copied(**{k: v.float().cpu() for k, v in given.items()})
    assert (a - b).abs().max() < 0.05
