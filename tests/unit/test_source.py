"""Sources of an avatar: pictures, folders and clips as lazy streams of upright RGB."""

import struct
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from media import Clip, numbered_frame, read_number

from talkinghead.nodes.avatars.source import natural_key, open_source, parse_colour, read_source
from talkinghead.nodes.core.frames import RunContext, StageError
from talkinghead.nodes.core.image_read import image_facts


def save(path, rgb, alpha=None):
    """Encode by suffix (in lower case), write by Python: names in any script."""
    bgr = rgb[..., ::-1] if alpha is None else np.dstack([rgb[..., ::-1], alpha])
    ok, data = cv2.imencode(path.suffix.lower(), bgr)
    assert ok
    path.write_bytes(data.tobytes())
    return path


def picture(index=0, width=60, height=40):
    return numbered_frame(width, height, index)


def pixels(source, n=3):
    return np.concatenate([c.frames.numpy() for c in source.stream.chunks(RunContext(), n)])


def with_orientation(data, orientation):
    tiff = b"II" + struct.pack("<HIHHHIHH", 42, 8, 1, 0x0112, 3, 1, orientation, 0) + b"\0" * 4
    body = b"Exif\0\0" + tiff
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


@pytest.mark.parametrize("name", ["a.png", "B.PNG", "ñ 日本 x.png", "vídeo 😀.PnG"])
def test_a_picture_is_a_stream_of_one_frame(tmp_path, name):
    """Row 23."""
    source = open_source(save(tmp_path / name, picture()))
    assert (source.kind, source.fps, source.size, source.name) == ("image", 25, (60, 40), name)
    assert not source.has_alpha
    assert source.record == {"name": name, "sha256": source.sha256}
    assert np.array_equal(pixels(source), picture()[None])
    assert open_source(tmp_path / name, fps=Fraction(30)).stream.info.fps == 30


def test_a_picture_turned_by_its_exif_block(tmp_path):
    """Row 21."""
    path = save(tmp_path / "a.jpg", picture())
    path.write_bytes(with_orientation(path.read_bytes(), 6))
    source = open_source(path)
    assert source.size == (40, 60)
    assert pixels(source).shape == (1, 60, 40, 3)
    assert image_facts(path).size == (40, 60)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp", ".tif"])
def test_facts_of_a_picture_equal_what_is_read(tmp_path, suffix):
    path = save(tmp_path / f"a{suffix}", picture())
    assert image_facts(path).size == (60, 40)
    assert not image_facts(path).has_alpha


def test_alpha_is_laid_on_the_stated_colour(tmp_path):
    """Row 22."""
    alpha = np.full((40, 60), 255, np.uint8)
    alpha[:, :30] = 0
    path = save(tmp_path / "a.png", picture(), alpha)
    source = open_source(path, background=(0, 255, 0))
    assert source.has_alpha
    got = pixels(source)[0]
    assert (got[:, :30] == (0, 255, 0)).all()
    assert np.array_equal(got[:, 30:], picture()[:, 30:])
    assert (pixels(open_source(path))[0, :, :30] == 0).all()
    folder = tmp_path / "clip"
    folder.mkdir()
    save(folder / "1.png", picture())
    save(folder / "2.png", picture(), alpha)
    assert open_source(folder, background=(9, 9, 9)).has_alpha
    assert (pixels(open_source(folder, background=(9, 9, 9)))[1, :, :30] == 9).all()


def make_folder(tmp_path, names, **kinds):
    folder = tmp_path / "caña 日本 x"
    folder.mkdir()
    for i, name in enumerate(names):
        save(folder / name, picture(i))
    return folder


def test_a_folder_is_read_in_natural_order(tmp_path):
    names = ["f1.png", "f2.PNG", "F3.png", "f10.png", "f20.png"]
    folder = make_folder(tmp_path, names)
    source = open_source(folder, fps=Fraction(30))
    assert (source.kind, source.stream.info.n_frames, source.fps) == ("folder", 5, 30)
    assert [read_number(f) for f in pixels(source, 2)] == [0, 1, 2, 3, 4]
    assert source.notes == ()


def test_natural_keys_sort_any_name():
    names = ["10", "9a", "a", "a1b2", "a1b10", "A2", "", "²", "a01"]
    assert sorted(names, key=natural_key) == ["", "9a", "10", "a", "a01", "a1b2", "a1b10", "A2", "²"]


def test_what_is_no_picture_is_left_out_and_said(tmp_path):
    folder = make_folder(tmp_path, ["1.png", "2.png"])
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / "notes.txt").write_text("x")
    (folder / "sub").mkdir()
    source = open_source(folder)
    assert source.stream.info.n_frames == 2
    assert len(source.notes) == 1
    assert "notes.txt" in source.notes[0]
    assert "sub" in source.notes[0]
    assert ".hidden" not in source.notes[0]


def test_a_folder_without_pictures_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no picture in folder.*notes\.txt.*\.png"):
        open_source(tmp_path)


def test_pictures_of_another_size_are_named_before_anything_is_read(tmp_path):
    folder = make_folder(tmp_path, ["1.png", "2.png"])
    save(folder / "3.jpg", picture(0, 61, 40))
    with pytest.raises(ValueError, match=r"3\.jpg is 61x40, 1\.png is 60x40"):
        open_source(folder)
    assert open_source(folder, max_frames=2).stream.info.n_frames == 2


def test_a_damaged_picture_is_named(tmp_path):
    folder = make_folder(tmp_path, ["1.png", "2.png", "3.png"])
    (folder / "2.png").write_bytes((folder / "2.png").read_bytes()[:40])  # the header is whole
    source = open_source(folder)
    with pytest.raises(StageError, match=r"2\.png"):
        pixels(source)
    (folder / "2.png").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"2\.png .*not a picture"):
        open_source(folder)
    with pytest.raises(ValueError, match=r"2\.png .*not a picture"):
        open_source(folder / "2.png")
    with pytest.raises(ValueError, match="no file or folder"):
        open_source(tmp_path / "absent.png")


def test_limits(tmp_path):
    folder = make_folder(tmp_path, [f"{i}.png" for i in range(6)])
    some = open_source(folder, max_frames=4)
    assert some.stream.info.n_frames == 4
    assert "first 4 of the 6" in some.notes[0]
    assert open_source(folder, max_frames=0).stream.info.n_frames == 6
    with pytest.raises(ValueError, match="max_frames -1"):
        open_source(folder, max_frames=-1)


def test_the_hash_of_a_folder_is_that_of_names_and_contents_used(tmp_path):
    folder = make_folder(tmp_path, ["1.png", "2.png", "3.png"])
    first = open_source(folder).sha256
    assert open_source(folder).sha256 == first
    assert open_source(folder, max_frames=2).sha256 != first
    (folder / "notes.txt").write_text("x")
    assert open_source(folder).sha256 == first
    (folder / "3.png").rename(folder / "4.png")
    assert open_source(folder).sha256 != first
    (folder / "4.png").rename(folder / "3.png")
    save(folder / "3.png", picture(9))
    assert open_source(folder).sha256 != first


def test_a_clip_is_turned_and_counted(tmp_path):
    path = Clip(n_frames=20, rotation=90).write(tmp_path / "vídeo 😀.MP4")
    source = open_source(path, max_frames=8)
    assert (source.kind, source.size, source.fps) == ("video", (96, 128), 25)
    assert pixels(source).shape == (8, 128, 96, 3)
    assert any("first 8 of" in n and "20" in n for n in source.notes)
    assert open_source(path, max_frames=0).notes == ()


def test_a_variable_rate_clip_comes_at_a_constant_rate(tmp_path):
    """Row 16."""
    clip = Clip(n_frames=12, steps=(3, 1))
    source = open_source(clip.write(tmp_path / "vfr.mp4"), fps=Fraction(25), max_frames=0)
    shown = [read_number(f) for f in pixels(source)]
    assert shown == [clip.shown_at(Fraction(k, 25)) for k in range(len(shown))]
    assert any("variable" in n for n in source.notes)


def write_gif(path, alpha):
    with av.open(str(path), "w", format="gif") as box:
        video = box.add_stream("gif", rate=10, options={"gifflags": "0"})
        video.width, video.height, video.pix_fmt = 60, 40, "rgb8"
        for i in range(3):
            box.mux(
                video.encode(av.VideoFrame.from_ndarray(picture(i), format="rgb24").reformat(format="rgb8"))
            )
        box.mux(video.encode())
    if alpha:  # index 0 made transparent in the first graphic control block
        data = bytearray(path.read_bytes())
        at = data.index(b"\x21\xf9\x04")
        data[at + 3] |= 1
        image = data.index(b"\x2c", at + 8)
        data[at + 6] = 0
        assert image > at
        path.write_bytes(data)
    return path


def test_a_gif_is_a_clip(tmp_path):
    source = open_source(write_gif(tmp_path / "a.gif", alpha=False))
    assert (source.kind, source.stream.info.n_frames, source.fps) == ("video", 3, 10)
    assert [read_number(f) for f in pixels(source)] == [0, 1, 2]
    assert not source.has_alpha
    assert source.notes == ()
    clear = open_source(write_gif(tmp_path / "b.gif", alpha=True))
    assert clear.has_alpha
    assert "transparency" in clear.notes[0]


def test_scaling_fills_the_size_and_keeps_the_own_one_on_record(tmp_path):
    folder = make_folder(tmp_path, ["1.png", "2.png"])
    source = open_source(folder, size=(32, 32))
    assert source.size == (60, 40)
    assert (source.stream.info.width, source.stream.info.height) == (32, 32)
    assert pixels(source).shape == (2, 32, 32, 3)


def test_reading_all_of_a_source(tmp_path):
    folder = make_folder(tmp_path, ["1.png", "2.png"])
    got = read_source(folder, size=(32, 32))
    assert (got.frames.shape, got.fps, got.size) == ((2, 32, 32, 3), 25, (60, 40))
    assert got.record == open_source(folder).record


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ("#ff8000", (255, 128, 0)),
        (" #FF8000 ", (255, 128, 0)),
        ("black", (0, 0, 0)),
        ("White", (255, 255, 255)),
        ("green", (0, 255, 0)),
        ("gray", (128, 128, 128)),
        ("1, 2,255", (1, 2, 255)),
    ],
)
def test_colours(text, colour):
    assert parse_colour(text) == colour


@pytest.mark.parametrize(
    "text", ["", "#fff", "#gggggg", "1,2", "1,2,256", "-1,2,3", "1.5,2,3", "blackish", "１,2,3"]
)
def test_what_is_no_colour(text):
    with pytest.raises(ValueError, match="colour"):
        parse_colour(text)
