"""What issue 5 promises of the video and no other file checks: colours of the splice against float, five generations
through it, and NVENC's settings as far as they can be checked without a card."""

from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
import torch
from media import decode, read_number
from streams import numbered

from talkinghead.nodes.core import color, video_encode
from talkinghead.nodes.core.blend import crop_geometry, lower_face_mask
from talkinghead.nodes.core.encoders import ENCODERS, QUALITIES, encoder_options
from talkinghead.nodes.core.frames import FrameInfo, FrameStream, Placement, RunContext
from talkinghead.nodes.core.plates import DevicePlates, HostPlates
from talkinghead.nodes.core.video_read import VideoStream, probe_video
from talkinghead.nodes.core.video_write import WriteOptions, write_video

NVENC = [name for name in ENCODERS if "nvenc" in name]
BOX = (30, 18, 94, 82)


class Film:
    """A film as an avatar: what plates need of a packet. Faces of the box's own size are not resized; by default each is
    the frame's own, so that the splice should change nothing."""

    def __init__(self, frames, faces=None):
        self.frames = torch.from_numpy(frames)
        self.boxes = torch.tensor([BOX] * len(frames), dtype=torch.int32)
        self.crops = torch.tensor([crop_geometry(BOX)] * len(frames), dtype=torch.int32)
        x1, y1, x2, y2 = BOX
        own = self.frames[:, y1:y2, x1:x2].contiguous()
        self.faces = own if faces is None else torch.from_numpy(faces)

    def frame(self, index):
        return self.frames[index]

    def mask(self, index):
        return lower_face_mask(tuple(self.crops[index].tolist()))


def plates(kind, reader, mask_of, matrix, color_range="limited"):
    args = (reader, mask_of, matrix, color_range)
    return HostPlates(*args) if kind == "host" else DevicePlates(*args, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize(
    ("matrix", "color_range"), [("bt709", "limited"), ("bt601", "limited"), ("bt601", "full")]
)
def test_spliced_colours_are_the_float_formulas(kind, matrix, color_range):
    """<= 1 level in Y, U and V, on colourful frames. A hard mask and faces of the box's size, so that the pixels to be
    converted are known to the bit."""
    seeds = np.random.default_rng(6).integers(0, 256, (2, 4, 6, 8, 3), dtype=np.uint8)
    frames = np.stack([cv2.resize(s, (128, 96)) for s in seeds[0]])
    film = Film(frames, np.stack([cv2.resize(s, (64, 64)) for s in seeds[1]]))

    def hard(index):
        return np.where(film.mask(index) >= 128, np.uint8(255), np.uint8(0))

    usable = torch.ones(4, dtype=torch.bool)
    made = plates(kind, film, hard, matrix, color_range)
    got = made.blend(film.faces, Placement(torch.arange(4), usable)).numpy()
    rgb = frames.copy()
    x1, y1, x2, y2 = BOX
    for k in range(4):
        left, top = (int(v) for v in film.crops[k, :2])
        mask = hard(k)[y1 - top : y2 - top, x1 - left : x2 - left] == 255
        rgb[k, y1:y2, x1:x2][mask] = film.faces[k].numpy()[mask]
    assert (rgb != frames).any(axis=(1, 2, 3)).all()
    m = color.coefficients(matrix, color_range)
    pixels = rgb.astype(np.float64)
    y = pixels @ m[0, :3] + m[0, 3]
    uv = pixels.reshape(4, 48, 2, 64, 2, 3).mean((2, 4)) @ m[1:, :3].T + m[1:, 3]
    assert np.abs(got[:, :96] - y).max() <= 1
    assert np.abs(got[:, 96:].reshape(4, 48, 64, 2) - uv).max() <= 1


class Spliced(FrameStream):
    """The film's frames as NV12, their faces blended in by plates."""

    stage = "spliced"

    def __init__(self, film, kind):
        n, height, width = film.frames.shape[:3]
        matrix = color.matrix_for_height(height)
        self.info = FrameInfo(width, height, Fraction(25), n, "nv12", matrix, "limited")
        self.plates = plates(kind, film, film.mask, matrix)
        self.film = film

    def generate(self, ctx, n):
        index = torch.arange(self.info.n_frames)
        for at in index.split(n):
            usable = torch.ones(len(at), dtype=torch.bool)
            yield self.plates.blend(self.film.faces[at], Placement(at, usable)), None


@pytest.mark.parametrize("kind", ["host", "device"])
def test_five_generations_through_the_splice_do_not_tint(tmp_path, kind):
    """Row 18 as users meet it: the film that was made is the avatar of the next."""
    patches = np.array([[224, 172, 105], [0, 160, 60], [128, 0, 32], [200, 200, 60]], np.uint8)
    first = np.repeat(patches, 32, axis=0)[None].repeat(96, axis=0)[None].repeat(3, axis=0)
    frames = first
    for generation in range(5):
        path = tmp_path / f"{generation}.mp4"
        made = Spliced(Film(frames), kind)
        plain = torch.from_numpy(color.rgb_to_nv12(frames, made.info.matrix))
        spliced = next(made.chunks(RunContext(), 3)).frames
        assert (spliced.int() - plain.int()).abs().max() <= 1
        write_video(made, path, RunContext(), None, WriteOptions(codec="libx264"))
        frames = next(VideoStream(path).chunks(RunContext(), 3)).frames.numpy()
    assert probe_video(path).tagged
    error = frames.astype(int) - first
    assert np.abs(error).mean() <= 2
    x1, y1, x2, y2 = BOX
    inside = np.abs(error[:, (y1 + y2) // 2 : y2, x1 + 12 : x2 - 12])
    assert inside.mean() <= 2


def refusal(encoder, options):
    """How FFmpeg refuses to open an encoder: by an option (ArgumentError), for want of a card, or not at all."""
    try:
        context = av.CodecContext.create(encoder, "w")
    except av.codec.codec.UnknownCodecError:
        pytest.skip(f"this FFmpeg was built without {encoder}")
    context.width, context.height, context.pix_fmt = 256, 256, "nv12"
    context.time_base, context.options = Fraction(1, 25), options
    try:
        context.open()
    except (av.error.FFmpegError, OSError) as e:
        return type(e)
    return None


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("encoder", NVENC)
def test_ffmpeg_knows_every_nvenc_setting(encoder, quality):
    """FFmpeg reads the options before it looks for a card: a value it does not know is refused, a name it does not know
    is passed over. So each name is shown to be known by a value that cannot be."""
    options, _ = encoder_options(encoder, QUALITIES[quality], Fraction(30000, 1001))
    assert refusal(encoder, options) is not av.error.ArgumentError
    assert refusal(encoder, options | {"no-such-option": "?"}) is not av.error.ArgumentError
    for name in options:
        assert refusal(encoder, options | {name: "?"}) is av.error.ArgumentError, name


class Recorder:
    """An output file that is told to use NVENC, keeps what it was told, and encodes by x264."""

    def __init__(self, box):
        self._box, self.told = box, []

    def add_stream(self, name, rate=None, options=None):
        self.told.append((name, rate, options))
        return self._box.add_stream("libx264", rate=rate)

    def __getattr__(self, name):
        return getattr(self._box, name)


@pytest.mark.parametrize(
    ("encoder", "fps", "gop"), [("h264_nvenc", "30000/1001", "30"), ("hevc_nvenc", "25", "25")]
)
def test_low_latency_settings_reach_the_encoder(tmp_path, monkeypatch, encoder, fps, gop):
    boxes = []
    opened = av.open

    def recording(*args, **kwargs):
        boxes.append(Recorder(opened(*args, **kwargs)))
        return boxes[-1]

    monkeypatch.setattr(video_encode.av, "open", recording)
    monkeypatch.setattr(video_encode, "encoder_problem", lambda *args: None)
    monkeypatch.setitem(
        video_encode.ENCODERS, encoder, ENCODERS["h264_nvenc"]
    )  # no HEVC tag on x264's stream
    ctx = RunContext()
    stream = numbered(40, fps=Fraction(fps))
    path = write_video(stream, tmp_path / "a.mp4", ctx, None, WriteOptions(codec=encoder)).path
    monkeypatch.undo()
    [(name, rate, options)] = boxes[0].told
    assert (name, rate) == (encoder, Fraction(fps))
    # p1 ull; one second of pictures, all of them closed, for NVENC makes every first picture an IDR; no B pictures;
    # each packet out before the next picture goes in.
    wanted = {"preset": "p1", "tune": "ull", "g": gop, "bf": "0", "zerolatency": "1", "delay": "0"}
    assert wanted.items() <= options.items()
    assert ctx.report.facts["encoder"].startswith(f"{encoder} p1 ull")
    assert [read_number(f) for f in decode(path)] == list(range(40))
