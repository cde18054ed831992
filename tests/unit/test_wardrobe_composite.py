"""From the full frames to the crop and back: nothing outside the mask changes by a single bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from wardrobe_scene import BLUE, HandScene, photo

from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.wardrobe.composite import blend, blockiness, composite
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.masks import pixel_mask, subtract_occluders
from talkinghead.nodes.wardrobe.plan import BoxRules
from talkinghead.nodes.wardrobe.stitch import Stitch


def noise(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def walking_mask(n=10, height=96, width=160, side=20):
    mask = torch.zeros(n, height, width)
    for t in range(n):
        mask[t, 30 : 30 + side, 10 + 11 * t : 10 + 11 * t + side] = 1
    return mask


def random_case(seed):
    rng = np.random.default_rng(seed)
    n, height, width = (int(v) for v in rng.integers((1, 20, 20), (5, 90, 90)))
    mask = np.zeros((n, height, width), np.float32)
    for t in range(n):
        y, x = int(rng.integers(0, height)), int(rng.integers(0, width))
        mask[t, y : y + int(rng.integers(1, height)), x : x + int(rng.integers(1, width))] = 1
    rules = BoxRules(
        int(rng.choice([2, 8, 16, 32])),
        float(rng.choice([0, 0.12])),
        int(rng.integers(0, 9)),
        str(rng.choice(["pad", "pad", "shrink"])),
    )
    return noise(n, height, width, 3, seed=seed), torch.from_numpy(mask), rules


@pytest.mark.parametrize("mode", ["static", "tracked"])
@pytest.mark.parametrize("seed", range(30))
def test_crop_and_uncrop_is_the_identity(seed, mode):
    images, mask, rules = random_case(seed)
    if rules.overflow == "shrink" and min(images.shape[1:3]) < rules.align:
        rules = BoxRules(2, overflow="shrink")
    crop = subject_crop(images, mask, rules, mode)
    n, (w, h) = len(images), crop.stitch.size
    assert crop.images.shape == (n, h, w, 3)
    assert crop.mask.shape == (n, h, w)
    assert w % rules.align == h % rules.align == 0
    assert not (crop.stitch.boxes % 2).any()
    assert len({tuple(b[2:]) for b in crop.stitch.boxes}) == 1
    assert mode == "tracked" or len({tuple(b) for b in crop.stitch.boxes}) == 1
    if rules.overflow == "pad":
        assert float(crop.mask.sum()) == float(mask.sum())
    else:
        cut = int(mask.sum() - crop.mask.sum())
        assert (f"{cut} px of it are cut off" in " ".join(crop.notes)) == (cut > 0)
    whole = torch.ones(n, h, w)
    assert torch.equal(composite(images, crop.images, crop.stitch, whole), images)
    black = composite(images, torch.zeros_like(crop.images), crop.stitch, crop.mask, "ignore")
    inside = mask > 0
    if rules.overflow == "pad":
        assert (black[inside] == 0).all()
    assert torch.equal(black[~inside], images[~inside])


def test_bits_at_both_ends_whatever_stands_outside():
    source, generated = noise(3, 40, 50, 3), noise(3, 40, 50, 3, seed=1)
    alpha = noise(3, 40, 50, seed=2)
    alpha[alpha < 0.3], alpha[alpha > 0.7] = 0, 1
    dirty = generated.clone()
    dirty[alpha == 0] = float("nan")
    crop = subject_crop(source, torch.ones(3, 40, 50), BoxRules(2))
    assert crop.stitch.size == (50, 40)
    made = composite(source, dirty, crop.stitch, alpha)
    assert not ((made != source).any(-1) & (alpha == 0)).any()
    assert torch.equal(made[alpha == 1], generated[alpha == 1])
    mixed = (alpha > 0) & (alpha < 1)
    wanted = source + (generated - source) * alpha[..., None]
    assert torch.allclose(made[mixed], wanted[mixed], atol=1e-6)
    dirty[1][alpha[1] > 0] = float("inf")
    with pytest.raises(ValueError, match="generated is not finite inside the mask in frame 1"):
        composite(source, dirty, crop.stitch, alpha)


def test_what_is_not_finite_is_blamed_on_who_brings_it():
    source, generated = noise(2, 32, 32, 3), noise(2, 32, 32, 3, seed=1)
    alpha = torch.zeros(2, 32, 32)
    alpha[:, 8:24, 8:24] = 1
    alpha[:, 10, 10] = 0.5
    crop = subject_crop(source, torch.ones(2, 32, 32))
    wanted = composite(source, generated, crop.stitch, alpha)
    for bad in (float("nan"), float("inf")):
        # Outside the mask it stays, where alpha is 1 it is not there any more.
        dirty = source.clone()
        dirty[1, 0, 0], dirty[1, 12, 12] = bad, bad
        made = composite(dirty, generated, crop.stitch, alpha)
        assert torch.equal(made[:, 8:24, 8:24], wanted[:, 8:24, 8:24])
        assert torch.equal(made[1, 0, 0].nan_to_num(), dirty[1, 0, 0].nan_to_num())
        dirty[1, 10, 10] = bad
        with pytest.raises(ValueError, match="source is not finite inside the mask in frame 1"):
            composite(dirty, generated, crop.stitch, alpha)
        worse = generated.clone()
        worse[0, 12, 12, 1] = bad
        with pytest.raises(ValueError, match="generated is not finite inside the mask in frame 0"):
            composite(source, worse, crop.stitch, alpha)


def test_an_alpha_that_overshoots_is_one():
    source, generated = noise(1, 32, 32, 3), noise(1, 32, 32, 3, seed=1)
    crop = subject_crop(source, torch.ones(1, 32, 32))
    alpha = torch.full((1, 32, 32), 1.0009)
    alpha[:, :16] = -0.0009
    made = composite(source, generated, crop.stitch, alpha)
    assert torch.equal(made[:, :16], source[:, :16])
    assert torch.equal(made[:, 16:], generated[:, 16:])


def test_blend_rounds_at_neither_end():
    source, generated = noise(100, 100, 3), noise(100, 100, 3, seed=4)
    assert torch.equal(blend(source, generated, torch.zeros(100, 100)), source)
    assert torch.equal(blend(source, generated, torch.ones(100, 100)), generated)


def test_thin_things_through_the_whole_chain():
    scene = HandScene()
    source, generated = photo(scene), photo(scene, BLUE)
    paint = subtract_occluders(scene.mask, scene.occluders, grow_px=8)
    crop = subject_crop(source, scene.mask)
    x, y, w, h = crop.stitch.boxes[0]
    box = (slice(y, y + h), slice(x, x + w))
    alpha = pixel_mask(paint.paint[:, box[0], box[1]])
    other = torch.full_like(crop.images, 0.123)
    made = composite(source, other, crop.stitch, alpha)[0].numpy()
    assert (made[scene.slits] == np.float32(0.123)).all()
    assert (made[scene.strands] == source[0].numpy()[scene.strands]).all()
    assert (made[scene.hand] == source[0].numpy()[scene.hand]).all()
    assert generated.shape == source.shape


def test_occluders_keep_their_pixels_even_from_a_careless_mask():
    scene = HandScene()
    source = photo(scene)
    crop = subject_crop(source, scene.mask)
    x, y, w, h = crop.stitch.boxes[0]
    hands = scene.occluders[:, y : y + h, x : x + w]
    made = composite(source, torch.zeros_like(crop.images), crop.stitch, torch.ones(1, h, w), "error", hands)
    same = (made == source).all(-1)[0].numpy()
    assert same[scene.hand].all()
    assert not same[scene.slits].any()


def test_a_mask_at_the_right_edge_shifts_the_box_inside():
    """Row 40 of the reports: no mirrored content, and everything outside the mask byte-equal."""
    source = noise(4, 360, 640, 3)
    mask = torch.zeros(4, 360, 640)
    mask[:, 100:260, 560:640] = 1
    crop = subject_crop(source, mask)
    x, y, w, h = crop.stitch.boxes[0]
    assert not crop.stitch.padded
    assert x + w <= 640
    assert torch.equal(crop.images, source[:, y : y + h, x : x + w])
    made = composite(source, torch.zeros_like(crop.images), crop.stitch, pixel_mask(crop.mask))
    outside = mask == 0
    assert torch.equal(made[outside], source[outside])
    assert (made[:, 180, 639] == 0).all()


def test_a_box_wider_than_the_picture_repeats_its_edge():
    source = noise(2, 64, 30, 3)
    mask = torch.ones(2, 64, 30)
    crop = subject_crop(source, mask)
    assert crop.stitch.padded
    assert crop.stitch.boxes[0].tolist() == [-2, 0, 32, 64]
    assert torch.equal(crop.images[:, :, 2:], source)
    assert torch.equal(crop.images[:, :, 0], source[:, :, 0])
    assert torch.equal(crop.images[:, :, 1], source[:, :, 0])
    assert (crop.mask[:, :, :2] == 0).all()


@pytest.mark.parametrize("mode", ["static", "tracked"])
def test_one_pixel_and_a_subject_at_all_four_borders(mode):
    images = noise(2, 50, 70, 3)
    for y, x in ((0, 0), (0, 69), (49, 0), (49, 69), (25, 31)):
        mask = torch.zeros(2, 50, 70)
        mask[:, y, x] = 1
        crop = subject_crop(images, mask, BoxRules(8), mode)
        assert crop.stitch.size == (8, 8)
        assert float(crop.mask.sum()) == 2
        assert not crop.stitch.padded
    frame = torch.ones(2, 50, 70)
    frame[:, 1:-1, 1:-1] = 0  # a line along all four borders
    crop = subject_crop(images, frame, BoxRules(32), mode)
    assert crop.stitch.padded
    assert crop.stitch.size == (96, 64)
    assert not (crop.stitch.boxes % 2).any()
    assert float(crop.mask.sum()) == float(frame.sum())
    made = composite(images, torch.zeros_like(crop.images), crop.stitch, crop.mask, "ignore")
    assert (made[frame > 0] == 0).all()
    assert torch.equal(made[frame == 0], images[frame == 0])


def test_a_tracked_box_that_jumps_holds_its_subject_and_closes():
    """A tracker that is somewhere else in every frame: the box still holds it, and for a loop ends where it begins."""
    rng, n = np.random.default_rng(4), 24
    images, mask = noise(n, 64, 200, 3), torch.zeros(n, 64, 200)
    for t in range(n):
        x, y = int(rng.integers(0, 180)), int(rng.integers(0, 44))
        mask[t, y : y + 20, x : x + 20] = 1
    for wrap in (False, True):
        crop = subject_crop(images, mask, BoxRules(16, 0.1), "tracked", wrap=wrap)
        assert float(crop.mask.sum()) == float(mask.sum())
        assert crop.stitch.size == (32, 32)
        assert not crop.stitch.padded
        black = composite(images, torch.zeros_like(crop.images), crop.stitch, crop.mask, "ignore")
        assert torch.equal(black[mask == 0], images[mask == 0])
    y, x = torch.meshgrid(torch.arange(64), torch.arange(200), indexing="ij")
    for t in range(n):  # there and back: the way over the seam is no longer than the others
        mask[t] = (torch.hypot(x - 100 - 60 * np.sin(2 * np.pi * t / n + 1), y - 32.0) < 10).float()
    path = subject_crop(images, mask, BoxRules(16, 0.1), "tracked", wrap=True).stitch.boxes[:, 0]
    assert abs(int(path[0]) - int(path[-1])) <= np.abs(np.diff(path)).max()


def test_a_tracked_box_follows():
    images, mask = noise(10, 96, 160, 3), walking_mask()
    crop = subject_crop(images, mask, BoxRules(16, 0.1), "tracked")
    assert crop.stitch.size == (32, 32)
    assert crop.stitch.boxes[0, 0] < crop.stitch.boxes[-1, 0]
    assert float(crop.mask.sum()) == float(mask.sum())
    lost = mask.clone()
    lost[4] = 0
    noted = subject_crop(images, lost, BoxRules(16, 0.1), "tracked")
    assert "empty in 1 frames" in " ".join(noted.notes)
    with pytest.raises(ValueError, match=r"Subject Crop: mask is empty in all 10 frames; expected something"):
        subject_crop(images, torch.zeros_like(mask))


@pytest.mark.parametrize(("length", "rule"), [("trim", "4k+1"), ("repeat_last", "4k+1")])
def test_left_out_frames_come_back_untouched(length, rule):
    images, mask = noise(10, 96, 160, 3), walking_mask()
    crop = subject_crop(images, mask, BoxRules(16), "static", rule, length)
    made = {"trim": 9, "repeat_last": 13}[length]
    assert crop.images.shape[0] == crop.mask.shape[0] == crop.stitch.frames == made
    assert crop.stitch.kept == min(10, made)
    if length == "repeat_last":
        assert torch.equal(crop.images[9:], crop.images[9:10].expand(4, -1, -1, -1))
        assert torch.equal(crop.mask[10:], crop.mask[9:10].expand(3, -1, -1))
    back = composite(images, 1 - crop.images, crop.stitch, torch.ones(crop.mask.shape))
    x, y, w, h = crop.stitch.boxes[0]
    wanted = images.clone()
    wanted[: crop.stitch.kept, y : y + h, x : x + w] = 1 - wanted[: crop.stitch.kept, y : y + h, x : x + w]
    assert torch.equal(back, wanted)
    with pytest.raises(ValueError, match="images is 10 frames; expected a length of 4k\\+1: 9 or 13"):
        subject_crop(images, mask, frame_rule="4k+1")


def test_a_stream_gives_the_same_crop_and_a_lazy_answer():
    frames = (noise(19, 48, 64, 3) * 255).to(torch.uint8)
    stream, images = TensorStream(frames, Fraction(24)), frames.float() / 255
    mask = torch.zeros(19, 48, 64)
    mask[:, 10:30, 20:50] = 1
    one, two = (subject_crop(s, mask, BoxRules(16)) for s in (images, stream))
    assert torch.equal(one.images, two.images)
    assert one.stitch.mask_digest == two.stitch.mask_digest
    alpha = pixel_mask(one.mask)
    whole = composite(images, 1 - one.images, one.stitch, alpha)
    lazy = composite(stream, 1 - two.images, two.stitch, alpha)
    assert lazy.info == stream.info
    for n in (1, 5, 100):
        parts = [c.frames for c in lazy.chunks(RunContext(), n)]
        assert max(len(p) for p in parts) <= n
        again = torch.cat(parts)
        assert torch.equal(again, (whole * 255).round().to(torch.uint8))
    x, y = one.stitch.boxes[0, :2]
    full = torch.zeros(19, 48, 64)
    full[:, y : y + alpha.shape[1], x : x + alpha.shape[2]] = alpha
    assert torch.equal(again[full == 0], frames[full == 0])


def test_what_does_not_fit_is_refused():
    images, mask = noise(5, 48, 64, 3), torch.zeros(5, 48, 64)
    mask[:, 10:30, 20:50] = 1
    crop = subject_crop(images, mask, BoxRules(16))
    good = (images, crop.images, crop.stitch, crop.mask)
    cases = (
        (
            (images[:4], *good[1:]),
            "source is 4 frames of 64x48; expected 5 frames of 64x48, what was cropped",
        ),
        (
            (images, crop.images[:, ::2, ::2], *good[2:]),
            "generated is 24x16; expected 48x32, the size of the crop",
        ),
        ((images, crop.images[:3], *good[2:]), "generated is 3 frames; expected 5 as the crop"),
        ((*good[:3], crop.mask[:, ::8, ::8]), "mask is 6x4; expected 48x32.*of the latent"),
        ((*good[:3], mask), "mask is 64x48; expected 48x32"),
    )
    for given, text in cases:
        with pytest.raises(ValueError, match="Wardrobe Composite: " + text):
            composite(*given)
    with pytest.raises(ValueError, match="align is 7; expected an even number"):
        subject_crop(images, mask, BoxRules(7))
    for rules, text in (
        (BoxRules(0), "align is 0; expected 2..128"),
        (BoxRules(130), "align is 130"),
        (BoxRules(32, -0.1), "pad_fraction is -0.1; expected 0..2"),
        (BoxRules(32, float("nan")), "pad_fraction is nan"),
        (BoxRules(32, 0.1, -1), "pad_px is -1; expected 0..1024"),
        (BoxRules(32, overflow="mirror"), "overflow is 'mirror'; expected one of pad, shrink, error"),
    ):
        with pytest.raises(ValueError, match="Subject Crop: " + text):
            subject_crop(images, mask, rules)


def blocky_copy(mask, cell):
    h, w = mask.shape[1] // cell, mask.shape[2] // cell
    cells = mask.reshape(len(mask), h, cell, w, cell).amax((2, 4))
    return cells.repeat_interleave(cell, 1).repeat_interleave(cell, 2)


def test_natural_outlines_pass_and_token_masks_do_not():
    scene = HandScene()
    y, x = torch.meshgrid(torch.arange(192), torch.arange(160), indexing="ij")
    ellipse = (torch.hypot((x - 80) / 50, (y - 90) / 70) <= 1).float()[None]
    paint = subtract_occluders(ellipse, scene.occluders, 3).paint
    for natural in (ellipse, pixel_mask(paint)):
        assert blockiness(natural).share <= 0.26
    for cell in (8, 16, 32):
        token = blocky_copy(ellipse, cell)
        assert (blockiness(token).grid, blockiness(token).share) == (cell, 1.0)
        assert blockiness(token).suspicious
        assert blockiness(pixel_mask(token, 4)).suspicious
    blurred = torch.nn.functional.avg_pool2d(token[None], 5, 1, 2)[0]  # a feather to both sides
    assert blockiness(blurred).suspicious
    images = noise(1, 192, 160, 3)
    crop = subject_crop(images, torch.ones(1, 192, 160))
    with pytest.raises(
        ValueError, match=r"mask is blocky: 100% of its outline lies on a grid of 32 px; expected"
    ):
        composite(images, crop.images, crop.stitch, token)
    ctx = RunContext()
    composite(images, crop.images, crop.stitch, token, "warn", ctx=ctx)
    assert "is blocky" in ctx.report.text()
    assert torch.equal(composite(images, crop.images, crop.stitch, torch.ones(1, 192, 160)), images)
    drawn = torch.zeros(1, 192, 160)
    drawn[:, 32:160, 32:96] = 1  # somebody's rectangle, on the grid by chance
    assert blockiness(drawn).share == 1
    assert torch.equal(composite(images, crop.images, crop.stitch, drawn), images)


def test_a_token_mask_in_part_of_the_frames_or_with_hands_taken_out_is_told():
    scene = HandScene()
    y, x = torch.meshgrid(torch.arange(192), torch.arange(160), indexing="ij")
    ellipse = (torch.hypot((x - 80) / 50, (y - 90) / 70) <= 1).float()[None].repeat(20, 1, 1)
    token = blocky_copy(ellipse, 16)
    some = ellipse.clone()
    some[3:9] = token[3:9]
    assert blockiness(some).suspicious
    once = ellipse.clone()
    once[3] = token[3]  # an accident of one frame is no token mask
    assert not blockiness(once).suspicious
    cut = subtract_occluders(token, scene.occluders).paint
    images = noise(20, 192, 160, 3)
    ctx = RunContext()
    composite(images, images, Stitch.whole((20, 192, 160)), cut, ctx=ctx)
    assert 0.4 < blockiness(cut).share <= 0.8
    assert "mask is blocky" in ctx.report.text()
    quiet = RunContext()
    natural = subtract_occluders(ellipse, scene.occluders).paint
    composite(images, images, Stitch.whole((20, 192, 160)), pixel_mask(natural), ctx=quiet)
    assert "blocky" not in quiet.report.text()
