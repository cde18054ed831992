"""The clip that comes with the wardrobe: what it is, and that its masks are those of its pictures."""

from __future__ import annotations

import av
import numpy as np
import pytest

from talkinghead.nodes.wardrobe.sample import SAMPLES, read_sample, sample_files


@pytest.fixture(scope="module")
def sample():
    return read_sample("presenter")


def test_the_clip_is_small_and_of_a_length_h3_takes(sample):
    assert tuple(sample.frames.shape) == (22, 384, 216, 3)
    assert (22 - 5) % 17 == 0
    assert sample.fps == 25
    assert sample.sound.seconds == sample.stream.info.n_frames / sample.fps
    assert np.abs(sample.sound.samples).max() > 0.1
    files = [f for name in SAMPLES for f in sample_files(name)]
    assert sum(f.stat().st_size for f in files) < 120_000


def test_the_masks_are_of_these_pictures(sample):
    garment, hands = sample.garment.numpy() > 0, sample.hands.numpy() > 0
    assert garment.any((1, 2)).all()
    assert hands.any((1, 2)).all()
    assert not (garment & hands).any()
    red, green, blue = np.moveaxis(sample.frames.numpy().astype(int), -1, 0)
    burgundy = (red > 3 * green) & (red > blue)
    skin = (red > 110) & (green > 60)
    assert burgundy[garment].mean() > 0.97  # edges are mixed, and the codec halves the colours' size
    assert skin[hands].mean() > 0.9
    assert not (skin & garment).sum() / garment.sum() > 0.03
    below = np.zeros_like(garment)
    below[:, 290:] = True  # nothing but dress and hands
    assert (garment | hands)[below].mean() > 0.99


def test_the_clip_is_a_loop_and_everything_moves(sample):
    steps = np.abs(np.diff(sample.frames.numpy().astype(int), axis=0)).mean((1, 2, 3))
    jump = np.abs(sample.frames[-1].numpy().astype(int) - sample.frames[0].numpy().astype(int)).mean()
    assert steps.min() > 0.05
    assert jump < 1.5 * np.median(steps)
    for masks in (sample.garment, sample.hands):
        assert (masks[0] != masks[8]).any()


def test_comfyui_can_read_the_masks_as_a_video(sample):
    """Gray, full range and without loss, whatever reads them."""
    _, garment, _ = sample_files("presenter")
    with av.open(str(garment)) as box:
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in box.decode(video=0)])
    assert set(np.unique(shown)) == {0, 255}
    np.testing.assert_array_equal(shown[..., 0] > 127, sample.garment.numpy() > 0)


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="no sample clip 'anna'; use one of presenter"):
        read_sample("anna")
