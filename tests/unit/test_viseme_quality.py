"""What a recalled mouth costs in looks: the embedded engine, the bundled sentence, a still and a moving presenter.

Pooled over recalled frames only, for the others are the same to the bit. The mouth box is that of `blend.mouth_mask`.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.audio import open_audio
from talkinghead.nodes.core.blend import composite, face_crop
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.metrics import psnr
from talkinghead.nodes.core.timeline import parse_fps
from talkinghead.nodes.core.viseme_cache import GATE, VisemeCache, apply_patch, cut_patch, mouth_window
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.model import to_rgb_uint8
from talkinghead.nodes.musetalk.presenters import resolve_avatar
from talkinghead.nodes.musetalk.render import blend_mask
from talkinghead.nodes.musetalk.speech import Speech
from talkinghead.nodes.tts import engines

SENTENCE = Path(engines.__file__).parent / "samples" / "sample_sentence.flac"
FLOOR_DB = 40.0


@dataclass(frozen=True, eq=False)
class Dense:
    """Every frame drawn: decoder's input, crops (n, size, size, 3), and what the composite needs of each."""

    latents: np.ndarray
    crops: np.ndarray
    frames: list
    boxes: list
    geometry: list
    masks: dict


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    root = tmp_path_factory.mktemp("avatars")
    return lru_cache(maxsize=2)(lambda name: draw(name, root))


@torch.inference_mode()
def draw(name: str, root: Path) -> Dense:
    ctx, model = RunContext(), MuseTalkModel()
    packet = resolve_avatar(ctx, name, [root])
    speech = Speech(model, open_audio(SENTENCE), parse_fps("25"))
    nets, latents, crops, index = ctx.load(model), [], [], []
    with ctx.use_avatar(packet) as resident:
        reader = resident.reader
        for tokens in speech.windows(ctx, 16):
            at = torch.from_numpy(packet.avatar_indices(len(index), len(tokens), speech.fps))
            made = nets.unet(resident.latents[at].float(), tokens + nets.positions)
            latents.append(made)
            crops.append(to_rgb_uint8(nets.vae.decode(made / nets.config.vae.scaling_factor)))
            index += at.tolist()
        shown = {at: reader.frame(at).numpy().copy() for at in set(index)}
        masks = {
            mode: [blend_mask(reader, at, mode, "feather").copy() for at in index]
            for mode in ("mouth", "mouth only")
        }
        return Dense(
            torch.cat(latents).numpy(),
            torch.cat(crops).numpy(),
            [shown[at] for at in index],
            reader.boxes[index].tolist(),
            reader.crops[index].tolist(),
            masks,
        )


def recall(made: Dense, gate: float = GATE) -> tuple[VisemeCache, dict[int, np.ndarray]]:
    """Every frame asked for in turn: the cache, and the crops of the frames that it knew."""
    cache, size, recalled = VisemeCache(64 << 20, gate), made.crops.shape[1], {}
    for i, key in enumerate(made.latents):
        found = cache.find(key)
        if found is None:
            patch = cut_patch(made.crops[i])
            cache.fill(cache.add(key, mouth_window(size).patch_bytes), patch)
        else:
            own = face_crop(made.frames[i], made.boxes[i], size)
            recalled[i] = apply_patch(own, found.patch)
    return cache, recalled


def show(made: Dense, i: int, crop: np.ndarray, mode: str) -> np.ndarray:
    canvas = made.frames[i].copy()
    composite(canvas, crop, made.boxes[i], made.geometry[i], made.masks[mode][i])
    return canvas


def mouth_box(made: Dense, i: int) -> tuple[int, int, int, int]:
    x1, y1, x2, y2 = made.boxes[i]
    w, h = x2 - x1, y2 - y1
    return x1 + 61 * w // 256, y1 + 158 * h // 256, x1 + 194 * w // 256, y1 + 235 * h // 256


def worst_db(made: Dense, recalled: dict[int, np.ndarray], mode: str) -> float:
    return min(
        psnr(show(made, i, made.crops[i], mode), show(made, i, crop, mode), mouth_box(made, i)).mean
        for i, crop in recalled.items()
    )


@pytest.mark.parametrize(("name", "least"), [("demo", 0.40), ("demo_loop", 0.04)])
def test_a_recalled_mouth_looks_as_drawn(dense, name, least):
    made = dense(name)
    cache, recalled = recall(made)
    assert cache.lookups == len(made.crops) == 144
    assert cache.hits == len(recalled)
    assert cache.hit_rate >= least
    for mode in made.masks:
        assert worst_db(made, recalled, mode) >= FLOOR_DB


def test_without_the_gate_it_is_another_mouth(dense):
    """The hash alone: nearly every frame is found, most of them wrong. The measure above can fail."""
    made = dense("demo")
    cache, recalled = recall(made, gate=0.99)
    assert cache.hit_rate > 0.9
    assert worst_db(made, recalled, "mouth only") < 25


@pytest.mark.parametrize("name", ["demo", "demo_loop"])
def test_no_jump_between_recalled_and_drawn(dense, name):
    """From frame to frame the lower half of the face never steps further than in the drawn frames, by more than a fifth."""
    made = dense(name)
    assert largest_step(made, recall(made)[1]) <= 1.2 * largest_step(made, {})


def test_the_step_between_frames_can_fail(dense):
    made = dense("demo")
    low = {i: np.roll(crop, 6, axis=0) for i, crop in recall(made)[1].items()}
    assert largest_step(made, low) > 1.2 * largest_step(made, {})


def largest_step(made: Dense, recalled: dict[int, np.ndarray]) -> float:
    before, largest = None, 0.0
    for i, crop in enumerate(made.crops):
        canvas = show(made, i, recalled.get(i, crop), "mouth")
        x1, y1, x2, y2 = made.boxes[i]
        half = canvas[(y1 + y2) // 2 : y2, x1:x2].astype(np.float32)
        if before is not None:
            h, w = min(len(half), len(before)), min(half.shape[1], before.shape[1])
            largest = max(largest, float(np.abs(half[:h, :w] - before[:h, :w]).mean()))
        before = half
    return largest
