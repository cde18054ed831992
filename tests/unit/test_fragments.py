"""Fragmented MP4 of the packets a file is made of: what a page may play is what the file will be."""

import io
import threading
from fractions import Fraction

import av
import numpy as np
import pytest
from media import Clip, impulse, read_number, sine
from streams import Stub, numbered

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.audio_file import open_file
from talkinghead.nodes.core.fragments import SEGMENT_S, FragmentMuxer
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.mp4_boxes import BoxReader, child, children, codec_strings
from talkinghead.nodes.core.video_write import WriteOptions, write_video

NTSC = Fraction(30000, 1001)


class Collector:
    """A tap that keeps the stream, and after each packet how many frames came in and how many went out."""

    def __init__(self):
        self.init, self.mime, self.segments, self.pace = b"", "", [], []
        self.taken, self.ended = 0, None

    def begin(self, video, sound):
        self.muxer = FragmentMuxer(video, sound, self._start, self.segments.append)

    def _start(self, init, mime):
        assert not self.init, "one init segment"
        self.init, self.mime = init, mime

    def take(self, packet):
        self.muxer.take(packet)
        self.taken += packet.video
        self.pace.append((self.taken, sum(s.n_frames for s in self.segments)))

    def end(self, complete):
        self.ended = complete
        if complete:
            self.muxer.finish()
        else:
            self.muxer.abandon()

    def stream(self, first=0):
        return self.init + b"".join(s.data for s in self.segments[first:])


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def tapped(path, stream, audio=None, codec="libx264"):
    tap = Collector()
    write_video(stream, path, RunContext(), audio, WriteOptions(codec, "draft", tap=tap))
    assert tap.ended is True
    return tap


def times(data, kind):
    """Return the start of every packet of a kind, in seconds, as a player sees them."""
    with av.open(io.BytesIO(data)) as box:
        track = box.streams.best(kind)
        return [p.pts * p.time_base for p in box.demux(track) if p.size]


def numbers(data):
    with av.open(io.BytesIO(data)) as box:
        return [read_number(f.to_ndarray(format="rgb24")) for f in box.decode(video=0)]


def sound(data):
    with av.open(io.BytesIO(data)) as box:
        frames = list(box.decode(audio=0))
    return frames[0].pts, np.concatenate([f.to_ndarray() for f in frames], axis=1)


def test_the_stream_is_the_film(tmp_path):
    click = MemoryAudio(impulse(48000 * 3, 30000), 48000)
    tap = tapped(tmp_path / "a.mp4", numbered(89, fps=NTSC), click)
    assert numbers(tap.stream()) == list(range(89))
    # each second at 30000/1001 is 30 frames: the muxer's clock holds every start exactly
    assert times(tap.stream(), "video") == [i / NTSC for i in range(89)]
    first, heard = sound(tap.stream())
    assert first == 0
    assert int(np.abs(heard[0]).argmax()) == 30000, "sound starts with the first picture, to the sample"
    assert tap.mime.startswith('video/mp4; codecs="avc1.')
    assert tap.mime.endswith(',mp4a.40.2"')


def test_the_file_has_the_same_bytes_with_and_without(tmp_path):
    audio = MemoryAudio(sine(2.5), 16000)
    tapped(tmp_path / "a.mp4", numbered(60), audio)
    write_video(numbered(60), tmp_path / "b.mp4", RunContext(), audio, WriteOptions("libx264", "draft"))
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_segments_are_short_whole_and_cut_at_key_frames(tmp_path):
    tap = tapped(tmp_path / "a.mp4", numbered(80), MemoryAudio(sine(3.2), 16000))
    assert [s.number for s in tap.segments] == list(range(len(tap.segments)))
    assert sum(s.n_frames for s in tap.segments) == 80
    assert [s.first_frame for s in tap.segments] == [
        sum(s.n_frames for s in tap.segments[:i]) for i in range(len(tap.segments))
    ]
    assert [s.first_frame for s in tap.segments if s.key] == [0, 25, 50, 75]
    for segment in tap.segments:
        assert segment.n_frames <= SEGMENT_S * 25 + 1
        assert [kind for kind, _ in children(segment.data)] == [b"moof", b"mdat"]
    assert [kind for kind, _ in children(tap.init)] == [b"ftyp", b"moov"]


def test_playback_may_start_at_every_key_segment_and_nowhere_else(tmp_path):
    tap = tapped(tmp_path / "a.mp4", numbered(60))
    for segment in tap.segments:
        data = tap.stream(segment.number)
        with av.open(io.BytesIO(data)) as box:
            first = next(p for p in box.demux(video=0) if p.size)
        assert first.is_keyframe == segment.key
        assert first.pts * first.time_base == Fraction(segment.first_frame, 25)
        if segment.key:
            assert numbers(data) == list(range(segment.first_frame, 60))


@pytest.mark.parametrize("seconds", [0.5, 4, None], ids=["ends early", "longer", "silent"])
def test_the_stream_keeps_pace_with_the_packets_whatever_the_sound(tmp_path, seconds):
    """The muxer holds at most its segment and what it waits for of the other track: memory does not grow."""
    audio = None if seconds is None else MemoryAudio(sine(seconds), 16000)
    tap = tapped(tmp_path / "a.mp4", Stub(150, (64, 64)), audio)
    assert max(taken - given for taken, given in tap.pace) <= 25 * 1.6
    assert sum(s.n_frames for s in tap.segments) == 150
    if audio is not None:
        assert abs(float(times(tap.stream(), "audio")[-1]) - seconds) < 0.1


def test_copied_sound_goes_into_the_stream_too(tmp_path):
    source = Clip(sound=sine(2, 48000), sound_rate=48000, n_frames=50).write(tmp_path / "in.mp4")
    tap = tapped(tmp_path / "a.mp4", numbered(50), open_file(source))
    first, heard = sound(tap.stream())
    assert first == 0
    _, filed = sound((tmp_path / "a.mp4").read_bytes())
    assert np.array_equal(heard[:, : filed.shape[1]], filed)


@pytest.mark.parametrize(
    ("codec", "name"), [("libx265", "hvc1.1.6.L30.90"), ("libsvtav1", "av01.0.00M.08")], ids=["hevc", "av1"]
)
def test_other_codecs_are_named_as_browsers_ask(tmp_path, codec, name):
    tap = tapped(tmp_path / "a.mp4", numbered(30), None, codec)
    assert tap.mime == f'video/mp4; codecs="{name}"'
    assert numbers(tap.stream()) == list(range(30))


def test_the_name_of_h264_is_its_profile_and_level(tmp_path):
    """A second reader: the bytes of the sequence parameter set itself, found by its start code."""
    tap = tapped(tmp_path / "a.mp4", Stub(3, (64, 64)))
    with av.open(str(tmp_path / "a.mp4")) as box:
        record = box.streams.video[0].codec_context.extradata
    sps = record[8:]  # after version, profile, flags, level, two size fields and the length
    assert sps[0] & 31 == 7
    assert codec_strings(tap.init) == {1: f"avc1.{sps[1]:02X}{sps[2]:02X}{sps[3]:02X}"}


def test_one_frame_is_a_stream(tmp_path):
    tap = tapped(tmp_path / "a.mp4", numbered(1))
    assert numbers(tap.stream()) == [0]


def test_an_error_on_the_way_ends_the_tap(tmp_path):
    def fail(start):
        if start >= 16:
            raise ValueError("told to fail")

    tap = Collector()
    with pytest.raises(RuntimeError, match="told to fail"):
        write_video(
            numbered(40, hook=fail),
            tmp_path / "a.mp4",
            RunContext(),
            None,
            WriteOptions("libx264", "draft", tap=tap),
        )
    assert tap.ended is False
    assert list(tmp_path.iterdir()) == []


# Boxes


def box(kind, body, wide=False):
    if wide:
        return b"\0\0\0\1" + kind + (len(body) + 16).to_bytes(8, "big") + body
    return (len(body) + 8).to_bytes(4, "big") + kind + body


def test_boxes_come_out_whole_whatever_the_pieces():
    stream = box(b"ftyp", b"abc") + box(b"moov", box(b"mvhd", bytes(90)), wide=True) + box(b"mdat", b"")
    for size in (1, 3, 16, 17, 1000):
        reader, found = BoxReader(), []
        for at in range(0, len(stream), size):
            found += reader.feed(stream[at : at + size])
        assert [kind for kind, _ in found] == [b"ftyp", b"moov", b"mdat"]
        assert b"".join(data for _, data in found) == stream
        assert reader.rest == 0
    assert child(stream, b"moov", b"mvhd") == bytes(90)


def test_what_is_no_stream_of_boxes_is_refused():
    with pytest.raises(ValueError, match="a box of 3 bytes"):
        list(BoxReader().feed(b"\0\0\0\3free"))
    with pytest.raises(ValueError, match="cut off"):
        list(children(box(b"moov", bytes(20))[:-1]))
    with pytest.raises(ValueError, match="no box trak"):
        child(box(b"moov", b""), b"moov", b"trak")
