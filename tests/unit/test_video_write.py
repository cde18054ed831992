"""The writer: exact lengths, right colours, nothing left behind. Rows 9, 13, 14, 17-21, 23; P1, P2, P5-P7."""

import gc
import itertools
import json
import threading
import time
from fractions import Fraction

import av
import numpy as np
import psutil
import pytest
import torch
from media import decode, decode_sound, impulse, numbered_frame, read_number, sine, speech_like, sweep
from streams import Stub, numbered

from talkinghead.nodes.core import color, video_encode
from talkinghead.nodes.core.audio import AudioClip, MemoryAudio
from talkinghead.nodes.core.frames import (
    FrameInfo,
    FrameStream,
    RunContext,
    TensorStream,
)
from talkinghead.nodes.core.metrics import av_difference, psnr
from talkinghead.nodes.core.timeline import frame_count
from talkinghead.nodes.core.video_read import VideoStream, probe_video
from talkinghead.nodes.core.video_write import WriteOptions, write_video

DRAFT = WriteOptions(quality="draft", codec="libx264")
HIGH = WriteOptions(quality="high", codec="libx264")
NTSC = Fraction(30000, 1001)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def tags(path):
    with av.open(str(path)) as box:
        frame = next(box.decode(video=0))
        c = box.streams.video[0].codec_context
        stream = (c.colorspace, c.color_range, c.color_primaries, c.color_trc)
        assert (frame.colorspace, frame.color_range) == stream[:2]
        return tuple(int(v) for v in stream)


# Lengths: "must hold" of issue 2, rows 9 and 14, probe P1


@pytest.mark.parametrize(
    "fps", [Fraction(24), Fraction(25), NTSC, Fraction(30), Fraction(50), Fraction(60)], ids=str
)
@pytest.mark.parametrize("seconds", ["0.05", "0.3", "13.94", "61"])
def test_picture_and_sound_have_their_exact_lengths(tmp_path, seconds, fps):
    n_samples = int(Fraction(seconds) * 16000)
    n_frames = frame_count(n_samples, 16000, fps)
    assert n_frames == -((-Fraction(seconds) * fps) // 1)
    audio = MemoryAudio(sine(float(seconds)), 16000)
    options = WriteOptions(quality="draft", codec="libx264", chunk=16)
    result = write_video(Stub(n_frames, fps=fps), tmp_path / "a.mp4", RunContext(), audio, options)
    lengths = av_difference(result.path)
    assert lengths.n_frames == result.n_frames == n_frames
    assert lengths.video == result.duration == n_frames / fps
    assert lengths.audio == Fraction(n_samples, 16000)
    assert 0 <= lengths.frames_apart < 1
    with av.open(str(result.path)) as box:
        assert Fraction(box.streams.video[0].average_rate) == fps
        times = [p.pts * p.time_base for p in box.demux(video=0) if p.size]
    assert times == [i / fps for i in range(n_frames)]


@pytest.mark.parametrize("suffix", [".mov", ".mkv", ".MP4"])
def test_other_containers_keep_lengths_too(tmp_path, suffix):
    audio = MemoryAudio(sine(1.5), 16000)
    result = write_video(numbered(45, fps=NTSC), tmp_path / f"a{suffix}", RunContext(), audio, DRAFT)
    assert [read_number(f) for f in decode(result.path)] == list(range(45))
    lengths = av_difference(result.path)
    assert abs(lengths.video - 45 / NTSC) < Fraction(2, 1000)  # mkv counts milliseconds
    assert abs(lengths.frames_apart) < 2


def test_every_frame_is_there_once_and_in_order_whatever_the_chunk(tmp_path):
    for chunk, n_frames in ((1, 5), (8, 29), (16, 16), (7, 50)):
        result = write_video(
            numbered(n_frames),
            tmp_path / "a.mp4",
            RunContext(),
            None,
            WriteOptions(quality="draft", chunk=chunk),
        )
        assert [read_number(f) for f in decode(result.path)] == list(range(n_frames))


def test_a_key_frame_every_second_and_no_reordering(tmp_path):
    result = write_video(numbered(80), tmp_path / "a.mp4", RunContext(), None, DRAFT)
    with av.open(str(result.path)) as box:
        packets = [p for p in box.demux(video=0) if p.size]
    keys = [i for i, p in enumerate(packets) if p.is_keyframe]
    assert keys[0] == 0
    assert max(b - a for a, b in itertools.pairwise([*keys, 80])) <= 25
    assert all(p.pts == p.dts for p in packets)


# Sound


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16000, 1), (44100, 2), (48000, 1), (96000, 2)])
def test_sound_starts_at_its_sample_and_keeps_rate_and_channels(tmp_path, rate, channels):
    at = rate * 7 // 10
    click = MemoryAudio(impulse(rate * 2, at, channels), rate)
    result = write_video(Stub(50), tmp_path / "a.mp4", RunContext(), click, DRAFT)
    sound, got_rate = decode_sound(result.path)
    assert (got_rate, sound.shape[0]) == (rate, channels)
    assert int(np.abs(sound[0]).argmax()) == at


def test_sound_is_the_same_all_the_way_through(tmp_path):
    wave = sweep(4, 16000)
    result = write_video(Stub(100), tmp_path / "a.mp4", RunContext(), MemoryAudio(wave, 16000), DRAFT)
    sound, _ = decode_sound(result.path)
    n = min(sound.shape[1], wave.shape[1])
    for start in range(0, n - 16000, 16000):
        part = slice(start, start + 16000)
        assert np.corrcoef(sound[0, part], wave[0, part])[0, 1] > 0.99


@pytest.mark.parametrize(
    ("rate", "out_rate"), [(192000, 48000), (12345, 16000), (6000, 7350), (50000, 48000)]
)
def test_rates_aac_does_not_have_are_resampled_in_place(tmp_path, rate, out_rate):
    """P7: 192 kHz fails when the encoder opens."""
    at = rate
    click = MemoryAudio(impulse(rate * 2, at), rate)
    ctx = RunContext()
    result = write_video(Stub(50), tmp_path / "a.mp4", ctx, click, DRAFT)
    sound, got_rate = decode_sound(result.path)
    assert got_rate == out_rate
    assert abs(int(np.abs(sound[0]).argmax()) - out_rate) <= 1
    assert av_difference(result.path).audio == 2
    assert any(f"{rate} Hz" in w and f"{out_rate} Hz" in w for w in ctx.report.warnings)


def test_stereo_sides_stay_apart_and_six_channels_become_two(tmp_path):
    ctx = RunContext()
    left_only = np.concatenate([sine(1), np.zeros((1, 16000), np.float32)])
    result = write_video(Stub(25), tmp_path / "a.mp4", ctx, MemoryAudio(left_only, 16000), DRAFT)
    sound, _ = decode_sound(result.path)
    assert np.abs(sound[0]).max() > 0.3
    assert np.abs(sound[1]).max() < 0.02
    assert not ctx.report.warnings
    centre = np.zeros((6, 16000), np.float32)
    centre[2] = sine(1)[0]
    result = write_video(Stub(25), tmp_path / "b.mp4", ctx, MemoryAudio(centre, 16000), DRAFT)
    sound, _ = decode_sound(result.path)
    assert sound.shape[0] == 2
    assert np.abs(sound).max(axis=1).min() > 0.1, "the centre, where speech is, is heard on both sides"
    assert any("6 channels" in w and "stereo" in w for w in ctx.report.warnings)
    three = MemoryAudio(np.repeat(sine(1), 3, axis=0), 16000)
    result = write_video(Stub(25), tmp_path / "c.mp4", ctx, three, DRAFT)
    sound, _ = decode_sound(result.path)
    assert abs(np.abs(sound[:, 2000:-2000]).max() - 0.5) < 0.03


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_sample_does_not_lose_the_video(tmp_path, bad):
    """Row 13."""
    wave = sine(1)
    wave[0, 5000] = bad
    ctx = RunContext()
    result = write_video(numbered(25), tmp_path / "a.mp4", ctx, MemoryAudio(wave, 16000), DRAFT)
    assert len(decode(result.path)) == 25
    sound, _ = decode_sound(result.path)
    assert np.isfinite(sound).all()
    assert np.abs(sound[0, 8000:14000]).max() > 0.4
    assert any("1 NaN or infinite" in w for w in ctx.report.warnings)


def test_too_loud_sound_is_clipped_and_said(tmp_path):
    ctx = RunContext()
    write_video(Stub(25), tmp_path / "a.mp4", ctx, MemoryAudio(sine(1, level=1e20), 16000), DRAFT)
    assert any("above full scale" in w for w in ctx.report.warnings)


class FakeClip:
    """What the writer needs of an AudioClip, with anything wrong that is asked for."""

    def __init__(self, n_samples, give, rate=16000, channels=1, error=None):
        self.n_samples, self.sample_rate, self.channels = n_samples, rate, channels
        self._give, self._error, self.largest = give, error, 0

    def blocks(self, size=65536):
        for start in range(0, self._give, size):
            count = min(size, self._give - start)
            self.largest = max(self.largest, count)
            yield np.full((self.channels, count), 0.1, np.float32)
        if self._error:
            raise self._error


def test_empty_sound_gives_a_video_without_sound_and_a_warning(tmp_path):
    """P7: 0 samples end in MemoryError."""
    ctx = RunContext()
    result = write_video(numbered(5), tmp_path / "a.mp4", ctx, FakeClip(0, 0), DRAFT)
    assert not probe_video(result.path).has_audio
    assert any("0 samples" in w for w in ctx.report.warnings)


@pytest.mark.parametrize("error", [None, OSError("read error")])
def test_sound_that_breaks_off_does_not_lose_the_video(tmp_path, error):
    ctx = RunContext()
    result = write_video(numbered(50), tmp_path / "a.mp4", ctx, FakeClip(32000, 16384, error=error), DRAFT)
    assert av_difference(result.path).audio == 2
    assert any("ends at 1.02 s" in w and "silent" in w for w in ctx.report.warnings)


def test_long_sound_is_pulled_in_pieces(tmp_path):
    clip = FakeClip(48000 * 20, 48000 * 20, rate=48000)
    write_video(Stub(20 * 5, (32, 32), Fraction(5)), tmp_path / "a.mp4", RunContext(), clip, DRAFT)
    assert clip.largest <= 65536


def test_sound_and_picture_lie_beside_each_other_in_the_file(tmp_path):
    """A player that streams the file must not seek for sound: no stretch of one kind beyond a second."""
    audio = MemoryAudio(speech_like(6), 16000)
    result = write_video(numbered(150), tmp_path / "a.mp4", RunContext(), audio, DRAFT)
    with av.open(str(result.path)) as box:
        order = sorted((p.pos, p.stream.type, float(p.pts * p.time_base)) for p in box.demux() if p.size)
    newest = {"video": 0.0, "audio": 0.0}
    for _, kind, at in order:
        newest[kind] = at
        assert abs(newest["video"] - newest["audio"]) < 1.2


def test_a_length_that_does_not_fit_is_said(tmp_path):
    ctx = RunContext()
    write_video(numbered(25), tmp_path / "a.mp4", ctx, MemoryAudio(sine(3), 16000), DRAFT)
    assert any("2.000 s longer" in w for w in ctx.report.warnings)


# Colours and sizes


@pytest.mark.parametrize(("size", "matrix", "space"), [((128, 96), "bt601", 6), ((1280, 720), "bt709", 1)])
def test_colours_and_tags_agree(tmp_path, size, matrix, space):
    patches = [(224, 172, 105), (0, 160, 60), (128, 0, 32), (15, 82, 186)]  # skin, green, burgundy, sapphire
    frame = np.empty((size[1], size[0], 3), np.uint8)
    for i, rgb in enumerate(patches):
        frame[:, size[0] * i // 4 : size[0] * (i + 1) // 4] = rgb
    ctx = RunContext()
    result = write_video(Stub(3, size, make=lambda i: frame), tmp_path / "a.mp4", ctx, None, HIGH)
    assert tags(result.path) == (space, 1, 1, 1)
    assert ctx.report.facts["color"] == f"{matrix} limited"
    shown = decode(result.path)[1]  # PyAV's defaults are any player's: they follow the tags
    for i, rgb in enumerate(patches):
        mid = shown[size[1] // 2, size[0] * (2 * i + 1) // 8].astype(int)
        assert np.abs(mid - rgb).max() <= 4
    wrong = "bt601" if matrix == "bt709" else "bt709"
    with av.open(str(result.path)) as box:
        misread = color.RgbDecoder().convert(next(box.decode(video=0)), wrong)
    middle = misread[size[1] // 2, [size[0] * (2 * i + 1) // 8 for i in range(4)]].astype(int)
    misses = np.abs(middle - patches).max(axis=1)
    assert max(misses) > 10, "P5: the other matrix would be seen"


@pytest.mark.parametrize("size", [(128, 96), (1280, 720)])
def test_five_generations_do_not_tint(tmp_path, size):
    """Row 18."""
    patches = np.array([[224, 172, 105], [0, 160, 60], [128, 0, 32], [200, 200, 60]], np.uint8)
    frame = np.repeat(patches, size[0] // 4, axis=0)[None].repeat(size[1], axis=0)
    stream = Stub(3, size, make=lambda i: frame)
    for generation in range(5):
        path = tmp_path / f"{generation}.mp4"
        write_video(stream, path, RunContext(), None, WriteOptions(codec="libx264"))
        stream = VideoStream(path)
    last = next(stream.chunks(RunContext(), 3)).frames.numpy().astype(int)
    assert np.abs(last - frame).mean() <= 2
    for i in range(4):
        at = slice(size[0] * i // 4 + 4, size[0] * (i + 1) // 4 - 4)
        assert np.abs((last - frame)[:, :, at].mean(axis=(0, 1, 2))).max() <= 2


def nv12_stream(rgb, matrix, fps=Fraction(25)):
    class Nv12(FrameStream):
        stage = "nv12"
        info = FrameInfo(rgb.shape[2], rgb.shape[1], fps, len(rgb), "nv12", matrix, "limited")

        def generate(self, ctx, n):
            frames = torch.from_numpy(color.rgb_to_nv12(rgb, matrix))
            for i in range(0, len(rgb), n):
                yield frames[i : i + n], None

    return Nv12()


@pytest.mark.parametrize("size", [(128, 96), (130, 98)])
def test_nv12_passes_through_to_the_same_file(tmp_path, size):
    """P3, P4: the wrong label would cost 30 dB. Not narrower: of 66x50 x264 wrote other bytes in 13 of 100 runs, of
    64x50 and of sizes from 128 on in none of 60."""
    rgb = np.stack([numbered_frame(*size, i) for i in range(12)])
    a = write_video(
        TensorStream(torch.from_numpy(rgb), Fraction(25)), tmp_path / "a.mp4", RunContext(), None, HIGH
    )
    b = write_video(nv12_stream(rgb, "bt601"), tmp_path / "b.mp4", RunContext(), None, HIGH)
    first, second = np.stack(decode(a.path)), np.stack(decode(b.path))
    assert np.array_equal(first, second)
    assert psnr(second[:, size[1] // 3 :], rgb[:, size[1] // 3 :]).mean > 36


def test_an_nv12_stream_keeps_its_own_matrix(tmp_path):
    rgb = np.stack([numbered_frame(128, 96, i) for i in range(3)])
    result = write_video(nv12_stream(rgb, "bt709"), tmp_path / "a.mp4", RunContext(), None, HIGH)
    assert tags(result.path)[0] == 1
    assert psnr(decode(result.path)[0][40:], rgb[0][40:]).mean > 36


@pytest.mark.parametrize("size", [(641, 480), (640, 481), (641, 481), (1058, 793)])
def test_odd_sides_are_padded_by_one_and_reported(tmp_path, size):
    """Row 17, P2."""
    rng = np.random.default_rng(0)
    frame = np.repeat(np.repeat(rng.integers(0, 256, (60, 70, 3), np.uint8), 16, 0), 16, 1)[
        : size[1], : size[0]
    ]
    ctx = RunContext()
    result = write_video(Stub(3, size, make=lambda i: frame), tmp_path / "a.mp4", ctx, None, HIGH)
    even = (size[0] + size[0] % 2, size[1] + size[1] % 2)
    assert result.padded
    assert (result.width, result.height) == even
    assert str(ctx.report.facts["padded"]) == f"{size[0]}x{size[1]} -> {even[0]}x{even[1]}"
    assert any("even sides" in w for w in ctx.report.warnings)
    shown = decode(result.path)[0]
    assert shown.shape == (even[1], even[0], 3)
    assert psnr(shown[: size[1], : size[0]], frame).mean > 30
    assert np.abs(shown[-1].astype(int) - shown[-2]).mean() < 6
    assert np.abs(shown[:, -1].astype(int) - shown[:, -2]).mean() < 6


@pytest.mark.parametrize("size", [(2, 2), (1, 1), (3, 5), (16, 2), (34, 18)])
def test_tiny_sizes(tmp_path, size):
    result = write_video(Stub(4, size), tmp_path / "a.mp4", RunContext(), None, DRAFT)
    assert len(decode(result.path)) == 4


# Report, metadata, speed of the first frame, memory


def test_the_report_and_the_result_agree(tmp_path):
    seen = []
    ctx = RunContext(progress=lambda done, total: seen.append((done, total)))
    audio = MemoryAudio(sine(0.8), 16000)
    result = write_video(numbered(20), tmp_path / "a.mp4", ctx, audio, WriteOptions(codec="libx264"))
    assert seen == [(8, 20), (16, 20), (20, 20)]
    facts = ctx.report.facts
    assert facts["video"] == "128x96, 20 frames at 25 fps, 0.80 s"
    assert facts["size_bytes"] == result.size_bytes == result.path.stat().st_size
    assert 0 < facts["first_frame_s"] <= result.seconds + 0.001
    assert facts["fps_achieved"] > 0
    assert facts["sound"] == "aac 16000 Hz mono"
    assert {"convert", "encode", "sound", "wait for frames"} <= set(ctx.report.seconds)
    assert not ctx.report.warnings
    json.dumps(ctx.report.as_dict())


def test_metadata_is_in_the_file(tmp_path):
    workflow = json.dumps({"nodes": [1, "é 日本"]})
    for suffix in (".mp4", ".mkv"):
        options = WriteOptions(metadata={"workflow": workflow, "prompt": "{}"})
        result = write_video(numbered(3), tmp_path / f"a{suffix}", RunContext(), None, options)
        with av.open(str(result.path)) as box:
            found = {k.lower(): v for k, v in box.metadata.items()}
        assert found["workflow"] == workflow
        assert found["prompt"] == "{}"


def test_notes_of_the_clip_reach_the_report(tmp_path):
    clip = MemoryAudio(sine(1), 16000)
    clip.notes.append("the file is cut short")
    ctx = RunContext()
    write_video(Stub(25), tmp_path / "a.mp4", ctx, clip, DRAFT)
    assert "the file is cut short" in ctx.report.warnings
    assert isinstance(clip, AudioClip)


def test_the_first_frame_is_encoded_before_the_last_is_made(tmp_path):
    """Producer and writer overlap: both sleep, and the whole takes less than their sum."""
    real = video_encode.VideoFile.write

    def write(self, pixels):
        time.sleep(0.01)
        real(self, pixels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video_encode.VideoFile, "write", write)
        stream = Stub(80, (32, 32), hook=lambda start: time.sleep(0.08))
        result = write_video(stream, tmp_path / "a.mp4", RunContext(), None, DRAFT)
    assert result.first_frame_s < 0.5 * result.seconds
    assert result.seconds < 1.45, "0.8 s of producing beside 0.8 s of writing"


def test_memory_does_not_grow_with_length(tmp_path):
    """Row 20: 2000 frames 320x180 are 346 MB as uint8, 1.4 GB as float32."""
    process, peak = psutil.Process(), []
    noise = np.random.default_rng(0).integers(0, 256, (180, 320, 3), np.uint8)

    def hook(start):
        peak.append(process.memory_info().rss)

    write_video(Stub(100, (320, 180), make=lambda i: noise), tmp_path / "a.mp4", RunContext(), None, DRAFT)
    gc.collect()
    before = process.memory_info().rss
    stream = Stub(2000, (320, 180), make=lambda i: noise + np.uint8(i % 16), hook=hook)
    result = write_video(stream, tmp_path / "b.mp4", RunContext(), None, DRAFT)
    assert result.n_frames == 2000
    assert max(peak) - before < 60e6
    half = len(peak) // 2
    assert max(peak[half:]) - max(peak[:half]) < 15e6


def test_a_stream_can_be_written_twice_and_gives_the_same_film(tmp_path):
    stream = numbered(30)
    one = write_video(stream, tmp_path / "a.mp4", RunContext(), None, DRAFT)
    two = write_video(stream, tmp_path / "b.mp4", RunContext(), None, DRAFT)
    assert one.path.read_bytes() == two.path.read_bytes()
