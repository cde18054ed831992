"""Read a picture file as upright uint8 RGB, whatever its depth, alpha or path."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np


def read_image(path: str | os.PathLike, background: tuple[int, int, int] = (0, 0, 0)) -> np.ndarray:
    """Return uint8 (H,W,3) RGB: EXIF orientation applied, alpha flattened on `background` (RGB, 0..255),
    gray repeated, 16-bit and float pictures scaled to 8 bits.

    The bytes are read by Python, so that paths in any script work. ValueError: no such file, no picture.
    """
    import cv2

    source = Path(path)
    if not source.is_file():
        raise ValueError(f"no file {source}; check the path")
    data = source.read_bytes()
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    except cv2.error as e:  # a header of more pixels than OpenCV takes
        raise ValueError(f"{source.name} cannot be read: {e.err}; give a smaller png, jpg or webp") from None
    if pixels is None:
        raise ValueError(
            f"{source.name} ({len(data)} bytes) is not a picture OpenCV reads; give png, jpg or webp"
        )
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
