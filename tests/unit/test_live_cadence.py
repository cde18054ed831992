"""Live speech at a cadence: the same frames however the sound comes, in chunks that do not wait, still in silence."""

import threading
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.cadence import Cadence, CadenceOptions, plan_frames
from talkinghead.nodes.core.engine import StageEngine
from talkinghead.nodes.core.frames import RunCancelled, RunContext, StageError
from talkinghead.nodes.core.live_audio import ClipSound, LiveAudio
from talkinghead.nodes.core.loudness import LiveLoudness
from talkinghead.nodes.core.timeline import frame_count, parse_fps
from talkinghead.nodes.musetalk import cadence_render, live_speech
from talkinghead.nodes.musetalk.live_speech import LiveSpeech
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.musetalk.stream import stream_musetalk

FPS, RATE = Fraction(25), 16000


@pytest.fixture(autouse=True)
def _small_and_alone(monkeypatch):
    monkeypatch.setattr(live_speech, "WINDOW_ROWS", 60)
    threads, before = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    assert set(threading.enumerate()) <= threads


def spoken(*parts):
    """Samples of parts (seconds, level): a tone that swells, or noise of -60 dBFS."""
    out = []
    for seconds, level in parts:
        t = np.arange(round(seconds * RATE)) / RATE
        noise = np.random.default_rng(4).normal(0, 1e-3, len(t))
        out.append(level * np.sin(1400 * t) * (1.2 + np.sin(9 * t)) if level else noise)
    return np.concatenate(out).astype(np.float32)


SPEECH = spoken((0.36, 0.2), (0.56, 0), (0.36, 0.3))
"""9 frames of speech, 14 of silence, 9 of speech."""


def pushed(samples, step=1280, rate=RATE):
    audio = LiveAudio(rate, max_seconds=60)
    for i in range(0, len(samples), step):
        audio.push(samples[i : i + step])
    audio.end()
    return audio


def film(model, packet, audio, options, ctx=None, fps=FPS, **kwargs):
    """Frames, and the sizes of the chunks, whose numbering and last mark are right."""
    chunks = list(stream_musetalk(ctx or RunContext(), model, packet, audio, fps, cadence=options, **kwargs))
    sizes = [c.num_frames for c in chunks]
    assert [c.frame_start for c in chunks] == np.cumsum([0, *sizes[:-1]]).tolist()
    assert [c.is_last for c in chunks] == [False] * (len(chunks) - 1) + [True]
    return torch.cat([c.frames for c in chunks]), sizes


def crops(model, packet, audio, options, batch=8, ctx=None):
    """Crops of live speech."""
    stream = CropStream(model, packet, LiveSpeech(model, audio, FPS), batch, options)
    return torch.cat([c.frames for c in stream.chunks(ctx or RunContext(), batch)])


@pytest.mark.parametrize(
    "options",
    [CadenceOptions("3"), CadenceOptions("adaptive", viseme_cache_mb=4)],
    ids=["3", "adaptive with cache"],
)
def test_the_frames_do_not_depend_on_when_the_sound_came(tiny_model, avatar, options):
    packet = avatar()
    whole, sizes = film(tiny_model, packet, pushed(SPEECH, len(SPEECH)), options)
    assert sizes == [8, 8, 8, 8]
    for step, overlap in ((640, True), (5120, False)):
        audio, ctx = pushed(SPEECH, step), RunContext(overlap=overlap)
        again, cut = film(tiny_model, packet, audio, options, ctx)
        assert torch.equal(again, whole)
        assert cut == sizes
    by_clip, _ = film(tiny_model, packet, MemoryAudio(SPEECH, RATE), options, features="live")
    assert torch.equal(by_clip, whole)
    plain, _ = film(tiny_model, packet, pushed(SPEECH), None)
    assert not torch.equal(plain, whole)  # or the comparisons prove nothing


def test_dense_speaks_as_without_a_cadence_and_rests_in_between(tiny_model, avatar):
    packet, options = avatar(), CadenceOptions("dense")
    plans = list(Cadence(MemoryAudio(SPEECH, RATE), FPS, options).plan())
    speaking = [p.frame for p in plans if p.weight == 1]
    assert 15 < len(speaking) < 30
    resting, plain = (crops(tiny_model, packet, pushed(SPEECH), o) for o in (options, None))
    assert torch.equal(resting[speaking], plain[speaking])
    assert not torch.equal(resting, plain)


def test_another_batch_gives_the_same_pictures(tiny_model, avatar):
    """Chunks of any size end between keys somewhere; their frames differ by rounding only."""
    packet, options = avatar(n=1), CadenceOptions("3")
    one, five, eight = (crops(tiny_model, packet, pushed(SPEECH), options, b).int() for b in (1, 5, 8))
    for other in (one, five):
        difference = (eight - other).abs()
        assert int(difference.max()) <= 1
        assert float((difference > 0).float().mean()) <= 1e-3


def test_live_is_planned_as_the_file_is(tiny_model, avatar, monkeypatch):
    """The loudness that reaches the plan is that of the whole sound, at a rate that is resampled too."""
    sound, options, packet, seen = SPEECH[:30000], CadenceOptions("adaptive"), avatar(), []

    def plan(*args):
        for frame in plan_frames(*args):
            seen.append(frame)
            yield frame

    monkeypatch.setattr(cadence_render, "plan_frames", plan)
    for rate in (RATE, 44100):
        seen.clear()
        crops(tiny_model, packet, pushed(sound, 777, rate), options)
        assert seen == list(Cadence(MemoryAudio(sound, rate), FPS, options).plan())
        assert len(seen) == frame_count(len(sound), rate, FPS)


def counted(monkeypatch, ctx, model):
    """Count the rows that UNet and decoder run on."""
    nets, rows = ctx.load(model), {"unet": 0, "decoder": 0}
    unet, decode = nets.unet.forward, nets.vae.decode

    def count_unet(latents, tokens):
        rows["unet"] += len(latents)
        return unet(latents, tokens)

    def count_decode(latents):
        rows["decoder"] += len(latents)
        return decode(latents)

    monkeypatch.setattr(nets.unet, "forward", count_unet)
    monkeypatch.setattr(nets.vae, "decode", count_decode)
    return rows


def test_in_silence_the_mouth_is_still_and_nothing_is_computed(tiny_model, avatar, monkeypatch):
    ctx, sound = RunContext(), spoken((4, 0))
    rows = counted(monkeypatch, ctx, tiny_model)
    still = crops(tiny_model, avatar(n=1, cycle="still"), pushed(sound), CadenceOptions(), ctx=ctx)
    assert len(still) == 100
    assert (still == still[0]).all()
    assert rows == {"unet": 8, "decoder": 8}  # the face at rest, once
    assert "rest 100 %" in ctx.report.facts["stride mix"]
    plain = crops(tiny_model, avatar("p", n=1, cycle="still"), pushed(sound[:8000]), None)
    assert (plain != plain[0]).any()  # the noise does move the network


def test_a_chunk_costs_one_decoder_pass_and_strides_draw_fewer_keys(tiny_model, avatar, monkeypatch):
    ctx = RunContext()
    rows = counted(monkeypatch, ctx, tiny_model)
    sound, options = spoken((0.96, 0.2)), CadenceOptions("2", rest=False)
    crops(tiny_model, avatar(), pushed(sound), options, ctx=ctx)
    # Chunks with keys 0 to 8, 10 to 16, and 18 to 23: 5, 4 and 4 of them in passes of 4.
    assert rows == {"unet": 16, "decoder": 24}
    assert ctx.report.facts["key frames"] == "13 of 24"


@pytest.mark.parametrize(("mode", "ms"), [("dense", 480), ("2", 560), ("3", 560)])
def test_a_chunk_comes_as_soon_as_its_sound_is_there(tiny_model, avatar, mode, ms):
    """25 fps, chunks of 8: frame 7 needs 480 ms; between keys it needs frame 8 or 9 too, 560 ms."""
    packet, options = avatar(n=1), CadenceOptions(mode, rest=False)

    def first(n):
        audio, looks = LiveAudio(RATE), iter([False] * 3)
        # The stop comes while it waits.
        ctx = RunContext(is_cancelled=lambda: audio.waits and next(looks, True), overlap=False)
        audio.push(spoken((2, 0.2))[:n])
        with closing(stream_musetalk(ctx, tiny_model, packet, audio, cadence=options)) as chunks:
            return next(chunks)

    assert first(ms * 16).num_frames == 8
    with pytest.raises(RunCancelled):
        first(ms * 16 - 1)


def test_a_card_does_not_keep_a_chunk_while_sound_is_awaited(tiny_model, avatar, monkeypatch):
    """The order of work on a card, run here: what is one ahead is given when the speech has no more at hand."""
    from talkinghead.nodes.musetalk import cadence_render

    one_ahead = cadence_render.one_ahead
    monkeypatch.setattr(
        cadence_render, "one_ahead", lambda batches, _: one_ahead(batches, torch.device("cuda"))
    )
    audio, sound = LiveAudio(RATE), spoken((2, 0.2))
    chunks = stream_musetalk(RunContext(), tiny_model, avatar(), audio, cadence=CadenceOptions("3"))
    audio.push(sound[:8960])
    assert next(chunks).num_frames == 8
    audio.push(sound[8960:14080])
    assert next(chunks).frame_start == 8
    audio.end()
    assert [(c.frame_start, c.num_frames, c.is_last) for c in chunks] == [(16, 6, True)]


def test_every_frame_is_there_however_short_the_sound(tiny_model, avatar):
    packet, options = avatar(n=1), CadenceOptions("3")
    for n, frames, level in ((1, 1, 0.2), (640, 1, 0), (641, 2, 0.2), (5121, 9, 0), (5121, 9, 0.2)):
        made, _ = film(tiny_model, packet, pushed(spoken((1, level))[:n]), options)
        assert len(made) == frames


def test_no_sound_is_no_frame(tiny_model, avatar):
    audio = pushed(np.zeros(0, np.float32))
    assert list(stream_musetalk(RunContext(), tiny_model, avatar(), audio, cadence=CadenceOptions())) == []


@pytest.mark.parametrize(("fps", "frames"), [("1", 2), ("10", 13), ("29.97", 39)])
def test_at_every_rate_the_chunks_are_right(tiny_model, avatar, fps, frames):
    packet, options, rate = avatar(n=1), CadenceOptions("3"), parse_fps(fps)
    whole, sizes = film(tiny_model, packet, pushed(SPEECH), options, fps=rate, first_batch=2)
    assert len(whole) == frames
    assert sizes[0] == 2
    assert all(size == 8 for size in sizes[1:-1])
    late, _ = film(tiny_model, packet, pushed(SPEECH, 20000), options, fps=rate, first_batch=2)
    assert torch.equal(late, whole)


def test_tokens_wait_for_the_loudness_that_their_plan_needs(tiny_model):
    """At 10 fps the features of frame 0 need 240 ms of sound, its plan 400."""
    audio, sound, loudness = LiveAudio(RATE), spoken((2, 0.2)), LiveLoudness(Fraction(10))
    given = LiveSpeech(tiny_model, audio, Fraction(10)).windows(RunContext(), 1, loudness)
    audio.push(sound[:6399])
    assert next(given) is None
    assert loudness.frames == 3
    audio.push(sound[6399:6400])
    assert len(next(given)) == 1
    assert loudness.frames == 4
    audio.end()
    assert sum(len(t) for t in given if t is not None) == 3
    assert len(list(loudness)) == 4


def test_a_clip_heard_as_a_file_is_the_render_at_that_cadence(tiny_model, avatar):
    packet, clip, options = avatar(), MemoryAudio(SPEECH, RATE), CadenceOptions("adaptive")
    made, _ = film(tiny_model, packet, clip, options, matrix="bt601")
    for cadence in (Cadence(clip, FPS, options), options):
        stream = CropStream(tiny_model, packet, Speech(tiny_model, clip, FPS), 8, cadence)
        planes = CompositeStream(stream, packet).nv12("bt601").chunks(RunContext(), 5)
        assert torch.equal(torch.cat([c.frames for c in planes]), made)


def test_networks_that_are_taken_away_between_look_and_call_come_back(tiny_model, avatar, monkeypatch):
    """A prompt that wants the memory may close a session's engines at any time."""
    packet, options, ctx = avatar(n=1), CadenceOptions("2"), RunContext(overlap=False)
    whole = crops(tiny_model, packet, pushed(SPEECH), options)
    call, taken = StageEngine.__call__, []

    def closed_first(self, **inputs):
        if self.spec.name not in taken:
            taken.append(self.spec.name)
            ctx.close_engines()
        return call(self, **inputs)

    monkeypatch.setattr(StageEngine, "__call__", closed_first)
    assert torch.equal(crops(tiny_model, packet, pushed(SPEECH), options, ctx=ctx), whole)
    assert taken == ["musetalk unet", "musetalk decoder", "live speech"]


def test_stopping_anywhere_leaves_nothing(tiny_model, avatar):
    packet = avatar()
    for taken in (0, 2):
        audio = LiveAudio(RATE)
        chunks = stream_musetalk(RunContext(), tiny_model, packet, audio, cadence=CadenceOptions("2"))
        audio.push(SPEECH)
        for _ in range(taken):
            next(chunks)
        chunks.close()
        if taken:
            with pytest.raises(ValueError, match="nobody listens"):
                audio.push(SPEECH)
    audio = LiveAudio(RATE)
    chunks = stream_musetalk(RunContext(), tiny_model, packet, audio, cadence=CadenceOptions("2"))
    audio.fail(ConnectionError("line cut"))
    with pytest.raises(StageError, match="Speech features: line cut"):
        next(chunks)


def test_ten_minutes_of_silence_are_held_nowhere(tiny_model):
    """What was fed and taken is gone; what waits is what one block brought."""
    loudness, second = LiveLoudness(FPS), np.zeros(RATE, np.float32)
    for _ in range(600):
        loudness.feed(second)
        assert len([next(loudness) for _ in range(25)]) == 25
    assert loudness.frames == 15_000
    assert not loudness._ready
    assert not len(loudness._cutter._held)


def test_a_plan_of_a_clip_is_not_for_live_sound(tiny_model, avatar):
    clip = MemoryAudio(SPEECH, RATE)
    speech = LiveSpeech(tiny_model, ClipSound(clip), FPS)
    with pytest.raises(ValueError, match="live speech is planned as it comes; give CadenceOptions"):
        CropStream(tiny_model, avatar(), speech, cadence=Cadence(clip, FPS))
