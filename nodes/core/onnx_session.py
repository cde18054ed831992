"""A network file opened in onnxruntime: what a missing package, another provider or a damaged file says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .audio import need

INSTALL = "onnxruntime (or onnxruntime-gpu)"
CPU = ("CPUExecutionProvider",)
_CUDA = "CUDAExecutionProvider"


def open_session(path: Path, purpose: str, fetch: str, providers: Sequence[str] | None = None) -> Any:
    """Return the InferenceSession of a file.

    Args:
        path: the file. purpose: what needs it, begins the message of a missing package. fetch: how to get the file.
        providers: of onnxruntime, in order; CUDA where it is there, then the CPU, if not given.

    Raises:
        MissingPackage: onnxruntime is not installed; the message says how to install it.
        ValueError: no such file, not ONNX, or an unknown provider.
    """
    onnxruntime = need("onnxruntime", INSTALL, purpose)
    there = onnxruntime.get_available_providers()
    wanted = [p for p in (_CUDA, *CPU) if p in there] if providers is None else list(providers)
    unknown = [p for p in wanted if p not in there]
    if unknown or not wanted:
        raise ValueError(
            f"onnxruntime has no provider {', '.join(unknown) or '(none given)'}; here: {', '.join(there)}"
        )
    if not path.is_file():
        raise ValueError(f"no file {path}: {fetch}")
    # TF32 keeps ten bits of the mantissa, and CUDA's provider has it on.
    options = [{"use_tf32": "0"} if p == _CUDA else {} for p in wanted]
    try:
        return onnxruntime.InferenceSession(str(path), providers=wanted, provider_options=options)
    except Exception as error:  # onnxruntime's own classes have no common base
        reason = str(error).strip().splitlines()[-1][:200]
        raise ValueError(f"{path.name} cannot be opened as ONNX ({reason}); fetch it again") from error


def agrees(shape: Sequence | None, wanted: Sequence[int | None]) -> bool:
    """Return whether a declared shape, with names or None for free sizes, allows `wanted`, None in it for any size."""
    if shape is None or len(shape) != len(wanted):
        return False
    return all(
        n is None or not isinstance(size, int) or size == n for size, n in zip(shape, wanted, strict=True)
    )
