"""Networks and their weights: built without memory, filled by a state dict that must fit key by key."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_NAMES_SHOWN = 6
_INITIALISERS = frozenset({"uniform_", "normal_", "fill_", "zero_", "constant_", "kaiming_uniform_"})


def load_strict(
    module: nn.Module, state: Mapping[str, Tensor], source: str, dtype: torch.dtype | None = None
) -> None:
    """Load a state dict that must match key by key.

    Args:
        module: the network; on the meta device it takes over the tensors of `state` without a copy.
        state: name -> tensor. Floating tensors are cast to `dtype` when given.
        source: file name, for the message.

    Raises:
        ValueError: names the missing, unexpected and misshapen tensors, those of integers or complex numbers, and those
            with values that are not finite (the first few of each, with the counts).
    """
    own = module.state_dict()
    check_fit(own, state, f"{source} does not fit {type(module).__name__}")
    if dtype is not None:
        state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}
    broken = [f"{k} {str(v.dtype).removeprefix('torch.')}" for k, v in state.items() if not _is_finite(v)]
    if broken:
        raise ValueError(
            f"{source} has values that are not finite in {len(broken)} tensors ({_shown(broken)}): it is damaged, or "
            "its numbers are too large for fp16 and need fp32"
        )
    on_meta = any(v.is_meta for v in own.values())
    module.load_state_dict(state, strict=True, assign=on_meta)


def check_fit(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor], what: str) -> None:
    """Raise ValueError, beginning with `what`, where names, shapes or kinds of number of two state dicts differ."""
    problems = {
        "missing": [k for k in wanted if k not in state],
        "unexpected": [k for k in state if k not in wanted],
        "misshapen": [
            f"{k} {tuple(state[k].shape)} instead of {tuple(v.shape)}"
            for k, v in wanted.items()
            if k in state and state[k].shape != v.shape
        ],
        "of another type": [
            f"{k} {str(state[k].dtype).removeprefix('torch.')}"
            for k, v in wanted.items()
            if k in state and state[k].is_floating_point() != v.is_floating_point()
        ],
    }
    parts = [f"{len(names)} {kind} ({_shown(names)})" for kind, names in problems.items() if names]
    if parts:
        raise ValueError(f"{what}: {'; '.join(parts)}. Check that file and config belong to the same model.")


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _is_finite(value: Tensor) -> bool:
    """Whether no number is NaN or infinite; without memory for a mask where that can be told from the sum."""
    if value.is_meta or not value.is_floating_point():
        return True
    if (
        value.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and value.sum(dtype=torch.float32).isfinite()
    ):
        return True
    return bool(value.to(torch.float64).isfinite().all())


class _BareParameters(TorchFunctionMode):
    """Parameters without memory or initial values. `torch.device("meta")` alone runs every initialiser: 0.5 to 3 s."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.empty:
            kwargs = {**kwargs, "device": "meta"}
        elif getattr(func, "__name__", "") in _INITIALISERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def on_meta(cls: type[nn.Module], config: object) -> nn.Module:
    """Build `cls(config)` on the meta device; `load_strict` then gives it its tensors."""
    with _BareParameters():
        return cls(config)
