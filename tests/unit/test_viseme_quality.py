"""What recalled mouths cost in looks: the embedded engine, the bundled sentence, a still and a moving presenter.

Pooled over recalled frames only, for the others must be the same to the bit. The mouth box is that of `blend.mouth_mask`.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.audio import open_audio
from talkinghead.nodes.core.blend import composite, face_crop
from talkinghead.nodes.core.cadence import Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.metrics import psnr
from talkinghead.nodes.core.viseme_cache import GATE, VisemeCache, apply_patch, cut_patch
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import CropStream, blend_mask
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.musetalk.viseme_memory import VisemeMemory
from talkinghead.nodes.tts import engines

SENTENCE = Path(engines.__file__).parent / "samples" / "sample_sentence.flac"
FPS = Fraction(25)
FLOOR_DB = 40.0
MASKS = ("mouth", "mouth only")  # the first is the demos' own, which reaches to the chin


@dataclass(frozen=True, eq=False)
class Runs:
    """Crops (n, size, size, 3) of every frame drawn and of a run with the cache, the latents that each run decoded from,
    the frames that were recalled, and what the composite needs."""

    dense: np.ndarray
    cached: np.ndarray
    latents: np.ndarray
    recalled: list
    fact: str
    frames: list
    boxes: list
    geometry: list
    masks: dict

    def canvas(self, i: int, crop: np.ndarray, mode: str) -> np.ndarray:
        canvas = self.frames[i].copy()
        composite(canvas, crop, self.boxes[i], self.geometry[i], self.masks[mode][i])
        return canvas

    def worst_db(self, crops: dict[int, np.ndarray], mode: str) -> float:
        """Lowest PSNR in the mouth box of the frame, against every frame drawn."""
        found = []
        for i, crop in crops.items():
            x1, y1, x2, y2 = self.boxes[i]
            w, h = x2 - x1, y2 - y1
            box = (x1 + 61 * w // 256, y1 + 158 * h // 256, x1 + 194 * w // 256, y1 + 235 * h // 256)
            found.append(psnr(self.canvas(i, self.dense[i], mode), self.canvas(i, crop, mode), box).mean)
        return min(found)

    def largest_step(self, crops: np.ndarray) -> float:
        """Largest mean change of the lower half of the face from one frame to the next."""
        before, largest = None, 0.0
        for i, crop in enumerate(crops):
            x1, y1, x2, y2 = self.boxes[i]
            half = self.canvas(i, crop, MASKS[0])[(y1 + y2) // 2 : y2, x1:x2].astype(np.float32)
            if before is not None:
                h, w = min(len(half), len(before)), min(half.shape[1], before.shape[1])
                largest = max(largest, float(np.abs(half[:h, :w] - before[:h, :w]).mean()))
            before = half
        return largest


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root, ctx = tmp_path_factory.mktemp("avatars"), RunContext()
    return lru_cache(maxsize=2)(lambda name: run_both(name, root, ctx))


def run_both(name: str, root: Path, ctx: RunContext) -> Runs:
    model, audio, kept, recalled = MuseTalkModel(), open_audio(SENTENCE), [], []
    packet = resolve_avatar(ctx, name, [root])
    own = VisemeMemory.recall

    def recall(self, frames):
        known = own(self, frames)
        kept.extend(frame.latents.numpy() for frame in frames)
        recalled.extend(known)
        return known

    def crops(options: CadenceOptions) -> np.ndarray:
        stream = CropStream(model, packet, Speech(model, audio, FPS), 16, Cadence(audio, FPS, options))
        return torch.cat([chunk.frames for chunk in stream.chunks(ctx, 8)]).numpy()

    dense = crops(CadenceOptions("dense", rest=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VisemeMemory, "recall", recall)
        cached = crops(CadenceOptions("dense", rest=False, viseme_cache_mb=16))
    index = packet.avatar_indices(0, len(dense), FPS).tolist()
    with ctx.use_avatar(packet) as resident:
        reader = resident.reader
        shown = {at: reader.frame(at).numpy().copy() for at in set(index)}
        masks = {mode: [blend_mask(reader, at, mode, "feather").copy() for at in index] for mode in MASKS}
        boxes, geometry = reader.boxes[index].tolist(), reader.crops[index].tolist()
    fact = ctx.report.facts["viseme cache"]
    frames = [shown[at] for at in index]
    return Runs(dense, cached, np.stack(kept), recalled, fact, frames, boxes, geometry, masks)


@pytest.mark.parametrize(("name", "least"), [("demo", 0.40), ("demo_loop", 0.04)])
def test_a_recalled_mouth_looks_as_drawn(runs, name, least):
    made = runs(name)
    n, hits = len(made.dense), len(made.recalled)
    assert made.fact.startswith(f"{hits} of {n} lookups ({100 * hits / n:.1f} %), {n - hits} mouths in ")
    assert hits >= least * n
    crops = {i: made.cached[i] for i in made.recalled}
    for mode in MASKS:
        assert made.worst_db(crops, mode) >= FLOOR_DB
    drawn = [i for i in range(n) if i not in crops]
    assert np.array_equal(made.cached[drawn], made.dense[drawn])
    assert made.largest_step(made.cached) <= 1.2 * made.largest_step(made.dense)


def test_the_hash_alone_shows_other_mouths(runs):
    """Nearly every frame is found, many of them wrong, and the steps between frames show it: the gate is needed, and the
    measures above can fail."""
    made = runs("demo")
    loose, strict = (recall_all(made, gate) for gate in (0.99, GATE))
    assert sorted(strict) == made.recalled
    assert len(loose) > 0.9 * len(made.dense)
    assert made.worst_db(loose, "mouth only") < 25
    low = made.cached.copy()
    low[made.recalled] = np.roll(low[made.recalled], 6, axis=1)
    assert made.largest_step(low) > 1.2 * made.largest_step(made.dense)


def recall_all(made: Runs, gate: float) -> dict[int, np.ndarray]:
    cache, size, crops = VisemeCache(16 << 20, gate), made.dense.shape[1], {}
    for i, key in enumerate(made.latents):
        found, patch = cache.find(key), cut_patch(made.dense[i])
        if found is None:
            cache.fill(cache.add(key, patch.nbytes), patch)
        else:
            crops[i] = apply_patch(face_crop(made.frames[i], made.boxes[i], size), found.patch)
    return crops
