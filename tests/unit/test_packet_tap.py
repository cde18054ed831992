"""A tap can listen to a render and do nothing to it: not by failing, not by being slow, not by hanging."""

import threading
import time
from fractions import Fraction

import pytest
from media import decode, read_number, sine
from streams import numbered

from talkinghead.nodes.core import packet_tap
from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.packet_tap import TapThread
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.video_write import WriteOptions, write_video


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Notes:
    """A tap that keeps what it gets and fails where it is told."""

    def __init__(self, fail=""):
        self.fail, self.packets, self.calls, self.threads = fail, [], [], set()

    def _call(self, name):
        self.calls.append(name)
        self.threads.add(threading.current_thread().name)
        if name == self.fail:
            raise OSError("no room for it")

    def begin(self, video, sound):
        self.kinds = (video and video.type, sound and sound.type)
        self._call("begin")

    def take(self, packet):
        if not self.packets:
            self._call("take")
        self.packets.append(packet)

    def end(self, complete):
        self.complete = complete
        self._call("end")


def run(path, tap, n_frames=30, ctx=None, **kwargs):
    options = WriteOptions("libx264", "draft", tap=tap)
    ctx = ctx or RunContext()
    write_video(numbered(n_frames, **kwargs), path, ctx, MemoryAudio(sine(1.2), 16000), options)
    return ctx.report


def test_a_tap_gets_every_packet_in_order_in_a_thread_of_its_own(tmp_path):
    tap = Notes()
    report = run(tmp_path / "a.mp4", tap)
    assert (tap.calls, tap.complete, tap.kinds) == (["begin", "take", "end"], True, ("video", "audio"))
    pictures = [p for p in tap.packets if p.video]
    assert [p.pts * p.time_base for p in pictures] == [Fraction(i, 25) for i in range(30)]
    assert [i for i, p in enumerate(pictures) if p.key] == [0, 25]
    blocks = [p for p in tap.packets if not p.video]
    assert sum(p.duration * p.time_base for p in blocks) >= Fraction(12, 10)
    assert "talkinghead-tap" in tap.threads
    assert not report.warnings


@pytest.mark.parametrize("where", ["begin", "take", "end"])
def test_a_tap_that_raises_is_dropped_with_one_warning(tmp_path, where):
    tap = Notes(where)
    report = run(tmp_path / "a.mp4", tap)
    assert [read_number(f) for f in decode(tmp_path / "a.mp4")] == list(range(30))
    assert report.warnings == {
        "the live preview was given up, the video is whole: OSError: no room for it": 1
    }
    assert tap.calls[-1] == "end", "it may clean up"
    assert tap.complete is (where == "end")


def test_a_tap_that_stalls_does_not_stop_the_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(packet_tap, "MAX_PACKETS", 8)
    free = threading.Event()

    class Stalled(Notes):
        def take(self, packet):
            super().take(packet)
            free.wait(10)

    tap, path = Stalled(), tmp_path / "a.mp4"

    def hook(start):
        if start == 96:  # the writer has all but the last pieces: it did not wait
            free.set()

    report = run(path, tap, 100, hook=hook)
    assert len(decode(path)) == 100
    [warning] = [w for w in report.warnings if "preview" in w]
    assert "it fell behind by 8 packets" in warning
    assert len(tap.packets) < 12
    assert tap.complete is False


def test_bytes_that_wait_are_bounded_too(monkeypatch):
    monkeypatch.setattr(packet_tap, "MAX_BYTES", 1000)

    class Big:
        def __init__(self, size):
            self.size, self.pts, self.dts, self.duration = size, 0, 0, 1
            self.time_base, self.is_keyframe, self.stream = Fraction(1, 25), True, self
            self.type = "video"

        def __bytes__(self):
            return bytes(self.size)

    free, report = threading.Event(), Report()

    class Stalled(Notes):
        def take(self, packet):
            super().take(packet)
            free.wait(10)

    thread = TapThread(Stalled(), report)
    thread.begin(None, None)
    for _ in range(4):
        thread.put(Big(400))
    free.set()
    thread.close(complete=True)
    [warning] = report.warnings
    assert "fell behind" in warning


def test_a_tap_that_hangs_is_left_behind_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(packet_tap, "END_S", 0.2)
    free = threading.Event()

    class Hanging(Notes):
        def end(self, complete):
            super().end(complete)
            free.wait(10)

    report = run(tmp_path / "a.mp4", Hanging())
    assert len(decode(tmp_path / "a.mp4")) == 30
    assert any("did not end within" in w for w in report.warnings)
    free.set()
    deadline = time.monotonic() + 30
    while any(t.name == "talkinghead-tap" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_cancel_ends_the_tap_without_the_rest(tmp_path):
    seen = []
    ctx = RunContext(progress=lambda done, total: seen.append(done), is_cancelled=lambda: len(seen) > 2)
    tap = Notes()
    with pytest.raises(RunCancelled):
        run(tmp_path / "a.mp4", tap, 200, ctx)
    assert tap.complete is False
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_open_never_began(tmp_path):
    tap = Notes()
    (tmp_path / "b").write_text("")
    with pytest.raises(ValueError, match="choose another one"):
        run(tmp_path / "b" / "c.mp4", tap)
    assert tap.calls == []
