"""Read a picture file as upright uint8 RGB, whatever its depth, alpha or path."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class ImageFacts:
    """size: (width, height) of the upright picture. has_alpha: the file can hold transparent pixels."""

    size: tuple[int, int]
    has_alpha: bool


def image_facts(path: str | os.PathLike) -> ImageFacts:
    """Return size and kind of a picture file, from its header where that is quick (PNG, JPEG), else decoded.

    A header may be whole and the rest damaged: only `read_image` knows. ValueError: no such file, no picture.
    """
    source = Path(path)
    data = _read(source)
    facts = _header_facts(data)
    if facts is None:
        height, width, *channels = _decode(source, data).shape
        facts = (width, height), channels == [4]
    size, has_alpha = facts
    return ImageFacts(size[::-1] if exif_orientation(data) >= 5 else size, has_alpha)


def read_image(path: str | os.PathLike, background: tuple[int, int, int] = (0, 0, 0)) -> np.ndarray:
    """Return uint8 (H,W,3) RGB: EXIF orientation applied, alpha flattened on `background` (RGB, 0..255),
    gray repeated, 16-bit and float pictures scaled to 8 bits.

    The bytes are read by Python, so that paths in any script work. ValueError: no such file, no picture.
    """
    source = Path(path)
    data = _read(source)
    pixels = _decode(source, data)
    if pixels.dtype == np.uint16:
        pixels = np.rint(pixels / 257.0).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        pixels = np.rint(np.nan_to_num(pixels).clip(0, 1) * 255).astype(np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:] / np.float32(255)
        under = np.array(background[::-1], np.float32)
        pixels = np.rint(pixels[..., :3] * alpha + under * (1 - alpha)).astype(np.uint8)
    rgb = pixels[..., ::-1] if pixels.shape[2] == 3 else np.repeat(pixels[..., :1], 3, axis=2)
    return np.ascontiguousarray(_turned(rgb, exif_orientation(data)))


def _read(source: Path) -> bytes:
    if not source.is_file():
        raise ValueError(f"no file {source}; check the path")
    return source.read_bytes()


def _decode(source: Path, data: bytes) -> np.ndarray:
    import cv2

    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    except cv2.error as e:  # a header of more pixels than OpenCV takes
        raise ValueError(f"{source.name} cannot be read: {e.err}; give a smaller png, jpg or webp") from None
    if pixels is None:
        raise ValueError(
            f"{source.name} ({len(data)} bytes) is not a picture OpenCV reads; give png, jpg or webp"
        )
    return pixels


def _header_facts(data: bytes) -> tuple[tuple[int, int], bool] | None:
    """Return ((width, height) as stored, has alpha) of a PNG or JPEG."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 26:
        alpha = data[25] in (4, 6) or _chunk(data, 8, ">", b"tRNS", trailer=4, padded=False) is not None
        return struct.unpack_from(">II", data, 16), alpha
    if data[:2] == b"\xff\xd8":
        at = 2
        while at + 9 <= len(data) and data[at] == 0xFF:
            mark, size = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
            if 0xC0 <= mark <= 0xCF and mark not in (0xC4, 0xC8, 0xCC):  # a frame header, of any coding
                height, width = struct.unpack_from(">HH", data, at + 5)
                return ((width, height), False) if height else None
            at += 2 + size
    return None


def exif_orientation(data: bytes) -> int:
    """Return the EXIF orientation 1..8 of a JPEG, PNG or WebP file; 1 if it says nothing usable.

    TIFF files are left out: OpenCV turns them itself.
    """
    try:
        tiff = _exif_block(data)
        if tiff is None:
            return 1
        order = {b"II": "<", b"MM": ">"}[tiff[:2]]
        (at,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, at)
        for i in range(count):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, at + 2 + 12 * i)
            if tag == 0x0112:
                return value if 1 <= value <= 8 else 1
    except (struct.error, KeyError):
        return 1
    return 1


def _exif_block(data: bytes) -> bytes | None:
    """Return the TIFF structure inside the file's EXIF segment or chunk."""
    if data[:2] == b"\xff\xd8":
        at = 2
        while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
            (size,) = struct.unpack_from(">H", data, at + 2)
            if data[at + 1] == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
                return data[at + 10 : at + 2 + size]
            at += 2 + size
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        return _chunk(data, 8, ">", b"eXIf", trailer=4, padded=False)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        block = _chunk(data, 12, "<", b"EXIF", trailer=0, padded=True)
        return block[6:] if block and block[:6] == b"Exif\0\0" else block
    return None


def _chunk(data: bytes, at: int, order: str, name: bytes, trailer: int, padded: bool) -> bytes | None:
    """Return a chunk's content: PNG has size, name, content, checksum; RIFF has name, size, content, padding."""
    while at + 8 <= len(data):
        head = data[at : at + 4], data[at + 4 : at + 8]
        kind, size = (head[0], head[1]) if padded else (head[1], head[0])
        (length,) = struct.unpack(order + "I", size)
        if kind == name:
            return data[at + 8 : at + 8 + length]
        at += 8 + length + trailer + (length % 2 if padded else 0)
    return None


def _turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation in (2, 4, 5, 7):  # mirrored ones: flip, then turn as 1, 3, 8, 6
        pixels = pixels[:, ::-1]
    turns = {3: 2, 4: 2, 6: 3, 7: 3, 5: 1, 8: 1}.get(orientation, 0)
    return np.rot90(pixels, turns)
