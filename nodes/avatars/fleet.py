"""A folder of presenters built in one process: one report line each, and an error stops only its own item."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.frames import RunContext
from ..core.packet import AvatarPacket
from .source import IMAGE_SUFFIXES, SOURCE_SUFFIXES

BUILT, KEPT, FAILED = "built", "kept", "failed"

Build = Callable[[RunContext, str, Path], tuple[AvatarPacket, bool]]
"""Run context, avatar id, source -> the packet and whether it was built now: an engine's `make_avatar` with the rest
filled in."""


@dataclass(frozen=True)
class FleetItem:
    """What became of one source. state: built, kept (it was there already) or failed (error says why)."""

    id: str
    source: str
    state: str
    seconds: float
    error: str = ""
    warnings: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the item as one line of a report."""
        tail = f": {self.error}" if self.error else "".join(f"; {w}" for w in self.warnings)
        return f"{self.id}: {self.state} in {self.seconds:.1f} s{tail}"


@dataclass(frozen=True)
class FleetReport:
    """The items in the order they were built."""

    items: tuple[FleetItem, ...]

    @property
    def failed(self) -> tuple[FleetItem, ...]:
        return tuple(i for i in self.items if i.state == FAILED)

    def summary(self) -> str:
        """Return "49 of 50 ready (3 kept), 1 failed"."""
        ready = len(self.items) - len(self.failed)
        kept = sum(i.state == KEPT for i in self.items)
        return f"{ready} of {len(self.items)} ready ({kept} kept), {len(self.failed)} failed"

    def text(self) -> str:
        return "\n".join([self.summary(), *(i.line() for i in self.items)])


def split_names(text: str) -> list[str]:
    """Return the names of "a, b". ValueError if there is none."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    if not names:
        raise ValueError(f"{text[:40]!r} names no avatar; write for example anna,eva")
    return names


def fleet_sources(folder: Path, specific: Sequence[str] = ()) -> list[tuple[str, Path]]:
    """Return (avatar id, source) for every picture, clip and folder of pictures in `folder`, by name.

    The id is the name without its suffix. `specific` keeps only those ids. Hidden files and files of other kinds are
    left out. ValueError: no folder, nothing in it, an id that is not there.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; give one that holds a picture or a clip for each presenter")
    paths = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".") and _is_source(p)]
    found = [(p.name if p.is_dir() else p.stem, p) for p in paths]
    ids = list(dict.fromkeys(i for i, _ in found))
    if unknown := [i for i in specific if i not in ids]:
        raise ValueError(f"{folder} has no {', '.join(unknown)}; it has {', '.join(ids) or 'no sources'}")
    if not found:
        raise ValueError(f"{folder} holds neither pictures nor clips nor folders of pictures")
    return [(i, p) for i, p in found if not specific or i in specific]


def build_fleet(
    ctx: RunContext,
    sources: Sequence[tuple[str, Path]],
    build: Build,
    each: Callable[[FleetItem], None] | None = None,
) -> FleetReport:
    """Build every (avatar id, source); what is there with the same content is kept.

    Sources that would have one id are errors of their own. Memory does not grow with the number of items. A source
    that cannot be built is its own FleetItem and the next one follows; only a cancel ends the run, and what is done by
    then stays. `each` is called after every item, and `ctx.tick` counts them.
    """
    done = []
    for item in _items(ctx, sources, build):
        done.append(item)
        ctx.tick(len(done), len(sources))
        if each:
            each(item)
    return FleetReport(tuple(done))


def _items(ctx: RunContext, sources: Sequence[tuple[str, Path]], build: Build) -> Iterator[FleetItem]:
    names = Counter(avatar_id.casefold() for avatar_id, _ in sources)
    for avatar_id, path in sources:
        ctx.check_cancelled()
        own, began = ctx.nested(), time.perf_counter()
        try:
            if names[avatar_id.casefold()] > 1:
                raise ValueError(f"another source would be avatar {avatar_id!r} as well; rename one")
            _, new = build(own, avatar_id, path)
            state, error = (BUILT if new else KEPT), ""
        except (ValueError, OSError, RuntimeError, MemoryError) as e:
            state, error = FAILED, str(e) or type(e).__name__
        seconds = time.perf_counter() - began
        yield FleetItem(avatar_id, path.name, state, seconds, error, tuple(own.report.warnings))


def _is_source(path: Path) -> bool:
    if path.is_dir():
        return any(p.suffix.lower() in IMAGE_SUFFIXES for p in path.iterdir() if not p.name.startswith("."))
    return path.suffix.lower() in SOURCE_SUFFIXES
