"""Masks between trusted frames and lost ones, on a hand whose place is known in every frame."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkinghead.nodes.wardrobe.infill import find_cuts, mask_infill


def moving_hand(n=14, side=288, speed=7.0):
    """Return (mask, images): a textured hand of three fingers that moves and turns over a textured wall."""
    rng = np.random.default_rng(5)
    wall = np.kron(rng.random((side // 16, side // 16, 3)), np.ones((16, 16, 1))).astype(np.float32) * 0.3
    skin = np.kron(rng.random((side // 8, side // 8)), np.ones((8, 8))).astype(np.float32)
    y, x = np.mgrid[:side, :side].astype(np.float32)
    masks, images = [], []
    for t in range(n):
        angle, left = 0.02 * t, 70 + speed * t
        u = (x - left) * np.cos(angle) + (y - 150) * np.sin(angle)
        v = -(x - left) * np.sin(angle) + (y - 150) * np.cos(angle)
        palm = (np.abs(u) < 44) & (v > 0) & (v < 60)
        fingers = (np.abs(np.mod(u, 30) - 15) < 10) & (np.abs(u) < 44) & (v <= 0) & (v > -60)
        hand = palm | fingers
        rows, columns = v.astype(int) % side, u.astype(int) % side
        picture = wall.copy()
        picture[hand] = 0.5 + 0.4 * np.repeat(skin[rows, columns][hand][:, None], 3, 1)
        masks.append(hand)
        images.append(picture)
    return torch.from_numpy(np.array(masks)).float(), torch.from_numpy(np.array(images))


def iou(a, b):
    a, b = a > 0.5, b > 0.5
    return float((a & b).sum() / max(1, int((a | b).sum())))


@pytest.fixture(scope="module")
def hand():
    return moving_hand()


@pytest.mark.parametrize(("stride", "least"), [(2, 0.95), (4, 0.95), (8, 0.9)])
def test_between_trusted_frames(hand, stride, least):
    truth, images = hand
    known = truth.clone()
    known[[t for t in range(len(truth)) if t % stride]] = 0
    made = mask_infill(known, images, stride, "infill", 8)
    scores = [iou(made.mask[t], truth[t]) for t in range(len(truth))]
    held = [iou(truth[t - t % stride], truth[t]) for t in range(len(truth))]
    assert min(scores) >= least
    assert min(held) < 0.6
    assert torch.equal(made.mask[::stride], truth[::stride])
    assert f"{len(truth)} frames, infill: made 1" in made.report


def test_stride_one_is_the_identity_and_the_tail_is_carried_on(hand):
    truth, images = hand
    assert torch.equal(mask_infill(truth, images, 1, "infill").mask, truth)
    short = mask_infill(truth[:7], images[:7], 4, "infill").mask
    assert min(iou(short[t], truth[t]) for t in (5, 6)) > 0.85


def test_blanked_and_swollen_frames_are_repaired(hand):
    truth, images = hand
    broken = truth.clone()
    broken[5:7], broken[11] = 0, 1
    made = mask_infill(broken, images, mode="stabilise")
    assert "stabilise: made 5-6, 11" in made.report
    for t in (5, 6, 11):
        assert iou(made.mask[t], truth[t]) > 0.9
    good = [t for t in range(len(truth)) if t not in (5, 6, 11)]
    assert torch.equal(made.mask[good], truth[good])
    sound = mask_infill(truth, images)
    assert torch.equal(sound.mask, truth)
    assert "none made" in sound.report


ENDS = [(1, 5), (20, 24), (0, 4), (21, 25), (0, 3), (2, 6), (19, 23), (12, 16), (24, 25)]


@pytest.mark.parametrize(("first", "end"), ENDS)
def test_frames_at_the_ends_are_repaired_and_good_ones_kept(first, end):
    """Up to max_gap blanked frames do not outvote the good ones, wherever in the clip they lie."""
    truth = torch.zeros(25, 128, 128)
    truth[:, 40:90, 40:90] = 1
    images = torch.rand((1, 128, 128, 3), generator=torch.Generator().manual_seed(1)).repeat(25, 1, 1, 1)
    broken = truth.clone()
    broken[first:end] = 0
    made = mask_infill(broken, images, 4, "stabilise", 4)
    assert torch.equal(made.mask, truth)
    assert "warning" not in made.report


@pytest.mark.parametrize(("first", "end"), [(0, 4), (0, 3), (21, 25), (24, 25)])
def test_what_is_there_only_at_an_end_is_kept(first, end):
    truth = torch.zeros(25, 128, 128)
    truth[first:end, 40:90, 40:90] = 1
    made = mask_infill(truth, torch.rand(1, 128, 128, 3).repeat(25, 1, 1, 1), 4, "stabilise", 4)
    assert torch.equal(made.mask, truth)
    assert "no trusted frame in reach" in made.report


def test_a_shot_is_judged_by_itself(hand):
    """Blanked frames behind a cut: the good one before it is of another shot."""
    truth = torch.zeros(25, 128, 128)
    truth[:, 40:90, 40:90] = 1
    images = torch.zeros(25, 128, 128, 3)
    images[12:] = 1
    broken = truth.clone()
    broken[13:17] = 0
    made = mask_infill(broken, images, 4, "stabilise", 4)
    assert torch.equal(made.mask, truth)
    assert "made 13-16" in made.report
    broken[13:18] = 0  # one more than may be made
    made = mask_infill(broken, images, 4, "stabilise", 4)
    assert torch.equal(made.mask[12], truth[12])
    assert not made.mask[13:18].any()


def test_one_odd_neighbour_of_four_has_no_say(hand):
    """A neighbour of the right area in the wrong place: the median of the warped four leaves it out."""
    truth, images = hand
    broken = truth.clone()
    broken[6] = 0
    broken[7] = truth[7].flip(0)  # the same number of pixels, so nothing looks odd about it
    made = mask_infill(broken, images, mode="stabilise")
    assert "made 6" in made.report
    assert iou(made.mask[6], truth[6]) > 0.85


def test_a_hand_that_leaves_is_no_fault():
    truth, images = moving_hand(14)
    truth[8:] = 0
    images[8:] = images[8, :8, :8].mean()
    assert torch.equal(mask_infill(truth, images).mask, truth)


def test_cuts_are_never_crossed(hand):
    truth, images = hand
    cut = images.clone()
    cut[6:] = 1 - cut[6:]
    assert find_cuts(cut).nonzero()[0].tolist() == [6]
    known = truth.clone()
    known[[t for t in range(len(truth)) if t % 4]] = 0
    other = known.clone()
    other[8:] = 0
    # Frame 5 lies before the cut: it is made of frame 4 alone, whatever frame 8 holds.
    one, two = (mask_infill(m, cut, 4, "infill") for m in (known, other))
    assert torch.equal(one.mask[5], two.mask[5])
    assert "cuts before frames 6" in one.report
    assert not torch.equal(one.mask[7], two.mask[7])
    twice = cut.clone()
    twice[7:] = images[7:]
    lonely = mask_infill(known, twice, 4, "infill")
    assert "no trusted frame in reach of 6" in lonely.report
    assert torch.equal(lonely.mask[6], known[6])


def test_what_infill_refuses(hand):
    truth, images = hand
    for given, text in (
        ((truth[:2], images), "mask is 2 frames; expected 14 as images"),
        ((truth, images, 8, "infill", 4), "stride is 8; expected at most 5: 7 frames in a row"),
        ((truth, images, 4, "smooth"), "mode is 'smooth'"),
        ((truth, images, 4, "infill", 17), "max_gap is 17"),
    ):
        with pytest.raises(ValueError, match="Mask Infill: " + text):
            mask_infill(*given)
