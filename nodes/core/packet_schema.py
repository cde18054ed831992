"""Schemas of avatar packets, version 1: which tensors lie in which file, and headers checked against them.

Core knows the files of every engine, not what the engines do with them. No data is read here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

MANIFEST = "packet.json"
CROP_SIDE = 512
"""Side in pixels of the square that `c2o` of a Ditto packet maps into the frame, whatever its networks take or draw."""

Schema = Mapping[str, tuple[str, tuple]]
"""Tensor name -> dtype and axes."""

# Axes: N frames, H x W picture; MuseTalk: C2 = two latents stacked, h x w latent, M masks' bytes; Ditto: C channels, D
# depth and h x w of a feature volume, K3 = flat key points, B bins of an angle. A number is fixed.
_FRAMES = {"frames.safetensors": {"frames": ("U8", ("N", "H", "W", 3))}}
SCHEMAS: Mapping[str, Mapping[str, Schema]] = {
    "musetalk": {
        **_FRAMES,
        "latents.safetensors": {"latents": ("F16", ("N", "C2", "h", "w"))},
        "geometry.safetensors": {
            "boxes": ("I32", ("N", 4)),
            "crops": ("I32", ("N", 8)),
            "found": ("BOOL", ("N",)),
            "mask": ("U8", ("M",)),
            "mask_offsets": ("I64", ("N+1",)),
            "mask_shapes": ("I32", ("N", 2)),
        },
    },
    "ditto": {
        **_FRAMES,
        "features.safetensors": {
            "f_s": ("F16", ("N", "C", "D", "h", "w")),
            "pitch": ("F32", ("N", "B")),
            "yaw": ("F32", ("N", "B")),
            "roll": ("F32", ("N", "B")),
            "t": ("F32", ("N", 3)),
            "exp": ("F32", ("N", "K3")),
            "scale": ("F32", ("N", 1)),
            "kp": ("F32", ("N", "K3")),
            "c2o": ("F32", ("N", 3, 3)),
            "eye_open": ("F32", ("N", 2)),
            "eye_ball": ("F32", ("N", 6)),
            "found": ("BOOL", ("N",)),
        },
    },
}
OPTIONAL: Mapping[str, Schema] = {"geometry.safetensors": {"points": ("F32", ("N", 68, 2))}}
"""Tensors that a file may have: landmarks in pixels, iBUG order."""
_FEATURE_AXES = {"musetalk": ("C2", "h", "w"), "ditto": ("C", "D", "h", "w")}
_EVEN = {"C2": "latents has {} channels, not masked + reference"}
_TRIPLES = {"K3": "kp has {} numbers, not three for each key point"}


class PacketError(ValueError):
    """A packet is missing, damaged or of another kind; the message names file and field."""


def feature_shape(engine: str, axes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of what the networks take of one frame: latents (C2, h, w), or a volume (C, D, h, w)."""
    return tuple(axes[name] for name in _FEATURE_AXES[engine])


def check_files(
    path: Path, engine: str, sizes: Mapping[str, int], known: Mapping[str, int]
) -> dict[str, int]:
    """Check every file of the packet folder `path` against the schema of `engine`; return the axes found.

    Args:
        sizes: bytes of each file by packet.json.
        known: axes that are known already: N, H, W.

    Raises:
        PacketError: a file that is missing, has another size, or tensors that do not fit.
    """
    axes = {**known, "N+1": known["N"] + 1}
    for name, schema in SCHEMAS[engine].items():
        file = path / name
        if name not in sizes or not file.is_file():
            raise PacketError(f"{file}: missing; rebuild the avatar")
        if file.stat().st_size != sizes[name]:
            raise PacketError(f"{file}: {file.stat().st_size} bytes, packet.json says {sizes[name]}; rebuild")
        _check_header(file, schema, axes)
        for part, rule in ((2, _EVEN), (3, _TRIPLES)):
            for axis, problem in rule.items():
                if axes.get(axis, 0) % part:
                    raise PacketError(f"{file}: {problem.format(axes[axis])}")
    return axes


def _check_header(file: Path, schema: Schema, axes: dict[str, int]) -> None:
    with file.open("rb") as f:
        head = f.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        # The format caps headers at 100 MB; a damaged length must not become an allocation.
        if not 2 <= length <= min(100_000_000, file.stat().st_size - 8):
            raise PacketError(f"{file}: no safetensors header; rebuild the avatar")
        try:
            header = json.loads(f.read(length))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise PacketError(f"{file}: damaged safetensors header; rebuild the avatar")
    optional = {k: v for k, v in OPTIONAL.get(file.name, {}).items() if k in header}
    for name, (dtype, shape) in {**schema, **optional}.items():
        entry = header.get(name)
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise PacketError(f"{file}: tensor {name!r} is missing; rebuild the avatar")
        found = entry["shape"]
        if not isinstance(found, list) or len(found) != len(shape) or any(type(n) is not int for n in found):
            raise PacketError(
                f"{file}: tensor {name!r} has shape {found!r:.80}, must have {len(shape)} axes; rebuild"
            )
        wanted = [
            axes.setdefault(a, n) if isinstance(a, str) else a for a, n in zip(shape, found, strict=True)
        ]
        if entry["dtype"] != dtype or found != wanted:
            raise PacketError(
                f"{file}: tensor {name!r} is {entry['dtype']} {found}, must be {dtype} {wanted}; rebuild"
            )
