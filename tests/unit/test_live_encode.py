"""Live encoding: what comes out is decoded again; no frame and no sample is lost, and bytes leave early."""

import io
import math
from fractions import Fraction

import av
import numpy as np
import pytest
from media import numbered_frame, read_number, speech_like

from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.core.frames import FrameInfo
from talkinghead.nodes.core.live_encode import LiveEncoder, SoundBuffer
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.timeline import frame_count

SIZE = (128, 96)


def nv12_info(fps=Fraction(25), size=SIZE):
    return FrameInfo(*size, fps, 0, "nv12", "bt601", "limited")


def numbered(i, size=SIZE):
    return rgb_to_nv12(numbered_frame(*size, i)[None], "bt601")[0]


def encode(
    sound, rate, fps=Fraction(25), output="mp4", quality="balanced", batch=8, info=None, make=numbered
):
    """Feed `sound` (channels, n) as a session does, 80 ms ahead of each batch; return what left after each frame."""
    buffer = SoundBuffer(rate, sound.shape[0], 60)
    encoder = LiveEncoder(info or nv12_info(fps), output, quality, buffer)
    pieces, sent, count = [], 0, frame_count(sound.shape[1], rate, fps)
    for first in range(0, count, batch):
        end = min(first + batch, count)
        until = min(sound.shape[1], math.ceil((end / fps + Fraction(8, 100)) * rate))
        buffer.push(sound[:, sent:until])
        sent = max(sent, until)
        left = encoder.write(np.stack([make(i) for i in range(first, end)]))
        for data in left:
            assert data
            pieces += [b""] * (encoder.n_frames - 1 - len(pieces))
            if len(pieces) == encoder.n_frames:
                pieces[-1] += data
            else:
                pieces.append(data)
        pieces += [b""] * (encoder.n_frames - len(pieces))
    buffer.push(sound[:, sent:])
    pieces.append(encoder.finish())
    encoder.abandon()
    assert buffer.held == 0
    return encoder, pieces


def streams(data):
    with av.open(io.BytesIO(data)) as file:
        video = file.streams.video[0]
        frames = [(f.pts * f.time_base, f.to_ndarray(format="rgb24")) for f in file.decode(video)]
    with av.open(io.BytesIO(data)) as file:
        sounds = [(f.pts * f.time_base, f.to_ndarray()) for f in file.decode(audio=0)]
        rate = file.streams.audio[0].rate
    return frames, sounds, rate


@pytest.mark.parametrize(
    ("fps", "rate", "channels", "n"),
    [
        (Fraction(25), 16000, 1, 32000),
        (Fraction(25), 16000, 1, 32001),
        (Fraction(30000, 1001), 48000, 2, 70000),
        (Fraction(10), 8000, 1, 9999),
        (Fraction(60), 44100, 1, 30000),
        (Fraction(24000, 1001), 22050, 2, 22049),
        (Fraction(25), 16000, 1, 1),
        (Fraction(25), 48000, 1, 1920),
    ],
)
def test_every_frame_and_every_sample_arrives_in_its_place(fps, rate, channels, n):
    rng = np.random.default_rng(1)
    sound = (0.3 * speech_like(n / rate + 1, rate)[0, :n] + 0.001 * rng.standard_normal(n)).astype(np.float32)
    sound = np.stack([sound] * channels)
    _, pieces = encode(sound, rate, fps)
    frames, sounds, got_rate = streams(b"".join(pieces))
    count = math.ceil(Fraction(n, rate) * fps)
    assert [read_number(f) for _, f in frames] == list(range(count))
    assert [t for t, _ in frames] == [i / fps for i in range(count)]
    assert got_rate == rate
    heard = np.concatenate([s for _, s in sounds], axis=-1)
    assert sounds[0][0] == 0
    assert n <= heard.shape[-1] <= n + 2 * 1024, "AAC ends on whole packets"
    assert abs(Fraction(n, rate) - count / fps) <= 1 / fps


def test_the_sound_is_the_sound_and_starts_on_time():
    rate, n = 16000, 32000
    sound = np.zeros((1, n), np.float32)
    for at in (1600, 12345, 30000):  # clicks say where each sample went
        sound[0, at : at + 160] = 0.8 * np.hanning(160)
    _, pieces = encode(sound, rate)
    _, sounds, _ = streams(b"".join(pieces))
    heard = np.concatenate([s[0] for _, s in sounds])[:n]
    for at in (1600, 12345, 30000):
        window = np.abs(heard[at - 400 : at + 560])
        assert abs(int(window.argmax()) - 480) < 40, "within 2.5 ms"


@pytest.mark.parametrize("rate", [16000, 48000])
@pytest.mark.parametrize("fps", [Fraction(25), Fraction(60)])
def test_the_first_bytes_leave_with_the_second_frame(fps, rate):
    _, pieces = encode(speech_like(1, rate), rate, fps)
    first = next(i for i, p in enumerate(pieces) if p)
    assert first <= 1, "a batch has 8"


@pytest.mark.parametrize(
    ("rate", "fps", "batch", "kept_back"), [(16000, 25, 8, 1), (48000, 25, 8, 0), (16000, 50, 1, 4)]
)
def test_what_has_left_plays_up_to_the_last_frame_or_nearly(rate, fps, batch, kept_back):
    _, pieces = encode(speech_like(2, rate), rate, Fraction(fps), batch=batch)
    for n in (16, 24, 40):
        frames, _, _ = streams(b"".join(pieces[:n]))
        assert [read_number(f) for _, f in frames] == list(range(len(frames)))
        assert n - kept_back <= len(frames) <= n


def test_no_index_grows_with_the_session():
    """FFmpeg keeps an entry a fragment for the trailer: 8 MB after half an hour at 60 fps."""
    _, pieces = encode(speech_like(1, 16000), 16000)
    assert b"moof" in b"".join(pieces)
    assert b"mfra" not in b"".join(pieces)


def test_raw_h264_repeats_its_parameter_sets_and_loses_nothing():
    rate, fps = 16000, Fraction(25)
    encoder, pieces = encode(np.zeros((1, 2 * rate), np.float32), rate, fps, "h264")
    assert pieces[0].startswith(b"\x00\x00\x00\x01")
    assert all(pieces[:-1]), "each frame leaves at once"
    keys = [i for i, p in enumerate(pieces) if b"\x00\x00\x00\x01\x67" in p[:8]]
    assert keys == [0, 25]
    for start in keys:  # a viewer may come in at each of them
        with av.open(io.BytesIO(b"".join(pieces[start:])), format="h264") as file:
            got = [read_number(f.to_ndarray(format="rgb24")) for f in file.decode(video=0)]
        assert got == list(range(start, 50))
    assert encoder.codec.startswith("avc1.")


def test_the_codec_string_is_that_of_the_file():
    encoder, pieces = encode(np.zeros((1, 16000), np.float32), 16000)
    data = b"".join(pieces)
    at = data.index(b"avcC") + 4
    video, sound = encoder.codec.split(",")
    assert video == "avc1." + data[at + 1 : at + 4].hex().upper()
    assert sound == "mp4a.40.2"


def test_colours_are_tagged_and_right():
    sound = np.zeros((1, 8000), np.float32)
    _, pieces = encode(sound, 16000, quality="balanced")
    with av.open(io.BytesIO(b"".join(pieces))) as file:
        context = file.streams.video[0].codec_context
        frame = next(file.decode(video=0))
        assert (context.color_range, context.colorspace, context.color_primaries) == (1, 6, 1)
        picture = frame.to_ndarray(format="rgb24").astype(float)
    error = np.abs(picture - numbered_frame(*SIZE, 0)).mean()
    assert error < 4, f"{error:.2f} levels from the source"


def test_rgb_frames_of_odd_size_are_padded():
    info = FrameInfo(127, 95, Fraction(25), 0)
    encoder, pieces = encode(
        np.zeros((1, 8000), np.float32), 16000, info=info, make=lambda i: numbered_frame(127, 95, i)
    )
    assert (encoder.width, encoder.height) == (128, 96)
    frames, _, _ = streams(b"".join(pieces))
    assert frames[0][1].shape == (96, 128, 3)
    assert [read_number(f[:95, :127]) for _, f in frames] == list(range(13))


def test_no_frame_gives_no_bytes():
    for output in ("mp4", "h264"):
        encoder = LiveEncoder(nv12_info(), output, "draft", SoundBuffer(16000, 1, 5))
        assert encoder.finish() == b""
        encoder.abandon()


def test_giving_up_in_the_middle_is_quiet_and_may_come_twice():
    for output in ("mp4", "h264"):
        buffer = SoundBuffer(16000, 1, 5)
        buffer.push(np.zeros((1, 16000), np.float32))
        encoder = LiveEncoder(nv12_info(), output, "draft", buffer)
        assert list(encoder.write(numbered(0)[None])) or output == "mp4"
        encoder.abandon()
        encoder.abandon()


def test_an_encoder_that_refuses_to_start_is_replaced(monkeypatch):
    from talkinghead.nodes.core import live_encode

    monkeypatch.setattr(live_encode, "choose_encoder", lambda *a: ("h264_nvenc", "said to open"))
    report = Report()
    encoder = LiveEncoder(nv12_info(), "h264", "draft", SoundBuffer(16000, 1, 5), report)
    if encoder.encoder == "h264_nvenc":
        pytest.skip("NVENC opens on this machine")
    assert "libx264 took over" in next(iter(report.warnings))
    assert list(encoder.write(numbered(0)[None]))


class TestSoundBuffer:
    def test_samples_come_out_as_they_went_in(self):
        rng, buffer = np.random.default_rng(2), SoundBuffer(1000, 2, 1)
        sound = rng.standard_normal((2, 5000)).astype(np.float32)
        out, at = [], 0
        while sum(o.shape[1] for o in out) < 5000:
            n = min(int(rng.integers(0, 300)), buffer.room(), 5000 - at)
            buffer.push(sound[:, at : at + n])
            at += n
            out.append(buffer.take(int(rng.integers(0, 300))))
        assert np.array_equal(np.concatenate(out, axis=1), sound)
        assert buffer.held == 0

    def test_it_is_bounded(self):
        buffer = SoundBuffer(1000, 1, 0.5)
        buffer.push(np.zeros((1, 400), np.float32))
        assert buffer.room() == 100
        with pytest.raises(ValueError, match="room for 100"):
            buffer.push(np.zeros((1, 101), np.float32))
        assert buffer.take(1000).shape == (1, 400)
        assert buffer.take(10).shape == (1, 0)
