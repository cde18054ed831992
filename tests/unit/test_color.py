"""NV12 against float formulas on colourful frames: right matrix, right range, right chroma order. P3-P6."""

import av
import cv2
import numpy as np
import pytest
import torch

from talkinghead.nodes.core import color

KR_KB = {"bt709": (0.2126, 0.0722), "bt601": (0.299, 0.114)}


def colourful(n=2, height=48, width=64, seed=0):
    """Smooth saturated colours over a little noise: gray frames hide a wrong matrix."""
    rng = np.random.default_rng(seed)
    seeds = rng.integers(0, 256, (n, 5, 6, 3), dtype=np.uint8)
    return np.stack([cv2.resize(s, (width, height), interpolation=cv2.INTER_LINEAR) for s in seeds])


def float_yuv(rgb, matrix, color_range):
    """The textbook, written apart from the module: (n,H,W) luma and (n,H/2,W/2,2) mean chroma."""
    kr, kb = KR_KB[matrix]
    r, g, b = np.moveaxis(rgb.astype(np.float64) / 255, -1, 0)
    y = kr * r + (1 - kr - kb) * g + kb * b
    u, v = (b - y) / (2 * (1 - kb)), (r - y) / (2 * (1 - kr))
    n, h, w = y.shape
    uv = np.stack([u, v], -1).reshape(n, h // 2, 2, w // 2, 2, 2).mean((2, 4))
    if color_range == "limited":
        return 16 + 219 * y, 128 + 224 * uv
    return 255 * y, np.clip(128 + 255 * uv, 0, 255)


@pytest.mark.parametrize("color_range", color.RANGES)
@pytest.mark.parametrize("matrix", color.MATRICES)
@pytest.mark.parametrize("kind", ["smooth", "noise"])
def test_nv12_is_the_float_formula(matrix, color_range, kind):
    rgb = (
        colourful()
        if kind == "smooth"
        else np.random.default_rng(1).integers(0, 256, (2, 48, 64, 3), np.uint8)
    )
    nv12 = color.rgb_to_nv12(rgb, matrix, color_range)
    y, uv = float_yuv(rgb, matrix, color_range)
    assert np.abs(nv12[:, :48] - y).max() <= 1.0
    assert np.abs(nv12[:, 48:].reshape(2, 24, 32, 2) - uv).max() <= 1.0
    assert abs((nv12[:, :48] - y).mean()) < 0.1


def chroma_up(uv):
    """(H/2,W/2,2) to (H,W,2): c -+ (next - previous) / 8 along both axes, edges repeated."""
    for axis in (0, 1):
        c = np.moveaxis(uv, axis, 0)
        padded = np.concatenate([c[:1], c, c[-1:]])
        slope = (padded[2:] - padded[:-2]) / 8
        uv = np.moveaxis(np.stack([c - slope, c + slope], 1).reshape(-1, *c.shape[1:]), 0, axis)
    return uv


@pytest.mark.parametrize("color_range", color.RANGES)
@pytest.mark.parametrize("matrix", color.MATRICES)
def test_rgb_is_the_float_formula_with_centred_chroma(matrix, color_range):
    nv12 = color.rgb_to_nv12(colourful(seed=2), matrix, color_range)
    back = color.nv12_to_rgb(nv12, matrix, color_range)
    m = color.inverse_coefficients(matrix, color_range)
    for frame, got in zip(nv12, back, strict=True):
        uv = np.clip(chroma_up(frame[48:].reshape(24, 32, 2).astype(np.float64)), 0, 255)
        exact = np.clip(np.dstack([frame[:48], uv]) @ m[:, :3].T + m[:, 3], 0, 255)
        assert np.abs(got - exact).max() <= 2.0
        assert np.abs(got - exact).mean() < 0.6
        assert abs((got - exact).mean()) < 0.15, "swscale's default is 1.5 levels too dark"


@pytest.mark.parametrize("pix_fmt", ["nv12", "yuv420p", "yuv444p", "yuv422p10le", "gbrp"])
def test_other_pixel_formats_give_the_same_picture(pix_fmt):
    rgb = colourful(1)[0]
    reformatter = av.video.reformatter.VideoReformatter()
    frame = reformatter.reformat(
        av.VideoFrame.from_ndarray(rgb, format="rgb24"),
        format=pix_fmt,
        dst_colorspace="ITU709",
        dst_color_range="MPEG",
        interpolation="AREA",
    )
    got = color.RgbDecoder().convert(frame, "bt709").astype(int)
    assert np.abs(got - rgb).mean() < 1.5
    assert abs((got - rgb).mean()) < 0.3


def test_five_rounds_move_no_colour():
    """The chroma's mean over 2x2 survives its interpolation; linear interpolation would blur each time."""
    colours = np.array([[224, 172, 105], [0, 160, 60], [128, 0, 32], [200, 200, 60]], np.uint8)
    start = np.repeat(np.repeat(colours.reshape(1, 2, 2, 3), 32, 1), 32, 2)
    frames, means = start, []
    for _ in range(5):
        frames = color.nv12_to_rgb(color.rgb_to_nv12(frames, "bt601"), "bt601")
        means.append(np.abs(frames.astype(int) - start).mean())
    assert means[-1] <= 2
    assert means[-1] - means[1] < 0.15


def test_one_colour_round_trip_is_within_two_levels_for_a_whole_cube():
    steps = np.arange(0, 256, 17, dtype=np.uint8)
    colours = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 1, 1, 3)
    flat = np.broadcast_to(colours, (len(colours), 2, 2, 3))
    for matrix in color.MATRICES:
        error = np.abs(color.nv12_to_rgb(color.rgb_to_nv12(flat, matrix), matrix).astype(int) - flat)
        assert error.max() <= 2
        assert error.mean() < 0.6


def test_wrong_matrix_wrong_range_and_wrong_chroma_order_are_visible():
    """P4-P6: the mistakes this module exists to avoid are far above its tolerance."""
    rgb = colourful()
    nv12 = color.rgb_to_nv12(rgb, "bt601")
    right = np.abs(color.nv12_to_rgb(nv12, "bt601").astype(int) - rgb).mean()
    as_709 = np.abs(color.nv12_to_rgb(nv12, "bt709").astype(int) - rgb).mean()
    as_full = np.abs(color.nv12_to_rgb(nv12, "bt601", "full").astype(int) - rgb).mean()
    swapped = nv12.copy()
    swapped[:, 48:] = nv12[:, 48:].reshape(2, 24, 32, 2)[..., ::-1].reshape(2, 24, 64)
    as_nv21 = np.abs(color.nv12_to_rgb(swapped, "bt601").astype(int) - rgb).mean()
    assert right < 1.5
    assert min(as_709, as_full, as_nv21) > 2.5 * right


def test_torch_in_torch_out_and_equal_to_numpy():
    rgb = colourful()
    for function, data in ((color.rgb_to_nv12, rgb), (color.nv12_to_rgb, color.rgb_to_nv12(rgb, "bt709"))):
        out = function(torch.from_numpy(data), "bt709")
        assert isinstance(out, torch.Tensor)
        assert out.dtype == torch.uint8
        assert np.array_equal(out.numpy(), function(data, "bt709"))


def test_views_that_are_not_contiguous_convert_like_their_copies():
    rgb = colourful()
    turned = rgb[:, ::-1, ::-1]
    assert np.array_equal(color.rgb_to_nv12(turned, "bt709"), color.rgb_to_nv12(turned.copy(), "bt709"))


@pytest.mark.parametrize(("width", "height"), [(65, 48), (64, 49), (65, 49)])
def test_odd_sides_are_refused_and_padding_helps(width, height):
    rgb = colourful(1, height, width)
    with pytest.raises(ValueError, match=f"{width}x{height}.*pad"):
        color.rgb_to_nv12(rgb, "bt601")
    padded = color.pad_to_even(rgb)
    assert padded.shape == (1, height + height % 2, width + width % 2, 3)
    assert np.array_equal(padded[:, :height, :width], rgb)
    assert np.array_equal(padded[:, height - 1, :width], padded[:, -1, :width])
    assert np.array_equal(padded[:, :height, width - 1], padded[:, :height, -1])
    assert np.array_equal(color.pad_to_even(torch.from_numpy(rgb)).numpy(), padded)


@pytest.mark.parametrize("height", [2, 4, 6, 50, 482])
def test_heights_not_divisible_by_four_keep_their_rows(height):
    """PyAV's from_numpy_buffer loses two rows of those (libraries.md)."""
    rgb = colourful(1, height, 32)
    assert color.nv12_to_rgb(color.rgb_to_nv12(rgb, "bt601"), "bt601").shape == rgb.shape


def test_wrong_input_says_what_is_wanted():
    with pytest.raises(ValueError, match="uint8.*float32"):
        color.rgb_to_nv12(np.zeros((1, 4, 4, 3), np.float32), "bt601")
    with pytest.raises(ValueError, match=r"\(n,H,W,3\)"):
        color.rgb_to_nv12(np.zeros((4, 4, 3), np.uint8), "bt601")
    with pytest.raises(ValueError, match="bt2020.*bt709"):
        color.coefficients("bt2020")
    with pytest.raises(ValueError, match="tv.*limited"):
        color.color_tags("bt709", "tv")


def test_tags_and_the_choice_of_matrix():
    assert color.matrix_for_height(719) == "bt601"
    assert color.matrix_for_height(720) == "bt709"
    assert color.color_tags("bt709") == color.ColorTags(colorspace=1, primaries=1, trc=1, range=1)
    assert color.color_tags("bt601", "full") == color.ColorTags(colorspace=6, primaries=1, trc=1, range=2)


def test_published_coefficients():
    """The figures of libraries.md, section 3."""
    m = color.coefficients("bt601")
    assert np.allclose(m[0, :3], [0.256788, 0.504129, 0.097906], atol=1e-6)
    assert np.allclose(color.coefficients("bt709")[2, :3], [0.439216, -0.398942, -0.040274], atol=1e-6)
