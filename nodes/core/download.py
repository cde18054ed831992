"""Fetching model files: resumed where they stopped, checked before they get their name, never half there.

What is under way lies beside the destination as `<name>.part` and survives a cut line or Ctrl-C.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .download_sources import DownloadError, Expected, HubSource, Progress, Source
from .model_catalog import ModelFile, size_text
from .models import safe_relative

_SPARE_BYTES = 100_000_000
_BLOCK = 1 << 20
_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True)
class Fetched:
    """A file that is there and good. `fetched` is false when it was there before; `check` says how it was checked."""

    path: Path
    fetched: bool
    check: str


def place_of(file: ModelFile, root: Path) -> Path:
    """Where the file belongs below `root`. ValueError when its destination would leave it."""
    return Path(root, *safe_relative(file.destination).parts)


def state_of(file: ModelFile, root: Path) -> str:
    """ "present", "missing" or "wrong size"; hashes nothing."""
    path = place_of(file, root)
    if not path.is_file():
        return "missing"
    return "present" if file.size in (None, path.stat().st_size) else "wrong size"


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE asks for no network. Read here because huggingface_hub reads it only when imported."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE


def fault_of(path: Path, expected: Expected) -> str | None:
    """Say what is wrong with the file's bytes, None when all that is known of them holds. Reads the whole file."""
    size = path.stat().st_size
    if expected.size is not None and size != expected.size:
        return f"has {size} bytes instead of {expected.size}"
    for name, wanted, start in (
        ("SHA-256", expected.sha256, b""),
        ("git hash", expected.git_sha1, b"blob %d\0" % size),
    ):
        if wanted is None:
            continue
        digest = hashlib.sha256() if name == "SHA-256" else hashlib.sha1(usedforsecurity=False)
        digest.update(start)
        with open(path, "rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() != wanted:
            return f"has {name} {digest.hexdigest()[:16]}... instead of {wanted[:16]}..."
    return None


def download(
    file: ModelFile,
    root: Path,
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
    offline: bool | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> Fetched:
    """Bring `file` to its place below `root`, unless it is there and good.

    Args:
        file: what, from where, with the size and hash it must have.
        root: models folder; made when missing.
        progress: called with bytes done and in all.
        overwrite: fetch again over a file that is there and wrong.
        offline: do not use the network; default from HF_HUB_OFFLINE.
        endpoint: mirror of the hub; default $HF_ENDPOINT, else huggingface.co.
        token: hub token; default $HF_TOKEN, else what `hf auth login` stored.

    Raises:
        DownloadError: no network, no access, no room, wrong bytes.
        ValueError: a destination outside `root`.
        ImportError: huggingface_hub is not installed.
    """
    place = place_of(file, root)
    offline = is_offline() if offline is None else offline
    source = HubSource(file, endpoint, token) if file.repo else Source(file)
    expected = Expected(file.size, file.sha256)
    if file.sha256 is None and not offline:
        expected = source.expected()
    if place.is_file():
        fault = fault_of(place, expected)
        if fault is None:
            return Fetched(place, False, expected.check)
        if not overwrite:
            raise DownloadError(
                f"{place} {fault}: it is not the file of the {expected.said_by}. Move it away, or fetch over it with "
                f"--overwrite"
            )
    if offline:
        raise DownloadError(
            f"{place} is missing and no network may be used (offline): get {file.address} "
            f"({size_text(file.size)}) on another machine and put it there"
        )
    try:
        return _fetch(source, place, expected, progress)
    except PermissionError as error:
        raise DownloadError(f"cannot write {place}: {error}. Choose another folder with --models") from error


def _fetch(source: Source, place: Path, expected: Expected, progress: Progress | None) -> Fetched:
    part = place.with_name(place.name + ".part")
    place.parent.mkdir(parents=True, exist_ok=True)
    source.expected()  # one quick question before a long wait: is it the file we know?
    _check_room(part, expected.size)
    source.load(part, expected, progress or (lambda done, total: None))
    fault = fault_of(part, expected)
    if fault:
        part.unlink()
        raise DownloadError(
            f"{source.file.address} {fault} ({expected.said_by}): what was fetched is removed. Try again; if it stays so, "
            f"the source changed or something between alters downloads"
        )
    os.replace(part, place)
    return Fetched(place, True, expected.check)


def _check_room(part: Path, size: int | None) -> None:
    here = part.stat().st_size if part.is_file() else 0
    free = shutil.disk_usage(part.parent).free
    wanted = max(0, (size or 0) - here) + _SPARE_BYTES
    if free < wanted:
        raise DownloadError(
            f"{part.parent} has {size_text(free)} free, {part.stem} needs {size_text(wanted)}: make room, or choose "
            f"another folder with --models"
        )
