"""What both engines do to turn a source into a packet: the plan, the content key, the frames, the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..core.faces import FaceChoice
from ..core.frames import FrameStream, RunContext
from ..core.images import cover_box
from ..core.loop import AUTO_CYCLES
from ..core.packet import AvatarInfo, AvatarPacket, PacketDraft, PacketError, open_packet
from ..core.report import FrameList
from ..core.timeline import fps_text
from .names import AUTO_PREFIX, check_new_id, demo_for, demo_of
from .source import Source, open_source

Box = tuple[int, int, int, int]

BATCH = 8
MAX_FRAMES = 1500
DEFAULT_MAX_FRAMES = 50
"""Two seconds at 25 fps."""
_ENGINE_NAMES = {"musetalk": "MuseTalk", "ditto": "Ditto"}
MISSING = ("passthrough", "hold", "error")
"""What may happen to frames without a face."""


@dataclass(frozen=True)
class SourcePlan:
    """How to read a source. None means: the source's own.

    size: width, height the pictures are scaled to fill. max_frames: 0 for all. boxes: one for all frames or one (or
    None) a frame, x1, y1, x2, y2 in pixels of the source's own pictures, instead of detection. face: which one, when
    there are several.
    """

    fps: Fraction | None = None
    size: tuple[int, int] | None = None
    max_frames: int = DEFAULT_MAX_FRAMES
    cycle: str = "auto"
    boxes: tuple[Box | None, ...] | None = None
    face: FaceChoice = FaceChoice()

    def __post_init__(self) -> None:
        if self.cycle not in AUTO_CYCLES:
            raise ValueError(f"cycle {self.cycle!r} is unknown; use one of {', '.join(AUTO_CYCLES)}")

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        """What transparent parts are laid on."""
        return (0, 0, 0)

    def open(self, path: Path) -> Source:
        """Open a picture, a folder of pictures or a clip by this plan. ValueError names what is wrong with it."""
        limit = 1 if self.cycle == "still" else self.max_frames
        return open_source(path, self.fps, self.size, limit, self.background_rgb)

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what of plan and source decides what is baked, for `content_key`."""
        return {
            "source": source.sha256,
            "fps": fps_text(source.fps),
            "frames": source.stream.info.n_frames,
            "size": self.size,
            "cycle": self.cycle,
            "boxes": self.boxes,
            "face": None if self.boxes else [self.face.kind, self.face.index, self.face.point],
        }

    def scaled_boxes(self, source: Source) -> list[Box | None]:
        """Return `boxes` in pixels of the scaled pictures."""
        info = source.stream.info
        return [b if b is None else cover_box(b, source.size, (info.width, info.height)) for b in self.boxes]

    def scaled_face(self, source: Source) -> FaceChoice:
        """Return `face` with its point in pixels of the scaled pictures."""
        if self.face.point is None:
            return self.face
        x, y = (round(v) for v in self.face.point)
        info = source.stream.info
        x, y, _, _ = cover_box((x, y, x + 1, y + 1), source.size, (info.width, info.height))
        return replace(self.face, point=(float(x), float(y)))


def content_key(facts: Mapping[str, Any]) -> str:
    """Return 64 hex digits that name the packet built from `facts`: equal keys, equal packets."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def build_once(
    ctx: RunContext,
    source: Source,
    key: str,
    root: Path,
    avatar_id: str | None,
    rebuild: bool,
    build: Callable[[str, dict], AvatarPacket],
) -> tuple[AvatarPacket, bool]:
    """Return the packet of the content `key` in `root`, and whether it was built now: one of the same content is kept.

    Args:
        avatar_id: name of the avatar; None names it by its content ("auto-..."), the just-in-time build.
        rebuild: build even if it is there.
        build: avatar id, record of the source -> packet.
    """
    avatar_id = check_new_id(avatar_id) if avatar_id else f"{AUTO_PREFIX}{key[:16]}"
    if not rebuild and (packet := _built(root / avatar_id, key)):
        ctx.report.fact("avatar", f"{packet.path}: already built from the same content")
        return packet, False
    for note in source.notes:
        ctx.warn(note)
    return build(avatar_id, {"name": source.name, "sha256": source.sha256, "key": key}), True


def _built(path: Path, key: str) -> AvatarPacket | None:
    try:
        packet = open_packet(path)
    except PacketError:
        return None
    return packet if packet.info.source.get("key") == key else None


def check_engine(avatar: AvatarPacket, engine: str) -> None:
    """Raise ValueError unless the packet is one of `engine`; says which avatar to load instead, where there is one."""
    if avatar.info.engine == engine:
        return
    own, wanted = (_ENGINE_NAMES[name] for name in (avatar.info.engine, engine))
    todo = "build one from its picture or clip with this model"
    if demo_of(avatar.info.id):
        todo = f"load {demo_for(avatar.info.id, engine)!r} instead"
    raise ValueError(f"avatar {avatar.info.id!r} is for {own}, this model is {wanted}; {todo}")


def check_length(stream: FrameStream) -> None:
    """Raise ValueError unless an avatar may have as many frames as `stream`."""
    if not 1 <= (stream.info.n_frames or 0) <= MAX_FRAMES:
        raise ValueError(f"{stream.info.n_frames} frames; an avatar has 1..{MAX_FRAMES}, give a shorter clip")


def fill_frames(ctx: RunContext, stream: FrameStream, frames: np.ndarray, draft: PacketDraft) -> str:
    """Copy the stream into `frames`, the draft's, as it is decoded; return the SHA-256 of the pixels."""
    digest = hashlib.sha256()
    for chunk in stream.chunks(ctx, BATCH):
        pixels = chunk.frames.cpu().numpy()
        frames[chunk.frame_start : chunk.frame_start + chunk.num_frames] = pixels
        digest.update(pixels)
        draft.settle()
    return digest.hexdigest()


def speaking(ctx: RunContext, found: Sequence[bool], missing: str) -> list[bool]:
    """Return which frames are to speak, by what `missing` (MISSING) says of those without a face; report these.

    ValueError where they are an error.
    """
    if all(found):
        return list(found)
    without = FrameList()
    without.add(0, [not f for f in found])
    if missing == "error":
        raise ValueError(f"frames {without} have no face; cut them, or let missing be passthrough or hold")
    done = "shown as they are" if missing == "passthrough" else "the nearest box is held"
    ctx.warn(f"no face in frames {without}: {done}")
    return [True] * len(found) if missing == "hold" else list(found)


def describe_info(info: AvatarInfo) -> str:
    """Return "50 frames of 512x512 at 25 fps, loop"."""
    width, height = info.size
    return f"{info.n_frames} frames of {width}x{height} at {fps_text(info.fps)} fps, {info.cycle}"


def plain_config(config: object) -> dict:
    """Return a model's config as packet.json keeps it."""
    # Through JSON, so that what is compared later equals what is read back.
    return json.loads(json.dumps(asdict(config) if is_dataclass(config) else config))
