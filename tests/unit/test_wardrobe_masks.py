"""Pixel masks of the wardrobe: thin things survive, hands are never touched, the order holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wardrobe_scene import SLITS, HandScene, naive_distance

from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.wardrobe import distance, masks
from talkinghead.nodes.wardrobe.checks import check_images, check_mask
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.masks import pixel_mask, subtract_occluders
from talkinghead.nodes.wardrobe.plan import BoxRules


@pytest.fixture(scope="module")
def scene():
    return HandScene()


def random_mask(seed, shape=(24, 31), share=0.6):
    return np.random.default_rng(seed).random(shape) < share


@pytest.mark.parametrize("seed", range(4))
def test_distances_and_growth_are_euclidean(seed):
    mask = random_mask(seed, share=(0.1, 0.4, 0.7, 0.95)[seed])
    assert np.allclose(distance.inside_distance(mask), naive_distance(mask), atol=1e-4)
    assert np.allclose(distance.outside_distance(mask), naive_distance(~mask), atol=1e-4)
    for px in (1, 2, 3):
        assert np.array_equal(distance.grow(mask, px), mask | (naive_distance(~mask) <= px))
        assert np.array_equal(distance.grow(mask, -px), naive_distance(mask) > px)
    signed = distance.signed_distance(mask)
    assert np.array_equal(signed > 0, mask)
    assert np.allclose(np.abs(signed) + 0.5, naive_distance(mask) + naive_distance(~mask), atol=1e-4)


def test_empty_and_full_masks_have_no_outline():
    empty, full = np.zeros((9, 7), bool), np.ones((9, 7), bool)
    assert not distance.grow(empty, 3).any()
    assert distance.grow(full, -3).all()
    assert np.isinf(distance.inside_distance(full)).all()
    assert (distance.signed_distance(empty) < -9).all()
    assert (distance.signed_distance(full) > 9).all()
    alpha = pixel_mask(torch.stack([torch.zeros(9, 7), torch.ones(9, 7)]))
    assert (alpha[0] == 0).all()
    assert (alpha[1] == 1).all()


def test_the_frames_edge_is_no_outline():
    mask = torch.zeros(1, 20, 20)
    mask[0, 10:, :] = 1
    alpha = pixel_mask(mask, 4, keep_thin=False)[0]
    assert torch.allclose(alpha[10:14, 0], torch.tensor([0.125, 0.375, 0.625, 0.875]))
    assert (alpha[14:] == 1).all()
    assert (alpha[:10] == 0).all()


def test_slits_are_painted_in_full_and_strands_not_at_all(scene):
    paint = subtract_occluders(scene.mask, scene.occluders, grow_px=8)
    alpha = pixel_mask(paint.paint, 4)[0].numpy()
    assert (alpha[scene.slits] >= 0.99).all()
    assert (alpha[scene.strands] == 0).all()
    assert (alpha[scene.hand] == 0).all()
    # Without keep_thin the same slits are lost: what the option is for.
    thin = pixel_mask(paint.paint, 4, keep_thin=False)[0].numpy()
    assert (thin[scene.slits] >= 0.99).mean() == 0


@pytest.mark.parametrize("feather", [4, 6, 8, 16, 32, 64])
def test_slits_survive_every_feather(scene, feather):
    """Slits far smaller than the feather's disc too, and one of 3x20 px between two fingertips."""
    paint = subtract_occluders(scene.mask, scene.occluders, grow_px=8).paint
    alpha = pixel_mask(paint, feather)[0].numpy()
    assert (alpha[scene.slits] >= 0.99).all()
    assert (alpha[scene.hand] == 0).all()
    short = np.zeros((320, 320), bool)
    short[20:200, 20:300] = True
    short[200:220, 100:103] = True  # out of a broad garment, between two hands
    slit = np.zeros_like(short)
    slit[200:220, 100:103] = True
    assert (masks.inward_feather(short, feather, True)[slit] == 1).all()
    rim = short & ~slit & (distance.inside_distance(short) <= 1)
    rim[194:, 94:109] = False  # the slit's mouth
    assert masks.inward_feather(short, feather, True)[rim].max() < 0.5


def test_keep_thin_leaves_a_broad_outline_feathered():
    y, x = np.mgrid[:200, :160]
    ellipse = np.hypot((x - 80) / 60, (y - 100) / 80) <= 1
    alpha = masks.inward_feather(ellipse, 4, True)
    rim = ellipse & (distance.inside_distance(ellipse) <= 1)
    assert (alpha[rim] == 1).mean() < 0.05
    turned = (np.abs((x - 80) * 0.8 + (y - 100) * 0.6) < 40) & (np.abs((x - 80) * 0.6 - (y - 100) * 0.8) < 50)
    square = (np.abs(x - 80) < 40) & (np.abs(y - 100) < 50)
    for corners in (turned, square, distance.grow(square, 2)):
        rim = corners & (distance.inside_distance(corners) <= 1)
        for px in (4, 8, 16, 32):
            assert masks.inward_feather(corners, px, True)[rim].max() < 0.5


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_filled_and_nothing_is_closed(seed):
    """The wall towards the compositor: what is outside the mask has alpha 0, what is inside more, whatever is set; and
    what is painted lies in the grown garment and on no hand."""
    rng = np.random.default_rng(seed)
    wanted, hands = (random_mask(seed + k, (40, 44), (0.5, 0.9, 0.99)[seed % 3]) for k in (0, 50))
    mask, over = (torch.from_numpy(m).float()[None] for m in (wanted, ~hands))
    for feather in (0, 1, 4, 16, 64):
        for mode in ("inward", "hard"):
            for keep_thin in (True, False):
                alpha = pixel_mask(mask, feather, mode, keep_thin)[0].numpy()
                assert np.array_equal(alpha > 0, wanted)
    for grow_px in (-3, 0, 2, 9):
        for keep_holes in (True, False):
            clear = int(rng.integers(0, 4))
            paint = subtract_occluders(mask, over, grow_px, clear, keep_holes=keep_holes).paint[0].numpy() > 0
            assert not (paint & ~distance.grow(wanted, grow_px)).any()
            assert not (paint & distance.grow(~hands, clear)).any()
            if not keep_holes:
                assert np.array_equal(paint, distance.grow(wanted, grow_px) & ~distance.grow(~hands, clear))


def test_growing_comes_first(scene):
    done = subtract_occluders(scene.mask, scene.occluders, grow_px=8)
    assert not (done.paint[0].numpy().astype(bool) & scene.hand).any()
    reversed_order = distance.grow(scene.garment & ~scene.hand, 8)
    swallowed = int((reversed_order & scene.hand).sum())
    assert swallowed > 0.4 * scene.hand.sum()


def test_grown_garment_swallows_the_hem_and_keeps_its_holes():
    garment = np.zeros((60, 60), bool)
    garment[10:50, 10:50] = True
    garment[25:33, 25:33] = False
    mask, none = torch.from_numpy(garment).float()[None], torch.zeros(1, 60, 60)
    kept = subtract_occluders(mask, none, grow_px=6).paint[0].numpy() > 0
    assert kept[4:56, 20].all()
    assert not kept[25:33, 25:33].any()
    filled = subtract_occluders(mask, none, grow_px=6, keep_holes=False).paint[0].numpy() > 0
    assert filled[25:33, 25:33].all()
    shrunk = subtract_occluders(mask, none, grow_px=-2).paint[0].numpy() > 0
    assert np.array_equal(shrunk, naive_distance(garment) > 2)


def test_holes_are_what_no_way_leads_out_of():
    ring = np.zeros((12, 12), bool)
    ring[2:9, 2:9] = True
    ring[4:7, 4:7] = False
    assert masks.holes(ring).sum() == 9
    ring[5, :4] = False  # a way out
    assert masks.holes(ring).sum() == 0
    touching = np.zeros((6, 6), bool)
    touching[2:4] = True  # from edge to edge: two outsides, no hole
    assert masks.holes(touching).sum() == 0


def test_the_report_counts(scene):
    done = subtract_occluders(scene.mask, scene.occluders, grow_px=0)
    hidden = 100 * (scene.garment & scene.hand).sum() / scene.garment.sum()
    assert f"{hidden:.1f} % of the garment" in done.report
    assert f"garment {scene.garment.sum()} px, hands {scene.hand.sum()} px" in done.report
    assert f"narrowest gap between fingers to paint: {min(SLITS)} px (frame 0)" in done.report
    assert "warning" not in done.report
    assert f"frame by frame: 0 {hidden:.0f}" in done.report
    away = scene.occluders.repeat(5, 1, 1)
    away[3:] = 0
    assert f"frame by frame: 0-2 {hidden:.0f}, 3-4 0" in subtract_occluders(scene.mask, away).report
    wide = subtract_occluders(scene.mask, scene.occluders, clearance_px=3)
    assert "warning: clearance 3 px" in wide.report
    assert not (wide.paint[0].numpy() > 0)[scene.slits].any()


def test_one_mask_serves_all_frames_and_other_lengths_are_refused(scene):
    hands = scene.occluders.repeat(3, 1, 1)
    hands[2] = 0
    done = subtract_occluders(scene.mask, hands)
    assert done.paint.shape == hands.shape
    assert done.paint[2].sum() == scene.garment.sum()
    with pytest.raises(ValueError, match=r"Subtract Occluders: .* is [23] frames; expected [23]"):
        subtract_occluders(scene.mask.repeat(2, 1, 1), hands)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (torch.full((5, 8, 8), float("nan")), "nan..nan from frame 0"),
        (torch.full((1, 8, 8), float("inf")), "inf"),
        (torch.full((1, 8, 8), 255.0), "finite values in 0..1"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), "torch.uint8"),
        (torch.zeros(1, 8, 8, 1), "a MASK, float"),
        (torch.zeros(1, 8, 9), "9x8; expected 8x8, the size of images"),
        (torch.zeros(4, 8, 8), "4 frames; expected 5 as images, or 1"),
    ],
)
def test_masks_that_are_refused(mask, text):
    with pytest.raises(ValueError, match="Node: mask is") as error:
        check_mask("Node", "mask", mask, 5, (8, 8))
    assert text in str(error.value)


def test_a_nan_in_a_late_frame_is_found():
    mask = torch.zeros(20, 4, 4)
    mask[17, 2, 2] = float("nan")
    with pytest.raises(ValueError, match="from frame 16"):
        pixel_mask(mask)
    with pytest.raises(ValueError, match="drop an alpha channel"):
        check_images("Node", "images", torch.zeros(1, 4, 4, 4))


def test_binary_at_the_threshold_and_the_input_stays():
    mask = torch.tensor([[[0.49, 0.5, 0.51, 1.0]]])
    before = mask.clone()
    assert pixel_mask(mask, feather_mode="hard").tolist() == [[[0, 1, 1, 1]]]
    assert pixel_mask(mask, feather_px=0, threshold=0.51).tolist() == [[[0, 0, 1, 1]]]
    done = subtract_occluders(mask, 1 - mask, threshold=0.51)
    assert (done.paint.tolist(), done.occluders.tolist()) == ([[[0, 0, 1, 1]]], [[[1, 0, 0, 0]]])
    done = subtract_occluders(mask, torch.zeros_like(mask) + 0.5, threshold=0.5)
    assert (done.paint.tolist(), done.occluders.tolist()) == ([[[0, 0, 0, 0]]], [[[1, 1, 1, 1]]])
    assert subtract_occluders(mask, torch.zeros_like(mask)).paint.tolist() == [[[0, 1, 1, 1]]]
    assert torch.equal(mask, before)


def test_a_stop_is_obeyed():
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 1

    with pytest.raises(RunCancelled):
        pixel_mask(torch.ones(40, 8, 8), ctx=RunContext(is_cancelled=stop))
    assert len(asked) == 2


def test_the_picture_s_edge_is_no_outline_in_a_crop_that_hangs_over_it():
    """A garment as wide as a picture of 54 px, align 16: the box is 64 px and hangs over by 4 and 6."""
    picture = torch.zeros(2, 96, 54)
    picture[:, 20:80] = 1
    crop = subject_crop(torch.rand(2, 96, 54, 3), picture, BoxRules(16, 0.0))
    assert crop.stitch.padded
    (rows, columns), (own_rows, own_columns) = crop.stitch.window(0)
    whole, alpha = pixel_mask(picture, 4), pixel_mask(crop.mask, 4, stitch=crop.stitch)
    assert alpha.shape == crop.mask.shape
    assert torch.equal(alpha[:, own_rows, own_columns], whole[:, rows, columns])
    outside = torch.ones_like(alpha, dtype=torch.bool)
    outside[:, own_rows, own_columns] = False
    assert outside.any()
    assert (alpha[outside] == 0).all()
    # Without the stitch the feather fades towards the border.
    assert (pixel_mask(crop.mask, 4)[:, own_rows, own_columns] < whole[:, rows, columns]).any()
    one = pixel_mask(crop.mask[:1], 4, stitch=crop.stitch)
    assert torch.equal(one, alpha)
    assert torch.equal(pixel_mask(crop.mask, 4, "hard", stitch=crop.stitch), (crop.mask >= 0.5).float())
    with pytest.raises(ValueError, match="Pixel Mask.*mask.*the crop of stitch"):
        pixel_mask(picture, 4, stitch=crop.stitch)
    with pytest.raises(ValueError, match="stitch"):
        pixel_mask(crop.mask, 4, stitch=picture)


@pytest.mark.parametrize(("feather", "side"), [(4, 3), (8, 3), (8, 7), (12, 9), (32, 20)])
def test_a_part_that_stands_alone_is_thin_however_small(feather, side):
    """A hole between fingers, smaller than the feather: a disc of its radius reaches none of it."""
    mask = torch.zeros(1, 96, 96)
    mask[:, 40 : 40 + side, 40 : 40 + side] = 1
    assert torch.equal(pixel_mask(mask, feather), mask)
    assert float(pixel_mask(mask, feather, keep_thin=False).max()) < 1


def test_no_feather_along_the_hands(scene):
    """Beside a hand the new garment is whole, so that no line of the old one shows; towards the wall it is soft as ever."""
    done = subtract_occluders(scene.mask, scene.occluders, 8)
    plain, kept = pixel_mask(done.paint, 4), pixel_mask(done.paint, 4, occluders=done.occluders)
    beside = torch.nn.functional.max_pool2d(done.occluders, 5, 1, 2) * done.paint > 0
    whole = pixel_mask(((done.paint + done.occluders) > 0).float(), 4)
    assert torch.equal(kept, whole * done.paint)
    assert float(kept[beside & (whole == 1)].min()) == 1
    assert float(plain[beside & (whole == 1)].min()) < 0.5
    assert (kept[done.occluders > 0] == 0).all()
    assert ((kept > 0) & (kept < 1)).any(), "the outline is soft"
    crop = subject_crop(torch.rand(*done.paint.shape, 3), done.paint, BoxRules(16))
    cut = pixel_mask(crop.mask, 4, stitch=crop.stitch, occluders=done.occluders)  # the hands of the full frame
    (rows, columns), (own_rows, own_columns) = crop.stitch.window(0)
    assert torch.equal(cut[:, own_rows, own_columns], kept[:, rows, columns])
    with pytest.raises(ValueError, match="occluders"):
        pixel_mask(done.paint, 4, occluders=done.occluders[:, :-1])
