"""A render's preview: segments that play, bounded on disk, gone at the end; figures of what is known."""

import errno
import io
import random
import signal
import threading
import time
from fractions import Fraction

import av
import pytest
from media import read_number, sine
from streams import numbered

from talkinghead.nodes.core import fragments, preview
from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import FrameInfo, RunCancelled, RunContext
from talkinghead.nodes.core.preview import NOTIFY_PER_S, PreviewRun, reported_figures
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.video_write import WriteOptions, write_video


class Page:
    """What a page does: follows the states and reads the segments as they come, in the tap's thread."""

    def __init__(self, folder, stream, report, **kwargs):
        self.states, self.read, self.next, self.files = [], b"", 0, set()
        self.run = PreviewRun(folder, report, stream.info, self.notify, **kwargs)
        self.folder = folder

    def notify(self, state):
        self.states.append(state)
        first, self.next, data = self.run.read(self.next)
        self.read += data
        self.files |= {p.name for p in self.folder.rglob("*") if p.is_file()}


def watch(tmp_path, stream, audio=None, codec="libx264", **kwargs):
    ctx = RunContext()
    (tmp_path / "temp").mkdir()
    page = Page(tmp_path / "temp", stream, ctx.report, **kwargs)
    options = WriteOptions(codec, "draft", tap=page.run)
    write_video(stream, tmp_path / "a.mp4", ctx, audio, options)
    return page


class Clock:
    """Every look at it is 50 ms later."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        self.now += 0.05
        return self.now


def numbers(data):
    with av.open(io.BytesIO(data)) as box:
        return [read_number(f.to_ndarray(format="rgb24")) for f in box.decode(video=0)]


def test_a_page_that_follows_sees_the_film_before_its_end(tmp_path):
    page = watch(tmp_path, numbered(100), MemoryAudio(sine(4), 16000), clock=Clock())
    assert [s["state"] for s in page.states] == ["running"] * (len(page.states) - 1) + ["finished"]
    shown = numbers(page.run.init + page.read)
    assert shown == list(range(len(shown)))
    assert len(shown) > 80, "all but what came after the last message of a running render"
    assert page.states[-2]["mime"].startswith('video/mp4; codecs="avc1.')
    assert all(a["next"] <= b["next"] for a, b in zip(page.states, page.states[1:], strict=False))
    assert page.files, "the segments were on disk"
    assert list((tmp_path / "temp").iterdir()) == [], "the file replaces them"
    assert page.run.read(0) == (0, 0, b"")


def test_the_figures_are_those_of_the_run(tmp_path):
    page = watch(tmp_path, numbered(100), clock=Clock())
    last = page.states[-1]["figures"]
    assert (last["frame"], last["frames"], last["encoder"]) == (100, 100, "libx264")
    assert 0 < last["first_frame_s"] < 1
    # three looks at the clock for a frame that is not told of, four for one that is
    assert 1 / 0.25 < last["fps"] <= 1 / 0.1
    assert last["realtime"] == pytest.approx(last["fps"] / 25, abs=0.01)
    assert "vram_mb" not in last
    assert "backend" not in last


def test_messages_are_few(tmp_path):
    clock = Clock()
    page = watch(tmp_path, numbered(200), clock=clock)
    assert len(page.states) <= (clock.now - 100) * NOTIFY_PER_S + 2
    assert NOTIFY_PER_S <= 5


def test_figures_come_from_the_reports_facts():
    report = Report()
    report.fact("musetalk unet engine", "cuda graph, batch 8, on cuda")
    report.fact("musetalk vae engine", "inductor, batch 8, on cuda")
    report.fact("whisper engine", "inductor, batch 8, on cuda")
    report.fact("encoder", "h264_nvenc p1 ull cq 23 (opens on this machine)")
    report.fact("stride mix", "dense 60 %, 2 30 %, rest 10 %")
    report.fact("viseme cache", "30 of 100 lookups (30 %)")
    assert reported_figures(report.facts) == {
        "backend": "cuda graph, inductor",
        "encoder": "h264_nvenc",
        "strides": "dense 60 %, 2 30 %, rest 10 %",
        "cache": "30 of 100 lookups (30 %)",
    }
    assert reported_figures({}) == {}


def test_old_groups_go_and_playback_starts_at_the_oldest_left(tmp_path):
    stream = numbered(250)
    page = watch(tmp_path, stream, max_bytes=30_000, clock=Clock())
    late = [s for s in page.states if s["first"] > 0 and s["state"] == "running"]
    assert late, "a film of ten seconds is more than 30 kB"
    sizes = []

    class Late(Page):
        def notify(self, state):
            self.states.append(state)
            files = [p.stat().st_size for p in self.folder.rglob("*.m4s")]
            sizes.append(sum(files))
            if state["first"] and state["state"] == "running" and not self.read:
                self.start = state["first"]
                got, self.next, self.read = self.run.read(0)
                assert got == state["first"]

    ctx = RunContext()
    page = Late(tmp_path / "temp", stream, ctx.report, max_bytes=30_000, clock=Clock())
    write_video(stream, tmp_path / "b.mp4", ctx, None, WriteOptions("libx264", "draft", tap=page.run))
    shown = numbers(page.run.init + page.read)
    assert shown == list(range(shown[0], shown[0] + len(shown)))
    assert shown[0] % 25 == 0, "a key frame"
    assert shown[0] > 0
    group = max(sizes) - 30_000
    assert group < 30_000, "one group of pictures above the limit at the most"


def test_a_reader_gets_whole_segments_within_its_limit(tmp_path):
    parts = []

    class Slow(Page):
        def notify(self, state):
            self.states.append(state)
            if state["next"] < 8 or parts:
                return
            number = 0
            while True:
                first, number, data = self.run.read(number, limit=6000)
                if not data:
                    break
                parts.append((first, number, data))
            assert self.run.read(state["next"] + 5) == (state["next"] + 5, state["next"] + 5, b"")

    ctx, stream = RunContext(), numbered(100)
    page = Slow(tmp_path, stream, ctx.report, clock=Clock())
    write_video(stream, tmp_path / "b.mp4", ctx, None, WriteOptions("libx264", "draft", tap=page.run))
    assert len(parts) > 1
    assert [p[0] for p in parts[1:]] == [p[1] for p in parts[:-1]]
    assert all(len(data) <= 6000 or last - first == 1 for first, last, data in parts)
    assert numbers(page.run.init + b"".join(p[2] for p in parts))[:40] == list(range(40))


def test_what_fragments_cannot_hold_leaves_the_figures_and_the_reason(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("mp4 format does not support this codec")

    monkeypatch.setattr(fragments.av, "open", refuse_write(fragments.av.open, refuse))
    page = watch(tmp_path, numbered(30), clock=Clock())
    assert page.states[-1]["state"] == "finished"
    assert page.states[0]["problem"] == "no picture: mp4 format does not support this codec"
    assert page.states[-1]["figures"]["frame"] == 30
    assert page.run.init == b""
    monkeypatch.undo()
    with av.open(str(tmp_path / "a.mp4")) as box:
        assert len(list(box.decode(video=0))) == 30


def refuse_write(real, refuse):
    """Open what is a path as ever, and refuse a muxer that writes to an object."""
    return lambda file, *args, **kwargs: (real if isinstance(file, str) else refuse)(file, *args, **kwargs)


def test_a_full_disk_costs_the_picture_not_the_render(tmp_path, monkeypatch):
    def full(path, mode):
        if mode == "ab" and path.name != "00000000.m4s":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open(path, mode)

    monkeypatch.setattr(preview, "open", full, raising=False)
    page = watch(tmp_path, numbered(100), clock=Clock())
    assert any(s["next"] and not s["problem"] for s in page.states), "until then it was shown"
    assert "No space left on device" in page.states[-1]["problem"]
    assert page.states[-1]["figures"]["frame"] == 100
    assert list((tmp_path / "temp").iterdir()) == []


def test_segments_that_someone_else_removed_are_not_there(tmp_path):
    run = PreviewRun(tmp_path, Report(), numbered(50).info, lambda state: None)
    (tmp_path / f"talkinghead-{run.token}").mkdir()
    run._keep(fragments.Segment(0, 0, 25, True, b"first"))
    run._keep(fragments.Segment(1, 25, 25, True, b"second"))
    assert run.read(0) == (0, 2, b"firstsecond")
    (tmp_path / f"talkinghead-{run.token}" / "00000001.m4s").unlink()
    assert run.read(0) == (0, 1, b"first")
    assert run.read(1) == (1, 1, b"")
    run.end(complete=False)


def test_a_page_that_cannot_be_told_costs_nothing(tmp_path):
    def broken(state):
        raise ConnectionError("gone")

    ctx, stream = RunContext(), numbered(60)
    run = PreviewRun(tmp_path / "temp", ctx.report, stream.info, broken)
    result = write_video(stream, tmp_path / "a.mp4", ctx, None, WriteOptions("libx264", "draft", tap=run))
    assert result.n_frames == 60
    assert not ctx.report.warnings
    assert list((tmp_path / "temp").iterdir()) == []


def test_an_error_removes_the_segments_and_says_stopped(tmp_path):
    def fail(start):
        if start >= 80:
            raise ValueError("told to fail")

    ctx, stream = RunContext(), numbered(100, hook=fail)
    (tmp_path / "temp").mkdir()
    page = Page(tmp_path / "temp", stream, ctx.report, clock=Clock())
    with pytest.raises(RuntimeError, match="told to fail"):
        write_video(stream, tmp_path / "a.mp4", ctx, None, WriteOptions("libx264", "draft", tap=page.run))
    assert page.states[-1]["state"] == "stopped"
    assert list((tmp_path / "temp").iterdir()) == []
    assert not any(t.name.startswith("talkinghead") for t in threading.enumerate())


def test_stops_at_random_moments_leave_nothing(tmp_path):
    """Ten by the user and ten by Ctrl-C, from the opening of the file to its last frame."""
    usual, rng = 0.0, random.Random(3)
    stopped = 0
    for k in range(21):
        stop, began, stream = threading.Event(), time.perf_counter(), numbered(60)
        ctx = RunContext(is_cancelled=stop.is_set)
        page = Page(tmp_path / "temp", stream, ctx.report)
        act = stop.set if k % 2 else lambda: signal.raise_signal(signal.SIGINT)
        timer = threading.Timer(rng.random() * usual, act if k else lambda: None)
        try:
            timer.start()  # may be ended by its own Ctrl-C
            options = WriteOptions("libx264", "draft", tap=page.run)
            write_video(stream, tmp_path / "a.mp4", ctx, None, options)
            timer.join()
            time.sleep(0.01)  # Python raises the Ctrl-C of another thread a moment later
        except (RunCancelled, KeyboardInterrupt):
            stopped += 1
        finally:
            page.run.end(False)  # as the node does
        timer.join()
        usual = usual or time.perf_counter() - began
        assert not page.run.running
        assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "a.mp4"] == []
        assert not (tmp_path / "temp").exists() or list((tmp_path / "temp").iterdir()) == []
        assert [t.name for t in threading.enumerate() if t.name.startswith("talkinghead")] == []
        (tmp_path / "a.mp4").unlink(missing_ok=True)
    assert stopped >= 8


def test_a_run_that_ends_while_its_disk_hangs_closes_no_muxer_that_is_at_work(tmp_path, monkeypatch):
    inside, gate, closed_in = threading.Event(), threading.Event(), []
    real = fragments.FragmentMuxer.abandon

    def hang(path, mode):
        if mode == "ab" and not inside.is_set():
            inside.set()
            assert gate.wait(20)
        return open(path, mode)

    def abandon(muxer):
        closed_in.append(threading.current_thread().name)
        if inside.is_set() and not gate.is_set():
            return  # it would crash
        real(muxer)

    monkeypatch.setattr(preview, "open", hang, raising=False)
    monkeypatch.setattr(fragments.FragmentMuxer, "abandon", abandon)
    ctx, stream = RunContext(), numbered(60)
    page = Page(tmp_path / "temp", stream, ctx.report)
    options = WriteOptions("libx264", "draft", tap=page.run)
    render = threading.Thread(target=lambda: write_video(stream, tmp_path / "a.mp4", ctx, None, options))
    render.start()
    assert inside.wait(20)
    page.run.end(complete=False)
    assert not page.run.running
    assert closed_in == []
    gate.set()
    render.join(20)
    assert closed_in == ["talkinghead-tap"]
    assert list((tmp_path / "temp").iterdir()) == []
    assert page.states[-1]["state"] == "stopped"
    assert numbers((tmp_path / "a.mp4").read_bytes()) == list(range(60))


def test_tokens_are_not_guessed_from_one_another(tmp_path):
    info = FrameInfo(64, 64, Fraction(25), 1)
    tokens = {PreviewRun(tmp_path, Report(), info, lambda s: None).token for _ in range(64)}
    assert len(tokens) == 64
    assert {len(t) for t in tokens} == {32}
    assert list(tmp_path.iterdir()) == [], "nothing is made before the run begins"
