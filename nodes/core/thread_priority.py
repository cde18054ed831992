"""Scheduling of threads that libraries start: nobody but the user decides that something is real-time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


@contextmanager
def callers_scheduling() -> Iterator[None]:
    """Leave the calling thread, and give the threads that start in the block, the scheduling it was entered with.

    SVT-AV1, run as root on Linux, turns its 40 threads and the thread that opens it to SCHED_FIFO at 99. Those keep all
    else from running, and what the thread starts later inherits it: on two cores a browser started so stalled the
    machine for ten minutes. Where the system has no such thing, and without threads of one's own to see, nothing is done.
    """
    if not hasattr(os, "sched_setscheduler") or not _TASKS.is_dir():
        yield
        return
    before, own = _threads(), threading.get_native_id()
    policy, parameter = os.sched_getscheduler(own), os.sched_getparam(own)
    try:
        yield
    finally:
        for thread in (_threads() - before) | {own}:
            with suppress(ProcessLookupError):  # it has ended
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameter)


def _threads() -> set[int]:
    return {int(entry.name) for entry in _TASKS.iterdir()}
