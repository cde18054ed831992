"""A directory of golden files against an engine: what runs for each file, in which order, and what is said of the rest.

Inputs are read from the files that hold the outputs, or follow from names; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .interrupt import is_interrupt
from .parity_measure import FAILED, NOT_RUN, OK, Result, not_run

Run = Callable[[Any], Iterator[Result]]
"""The goldens of a directory, as `GoldenKind.open` gives them -> results."""
_SUFFIXES = (".safetensors", ".json", ".npz")


@dataclass(frozen=True)
class GoldenKind:
    """The golden files of one engine.

    name: the engine. goldens: in the order they run: file, what runs it, the other files it needs; the same function for
    two files runs once. unused: file -> why it is never run. form: a directory of this kind, for messages. open: makes
    what the functions take of a directory, a device and a precision; ValueError for one that it does not know.
    """

    name: str
    goldens: tuple[tuple[str, Run, tuple[str, ...]], ...]
    unused: Mapping[str, str]
    form: str
    open: Callable[[Path, str, str], Any]

    @property
    def files(self) -> set[str]:
        """Names of all files that are known, run or not."""
        return {*(file for file, _, _ in self.goldens), *self.unused}


@dataclass(frozen=True)
class ParitySummary:
    """All results, in the order they were printed. A run is good when `failed` is 0."""

    results: tuple[Result, ...]

    @property
    def passed(self) -> int:
        return self._count(OK)

    @property
    def failed(self) -> int:
        return self._count(FAILED)

    @property
    def not_run(self) -> int:
        return self._count(NOT_RUN)

    def _count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.not_run} not run"


def kind_of(directory: Path, kinds: Sequence[GoldenKind]) -> GoldenKind:
    """Return the kind that most of the directory's files are of. ValueError: no directory, or not one known file."""
    if not Path(directory).is_dir():
        forms = " or ".join(kind.form for kind in kinds)
        raise ValueError(f"{directory} is not a directory; give one of the form of {forms}")
    names = _names(directory)
    best = max(kinds, key=lambda kind: len(names & kind.files))
    if not names & best.files:
        known = "; ".join(
            f"{kind.name}: {', '.join(file for file, _, _ in kind.goldens[:4])} and so on" for kind in kinds
        )
        raise ValueError(f"{directory} holds no golden file; there should be some of {known}")
    return best


def run_goldens(
    kind: GoldenKind,
    directory: Path,
    device: str = "cpu",
    dtype: str = "fp32",
    out: Callable[[str], object] = print,
) -> ParitySummary:
    """Run every golden file in `directory`.

    Args:
        kind: whose goldens they are.
        directory: golden files; a subset is fine, a file that is not there is passed over in silence.
        device: where the networks run, "cpu" or "cuda".
        dtype: precision of the networks that have several: fp32, fp16 or bf16, each with the goldens' own bounds.
        out: takes one line a result, then the summary's line.

    Returns:
        The results. A golden that cannot be read, or whose run raises, is a failure that says why.

    Raises:
        ValueError: no such directory, nothing in it to run, or an unknown precision.
    """
    import torch

    goldens = kind.open(Path(directory), device, dtype)
    kind_of(directory, [kind])
    results = []
    with torch.no_grad(), _plain_float32():
        for result in _run_all(kind, goldens, _names(directory)):
            results.append(result)
            out(str(result))
    summary = ParitySummary(tuple(results))
    out(str(summary))
    return summary


def _names(directory: Path) -> set[str]:
    return {path.name for path in Path(directory).iterdir() if path.suffix in _SUFFIXES}


def _run_all(kind: GoldenKind, goldens: Any, names: set[str]) -> Iterator[Result]:
    done = set()
    for file, run, needs in kind.goldens:
        name = file.rpartition(".")[0]
        if file not in names:
            continue
        missing = [other for other in needs if other not in names]
        if missing:
            yield not_run(name, f"it needs {' and '.join(missing)} beside it")
        elif run not in done:
            yield from _guarded(name, run, goldens)
            done.add(run)
    for file in sorted(names - {file for file, _, _ in kind.goldens}):
        yield not_run(file.rpartition(".")[0], kind.unused.get(file, "no golden of this name is known"))


def _guarded(name: str, run: Run, goldens: Any) -> Iterator[Result]:
    """The results of one golden; what it raises becomes a failure, so that the others still run."""
    try:
        yield from run(goldens)
    except Exception as error:
        if is_interrupt(error):
            raise
        yield Result(name, FAILED, note=f"{type(error).__name__}: {error}")


@contextmanager
def _plain_float32() -> Iterator[None]:
    """No TF32 inside: the tolerances are for full float32. The settings are put back."""
    import torch

    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value
