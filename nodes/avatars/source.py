"""Pictures for an avatar out of a file or folder: a still, a folder of pictures, the first seconds of a clip.

A source is opened, not read: its pictures come as a FrameStream, uint8 RGB (n,H,W,3), so that memory does not grow
with the clip. Orientation, rate and colours are those of core.image_read and core.video_read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from ..core.frames import FrameInfo, FrameStream, RunContext, TensorStream
from ..core.image_read import image_facts, read_image
from ..core.images import resized, rgb_frames
from ..core.media_open import open_media
from ..core.packet import file_sha256
from ..core.video_read import VideoStream

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".webm", ".mkv", ".avi", ".mpg", ".mpeg", ".ts", ".gif", ".apng")
SOURCE_SUFFIXES = IMAGE_SUFFIXES + VIDEO_SUFFIXES
"""What a folder is searched for; `open_source` itself takes any file FFmpeg reads."""
DEFAULT_MAX_FRAMES = 50
"""Two seconds at 25 fps: enough for a loop, 39 MB of 512x512 frames."""
MOST_FRAMES = 1500
DEFAULT_FPS = Fraction(25)
COLOURS = {"black": (0, 0, 0), "white": (255, 255, 255), "gray": (128, 128, 128), "green": (0, 255, 0)}
"""green is the pure one that keyers take, not CSS's."""
_ALPHA_FORMATS = re.compile(r"yuva|rgba|bgra|argb|abgr|gbrap|ya\d|pal8")


@dataclass(frozen=True)
class Source:
    """A source that is open. stream: its pictures at `fps`, scaled if that was asked for. size: (width, height) of the
    file's own upright pictures. kind: image, folder or video. notes: what the user should know."""

    stream: FrameStream
    fps: Fraction
    size: tuple[int, int]
    kind: str
    name: str
    sha256: str
    has_alpha: bool = False
    notes: tuple[str, ...] = ()

    @property
    def record(self) -> dict:
        return {"name": self.name, "sha256": self.sha256}


@dataclass(frozen=True)
class Pictures:
    """A source in memory: frames uint8 (N,H,W,3) RGB at `fps`, the rest as in Source."""

    frames: np.ndarray
    fps: Fraction
    size: tuple[int, int]
    name: str
    sha256: str

    @property
    def record(self) -> dict:
        return {"name": self.name, "sha256": self.sha256}


class ImageStream(FrameStream):
    """Picture files of one size as frames, read when they are pulled; alpha is laid on `background`."""

    def __init__(
        self,
        paths: Sequence[Path],
        size: tuple[int, int],
        fps: Fraction,
        background: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self._paths, self._background = tuple(paths), background
        self.stage = f"read {paths[0].name}" if len(paths) == 1 else f"read folder {paths[0].parent.name}"
        self.info = FrameInfo(*size, fps, len(paths))

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, None]]:
        for start in range(0, len(self._paths), n):
            pictures = []
            for path in self._paths[start : start + n]:
                picture = read_image(path, self._background)
                _check_size(path, picture.shape[1::-1], (self.info.width, self.info.height), self._paths[0])
                pictures.append(picture)
            yield torch.from_numpy(np.stack(pictures)), None


def open_source(
    path: str | os.PathLike,
    fps: Fraction | None = None,
    size: tuple[int, int] | None = None,
    max_frames: int = DEFAULT_MAX_FRAMES,
    background: tuple[int, int, int] = (0, 0, 0),
) -> Source:
    """Open a picture, a folder of pictures in natural order (2 before 10), or a video.

    Args:
        path: file or folder; names in any script, suffixes in any case. Of an animated PNG or WebP the first
            picture is taken, a GIF is a video.
        fps: rate of the stream; default the video's own, 25 for pictures.
        size: width, height to fill by scaling, the middle kept; default the pictures' own.
        max_frames: the first so many are used; 0 means all, up to 1500.
        background: RGB 0..255 that transparent parts are laid on.

    Raises ValueError: no such file, nothing readable in it, pictures of different sizes.
    """
    path = Path(path)
    if max_frames < 0:
        raise ValueError(f"max_frames {max_frames} is below 0; give 0 for all, or how many frames to use")
    limit = min(max_frames or MOST_FRAMES, MOST_FRAMES)
    if path.is_dir():
        source = _open_folder(path, fps or DEFAULT_FPS, limit, background)
    elif not path.is_file():
        raise ValueError(f"no file or folder {path}; check the path")
    elif path.suffix.lower() in IMAGE_SUFFIXES:
        source = _open_image(path, fps or DEFAULT_FPS, background)
    else:
        source = _open_video(path, fps, limit)
    return replace(source, stream=resized(source.stream, *size)) if size and size != source.size else source


def source_of_images(
    image: torch.Tensor, fps: Fraction, background: tuple[int, int, int] = (0, 0, 0)
) -> Source:
    """Return an IMAGE batch, float (B,H,W,1, 3 or 4) in 0..1, as a source named "images"; alpha is laid on `background`.

    ValueError for other shapes and for an empty batch.
    """
    frames = rgb_frames(image, background).cpu().contiguous()
    size = (frames.shape[2], frames.shape[1])
    digest = hashlib.sha256(f"{tuple(frames.shape)}".encode())
    digest.update(frames.numpy())
    stream = TensorStream(frames, fps)
    return Source(stream, fps, size, "images", "images", digest.hexdigest(), image.shape[3] == 4)


def read_source(
    path: Path,
    fps: Fraction | None = None,
    size: tuple[int, int] | None = None,
    max_frames: int = DEFAULT_MAX_FRAMES,
    ctx: RunContext | None = None,
) -> Pictures:
    """Open a source (see `open_source`) and read all of it into memory: for small ones."""
    source = open_source(path, fps, size, max_frames)
    frames = np.concatenate([c.frames.numpy() for c in source.stream.chunks(ctx or RunContext(), 8)])
    return Pictures(frames, source.fps, source.size, source.name, source.sha256)


def parse_colour(text: str) -> tuple[int, int, int]:
    """Return RGB 0..255 from "#rrggbb", "r,g,b" or a name: black, white, gray, green. ValueError otherwise."""
    word = text.strip().lower()
    if word in COLOURS:
        return COLOURS[word]
    if re.fullmatch(r"#[0-9a-f]{6}", word):
        return int(word[1:3], 16), int(word[3:5], 16), int(word[5:7], 16)
    if match := re.fullmatch(r"([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})", word):
        red, green, blue = (int(v) for v in match.groups())
        if max(red, green, blue) <= 255:
            return red, green, blue
    raise ValueError(
        f"colour {text[:40]!r} is none; write #rrggbb, r,g,b with 0..255 each, or one of {', '.join(COLOURS)}"
    )


def natural_key(name: str) -> tuple:
    """Return a sort key by which picture2 comes before picture10, whatever the case."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return ([int(p) if i % 2 else p for i, p in enumerate(parts)], name)


def _open_image(path: Path, fps: Fraction, background: tuple[int, int, int]) -> Source:
    # Decoded once here: a damaged picture is named before anything is built.
    height, width = read_image(path, background).shape[:2]
    alpha = image_facts(path).has_alpha
    stream = ImageStream([path], (width, height), fps, background)
    return Source(stream, fps, (width, height), "image", path.name, file_sha256(path), alpha)


def _open_folder(path: Path, fps: Fraction, limit: int, background: tuple[int, int, int]) -> Source:
    entries = sorted(
        (p for p in path.iterdir() if not p.name.startswith(".")), key=lambda p: natural_key(p.name)
    )
    pictures = [p for p in entries if p.is_file() and p.suffix.lower() in IMAGE_SUFFIXES]
    others = [p.name for p in entries if p not in set(pictures)]
    if not pictures:
        there = f"; it holds {_some(others)}" if others else ""
        raise ValueError(
            f"no picture in folder {path}{there}; its files must end in {', '.join(IMAGE_SUFFIXES)}"
        )
    notes = [f"left out of {path.name}, not pictures: {_some(others)}"] if others else []
    if len(pictures) > limit:
        notes.append(f"the first {limit} of the {len(pictures)} pictures in {path.name} are used")
    used, digest, alpha = pictures[:limit], hashlib.sha256(), False
    first = None
    for picture in used:
        facts = image_facts(picture)
        first = first or facts
        _check_size(picture, facts.size, first.size, used[0])
        alpha = alpha or facts.has_alpha
        name = os.fsencode(picture.name)
        digest.update(len(name).to_bytes(4, "little") + name + bytes.fromhex(file_sha256(picture)))
    stream = ImageStream(used, first.size, fps, background)
    return Source(stream, fps, first.size, "folder", path.name, digest.hexdigest(), alpha, tuple(notes))


def _open_video(path: Path, fps: Fraction | None, limit: int) -> Source:
    stream = VideoStream(path, fps, limit=limit)
    info, probe, notes = stream.info, stream.probe, list(stream.probe.notes)
    total = probe.frames_at(info.fps)
    if total > info.n_frames:
        notes.append(f"the first {info.n_frames} of {path.name}'s {total} frames are used")
    alpha = bool(_ALPHA_FORMATS.match(probe.pix_fmt)) and _is_see_through(path)
    if alpha:
        notes.append(
            f"{path.name} has transparency, which a clip loses: use a folder of pictures to keep a background"
        )
    return Source(
        stream, info.fps, (info.width, info.height), "video", path.name, file_sha256(path), alpha, tuple(notes)
    )  # fmt: skip


def _is_see_through(path: Path) -> bool:
    """Return whether the first frame of a clip has a pixel that is not opaque: every GIF has a format with alpha."""
    with open_media(path) as box:
        for frame in box.decode(video=0):
            return bool((frame.to_ndarray(format="rgba")[..., 3] < 255).any())
    return False


def _check_size(path: Path, size: Sequence[int], wanted: tuple[int, int], first: Path) -> None:
    if tuple(size) != wanted:
        raise ValueError(
            f"{path.name} is {size[0]}x{size[1]}, {first.name} is {wanted[0]}x{wanted[1]}; "
            "the pictures of a folder must have one size"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
