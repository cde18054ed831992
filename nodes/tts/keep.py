"""Takes of speech kept on disk, found by what they were made from, so that a slow engine runs once.

A take is one .safetensors file named by the SHA-256 of its key: tensor `samples` float32 (channels, n), full scale 1.0,
and in the header format, version, sample rate and the SHA-256 of the samples. Float, because a take from disk must be
the take that was put there, sample for sample: FLAC has no float. 96 kB a second of mono at 24 kHz.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from pathlib import Path

import numpy as np

from ..core.audio import AudioClip, MemoryAudio
from ..core.report import Report

MAX_BYTES = 1 << 30
"""Of all takes together; three hours of mono at 24 kHz. What was not used for longest goes first."""
SUFFIX = ".safetensors"
_FORMAT, _VERSION = "talkinghead-speech", "1"
_NAME = re.compile(r"[0-9a-f]{64}" + re.escape(SUFFIX))
_PART = ".part-"
_STALE_S = 3600.0
"""A part of that age was left by a process that died: no take is written for an hour."""


class DamagedTake(ValueError):
    """A file that is not the whole take its name stands for; the message says why."""


def take_key(key: str, reference: AudioClip | None = None) -> str:
    """Return the name of a take: 64 hex digits, from `key` and all samples of `reference`.

    ValueError for a key without a visible character: every take would have that name.
    """
    if not key.strip():
        raise ValueError("key is empty; write into it what decides the take: text, voice, seed")
    sound = reference.fingerprint() if reference is not None else ""
    return hashlib.sha256(
        f"{_FORMAT} {_VERSION}\n{sound}\n{key}".encode("utf-8", "surrogatepass")
    ).hexdigest()


class TakeStore:
    """The takes in `folder`, at most `max_bytes` of them. Several processes may share one."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes

    def path(self, name: str) -> Path:
        if not _NAME.fullmatch(name + SUFFIX):
            raise ValueError(f"{name!r} is no name of a take; names are 64 hex digits")
        return self.folder / (name + SUFFIX)

    def find(self, name: str, report: Report | None = None) -> MemoryAudio | None:
        """Return the take `name` and count it as used; None if there is none or it is damaged, which is reported."""
        path = self.path(name)
        try:
            if not path.is_file():
                return None
            clip = self._read(path)
        except (DamagedTake, OSError) as e:
            if report is not None:
                report.warn(f"kept take {path.name[:12]}... is not used: {e}; it is made anew")
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a folder that may only be read still gives; it is as old as it was then
        return clip

    def _read(self, path: Path) -> MemoryAudio:
        from safetensors import SafetensorError, safe_open

        if path.stat().st_size > self.max_bytes:
            raise DamagedTake(f"it has {path.stat().st_size} bytes, takes have at most {self.max_bytes}")
        try:
            with safe_open(path, framework="np") as file:
                head = file.metadata() or {}
                samples = np.array(file.get_tensor("samples"))
        except (SafetensorError, TypeError, ValueError, AttributeError) as e:  # numpy lacks some of its types
            raise DamagedTake(f"it cannot be read ({e})") from e
        found = (head.get("format"), head.get("version"))
        if found != (_FORMAT, _VERSION):
            raise DamagedTake(f"it is {found[0]} version {found[1]}, not {_FORMAT} {_VERSION}")
        if samples.dtype != np.float32 or samples.ndim != 2 or head.get("sha256") != _digest(samples):
            raise DamagedTake("its samples are not those that were put there")
        try:
            return MemoryAudio(samples, int(head["sample_rate"]), name="kept take")
        except (KeyError, ValueError) as e:
            raise DamagedTake(f"its header is wrong ({e})") from e

    def put(self, name: str, clip: AudioClip, report: Report | None = None) -> bool:
        """Write `clip` as the take `name` and make room; say whether it is kept, and report why not.

        What cannot be kept is no reason to lose a take that took minutes: nothing of the disk raises.
        """
        path, why = self.path(name), ""
        samples = np.concatenate(list(clip.blocks()), axis=1)
        if not np.isfinite(samples).all():
            why = "it has samples that are not finite"
        elif samples.nbytes > self.max_bytes // 2:
            why = f"it has {samples.nbytes} bytes, half of the {self.max_bytes} for all takes is the most"
        else:
            try:
                self._write(path, samples, clip.sample_rate)
                self._make_room(path)
            except OSError as e:
                why = f"{self.folder} cannot be written ({e.strerror or e})"
        if why and report is not None:
            report.warn(f"the take is not kept: {why}")
        return not why

    def _write(self, path: Path, samples: np.ndarray, sample_rate: int) -> None:
        from safetensors.numpy import save

        head = {
            "format": _FORMAT,
            "version": _VERSION,
            "sample_rate": str(sample_rate),
            "sha256": _digest(samples),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{_PART}{uuid.uuid4().hex}{SUFFIX}")
        try:
            part.write_bytes(save({"samples": np.ascontiguousarray(samples)}, metadata=head))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, newest: Path) -> None:
        """Remove takes, those not used for longest first, until the rest fits; foreign files are left alone."""
        takes = []
        for entry in self.folder.iterdir():
            try:
                found = entry.lstat()
                if _NAME.fullmatch(entry.name):
                    takes.append((found.st_mtime_ns, found.st_size, entry))
                elif entry.name.startswith(_PART) and time.time() - found.st_mtime > _STALE_S:
                    entry.unlink(missing_ok=True)
            except OSError:
                continue  # another process was quicker
        total = sum(size for _, size, _ in takes)
        for _, size, entry in sorted(takes):
            if total <= self.max_bytes:
                return
            if entry != newest:
                entry.unlink(missing_ok=True)
                total -= size


def _digest(samples: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(samples)).hexdigest()
