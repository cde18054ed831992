"""Avatar packet, version 1, read: the schema of its files, headers checked, tensors mapped.

Opening reads headers only; `verify_packet` hashes. Import from packet.py, which also writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from .packet_readers import PacketReader, open_reader
from .packet_schema import MANIFEST, SCHEMAS, PacketError, check_files, feature_shape
from .timeline import CYCLES, cycle_indices, parse_fps

FORMAT = "talkinghead-avatar"
VERSION = 1
PREVIEW = "preview.jpg"
MAX_ID_BYTES = 120

_FORBIDDEN_IN_ID = set('<>:"/\\|?*')
_RESERVED_IDS = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}


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
    `axes` are the sizes that its headers have, by the names of packet_schema.
    """

    path: Path
    info: AvatarInfo
    digest: str
    files: Mapping[str, Mapping[str, Any]] = field(repr=False, compare=False)
    axes: Mapping[str, int] = field(repr=False, compare=False)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of what the networks take of one frame: MuseTalk's latents (2C, h, w), Ditto's volume (C, D, h, w)."""
        return feature_shape(self.info.engine, self.axes)

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
        """Map the tensors: a MuseTalkReader or a DittoReader. PacketError if the folder was replaced since it was opened."""
        self.check_current()
        return open_reader(self)


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
    sizes = {name: entry["size"] for name, entry in files.items()}
    axes = check_files(path, info.engine, sizes, {"N": info.n_frames, "W": info.size[0], "H": info.size[1]})
    return AvatarPacket(path, info, digest, files, axes)


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


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits, read in blocks."""
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()
