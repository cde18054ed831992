"""Built engines on disk: a file or folder each, and beside it a JSON that says what it was built for.

`<name>.plan` or `<name>.inductor/` with `<name>.json`. The JSON is written last, so what has none is the rest of a build
that stopped. Its `key` must agree with the machine and the model of today value by value; a mismatch is said with both
values and the engine built again. What is damaged is renamed to `.bad` and never loaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engine_spec import EngineIdentity, RunnerRequest
from .report import Report

FORMAT = "talkinghead-engine"
VERSION = 1
SIDECAR = ".json"
BAD = ".bad"
_SECTIONS = {"key": dict, "facts": dict, "payload": str, "files": dict}
_PASSING = re.compile(r"(\.lock|\.tmp|\.pyc)$|__pycache__|/locks/")
"""Left by compilers while they run: neither recorded nor missed."""
_DRIVER = re.compile(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


class EngineDamaged(ValueError):
    """A cached engine or its JSON cannot be used; the message names the file and why."""


@dataclass(frozen=True)
class CachedEngine:
    """One engine: `path` is its file or folder, `key` what must agree, `facts` what is good to know."""

    name: str
    path: Path
    key: Mapping[str, Any]
    facts: Mapping[str, Any]
    files: Mapping[str, list] = field(repr=False)

    @property
    def size(self) -> int:
        return sum(int(size) for size, _ in self.files.values())


def machine_facts(device) -> dict[str, str]:
    """Return what binds an engine to a machine: sm, gpu, driver, versions of torch, CUDA, Triton, TensorRT."""
    import torch

    facts = {"sm": "cpu", "gpu": "none", "driver": "none"}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        facts = {
            "sm": f"sm_{major}{minor}",
            "gpu": torch.cuda.get_device_name(device),
            "driver": driver_version(),
        }
    elif device.type == "cpu":
        facts["gpu"] = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return {
        **facts,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "triton": package_version("triton", "triton-windows"),
        "tensorrt": package_version("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    }


def driver_version() -> str:
    """NVIDIA's kernel driver, such as "580.65.06"; where the system does not tell, the CUDA version it offers."""
    import torch

    try:
        found = _DRIVER.search(Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    if found:
        return found[1]
    try:
        return f"CUDA {torch._C._cuda_getDriverVersion()}"
    except (AttributeError, RuntimeError):
        return "unknown"


def package_version(*names: str) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def config_sha256(config: Mapping[str, Any]) -> str:
    """SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()


def engine_key(request: RunnerRequest, backend: str, machine: Iterable[str], **more: Any) -> dict[str, Any]:
    """Return what an engine of `backend` must agree on: stage, batch, precision, config, and of the machine those
    facts that `machine` names; `more` adds the backend's own (profile, flags, weights)."""
    facts = machine_facts(request.device)
    identity: EngineIdentity = request.identity
    return {
        "stage": request.spec.name,
        "backend": backend,
        "batch": request.batch,
        "precision": identity.precision,
        "config": config_sha256(identity.config),
        "sm": facts["sm"],
        **{name: facts[name] for name in machine},
        **more,
    }


def engine_name(key: Mapping[str, Any]) -> str:
    """File name of the engine with this key: readable, and another one for another card, model, precision or batch."""
    parts = (key["stage"], key["backend"], key["precision"], f"b{key['batch']}", key["config"][:8], key["sm"])
    return re.sub(r"[^\w.-]+", "-", "-".join(map(str, parts)))


class EngineCache:
    """The engines of one folder; the folder is made on the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def place(self, key: Mapping[str, Any], suffix: str) -> Path:
        """Return where the file (`.plan`) or folder (`.inductor`) of an engine belongs."""
        return self.folder / (engine_name(key) + suffix)

    def find(
        self, key: Mapping[str, Any], suffix: str, report: Report, hashes: bool = True
    ) -> CachedEngine | None:
        """Return the engine for `key` if it is whole and agrees; otherwise say in the report why not, and return None.

        An engine is code: every file is hashed before it is returned (0.8 s a GB on a slow core), unless `hashes` is
        off because the caller does so with `copy_checked`.
        """
        path, name = self.place(key, suffix), engine_name(key)
        sidecar = self.folder / (name + SIDECAR)
        if not sidecar.is_file():
            if path.exists():
                self.set_aside(
                    name, f"{path.name} has no {sidecar.name} beside it that says what it is", report
                )
            return None
        try:
            engine = self.read(name)
            fault = self.fault_of(engine, hashes=False)
        except EngineDamaged as e:
            fault = str(e)
        if fault:
            self.set_aside(name, fault, report)
            return None
        if differences := mismatch(engine.key, key):
            report.warn(f"engine {name} is not for here: {differences}; it has to be built again")
            return None
        if hashes and (fault := self.fault_of(engine)):
            self.set_aside(name, fault, report)
            return None
        return engine

    def read(self, name: str) -> CachedEngine:
        """Read the JSON of an engine. EngineDamaged names the file and what is wrong with it."""
        sidecar = self.folder / (name + SIDECAR)
        try:
            data = json.loads(sidecar.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise EngineDamaged(f"{sidecar.name} cannot be read ({e})") from e
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise EngineDamaged(f"{sidecar.name} is no {FORMAT} version {VERSION}")
        for section, kind in _SECTIONS.items():
            if not isinstance(data.get(section), kind):
                raise EngineDamaged(f"{sidecar.name}: {section} is missing or not a {kind.__name__}")
        payload, files = data["payload"], data["files"]
        if Path(payload).name != payload or payload in ("", ".", ".."):
            raise EngineDamaged(f"{sidecar.name}: payload {payload!r} is no name in this folder")
        if not all(_is_record(path, record) for path, record in files.items()):
            raise EngineDamaged(f"{sidecar.name}: files must be path -> [size, sha256]")
        return CachedEngine(name, self.folder / payload, data["key"], data["facts"], files)

    def fault_of(self, engine: CachedEngine, hashes: bool = True) -> str | None:
        """Return what is wrong with the files of an engine, None if nothing is. Without `hashes` looks at sizes only."""
        for name, (size, digest) in engine.files.items():
            path = engine.path / name if name else engine.path
            where = f"{engine.path.name}/{name}" if name else engine.path.name
            if not path.is_file():
                return f"{where} is missing"
            if path.stat().st_size != size:
                return f"{where} has {path.stat().st_size} bytes, not {size}"
            if hashes and _sha256(path) != digest:
                return _changed(where)
        return None

    def copy_checked(self, engine: CachedEngine, folder: Path) -> None:
        """Copy the files that the JSON of an engine names into `folder`, hashing what is copied.

        Raises:
            EngineDamaged: a file is missing or not what was built; it names the file. `folder` must then not be used.
        """
        if not engine.files:
            raise EngineDamaged(f"{engine.name}{SIDECAR} names no files")
        for name, (_, digest) in engine.files.items():
            source, target = (
                (engine.path / name, folder / name) if name else (engine.path, folder / engine.path.name)
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                found = _sha256(source, target)
            except OSError as e:
                raise EngineDamaged(f"{source.name} cannot be read ({e})") from e
            if found != digest:
                raise EngineDamaged(_changed(f"{engine.path.name}/{name}".rstrip("/")))

    def write(self, key: Mapping[str, Any], suffix: str, facts: Mapping[str, Any]) -> CachedEngine:
        """Record the file or folder that was just built at `place(key, suffix)`; `facts`: seconds, parity, machine."""
        path, name = self.place(key, suffix), engine_name(key)
        single = path.is_file()
        paths = [path] if single else sorted(p for p in path.rglob("*") if p.is_file())
        files = {}
        for p in paths:
            relative = "" if single else p.relative_to(path).as_posix()
            if not _PASSING.search("/" + relative):
                files[relative] = [p.stat().st_size, _sha256(p)]
        engine = CachedEngine(
            name, path, dict(key), {**facts, "built": time.strftime("%Y-%m-%d %H:%M:%S")}, files
        )
        self._save(engine)
        return engine

    def update(self, name: str, **facts: Any) -> CachedEngine:
        """Add to the facts of an engine: parity figures, memory."""
        engine = self.read(name)
        engine = CachedEngine(name, engine.path, engine.key, {**engine.facts, **facts}, engine.files)
        self._save(engine)
        return engine

    def _save(self, engine: CachedEngine) -> None:
        data = {
            "format": FORMAT, "version": VERSION, "key": engine.key, "facts": engine.facts,
            "payload": engine.path.name, "files": engine.files,
        }  # fmt: skip
        target = self.folder / (engine.name + SIDECAR)
        part = target.with_name(f".part-{os.getpid()}-{target.name}")
        try:
            part.write_text(json.dumps(data, indent=1, default=str), encoding="utf-8")
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)

    def set_aside(self, name: str, why: str, report: Report) -> None:
        """Rename everything of an engine to `.bad`, over an older one, and say so."""
        moved = []
        for path in self._parts(name):
            bad = path.with_name(path.name + BAD)
            _remove(bad)
            os.replace(path, bad)
            moved.append(bad.name)
        report.warn(
            f"engine {name}: {why}; set aside as {', '.join(moved) or 'nothing'}, it has to be built again"
        )

    def names(self) -> list[str]:
        """Return every engine that has a JSON, readable or not."""
        if not self.folder.is_dir():
            return []
        return sorted(p.name.removesuffix(SIDECAR) for p in self.folder.glob("[!.]*" + SIDECAR))

    def clear(self, names: Iterable[str] | None = None) -> tuple[list[str], int]:
        """Delete engines by name; without names everything of ours, `.bad` and unfinished too.

        Returns:
            what was deleted, and the bytes that came free.

        Raises:
            ValueError: a name that is not there; nothing was deleted.
        """
        names = None if names is None else list(names)
        if names is not None and (unknown := [n for n in names if n not in self.names()]):
            raise ValueError(
                f"no engine {unknown[0]!r} in {self.folder}; there are {', '.join(self.names()) or 'none'}"
            )
        doomed = list(self._ours()) if names is None else [p for n in names for p in self._parts(n)]
        size = sum(_size(p) for p in doomed)
        for path in doomed:
            _remove(path)
        return [p.name for p in doomed], size

    def _ours(self) -> Iterable[Path]:
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if path.name.removesuffix(BAD).endswith((SIDECAR, ".plan", ".inductor")):
                yield path

    def _parts(self, name: str) -> list[Path]:
        return [p for p in self._ours() if p.stem == name and not p.name.endswith(BAD)]


def mismatch(built: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Say where two keys differ, with both values; empty if they agree."""
    names = dict.fromkeys([*wanted, *built])
    parts = [
        f"{name} {built.get(name, 'unknown')!s:.40} instead of {wanted.get(name, 'unknown')!s:.40}"
        for name in names
        if built.get(name) != wanted.get(name)
    ]
    return ", ".join(parts)


def _is_record(path: str, record: object) -> bool:
    inside = ".." not in path.split("/") and not path.startswith("/") and "\\" not in path and ":" not in path
    return inside and isinstance(record, list) and len(record) == 2 and isinstance(record[0], int)


def _changed(where: str) -> str:
    return f"{where} is not what was built: its SHA-256 is another"


def _sha256(path: Path, copy: Path | None = None) -> str:
    """Hash a file, and write what was hashed to `copy`."""
    digest = hashlib.sha256()
    with open(path, "rb") as file, open(copy, "wb") if copy else nullcontext() as out:
        while block := file.read(1 << 20):
            digest.update(block)
            if out:
                out.write(block)
    return digest.hexdigest()


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
