"""Avatar packet, version 1, read: the schema of its files, headers checked, tensors mapped.

Opening reads headers only; `verify_packet` hashes. Import from packet.py, which also writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .timeline import CYCLES, cycle_indices, parse_fps

FORMAT = "talkinghead-avatar"
VERSION = 1
MANIFEST = "packet.json"
PREVIEW = "preview.jpg"
MAX_ID_BYTES = 120

# Axes: N frames, H x W picture, C2 = two latents stacked, h x w latent, M masks' bytes; a number is fixed.
_MUSETALK_SCHEMA: dict[str, dict[str, tuple[str, tuple]]] = {
    "frames.safetensors": {"frames": ("U8", ("N", "H", "W", 3))},
    "latents.safetensors": {"latents": ("F16", ("N", "C2", "h", "w"))},
    "geometry.safetensors": {
        "boxes": ("I32", ("N", 4)),
        "crops": ("I32", ("N", 8)),
        "found": ("BOOL", ("N",)),
        "mask": ("U8", ("M",)),
        "mask_offsets": ("I64", ("N+1",)),
        "mask_shapes": ("I32", ("N", 2)),
    },
}
SCHEMAS = {"musetalk": _MUSETALK_SCHEMA}
_OPTIONAL = {"points": ("F32", ("N", 68, 2))}
"""Tensors of geometry.safetensors that a packet may have: landmarks in pixels, iBUG order."""
_POINTS_REACH = 16
"""Frame sides that the landmarks of a face may lie away from the corner: it may leave the picture, not by much."""
_FORBIDDEN_IN_ID = set('<>:"/\\|?*')
_RESERVED_IDS = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}


class PacketError(ValueError):
    """A packet is missing, damaged or of another kind; the message names file and field."""


@dataclass(frozen=True)
class AvatarInfo:
    """What packet.json says of the presenter. size is (width, height) in pixels.

    model: the weights that made it; source: the pictures it was made of (name, sha256, more as the maker likes);
    options: how they were baked.
    """

    id: str
    engine: str
    size: tuple[int, int]
    fps: Fraction
    n_frames: int
    cycle: str
    model: Mapping[str, Any]
    source: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AvatarPacket:
    """A handle on a packet folder: no tensor is held, `open()` maps them for a run.

    `digest` is the SHA-256 of packet.json, which itself holds every file's hash: it names the content.
    `latent_shape` is (channels, h, w) of one frame's latents.
    """

    path: Path
    info: AvatarInfo
    digest: str
    files: Mapping[str, Mapping[str, Any]] = field(repr=False, compare=False)
    latent_shape: tuple[int, int, int]

    def avatar_indices(self, start: int, count: int, fps: Fraction):
        """Return the avatar frame shown at each of `count` output frames at `fps` (int64 array).

        Frames are chosen by time: a 30 fps loop under 25 fps speech keeps its own pace.
        """
        pace = self.info.fps / fps
        first = start * pace.numerator // pace.denominator
        last = (start + count - 1) * pace.numerator // pace.denominator
        own = cycle_indices(first, last - first + 1, self.info.n_frames, self.info.cycle)
        at = [(i * pace.numerator // pace.denominator) - first for i in range(start, start + count)]
        return own[at]

    def check_current(self) -> None:
        """Raise PacketError if the folder has been replaced or removed since it was opened."""
        if read_manifest(self.path)[1] != self.digest:
            raise PacketError(f"avatar {self.info.id!r} was rebuilt after it was loaded; load it again")

    def open(self) -> PacketReader:
        """Map the tensors. Raises PacketError if the folder has been replaced since it was opened."""
        self.check_current()
        return PacketReader(self)


class PacketReader:
    """Mapped tensors of one packet for the length of a run; use as a context manager."""

    def __init__(self, packet: AvatarPacket) -> None:
        from safetensors import SafetensorError

        self.packet = packet
        try:
            self._map(packet)
        except SafetensorError as e:
            raise PacketError(f"{packet.path}: {e}; rebuild the avatar") from None
        except (OSError, RuntimeError) as e:  # torch says RuntimeError for a file that has just gone
            raise PacketError(f"{packet.path}: {e}; was the avatar rebuilt? Load it again") from None
        self._check_geometry()

    def _map(self, packet: AvatarPacket) -> None:
        from safetensors import safe_open

        self._open = {
            name: safe_open(packet.path / name, framework="pt") for name in SCHEMAS[packet.info.engine]
        }
        geometry = self._open["geometry.safetensors"]
        self.latents: torch.Tensor = self._open["latents.safetensors"].get_tensor("latents")
        self.boxes: torch.Tensor = geometry.get_tensor("boxes")
        self.crops: torch.Tensor = geometry.get_tensor("crops")
        self.found: torch.Tensor = geometry.get_tensor("found")
        # Landmarks float32 (N,68,2), where the face was found by its landmarks.
        self.points = geometry.get_tensor("points") if "points" in geometry.keys() else None
        self._frames = self._open["frames.safetensors"].get_tensor("frames")
        self._mask = geometry.get_tensor("mask")
        self._offsets = geometry.get_tensor("mask_offsets").tolist()
        self._shapes = geometry.get_tensor("mask_shapes").tolist()

    def _check_geometry(self) -> None:
        """Raise PacketError if boxes, crops, masks and landmarks do not fit the frames and each other."""
        width, height = self.packet.info.size
        offsets, shapes = np.array(self._offsets, np.int64), np.array(self._shapes, np.int64)
        ends = offsets[:-1] + shapes[:, 0] * shapes[:, 1]
        if (
            offsets[0] != 0
            or offsets[-1] != len(self._mask)
            or (shapes < 0).any()
            or (ends != offsets[1:]).any()
        ):
            raise PacketError(
                f"avatar {self.packet.info.id!r}: mask offsets do not fit the mask shapes; rebuild it"
            )
        box, crop = self.boxes.numpy().astype(np.int64), self.crops.numpy().astype(np.int64)
        inside = (box[:, :2] >= 0) & (box[:, :2] < box[:, 2:]) & (box[:, 2:] <= (width, height))
        covered = (crop[:, :2] <= box[:, :2]) & (box[:, 2:] <= crop[:, 2:4])
        fits = shapes[:, ::-1] == crop[:, 2:4] - crop[:, :2]
        placed = (crop[:, 4:6] == box[:, :2] - crop[:, :2]) & (crop[:, 6:8] == box[:, 2:] - box[:, :2])
        wrong = np.flatnonzero(~(inside & covered & fits & placed).all(1))
        if wrong.size:
            i = int(wrong[0])
            raise PacketError(
                f"avatar {self.packet.info.id!r}, frame {i}: box {box[i].tolist()}, crop {crop[i].tolist()} "
                f"and mask {self._shapes[i]} do not fit {width}x{height}; rebuild it"
            )
        self._check_points(_POINTS_REACH * max(width, height))

    def _check_points(self, reach: int) -> None:
        """Raise PacketError if the landmarks of a frame with a face are not finite or lie far outside the frame."""
        if self.points is None:
            return
        near = (np.abs(self.points.numpy()) <= reach).all((1, 2))  # false for NaN
        wrong = np.flatnonzero(~near & self.found.numpy())
        if wrong.size:
            raise PacketError(
                f"avatar {self.packet.info.id!r}, frame {int(wrong[0])}: landmarks are not finite or lie more than "
                f"{reach} pixels away; rebuild it"
            )

    def frame(self, index: int) -> torch.Tensor:
        """Return avatar frame `index`: uint8 (H,W,3) RGB, mapped: never write to it."""
        return self._frames[index]

    def mask(self, index: int) -> torch.Tensor:
        """Return the blend mask of frame `index`: uint8 (rows, columns) over its crop square, mapped."""
        rows, columns = self._shapes[index]
        return self._mask[self._offsets[index] : self._offsets[index + 1]].view(rows, columns)

    def close(self) -> None:
        for name in ("latents", "boxes", "crops", "found", "points", "_frames", "_mask"):
            setattr(self, name, None)
        self._open.clear()

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_id(avatar_id: str) -> str:
    """Return `avatar_id` if it is safe as a folder name on every system; ValueError otherwise."""
    bad = sorted({c for c in avatar_id if c in _FORBIDDEN_IN_ID or unicodedata.category(c)[0] == "C"})
    if bad:
        raise ValueError(
            f"avatar name {avatar_id!r} holds {' '.join(map(ascii, bad))}; use letters, digits, - and _"
        )
    size = len(avatar_id.encode())
    if (
        not 1 <= size <= MAX_ID_BYTES
        or avatar_id != avatar_id.strip()
        or avatar_id[0] == "."
        or avatar_id[-1] == "."
    ):
        raise ValueError(
            f"avatar name {avatar_id[:40]!r} must have 1..{MAX_ID_BYTES} bytes (it has {size}) and neither start nor end "
            "with a dot or a space"
        )
    if avatar_id.split(".")[0].lower() in _RESERVED_IDS:
        raise ValueError(f"avatar name {avatar_id!r} is reserved on Windows; choose another")
    return avatar_id


def open_packet(path: Path, expect_id: str | None = None) -> AvatarPacket:
    """Open the packet folder `path`: read packet.json and check sizes and tensor headers (no data is read).

    Raises PacketError naming the file and field that is wrong.
    """
    manifest, digest = read_manifest(path)
    info = _info_from(manifest, path)
    if info.id != (expect_id or path.name):
        raise PacketError(
            f"{path / MANIFEST}: id {info.id!r} is not the folder's name; rename the folder back"
        )
    files = _files_from(manifest, path)
    axes: dict[str, int] = {
        "N": info.n_frames,
        "N+1": info.n_frames + 1,
        "W": info.size[0],
        "H": info.size[1],
    }
    for name, schema in SCHEMAS[info.engine].items():
        entry, file = files.get(name), path / name
        if entry is None or not file.is_file():
            raise PacketError(f"{file}: missing; rebuild the avatar")
        if file.stat().st_size != entry["size"]:
            raise PacketError(
                f"{file}: {file.stat().st_size} bytes, packet.json says {entry['size']}; rebuild"
            )
        _check_header(file, schema, axes)
    if axes["C2"] % 2:
        raise PacketError(
            f"{path / 'latents.safetensors'}: latents has {axes['C2']} channels, not masked + reference"
        )
    return AvatarPacket(path, info, digest, files, (axes["C2"], axes["h"], axes["w"]))


def verify_packet(path: Path) -> AvatarPacket:
    """Open the packet and hash every file. Raises PacketError naming the first file that differs."""
    packet = open_packet(path)
    for name, entry in packet.files.items():
        if not (path / name).is_file():
            raise PacketError(f"{path / name}: missing; rebuild the avatar")
        if file_sha256(path / name) != entry["sha256"]:
            raise PacketError(
                f"{path / name}: content differs from packet.json's SHA-256; rebuild the avatar"
            )
    return packet


def packet_size(packet: AvatarPacket) -> int:
    """Return the bytes the packet takes on disk, packet.json among them."""
    return sum(entry["size"] for entry in packet.files.values()) + (packet.path / MANIFEST).stat().st_size


def list_packets(roots: Sequence[Path]) -> list[Path]:
    """Return the packet folders below `roots`, first root first, by name; an id seen twice counts once.

    A root that is not there yet is passed over; PacketError if it never can be, for a file is in its place.
    """
    found: dict[str, Path] = {}
    for root in roots:
        check_root(root)
        if root.is_dir():
            for path in sorted(root.iterdir()):
                if not path.name.startswith(".") and (path / MANIFEST).is_file():
                    found.setdefault(path.name, path)
    return list(found.values())


def check_root(root: Path) -> None:
    """Raise PacketError if `root`, or a folder that it would lie in, is a file."""
    for path in (root, *root.parents):
        if path.is_dir():
            return
        if os.path.lexists(path):
            raise PacketError(f"{path} is not a folder, so no avatars can be in {root}; give another folder")


def find_packet(avatar_id: str, roots: Sequence[Path]) -> Path:
    """Return the folder of `avatar_id` in the first root that has it; PacketError lists what there is."""
    check_id(avatar_id)
    for root in roots:
        if (root / avatar_id / MANIFEST).is_file():
            return root / avatar_id
    known = ", ".join(p.name for p in list_packets(roots)) or "none"
    raise PacketError(f"no avatar {avatar_id!r} in {', '.join(map(str, roots))}; there are: {known}")


def read_manifest(path: Path) -> tuple[dict, str]:
    """Return packet.json of the folder `path` and its SHA-256. PacketError if it is none that this pack reads."""
    file = path / MANIFEST
    try:
        raw = file.read_bytes()
        manifest = json.loads(raw)
    except FileNotFoundError:
        raise PacketError(f"{file}: not found; the folder is no avatar packet") from None
    except OSError as e:
        raise PacketError(f"{file}: cannot be read ({e.strerror or e}); rebuild the avatar") from None
    except (ValueError, RecursionError) as e:
        raise PacketError(f"{file}: not valid JSON ({e}); rebuild the avatar") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PacketError(f"{file}: field 'format' is not {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise PacketError(
            f"{file}: version {manifest.get('version')!r}, this pack reads version {VERSION}; update the pack or rebuild"
        )
    return manifest, hashlib.sha256(raw).hexdigest()


def _files_from(manifest: dict, path: Path) -> dict[str, dict]:
    """Return the field `files`: bare file name -> size and sha256. A name with a path could reach other folders."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise PacketError(f"{path / MANIFEST}: field 'files' is missing; rebuild the avatar")
    for name, entry in files.items():
        bare = name == Path(name).name and "\\" not in name and name not in ("", ".", "..")
        if not bare or not isinstance(entry, dict) or not _is_file_entry(entry):
            raise PacketError(
                f"{path / MANIFEST}: field 'files' has a bad entry {name!r}; rebuild the avatar"
            )
    return files


def _is_file_entry(entry: dict) -> bool:
    size, sha256 = entry.get("size"), entry.get("sha256")
    return type(size) is int and size >= 0 and isinstance(sha256, str)


def _info_from(manifest: dict, path: Path) -> AvatarInfo:
    where = path / MANIFEST
    for name in ("model", "source", "options"):
        if not isinstance(manifest.get(name, {}), dict):
            raise PacketError(f"{where}: field {name!r} is no JSON object; rebuild the avatar")
    try:
        width, height = (int(v) for v in manifest["size"])
        info = AvatarInfo(
            id=str(manifest["id"]),
            engine=str(manifest["engine"]),
            size=(width, height),
            fps=parse_fps(manifest["fps"]),
            n_frames=int(manifest["n_frames"]),
            cycle=str(manifest["cycle"]),
            model=dict(manifest["model"]),
            source=dict(manifest["source"]),
            options=dict(manifest.get("options", {})),
        )
    except KeyError as e:
        raise PacketError(f"{where}: field {e} is missing; rebuild the avatar") from None
    except (TypeError, ValueError, OverflowError) as e:
        raise PacketError(f"{where}: {e}; rebuild the avatar") from None
    if info.engine not in SCHEMAS:
        raise PacketError(f"{where}: engine {info.engine!r} is unknown; known: {', '.join(SCHEMAS)}")
    if info.cycle not in CYCLES:
        raise PacketError(f"{where}: cycle {info.cycle!r} is unknown; known: {', '.join(CYCLES)}")
    if info.n_frames < 1 or width < 1 or height < 1:
        raise PacketError(f"{where}: {info.n_frames} frames of {width}x{height} cannot be")
    return info


def _check_header(file: Path, schema: Mapping[str, tuple[str, tuple]], axes: dict[str, int]) -> None:
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
    optional = {k: v for k, v in _OPTIONAL.items() if k in header and file.name == "geometry.safetensors"}
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


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits, read in blocks."""
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()
