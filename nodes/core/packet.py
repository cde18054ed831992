"""Avatar packet, version 1: all that depends only on the presenter, computed once and mapped at run time.

A packet is one folder `<root>/<id>/` of safetensors and JSON. It is written under a temporary name and
renamed, so a folder of the final name is always whole. Opening reads headers only; `verify_packet` hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import time
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from .timeline import CYCLES, cycle_indices, fps_text, parse_fps

FORMAT = "talkinghead-avatar"
VERSION = 1
MANIFEST = "packet.json"
PREVIEW = "preview.jpg"
MAX_ID_BYTES = 120
_REPLACE_TRIES = 20

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
_SCHEMAS = {"musetalk": _MUSETALK_SCHEMA}
_FORBIDDEN_IN_ID = set('<>:"/\\|?*')
_RESERVED_IDS = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}


class PacketError(ValueError):
    """A packet is missing, damaged or of another kind; the message names file and field."""


@dataclass(frozen=True)
class AvatarInfo:
    """What packet.json says of the presenter. size is (width, height) in pixels."""

    id: str
    engine: str
    size: tuple[int, int]
    fps: Fraction
    n_frames: int
    cycle: str
    model: Mapping[str, Any]
    source: Mapping[str, Any]


@dataclass(frozen=True)
class AvatarPacket:
    """A handle on a packet folder: no tensor is held, `open()` maps them for a run.

    `digest` is the SHA-256 of packet.json, which itself holds every file's hash: it names the content.
    """

    path: Path
    info: AvatarInfo
    digest: str
    files: Mapping[str, Mapping[str, Any]] = field(repr=False, compare=False)

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

    def open(self) -> PacketReader:
        """Map the tensors. Raises PacketError if the folder has been replaced since it was opened."""
        manifest = _read_manifest(self.path)[1]
        if manifest != self.digest:
            raise PacketError(f"avatar {self.info.id!r} was rebuilt after it was loaded; load it again")
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
            name: safe_open(packet.path / name, framework="pt") for name in _SCHEMAS[packet.info.engine]
        }
        geometry = self._open["geometry.safetensors"]
        self.latents: torch.Tensor = self._open["latents.safetensors"].get_tensor("latents")
        self.boxes: torch.Tensor = geometry.get_tensor("boxes")
        self.crops: torch.Tensor = geometry.get_tensor("crops")
        self.found: torch.Tensor = geometry.get_tensor("found")
        self._frames = self._open["frames.safetensors"].get_tensor("frames")
        self._mask = geometry.get_tensor("mask")
        self._offsets = geometry.get_tensor("mask_offsets").tolist()
        self._shapes = geometry.get_tensor("mask_shapes").tolist()

    def _check_geometry(self) -> None:
        """Raise PacketError if boxes, crops and masks do not fit the frames and each other."""
        width, height = self.packet.info.size
        ends = [o + rows * columns for o, (rows, columns) in zip(self._offsets, self._shapes, strict=False)]
        if self._offsets[0] != 0 or ends != self._offsets[1:] or self._offsets[-1] != len(self._mask):
            raise PacketError(
                f"avatar {self.packet.info.id!r}: mask offsets do not fit the mask shapes; rebuild it"
            )
        for i, (box, crop) in enumerate(zip(self.boxes.tolist(), self.crops.tolist(), strict=True)):
            x1, y1, x2, y2 = box
            inside = 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height
            covered = crop[0] <= x1 and crop[1] <= y1 and x2 <= crop[2] and y2 <= crop[3]
            if not inside or not covered or self._shapes[i] != [crop[3] - crop[1], crop[2] - crop[0]]:
                raise PacketError(
                    f"avatar {self.packet.info.id!r}, frame {i}: box {box}, crop {crop[:4]} and mask "
                    f"{self._shapes[i]} do not fit {width}x{height}; rebuild it"
                )

    def frame(self, index: int) -> torch.Tensor:
        """Return avatar frame `index`: uint8 (H,W,3) RGB, mapped: never write to it."""
        return self._frames[index]

    def mask(self, index: int) -> torch.Tensor:
        """Return the blend mask of frame `index`: uint8 (rows, columns) over its crop square, mapped."""
        rows, columns = self._shapes[index]
        return self._mask[self._offsets[index] : self._offsets[index + 1]].view(rows, columns)

    def close(self) -> None:
        for name in ("latents", "boxes", "crops", "found", "_frames", "_mask"):
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


def write_packet(
    root: Path,
    info: AvatarInfo,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    preview: bytes | None = None,
) -> AvatarPacket:
    """Write a packet under `root / info.id`, replacing one of that name, and return it opened.

    `tensors` maps file name -> tensor name -> tensor as the schema has them. A failure leaves an existing
    packet as it was and no partial folder.
    """
    check_id(info.id)
    final = root / info.id
    if _is_foreign(final):
        raise PacketError(f"{final} is there and is no avatar packet; choose another name or move it away")
    root.mkdir(parents=True, exist_ok=True)
    work = root / f".part-{uuid.uuid4().hex}"
    try:
        work.mkdir()
        for name in _SCHEMAS[info.engine]:
            _save(tensors[name], work / name)
        if preview:
            (work / PREVIEW).write_bytes(preview)
        files = {p.name: {"size": p.stat().st_size, "sha256": file_sha256(p)} for p in sorted(work.iterdir())}
        (work / MANIFEST).write_text(
            json.dumps(_manifest(info, files), indent=1, ensure_ascii=False), "utf-8"
        )
        for path in work.iterdir():
            # safetensors makes files that only their owner may read; models folders are often shared.
            path.chmod((work / MANIFEST).stat().st_mode)
        packet = open_packet(work, expect_id=info.id)
        _replace_folder(work, final)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return replace(packet, path=final)


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({k: t.contiguous() for k, t in tensors.items()}, path)
    except SafetensorError as e:
        raise OSError(f"cannot write {path.name} into {path.parent.parent}: {e}; is the disk full?") from None


def open_packet(path: Path, expect_id: str | None = None) -> AvatarPacket:
    """Open the packet folder `path`: read packet.json and check sizes and tensor headers (no data is read).

    Raises PacketError naming the file and field that is wrong.
    """
    manifest, digest = _read_manifest(path)
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
    for name, schema in _SCHEMAS[info.engine].items():
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
    return AvatarPacket(path, info, digest, files)


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


def list_packets(roots: Sequence[Path]) -> list[Path]:
    """Return the packet folders below `roots`, first root first, by name; an id seen twice counts once."""
    found: dict[str, Path] = {}
    for root in roots:
        if root.is_dir():
            for path in sorted(root.iterdir()):
                if not path.name.startswith(".") and (path / MANIFEST).is_file():
                    found.setdefault(path.name, path)
    return list(found.values())


def find_packet(avatar_id: str, roots: Sequence[Path]) -> Path:
    """Return the folder of `avatar_id` in the first root that has it; PacketError lists what there is."""
    check_id(avatar_id)
    for root in roots:
        if (root / avatar_id / MANIFEST).is_file():
            return root / avatar_id
    known = ", ".join(p.name for p in list_packets(roots)) or "none"
    raise PacketError(f"no avatar {avatar_id!r} in {', '.join(map(str, roots))}; there are: {known}")


def _manifest(info: AvatarInfo, files: dict) -> dict:
    return {
        "format": FORMAT,
        "version": VERSION,
        "engine": info.engine,
        "id": info.id,
        "size": list(info.size),
        "fps": fps_text(info.fps),
        "n_frames": info.n_frames,
        "cycle": info.cycle,
        "model": dict(info.model),
        "source": dict(info.source),
        "files": files,
    }


def _read_manifest(path: Path) -> tuple[dict, str]:
    file = path / MANIFEST
    try:
        raw = file.read_bytes()
        manifest = json.loads(raw)
    except FileNotFoundError:
        raise PacketError(f"{file}: not found; the folder is no avatar packet") from None
    except ValueError as e:
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
        if not bare or not isinstance(entry, dict) or not {"size", "sha256"} <= entry.keys():
            raise PacketError(
                f"{path / MANIFEST}: field 'files' has a bad entry {name!r}; rebuild the avatar"
            )
    return files


def _info_from(manifest: dict, path: Path) -> AvatarInfo:
    where = path / MANIFEST
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
        )
    except KeyError as e:
        raise PacketError(f"{where}: field {e} is missing; rebuild the avatar") from None
    except (TypeError, ValueError, OverflowError) as e:
        raise PacketError(f"{where}: {e}; rebuild the avatar") from None
    if info.engine not in _SCHEMAS:
        raise PacketError(f"{where}: engine {info.engine!r} is unknown; known: {', '.join(_SCHEMAS)}")
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
    for name, (dtype, shape) in schema.items():
        entry = header.get(name)
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise PacketError(f"{file}: tensor {name!r} is missing; rebuild the avatar")
        found = entry["shape"]
        if not isinstance(found, list) or len(found) != len(shape):
            raise PacketError(
                f"{file}: tensor {name!r} has shape {found}, must have {len(shape)} axes; rebuild"
            )
        wanted = [
            axes.setdefault(a, n) if isinstance(a, str) else a for a, n in zip(shape, found, strict=True)
        ]
        if entry["dtype"] != dtype or found != wanted:
            raise PacketError(
                f"{file}: tensor {name!r} is {entry['dtype']} {found}, must be {dtype} {wanted}; rebuild"
            )


def _is_foreign(path: Path) -> bool:
    """Return whether something stands at `path` that is no packet."""
    for _ in range(3):
        if not os.path.lexists(path) or (not path.is_symlink() and (path / MANIFEST).is_file()):
            return False
        time.sleep(0.02)  # another process may be replacing its packet between the two looks
    return True


def _replace_folder(new: Path, final: Path) -> None:
    """Rename `new` to `final`, whatever stands there; a failure puts the old packet back.

    Another process may build the same id at this moment: its packet is moved aside like any other.
    """
    aside: list[Path] = []
    try:
        for _ in range(_REPLACE_TRIES):
            if final.exists():
                old = final.with_name(f".old-{uuid.uuid4().hex}")
                try:
                    os.replace(final, old)
                    aside.append(old)
                except FileNotFoundError:
                    pass
            try:
                os.replace(new, final)
                return
            except BaseException as e:  # Ctrl-C between the two renames must not lose the old packet
                if not final.exists() and aside:
                    os.replace(aside.pop(), final)
                    raise
                if not isinstance(e, OSError) or not final.exists():
                    raise
        raise PacketError(f"{final}: other processes keep building this avatar; try again")
    finally:
        for old in aside:
            shutil.rmtree(old, ignore_errors=True)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits, read in blocks."""
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()
