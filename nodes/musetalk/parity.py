"""MuseTalk's goldens: what `talkinghead parity DIR` runs for each file of a directory like tests/golden/musetalk.

It may be a part of that, or other inputs in the same form. Weights follow from their names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..core.parity_run import GoldenKind, ParitySummary, Run, run_goldens
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

_MAPS = "face_parsing.npz"
_CASES = "blend_cases.json"

# In the order they run: file of the golden, what runs it, the other files it needs.
_GOLDENS: tuple[tuple[str, Run, tuple[str, ...]], ...] = (
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

KIND = GoldenKind("MuseTalk", _GOLDENS, _NOT_RUN, "tests/golden/musetalk", Goldens)


def run_parity(
    directory: Path, device: str = "cpu", dtype: str = "fp32", out: Callable[[str], object] = print
) -> ParitySummary:
    """Run every golden file of MuseTalk in `directory`; see core.parity_run.run_goldens."""
    return run_goldens(KIND, directory, device, dtype, out)
