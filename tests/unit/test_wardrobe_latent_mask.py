"""The sampler's mask: a superset of what is painted, on the grid of the model, and a mask for nobody else."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from wardrobe_scene import HandScene

from talkinghead.nodes.wardrobe.latent_mask import (
    NAMED_GRIDS,
    LatentGrid,
    audio_length,
    audio_mask,
    find_grid,
    fit_audio,
    latent_mask,
    latents_of_frames,
    preview,
)
from talkinghead.nodes.wardrobe.masks import subtract_occluders

GRIDS = tuple(NAMED_GRIDS.values())


def h3_vae(**more):
    network = {
        "clip_length": 17,
        "vae_ratio_t": 4,
        "vae_ratio": 16,
        "frame_pre_padding": 3,
        "tokens_chunk_size": 5,
    }
    return SimpleNamespace(first_stage_model=SimpleNamespace(**(network | more)), downscale_ratio=None)


def wan_vae(step=4, spatial=8):
    ratio = (lambda a: max(0, math.floor((a + step - 1) / step)), spatial, spatial)
    return SimpleNamespace(first_stage_model=object(), downscale_ratio=ratio)


def sparse_masks(seed, n, side=64):
    rng = np.random.default_rng(seed)
    mask = np.zeros((n, side, side), np.float32)
    for t in rng.choice(n, min(n, 6), replace=False):
        mask[t, rng.integers(0, side), rng.integers(0, side)] = rng.choice([0.01, 0.6, 1.0])
    mask[0, 0, side - 1] = mask[-1, side - 1, 0] = 1
    if n > 17:
        mask[17, 5, 5] = 1
    return mask


def naive(mask, grid):
    """Return the cells by asking every pixel of every frame."""
    runs = grid.runs(len(mask))
    side = mask.shape[1] // grid.spatial
    cells = np.zeros((len(runs), side, side), np.uint8)
    ends = np.cumsum(runs)
    for t, y, x in np.argwhere(mask > 0):
        latent = int(np.searchsorted(ends, t, side="right"))
        top, left = y // grid.cell * grid.token, x // grid.cell * grid.token
        cells[latent, top : top + grid.token, left : left + grid.token] = 1
    return cells


@pytest.mark.parametrize("n", [1, 2, 5, 17, 18, 23, 40])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.name)
def test_it_covers_every_pixel_and_no_token_more_than_it_must(grid, n):
    mask = sparse_masks(n, n)
    made = latent_mask(torch.from_numpy(mask), grid)
    assert np.array_equal(made.cells, naive(mask, grid))
    assert made.covered(0, n).shape == mask.shape
    assert made.covered(0, n)[mask > 0].all()
    assert np.array_equal(made.covered(3, 5), made.covered(0, n)[3:5])
    tokens = made.cells.reshape(len(made.runs), made.cells.shape[1] // grid.token, grid.token, -1, grid.token)
    assert (tokens.min((2, 4)) == tokens.max((2, 4))).all()


@pytest.mark.parametrize(("frames", "latents"), [(175, 52), (192, 57), (124, 37), (5, 2)])
def test_latents_of_h3(frames, latents):
    for grid in (NAMED_GRIDS["h3"], find_grid("auto", vae=h3_vae())):
        runs = grid.runs(frames)
        assert len(runs) == latents
        assert sum(runs) == frames
        assert runs[:2] == (1, 4)


@pytest.mark.parametrize(("step", "spatial", "name"), [(4, 8, "wan"), (8, 32, "ltx")])
def test_a_vae_says_its_grid(step, spatial, name):
    grid, known = find_grid("auto", vae=wan_vae(step, spatial)), NAMED_GRIDS[name]
    assert (grid.spatial, grid.token) == (known.spatial, known.token)
    for k in range(1, 12):
        n = step * k + 1
        assert grid.runs(n) == known.runs(n)
        # ComfyUI drops what is behind the last whole run; here it counts to the last latent.
        runs = grid.runs(n + step - 1)
        assert len(runs) == k + 1
        assert sum(runs) == n + step - 1


def test_the_vaes_of_h3_in_comfyui():
    """Both of core 0.33: the network says its numbers; the preview's VAE only how many latents a clip has."""
    preview_vae = SimpleNamespace(
        first_stage_model=object(),
        downscale_ratio=(lambda a: max(1, (a - 1) // 17 * 5 + 2) if a > 1 else 1, 16, 16),
    )
    own = h3_vae()
    own.downscale_ratio = (lambda a: max(1, (a - 5) // 17 * 5 + 2) if a > 1 else 1, 16, 16)
    for vae in (own, preview_vae):
        grid = find_grid("auto", vae=vae)
        for n in (5, 22, 124, 175, 192):
            assert grid.runs(n) == NAMED_GRIDS["h3"].runs(n)
            assert len(grid.runs(n)) == vae.downscale_ratio[0](n)
        assert grid.cell == 32
    # Jumps that nothing is known of cannot be laid out.
    leaps = SimpleNamespace(first_stage_model=object(), downscale_ratio=(lambda a: a // 9 * 3 + 1, 8, 8))
    with pytest.raises(ValueError, match="vae is one whose latents grow by 0 to 3 a frame; expected 0 or 1"):
        latent_mask(torch.ones(20, 32, 32), find_grid("auto", vae=leaps))


def test_other_vaes():
    image = SimpleNamespace(first_stage_model=object(), downscale_ratio=8)
    assert find_grid("auto", vae=image).runs(3) == (1, 1, 1)
    assert find_grid("auto", vae=image).cell == 8
    video = SimpleNamespace(
        first_stage_model=object(), downscale_ratio=8, temporal_compression_decode=lambda: 4
    )
    assert find_grid("auto", vae=video).runs(9) == (1, 4, 4)
    begins = LatentGrid("x", 8, 1, (), (1,), lambda n: 1 + math.ceil((n - 1) / 4))
    assert begins.runs(9) == (1, 4, 4)
    assert begins.runs(7) == (1, 4, 2)
    each = LatentGrid("x", 8, 1, (), (1,), lambda n: n)
    assert each.runs(4) == (1, 1, 1, 1)
    with pytest.raises(ValueError, match="vae is a Odd whose grid is unknown; expected a grid by name"):
        find_grid("auto", vae=SimpleNamespace(first_stage_model=type("Odd", (), {})(), downscale_ratio=None))
    with pytest.raises(ValueError, match="auto without a vae"):
        find_grid("auto")
    with pytest.raises(ValueError, match="grid is 'x'; expected one of auto, h3"):
        find_grid("x")


def test_a_grid_in_words():
    for name, text in (
        ("h3", "16,2,,1+4+4+4+4"),
        ("wan", "8,2,1,4"),
        ("ltx", " 32, 1, 1, 8"),
        ("sd", "8,1,,1"),
    ):
        made, known = find_grid("custom", text), NAMED_GRIDS[name]
        assert (made.spatial, made.token, made.head, made.cycle) == (
            known.spatial,
            known.token,
            known.head,
            known.cycle,
        )
    for bad in ("", "8,2,1", "8,2,1,", "0,2,1,4", "8,2,1,4,5", "8,2,1;4", "8,2,+,4", "a,b,c,d", "8,2,1,0"):
        with pytest.raises(ValueError, match="custom is"):
            find_grid("custom", bad)


def test_sizes_off_the_grid_are_refused():
    with pytest.raises(
        ValueError, match=r"mask is 72x64; expected multiples of 32, a token of h3; set Subject Crop"
    ):
        latent_mask(torch.zeros(5, 64, 72), NAMED_GRIDS["h3"])


def test_growth_and_the_hand_scene():
    scene = HandScene()
    paint = subtract_occluders(scene.mask, scene.occluders, 4).paint
    for grid in GRIDS[:2] + GRIDS[3:]:
        one, grown = latent_mask(paint, grid), latent_mask(paint, grid, 32)
        assert one.covered(0, 1)[0][paint[0].numpy() > 0].all()
        assert grown.cells.sum() > one.cells.sum()
        assert (grown.cells >= one.cells).all()


def test_a_feather_never_gets_into_it():
    """Row 41 of the reports: a hard mask and a feather of 16 give the same binary sampler mask."""
    from talkinghead.nodes.wardrobe.masks import pixel_mask

    mask = torch.zeros(5, 128, 128)
    mask[:, 37:101, 21:90] = 1
    hard, soft = (latent_mask(m, NAMED_GRIDS["h3"]) for m in (mask, pixel_mask(mask, 16)))
    assert set(np.unique(soft.cells)) == {0, 1}
    assert np.array_equal(hard.cells, soft.cells)
    noise = latents_of_frames(soft, torch.zeros(1, 24, 2, 8, 8))
    assert set(noise.unique().tolist()) == {0.0, 1.0}


def test_it_is_nobodys_tensor():
    made = latent_mask(torch.ones(5, 32, 32), NAMED_GRIDS["h3"])
    assert not any(
        hasattr(made, name) for name in ("shape", "to", "reshape", "dim", "ndim", "__array__", "cpu")
    )
    with pytest.raises(RuntimeError, match="LatentMask"):
        torch.as_tensor(made)
    with pytest.raises(ValueError, match="read-only"):
        made.cells[0] = 0
    picture = preview(made)
    assert picture.shape == (2, 2, 2, 3)


def test_noise_masks_of_video_and_image_latents():
    mask = torch.zeros(5, 64, 96)
    mask[3, 40, 70] = 1
    made = latent_mask(mask, NAMED_GRIDS["h3"])
    noise = latents_of_frames(made, torch.zeros(2, 24, 2, 4, 6))
    assert noise.shape == (1, 1, 2, 4, 6)
    assert noise.sum() == 4
    assert noise[0, 0, 1, 2:4, 4:6].sum() == 4
    images = latents_of_frames(latent_mask(mask, NAMED_GRIDS["sd"]), torch.zeros(5, 4, 8, 12))
    assert images.shape == (5, 1, 8, 12)
    assert images[3, 0, 5, 8] == images.sum() == 1
    for bad in (torch.zeros(1, 24, 3, 4, 6), torch.zeros(1, 24, 2, 6, 4), torch.zeros(24, 2, 4)):
        with pytest.raises(
            ValueError, match=r"Apply Latent Mask: video_latent is .* made of 5 frames of 96x64"
        ):
            latents_of_frames(made, bad)


def test_sound():
    mask = torch.zeros(175, 32, 32)
    mask[100:, 3, 3] = 1
    made = latent_mask(mask, NAMED_GRIDS["h3"])
    length = audio_length(made, 24, 40)
    assert length == round(175 / 24 * 40)
    latent = fit_audio(torch.ones(1, 32, 2, length - 3), length)
    assert latent.shape == (1, 32, 2, length)
    assert (latent[..., -3:] == 0).all()
    assert fit_audio(torch.ones(1, 32, 2, length + 9), length).shape == latent.shape
    for mode, share in (("keep", 0.0), ("regenerate", 1.0)):
        noise = audio_mask(made, latent.shape, mode, 24, 40)
        assert noise.shape == (1, 1, 2, length)
        assert float(noise.mean()) == share
    follow = audio_mask(made, latent.shape, "follow", 24, 40)[0, 0, 0]
    begin = int(follow.argmax())
    assert (follow[begin:] == 1).all()
    # The latent that holds frame 100 begins with frame 98 (85 + 1 + 4 + 4 + 4 = 98).
    assert begin == int(98 / 24 * 40)
    assert audio_mask(made, (1, 8, length), "follow", 24, 40).shape == (1, 1, length)
    for bad in (torch.zeros(32, length), torch.zeros(1, 1, 32, 2, length)):
        with pytest.raises(ValueError, match=r"Apply Latent Mask: audio_latent is .* expected sound"):
            fit_audio(bad, length)


def test_pixel_masks_vanish_when_resampled_over_time():
    """Why the mask is made on the latent grid: ComfyUI's resampling, trilinear, loses most single frames."""
    runs, most = NAMED_GRIDS["h3"].runs(175), []
    for t in range(175):
        clip = torch.zeros(1, 1, 175, 1, 1)
        clip[0, 0, t] = 1
        most.append(float(torch.nn.functional.interpolate(clip, (len(runs), 1, 1), mode="trilinear").max()))
    assert sum(m == 0 for m in most) == 71
    assert sum(m <= 0.5 for m in most) == 123
    assert max(most) < 1
    mask = torch.zeros(175, 32, 32)
    mask[torch.arange(175), 0, 0] = 1
    assert latent_mask(mask, NAMED_GRIDS["h3"]).cells.min() == 1
