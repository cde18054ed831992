"""HEVC and AV1 beside H.264, AAC copied or encoded, and what 8 bits do not hold. Rows 17, 18, 21 on the new paths."""

from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from media import decode, decode_sound, impulse, numbered_frame, read_number, sine, write_sound
from streams import Stub, as_nv12, numbered

from talkinghead.nodes.core import color, encoders, sound_copy, video_encode
from talkinghead.nodes.core.audio import MemoryAudio, open_audio
from talkinghead.nodes.core.encoders import CODECS, ENCODERS, QUALITIES, encoder_options
from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.core.images import image_notes, rgb_frames
from talkinghead.nodes.core.metrics import av_difference, psnr
from talkinghead.nodes.core.video_read import VideoStream, probe_video
from talkinghead.nodes.core.video_write import WriteOptions, write_video

SOFTWARE = ("libx264", "libx265", "libsvtav1")


def options(codec="libx264", quality="draft"):
    return WriteOptions(codec=codec, quality=quality)


@pytest.fixture(params=SOFTWARE)
def codec(request):
    problem = encoders.encoder_problem(request.param, 128, 96)
    if problem:
        pytest.skip(f"this FFmpeg has no {request.param}: {problem}")
    return request.param


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_every_codec_in_every_container(tmp_path, codec, suffix):
    audio = MemoryAudio(impulse(48000 * 2, 33600), 48000)
    call = tmp_path / f"a{suffix}", RunContext(), audio, options(codec)
    if codec == "libsvtav1" and suffix == ".mov":
        with pytest.raises(ValueError, match=r"AV1, which \.mov does not hold; choose \.mp4"):
            write_video(numbered(50), *call)
        assert not list(tmp_path.iterdir())
        return
    result = write_video(numbered(50), *call)
    shown = decode(result.path)
    assert [read_number(f) for f in shown] == list(range(50))
    wanted = np.stack([numbered_frame(128, 96, i) for i in range(50)])
    assert psnr(np.stack(shown)[:, 30:], wanted[:, 30:]).mean > 33, "a wrong chroma order costs 20 dB"
    assert result.duration == 2
    assert int(np.abs(decode_sound(result.path)[0][0]).argmax()) == 33600
    with av.open(str(result.path)) as box:
        stream = box.streams.video[0]
        assert (stream.codec_context.colorspace, stream.codec_context.color_range) == (6, 1)
        packets = [p for p in box.demux(stream) if p.size]
    assert [i for i, p in enumerate(packets) if p.is_keyframe] == [0, 25], "a closed group of one second"
    if codec == "libx265" and suffix != ".mkv":
        assert stream.codec_context.codec_tag == "hvc1", "what Apple's players ask for"


def test_qualities_differ_and_odd_sides_are_padded(tmp_path, codec):
    found = {}
    for quality in QUALITIES:
        result = write_video(
            numbered(12, (129, 97)), tmp_path / "a.mp4", RunContext(), None, options(codec, quality)
        )
        assert (result.width, result.height, result.padded) == (130, 98, True)
        wanted = np.stack([numbered_frame(129, 97, i) for i in range(12)])
        found[quality] = psnr(np.stack(decode(result.path))[:, :97, :129], wanted).mean
    assert found["draft"] + 1 < found["balanced"] < found["high"]


def test_nv12_goes_to_encoders_that_take_planes(tmp_path, codec):
    """x265 and SVT-AV1 take U and V apart; the film is that of the same RGB."""
    rgb = torch.from_numpy(np.stack([numbered_frame(128, 96, i) for i in range(6)]))
    stream = TensorStream(rgb, Fraction(25))
    plain = write_video(stream, tmp_path / "a.mp4", RunContext(), None, options(codec))
    nv12 = as_nv12(stream, "bt601")
    fast = write_video(nv12, tmp_path / "b.mp4", RunContext(), None, options(codec))
    assert np.array_equal(np.stack(decode(plain.path)), np.stack(decode(fast.path)))


def test_saved_graphs_keep_their_codec():
    assert CODECS[:3] == ("auto", "h264_nvenc", "libx264"), "append only: saved graphs name these"
    assert set(CODECS[1:]) == set(ENCODERS)


def test_an_encoder_that_does_not_open_names_those_that_do(tmp_path, monkeypatch):
    there = {"libx264", "libsvtav1"}
    monkeypatch.setattr(video_encode, "encoder_problem", lambda c, w, h: None if c in there else "no driver")
    with pytest.raises(
        ValueError, match="hevc_nvenc.*no driver.*'auto' or one that does: libx264, libsvtav1"
    ):
        write_video(numbered(3), tmp_path / "a.mp4", RunContext(), None, options("hevc_nvenc"))


@pytest.mark.parametrize("encoder", [c for c in CODECS if "nvenc" in c])
def test_nvenc_is_set_for_low_latency(encoder):
    """Cannot run here; the options are those of FFmpeg's NVENC wrapper."""
    set_, name = encoder_options(encoder, QUALITIES["balanced"], Fraction(30000, 1001))
    assert name == "p1 ull cq 23"
    wanted = {
        "g": "30",
        "bf": "0",
        "strict_gop": "1",
        "tune": "ull",
        "preset": "p1",
        "zerolatency": "1",
        "delay": "0",
    }
    assert wanted.items() <= set_.items()
    high, _ = encoder_options(encoder, QUALITIES["high"], Fraction(25))
    assert "zerolatency" not in high


# Sound: copied or encoded


@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2), (48000, 1)])
@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_aac_of_a_file_starts_at_its_sample(tmp_path, suffix, rate, channels):
    at = rate * 7 // 10
    click = MemoryAudio(impulse(rate * 2, at, channels), rate)
    source = write_video(Stub(50), tmp_path / "source.mp4", RunContext(), click, options()).path
    ctx = RunContext()
    result = write_video(Stub(50), tmp_path / f"a{suffix}", ctx, open_audio(source), options())
    sound, got_rate = decode_sound(result.path)
    assert (got_rate, sound.shape[0]) == (rate, channels)
    assert int(np.abs(sound[0]).argmax()) == at
    is_copied = suffix != ".mkv"  # Matroska keeps the encoder's delay elsewhere
    assert ("copied from source.mp4" in ctx.report.facts["sound"]) == is_copied
    if is_copied:
        packets = []
        for path in (source, result.path):
            with av.open(str(path)) as box:
                packets.append([bytes(p) for p in box.demux(audio=0) if p.size])
        assert packets[0] == packets[1], "not one byte was coded again"
        assert av_difference(result.path).audio == 2
    assert not ctx.report.warnings


def test_copied_sound_lies_beside_its_pictures(tmp_path):
    source = write_video(
        Stub(150), tmp_path / "s.mp4", RunContext(), MemoryAudio(sine(6), 16000), options()
    ).path
    result = write_video(numbered(150), tmp_path / "a.mp4", RunContext(), open_audio(source), options())
    with av.open(str(result.path)) as box:
        order = sorted((p.pos, p.stream.type, float(p.pts * p.time_base)) for p in box.demux() if p.size)
    newest = {"video": 0.0, "audio": 0.0}
    for _, kind, when in order:
        newest[kind] = when
        assert abs(newest["video"] - newest["audio"]) < 1.2


def test_what_cannot_be_copied_is_encoded(tmp_path):
    wav = write_sound(tmp_path / "a.wav", sine(1), 16000)
    adts = tmp_path / "a.aac"
    late = tmp_path / "late.mp4"
    for path, first in ((adts, 0), (late, 8000)):
        with av.open(str(path), "w", format="adts" if path == adts else "mp4") as box:
            stream = box.add_stream("aac", rate=16000, layout="mono")
            frame = av.AudioFrame.from_ndarray(sine(1), "fltp", "mono")
            frame.sample_rate, frame.time_base, frame.pts = 16000, Fraction(1, 16000), first
            box.mux([*stream.encode(frame), *stream.encode(None)])
    noted = open_audio(
        write_video(Stub(25), tmp_path / "n.mp4", RunContext(), MemoryAudio(sine(1), 16000), options()).path
    )
    noted.notes.append("damaged")
    for clip in (open_audio(wav), open_audio(adts), open_audio(late), noted):
        ctx = RunContext()
        result = write_video(Stub(25), tmp_path / "out.mp4", ctx, clip, options())
        assert "copied" not in ctx.report.facts["sound"], clip.name
        assert np.abs(decode_sound(result.path)[0][0, 2000:12000]).max() > 0.4


def test_a_source_that_breaks_off_does_not_lose_the_video(tmp_path, monkeypatch):
    source = write_video(
        Stub(50), tmp_path / "s.mp4", RunContext(), MemoryAudio(sine(2), 16000), options()
    ).path
    clip = open_audio(source)
    real = sound_copy.CopiedSound._next
    left = [10]

    def breaking(self):
        left[0] -= 1
        if left[0] == 0:
            self._packets = iter(_failing())
        return real(self)

    def _failing():
        raise av.error.InvalidDataError(1, "Invalid data found")
        yield

    monkeypatch.setattr(sound_copy.CopiedSound, "_next", breaking)
    monkeypatch.setattr(sound_copy.CopiedSound, "close", lambda self: self._source.close())
    ctx = RunContext()
    result = write_video(numbered(50), tmp_path / "a.mp4", ctx, clip, options())
    assert len(decode(result.path)) == 50
    assert any("the sound ends at 0.4" in w and "Invalid data" in w for w in ctx.report.warnings)


# What 8-bit RGB does not hold


def clip_of(path, codec, pix_fmt, pixels, **extra):
    with av.open(str(path), "w") as box:
        stream = box.add_stream(codec, rate=25, options=extra)
        stream.width, stream.height, stream.pix_fmt = pixels.shape[1], pixels.shape[0], pix_fmt
        for i in range(3):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgba").reformat(
                format=pix_fmt, dst_colorspace="ITU601", interpolation="AREA"
            )
            frame.pts = i
            box.mux(stream.encode(frame))
        box.mux(stream.encode())
    return path


def half_transparent():
    pixels = np.empty((48, 64, 4), np.uint8)
    pixels[..., :3] = numbered_frame(64, 48, 0)
    pixels[..., 3] = 255
    pixels[:, :20, 3] = 0
    return pixels


@pytest.mark.parametrize(
    ("name", "codec_", "pix_fmt", "said"),
    [
        ("a.mov", "prores_ks", "yuv422p10le", ["10 bits a sample"]),
        ("b.mkv", "ffv1", "gbrp12le", ["12 bits a sample"]),
        ("c.mov", "prores_ks", "yuva444p10le", ["bits a sample", "transparency"]),
        ("d.mov", "qtrle", "argb", ["transparency"]),
        ("e.webm", "libvpx-vp9", "yuva420p", ["transparency"]),
        ("f.mkv", "ffv1", "yuv420p", []),
    ],
)
def test_deep_and_transparent_clips_are_read_and_said(tmp_path, name, codec_, pix_fmt, said):
    path = clip_of(tmp_path / name, codec_, pix_fmt, half_transparent())
    ctx = RunContext()
    frames = torch.cat([c.frames for c in VideoStream(path).chunks(ctx, 8)]).numpy()
    assert frames.shape == (3, 48, 64, 3)
    assert len(ctx.report.warnings) == len(said)
    for text, warning in zip(said, ctx.report.warnings, strict=True):
        assert text in warning
    if codec_ in ("ffv1", "prores_ks") and "a" not in pix_fmt[:4]:
        assert psnr(frames[0][14:], half_transparent()[14:, :, :3]).mean > 30


def test_ten_bits_are_rounded_not_cut(tmp_path):
    """A ramp of 10-bit gray: cutting the low bits off would be dark by 0.4 levels in the mean."""
    ramp = np.linspace(64 * 64, 940 * 64, 64 * 48).astype(np.uint16).reshape(48, 64)
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as box:
        stream = box.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p10le"
        frame = av.VideoFrame(64, 48, "yuv420p10le")
        levels = (ramp // 64).astype(np.uint16)
        for plane, value in zip(frame.planes, (levels, None, None), strict=True):
            rows = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
            rows[:] = 512
            if value is not None:
                rows[:48, :64] = value
        box.mux([*stream.encode(frame), *stream.encode()])
    got = next(VideoStream(path).chunks(RunContext(), 1)).frames[0].numpy().astype(float)
    exact = (levels / 4.0 - 16) * 255 / 219
    assert abs((got[..., 1] - exact.clip(0, 255)).mean()) < 0.15


def test_images_with_alpha_are_laid_on_black_and_said():
    image = torch.rand(2, 8, 8, 4)
    image[..., 3] = 1
    assert image_notes(image) == []
    image[:, :4, :, 3] = 0.5
    [note] = image_notes(image)
    ctx = RunContext()
    stream = TensorStream(rgb_frames(image), Fraction(25), [note])
    for _ in range(2):
        frames = next(stream.chunks(ctx, 8)).frames
    assert "transparency" in note
    assert list(ctx.report.warnings) == [note]
    assert int((frames[:, :4].float() - image[:, :4, :, :3] * 127.5).abs().max()) <= 1
    assert image_notes(torch.rand(1, 8, 8, 3)) == []


def test_five_generations_through_the_nv12_path_do_not_tint(tmp_path):
    """Row 18 where the frames reach the writer as NV12."""
    patches = np.array([[224, 172, 105], [0, 160, 60], [128, 0, 32], [200, 200, 60]], np.uint8)
    frame = np.repeat(patches, 32, axis=0)[None].repeat(96, axis=0)
    stream = Stub(3, make=lambda i: frame, size=(128, 96))
    for generation in range(5):
        path = tmp_path / f"{generation}.mp4"
        made = as_nv12(stream, color.matrix_for_height(96))
        write_video(made, path, RunContext(), None, options(quality="balanced"))
        stream = VideoStream(path)
    last = next(stream.chunks(RunContext(), 3)).frames.numpy().astype(int)
    assert np.abs(last - frame).mean() <= 2
    assert probe_video(path).tagged
