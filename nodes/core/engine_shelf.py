"""The open engines of one loaded model: reused from run to run, closed when their memory or their weights go."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import nn

from .engine import EngineOptions, StageEngine, open_engine
from .engine_spec import StageFunction, StageSpec
from .report import Report

StageMaker = Callable[[nn.Module, torch.device], tuple[StageSpec, StageFunction]]
"""Makes the stage of a loaded module; the function object itself tells stages apart."""


class EngineShelf:
    """Keeps the last `kept` engines of a model: each holds a batch's activations on the card.

    Four: two batches of the networks and two small ones (MuseTalk's listens to live sound, Ditto's motion has two stages).
    """

    def __init__(self, kept: int = 4) -> None:
        self._kept = kept
        self._engines: OrderedDict[Hashable, StageEngine] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def memory_bytes(self) -> int:
        """What the engines hold of the card beside the weights."""
        return sum(engine.memory_bytes for engine in self._engines.values())

    def get(
        self,
        module: nn.Module,
        stage: StageMaker,
        options: EngineOptions,
        device: torch.device,
        report: Report,
    ) -> StageEngine:
        """Return the engine for these options, opened if there is none or its weights have moved."""
        key = (stage, options.backend, options.batch, options.cache)
        with self._lock:
            engine = self._engines.pop(key, None)
            if engine is not None and (engine.stale or (options.build and not engine.options.build)):
                engine.close()
                engine = None
            if engine is None:
                while len(self._engines) >= self._kept:
                    self._engines.popitem(last=False)[1].close()
                engine = open_engine(*stage(module, device), options, device, report)
            else:
                engine.tell(report)
            self._engines[key] = engine
            return engine

    def close(self) -> None:
        """Close every engine. Those in use are closed too: what uses them opens them again."""
        with self._lock:
            while self._engines:
                self._engines.popitem()[1].close()
