"""Live rendering on a card: nothing waits for it, the frames of the CPU, and how long the first one takes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.bench import speech_like
from talkinghead.nodes.core.bench_live import LiveOptions, live_table
from talkinghead.nodes.core.cadence import CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.live_audio import LiveAudio
from talkinghead.nodes.core.metrics import psnr
from talkinghead.nodes.musetalk.bench_live import run_live
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.live_speech import LiveSpeech
from talkinghead.nodes.musetalk.stream import stream_musetalk

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def heard(ctx, step, seconds=12):
    """Tokens of 12 s, longer than the window, pushed in steps."""
    audio = LiveAudio(16000, max_seconds=60)
    for start in range(0, seconds * 16000, step):
        audio.push(speech_like(start, min(step, seconds * 16000 - start)))
    audio.end()
    parts = LiveSpeech(MuseTalkModel(), audio, Fraction(25)).windows(ctx, 8)
    return torch.cat([t for t in parts if t is not None])


def test_features_wait_for_nothing_and_are_those_of_the_cpu():
    ctx = RunContext("cuda")
    first = heard(ctx, 16000)  # records the graph
    engine = ctx.engine(MuseTalkModel(backend="cuda graph"), _stage(), 1)
    assert (engine.backend, engine.skipped) == ("cuda graph", {})
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = heard(ctx, 1234)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, first)
    difference = (again.cpu() - heard(RunContext(), 16000)).abs().max()
    print("largest difference of the tokens", float(difference))
    assert difference <= 0.05


def _stage():
    from talkinghead.nodes.musetalk.live_speech import live_stage

    return live_stage


@pytest.mark.parametrize("mode", ["dense", "3", "adaptive"])
def test_a_cadence_is_the_same_however_the_sound_comes(tmp_path, mode):
    """Syllables and silence, more than the CPU's ones: what is one ahead here must neither be lost nor kept back."""
    packet, model = resolve_avatar(RunContext("cuda"), "demo_loop", [tmp_path]), MuseTalkModel()
    sound = np.concatenate([speech_like(0, 24000), np.zeros(20000, np.float32), speech_like(24000, 20000)])
    ctx, options = RunContext("cuda"), CadenceOptions(mode)

    def film(step, ctx):
        audio = LiveAudio(16000, max_seconds=60)
        for start in range(0, len(sound), step):
            audio.push(sound[start : start + step])
        audio.end()
        chunks = list(stream_musetalk(ctx, model, packet, audio, matrix="bt601", cadence=options))
        assert [c.num_frames for c in chunks] == [8] * 12 + [4]
        assert [c.is_last for c in chunks] == [False] * 12 + [True]
        return torch.cat([c.frames.cpu() for c in chunks])

    whole = film(len(sound), ctx)
    print(mode, ctx.report.facts["stride mix"])
    assert not ctx.report.facts["stride mix"].endswith("rest 0 %")
    assert torch.equal(film(1280, ctx), whole)
    ctx.overlap = True  # the same engines: another recording may use other algorithms
    assert torch.equal(film(5120, ctx), whole)
    luma = [
        f[:, : packet.info.size[1], :, None].expand(-1, -1, -1, 3) for f in (whole, film(5120, RunContext()))
    ]
    fidelity = psnr(*luma)
    print(fidelity.pooled, min(fidelity.frames))
    assert min(fidelity.frames) >= 40


@pytest.mark.parametrize("rest", [False, True])
def test_first_frame_of_the_full_size_comes_in_time(rest):
    """Random weights, 1080x1920, pushes of 320 ms; at most 60 ms to NV12 bytes on the host (issue 5), also at rest."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip(f"the limit is for an H200, this is {torch.cuda.get_device_name()}")
    options = LiveOptions(
        torch.device("cuda"),
        "full",
        "fp16",
        chunks_ms=(320,),
        repeats=10,
        seconds=10,
        memory_seconds=40,
        rest=rest,
    )
    facts = run_live(options, print)
    print(live_table(facts["rows"]), facts["engines"], facts["warnings"])
    [row] = facts["rows"]
    assert row["ttff_ms"] <= 60
    memory = [sample["card_mb"] for sample in facts["memory"]]
    assert max(memory[2:]) <= memory[1] + 8
