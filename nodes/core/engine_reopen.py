"""An engine for whoever calls it again and again: opened anew when its memory was wanted for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from .engine_spec import EngineClosed

if TYPE_CHECKING:
    from .engine import StageEngine


class ReopeningEngine:
    """Calls the engine that `open_engine` gives, and asks for another one whenever it finds it closed.

    Another thread may close an engine at any time, also between a look and a call. `check` is called before it is opened
    again and may raise.
    """

    def __init__(
        self, open_engine: Callable[[], StageEngine], check: Callable[[], None] = lambda: None
    ) -> None:
        self._open, self._check = open_engine, check
        self.engine = open_engine()
        """The one that ran last."""

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run rows of any dtype and place; the outputs lie on the engine's device, and may still be under way."""
        while True:
            engine = self.engine
            dtypes = {t.name: t.dtype for t in engine.spec.inputs}
            try:
                return engine(
                    **{name: value.to(engine.device, dtypes[name]) for name, value in inputs.items()}
                )
            except EngineClosed:
                self._check()
                self.engine = self._open()
