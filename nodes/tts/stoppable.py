"""Onnxruntime sessions that end when nobody wants their result any more: a long sentence takes many seconds."""

from __future__ import annotations

import threading
from typing import Any

from ..core.interrupt import RunCancelled
from ..core.stage_thread import StageThread, current_stage

_LOOK_S = 0.02


class StoppableSession:
    """Answers like `session`, but a run in a stage's thread is broken off, between two nodes, when the stage is stopped."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, outputs: Any, given: dict[str, Any], options: Any = None) -> list[Any]:
        """Run the session; RunCancelled if it was broken off."""
        stage = current_stage()
        if stage is None or options is not None:
            return self._session.run(outputs, given, options)
        import onnxruntime

        options, done = onnxruntime.RunOptions(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(stage, options, done), daemon=True)
        watcher.start()
        try:
            return self._session.run(outputs, given, options)
        except Exception as e:  # onnxruntime's errors have no common base
            if stage.stopped.is_set():
                raise RunCancelled(f"{stage.name}: nobody takes its results any more") from e
            raise
        finally:
            done.set()
            watcher.join()


def _watch(stage: StageThread, options: Any, done: threading.Event) -> None:
    while not done.wait(_LOOK_S):
        if stage.stopped.is_set():
            options.terminate = True
            return
