"""What every stage of the wardrobe does with its masks: one frame serves all, the rest fits or is refused by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from talkinghead.nodes.wardrobe.composite import composite
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.ghost import ghost_check
from talkinghead.nodes.wardrobe.infill import mask_infill
from talkinghead.nodes.wardrobe.latent_mask import NAMED_GRIDS, latent_mask
from talkinghead.nodes.wardrobe.loop_wrap import loop_wrap
from talkinghead.nodes.wardrobe.mask_file import read_mask, write_mask
from talkinghead.nodes.wardrobe.masks import pixel_mask, subtract_occluders
from talkinghead.nodes.wardrobe.measure import measure
from talkinghead.nodes.wardrobe.repaste import repaste
from talkinghead.nodes.wardrobe.seam import seam_blend

N, SIDE = 10, 64
"""More frames than a chunk has."""


def noise(seed):
    return torch.rand((N, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(seed))


SOURCE, OTHER = noise(0), noise(1)
SHAPE = torch.zeros(SIDE, SIDE)
SHAPE[10:50, 13:40] = 1
ALL = SHAPE.repeat(N, 1, 1)
STITCH = subject_crop(SOURCE, torch.ones(1, SIDE, SIDE)).stitch

STAGES = {
    "Subject Crop: mask": lambda m: subject_crop(SOURCE, m).mask,
    "Subtract Occluders: mask": lambda m: subtract_occluders(m, ALL.flip(2)).paint,
    "Subtract Occluders: occluders": lambda m: subtract_occluders(ALL.flip(2), m).paint,
    "Wardrobe Composite: mask": lambda m: composite(SOURCE, OTHER, STITCH, m),
    "Wardrobe Composite: occluders": lambda m: composite(SOURCE, OTHER, STITCH, ALL.flip(2), occluders=m),
    "Seam Blend: mask": lambda m: seam_blend(OTHER, SOURCE, m, "reinhard_lab"),
    "Repaste: occluders": lambda m: repaste(OTHER, SOURCE, m),
    "Mask Infill: mask": lambda m: mask_infill(m, SOURCE).mask,
    "Loop Wrap: mask": lambda m: loop_wrap(SOURCE, m, 3)[1],
    "Wardrobe Metrics: mask": lambda m: measure(SOURCE, OTHER, m)[1],
    "Wardrobe Metrics: occluders": lambda m: measure(SOURCE, OTHER, ALL, occluders=m)[0].occluder_changed_px,
    "Ghost Check: occluders_source": lambda m: ghost_check(m, ALL.flip(2)).mask,
    "Ghost Check: occluders_result": lambda m: ghost_check(ALL.flip(2), m).mask,
}
ALONE = {
    "Pixel Mask: mask": lambda m: pixel_mask(m),
    "Latent Mask: mask": lambda m: torch.from_numpy(latent_mask(m, NAMED_GRIDS["sd"]).cells.copy()),
}
"""Stages with nothing that the mask must fit."""


def same(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture(scope="module")
def wanted():
    return {name: stage(ALL) for name, stage in (STAGES | ALONE).items()}


@pytest.mark.parametrize("name", STAGES)
def test_one_frame_serves_all_and_nothing_else_is_stretched(name, wanted):
    stage = STAGES[name]
    for one in (SHAPE, SHAPE[None]):
        assert same(stage(one), wanted[name])
    for n in (3, N - 1, N + 1):
        with pytest.raises(ValueError, match="frames") as error:
            stage(ALL[:1].repeat(n, 1, 1))
        assert {str(n), str(N)} <= set(str(error.value).replace(",", " ").split()), error.value
    for size in ((32, 64), (64, 32), (8, 8), (65, 64)):
        with pytest.raises(ValueError, match="not resized") as error:
            stage(torch.ones(N, *size))
        assert f"{size[1]}x{size[0]}" in str(error.value)
        assert "64x64" in str(error.value)


@pytest.mark.parametrize("name", [*STAGES, *ALONE])
def test_bad_values_are_named_and_other_floats_are_masks_too(name, wanted):
    stage = (STAGES | ALONE)[name]
    for bad in (float("nan"), float("inf"), -float("inf"), 255.0, -0.5):
        broken = ALL.clone()
        broken[N - 1, 3, 5] = bad
        with pytest.raises(ValueError, match=name + " is in .* from frame 8; expected finite values in 0..1"):
            stage(broken)
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        assert same(stage(ALL.to(kind)), wanted[name]), kind
    for kind in (torch.bool, torch.uint8, torch.int64):
        with pytest.raises(ValueError, match=f"{name} is {kind}.*a MASK, float"):
            stage(ALL.to(kind))
    for odd in (ALL[None], ALL[:, None], ALL[..., None], torch.zeros(0, SIDE, SIDE)):
        with pytest.raises(ValueError, match=name + r" is torch.float32 \(.*a MASK, float"):
            stage(odd)


@pytest.mark.parametrize("name", [*STAGES, *ALONE])
def test_empty_and_full_masks_are_masks(name):
    stage = (STAGES | ALONE)[name]
    stage(torch.ones(N, SIDE, SIDE))
    if name.startswith("Subject Crop"):
        with pytest.raises(ValueError, match="empty in all 10 frames"):
            stage(torch.zeros(N, SIDE, SIDE))
    else:
        stage(torch.zeros(N, SIDE, SIDE))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 7), (9, 13), (33, 31)])
def test_one_frame_of_an_odd_size_goes_through_everything(height, width):
    images, mask = torch.rand(1, height, width, 3), torch.ones(1, height, width)
    crop = subject_crop(images, mask)
    alpha = pixel_mask(subtract_occluders(crop.mask, torch.zeros_like(crop.mask), 6, 1).paint)
    black = torch.zeros_like(crop.images)
    assert latent_mask(crop.mask, NAMED_GRIDS["h3"]).cells.any()
    # No outline but the frame's edge: where the crop hangs over it, growth carries the mask across.
    assert (alpha[crop.mask > 0] == 1).all()
    made = composite(images, black, crop.stitch, alpha)
    assert (made == 0).all()
    for matte in ("hard", "soft", "colour_line"):
        back = repaste(made, images, crop.mask, crop.stitch, black, matte)
        assert torch.equal(back, images), matte
    for mode in ("context_gain", "reinhard_lab", "poisson"):
        assert float((seam_blend(images, images, mask, mode) - images).abs().max()) < 0.01, mode
    for mode in ("stabilise", "infill"):
        assert torch.equal(mask_infill(mask, images, 4, mode).mask, mask), mode
    assert torch.equal(loop_wrap(images, mask, 1)[0], images.repeat(2, 1, 1, 1))
    assert measure(images, images, crop.mask, crop.stitch, loop=True)[0].outside_changed_px == 0
    assert ghost_check(mask, mask, min_px=3).ok


def test_masks_on_disk_follow_the_same_rules(tmp_path):
    path = tmp_path / "a.wmask"
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        write_mask(path, ALL.to(kind), "k")
        assert torch.equal(read_mask(path, "k"), ALL)
    write_mask(path, SHAPE, "k")
    assert torch.equal(read_mask(path, "k"), ALL[:1])
    with pytest.raises(ValueError, match="Mask Cache: mask is torch.bool"):
        write_mask(path, ALL.bool(), "k")


def test_sockets_of_any_type_let_nothing_wrong_in():
    """What is laundered past the server's check is refused by name, not by an AttributeError."""
    from talkinghead.nodes.wardrobe.latent_mask import latents_of_frames

    for call in (
        lambda: composite(SOURCE, OTHER, ALL, ALL),
        lambda: repaste(SOURCE, SOURCE, ALL, OTHER),
        lambda: measure(SOURCE, SOURCE, ALL, "stitch"),
    ):
        with pytest.raises(ValueError, match="stitch is a .*; expected what Wardrobe Subject Crop gives"):
            call()
    for call in (
        lambda: seam_blend(SOURCE, SOURCE, ALL, "none", ALL),
        lambda: latents_of_frames(ALL, torch.zeros(1, 4, N, 8, 8)),
    ):
        with pytest.raises(ValueError, match="latent_mask is a Tensor; expected what Wardrobe Latent Mask"):
            call()


@pytest.mark.parametrize("name", [*STAGES, *ALONE])
def test_a_latent_mask_is_no_mask_of_any_stage(name):
    """The wall, once more behind the server's: what gets past the types is named where it arrives."""
    with pytest.raises(ValueError, match=name + " is a LatentMask; expected a MASK, float"):
        (STAGES | ALONE)[name](latent_mask(ALL, NAMED_GRIDS["sd"]))


def test_full_frames_are_images_or_a_stream():
    for call in (
        lambda: subject_crop([1, 2], ALL),
        lambda: composite(STITCH, OTHER, STITCH, ALL),
        lambda: composite(SOURCE, STITCH, STITCH, ALL),
        lambda: measure(SOURCE, None, ALL),
    ):
        with pytest.raises(ValueError, match=r"is a (list|Stitch|NoneType); expected an IMAGE, float"):
            call()


def test_the_types_of_their_own_are_frozen():
    made = latent_mask(ALL, NAMED_GRIDS["sd"])
    for thing, name in ((made, "cells"), (STITCH, "boxes")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)
        with pytest.raises(ValueError, match="read-only"):
            getattr(thing, name)[0] = 0
        assert not isinstance(thing, torch.Tensor | np.ndarray)
