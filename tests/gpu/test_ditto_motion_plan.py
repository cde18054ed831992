"""A whole motion on a card: the frames of the CPU, no wait inside, and how long 165 frames of the official size take."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace

import ditto_speaker as speaker
import pytest
import torch
from ditto_speaker import SpeakerContext, SpeakerModel, avatar, clip

from talkinghead.nodes.ditto.handle import DittoModel
from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.ditto.motion_cache import MOTIONS
from talkinghead.nodes.ditto.motion_plan import Motion, MotionOptions
from talkinghead.nodes.ditto.speech import DittoSpeech

pytestmark = pytest.mark.gpu
FPS, FRAMES = Fraction(25), 165


@pytest.fixture(autouse=True)
def _fresh():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    MOTIONS.clear()
    yield
    MOTIONS.clear()


def pulled(motion, device, n=8, **context):
    batches = list(motion.keypoints(SpeakerContext(device, **context), n))
    assert all(b.kp_driving.device.type == device and b.usable.device.type == "cpu" for b in batches)
    return torch.cat([batch.kp_driving for batch in batches]).cpu()


@pytest.mark.parametrize("backend", ["eager", "cuda graph"])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_cards_frames_are_the_cpus(backend, overlap):
    there, here = (SpeakerModel(backend=kind) for kind in (backend, "eager"))
    given = avatar(5), clip(4)
    wanted = pulled(Motion(here, given[0], DittoSpeech(here, given[1], FPS)), "cpu")
    motion = Motion(there, given[0], DittoSpeech(there, given[1], FPS))
    made = pulled(motion, "cuda", overlap=overlap)
    relative = float((made - wanted).norm() / wanted.norm())
    print(backend, "relative distance", relative)
    assert relative <= 2e-4
    MOTIONS.clear()
    assert torch.equal(pulled(motion, "cuda", 3), made)


class _Official(torch.nn.Module):
    """LMDM of the official size, and a stitching network of toy size."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.lmdm = LMDM(LMDMConfig())
        self.nets = torch.nn.Module()
        self.nets.stitch = speaker.modules().nets.stitch


@dataclass(frozen=True)
class _OfficialModel(SpeakerModel):
    def build(self):
        return _Official().eval().requires_grad_(False)


@dataclass(frozen=True)
class _Rows:
    """Speech whose rows are there, as those of HuBERT."""

    model: DittoModel
    audio: object
    fps: Fraction = FPS
    n_frames = known = FRAMES

    def ends_at(self, frame):
        return frame >= FRAMES

    def rows(self, ctx, silence=0, listeners=()):
        made = torch.randn(FRAMES, 1024, generator=torch.Generator().manual_seed(2))
        yield from made.split(5)


def test_how_long_165_frames_take():
    config = replace(speaker.CONFIG, lmdm=LMDMConfig(), speech=None)
    model = _OfficialModel("official size", "cuda graph", config=config)
    audio = SimpleNamespace(n_samples=1, sample_rate=16000, fingerprint=lambda: "rows")
    ctx, spent = SpeakerContext("cuda"), []
    for turn in range(6):
        MOTIONS.clear()
        motion = Motion(model, avatar(), _Rows(model, audio), MotionOptions(seed=turn))
        torch.cuda.synchronize()
        began, first = time.perf_counter(), None
        n = 0
        for batch in motion.keypoints(ctx, 8):
            first = first or time.perf_counter() - began
            n += len(batch.usable)
        torch.cuda.synchronize()
        spent.append((1000 * (time.perf_counter() - began), 1000 * first))
        assert n == FRAMES
        assert bool(batch.kp_driving.isfinite().all())
    whole, first = (min(values) for values in zip(*spent[1:], strict=True))
    print(f"{FRAMES} frames, 4 steps: {whole:.1f} ms, key points included; the first 8 after {first:.1f} ms")
    print(ctx.report.text())
