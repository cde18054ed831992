"""How a computed value is held against a golden one: distances, tolerances, and the line that reports them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

OK, FAILED, NOT_RUN = "ok", "FAIL", "not run"
_SHOWN = 3


@dataclass(frozen=True)
class Tolerance:
    """Limits of |actual - expected|: the largest, and where given the rms, the mean, the share of values that differ.

    `relative` limits the L2 norm of the difference, as a share of the expected values' norm.
    """

    worst: float
    rms: float = math.inf
    mean: float = math.inf
    share: float = math.inf
    relative: float = math.inf

    def __str__(self) -> str:
        parts = [f"{self.worst:g}"]
        for name in ("rms", "mean", "share", "relative"):
            limit = getattr(self, name)
            parts += [f"{name} {limit:g}"] if limit < math.inf else []
        return " ".join(parts)


@dataclass(frozen=True)
class Result:
    """Outcome of one golden, or of one part of it. `error` and `cosine` are None for exact comparisons."""

    name: str
    status: str
    error: float | None = None
    cosine: float | None = None
    tolerance: str = ""
    note: str = ""

    def __str__(self) -> str:
        if self.status == NOT_RUN:
            return f"{self.name:<38} {NOT_RUN}: {self.note}"
        error = "" if self.error is None else f"max {self.error:.2e}"
        cosine = "" if self.cosine is None else f"cosine {self.cosine:.9f}"
        line = f"{self.name:<38} {error:<13} {cosine:<19} tolerance {self.tolerance:<16} {self.status}"
        return f"{line}  {self.note}" if self.note else line


@dataclass(frozen=True)
class Distance:
    """Distances of two arrays of one shape; all infinite when shapes differ, are empty, or a value is not finite."""

    worst: float
    rms: float
    mean: float
    share: float
    cosine: float
    why: str = ""
    relative: float = math.inf

    def within(self, limit: Tolerance) -> bool:
        """Return whether every limit is kept."""
        names = ("worst", "rms", "mean", "share", "relative")
        return all(getattr(self, name) <= getattr(limit, name) for name in names) and not self.why


def distance(actual: Any, expected: Any) -> Distance:
    """Return the distances of two tensors, arrays or numbers, in double precision. Empty ones are never close."""
    a, e = _as_double(actual), _as_double(expected)
    if a.shape != e.shape:
        return Distance(*[math.inf] * 4, 0.0, f"shape {a.shape} instead of {e.shape}")
    if not (np.isfinite(a).all() and np.isfinite(e).all()):
        return Distance(*[math.inf] * 4, 0.0, "not finite")
    if not a.size:
        return Distance(*[math.inf] * 4, 0.0, "holds nothing to compare")
    gap = np.abs(a - e)
    squares, power = float((gap * gap).sum()), float((e * e).sum())
    norm = math.sqrt(float((a * a).sum()) * power)
    same = gap.max() == 0
    cosine = 1.0 if same else float((a * e).sum()) / norm if norm else 0.0
    relative = 0.0 if same else math.sqrt(squares / power) if power else math.inf
    rms = math.sqrt(squares / gap.size)
    return Distance(
        float(gap.max()), rms, float(gap.mean()), float((gap > 0).mean()), cosine, relative=relative
    )


def close(name: str, pairs: Mapping[str, tuple[Any, Any]], limit: Tolerance, note: str = "") -> Result:
    """Return one result for the (actual, expected) `pairs`: the worst of each distance; every pair must pass."""
    found = {label: distance(*pair) for label, pair in pairs.items()}
    bad = [f"{label} {_gap(d, limit)}" for label, d in found.items() if not d.within(limit)]
    error = max((d.worst for d in found.values()), default=0.0)
    cosine = min((d.cosine for d in found.values()), default=1.0)
    status, note = (FAILED, _listed(bad)) if bad or not found else (OK, note)
    return Result(name, status, error, cosine, str(limit), note or ("" if found else "nothing to compare"))


def exact(name: str, pairs: Mapping[str, tuple[Any, Any]], note: str = "") -> Result:
    """Return one result for the (actual, expected) `pairs`, which must be equal: numbers, texts, lists or arrays."""
    bad, error = [], None
    for label, (actual, expected) in pairs.items():
        if isinstance(expected, (np.ndarray, torch.Tensor)):
            gap = distance(actual, expected)
            if gap.worst:  # infinite where nothing can be compared
                error = max(error or 0.0, gap.worst)
                bad.append(f"{label} {gap.why or f'differs by {gap.worst:g}'}")
        elif actual != expected:
            bad.append(f"{label} {_short(actual)} instead of {_short(expected)}")
    status = FAILED if bad or not pairs else OK
    text = _listed(bad) or (note if pairs else "nothing to compare") or f"{len(pairs)} values"
    return Result(name, status, error if bad else None, None, "exact", text)


def some(items: Sequence[Any], what: str) -> Sequence[Any]:
    """Return `items`, which the golden calls `what`. ValueError if there are none: nothing compared is no success."""
    if not len(items):
        raise ValueError(f"{what} is empty: nothing to compare")
    return items


def not_run(name: str, why: str) -> Result:
    """Return a result that says why a golden was left out."""
    return Result(name, NOT_RUN, note=why)


def record(
    module: torch.nn.Module, names: Sequence[str], call: Callable[[], object]
) -> dict[str, torch.Tensor]:
    """Return the outputs of the named submodules during `call`: the hidden state where one returns more."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str):
        def hook(_module: torch.nn.Module, _inputs: tuple, output: object) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            seen[name] = hidden.clone()  # what follows may work in place

        return hook

    hooks = [module.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _gap(found: Distance, limit: Tolerance) -> str:
    if found.why or limit.relative == math.inf:
        return found.why or f"{found.worst:.2e}"
    return f"{found.worst:.2e} (relative {found.relative:.2e})"


def _as_double(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", torch.float64).numpy()
    return np.asarray(value, np.float64)


def _listed(parts: Iterable[str]) -> str:
    parts = list(parts)
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
