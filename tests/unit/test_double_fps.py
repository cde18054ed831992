"""Twice the rate by optical flow: the source's frames untouched, the ones between where the motion says."""

from fractions import Fraction

import cv2
import numpy as np
import pytest
import torch
from media import decode, sine
from streams import Stub, as_nv12

from talkinghead.nodes.core import color
from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.double_fps import DoubledStream
from talkinghead.nodes.core.frames import MappedStream, RunContext, TensorStream
from talkinghead.nodes.core.metrics import av_difference, psnr
from talkinghead.nodes.core.video_write import WriteOptions, write_video

SIZE = (160, 128)


def texture(seed, size=SIZE, grain=6):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (size[1] // grain + 1, size[0] // grain + 1, 3), dtype=np.uint8)
    return cv2.resize(small, size, interpolation=cv2.INTER_CUBIC)


def scene(time, step=5.0, back=None):
    """A textured disc at `time` (frames, also between them) that moves `step` pixels a frame over a still ground."""
    back = texture(1) if back is None else back
    cx, cy = 45 + step * time, 60 + 0.4 * step * time
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]].astype(np.float32)
    skin = cv2.remap(
        texture(2, (80, 80)), x - cx + 40, y - cy + 40, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )
    weight = np.clip(28.5 - np.hypot(x - cx, y - cy), 0, 1)[..., None]
    return np.rint(skin * weight + back * (1 - weight)).astype(np.uint8)


def disc(time, step=5.0):
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]]
    return np.hypot(x - 45 - step * time, y - 60 - 0.4 * step * time) < 24


def stream(frames):
    return TensorStream(torch.from_numpy(np.stack(frames)), Fraction(25))


def run(source, n=8, ctx=None):
    return torch.cat([c.frames for c in source.chunks(ctx or RunContext(), n)]).numpy()


@pytest.mark.parametrize("layout", ["rgb", "nv12"])
@pytest.mark.parametrize("step", [1.0, 3.0, 7.0])
def test_a_moving_disc_is_where_the_truth_has_it(step, layout):
    frames = [scene(t, step) for t in range(6)]
    source = stream(frames)

    def seen(pictures):
        """What 4:2:0 leaves of a picture: the truth has to go the same way."""
        rgb = np.stack(pictures)
        return rgb if layout == "rgb" else color.nv12_to_rgb(color.rgb_to_nv12(rgb, "bt709"), "bt709")

    if layout == "nv12":
        got = color.nv12_to_rgb(run(DoubledStream(as_nv12(source, "bt709"))), "bt709")
    else:
        got = run(DoubledStream(source))
    frames = seen(frames)
    # Chroma at half the resolution blurs this texture whenever it moves.
    limit, share = (3.5, 0.3) if layout == "rgb" else (5, 0.5)
    assert len(got) == 12
    assert np.array_equal(got[::2], frames)
    for k in range(5):
        truth, inside = seen([scene(k + 0.5, step)])[0], disc(k + 0.5, step)
        mean = ((frames[k].astype(int) + frames[k + 1]) / 2).round().astype(np.uint8)

        def error(picture, inside=inside, truth=truth):
            return float(np.abs(picture.astype(int) - truth)[inside].mean())

        assert error(got[2 * k + 1]) < limit
        assert error(got[2 * k + 1]) < share * error(frames[k])
        if step > 1:  # half a pixel is what an average blurs, no more
            assert error(got[2 * k + 1]) < share * error(mean)
        # Far from the disc nothing moves.
        far = cv2.dilate((disc(k, step) | disc(k + 1, step)).astype(np.uint8), np.ones((25, 25))) == 0
        assert psnr(got[2 * k + 1][far][None], truth[far][None]).mean > 35
    assert np.array_equal(got[11], got[10]), "after the last frame there is nothing to go to"


def test_a_cut_repeats_the_frame_before_it():
    other = texture(9)
    frames = [scene(t) for t in range(3)] + [scene(t, back=other)[::-1] for t in range(3)]
    ctx = RunContext()
    got = run(DoubledStream(stream(frames)), ctx=ctx)
    assert np.array_equal(got[5], frames[2])
    assert not np.array_equal(got[3], frames[1])
    assert not np.array_equal(got[7], frames[3])
    assert ctx.report.facts["cuts_repeated"] == 1


def test_flow_that_is_not_finite_repeats_the_frame(monkeypatch):
    made = cv2.DISOpticalFlow_create()

    class Broken:
        def calc(self, a, b, start):
            flow = made.calc(a, b, start)
            flow[3, 3] = np.nan
            return flow

    monkeypatch.setattr(cv2, "DISOpticalFlow_create", lambda preset: Broken())
    frames = [scene(0), scene(1)]
    assert np.array_equal(run(DoubledStream(stream(frames)))[1], frames[0])


def test_what_stands_still_is_repeated_byte_for_byte():
    frames = [scene(0)] * 3
    got = run(DoubledStream(stream(frames)))
    assert np.array_equal(got, np.stack([frames[0]] * 6))
    mouth = [scene(0).copy() for _ in range(2)]
    mouth[1][100:110, 70:90] //= 2
    got = run(DoubledStream(stream(mouth)))[1]
    assert np.array_equal(got[:60], mouth[0][:60]), "only what changed, and its surroundings, is worked on"


@pytest.mark.parametrize("n", [1, 2, 3, 8, 50])
def test_chunks_change_nothing(n):
    frames = [scene(t) for t in range(7)]
    doubled = DoubledStream(stream(frames))
    assert (doubled.info.n_frames, doubled.info.fps) == (14, Fraction(50))
    assert max(c.num_frames for c in doubled.chunks(RunContext(), n)) <= n
    assert np.array_equal(run(doubled, n), run(doubled, 14))


@pytest.mark.parametrize("count", [1, 2])
def test_the_shortest_films(count):
    assert len(run(DoubledStream(stream([scene(t) for t in range(count)])))) == 2 * count


def test_tiny_and_odd_frames():
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, (3, 9, 7, 3), dtype=np.uint8))
    assert run(DoubledStream(TensorStream(frames, Fraction(25)))).shape == (6, 9, 7, 3)


def test_a_rate_that_cannot_be_doubled_is_refused():
    with pytest.raises(ValueError, match="144 fps doubled is 288, above 240"):
        DoubledStream(Stub(3, fps=Fraction(144)))


def test_an_early_end_closes_the_source():
    source = Stub(40)
    chunks = DoubledStream(source).chunks(RunContext(), 4)
    next(chunks)
    chunks.close()
    assert source.closed == 1


def test_the_nv12_form_of_the_source_is_used():
    asked = []

    class Offers(TensorStream):
        def nv12(self, matrix, color_range="limited"):
            asked.append((matrix, color_range))
            return MappedStream(
                self,
                "n",
                lambda ctx, c: color.rgb_to_nv12(c.frames, matrix),
                layout="nv12",
                matrix=matrix,
                range=color_range,
            )

    frames = torch.from_numpy(np.stack([scene(0), scene(1)]))
    made = DoubledStream(Offers(frames, Fraction(25))).nv12("bt709")
    assert made.info.layout == "nv12"
    assert made.info.n_frames == 4
    assert asked == [("bt709", "limited")]
    assert DoubledStream(stream([scene(0)])).nv12("bt709") is None


def test_the_film_keeps_its_length_and_sound(tmp_path):
    audio = MemoryAudio(sine(1.0), 16000)
    frames = [scene(t / 5) for t in range(25)]
    options = WriteOptions(quality="draft", codec="libx264")
    result = write_video(DoubledStream(stream(frames)), tmp_path / "a.mp4", RunContext(), audio, options)
    lengths = av_difference(result.path)
    assert (lengths.n_frames, lengths.video, lengths.audio) == (50, 1, 1)
    assert result.fps == 50
    assert len(decode(result.path)) == 50
