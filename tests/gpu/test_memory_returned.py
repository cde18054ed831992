"""Case 26 at full size: what an engine and its weights held of the card comes back within 2 %, whatever ended it.

Random weights of the official sizes in fp16; 1 minute on an H200 beside the build of the inductor engine.
"""

from __future__ import annotations

import gc

import pytest
import torch

from talkinghead.nodes.core.bench import Row
from talkinghead.nodes.core.engine_inductor import missing_tools
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.musetalk.bench_engines import made_nets, open_row, run_once

pytestmark = pytest.mark.gpu
BACKENDS, BATCH, SHARE = ("eager", "cuda graph", "inductor"), 8, 0.02
MEASURES = ("allocated", "reserved", "taken from the card")


@pytest.fixture(scope="module", autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(scope="module")
def table():
    """Rows of figures in MB, printed at the end."""
    rows = []
    yield rows
    head = f"{'backend':12} {'ended by':12} {'measure':20} {'before':>8} {'with':>8} {'after':>8} {'kept':>7}"
    print("", head, *rows, sep="\n")


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request, tmp_path_factory):
    """A backend opened once before, so that libraries have their workspaces and kernels; and the folder of its engine."""
    if request.param == "inductor" and (why := missing_tools(torch.device("cuda"))):
        pytest.skip(f"Inductor cannot compile here: {why}")
    folder = tmp_path_factory.mktemp("engines")
    nets, engine = opened(request.param, folder)
    run_once(engine)
    engine.close()
    return request.param, folder


def opened(backend, folder):
    nets = made_nets("full", torch.device("cuda")).half()
    engine = open_row(nets, "full", Row("", backend, "fp16", BATCH), folder)
    assert engine.backend == backend, engine.skipped
    return nets, engine


def in_use():
    """allocated, reserved, and all that is taken from the card, in bytes."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total - free


def unload(engine):
    run_once(engine)


def cancel(engine):
    """The user stops in the middle: work is queued, nothing has been waited for."""
    asked = []
    ctx = RunContext("cuda", is_cancelled=lambda: len(asked) == 3)
    given = engine.spec.sample(BATCH + 5, "cuda")
    with pytest.raises(RunCancelled):
        while True:
            ctx.check_cancelled()
            engine(**given)
            asked.append(1)


def many_calls(engine):
    given = engine.spec.sample(BATCH, "cuda")
    engine(**given)
    for _ in range(2):
        out = engine(**given)
    torch.cuda.synchronize()
    early = torch.cuda.memory_reserved()
    for _ in range(300):
        out = engine(**given)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= early
    assert out["crops"].dtype == torch.uint8


@pytest.mark.parametrize("ended", [unload, cancel, many_calls], ids=["unload", "cancel", "300 calls"])
def test_memory_comes_back(backend, ended, table):
    name, folder = backend
    before = in_use()
    nets, engine = opened(name, folder)
    ended(engine)
    held = in_use()
    engine.close()
    del engine, nets
    after = in_use()
    for measure, b, h, a in zip(MEASURES, before, held, after, strict=True):
        kept = (a - b) / (h - b)
        mb = " ".join(f"{value / 2**20:8.1f}" for value in (b, h, a))
        table.append(f"{name:12} {ended.__name__:12} {measure:20} {mb} {kept:7.2%}")
    for measure, b, h, a in zip(MEASURES, before, held, after, strict=True):
        assert h > b, measure
        assert a - b <= SHARE * (h - b), f"{measure}: {a - b} bytes of {h - b} stayed"
