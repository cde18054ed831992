"""Cadence on a card: what the CPU gives, the same bytes for every chunk size, and how fast at full size.

`pytest tests/gpu/test_cadence.py -s` prints frames a second of every mode with random weights of the official sizes.
"""

from __future__ import annotations

import gc
import time
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest
import torch

from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.cadence import MODES, Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.metrics import psnr
from talkinghead.nodes.musetalk.bake import build_avatar
from talkinghead.nodes.musetalk.bench_engines import made_nets
from talkinghead.nodes.musetalk.config import OFFICIAL
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import CropStream
from talkinghead.nodes.musetalk.speech import Speech

pytestmark = pytest.mark.gpu
FPS = Fraction(25)


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def audio(*parts):
    """Parts (seconds, level): a tone that swells, or silence."""
    out = []
    for seconds, level in parts:
        t = np.arange(round(seconds * 16000)) / 16000
        out.append(level * np.sin(1400 * t) * (1.2 + np.sin(9 * t)))
    return MemoryAudio(np.concatenate(out).astype(np.float32), 16000)


def crops(model, packet, sound, options, batch=8):
    return CropStream(
        model, packet, Speech(model, sound, FPS), batch, options and Cadence(sound, FPS, options)
    )


def run(stream, ctx, n=8):
    return torch.cat([c.frames.cpu() for c in stream.chunks(ctx, n)])


SPEECH = ((0.8, 0.2), (0.6, 0.0), (0.6, 0.3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_card_gives_the_picture_of_the_cpu(tmp_path, mode, precision):
    sound, options, exact = audio(*SPEECH), CadenceOptions(mode), MuseTalkModel()
    packet = resolve_avatar(RunContext(), "demo_loop", [tmp_path])
    wanted = run(crops(exact, packet, sound, options), RunContext())
    ctx = RunContext("cuda")
    stream = crops(MuseTalkModel(precision=precision), packet, sound, options)
    got = run(stream, ctx)
    fidelity = psnr(got, wanted)
    print(mode, precision, fidelity.pooled, min(fidelity.frames), ctx.report.facts)
    assert min(fidelity.frames) >= 40
    assert ctx.report.warnings == {}
    for n in (1, 100):
        assert torch.equal(run(stream, ctx, n), got)
    for overlap in (True, False):
        assert torch.equal(run(stream, RunContext("cuda", overlap=overlap)), got)


def test_a_still_mouth_and_the_fused_frames(tmp_path):
    sound, model = audio(*SPEECH), MuseTalkModel(precision="fp16")
    packet = resolve_avatar(RunContext(), "demo", [tmp_path])
    plan = list(Cadence(sound, FPS).plan())
    ctx = RunContext("cuda")
    fused = run(crops(model, packet, sound, None), ctx)
    got = run(crops(model, packet, sound, CadenceOptions()), ctx)
    at_rest = [p.frame for p in plan if p.weight == 0]
    speaking = [p.frame for p in plan if p.weight == 1]
    assert len(at_rest) > 3
    assert (got[at_rest] == got[at_rest[0]]).all()
    assert min(psnr(got[speaking], fused[speaking]).frames) >= 45


class FullModel(MuseTalkModel):
    """The official sizes with random weights."""

    @property
    def key(self):
        return ("musetalk", "random", self.precision)

    @cached_property
    def config(self):
        return OFFICIAL

    @property
    def identity(self):
        return "0" * 64

    def build(self):
        return made_nets("full", torch.device("cuda")).half()


def test_speed_at_full_size_and_memory_comes_back(tmp_path):
    def in_use():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    model, ctx = FullModel(precision="fp16"), RunContext("cuda")
    picture = np.random.default_rng(0).integers(0, 255, (1, 512, 512, 3), dtype=np.uint8)
    packet = build_avatar(ctx, model, picture, [(128, 128, 384, 384)], tmp_path, "full", FPS, "still")
    lively = np.random.default_rng(1).normal(0, 0.1, 40 * 16000) * np.repeat(
        np.random.default_rng(2).choice([0.3, 1.0], 1000), 640
    )
    sound = MemoryAudio(lively.astype(np.float32), 16000)
    loaded = in_use()
    for batch in (8, 16):
        for options in (
            None,
            CadenceOptions("dense"),
            *(CadenceOptions(mode, rest=False) for mode in MODES[1:]),
        ):
            stream = crops(model, packet, sound, options, batch)
            for _ in range(2):  # the second run has its engines open
                ctx.report.facts.clear()
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in stream.chunks(ctx, batch):
                    pass
                torch.cuda.synchronize()
            fps = stream.info.n_frames / (time.perf_counter() - began)
            name = "fused" if options is None else f"{options.mode}{' rest' if options.rest else ''}"
            print(f"batch {batch:2} {name:12} {fps:7.1f} fps", ctx.report.facts.get("key frames", ""))
    ctx.close_engines()
    assert in_use() <= loaded * 1.02
