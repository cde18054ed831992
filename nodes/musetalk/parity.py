"""Every golden of a directory against the pack: what `talkinghead parity DIR` runs.

A directory has the form of tests/golden/musetalk, or a part of it, or other inputs in the same form: inputs are read from
the files that hold the outputs. Nothing is downloaded; weights follow from their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ..core.parity_measure import FAILED, NOT_RUN, OK, Result, not_run
from .parity_audio import audio_whisper, audio_windows, audio_windows_original
from .parity_avatar import avatar_latents, avatar_material, end_to_end, latents
from .parity_images import (
    bbox_cases,
    blend_arrays,
    blend_cases,
    crop_lanczos4,
    dwpose_processing,
    face_parsing,
)
from .parity_networks import (
    MANIFESTS,
    bisenet,
    manifest,
    unet_full,
    unet_reduced,
    unet_trace,
    vae_full,
    vae_reduced,
    vae_trace,
)
from .parity_recipe import Goldens

_Run = Callable[[Goldens], Iterator[Result]]
_MAPS = "face_parsing.npz"
_CASES = "blend_cases.json"

# In the order they run: file of the golden, what runs it, the other files it needs.
_GOLDENS: tuple[tuple[str, _Run, tuple[str, ...]], ...] = (
    *((f"manifest_{name}.json", partial(manifest, name=name), ()) for name in MANIFESTS),
    ("unet_reduced.safetensors", unet_reduced, ()),
    ("unet_reduced_trace.safetensors", unet_trace, ()),
    ("vae_reduced.safetensors", vae_reduced, ()),
    ("vae_reduced_trace.safetensors", vae_trace, ()),
    ("audio_whisper.safetensors", audio_whisper, ()),
    ("audio_windows.json", audio_windows, ()),
    ("audio_windows_v1_original.json", audio_windows_original, ()),
    ("bbox_cases.json", bbox_cases, ()),
    (_MAPS, face_parsing, ()),
    (_CASES, blend_cases, (_MAPS,)),
    ("blend_arrays.npz", blend_arrays, (_CASES, _MAPS)),
    ("crop_lanczos4.npz", crop_lanczos4, (_CASES,)),
    ("latents_for_unet_reduced.safetensors", latents, ()),
    ("avatar_material.json", avatar_material, (_MAPS,)),
    ("avatar_latents_reduced.safetensors", avatar_latents, ("avatar_material.json",)),
    ("e2e_reduced.safetensors", end_to_end, ("audio_whisper.safetensors", _MAPS)),
    ("bisenet.safetensors", bisenet, ()),
    ("dwpose_cases.json", dwpose_processing, ("dwpose.safetensors",)),
    ("dwpose.safetensors", dwpose_processing, ("dwpose_cases.json",)),
    ("unet_full.safetensors", unet_full, ()),
    ("vae_full.safetensors", vae_full, ()),
)

_NO_S3FD = "S3FD is not used: faces are found by other detectors"
_NOT_RUN = {
    "s3fd_forward.safetensors": _NO_S3FD,
    "s3fd_post.json": _NO_S3FD,
    "s3fd_post_in.safetensors": _NO_S3FD,
    "manifest_s3fd.json": _NO_S3FD,
    "manifest_dwpose.json": "the landmark network runs from the official ONNX file",
}
_SUFFIXES = (".safetensors", ".json", ".npz")


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


def run_parity(
    directory: Path, device: str = "cpu", dtype: str = "fp32", out: Callable[[str], object] = print
) -> ParitySummary:
    """Run every golden file in `directory`.

    Args:
        directory: golden files; a subset is fine, a file that is not there is passed over in silence.
        device: where the networks run, "cpu" or "cuda".
        dtype: precision of UNet, VAE and audio encoder: fp32, fp16 or bf16, each with the goldens' own bounds.
        out: takes one line a result, then the summary's line.

    Returns:
        The results. A golden that cannot be read, or whose run raises, is a failure that says why.

    Raises:
        ValueError: no such directory, nothing in it to run, or an unknown precision.
    """
    goldens = Goldens(directory, device, dtype)
    names = {path.name for path in goldens.directory.iterdir() if path.suffix in _SUFFIXES}
    if not names & {*(file for file, _, _ in _GOLDENS), *_NOT_RUN}:
        known = ", ".join(file for file, _, _ in _GOLDENS[:4])
        raise ValueError(f"{directory} holds no golden file; there should be some of {known} and so on")
    results = []
    with torch.no_grad(), _plain_float32():
        for result in _run_all(goldens, names):
            results.append(result)
            out(str(result))
    summary = ParitySummary(tuple(results))
    out(str(summary))
    return summary


def _run_all(goldens: Goldens, names: set[str]) -> Iterator[Result]:
    done = set()
    for file, run, needs in _GOLDENS:
        name = file.rpartition(".")[0]
        if file not in names:
            continue
        missing = [other for other in needs if other not in names]
        if missing:
            yield not_run(name, f"it needs {' and '.join(missing)} beside it")
        elif run not in done:
            yield from _guarded(name, run, goldens)
            done.add(run)
    for file in sorted(names - {file for file, _, _ in _GOLDENS}):
        yield not_run(file.rpartition(".")[0], _NOT_RUN.get(file, "no golden of this name is known"))


def _guarded(name: str, run: _Run, goldens: Goldens) -> Iterator[Result]:
    """The results of one golden; what it raises becomes a failure, so that the others still run."""
    try:
        yield from run(goldens)
    except Exception as error:
        yield Result(name, FAILED, note=f"{type(error).__name__}: {error}")


@contextmanager
def _plain_float32() -> Iterator[None]:
    """No TF32 inside: the tolerances are for full float32. The settings are put back."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value
