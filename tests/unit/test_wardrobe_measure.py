"""Metrics, ghosts, loops and mouths of the wardrobe."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.blend import crop_geometry, mouth_mask
from talkinghead.nodes.core.frames import TensorStream
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.ghost import ghost_check
from talkinghead.nodes.wardrobe.loop_wrap import loop_close, loop_wrap, overlap_for
from talkinghead.nodes.wardrobe.measure import measure
from talkinghead.nodes.wardrobe.mouth import mouth_alpha, plate_masks
from talkinghead.nodes.wardrobe.plan import BoxRules


def noise(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def block(n=5, height=48, width=64):
    mask = torch.zeros(n, height, width)
    mask[:, 10:30, 20:44] = 1
    return mask


def test_equal_videos():
    source, mask = noise(5, 48, 64, 3), block()
    found, heat = measure(source, source.clone(), mask, occluders=mask, loop=True)
    assert (found.outside_changed_px, found.occluder_changed_px) == (0, 0)
    assert found.psnr_outside == found.psnr_inside == float("inf")
    assert found.ssim == pytest.approx(1)
    assert found.flicker_outside == found.flicker_inside == 0
    assert found.seam == 1
    assert heat.shape == (1, 48, 64, 3)
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["psnr_inside"] == "inf"


def test_one_pixel_outside_is_reported_as_exactly_one():
    source, mask = noise(5, 48, 64, 3), block()
    result = source.clone()
    result[3, 40, 5, 1] += 1 / 255
    result[2, 15, 25] = 0
    hands = torch.zeros_like(mask)
    hands[2, 14:17, 24:27] = 1
    found, heat = measure(source, result, mask, occluders=hands)
    assert (found.outside_changed_px, found.occluder_changed_px) == (1, 1)
    outside = 3 * int((mask == 0).sum())
    assert found.psnr_outside == pytest.approx(10 * np.log10(outside * 255.0**2), abs=1e-3)
    error = float((source[2, 15, 25] ** 2).sum())
    assert found.psnr_inside == pytest.approx(10 * np.log10(3 * float(mask.sum()) / error), abs=1e-3)
    assert found.ssim < 1
    assert float(heat[0, 15, 25, 0]) > 0


def test_crops_and_streams_are_measured_alike():
    frames = (noise(11, 48, 64, 3) * 255).to(torch.uint8)
    mask = block(11)
    crop = subject_crop(frames.float() / 255, mask, BoxRules(16), frame_rule="4k+1", on_bad_length="trim")
    assert crop.stitch.kept == 9
    result = frames.clone()
    result[:9, 12:28, 22:40] = 7
    kept = mask.clone()
    kept[9:] = 0
    whole, _ = measure(frames.float() / 255, result.float() / 255, kept)
    streams, _ = measure(*(TensorStream(f, Fraction(25)) for f in (frames, result)), crop.mask, crop.stitch)
    for name in ("outside_changed_px", "psnr_inside", "psnr_outside", "flicker_inside", "seam"):
        assert getattr(streams, name) == pytest.approx(getattr(whole, name)), name
    result[10, 0, 0] = 255 - result[10, 0, 0]
    worse, _ = measure(*(TensorStream(f, Fraction(25)) for f in (frames, result)), crop.mask, crop.stitch)
    assert worse.outside_changed_px == 1


def test_flicker_seam_and_loop_have_known_values():
    n, mask = 8, block(8)
    source = torch.full((n, 48, 64, 3), 0.5)
    result = source.clone()
    for t in range(n):
        result[t][mask[t] > 0] += 0.1 * (t % 2)
    found, _ = measure(source, result, mask, loop=True)
    assert found.flicker_inside == pytest.approx(25.5, abs=1e-3)
    assert found.flicker_outside == 0
    assert found.loop_jump == pytest.approx(1, abs=1e-3)
    ramp = torch.linspace(0, 1, 64).expand(n, 48, 64)[..., None].expand(-1, -1, -1, 3).clone()
    steep = ramp.clone()
    steep[mask > 0] = 0
    assert measure(ramp, steep, mask)[0].seam > 5
    drift = torch.linspace(0, 0.7, n)[:, None, None, None].expand(-1, 48, 64, 3)
    assert measure(drift, drift, mask, loop=True)[0].loop_jump == pytest.approx(n - 1, rel=1e-3)


def test_nan_counts_as_changed_and_mismatch_is_refused():
    source, mask = noise(2, 20, 20, 3), torch.zeros(2, 20, 20)
    result = source.clone()
    result[1, 3, 3] = float("nan")
    assert measure(source, result, mask)[0].outside_changed_px == 1
    small = measure(source[:, :8, :8], result[:, :8, :8], mask[:, :8, :8])[0].as_dict()
    assert small["ssim"] is None  # the window of 11x11 does not fit
    assert json.loads(json.dumps(small, allow_nan=False)) == small
    with pytest.raises(ValueError, match="Wardrobe Metrics: result is 1 frames of 20x20; expected 2 frames"):
        measure(source, result[:1], mask)


def test_an_endless_error_is_still_json():
    source, mask = noise(2, 20, 20, 3), torch.zeros(2, 20, 20)
    mask[:, 5:9, 5:9] = 1
    result = source.clone()
    result[1, 3, 3], result[1, 6, 6] = float("inf"), -float("inf")
    found = measure(source, result, mask, loop=True)[0]
    text = json.dumps(found.as_dict(), allow_nan=False)
    assert json.loads(text)["psnr_outside"] == "-inf"
    assert found.outside_changed_px == 1


def test_ghost_hands():
    real = torch.zeros(4, 40, 60)
    real[:, 10:20, 10:20] = 1
    seen = real.clone()
    assert ghost_check(real, seen).ok
    seen[:, 8:22, 8:22] = 1  # within the tolerance
    assert ghost_check(real, seen).ok
    assert not ghost_check(real, seen, tolerance_px=1).ok
    seen[2, 25:31, 40:50] = 1
    found = ghost_check(real, seen)
    assert not found.ok
    assert float(found.mask.sum()) == float(found.mask[2, 25:31, 40:50].sum()) == 60
    assert "frames 2; 60 px in all, 60 px at most (frame 2)" in found.report
    assert not ghost_check(real, seen, min_px=59).ok
    assert ghost_check(real, seen, min_px=60).ok
    assert ghost_check(torch.zeros(4, 40, 60), torch.zeros(4, 40, 60)).ok
    with pytest.raises(ValueError, match="occluders_source is 3 frames; expected 4"):
        ghost_check(real[:3], seen)


def test_overlaps_that_fit_the_model():
    assert overlap_for(175, "17k+5") == 17
    assert overlap_for(170, "17k+5") == 5
    assert overlap_for(172, "17k+5") == 20
    assert overlap_for(172, "17k+5", min_overlap=3) == 3
    assert overlap_for(80, "4k+1") == 5
    assert overlap_for(30, "none") == 4
    with pytest.raises(ValueError, match=r"Loop Wrap: images is 6 frames; expected at least 16"):
        overlap_for(6, "17k+5")


def test_a_drifting_sampler_closes():
    n = 60
    images, mask = noise(n, 4, 4, 3), noise(n, 4, 4)
    overlap = overlap_for(n, "17k+5")
    wrapped, long_mask = loop_wrap(images, mask, overlap)
    assert len(wrapped) == len(long_mask) == n + overlap == 73
    assert torch.equal(wrapped[n:], images[:overlap])
    assert torch.equal(long_mask[n:], mask[:overlap])
    # A loop (sine) with the sampler's drift on top.
    t = torch.arange(n + overlap, dtype=torch.float32)
    signal = 0.5 + 0.2 * torch.sin(2 * torch.pi * t / n) + 0.004 * t
    generated = signal[:, None, None, None].expand(-1, 4, 4, 3)
    closed = loop_close(generated, overlap)

    def jump(frames):
        steps = (frames[1:] - frames[:-1]).abs().mean((1, 2, 3))
        return float((frames[0] - frames[-1]).abs().mean() / steps.median())

    assert jump(generated[:n]) > 5
    assert jump(closed) <= 1.2
    assert torch.equal(closed[overlap:], generated[overlap:n])
    assert loop_wrap(images, None, 3)[1] is None
    for bad in (0, 40, 73):
        with pytest.raises(ValueError, match="Loop Close: overlap is"):
            loop_close(generated, bad)


@pytest.mark.parametrize("inner", [0.0, 0.3, 0.6, 0.95])
def test_lips_never_reach_the_nostrils(inner):
    alpha = mouth_alpha(256, 256, "lips", inner)
    assert (alpha[:159] == 0).all()
    assert (alpha[234:] == 0).all()
    assert alpha[196, 127] == 1
    assert (alpha[:, :61] == 0).all()
    assert (alpha[:, 194:] == 0).all()


def test_the_lips_are_those_of_musetalks_composite():
    crop = crop_geometry((0, 0, 200, 240))
    theirs = mouth_mask(crop)[crop[5] : crop[5] + 240, crop[4] : crop[4] + 200]
    assert np.array_equal(np.rint(255 * mouth_alpha(200, 240)).astype(np.uint8), theirs)


def test_the_lower_face_box_does_not_bleed():
    alpha = mouth_alpha(512, 512, "lower face box")
    inside = np.zeros((512, 512), bool)
    inside[280:410, 181:331] = True
    assert (alpha[~inside] == 0).all()
    assert alpha[345, 256] == pytest.approx(1)
    assert 0.4 < alpha[280, 256] < 0.7
    with pytest.raises(ValueError, match="preset is 'nose'; expected one of lips, lower face box"):
        mouth_alpha(64, 64, "nose")


@pytest.mark.parametrize("side", [(256, 256), (200, 300), (1024, 1024), (333, 777)])
def test_the_lower_face_box_bleeds_at_no_size(side):
    width, height = side
    alpha = mouth_alpha(width, height, "lower face box")
    x, y = (np.arange(width) + 0.5) / width * 512, (np.arange(height) + 0.5) / height * 512
    assert (alpha[(y < 280) | (y > 410)] == 0).all()
    assert (alpha[:, (x < 181) | (x > 331)] == 0).all()
    assert alpha.max() > 0.99


def test_masks_belong_to_the_plates_frames():
    """A patch made for one place of the face is never pasted above the lips of another frame."""
    offsets = (0, 27, -9)
    boxes = [(40, 30 + dy, 296, 286 + dy) for dy in offsets]
    masks = plate_masks([*boxes, None, (-127, 60, 129, 316)], (320, 330))
    plate = noise(5, 330, 320, 3)
    patch = torch.ones_like(plate)
    pasted = torch.where(masks[..., None] > 0, patch, plate)
    for t, dy in enumerate(offsets):
        top = 30 + dy + 158
        assert torch.equal(pasted[t, : top + 1], plate[t, : top + 1])
        assert not torch.equal(pasted[t, top + 38], plate[t, top + 38])
    # Indexed by the speech frame (27 px further down) the mask would have reached above.
    wrong = plate_masks(boxes[:1], (320, 330))[0]
    assert float(wrong[: 30 + 27 + 159].max()) > 0
    assert (masks[3] == 0).all()
    visible = torch.from_numpy(mouth_alpha(256, 256)[:, 127:])
    assert torch.equal(masks[4, 60:316, :129], visible)
