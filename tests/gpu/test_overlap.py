"""Stages in threads on a card: streams of their own, handed over in order, and nothing kept."""

from __future__ import annotations

import gc
import itertools
import threading
from fractions import Fraction

import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.bench import speech_like
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.overlap import ahead
from talkinghead.nodes.musetalk.bench_overlap import demo_at
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech

pytestmark = pytest.mark.gpu
WAYS = (False, None, True)
_CYCLES = 20_000_000
"""Some 10 ms of waiting on the card."""


@pytest.fixture(scope="module", autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Return a function: seconds -> a CompositeStream of the embedded engine in fp16 at 512x512."""
    model = MuseTalkModel(precision="fp16")
    ctx = RunContext("cuda")
    avatar = demo_at(ctx, model, "demo_loop", (512, 512), tmp_path_factory.mktemp("avatars"))

    def make(seconds):
        return CompositeStream(
            CropStream(
                model,
                avatar,
                Speech(model, MemoryAudio(speech_like(0, seconds * 16000), 16000), Fraction(25)),
            ),
            avatar,
        )

    return make


def test_what_a_stage_hands_over_is_complete_and_stays_its_consumers():
    """Slow kernels before every item; the item is read late, when the stage has long reused what it freed."""
    ctx, consumer = RunContext("cuda", overlap=True), torch.cuda.Stream()

    def make():
        for k in range(12):
            torch.cuda._sleep(_CYCLES)
            tensor = torch.full((1 << 20,), float(k), device="cuda")
            yield {"value": tensor}
            del tensor

    with torch.cuda.stream(consumer):
        items = ahead(ctx, make, 3, "slow")
        totals = []
        for item in items:
            torch.cuda._sleep(_CYCLES)
            totals.append(item["value"].sum() / (1 << 20))
            del item
        assert torch.stack(totals).tolist() == [float(k) for k in range(12)]


def test_a_stage_sees_what_was_queued_before_it_and_what_follows_comes_after():
    ctx = RunContext("cuda", overlap=True)
    torch.cuda._sleep(_CYCLES)
    weight = torch.full((1 << 20,), 3.0, device="cuda")

    def make():
        assert torch.cuda.current_stream() != torch.cuda.default_stream()
        yield weight * 2
        torch.cuda._sleep(_CYCLES)
        yield weight + 1

    items = ahead(ctx, make, 2, "reader")
    first = next(items)
    items.close()
    weight.zero_()  # behind what the stage may still be reading
    assert float(first.mean()) == 6.0


@pytest.mark.parametrize("layout", ["nv12", "rgb"])
def test_the_same_frames_in_every_way(film, layout):
    stream = film(4)
    stream = stream.nv12("bt601") if layout == "nv12" else stream
    frames = []
    for way in WAYS:
        ctx = RunContext("cuda", overlap=way)
        frames.append(torch.cat([chunk.frames.cpu() for chunk in stream.chunks(ctx, 8)]))
        ctx.close_engines()
    assert len(frames[0]) == 100
    assert torch.equal(frames[0], frames[1])
    assert torch.equal(frames[0], frames[2])


@pytest.mark.parametrize("way", [None, True], ids=["default", "all"])
def test_cancelled_runs_keep_no_memory_of_the_card(film, way):
    stream, ctx = film(4), RunContext("cuda", overlap=way)

    def run(at):
        asked = itertools.count()
        ctx._is_cancelled = lambda: next(asked) >= at
        with pytest.raises(RunCancelled):
            for _ in stream.nv12("bt601").chunks(ctx, 8):
                pass
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    run(3)
    early = run(4)
    late = max(run(at) for at in range(1, 12))
    ctx.close_engines()
    assert late <= early
