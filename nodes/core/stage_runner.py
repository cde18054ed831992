"""One network stage during one run: opened again when its memory was wanted, and in fp32 for what is not finite."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor

from .engine_reopen import ReopeningEngine
from .engine_spec import is_out_of_memory
from .frames import ModelHandle, RunContext
from .report import Report

if TYPE_CHECKING:
    from .engine_shelf import StageMaker


class PreciseHandle(ModelHandle, Protocol):
    """A frozen dataclass that names a model, its precision and its backend."""

    precision: str


Handle = TypeVar("Handle", bound=PreciseHandle)


class StageRunner:
    """Runs `stage` of `model` in passes of `batch` rows."""

    def __init__(self, ctx: RunContext, model: PreciseHandle, stage: StageMaker, batch: int) -> None:
        self._ctx, self.model, self._stage, self._batch = ctx, model, stage, batch
        self._engine = ReopeningEngine(partial(ctx.engine, model, stage, batch), ctx.check_cancelled)
        self._exact: PreciseHandle | None = exact_twin(model)

    @property
    def backend(self) -> str:
        return self._engine.engine.backend

    @property
    def device(self) -> torch.device:
        return self._engine.engine.device

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run rows of any dtype and place; the outputs lie on the engine's device, and may still be under way."""
        return self._engine(**inputs)

    def exactly(self, **inputs: Tensor) -> dict[str, Tensor] | None:
        """Run the same rows in fp32 with torch; None where that is what runs anyway, or does not fit beside it."""
        if self._exact is None or (self.backend == "eager" and self.model.precision == "fp32"):
            return None
        quiet = Report()  # its choice of backend is no news for the report of the run
        open_exact = partial(self._ctx.engine, self._exact, self._stage, self._batch, report=quiet)
        try:
            return ReopeningEngine(open_exact, self._ctx.check_cancelled)(**inputs)
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            self._exact = None
            self._ctx.warn(
                "no memory for fp32 beside the model: frames that are not finite cannot be computed again"
            )
            return None


def exact_twin(model: Handle) -> Handle:
    """The same weights in fp32, run by torch as it is."""
    return replace(model, precision="fp32", backend="eager")
