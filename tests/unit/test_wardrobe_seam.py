"""Colours at the seam, and the real hands on top of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from wardrobe_scene import BLUE, BURGUNDY, HandScene, delta_e, depth, photo

from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.wardrobe.composite import composite
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.latent_mask import NAMED_GRIDS, latent_mask
from talkinghead.nodes.wardrobe.masks import pixel_mask, subtract_occluders
from talkinghead.nodes.wardrobe.repaste import repaste
from talkinghead.nodes.wardrobe.seam import fit_gain, seam_blend, steady
from talkinghead.nodes.wardrobe.stitch import Stitch


def smooth(n=3, height=96, width=128, seed=0):
    """Return a picture with soft structure, IMAGE (n,h,w,3) in 0.2..0.8."""
    coarse = torch.rand(n, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (0.2 + 0.6 * fine).permute(0, 2, 3, 1).contiguous()


def middle(n=3, height=96, width=128):
    mask = torch.zeros(n, height, width)
    mask[:, 32:64, 48:80] = 1
    return mask


@pytest.mark.parametrize("with_latent", [True, False])
def test_context_gain_undoes_the_decoders_drift(with_latent):
    source, mask = smooth(12, 192, 224), torch.zeros(12, 192, 224)
    mask[:, 70:110, 80:120] = 1
    truth = source.clone()
    truth[:, 70:110, 80:120] = torch.tensor(BLUE)
    gain, offset = torch.tensor([1.06, 0.95, 1.02]), torch.tensor([-0.02, 0.015, 0.0])
    drifted = (truth - offset) / gain
    latent = latent_mask(mask, NAMED_GRIDS["sd"]) if with_latent else None
    fit = fit_gain(drifted[0, :60].reshape(-1, 3).numpy(), source[0, :60].reshape(-1, 3).numpy())
    assert np.abs(fit[:, 0] - gain.numpy()).max() < 0.02
    assert np.abs(fit[:, 1] - offset.numpy()).max() < 0.01
    made = seam_blend(drifted, source, mask, "context_gain", latent)
    assert float((drifted - truth).abs().max()) > 0.02
    assert float((made - truth).abs().max()) < 0.004
    # The garment stays blue: it has no say in the fit.
    assert torch.allclose(made[:, 80, 90], torch.tensor(BLUE).expand(12, 3), atol=0.004)


def test_context_gain_leaves_a_true_picture_alone_and_keeps_its_limits():
    source, mask = smooth(), middle()
    assert torch.equal(
        seam_blend(source, source, mask, "context_gain", latent_mask(mask, NAMED_GRIDS["sd"])), source
    )
    assert torch.equal(seam_blend(source, source, mask, "none"), source)
    wild = fit_gain(np.full((2000, 3), 0.2), np.full((2000, 3), 0.9))
    assert ((wild[:, 0] >= 0.9) & (wild[:, 0] <= 1.1)).all()
    assert (np.abs(wild[:, 1]) <= 0.03).all()
    flat = np.random.default_rng(0).normal(0.5, 1e-4, (2000, 3))
    assert np.allclose(fit_gain(flat, flat + 0.01)[:, 0], 1, atol=0.02)
    ctx = RunContext()
    whole = torch.ones_like(mask)
    assert torch.equal(seam_blend(source, 0.9 * source, whole, "context_gain", ctx=ctx), source)
    assert "3 of 3 frames have too little untouched context" in ctx.report.text()


@pytest.mark.parametrize(("texture", "noise"), [(0.0, 2.0), (0.02, 1.5), (0.1, 1.5)])
@pytest.mark.parametrize("smoothed", [False, True])
def test_noise_is_no_drift(texture, noise, smoothed):
    """On a plain wall neither noise that a decoder adds nor grain that it takes away moves the garment's colour."""
    rng = torch.Generator().manual_seed(2)
    pattern = torch.nn.functional.interpolate(torch.randn(1, 1, 16, 16, generator=rng), (256, 256))[0, 0]
    clean = (0.5 + texture * pattern)[None, ..., None].repeat(12, 1, 1, 3)
    noisy = clean + noise / 255 * torch.randn(clean.shape, generator=rng)
    source, generated = (noisy, clean.clone()) if smoothed else (clean, noisy)
    mask = torch.zeros(12, 256, 256)
    mask[:, 100:156, 100:156] = 1
    generated[:, 100:156, 100:156] = 0.9
    made = seam_blend(generated, source, mask)
    assert abs(float(made[:, 110:146, 110:146].mean()) - 0.9) < 1 / 255


def test_one_odd_frame_does_not_flicker():
    fits = np.tile([1.02, 0.01], (20, 3, 1))
    fits[7] = (1.1, -0.03)
    fits[8] = np.nan
    assert np.allclose(steady(fits), [1.02, 0.01])
    assert np.allclose(steady(np.full((4, 3, 2), np.nan)), [1, 0])


def test_reinhard_brings_statistics_and_so_the_old_garment_back():
    source, mask = smooth(1), middle(1)
    inside = mask[0].bool()
    tinted = (source * 0.8 + 0.05).clamp(0, 1)
    made = seam_blend(tinted, source, mask, "reinhard_lab")
    assert torch.equal(made[0][~inside], tinted[0][~inside])
    before, after = (float((x[0][inside] - source[0][inside]).abs().mean()) for x in (tinted, made))
    assert after < 0.25 * before
    # Why it is not for garments.
    burgundy = source * 0 + torch.tensor(BURGUNDY)
    blue = source * 0 + torch.tensor(BLUE)
    back = seam_blend(blue, burgundy, mask, "reinhard_lab")[0][inside]
    assert torch.allclose(back, torch.tensor(BURGUNDY).expand_as(back), atol=0.02)


def test_poisson_is_the_identity_up_to_a_level_at_borders_and_for_two_blobs():
    source = (smooth(1) * 255).round() / 255
    masks = torch.zeros(4, 96, 128)
    masks[0, 20:60, 30:90] = 1
    masks[1, 0:40, 0:50] = 1
    masks[2, 60:96, 80:128] = 1
    masks[3, 5:30, 5:40], masks[3, 60:90, 70:120] = 1, 1
    for mask in (*masks, torch.ones(96, 128)):
        made = seam_blend(source, source, mask[None], "poisson")
        assert float((made - source).abs().max()) * 255 <= 1.01
    for height, width in ((1, 1), (1, 30), (30, 2), (2, 2), (3, 3)):
        tiny = torch.zeros(1, 96, 128)
        tiny[0, 40 : 40 + height, 50 : 50 + width] = 1
        assert float((seam_blend(source, source, tiny, "poisson") - source).abs().max()) * 255 <= 1.01
    line = torch.eye(96, 128)[None]
    assert float((seam_blend(source, source, line, "poisson") - source).abs().max()) * 255 <= 1.01
    none = seam_blend(source, 1 - source, torch.zeros(1, 96, 128), "poisson")
    assert torch.equal(none, source)
    tinted = (source + 0.15).clamp(0, 1)
    masks[0, 20:40, 60:90] = 0  # an L: a mask that lies another way round is another one
    healed = seam_blend(tinted, source, masks[:1], "poisson")
    inside = masks[0].bool()
    assert float((healed[0][inside] - source[0][inside]).abs().mean()) < 0.02
    assert torch.equal(healed[0][~inside], tinted[0][~inside])


def test_poisson_keeps_what_was_drawn_where_the_mask_is():
    """An L with a dot at the end of each arm: gradients come from `generated`, so both dots stay."""
    source, mask = smooth(1), torch.zeros(1, 96, 128)
    mask[0, 20:80, 30:50], mask[0, 60:80, 30:110] = 1, 1
    drawn = source.clone()
    for y, x in ((25, 40), (70, 104)):
        drawn[0, y - 2 : y + 3, x - 2 : x + 3] += 0.2
    made = seam_blend(drawn, source, mask, "poisson")
    for y, x in ((25, 40), (70, 104)):
        change = (made - source)[0].mean(2)
        assert 0.15 < float(change[y, x] - change[y, x + 3]) < 0.25


def test_poisson_paints_a_garment_in_the_plates_colour():
    plate = torch.tensor([90, 80, 70]).div(255).expand(1, 96, 128, 3).clone()
    patch = torch.tensor([190, 170, 150]).div(255).expand(1, 96, 128, 3).clone()
    mask = middle(1)
    made = seam_blend(patch, plate, mask, "poisson")[0][mask[0].bool()]
    assert float((made - plate[0, 0, 0]).abs().max()) * 255 <= 2


@pytest.mark.parametrize("mode", ["context_gain", "reinhard_lab", "poisson"])
def test_pixels_that_are_not_finite_neither_spread_nor_vanish(mode):
    source, mask = smooth(2), middle(2)
    tinted = (source * 0.97 + 0.01).clamp(0, 1)
    clean = seam_blend(tinted, source, mask, mode)
    broken = source.clone()
    broken[1, 2, 2] = float("nan")  # outside the mask, in the context
    broken[1, 40, 60] = float("inf")  # inside
    made = seam_blend(tinted, broken, mask, mode)
    assert torch.isfinite(made).all()
    if mode != "poisson":
        assert float((made - clean).abs().max()) < 0.01
    dirty = tinted.clone()
    dirty[1, 40, 60, 1] = float("nan")
    made = seam_blend(dirty, source, mask, mode)
    assert torch.isnan(made[1, 40, 60, 1])  # the compositor says so, instead of a black dot in the picture
    assert int(torch.isnan(made).sum()) == 1


def test_what_seam_blend_refuses():
    source, mask = smooth(), middle()
    for given, text in (
        ((source[:2], source, mask), "source is 3 frames; expected 2 as generated"),
        ((source, source, mask[:, :48]), "mask is 128x48; expected 128x96"),
        ((source, source, mask, "healing"), "mode is 'healing'; expected one of none, context_gain"),
        (
            (source, source, mask, "none", latent_mask(mask[:2], NAMED_GRIDS["sd"])),
            "latent_mask is of 2 frames",
        ),
    ):
        with pytest.raises(ValueError, match="Seam Blend: " + text):
            seam_blend(*given)


class Dressed:
    """The hand scene, dressed anew as the chain does it."""

    def __init__(self, clearance: int = 0, feather: int = 0, soft: float = 0.5) -> None:
        self.scene = HandScene()
        self.source, self.truth = photo(self.scene, BURGUNDY, soft), photo(self.scene, BLUE, soft)
        paint = subtract_occluders(self.scene.mask, self.scene.occluders, 2, clearance)
        crop = subject_crop(self.source, self.scene.mask)
        self.stitch = crop.stitch
        x, y, w, h = crop.stitch.boxes[0]
        self.hands = self.scene.occluders[:, y : y + h, x : x + w]
        # What a model makes: the new garment everywhere, no hands.
        self.generated = torch.tensor(BLUE).expand(1, h, w, 3).clone()
        self.alpha = pixel_mask(paint.paint[:, y : y + h, x : x + w], feather)
        self.base = composite(self.source, self.generated, crop.stitch, self.alpha)

    def paste(self, matte, **more):
        return repaste(self.base, self.source, self.hands, self.stitch, self.generated, matte, **more)

    def ring(self, image, px=6):
        """Mean colour error against the truth within `px` outside the hand, on the garment."""
        away = depth(~self.scene.hand)
        ring = (away > 0) & (away <= px) & self.scene.garment
        return float(delta_e(image, self.truth)[0][ring].mean())


def test_a_hard_repaste_after_the_chain_changes_nothing():
    for feather in (0, 4):
        dressed = Dressed(feather=feather)
        assert torch.equal(dressed.paste("hard"), dressed.base)
    careless = composite(dressed.source, dressed.generated, dressed.stitch, torch.ones_like(dressed.alpha))
    mended = repaste(careless, dressed.source, dressed.hands, dressed.stitch)
    hand = torch.from_numpy(dressed.scene.hand)
    assert torch.equal(mended[0][hand], dressed.source[0][hand])
    assert torch.equal(mended[0][~hand], careless[0][~hand])
    full = repaste(careless, dressed.source, dressed.scene.occluders)
    assert torch.equal(full, mended)


def test_clearance_leaves_a_halo_and_the_colour_line_takes_it_away():
    none, six = Dressed(0), Dressed(6)
    hard, halo = none.ring(none.paste("hard")), six.ring(six.paste("hard"))
    line = none.ring(none.paste("colour_line"))
    assert hard < 8
    assert halo > 25
    assert line < 0.1 * hard
    # Slits and strands of 3 px too, which have no colour of their own that is not mixed.
    slits, strands = none.scene.slits, none.scene.strands
    error = delta_e(none.paste("colour_line"), none.truth)[0]
    assert error[slits].mean() < 0.5
    assert error[strands].mean() < 0.5
    assert error[slits | strands].max() < 2
    for feather in (0, 4):
        dressed = Dressed(feather=feather)
        made = dressed.paste("colour_line")
        core = torch.from_numpy(depth(dressed.scene.hand) > 4)
        assert torch.equal(made[0][core], dressed.source[0][core])
        edge = torch.from_numpy((depth(dressed.scene.hand) <= 4) & dressed.scene.hand)
        errors = [delta_e(x, dressed.truth)[0][edge.numpy()].mean() for x in (dressed.paste("hard"), made)]
        assert errors[1] < errors[0]


def test_the_core_of_a_structured_hand_keeps_its_bits():
    """Skin is not one colour: deeper than the band nothing is taken for a mixture."""
    dressed = Dressed()
    hand = torch.from_numpy(dressed.scene.hand)
    grain = torch.rand(hand.shape, generator=torch.Generator().manual_seed(3))[..., None] * 0.3
    source = dressed.source.clone()
    source[0] = torch.where(hand[..., None], source[0] - grain, source[0])
    base = composite(source, dressed.generated, dressed.stitch, dressed.alpha)
    for band in (1, 2, 4):
        made = repaste(
            base, source, dressed.hands, dressed.stitch, dressed.generated, "colour_line", band_px=band
        )
        core = torch.from_numpy(depth(dressed.scene.hand) > band)
        assert torch.equal(made[0][core], source[0][core])
        assert not torch.equal(made[0][hand & ~core], source[0][hand & ~core])


def test_a_colour_line_needs_contrast_and_a_repainted_neighbourhood():
    dressed = Dressed()
    untouched = repaste(
        dressed.source, dressed.source, dressed.hands, dressed.stitch, dressed.generated, "colour_line"
    )
    assert torch.equal(untouched, dressed.source)
    gray = torch.full_like(dressed.source, 0.5)
    base = composite(gray, dressed.generated, dressed.stitch, dressed.alpha)
    made = repaste(base, gray, dressed.hands, dressed.stitch, dressed.generated, "colour_line")
    assert torch.equal(made, base)


def test_a_soft_matte_fades_inward():
    dressed = Dressed()
    made = dressed.paste("soft", band_px=3)
    deep = depth(dressed.scene.hand)
    hand = dressed.scene.hand
    assert torch.equal(made[0][~hand], dressed.base[0][~hand])
    assert torch.equal(made[0][deep > 3.5], dressed.source[0][deep > 3.5])
    assert not torch.equal(made[0][hand & (deep == 1)], dressed.source[0][hand & (deep == 1)])
    without = repaste(dressed.base, dressed.source, dressed.hands, dressed.stitch, matte="soft")
    assert torch.allclose(without, dressed.base, atol=1e-6)


@pytest.mark.parametrize("matte", ["soft", "colour_line"])
def test_what_was_decoded_as_nan_stays_off_the_hands(matte):
    """NaN where alpha is 0 is harmless in the compositor; the edge of a hand must not bring it back, nor turn black."""
    source = torch.full((1, 64, 64, 3), 0.2)
    source[:, 20:40, 20:40] = 0.8
    hands, garment = torch.zeros(1, 64, 64), torch.zeros(1, 64, 64)
    hands[:, 20:40, 20:40] = garment[:, 5:60, 5:60] = 1
    generated = torch.full((1, 64, 64, 3), 0.5)
    alpha = pixel_mask(subtract_occluders(garment, hands).paint)
    generated[alpha == 0] = float("nan")
    stitch = Stitch.whole((1, 64, 64))
    base = composite(source, generated, stitch, alpha)
    made = repaste(base, source, hands, stitch, generated, matte)
    assert torch.isfinite(made).all()
    assert torch.equal(made[hands > 0], source[hands > 0])


def test_repaste_of_streams_is_lazy_and_keeps_bytes():
    source = torch.randint(
        0, 256, (11, 40, 48, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    base = 255 - source
    hands = torch.zeros(11, 40, 48)
    for t in range(11):
        hands[t, 5 : 10 + t, 3 : 20 + t] = 1
    lazy = repaste(*(TensorStream(f, Fraction(24)) for f in (base, source)), hands)
    made = torch.cat([c.frames for c in lazy.chunks(RunContext(), 4)])
    assert torch.equal(made, torch.where(hands[..., None] > 0, source, base))
    mixed = repaste(TensorStream(base, Fraction(24)), source.float() / 255, hands)
    assert torch.equal(torch.cat([c.frames for c in mixed.chunks(RunContext(), 4)]), made)


def test_what_repaste_refuses():
    dressed = Dressed()
    for given, text in (
        (
            (dressed.base, dressed.source, dressed.hands),
            "occluders is .*; expected 160x192, the size of base",
        ),
        (
            (dressed.base, dressed.source[:, :100], dressed.hands, dressed.stitch),
            "source is 1 frames of 160x100",
        ),
        (
            (dressed.base, dressed.source, dressed.hands[:, 1:], dressed.stitch),
            "occluders is .*the size of the crop",
        ),
        (
            (dressed.base, dressed.source, dressed.hands, dressed.stitch, None, "colour_line"),
            "generated is not connected; expected the repainted crop",
        ),
        (
            (dressed.base, dressed.source, dressed.scene.occluders, None, None, "colour_line"),
            "stitch is not connected",
        ),
        ((dressed.base, dressed.source, dressed.hands, dressed.stitch, None, "hard", 17), "band_px is 17"),
    ):
        with pytest.raises(ValueError, match="Repaste: " + text):
            repaste(*given)
