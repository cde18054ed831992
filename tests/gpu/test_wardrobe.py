"""The wardrobe's full frames on a card: a stream may hand out frames there, and the bytes are those of the CPU."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.wardrobe.composite import composite
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.masks import pixel_mask
from talkinghead.nodes.wardrobe.measure import measure
from talkinghead.nodes.wardrobe.plan import BoxRules
from talkinghead.nodes.wardrobe.repaste import repaste

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_frames_on_the_card_give_the_same_bytes():
    frames = torch.randint(
        0, 256, (11, 96, 128, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    mask = torch.zeros(11, 96, 128)
    mask[:, 20:70, 30:100] = 1
    hands = torch.zeros(11, 96, 128)
    hands[:, 40:60, 50:80] = 1
    made = {}
    for device in ("cpu", "cuda"):
        stream = TensorStream(frames.to(device), Fraction(25))
        crop = subject_crop(stream, mask, BoxRules(16))
        x, y, w, h = crop.stitch.boxes[0]
        occluders = hands[:, y : y + h, x : x + w]
        alpha = pixel_mask(crop.mask)
        dressed = composite(stream, 1 - crop.images, crop.stitch, alpha)
        for matte in ("hard", "soft", "colour_line"):
            done = repaste(dressed, stream, occluders, crop.stitch, 1 - crop.images, matte)
            made[device, matte] = torch.cat([c.frames.cpu() for c in done.chunks(RunContext(device), 8)])
        found, _ = measure(stream, dressed, alpha, crop.stitch)
        assert found.outside_changed_px == 0
    for matte in ("hard", "soft", "colour_line"):
        difference = (made["cpu", matte].int() - made["cuda", matte].int()).abs()
        assert int(difference.max()) <= 1
        outside = mask == 0
        assert torch.equal(made["cuda", matte][outside], frames[outside])
