"""Names of the backends, best first. Imports nothing, for handles and command lines."""

from __future__ import annotations

BACKENDS = ("tensorrt", "inductor", "cuda graph", "eager")
AUTO = "auto"
BACKEND_CHOICES = (AUTO, *BACKENDS)


def check_backend(name: str) -> None:
    """Raise ValueError unless `name` is "auto" or a backend."""
    if name not in BACKEND_CHOICES:
        raise ValueError(f"backend {name!r} is unknown; use one of {', '.join(BACKEND_CHOICES)}")
