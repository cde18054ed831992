"""Engine node, the loader's backend, and engines under ComfyUI's model management."""

from __future__ import annotations

import importlib
import json
import sys
import threading

import pytest
import torch

pytestmark = pytest.mark.comfy


def tone(seconds=0.4, rate=24000):
    t = torch.arange(round(seconds * rate)) / rate
    return {"waveform": (0.3 * torch.sin(1400 * t)).expand(1, 1, -1).clone(), "sample_rate": rate}


@pytest.fixture(scope="module")
def model(run_node):
    return run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]


@pytest.fixture
def comfy_nodes(node_classes):
    """The module as the pack knows it inside ComfyUI."""
    package = node_classes["TalkingHeadEngine"].__module__.rpartition(".")[0]
    return sys.modules[f"{package}.comfy_nodes"]


@pytest.fixture
def stage(node_classes):
    package = node_classes["TalkingHeadEngine"].__module__.rpartition(".")[0]
    return sys.modules[f"{package}.musetalk.engine"].musetalk_stage


def test_the_loader_has_a_backend_and_old_graphs_go_on(node_classes, run_node, model):
    cls = node_classes["TalkingHeadMuseTalkLoader"]
    widget = cls.GET_SCHEMA().inputs[-1]  # widgets are append-only
    assert (widget.id, widget.optional, widget.default) == ("backend", True, "auto")
    assert model.backend == "auto"
    chosen = run_node(
        "TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32", backend="cuda graph"
    )
    assert chosen.result[0].backend == "cuda graph"
    same = {"checkpoint": "embedded", "precision": "fp32"}
    assert cls.fingerprint_inputs(**same) == cls.fingerprint_inputs(**same, backend="auto")
    assert cls.fingerprint_inputs(**same) != cls.fingerprint_inputs(**same, backend="eager")


def test_show_build_and_clear(run_node, model, comfy_base, comfy_nodes):
    folder = comfy_nodes.model_folders("engines")[0]
    out = run_node("TalkingHeadEngine", model=model, action="show", batch=8)
    assert out.result[0] is model
    assert f"no built engines in {folder}" in out.result[1]
    built = run_node("TalkingHeadEngine", model=model, action="build", batch=2).result[1]
    assert "backend: eager" in built
    assert "'cosine': 1.0" in built
    assert "musetalk engine: eager, batch 2, on cpu" in built
    folder.mkdir(parents=True)
    (folder / "old.plan").write_bytes(bytes(64))
    (folder / "old.json").write_text(json.dumps({"format": "other"}))
    assert (
        "old; damaged: old.json is no talkinghead-engine"
        in run_node("TalkingHeadEngine", model=model, action="show", batch=8).result[1]
    )
    assert "deleted 2 files" in run_node("TalkingHeadEngine", model=model, action="clear", batch=8).result[1]
    assert list(folder.iterdir()) == []


def test_unload_closes_the_engines_and_the_next_run_opens_them(model, comfy_nodes, stage):
    """Case 26: ComfyUI's unload, the button and /free alike, gives back what engines hold."""
    import comfy.model_management as mm

    ctx = comfy_nodes.ComfyContext()
    first = ctx.engine(model, stage, 4)
    assert comfy_nodes.ComfyContext().engine(model, stage, 4) is first  # kept from prompt to prompt
    mm.unload_all_models()
    assert first.closed
    again = comfy_nodes.ComfyContext().engine(model, stage, 4)
    assert again is not first
    assert not again.closed


def test_a_cancelled_render_leaves_engines_that_unload_frees(
    run_node, model, comfy_nodes, stage, monkeypatch
):
    import comfy.model_management as mm
    import numpy as np

    image = torch.from_numpy(np.full((1, 96, 96, 3), 0.5, np.float32))
    avatar = run_node(
        "TalkingHeadBuildAvatar",
        model=model,
        name="stop",
        image=image,
        fps="25",
        cycle="still",
        box="20,10,76,80",
    ).result[0]
    speech = run_node("TalkingHeadSpeechFeatures", model=model, audio=tone(), fps="25").result[0]
    crops = run_node("TalkingHeadMuseTalkRender", model=model, avatar=avatar, speech=speech, batch=3).result[
        0
    ]
    ctx = comfy_nodes.ComfyContext()
    chunks = crops.chunks(ctx, 3)
    next(chunks)
    mm.interrupt_current_processing()
    with pytest.raises(mm.InterruptProcessingException):
        next(chunks)
    shelf = ctx._shelf(model)
    engine = ctx.engine(model, stage, 3)
    mm.unload_all_models()
    assert engine.closed
    assert shelf.memory_bytes == 0
    whole = torch.cat([c.frames for c in crops.chunks(comfy_nodes.ComfyContext(), 3)])
    assert len(whole) == 10


def test_comfyui_counts_and_frees_engines_with_the_model(model, comfy_nodes, stage):
    ctx = comfy_nodes.ComfyContext()
    engine = ctx.engine(model, stage, 4)
    patcher = ctx._patcher(model)
    alone = patcher.model_size()
    assert alone > 1000
    engine.memory_bytes = 1 << 20  # as on a card
    assert patcher.model_size() == alone + (1 << 20)
    loaded = patcher.loaded_size()
    assert loaded >= 1 << 20
    # ComfyUI wants less than the engines hold: they go, the weights stay where they are.
    assert patcher.partially_unload(torch.device("cpu"), 1000) == 1 << 20
    assert engine.closed
    assert patcher.model_size() == alone
    assert patcher.loaded_size() == loaded - (1 << 20)
    # and never may weights move under an open engine
    second = ctx.engine(model, stage, 4)
    patcher.partially_unload(torch.device("cpu"), 1000)
    assert second.closed


@pytest.mark.parametrize("way", ["unload", "make room"])
def test_weights_move_after_the_batch_that_another_thread_is_at(comfy_nodes, way, monkeypatch):
    """A live session is in a batch when a prompt wants the memory."""
    package = comfy_nodes.__name__.rpartition(".")[0]
    engine_module = importlib.import_module(f"{package}.core.engine")
    spec_module = importlib.import_module(f"{package}.core.engine_spec")
    order, inside, go = [], threading.Event(), threading.Event()

    def network(x):
        inside.set()
        go.wait(20)
        order.append("batch")
        return {"y": x}

    spec_of = spec_module.TensorSpec
    spec = spec_module.StageSpec(
        "probe", (spec_of("x", (1,), torch.float32),), (spec_of("y", (1,), torch.float32),)
    )
    patcher = comfy_nodes.EnginePatcher(
        torch.nn.Linear(1, 1), load_device=torch.device("cpu"), offload_device=torch.device("cpu")
    )
    options = engine_module.EngineOptions("eager", 1)
    engine = patcher.engines.get(
        patcher.model,
        lambda m, d: (spec, network),
        options,
        torch.device("cpu"),
        comfy_nodes.RunContext().report,
    )
    for name in ("unpatch_model", "partially_unload"):
        before = getattr(comfy_nodes.EnginePatcher.__base__, name)
        monkeypatch.setattr(
            comfy_nodes.EnginePatcher.__base__,
            name,
            lambda self, *a, before=before, **k: (order.append("weights"), before(self, *a, **k))[1],
        )
    batch = threading.Thread(target=lambda: engine(x=torch.zeros(1, 1)))
    batch.start()
    assert inside.wait(20)
    move = patcher.detach if way == "unload" else lambda: patcher.partially_unload(torch.device("cpu"), 1)
    moving = threading.Thread(target=move)
    moving.start()
    moving.join(0.1)
    assert order == []
    go.set()
    for thread in (batch, moving):
        thread.join(20)
    assert order == ["batch", "weights"]
    with pytest.raises(spec_module.EngineClosed, match="open it again"):
        engine(x=torch.zeros(1, 1))


def test_models_that_make_way_close_their_engines(run_node, model, comfy_nodes, stage):
    half = run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp16").result[0]
    ctx = comfy_nodes.ComfyContext()
    engine = ctx.engine(model, stage, 2)
    kept = comfy_nodes.MODELS_KEPT
    try:
        comfy_nodes.MODELS_KEPT = 1
        ctx.load(half)
    finally:
        comfy_nodes.MODELS_KEPT = kept
    assert engine.closed
    assert not ctx.engine(model, stage, 2).closed
