"""Frames in the shapes other software uses, brought to uint8 RGB (n,H,W,3) and back; sizes and fits."""

from __future__ import annotations

import re

import numpy as np
import torch

from .frames import FrameChunk, FrameStream, MappedStream, RunContext


def rgb_frames(image: torch.Tensor, background: tuple[int, int, int] = (0, 0, 0)) -> torch.Tensor:
    """Return an IMAGE batch, float (B,H,W,C) in 0..1, as uint8 (B,H,W,3); values outside are clipped.

    One channel is repeated; a fourth (alpha) flattens the picture on `background` (RGB 0..255). ValueError for other
    shapes and for an empty batch.
    """
    if image.ndim != 4 or image.shape[3] not in (1, 3, 4) or not image.numel():
        raise ValueError(f"an IMAGE is (batch, height, width, 1, 3 or 4), this one is {tuple(image.shape)}")
    if not image.is_floating_point():
        raise ValueError(f"an IMAGE is float in 0..1, this one is {image.dtype}; divide it by 255")
    image = image.float().nan_to_num()
    if image.shape[3] == 4:
        alpha = image[..., 3:].clamp(0, 1)
        under = torch.tensor(background, dtype=image.dtype, device=image.device) / 255
        image = image[..., :3] * alpha + under * (1 - alpha)
    if image.shape[3] == 1:
        image = image.expand(-1, -1, -1, 3)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)


def image_notes(image: torch.Tensor) -> list[str]:
    """Return what `rgb_frames` leaves out of an IMAGE batch, as lines for the report."""
    if image.ndim == 4 and image.shape[3] == 4 and bool((image[..., 3] < 1).any()):
        return ["the images have transparency; it is laid on black"]
    return []


def image_batch(frames: torch.Tensor) -> torch.Tensor:
    """Return uint8 (n,H,W,3) frames as a float32 IMAGE in 0..1 on the CPU."""
    return frames.cpu().float().div_(255)


def parse_size(text: str) -> tuple[int, int]:
    """Return (width, height) from "WxH", each 16..8192. ValueError otherwise."""
    match = re.fullmatch(r"\s*(\d+)\s*[xX*]\s*(\d+)\s*", text)
    if not match:
        raise ValueError(f"size {text!r} is not WIDTHxHEIGHT; write for example 512x512")
    width, height = int(match[1]), int(match[2])
    if not (16 <= width <= 8192 and 16 <= height <= 8192):
        raise ValueError(f"size {width}x{height} is outside 16x16..8192x8192")
    return width, height


def parse_box(text: str) -> tuple[int, int, int, int]:
    """Return (x1, y1, x2, y2) in pixels from "x1,y1,x2,y2". ValueError unless x1 < x2 and y1 < y2."""
    numbers = re.findall(r"-?\d+", text)
    if len(numbers) != 4 or re.sub(r"[-\d,;\s]", "", text):
        raise ValueError(f"box {text!r} is not x1,y1,x2,y2 in whole pixels; write for example 160,96,352,288")
    x1, y1, x2, y2 = (int(v) for v in numbers)
    if x1 >= x2 or y1 >= y2:
        raise ValueError(f"box {text!r} has no area: x1 must be below x2 and y1 below y2")
    return x1, y1, x2, y2


def mask_box(mask: torch.Tensor) -> tuple[int, int, int, int] | None:
    """Return the bounds of the pixels above 0.5 of a MASK (H,W) as x1,y1,x2,y2, or None if there are none."""
    on = mask > 0.5
    rows, columns = on.any(1).nonzero(), on.any(0).nonzero()
    if not len(rows):
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def cover_box(
    box: tuple[int, int, int, int], source: tuple[int, int], size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return where `box` (x1,y1,x2,y2 in a picture of `source` width, height) lies after `cover` to `size`."""
    (w, h), (width, height) = source, size
    if source == size:
        return box
    scale = max(width / w, height / h)
    left = (max(width, round(w * scale)) - width) // 2
    top = (max(height, round(h * scale)) - height) // 2
    x1, y1, x2, y2 = (round(v * scale) for v in box)
    return x1 - left, y1 - top, x2 - left, y2 - top


def cover(frame: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return `frame` (H,W,3) scaled to fill width x height, its middle kept: no bars, no stretching."""
    import cv2

    h, w = frame.shape[:2]
    if (w, h) == (width, height):
        return frame
    scale = max(width / w, height / h)
    scaled_w, scaled_h = max(width, round(w * scale)), max(height, round(h * scale))
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    scaled = cv2.resize(frame, (scaled_w, scaled_h), interpolation=how)
    left, top = (scaled_w - width) // 2, (scaled_h - height) // 2
    return scaled[top : top + height, left : left + width]


def resized(stream: FrameStream, width: int, height: int) -> FrameStream:
    """Return `stream` (RGB) with every frame scaled to fill width x height, its middle kept."""

    def resize(ctx: RunContext, chunk: FrameChunk) -> torch.Tensor:
        return torch.from_numpy(np.stack([cover(f, width, height) for f in chunk.frames.cpu().numpy()]))

    return MappedStream(stream, "Resize", resize, width=width, height=height)
