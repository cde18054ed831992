"""The thread a stage runs in, and how code finds out that it runs in one.

Kept apart from `overlap`: the report and the run context ask for it, and `overlap` needs both.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

_START_LOOKS = 50


class StageThread(threading.Thread):
    """A daemon thread for one stage. `stopped` is set by whoever consumes the stage, when it wants no more of it.

    rank: how many stage threads lie between this one and the consumer of the run, 1 for the nearest. The thread works
    in a copy of the context variables of the thread that makes it.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(
            target=contextvars.copy_context().run, args=(work,), name=f"talkinghead {name}", daemon=True
        )
        self.stopped = threading.Event()
        self.rank = rank() + 1


def current_stage() -> StageThread | None:
    """Return the stage thread that runs this code, None outside of one."""
    thread = threading.current_thread()
    return thread if isinstance(thread, StageThread) else None


def rank() -> int:
    """Return the rank of the running thread; 0 is the consumer of the run."""
    stage = current_stage()
    return 0 if stage is None else stage.rank


def wait_for_end(thread: threading.Thread, seconds: float | None = None) -> None:
    """Return when a thread has ended that was told to stop, also if Ctrl-C broke off its start; after `seconds` anyway.

    Ctrl-C while it waits is raised when the thread has ended; a second one gives up waiting.
    """
    try:
        _join(thread, seconds)
    except BaseException:
        _join(thread, seconds)
        raise


def _join(thread: threading.Thread, seconds: float | None) -> None:
    # `start` waits for the thread's first step, and is broken off there; `join` refuses until that step is done.
    for _ in range(_START_LOOKS):
        if thread.ident is not None:
            break
        time.sleep(0.002)
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(seconds)
