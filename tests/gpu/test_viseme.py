"""The viseme cache on a card: recalled mouths as good as on the CPU, in fp16, and the same film however it is pulled."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.audio import open_audio
from talkinghead.nodes.core.cadence import Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.metrics import psnr
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.tts import engines

pytestmark = pytest.mark.gpu
SENTENCE = Path(engines.__file__).parent / "samples" / "sample_sentence.flac"
FPS = Fraction(25)


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_recalled_mouths_look_as_drawn(tmp_path, precision):
    ctx, model = RunContext("cuda"), MuseTalkModel(precision=precision)
    packet, audio = resolve_avatar(ctx, "demo", [tmp_path]), open_audio(SENTENCE)

    def film(cache: int, n: int = 16) -> np.ndarray:
        cadence = Cadence(audio, FPS, CadenceOptions("dense", rest=True, viseme_cache_mb=cache))
        crops = CropStream(model, packet, Speech(model, audio, FPS), 16, cadence)
        stream = CompositeStream(crops, packet)
        return torch.cat([chunk.frames.cpu() for chunk in stream.chunks(ctx, n)]).numpy()

    drawn, cached = film(0), film(64)
    hits, _, lookups = ctx.report.facts["viseme cache"].split()[:3]
    print(f"{precision}: {ctx.report.facts['viseme cache']}")
    assert int(hits) > 0.3 * int(lookups)
    assert np.array_equal(film(64, 5), cached)
    with ctx.use_avatar(packet) as resident:
        x1, y1, x2, y2 = resident.reader.boxes[0].tolist()
    w, h = x2 - x1, y2 - y1
    box = (x1 + 61 * w // 256, y1 + 158 * h // 256, x1 + 194 * w // 256, y1 + 235 * h // 256)
    differ = [i for i in range(len(drawn)) if not np.array_equal(drawn[i], cached[i])]
    assert 0 < len(differ) <= int(hits)
    assert min(psnr(drawn[i], cached[i], box).mean for i in differ) >= 40
