"""The writer when things go wrong: nothing is left behind, errors say where, the next run works."""

import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from fractions import Fraction

import av
import pytest
from media import decode, sine
from streams import Stub, numbered

from talkinghead.nodes.core import video_encode, video_write
from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import (
    RunCancelled,
    RunContext,
    StageError,
)
from talkinghead.nodes.core.video_read import probe_video
from talkinghead.nodes.core.video_write import WriteOptions, write_video

DRAFT = WriteOptions(quality="draft", codec="libx264")
HIGH = WriteOptions(quality="high", codec="libx264")
NTSC = Fraction(30000, 1001)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


# Nothing is left behind


class InterruptProcessingException(Exception):
    pass


@pytest.mark.parametrize("at", [0, 8, 24, 40])
@pytest.mark.parametrize("kind", [RunCancelled, KeyboardInterrupt, InterruptProcessingException])
def test_an_interrupt_leaves_no_file_no_thread_and_the_old_file(tmp_path, kind, at):
    old = tmp_path / "a.mp4"
    old.write_bytes(b"the old film")

    def hook(start):
        if start >= at:
            raise kind("stop")

    stream = numbered(48, hook=hook)
    with pytest.raises(kind):
        write_video(stream, old, RunContext(), MemoryAudio(sine(2), 16000), DRAFT)
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert old.read_bytes() == b"the old film"
    assert stream.closed == 1


def test_cancel_is_heard_between_chunks(tmp_path):
    asked = []
    ctx = RunContext(is_cancelled=lambda: len(asked) >= 2 or asked.append(1))
    stream = numbered(400)
    with pytest.raises(RunCancelled):
        write_video(stream, tmp_path / "a.mp4", ctx, None, DRAFT)
    assert not os.listdir(tmp_path)
    assert stream.pulled <= 24
    assert stream.closed == 1


@pytest.mark.parametrize("where", ["write", "finish"])
def test_cancel_is_heard_while_the_writer_is_busy(tmp_path, monkeypatch, where):
    """The producer waits for the queue, or has ended, and the encoder takes its time."""
    real, entered = getattr(video_encode.VideoFile, where), threading.Event()

    def slow(self, *args):
        entered.set()
        time.sleep(0.3)
        return real(self, *args)

    monkeypatch.setattr(video_encode.VideoFile, where, slow)
    with pytest.raises(RunCancelled):
        write_video(numbered(80), tmp_path / "a.mp4", RunContext(is_cancelled=entered.is_set), None, DRAFT)
    assert not os.listdir(tmp_path)


def test_a_progress_callback_may_interrupt(tmp_path):
    def progress(done, total):
        if done >= 16:
            raise InterruptProcessingException

    with pytest.raises(InterruptProcessingException):
        write_video(numbered(48), tmp_path / "a.mp4", RunContext(progress=progress), None, DRAFT)
    assert not os.listdir(tmp_path)


def test_an_error_in_the_stream_names_its_stage(tmp_path):
    def hook(start):
        if start >= 16:
            raise ValueError("bad tensor")

    stream = numbered(48, hook=hook)
    with pytest.raises(StageError, match="stub, from frame 16 of 48: bad tensor"):
        write_video(stream, tmp_path / "a.mp4", RunContext(), None, DRAFT)
    assert not os.listdir(tmp_path)
    assert stream.closed == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("boom"), "video writer, frame 5 of 400.*boom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk is full.*free some space"),
        (MemoryError("no"), "video writer, frame 5 of 400.*MemoryError"),
    ],
)
def test_an_error_in_the_writer_ends_the_producer(tmp_path, monkeypatch, error, text):
    real, count = video_encode.VideoFile.write, itertools.count()

    def write(self, pixels):
        if next(count) == 5:
            raise error
        real(self, pixels)

    monkeypatch.setattr(video_encode.VideoFile, "write", write)
    stream = numbered(400)
    with pytest.raises(StageError, match=text):
        write_video(stream, tmp_path / "a.mp4", RunContext(), None, DRAFT)
    assert not os.listdir(tmp_path)
    assert stream.pulled <= 48
    assert stream.closed == 1


def test_a_really_full_disk(tmp_path):
    """The kernel refuses bytes beyond a limit, as a full disk does."""
    resource = pytest.importorskip("resource")
    assert resource
    code = f"""
import resource, torch
from fractions import Fraction
from talkinghead.nodes.core.frames import RunContext, TensorStream
from talkinghead.nodes.core.video_write import write_video, WriteOptions
frames = torch.randint(0, 256, (40, 96, 128, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    write_video(TensorStream(frames, Fraction(25)), {str(tmp_path / "a.mp4")!r}, RunContext())
except Exception as e:
    print(type(e).__name__, e)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "StageError video writer" in done.stdout, done.stdout + done.stderr
    assert "disk is full" in done.stdout
    assert not os.listdir(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match="folder.*choose another"):
        write_video(numbered(4), tmp_path / "file" / "a.mp4", RunContext(), None, DRAFT)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.access(locked, os.W_OK):
        pytest.skip("running as a user who may write anywhere")
    with pytest.raises(ValueError, match="locked.*may write"):
        write_video(numbered(4), locked / "a.mp4", RunContext(), None, DRAFT)


def test_a_folder_that_refuses_files(tmp_path, monkeypatch):
    """The same for a user who may write anywhere."""

    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(video_encode.av, "open", refuse)
    with pytest.raises(ValueError, match="cannot write in the folder.*Permission denied.*may write"):
        write_video(numbered(4), tmp_path / "a.mp4", RunContext(), None, DRAFT)


def test_a_good_file_replaces_the_old_one_and_folders_are_made(tmp_path):
    target = tmp_path / "new" / "deep" / "a.mp4"
    for n_frames in (3, 7):
        write_video(numbered(n_frames), target, RunContext(), None, DRAFT)
        assert os.listdir(target.parent) == ["a.mp4"]
        assert len(decode(target)) == n_frames


@pytest.mark.parametrize("name", ["vídeo 😀.mp4", "caña 日本 x/клип.mp4", "長" * 70 + ".mp4", "100% %d.mp4"])
def test_names_in_any_script(tmp_path, name):
    """Row 23."""
    result = write_video(numbered(4), tmp_path / name, RunContext(), MemoryAudio(sine(0.16), 16000), DRAFT)
    assert result.path == tmp_path / name
    assert probe_video(result.path).n_frames == 4


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: write_video(Stub(0), p / "a.mp4", RunContext()), "0 frames"),
        (lambda p: write_video(Stub(4), p / "a.avi", RunContext()), r"a\.avi.*\.mp4"),
        (lambda p: write_video(Stub(4), p / "a", RunContext()), r"\.mp4"),
        (lambda p: WriteOptions(codec="prores"), "prores.*libx264"),
        (lambda p: WriteOptions(quality="best"), "best.*balanced"),
        (lambda p: WriteOptions(chunk=0), "0 frames.*1..256"),
    ],
)
def test_what_cannot_work_says_so_at_once(tmp_path, call, text):
    with pytest.raises(ValueError, match=text):
        call(tmp_path)
    assert not os.listdir(tmp_path)


def test_a_folder_as_target_is_refused(tmp_path):
    (tmp_path / "a.mp4").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        write_video(numbered(4), tmp_path / "a.mp4", RunContext())


# Encoder choice


def test_auto_says_which_encoder_and_why(tmp_path, monkeypatch):
    monkeypatch.setattr(
        video_encode, "encoder_problem", lambda codec, w, h: "no driver" if "nvenc" in codec else None
    )
    ctx = RunContext()
    result = write_video(numbered(4), tmp_path / "a.mp4", ctx, None, WriteOptions())
    assert result.encoder == "libx264"
    assert "libx264" in ctx.report.facts["encoder"]
    assert "h264_nvenc does not open here: no driver" in ctx.report.facts["encoder"]
    with pytest.raises(ValueError, match="h264_nvenc.*no driver.*'auto'"):
        write_video(numbered(4), tmp_path / "b.mp4", RunContext(), None, WriteOptions(codec="h264_nvenc"))
    assert os.listdir(tmp_path) == ["a.mp4"]


def test_auto_falls_back_when_nvenc_refuses_a_session_after_the_probe(tmp_path, monkeypatch):
    if video_encode.encoder_problem("h264_nvenc", 128, 96) is None:
        pytest.skip("NVENC works here")
    monkeypatch.setattr(video_encode, "encoder_problem", lambda codec, w, h: None)
    ctx = RunContext()
    result = write_video(numbered(4), tmp_path / "a.mp4", ctx, None, WriteOptions())
    assert result.encoder == "libx264"
    assert len(decode(result.path)) == 4
    assert any("libx264 took over" in w for w in ctx.report.warnings)


@pytest.mark.parametrize("codec", ["auto", "h264_nvenc"])
def test_a_session_refused_by_the_card_is_an_error_of_no_file(tmp_path, monkeypatch, codec):
    """What NVENC says on an H200, and at one session too many: AVERROR_EXTERNAL, which is no OSError."""

    class Refused(video_write.VideoFile):
        def __init__(self, path, info, audio, chosen, *more):
            if chosen != "libx264":
                raise av.error.ExternalError(542398533, "Generic error in an external library")
            super().__init__(path, info, audio, chosen, *more)

    monkeypatch.setattr(video_write, "VideoFile", Refused)
    ctx, path = RunContext(), tmp_path / "a.mp4"
    if codec == "auto":
        assert write_video(numbered(4), path, ctx).encoder == "libx264"
        assert any("libx264 took over" in w for w in ctx.report.warnings)
    else:
        with pytest.raises(ValueError, match="codec h264_nvenc did not start .*; close other programs"):
            write_video(numbered(4), path, ctx, None, WriteOptions(codec))
        assert list(tmp_path.iterdir()) == []


def test_the_probe_is_cached_and_knows_encoders_that_are_not_there():
    assert video_encode.encoder_problem("libx264", 64, 64) is None
    assert video_encode.encoder_problem("libx264", 64, 64) is None
    assert video_encode.encoder_problem.cache_info().hits
    assert video_encode.encoder_problem("no_such_codec", 64, 64)
