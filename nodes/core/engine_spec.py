"""What a stage looks like from outside, and what a backend gets and gives. No backend is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .report import Report

StageFunction = Callable[..., Mapping[str, Tensor]]
"""Called with the inputs by name, a whole batch; returns the outputs by name."""


class EngineSkipped(RuntimeError):
    """A backend cannot be used here; the message is the reason that the report shows."""


class EngineClosed(RuntimeError):
    """The engine gave its memory back, also while its caller was about to call it: open it again."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: name, shape without the batch, dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} ({', '.join(['n', *map(str, self.shape)])})"


@dataclass(frozen=True)
class StageSpec:
    """Name of a stage with its inputs and outputs, in any order: they are bound by name."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def check(self, inputs: Mapping[str, Tensor]) -> int:
        """Return the number of rows of `inputs`. ValueError names what is missing, unknown or misshapen."""
        names = [t.name for t in self.inputs]
        missing = [n for n in names if n not in inputs]
        unknown = [n for n in inputs if n not in names]
        if missing or unknown:
            parts = [
                f"{kind} {', '.join(which)}"
                for kind, which in (("missing", missing), ("unknown", unknown))
                if which
            ]
            raise ValueError(f"{self.name} takes the inputs {', '.join(names)}: {'; '.join(parts)}")
        rows = len(inputs[names[0]]) if inputs[names[0]].ndim else 0
        for t in self.inputs:
            value = inputs[t.name]
            if value.dtype != t.dtype:
                raise ValueError(f"{self.name} needs {t}, got {value.dtype}: convert it first")
            if tuple(value.shape[1:]) != t.shape or value.ndim != len(t.shape) + 1:
                raise ValueError(
                    f"{self.name} needs {t} with n from 1 up, got {tuple(value.shape)}: it was made for another model"
                )
            if len(value) != rows or rows < 1:
                raise ValueError(
                    f"{self.name} needs the same number of rows, 1 or more, in every input; {names[0]} has {rows}, "
                    f"{t.name} has {len(value)}"
                )
        return rows

    def sample(self, rows: int, device: torch.device | str, seed: int = 0) -> dict[str, Tensor]:
        """Return normal-distributed inputs, each row another; the same on every machine."""
        generator = torch.Generator().manual_seed(seed)
        return {
            t.name: torch.randn((rows, *t.shape), generator=generator).to(t.dtype).to(device)
            for t in self.inputs
        }


@dataclass(frozen=True)
class EngineIdentity:
    """What a cached engine depends on beside the machine.

    precision "fp32" or "fp16"; config: the network's numbers as plain data; weights: returns the SHA-256 of the
    weights, called only where it counts since hashing gigabytes takes seconds.
    """

    precision: str = "fp32"
    config: Mapping[str, Any] = field(default_factory=dict)
    weights: Callable[[], str] | None = None

    def weights_sha256(self) -> str | None:
        return self.weights() if self.weights else None


class Runner(Protocol):
    """A backend with its static batch: runs on the request's input buffers, returns the outputs by name.

    One that is kept on disk has `cached`, its name there, or several. The outputs may be the runner's own buffers: they are
    copied before it runs again. It is called inside inference mode, on the request's stream.
    """

    def __call__(self) -> Mapping[str, Tensor]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RunnerRequest:
    """What a backend is opened with. `inputs`: static buffers (batch, *shape) that keep their place; `may_build`:
    whether it may spend minutes on building what is not in the cache."""

    spec: StageSpec
    function: StageFunction
    inputs: Mapping[str, Tensor]
    batch: int
    device: torch.device
    stream: Any
    cache: Path | None
    identity: EngineIdentity
    may_build: bool
    report: Report


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that a device or the machine has no memory left."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    signs = ("out of memory", "can't allocate memory", "status_alloc_failed")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__


@dataclass(frozen=True)
class Likeness:
    """cosine of all values as one vector; psnr_db against 255 for uint8, else against the reference's peak."""

    cosine: float
    psnr_db: float


def compare(got: Tensor, wanted: Tensor) -> Likeness:
    """Compare two tensors of one shape in float64 on the CPU. Non-finite values in other places count as unlike (0, 0)."""
    if got.shape != wanted.shape:
        return Likeness(0.0, 0.0)
    peak = 255.0 if wanted.dtype == torch.uint8 else 1.0
    a, b = got.cpu().double(), wanted.cpu().double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return Likeness(0.0, 0.0)
    a, b = a[a.isfinite()], b[b.isfinite()]
    if wanted.is_floating_point() and b.numel():
        peak = max(float(b.abs().max()), 1e-12)
    error = float((a - b).square().mean()) if b.numel() else 0.0
    norms = float(a.norm() * b.norm())
    cosine = float(a @ b) / norms if norms else float(torch.equal(a, b))
    decibel = float("inf") if error == 0 else float(10 * torch.log10(torch.tensor(peak**2 / error)))
    return Likeness(cosine, decibel)
