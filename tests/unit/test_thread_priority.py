"""Libraries that make themselves real-time: the process stays as the user has it."""

from __future__ import annotations

import os
import threading

import pytest
from streams import numbered

from talkinghead.nodes.core import encoders, video_encode
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.thread_priority import callers_scheduling
from talkinghead.nodes.core.video_write import WriteOptions, write_video

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or not os.path.isdir("/proc/self/task"),
    reason="real-time scheduling is for root on Linux",
)


def scheduling() -> dict[int, int]:
    return {int(t): os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}


def in_a_thread(work):
    """Run `work` in a thread of its own, so that a failing test does not leave this one real-time."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(work()))
    thread.start()
    thread.join()
    return seen[0]


def may_be_real_time() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


@pytest.fixture(autouse=True)
def _allowed():
    if not in_a_thread(may_be_real_time):
        pytest.skip("this system gives nobody real-time scheduling")


@pytest.mark.parametrize("fails", [False, True])
def test_the_caller_and_threads_that_start_are_as_the_caller_was(fails):
    done = threading.Event()

    def work():
        try:
            with callers_scheduling():
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
                threading.Thread(target=done.wait).start()  # inherits it
                assert len([p for p in scheduling().values() if p == os.SCHED_FIFO]) == 2
                if fails:
                    raise OSError("no encoder")
        except OSError:
            assert fails
        return set(scheduling().values())

    try:
        assert in_a_thread(work) == {os.SCHED_OTHER}
    finally:
        done.set()


def test_av1_makes_nothing_real_time(tmp_path, monkeypatch):
    """SVT-AV1 as root: 42 threads and the caller at SCHED_FIFO 99, before, while and after it encodes."""
    if problem := encoders.encoder_problem("libsvtav1", 128, 96):
        pytest.skip(f"this FFmpeg has no libsvtav1: {problem}")
    encoders.encoder_problem.cache_clear()
    while_encoding = []
    write = video_encode.VideoFile.write

    def watched(self, pixels):
        write(self, pixels)
        while_encoding.append(scheduling())

    monkeypatch.setattr(video_encode.VideoFile, "write", watched)

    def work():
        write_video(numbered(4), tmp_path / "a.mp4", RunContext(), None, WriteOptions("libsvtav1", "draft"))
        return scheduling()

    assert set(in_a_thread(work).values()) == {os.SCHED_OTHER}
    assert len(while_encoding[-1]) > 10, "its threads were there to be seen"
    assert {p for seen in while_encoding for p in seen.values()} == {os.SCHED_OTHER}
