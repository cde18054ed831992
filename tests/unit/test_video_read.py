"""The reader: upright, by timestamp, in the right colours, bounded. Rows 15, 16, 19-21, 23."""

import gc
import re
import struct
from fractions import Fraction

import av
import cv2
import numpy as np
import psutil
import pytest
from media import Clip, numbered_frame, read_number, sine, write_sound

from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.video_read import VideoStream, describe, probe_video, read_image

NTSC = Fraction(30000, 1001)


def frames_of(stream, n=7):
    return np.concatenate([c.frames.numpy() for c in stream.chunks(RunContext(), n)])


def numbers(stream, n=7):
    return [read_number(f) for f in frames_of(stream, n)]


@pytest.mark.parametrize("fps", [Fraction(24000, 1001), Fraction(25), NTSC, Fraction(60)], ids=str)
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov"])
def test_every_frame_once_at_its_own_rate(tmp_path, fps, suffix):
    """mkv counts milliseconds: neither its jitter nor its rounded end may cost or add a frame."""
    path = Clip(fps=fps, n_frames=50).write(tmp_path / f"a.{suffix}")
    probe = probe_video(path)
    assert (probe.fps, probe.is_vfr, probe.n_frames) == (fps, False, 50)
    assert numbers(VideoStream(path)) == list(range(50))


def test_facts_of_a_clip(tmp_path):
    sound = sine(0.8, 44100, channels=2)
    clip = Clip(width=160, height=90, colorspace=1, color_range=1, sound=sound, sound_rate=44100)
    path = clip.write(tmp_path / "a.mp4")
    probe = probe_video(path)
    assert (probe.width, probe.height, probe.rotation, probe.mirrored) == (160, 90, 0, False)
    assert (probe.has_audio, probe.audio_rate_hz, probe.audio_channels) == (True, 44100, 2)
    assert (probe.matrix, probe.range, probe.tagged) == ("bt709", "limited", True)
    assert (probe.codec, probe.pix_fmt, probe.seconds) == ("h264", "yuv420p", Fraction(4, 5))
    assert describe(probe) == "160x90, 25 fps, 0.80 s, h264, 44100 Hz x 2"


def test_a_clip_without_sound_is_no_problem(tmp_path):
    """Row 19."""
    path = Clip(n_frames=5).write(tmp_path / "silent.mp4")
    probe = probe_video(path)
    assert (probe.has_audio, probe.audio_rate_hz, probe.audio_channels) == (False, 0, 0)
    assert numbers(VideoStream(path)) == list(range(5))


def upright(frame, clip):
    """What a player shows: turned counter-clockwise by `rotation`, then mirrored by hflip."""
    turned = np.rot90(frame, clip.rotation // 90)
    return turned[:, ::-1] if clip.hflip else turned


@pytest.mark.parametrize("rotation", [0, 90, 180, -90])
def test_a_turned_clip_is_upright(tmp_path, rotation):
    """Row 21."""
    clip = Clip(width=128, height=96, n_frames=6, rotation=rotation)
    path = clip.write(tmp_path / "a.mp4")
    probe, stream = probe_video(path), VideoStream(path)
    size = (96, 128) if rotation in (90, -90) else (128, 96)
    assert (probe.width, probe.height) == (stream.info.width, stream.info.height) == size
    assert probe.rotation == -rotation % 360
    for i, frame in enumerate(frames_of(stream)):
        expected = upright(clip.frame(i), clip)
        assert frame.shape == expected.shape
        assert np.abs(frame.astype(int) - expected).mean() < 4
        assert np.abs(frame[::-1, ::-1].astype(int) - expected).mean() > 30


def test_a_phone_clip_turned_by_its_track_header(tmp_path):
    """The matrix phones write for a portrait: shown 90 degrees clockwise. Independent of PyAV's sign."""
    path = Clip(n_frames=3).write(tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    assert struct.unpack_from(">9i", data, at)[0] == 1 << 16
    one = 1 << 16
    struct.pack_into(">9i", data, at, 0, one, 0, -one, 0, 0, 96 << 16, 0, 1 << 30)
    path.write_bytes(data)
    assert probe_video(path).rotation == 90
    frame = frames_of(VideoStream(path))[2]
    assert frame.shape == (128, 96, 3)
    expected = cv2.rotate(numbered_frame(128, 96, 2), cv2.ROTATE_90_CLOCKWISE)
    assert np.abs(frame.astype(int) - expected).mean() < 4


@pytest.mark.parametrize(
    "matrix",
    [
        (1, 0, 0, 1),
        (-1, 0, 0, 1),
        (1, 0, 0, -1),
        (-1, 0, 0, -1),
        (0, 1, 1, 0),
        (0, 1, -1, 0),
        (0, -1, 1, 0),
        (0, -1, -1, 0),
    ],
)
def test_all_eight_display_matrices(tmp_path, matrix):
    """x' = a x + c y, y' = b x + d y, pixel by pixel."""
    path = Clip(n_frames=1).write(tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    a, b, c, d = matrix
    values = (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    struct.pack_into(">9i", data, at, *values)
    path.write_bytes(data)
    source = numbered_frame(128, 96, 0)
    y, x = np.mgrid[0:96, 0:128]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    expected = np.empty((to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    expected[to_y, to_x] = source
    got = frames_of(VideoStream(path))[0]
    assert got.shape == expected.shape
    assert np.abs(got.astype(int) - expected).mean() < 4


def test_variable_rate_becomes_constant_by_timestamp(tmp_path):
    """Row 16: steps of 1/30 and 3/30 s."""
    clip = Clip(n_frames=24, steps=(1, 3))
    path = clip.write(tmp_path / "vfr.mp4")
    probe = probe_video(path)
    assert probe.is_vfr
    assert any("variable frame rate" in note for note in probe.notes)
    assert probe.seconds == clip.times[-1] == Fraction(48, 30)
    for fps in (Fraction(30), Fraction(25), Fraction(12), Fraction(50)):
        stream = VideoStream(path, fps)
        assert stream.info.n_frames == -(-probe.seconds * fps // 1)
        assert numbers(stream) == [clip.shown_at(k / fps) for k in range(stream.info.n_frames)]


@pytest.mark.parametrize("fps", [Fraction(25), Fraction(24), Fraction(60), Fraction(15), NTSC], ids=str)
def test_another_rate_keeps_the_duration(tmp_path, fps):
    """Row 15: a loop of 30 fps for an engine of 25 fps."""
    clip = Clip(fps=Fraction(30), n_frames=60)
    stream = VideoStream(clip.write(tmp_path / "a.mp4"), fps)
    assert stream.info.n_frames == -(-2 * fps // 1)
    assert numbers(stream) == [clip.shown_at(k / fps) for k in range(stream.info.n_frames)]


@pytest.mark.parametrize(("start", "limit"), [(0, 5), (7, None), (40, 9), (95, 100), (99, 1)])
def test_start_and_limit_are_the_same_frames(tmp_path, start, limit):
    path = Clip(n_frames=100).write(tmp_path / "a.mp4")
    everything = frames_of(VideoStream(path))
    part = frames_of(VideoStream(path, start=start, limit=limit))
    expected = everything[start:][:limit]
    assert np.array_equal(part, expected)
    assert read_number(part[0]) == start


@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_start_works_with_sparse_key_frames_and_other_rates(tmp_path, suffix):
    clip = Clip(n_frames=90, fps=Fraction(30), gop=250)
    path = clip.write(tmp_path / f"a.{suffix}")
    stream = VideoStream(path, Fraction(25), start=50, limit=10)
    assert numbers(stream) == [clip.shown_at(Fraction(k, 25)) for k in range(50, 60)]


def test_a_stream_can_be_read_again_and_left_early(tmp_path):
    stream = VideoStream(Clip(n_frames=20).write(tmp_path / "a.mp4"))
    chunks = stream.chunks(RunContext(), 6)
    next(chunks)
    chunks.close()
    first, second = frames_of(stream, 3), frames_of(stream, 8)
    assert np.array_equal(first, second)
    assert [read_number(f) for f in first] == list(range(20))


@pytest.mark.parametrize(("height", "colorspace"), [(96, 1), (96, 6), (96, 2), (720, 2), (720, 6)])
def test_tags_are_honoured_and_untagged_goes_by_height(tmp_path, height, colorspace):
    """The file is coded with the tagged matrix, or with the one its height stands for."""
    import av

    coded = {1: "ITU709", 6: "ITU601"}.get(colorspace, "ITU709" if height >= 720 else "ITU601")
    patches = np.array([[224, 172, 105], [0, 160, 60], [128, 0, 32], [15, 82, 186]], np.uint8)
    width = height * 4 // 3
    picture = np.repeat(patches, width // 4, axis=0)[None].repeat(height, axis=0)
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as box:
        video = box.add_stream("libx264", rate=25, options={"crf": "4", "preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        video.codec_context.colorspace = colorspace
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(
            format="yuv420p", dst_colorspace=coded, dst_color_range="MPEG", interpolation="AREA"
        )
        frame.colorspace = colorspace
        box.mux([*video.encode(frame), *video.encode()])
    probe = probe_video(path)
    assert probe.tagged == (colorspace != 2)
    assert probe.matrix == {"ITU709": "bt709", "ITU601": "bt601"}[coded]
    got = frames_of(VideoStream(path))[0]
    middle = got[height // 2, [width * (2 * i + 1) // 8 for i in range(4)]].astype(int)
    assert np.abs(middle - patches).max() <= 3


def test_full_range_is_honoured(tmp_path):
    import av

    path = tmp_path / "a.mp4"
    ramp = np.repeat(np.linspace(0, 255, 128).astype(np.uint8)[None, :, None], 96, 0).repeat(3, 2)
    with av.open(str(path), "w") as box:
        video = box.add_stream("libx264", rate=25, options={"crf": "4"})
        video.width, video.height, video.pix_fmt = 128, 96, "yuvj420p"
        video.codec_context.color_range = 2
        frame = av.VideoFrame.from_ndarray(ramp, format="rgb24").reformat(
            format="yuvj420p", dst_color_range="JPEG"
        )
        box.mux([*video.encode(frame), *video.encode()])
    assert probe_video(path).range == "full"
    assert np.abs(frames_of(VideoStream(path))[0].astype(int) - ramp).mean() < 2


def test_memory_does_not_grow_with_length(tmp_path):
    """Row 20, reading: 1200 frames 320x180 are 207 MB as uint8."""
    path = Clip(width=320, height=180, n_frames=40, gop=5).write(tmp_path / "short.mp4")
    for chunk in VideoStream(path).chunks(RunContext(), 8):
        del chunk
    stream = VideoStream(path, Fraction(240))
    long = VideoStream(path, Fraction(240), probe=stream.probe)
    process = psutil.Process()
    gc.collect()
    before, peak, total = process.memory_info().rss, 0, 0
    for _ in range(3):
        for chunk in long.chunks(RunContext(), 8):
            total += chunk.num_frames
            peak = max(peak, process.memory_info().rss)
    assert total == 3 * 384
    assert peak - before < 40e6


@pytest.mark.parametrize("name", ["vídeo 😀.mp4", "caña 日本 x/клип.mkv"])
def test_names_in_any_script(tmp_path, name):
    """Row 23."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    Clip(n_frames=3).write(path)
    assert numbers(VideoStream(str(path))) == [0, 1, 2]


def test_damage_in_the_middle_neither_shortens_nor_shifts(tmp_path):
    path = Clip(n_frames=60, gop=10).write(tmp_path / "a.mkv")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3000] = b"\x55" * 3000
    path.write_bytes(data)
    ctx, stream = RunContext(), VideoStream(path)
    frames = np.concatenate([c.frames.numpy() for c in stream.chunks(ctx, 8)])
    assert len(frames) == stream.info.n_frames == 60
    assert read_number(frames[0]) == 0
    assert read_number(frames[-1]) == 59


@pytest.mark.parametrize("suffix", ["mkv", "avi", "flv"])
@pytest.mark.parametrize("with_sound", [False, True])
def test_a_clip_that_is_cut_short_is_reported(tmp_path, suffix, with_sound):
    sound = sine(1.6, 16000, channels=1) if with_sound and suffix == "mkv" else None
    path = Clip(n_frames=40, sound=sound).write(tmp_path / f"a.{suffix}")
    assert probe_video(path).notes == ()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ctx, stream = RunContext(), VideoStream(path)
    assert stream.info.n_frames < 25
    assert sum(c.num_frames for c in stream.chunks(ctx, 8)) == stream.info.n_frames
    assert any(
        re.search(rf"a\.{suffix} says it lasts \d\.\d\d s and ends at 0\.", w) for w in ctx.report.warnings
    )


def test_a_cut_mp4_with_its_index_in_front_is_reported(tmp_path):
    path = Clip(n_frames=60).write(tmp_path / "whole.mp4")
    front = tmp_path / "front.mp4"
    with av.open(str(path)) as box, av.open(str(front), "w", options={"movflags": "faststart"}) as out:
        stream = out.add_stream_from_template(box.streams.video[0])
        for packet in box.demux(box.streams.video[0]):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    assert probe_video(front).notes == ()
    assert probe_video(front).n_frames == 60
    front.write_bytes(front.read_bytes()[: front.stat().st_size // 2])
    assert any("front.mp4 says it lasts 2.40 s and ends at" in note for note in probe_video(front).notes)


def test_sound_that_goes_on_alone_is_no_missing_end(tmp_path):
    for suffix in ("mp4", "mkv"):
        sound = sine(4.0, 16000, channels=1)
        path = Clip(n_frames=25, sound=sound, sound_rate=16000).write(tmp_path / f"a.{suffix}")
        assert (probe_video(path).notes, probe_video(path).n_frames) == ((), 25)


def test_what_is_not_a_video_says_so(tmp_path):
    with pytest.raises(ValueError, match="no file.*missing.mp4"):
        probe_video(tmp_path / "missing.mp4")
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(ValueError, match="noise.mp4 cannot be read as a video"):
        probe_video(noise)
    (tmp_path / "empty.mp4").write_bytes(b"")
    with pytest.raises(ValueError, match="empty.mp4"):
        probe_video(tmp_path / "empty.mp4")
    wav = write_sound(tmp_path / "sound.wav", sine(0.2), 16000)
    with pytest.raises(ValueError, match=r"sound.wav holds no video \(audio only\)"):
        probe_video(wav)
    whole = Clip(n_frames=30).write(tmp_path / "whole.mp4")
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ValueError, match="cut.mp4"):
        probe_video(cut)
    with pytest.raises(ValueError, match="start 30.*0..29.*30 frames"):
        VideoStream(whole, start=30)
    with pytest.raises(ValueError, match="limit 0"):
        VideoStream(whole, limit=0)


# Pictures


def save(path, pixels, *args):
    """Encode by suffix, write by Python (names in any script)."""
    ok, data = cv2.imencode(path.suffix, pixels, *args)
    assert ok
    path.write_bytes(data.tobytes())
    return path


def picture(height=40, width=60):
    return numbered_frame(width, height, 5)


@pytest.mark.parametrize("suffix", [".png", ".webp", ".bmp", ".tiff", ".jpg"])
def test_a_picture_in_any_format(tmp_path, suffix):
    rgb = picture()
    got = read_image(save(tmp_path / f"ñ 日本 😀{suffix}", rgb[..., ::-1]))
    assert (got.dtype, got.shape) == (np.uint8, rgb.shape)
    if suffix in (".png", ".bmp", ".tiff"):
        assert np.array_equal(got, rgb)
    else:
        assert np.abs(got.astype(int) - rgb).mean() < 12


def exif_app1(orientation, order):
    mark, sign = (b"II", "<") if order == "little" else (b"MM", ">")
    entry = struct.pack(sign + "HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = mark + struct.pack(sign + "HI", 42, 8) + struct.pack(sign + "H", 1) + entry + b"\0" * 4
    body = b"Exif\0\0" + tiff
    return tiff, b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


TURNS = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: cv2.rotate(p, cv2.ROTATE_90_CLOCKWISE),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: cv2.rotate(p, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientation_of_a_jpeg(tmp_path, orientation, order):
    plain = save(tmp_path / "a.jpg", picture()[..., ::-1])
    stored = read_image(plain)
    data = plain.read_bytes()
    turned = tmp_path / "b.jpg"
    turned.write_bytes(data[:2] + exif_app1(orientation, order)[1] + data[2:])
    assert np.array_equal(read_image(turned), TURNS[orientation](stored))


def test_exif_orientation_of_a_png(tmp_path):
    import zlib

    rgb = picture()
    data = save(tmp_path / "a.png", rgb[..., ::-1]).read_bytes()
    tiff, _ = exif_app1(6, "big")
    chunk = struct.pack(">I", len(tiff)) + b"eXIf" + tiff + struct.pack(">I", zlib.crc32(b"eXIf" + tiff))
    (tmp_path / "b.png").write_bytes(data[:33] + chunk + data[33:])
    assert np.array_equal(read_image(tmp_path / "b.png"), TURNS[6](rgb))


@pytest.mark.parametrize("junk", [b"\xff\xe1\x00\x10Exif\0\0XX*\0\0\0\0\0", b"\xff\xe1\x00\x0aExif\0\0II"])
def test_a_broken_exif_block_is_passed_over(tmp_path, junk):
    data = save(tmp_path / "a.jpg", picture()[..., ::-1]).read_bytes()
    stored = read_image(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(data[:2] + junk + data[2:])
    assert np.array_equal(read_image(tmp_path / "b.jpg"), stored)


def test_alpha_is_flattened_on_the_stated_colour(tmp_path):
    """Row 22."""
    rgb = picture()
    alpha = np.full(rgb.shape[:2], 255, np.uint8)
    alpha[:, :20], alpha[:, 20:40] = 0, 128
    path = save(tmp_path / "a.png", np.dstack([rgb[..., ::-1], alpha]))
    got = read_image(path, background=(10, 200, 30))
    assert (got[:, :20] == (10, 200, 30)).all()
    assert np.array_equal(got[:, 40:], rgb[:, 40:])
    half = rgb[:, 20:40] * (128 / 255) + np.array([10, 200, 30]) * (127 / 255)
    assert np.abs(got[:, 20:40] - half).max() <= 1
    assert (read_image(path)[:, :20] == 0).all()


def test_gray_and_deep_pictures(tmp_path):
    gray = picture()[..., 0]
    got = read_image(save(tmp_path / "gray.png", gray))
    assert np.array_equal(got, np.repeat(gray[..., None], 3, axis=2))
    deep = picture()[..., ::-1].astype(np.uint16) * 257
    assert np.array_equal(read_image(save(tmp_path / "deep.png", deep)), picture())
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    got = read_image(save(tmp_path / "ramp.png", ramp))[..., 0]
    assert np.abs(got - ramp / 257).max() <= 0.5
    floats = (picture()[..., ::-1] / 255).astype(np.float32)
    assert np.abs(read_image(save(tmp_path / "f.tiff", floats)).astype(int) - picture()).max() <= 1


def test_what_is_not_a_picture_says_so(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        read_image(tmp_path / "missing.png")
    for data in (b"", b"not a picture"):
        (tmp_path / "a.png").write_bytes(data)
        with pytest.raises(ValueError, match=r"a\.png.*not a picture"):
            read_image(tmp_path / "a.png")
