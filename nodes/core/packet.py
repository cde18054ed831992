"""Avatar packet, version 1: all that depends only on the presenter, computed once and mapped at run time.

A packet is one folder `<root>/<id>/` of safetensors and JSON, whole whenever it is there: it is made as
`.part-*`, frame by frame if need be, and renamed in one step. The one it replaces is `.old-*` for the moment
between two renames, one that is deleted `.gone-*`; what dead runs leave of these is swept by a later draft.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import shutil
import struct
import time
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from .packet_read import (
    FORMAT,
    PREVIEW,
    VERSION,
    AvatarInfo,
    AvatarPacket,
    check_id,
    check_root,
    file_sha256,
    find_packet,
    list_packets,
    open_packet,
    packet_size,
    verify_packet,
)
from .packet_readers import DittoReader, MuseTalkReader, PacketReader
from .packet_schema import CROP_SIDE, MANIFEST, SCHEMAS, PacketError
from .timeline import fps_text

__all__ = [
    "CROP_SIDE", "FORMAT", "MANIFEST", "PREVIEW", "VERSION", "AvatarInfo", "AvatarPacket", "DittoReader", "MuseTalkReader",
    "PacketDraft", "PacketError", "PacketReader", "check_id", "check_new_place", "delete_packet", "file_sha256", "find_packet", "list_packets", "open_packet",
    "packet_size", "preview_jpeg", "sweep_leftovers", "verify_packet", "write_packet",
]  # fmt: skip

FRAMES = "frames.safetensors"
PREVIEW_SIDE = 256
STALE_SECONDS = 24 * 3600
_REPLACE_TRIES = 20
_MAPPED_FILES_STAY = os.name == "nt"
"""Windows neither renames nor cuts a file that is mapped, nor renames its folder."""
_DTYPES = {"U8": "u1", "BOOL": "?", "F16": "<f2", "I32": "<i4", "F32": "<f4", "I64": "<i8"}
# One length for every header of frames: a clip that ends early only changes the text, not where the data starts.
_FRAMES_HEADER = 248


class PacketDraft:
    """A packet being written below `root`; use as a context manager.

    Give it every file of the schema (`frames`, `tensors`), then `finish`. Left without that, by an error or
    not, nothing remains of it and an existing packet stays as it was.
    """

    def __init__(self, root: Path, engine: str = "musetalk") -> None:
        self.root, self._schema = root, SCHEMAS[engine]
        self._work = root / f".part-{uuid.uuid4().hex}"
        self._left: list[Path] = []
        self._frames: np.memmap | None = None
        self._mapped: list[np.memmap] = []

    def __enter__(self) -> PacketDraft:
        self.root.mkdir(parents=True, exist_ok=True)
        sweep_leftovers(self.root)
        self._work.mkdir()
        return self

    def __exit__(self, *exc: object) -> None:
        self._frames, self._mapped = None, []
        for folder in (self._work, *self._left):
            shutil.rmtree(folder, ignore_errors=True)

    def frames(self, n: int, height: int, width: int) -> np.ndarray:
        """Return the packet's frames to fill: uint8 (n,H,W,3) RGB, mapped on the file, not in memory.

        The disk space is taken at once (OSError if there is too little), for a mapping that runs out of it
        kills the process. `finish` may keep fewer frames; what lies past them must not be touched afterwards. Drop
        the array before `finish` if you can: Windows copies the file if it is still mapped.
        """
        if self._frames is not None:
            raise ValueError("this draft has its frames already")
        if min(n, height, width) < 1:
            raise ValueError(f"{n} frames of {width}x{height} cannot be")
        file, size = self._work / FRAMES, n * height * width * 3
        with file.open("wb") as f:
            f.write(_frames_header(n, height, width))
            _reserve(f, 8 + _FRAMES_HEADER + size)
        self._frames = np.memmap(file, np.uint8, "r+", 8 + _FRAMES_HEADER, (n, height, width, 3))
        self._mapped.append(self._frames)
        return self._frames

    def arrays(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Return the tensors of the file `name` to fill, mapped on it as `frames` are; dtypes are the schema's.

        For what is too large to be held: use `tensors` for the rest. All of it is zeros until it is filled.
        """
        schema = self._schema.get(name, {})
        if set(shapes) != set(schema):
            raise ValueError(f"{name} has the tensors {', '.join(schema) or 'none'}, not {', '.join(shapes)}")
        dtypes = {key: dtype for key, (dtype, _) in schema.items()}
        header, places, size = _header_of(dtypes, shapes)
        file = self._work / name
        with file.open("wb") as f:
            f.write(header)
            _reserve(f, len(header) + size)
        made = {
            key: np.memmap(file, _DTYPES[dtypes[key]], "r+", len(header) + places[key], shape)
            for key, shape in shapes.items()
        }
        self._mapped += made.values()
        return made

    def settle(self) -> None:
        """Write out what was filled so far and drop its pages; call it now and then in a long clip."""
        for mapped in self._mapped:
            mapped.flush()
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped._mmap.madvise(mmap.MADV_DONTNEED)

    def tensors(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the file `name` of the schema. OSError if the disk is full."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if name not in self._schema:
            raise ValueError(f"a packet has no file {name!r}; its files are {', '.join(self._schema)}")
        try:
            save_file({k: t.contiguous() for k, t in tensors.items()}, self._work / name)
        except SafetensorError as e:
            raise OSError(f"cannot write {name} into {self.root}: {e}; is the disk full?") from None

    def finish(self, info: AvatarInfo, preview: bytes | None = None) -> AvatarPacket:
        """Hash the files, write packet.json, check the whole and put it in place of a packet of the name `info.id`.

        `info.n_frames` may be less than `frames` was asked for. PacketError if a file is missing or does not
        fit `info`.
        """
        check_new_place(self.root, info.id)
        self._close_mapped(info.n_frames)
        if preview:
            (self._work / PREVIEW).write_bytes(preview)
        files = {
            p.name: {"size": p.stat().st_size, "sha256": file_sha256(p)} for p in sorted(self._work.iterdir())
        }
        manifest = self._work / MANIFEST
        manifest.write_text(json.dumps(_manifest(info, files), indent=1, ensure_ascii=False), "utf-8")
        for path in self._work.iterdir():
            # safetensors makes files that only their owner may read; models folders are often shared.
            path.chmod(manifest.stat().st_mode)
        packet = open_packet(self._work, expect_id=info.id)
        check_new_place(self.root, info.id)
        _replace_folder(self._work, self.root / info.id)
        return replace(packet, path=self.root / info.id)

    def _close_mapped(self, n: int) -> None:
        shape = None if self._frames is None else self._frames.shape
        self.settle()
        # Never closed by hand: numpy would leave the caller's array pointing at nothing.
        held = [weakref.ref(mapped._mmap) for mapped in self._mapped]
        self._frames, self._mapped = None, []
        if shape is not None and not 1 <= n <= shape[0]:
            raise PacketError(f"{FRAMES}: {n} frames are to be kept of {shape[0]}; keep 1..{shape[0]}")
        if _MAPPED_FILES_STAY and any(
            mapping() is not None for mapping in held
        ):  # the caller still holds one
            self._move_out()
        if shape is not None and n < shape[0]:
            with (self._work / FRAMES).open("r+b") as f:
                f.write(_frames_header(n, *shape[1:3]))
                f.truncate(8 + _FRAMES_HEADER + n * math.prod(shape[1:]))

    def _move_out(self) -> None:
        """Go on in a copy of the folder."""
        self._left.append(self._work)
        self._work = self.root / f".part-{uuid.uuid4().hex}"
        shutil.copytree(self._left[-1], self._work)


def check_new_place(root: Path, avatar_id: str) -> None:
    """Raise unless a packet may be written at `root / avatar_id`: ValueError for the name, PacketError if something
    stands there that is no packet, or a file where its folder should be. `finish` asks too; ask before a long build."""
    final = root / check_id(avatar_id)
    check_root(root)
    for _ in range(3):
        if not os.path.lexists(final) or (not final.is_symlink() and (final / MANIFEST).is_file()):
            return
        time.sleep(0.02)  # another process may be replacing its packet between the two looks
    raise PacketError(f"{final} is there and is no avatar packet; choose another name or move it away")


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
    check_new_place(root, info.id)
    with PacketDraft(root, info.engine) as draft:
        for name in SCHEMAS[info.engine]:
            if name == FRAMES:
                frames = tensors[name]["frames"]
                if frames.dtype != torch.uint8:
                    raise PacketError(f"{name}: tensor 'frames' is {frames.dtype}, must be uint8")
                draft.frames(*frames.shape[:3])[:] = frames.numpy()
            else:
                draft.tensors(name, tensors[name])
        return draft.finish(info, preview)


def delete_packet(path: Path) -> None:
    """Remove the packet folder `path` in one step. PacketError if it is a link or no packet (of any version)."""
    try:
        manifest = None if path.is_symlink() else json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PacketError(
            f"{path} is no avatar packet, it is left as it is; delete it by hand if you mean it"
        )
    gone = path.with_name(f".gone-{uuid.uuid4().hex}")
    os.replace(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep_leftovers(root: Path) -> list[Path]:
    """Remove what runs that died left in `root` and return it: `.part-*`, `.old-*`, `.gone-*` untouched for a day.

    An `.old-*` whose packet is missing is the only copy left by a run killed between its two renames: it
    goes back to its place.
    """
    swept = []
    for path in sorted(root.iterdir()):
        kind = path.name.split("-")[0]
        if kind not in (".part", ".old", ".gone") or path.is_symlink() or not path.is_dir():
            continue
        try:
            newest = max(p.stat().st_mtime for p in (path, *path.iterdir()))
        except OSError:  # another process is at it
            continue
        if time.time() - newest > STALE_SECONDS:
            if not (kind == ".old" and _put_back(path)):
                shutil.rmtree(path, ignore_errors=True)
            swept.append(path)
    return swept


def preview_jpeg(frame: np.ndarray) -> bytes:
    """Return `frame` (H,W,3) RGB uint8 as a JPEG whose longest side is at most PREVIEW_SIDE."""
    import cv2

    scale = PREVIEW_SIDE / max(frame.shape[:2])
    small = frame
    if scale < 1:
        size = [max(1, round(side * scale)) for side in frame.shape[1::-1]]
        small = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR))[1].tobytes()


def _frames_header(n: int, height: int, width: int) -> bytes:
    entry = {"dtype": "U8", "shape": [n, height, width, 3], "data_offsets": [0, n * height * width * 3]}
    text = json.dumps({"frames": entry}, separators=(",", ":")).encode()
    return struct.pack("<Q", _FRAMES_HEADER) + text.ljust(_FRAMES_HEADER)


def _header_of(
    dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[bytes, dict[str, int], int]:
    """Return a safetensors header, where each tensor begins behind it, and the bytes of them all."""
    widths = {key: np.dtype(_DTYPES[dtypes[key]]).itemsize for key in shapes}
    entries, places, end = {}, {}, 0
    # The widest numbers first, behind a header of whole words: every tensor is aligned.
    for key in sorted(shapes, key=lambda k: -widths[k]):
        places[key], end = end, end + widths[key] * math.prod(shapes[key])
        entries[key] = {"dtype": dtypes[key], "shape": list(shapes[key]), "data_offsets": [places[key], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return struct.pack("<Q", len(text)) + text, places, end


def _reserve(f, size: int) -> None:
    """Make the open file `size` bytes long, the space really taken where the system can."""
    try:
        f.flush()
        free = shutil.disk_usage(f.name).free
        if size > free:
            raise OSError(errno.ENOSPC, f"{size} bytes are needed, {free} are free")
        f.truncate(size)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(f.fileno(), 0, size)
            except OSError as e:
                if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
    except OSError as e:
        raise OSError(
            e.errno,
            f"cannot write {Path(f.name).name} into {Path(f.name).parent.parent}: {e.strerror or e}; "
            "free disk space or keep fewer frames",
        ) from None


def _manifest(info: AvatarInfo, files: dict) -> dict:
    facts = {
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
    }
    if info.options:
        facts["options"] = dict(info.options)
    return {**facts, "files": files}


def _put_back(old: Path) -> bool:
    try:
        avatar_id = check_id(json.loads((old / MANIFEST).read_bytes())["id"])
        if os.path.lexists(old.with_name(avatar_id)):
            return False
        os.replace(old, old.with_name(avatar_id))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
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
                    os.utime(final)  # its age counts from here: another process may be sweeping
                    os.replace(final, old)
                    aside.append(old)
                except FileNotFoundError:
                    pass
                except PermissionError as e:
                    raise PacketError(
                        f"{final} cannot be replaced ({e.strerror}); it is write-protected, or a render still uses it"
                    ) from e
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
