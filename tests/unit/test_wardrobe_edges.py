"""What a user sees at the edges: no ring of the old colour, full-frame masks with a stitch, and reports of what was not done."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from wardrobe_scene import BLUE, BURGUNDY, SLITS, HandScene, photo

from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.wardrobe.composite import composite
from talkinghead.nodes.wardrobe.crop import same_crop, subject_crop
from talkinghead.nodes.wardrobe.infill import mask_infill
from talkinghead.nodes.wardrobe.loop_wrap import loop_wrap, overlap_for
from talkinghead.nodes.wardrobe.masks import narrowest_gap, pixel_mask, subtract_occluders
from talkinghead.nodes.wardrobe.measure import measure
from talkinghead.nodes.wardrobe.plan import BoxRules
from talkinghead.nodes.wardrobe.repaste import repaste
from talkinghead.nodes.wardrobe.seam import seam_blend

RULES = BoxRules(8, 0.0, 4)


class Dressed:
    """The hand scene of two frames turned blue: masks of the full frames, crop, alpha, composite."""

    def __init__(self, grow=8, feather=4, frames=2, **crop):
        scene = HandScene()
        self.garment, self.hands = scene.mask.repeat(frames, 1, 1), scene.occluders.repeat(frames, 1, 1)
        self.source = photo(scene).repeat(frames, 1, 1, 1)
        self.paint = subtract_occluders(self.garment, self.hands, grow).paint
        self.crop = subject_crop(self.source, self.paint, RULES, **crop)
        self.stitch = self.crop.stitch
        self.alpha = pixel_mask(self.crop.mask, feather, stitch=self.stitch)
        self.blue = torch.tensor(BLUE).expand_as(self.crop.images).clone()
        self.base = composite(self.source, self.blue, self.stitch, self.alpha)

    def paste(
        self, matte="colour_line", band=4, ctx=None, base=None, stitch=True, generated=True, hands=None
    ):
        given = (self.stitch if stitch else None, self.blue if generated else None)
        hands = self.hands if hands is None else hands
        return repaste(self.base if base is None else base, self.source, hands, *given, matte, band, ctx)

    def measured(self, result):
        return measure(self.source, result, self.alpha, self.stitch, self.hands)[0]


def test_a_ring_of_the_old_garment_is_measured_where_it_is_and_nowhere_else():
    """Grow 0 or a feather behind the band or the matte hard leave one; enough growth and colour_line do not."""
    clean = Dressed()
    assert clean.measured(clean.paste()).old_colour_ring == 0
    assert clean.measured(clean.base).old_colour_ring > 0.2
    bare = Dressed(grow=0)
    assert bare.measured(bare.paste()).old_colour_ring > 0.1


def test_a_ring_cannot_be_measured_without_two_colours():
    same = Dressed()
    same.blue = torch.tensor(BURGUNDY).expand_as(same.crop.images).clone()
    base = composite(same.source, same.blue, same.stitch, same.alpha)
    assert same.measured(base).as_dict()["old_colour_ring"] is None


@pytest.mark.parametrize("matte", ["hard", "soft", "colour_line"])
def test_full_frame_hands_are_cut_by_the_stitch(matte):
    dressed = Dressed()
    cut = same_crop(dressed.source, dressed.hands, dressed.stitch).mask
    assert torch.equal(dressed.paste(matte), dressed.paste(matte, hands=cut))
    assert torch.equal(dressed.paste(matte), dressed.paste(matte, hands=dressed.hands[:1]))
    full, crop = (
        composite(
            dressed.source, dressed.blue, dressed.stitch, torch.ones_like(dressed.alpha), "ignore", hands
        )
        for hands in (dressed.hands, cut)
    )
    assert torch.equal(full, crop)
    assert not torch.equal(full, dressed.base)
    numbers = [
        measure(dressed.source, full, dressed.alpha, dressed.stitch, h)[0] for h in (dressed.hands, cut)
    ]
    assert numbers[0] == numbers[1]
    with pytest.raises(ValueError, match="occluders is 3 frames; expected 2 as what was cropped"):
        dressed.paste(hands=dressed.hands[:1].repeat(3, 1, 1))


def test_a_crop_of_the_full_size_takes_hands_of_its_own_length():
    source, mask = torch.rand(7, 64, 64, 3), torch.ones(7, 64, 64)
    crop = subject_crop(source, mask, BoxRules(8), frame_rule="4k+1", on_bad_length="trim")
    assert crop.stitch.size == (64, 64)
    hands = torch.zeros(5, 64, 64)
    assert torch.equal(composite(source, crop.images, crop.stitch, crop.mask, "ignore", hands), source)


def test_the_same_boxes_of_another_mask_and_of_the_result():
    dressed = Dressed(mode="tracked")
    empty = same_crop(dressed.base, torch.zeros_like(dressed.hands), dressed.stitch)
    assert empty.mask.sum() == 0
    assert np.array_equal(empty.stitch.boxes, dressed.stitch.boxes)
    x, y, w, h = dressed.stitch.boxes[1]
    assert torch.equal(empty.images[1], dressed.base[1, y : y + h, x : x + w])
    with pytest.raises(ValueError, match="Wardrobe Subject Crop: images is 1 frames"):
        same_crop(dressed.source[:1], dressed.hands, dressed.stitch)
    with pytest.raises(ValueError, match="stitch is a str"):
        same_crop(dressed.source, dressed.hands, "stitch")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("feather", "band", "warns"), [(4, 4, False), (4, 8, False), (8, 4, True), (5, 4, True)]
)
def test_a_feather_behind_the_band_is_warned_of(feather, band, warns, stream):
    dressed, ctx = Dressed(feather=feather), RunContext()
    base = dressed.base
    if stream:
        base = TensorStream((base * 255).round().to(torch.uint8), Fraction(25))
    made = dressed.paste(band=band, ctx=ctx, base=base)
    if stream:
        list(made.chunks(ctx, 8))
    assert ("let band_px be at least Pixel Mask's feather_px" in ctx.report.text()) == warns


def test_options_that_can_do_nothing_say_so():
    def said(*args, **kwargs):
        ctx = RunContext()
        dressed.paste(*args, ctx=ctx, **kwargs)
        return ctx.report.text()

    dressed = Dressed()
    assert "soft changes nothing" in said("soft", generated=False)
    assert said("soft") == said("hard") == said("colour_line") == ""
    over = torch.zeros_like(dressed.base)
    assert said("soft", generated=False, base=over) == ""
    assert "band_px 7 has no effect with the matte hard" in said("hard", 7)
    assert "colour_line has no effect with band_px 0" in said("colour_line", 0)
    for missing in ("stitch", "generated"):
        with pytest.raises(ValueError, match="Wardrobe Repaste: .* is not connected; .*matte hard does"):
            dressed.paste(**{missing: False})


def test_outside_is_outside_paint_and_hands():
    """What a matte changes on the hands is counted as theirs alone."""
    dressed = Dressed()
    found = dressed.measured(dressed.paste())
    assert found.outside_changed_px == 0
    assert found.psnr_outside == float("inf")
    assert found.flicker_outside == 0
    assert found.occluder_changed_px > 0
    without = measure(dressed.source, dressed.paste(), dressed.alpha, dressed.stitch)[0]
    assert without.outside_changed_px == found.occluder_changed_px


def test_the_narrowest_gap_is_no_notch():
    scene = HandScene()
    assert narrowest_gap(scene.garment & ~scene.hand, scene.hand) == min(SLITS)
    notched = scene.hand.copy()
    notched[126:129, 40] = notched[130:133, 60] = False
    assert narrowest_gap(scene.garment & ~notched, notched) == min(SLITS)
    deep = scene.hand.copy()
    deep[126:134, 45:47] = False
    assert narrowest_gap(scene.garment & ~deep, deep) == 2
    assert narrowest_gap(scene.garment, np.zeros_like(scene.hand)) is None


def test_what_hands_hide_does_not_depend_on_the_growth():
    scene = HandScene()
    cut = torch.from_numpy(scene.garment & ~scene.hand).float()[None]  # as a tracker gives it
    lines = {
        next(
            line
            for line in subtract_occluders(mask, scene.occluders, grow).report.splitlines()
            if "hidden" in line
        )
        for mask in (scene.mask, cut)
        for grow in (-2, 0, 4, 8)
    }
    hidden = 100 * (scene.garment & scene.hand).sum() / scene.garment.sum()
    assert len(lines) == 1
    assert f"{hidden:.1f} %" in lines.pop()


@pytest.mark.parametrize(("grow", "says"), [(-3, "takes 3 px"), (0, "not grown"), (4, None)])
def test_the_report_speaks_of_growth_that_leaves_a_ring(grow, says):
    report = subtract_occluders(HandScene().mask, HandScene().occluders, grow).report
    assert ("old garment shows" in report or "shows the old garment" in report) == (says is not None)
    assert says is None or says in report


def still(n=24, side=48):
    mask, images = torch.zeros(n, side, side), torch.rand(1, side, side, 3).repeat(n, 1, 1, 1)
    mask[:, 10:30, 10:30] = 1
    return mask, images


@pytest.mark.parametrize(
    ("lost", "gap", "made", "kept"),
    [
        ([10, 11, 12, 13], 4, "made 10-13", None),
        ([10, 11, 12, 13, 14], 4, "none made", "10-14"),
        (range(10, 16), 4, "none made", "10-15"),
        (range(10, 16), 8, "made 10-15", None),
        ([3, *range(10, 20)], 4, "made 3", "10-19"),
        (range(6), 4, "none made", "0-5"),
        (range(17, 24), 4, "none made", "17-23"),
        ([], 4, "none made", None),
    ],
)
def test_frames_that_are_lost_for_too_long_are_named(lost, gap, made, kept):
    """Wholly, or but for a fifth; at the clip's ends a small object may be all there is of it."""
    inner = not lost or (min(lost) > 0 and max(lost) < 23)
    for left in (0, 4) if inner else (0,):
        named(list(lost), gap, made, kept, left)


def named(lost, gap, made, kept, left):
    mask, images = still()
    mask[lost] = 0
    mask[lost, 10 : 10 + left, 10:30] = 1
    done = mask_infill(mask, images, mode="stabilise", max_gap=gap)
    assert made in done.report
    assert ("lost and not repaired" in done.report) == (kept is not None)
    if kept:
        assert f"lost and not repaired: {kept}; more than max_gap {gap}" in done.report
        assert torch.equal(done.mask[lost[-5:]], mask[lost[-5:]])


def test_trim_names_the_frames_that_keep_the_old():
    source, mask = torch.rand(7, 64, 64, 3), torch.ones(7, 64, 64)
    notes = {
        how: " ".join(subject_crop(source, mask, BoxRules(8), frame_rule="4k+1", on_bad_length=how).notes)
        for how in ("trim", "repeat_last")
    }
    assert "frames 5-6 are cut off" in notes["trim"]
    assert "cut off" not in notes["repeat_last"]


def test_context_gain_tells_what_it_did_and_that_it_ran_into_a_limit():
    source, mask = torch.rand(3, 96, 200, 3) * 0.5 + 0.2, torch.zeros(3, 96, 200)
    mask[:, 30:60, 10:40] = 1

    def said(generated):
        ctx = RunContext()
        seam_blend(generated, source, mask, "context_gain", ctx=ctx)
        return ctx.report.text()

    drift = said(source / 1.02)
    assert "context_gain of red: gain 1.02" in drift
    assert "ran into its limits" not in drift
    assert "ran into its limits (gain 0.9 to 1.1, offset 0.03) in 3 of 3 frames" in said(source * 0.1 + 0.4)
    mask[:] = 1
    assert "nothing outside what was drawn anew is left" in said(source)


def test_a_clip_that_is_no_loop_is_not_wrapped_but_checked():
    images, mask = torch.rand(22, 16, 16, 3), torch.ones(22, 16, 16)
    assert overlap_for(22, "17k+5", 0) == 0
    wrapped, wrapped_mask = loop_wrap(images, mask, 0)
    assert torch.equal(wrapped, images)
    assert torch.equal(wrapped_mask, mask)
    with pytest.raises(
        ValueError, match=r"Wardrobe Loop Wrap: images is 23 frames; expected 22 or 39 \(17k\+5\)"
    ):
        overlap_for(23, "17k+5", 0)
    with pytest.raises(ValueError, match="min_overlap is -1"):
        overlap_for(22, "17k+5", -1)
