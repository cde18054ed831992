"""A run with the viseme cache: the same film however it is pulled, avatars apart, a mouth that fails harms no other."""

from fractions import Fraction
from functools import partial
from itertools import zip_longest

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.cadence import MAX_CACHE_MB, Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.viseme_cache import VisemeCache
from talkinghead.nodes.musetalk import viseme_memory
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.musetalk.split_stages import DecoderHalf, UNetHalf

FPS = Fraction(25)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _wide_gate(monkeypatch):
    """What the random network gives for two frames lies 5 to 10 % apart: the gate of trained ones would find nothing."""
    monkeypatch.setattr(viseme_memory, "VisemeCache", partial(VisemeCache, gate=0.3))


@pytest.fixture
def words():
    """2.2 s: a tone that swells twice, silence in between and behind."""
    t = np.arange(16000 * 22 // 10) / 16000
    swell = np.clip(np.sin(2 * np.pi * t / 1.2), 0, 1)
    return MemoryAudio((0.4 * swell * np.sin(2 * np.pi * 200 * t)).astype(np.float32), 16000)


def film(model, packet, audio, cache=16, batch=8, **options):
    cadence = Cadence(audio, FPS, CadenceOptions(**{"rest": False, "viseme_cache_mb": cache, **options}))
    return CompositeStream(CropStream(model, packet, Speech(model, audio, FPS), batch, cadence), packet)


def run(stream, n=8):
    ctx = RunContext()
    return torch.cat([chunk.frames for chunk in stream.chunks(ctx, n)]), ctx.report


@pytest.mark.parametrize("options", [{}, {"mode": "2"}, {"mode": "adaptive", "rest": True}], ids=str)
def test_the_film_does_not_depend_on_chunks(tiny_model, avatar, words, options):
    stream = film(tiny_model, avatar(), words, **options)
    whole, report = run(stream)
    assert len(whole) == 55
    assert not report.facts["viseme cache"].startswith("0 of")
    for n in (1, 3, 64):
        again, told = run(stream, n)
        assert torch.equal(again, whole)
        assert told.facts["viseme cache"] == report.facts["viseme cache"]


def test_the_count_is_told_while_the_run_goes_on(tiny_model, avatar, words):
    ctx, told = RunContext(overlap=False), []
    for chunk in film(tiny_model, avatar(), words).chunks(ctx, 8):
        told.append(int(ctx.report.facts["viseme cache"].split()[2]))
        assert told[-1] >= chunk.frame_start + chunk.num_frames
    assert told == sorted(told)
    assert told[0] < told[-1] == 55


def test_hits_do_not_depend_on_the_batch(tiny_model, avatar, words):
    packet = avatar()
    facts = [run(film(tiny_model, packet, words, batch=b))[1].facts["viseme cache"] for b in (1, 4, 16)]
    assert len(set(facts)) == 1
    assert not facts[0].startswith("0 of")


def test_without_a_cache_nothing_is_said_and_nothing_changes(tiny_model, avatar, words):
    packet = avatar()
    plain = CompositeStream(CropStream(tiny_model, packet, Speech(tiny_model, words, FPS)), packet)
    made, report = run(film(tiny_model, packet, words, cache=0))
    assert torch.equal(made, run(plain)[0])
    assert "viseme cache" not in report.facts


def test_two_avatars_in_turn_keep_their_faces(tiny_model, avatar, words):
    """Row 31: the same words for a red and a blue avatar, chunk by chunk in turn, in one context."""
    packets = [avatar("red", (200, 40, 40)), avatar("blue", (40, 40, 200))]
    alone = [run(film(tiny_model, packet, words))[0] for packet in packets]
    ctx = RunContext()
    both = [film(tiny_model, packet, words).chunks(ctx, 8) for packet in packets]
    parts = [[], []]
    for chunks in zip_longest(*both):
        for own, chunk in zip(parts, chunks, strict=True):
            own += [] if chunk is None else [chunk.frames]
    for own, wanted in zip(parts, alone, strict=True):
        assert torch.equal(torch.cat(own), wanted)
    assert not torch.equal(alone[0], alone[1])


def test_a_mouth_that_is_not_finite_is_shown_nowhere(tiny_model, avatar, words, monkeypatch):
    """Batches of equal latents; the first mouth fails, and the seven frames that wait for it have none."""
    packet, passes = avatar(n=1, cycle="still"), []
    generate, decode = UNetHalf.forward, DecoderHalf.forward

    def same(self, latents, tokens):
        out = generate(self, latents, tokens)
        return {**out, "generated": out["generated"][:1].repeat(len(latents), 1, 1, 1)}

    def failing(self, generated):
        out = decode(self, generated)
        out["finite"][0] &= bool(passes)
        passes.append(len(generated))
        return out

    monkeypatch.setattr(UNetHalf, "forward", same)
    good, report = run(film(tiny_model, packet, words))
    assert report.facts["viseme cache"].startswith("48 of 55")
    monkeypatch.setattr(DecoderHalf, "forward", failing)
    made, report = run(film(tiny_model, packet, words))
    background = packet.open().frame(0)
    shown = [k for k in range(len(made)) if torch.equal(made[k], background)]
    assert shown == list(range(8))
    assert torch.equal(made[8:], good[8:])
    assert (
        "frames 0-7: the network's output is not finite, the avatar's own frame is shown" in report.warnings
    )


@pytest.mark.parametrize("size", [-1, MAX_CACHE_MB + 1])
def test_a_size_that_cannot_be_is_named(size):
    with pytest.raises(ValueError, match=rf"cache of {size} MB; give 0 \(none\) to {MAX_CACHE_MB}"):
        CadenceOptions(viseme_cache_mb=size)
