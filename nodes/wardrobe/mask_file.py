"""The `.wmask` file: a binary mask of a clip, one bit a pixel, found by what it was made of.

A line of JSON (format, version, key, shape), the byte length of every frame as uint32, then the frames, each packed to bits
and deflated at level 1: 3.0 KB a frame, 0.5 MB for 175 frames of 1080x1920 against 1.35 GiB as float32. Written beside its
place and renamed, so that there is a whole file or none. A gray FFV1 `.mkv` of the same mask is for people to look at.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
import torch

from ..core.frames import FrameStream, RunContext
from ..core.media_open import open_media
from .checks import check_images, check_mask, problem, spans
from .limits import CACHE_VERSION, CHUNK, THRESHOLD

NODE = "Wardrobe Mask Cache"
SUFFIX = ".wmask"
_FORMAT = "talkinghead-wmask"
_HEAD_LIMIT = 4096
_DEFLATE_MOST = 1032
"""Bytes that one byte of a deflated stream can stand for at most."""
_FOLDER_BYTES = 200
_FOLDER_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
MAX_PIXELS = 1 << 33
"""Pixels of a clip that a file may claim to have: 4000 frames of 1080x1920."""


class MaskFileError(ValueError):
    """A file that is not a whole mask of this version; the message says which and why."""


def folder_below(root: Path, name: str) -> Path:
    """Return the folder `name` ("a" or "a/b") below `root`, which is nowhere else on any system.

    ValueError for what leads out of `root`, also by a link, and for names that Windows cannot make.
    """
    wanted = "a folder below ComfyUI's output folder such as wardrobe_masks or masks/anna"
    path = PurePosixPath(name.strip().replace("\\", "/"))
    for part in path.parts:
        if re.search(r'[<>:"|?*/\x00-\x1f\ud800-\udfff]', part) or part.endswith((".", " ")):
            raise problem(NODE, "subfolder", repr(name), wanted)
        if _FOLDER_NAMES.fullmatch(part) or len(part.encode()) > _FOLDER_BYTES:
            raise problem(NODE, "subfolder", repr(name), wanted)
    root = root.resolve()
    folder = (root / path).resolve()
    if folder == root or not folder.is_relative_to(root):
        raise problem(NODE, "subfolder", repr(name), wanted)
    return folder


def content_key(images: torch.Tensor, key: str, ctx: RunContext | None = None) -> str:
    """Return the name of a mask: blake2b over shape, all frames as 8 bits, `key` and the format's version.

    9 ms a frame on 736x960. One bit of a level in one pixel of one frame makes another name.
    """
    images = check_images(NODE, "images", images)
    # A widget may hold anything that JSON can, half a surrogate pair too.
    text = f"{CACHE_VERSION} {tuple(images.shape)} {key}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=20)
    for span in spans(len(images), ctx):
        for frame in images[span]:
            eight = frame.cpu().float().nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
            digest.update(eight.contiguous().numpy())
    return digest.hexdigest()


def write_mask(path: Path, mask: torch.Tensor, key: str, ctx: RunContext | None = None) -> None:
    """Write a MASK (T,H,W), cut at 0.5, to `path`; its folder is made. Nothing is left behind if that fails."""
    mask = check_mask(NODE, "mask", mask)
    packed = []
    for span in spans(len(mask), ctx):
        bits = np.packbits(
            (mask[span] >= THRESHOLD).cpu().numpy().reshape(span.stop - span.start, -1), axis=1
        )
        packed += [zlib.compress(row.tobytes(), 1) for row in bits]
    head = {"format": _FORMAT, "version": CACHE_VERSION, "key": key, "shape": list(mask.shape)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{uuid.uuid4().hex}{SUFFIX}")
    try:
        with part.open("wb") as f:
            f.write(json.dumps(head).encode() + b"\n")
            f.write(np.array([len(p) for p in packed], "<u4").tobytes())
            f.writelines(packed)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_mask(path: Path, key: str, size: tuple[int, int, int] | None = None) -> torch.Tensor:
    """Return the MASK float32 (T,H,W) of 0 and 1 in a file.

    Args:
        key: the name it must have been written for.
        size: (T, H, W) it must have.

    MaskFileError for a foreign, truncated or damaged file, another version, key or size. Nothing is reserved for what a
    head claims before the file is long enough for it.
    """
    with path.open("rb") as f:
        n, height, width = _read_head(f, path, key, size)
        row = (height * width + 7) // 8
        lengths = _read_index(f, path, n, row)
        mask = torch.empty(n, height, width)
        for t, length in enumerate(lengths):
            frame = _unpack(f.read(length), row, height * width, path, t)
            mask[t] = torch.from_numpy(frame.reshape(height, width))
    return mask


def _read_index(f: BinaryIO, path: Path, n: int, row: int) -> list[int]:
    """Return the byte length of every frame, `row` bytes each when unpacked, after comparing them with the file's."""
    start, end = f.tell(), os.fstat(f.fileno()).st_size
    if end - start < 4 * n:
        raise MaskFileError(f"{path.name} ends in its index")
    lengths = np.frombuffer(f.read(4 * n), "<u4").astype(np.int64)
    ends = start + 4 * n + np.cumsum(lengths)
    if ends[-1] > end:
        raise MaskFileError(f"{path.name} ends in frame {int(np.argmax(ends > end))} of {n}")
    if ends[-1] < end:
        raise MaskFileError(f"{path.name} is longer than its index says")
    small = np.flatnonzero(lengths * _DEFLATE_MOST < row)
    if small.size:
        t = int(small[0])
        raise MaskFileError(f"{path.name}: frame {t} is damaged ({lengths[t]} bytes cannot hold {row})")
    return [int(length) for length in lengths]


def _read_head(f: BinaryIO, path: Path, key: str, size: tuple[int, int, int] | None) -> tuple[int, int, int]:
    line = f.readline(_HEAD_LIMIT)
    try:
        head = json.loads(line)
        kind, version, shape = head["format"], head["version"], tuple(int(v) for v in head["shape"])
        pixels = math.prod(shape)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as e:
        raise MaskFileError(f"{path.name} is not a {SUFFIX} file") from e
    if kind != _FORMAT or version != CACHE_VERSION:
        raise MaskFileError(
            f"{path.name} is {kind} version {version}; this one reads {_FORMAT} {CACHE_VERSION}"
        )
    if len(shape) != 3 or min(shape) < 1 or pixels > MAX_PIXELS:
        raise MaskFileError(f"{path.name} claims to hold {shape}")
    if head.get("key") != key:
        raise MaskFileError(f"{path.name} was written for another clip")
    if size is not None and shape != tuple(size):
        raise MaskFileError(f"{path.name} holds {shape}, not {tuple(size)}")
    return shape


def _unpack(data: bytes, row: int, pixels: int, path: Path, t: int) -> np.ndarray:
    unzip = zlib.decompressobj()
    try:
        raw = unzip.decompress(data, row + 1)
    except zlib.error as e:
        raise MaskFileError(f"{path.name}: frame {t} is damaged ({e})") from e
    if len(raw) != row or not unzip.eof or unzip.unused_data:
        raise MaskFileError(f"{path.name}: frame {t} is damaged ({len(raw)} bytes, {row} are expected)")
    return np.unpackbits(np.frombuffer(raw, np.uint8), count=pixels).astype(np.float32)


def write_mask_video(path: Path, mask: torch.Tensor, fps: int = 24, ctx: RunContext | None = None) -> None:
    """Write a MASK (T,H,W), cut at 0.5, as gray FFV1 in Matroska: lossless, and any player shows it."""
    mask = check_mask(NODE, "mask", mask)
    grays = (
        frame
        for span in spans(len(mask), ctx)
        for frame in (mask[span] >= THRESHOLD).cpu().numpy().astype(np.uint8) * 255
    )
    _write_ffv1(path, grays, (mask.shape[2], mask.shape[1]), fps, "gray")


def write_lossless(path: Path, stream: FrameStream, ctx: RunContext) -> None:
    """Write a stream of RGB frames as FFV1 in Matroska without sound: its bytes, as they are."""

    def frames() -> Iterator[np.ndarray]:
        done = 0
        for chunk in stream.chunks(ctx, CHUNK):
            pixels = chunk.frames.cpu().contiguous().numpy()
            yield from pixels
            done += len(pixels)
            ctx.tick(done, stream.info.n_frames)

    _write_ffv1(path, frames(), (stream.info.width, stream.info.height), stream.info.fps, "rgb24")


def _write_ffv1(path: Path, frames: Iterator[np.ndarray], size: tuple[int, int], fps, layout: str) -> None:
    """Write uint8 frames, (H,W) for the layout gray or (H,W,3) for rgb24, to a whole file or none."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{uuid.uuid4().hex}.mkv")
    try:
        with av.open(str(part), "w", format="matroska") as box:
            stream = box.add_stream("ffv1", rate=fps)
            stream.width, stream.height = size
            stream.pix_fmt = "gray" if layout == "gray" else "bgr0"
            for frame in frames:
                box.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format=layout)))
            box.mux(stream.encode())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_mask_video(
    path: Path, size: tuple[int, int, int], threshold: float = THRESHOLD, ctx: RunContext | None = None
) -> torch.Tensor:
    """Return the MASK float32 (T,H,W) of 0 and 1 of a video's luma at or above `threshold`.

    size: (T, H, W) it must have. FFV1 and other lossless ones come back as they were; H.264 is lossy, its threshold decides
    about smeared edges. ValueError for another length or size.
    """
    n, height, width = size
    mask, t = torch.empty(n, height, width), 0
    for gray in _gray_frames(path):
        if ctx:
            ctx.check_cancelled()
        if gray.shape != (height, width):
            got = f"{gray.shape[1]}x{gray.shape[0]} in {path.name}"
            raise problem(NODE, "file", got, f"{width}x{height} as images")
        if t < n:
            mask[t] = torch.from_numpy(gray >= threshold * 255)
        t += 1
    if t != n:
        raise problem(NODE, "file", f"{t} frames in {path.name}", f"{n} as images")
    return mask


def _gray_frames(path: Path) -> Iterator[np.ndarray]:
    with open_media(path) as box:
        if not box.streams.video:
            raise problem(NODE, "file", f"{path.name}, which has no pictures", "a video of the mask")
        for frame in box.decode(video=0):
            # Full range: a limited-range white is 235, which must count as 1.
            yield frame.reformat(format="gray", dst_color_range="JPEG").to_ndarray()
