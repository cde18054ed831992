"""Checks of network sizes that come from files: each error says the field, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

MAX_COUNT = 65536  # channels and the like; beyond these limits a damaged file would build networks for hours
MAX_LAYERS = 64
MAX_LEVELS = 16


def check_counts(owner: Any, *names: str, least: int = 1, most: int = MAX_COUNT) -> None:
    """Every field of `names` must be a whole number from `least` to `most`."""
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(
                f"{type(owner).__name__}.{name} is {value!r:.40}: give a whole number, {least} or more and at most {most}"
            )


def check_sizes(owner: Any, *names: str, most_entries: int = MAX_LEVELS) -> None:
    """Every field of `names` must be a tuple of 1 to `most_entries` positive whole numbers."""
    for name in names:
        sizes = getattr(owner, name)
        is_list = isinstance(sizes, tuple) and 1 <= len(sizes) <= most_entries
        if not is_list or any(type(size) is not int or not 1 <= size <= MAX_COUNT for size in sizes):
            raise ValueError(
                f"{type(owner).__name__}.{name} is {sizes!r:.200}: give 1 to {most_entries} whole numbers, each positive "
                f"and at most {MAX_COUNT}"
            )


def check_positive(owner: Any, *names: str) -> None:
    """Every field of `names` must be a finite number above 0."""
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{type(owner).__name__}.{name} is {value!r}: give a number above 0")


def check_divides(owner: Any, name: str, divisor_name: str) -> None:
    """Every entry of field `name` must be a multiple of field `divisor_name`."""
    divisor = getattr(owner, divisor_name)
    values = getattr(owner, name)
    for value in values if isinstance(values, tuple) else (values,):
        if value % divisor:
            raise ValueError(
                f"{type(owner).__name__}.{name} has {value}, not a multiple of {divisor_name} {divisor}: "
                f"change one of the two"
            )


def check_fixed(owner: Any, **expected: Any) -> None:
    """Fields of which one value alone is implemented."""
    for name, value in expected.items():
        if getattr(owner, name) != value:
            raise ValueError(
                f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}, only {value!r} is implemented: "
                f"this checkpoint is of another model family"
            )


def from_mapping(cls: type, values: Mapping[str, Any], ignored: tuple[str, ...] = ()) -> Any:
    """Build the dataclass `cls` from a JSON object: lists become tuples, `_` names are skipped, unknown ones raise."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{cls.__name__} needs a JSON object, got {type(values).__name__}")
    known = {f.name for f in fields(cls)}
    unknown = sorted(k for k in values if k not in known and k not in ignored and not k.startswith("_"))
    if unknown:
        raise ValueError(
            f"{cls.__name__} does not know {', '.join(unknown)}: known are {', '.join(sorted(known))}"
        )
    kept = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
    return cls(**kept)
