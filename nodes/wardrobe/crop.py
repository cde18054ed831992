"""The crop round the subject: one size for the whole clip, a multiple of what the model's tokens need.

Cropping comes before tracking and masking: a tracker's decoder grid is 288x288 cells whatever the video's size, so a
slit of 3 px that is lost at 1080x1920 survives inside a 640x896 crop.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch

from ..core.frames import RunContext
from .checks import check_choice, check_kind, check_mask, check_range, problem, spans
from .limits import (
    ALIGN_LIMIT,
    BAD_LENGTHS,
    CROP_MODES,
    FRAME_RULES,
    OVERFLOWS,
    PAD_FRACTION_LIMIT,
    PAD_LIMIT_PX,
    THRESHOLD,
)
from .plan import NODE, BoxRules, axis_size, even, kept_and_made, static_origin, tracked_origins
from .stitch import Full, Stitch, as_float, check_source, full_chunks, full_shape


@dataclass(frozen=True)
class Crop:
    """images (n,h,w,3) and mask (n,h,w) of the boxes; stitch: the way back; notes: warnings for the user."""

    images: torch.Tensor
    mask: torch.Tensor
    stitch: Stitch
    notes: tuple[str, ...]


def subject_crop(
    images: Full,
    mask: torch.Tensor,
    rules: BoxRules | None = None,
    mode: str = CROP_MODES[0],
    frame_rule: str = "none",
    on_bad_length: str = BAD_LENGTHS[0],
    wrap: bool = False,
    ctx: RunContext | None = None,
) -> Crop:
    """Cut the same number of pixels round the mask out of every frame.

    Args:
        images: the full frames, IMAGE (T,H,W,3) or a stream.
        mask: MASK (T,H,W) or of one frame; what is >= 0.5 in any frame used lies inside the boxes.
        mode: static, one box; tracked, a box that moves only where it is forced to.
        frame_rule, on_bad_length: lengths the model can take, and what to do with another one.
        wrap: a tracked box ends where it begins, for a loop.

    A subject at the edge gets a box shifted inside the picture. Only a box larger than the picture leaves it, with the
    edge's pixels repeated and the mask 0 there. ValueError for an empty mask, odd align, a bad length.
    """
    rules, ctx = rules or BoxRules(), ctx or RunContext()
    for name, value, options in (
        ("mode", mode, CROP_MODES),
        ("overflow", rules.overflow, OVERFLOWS),
        ("frame_rule", frame_rule, FRAME_RULES),
        ("on_bad_length", on_bad_length, BAD_LENGTHS),
    ):
        check_choice(NODE, name, value, options)
    check_range(NODE, "pad_fraction", rules.pad_fraction, 0, PAD_FRACTION_LIMIT)
    check_range(NODE, "pad_px", rules.pad_px, 0, PAD_LIMIT_PX)
    check_range(NODE, "align", rules.align, 2, ALIGN_LIMIT)
    if rules.align % 2:
        raise problem(NODE, "align", rules.align, "an even number: chroma has half the resolution")
    n, height, width = full_shape(NODE, "images", images)
    mask = check_mask(NODE, "mask", mask, n, (width, height))
    kept, made = kept_and_made(n, frame_rule, on_bad_length)
    found, digest = _extents(mask[:kept], ctx)
    if mode == "static":
        boxes, notes = _static_boxes(found, (width, height), rules)
    else:
        boxes, notes = _tracked_boxes(found, (width, height), rules, wrap)
    boxes = np.concatenate([boxes, np.repeat(boxes[-1:], made - kept, 0)])
    x, y, w, h = boxes.T
    padded = bool((x < 0).any() or (y < 0).any() or (x + w > width).any() or (y + h > height).any())
    stitch = Stitch((n, height, width), boxes, kept, rules.align, padded, digest)
    if made != n:
        notes.append(f"{n} frames: {kept} are used, the crop has {made} ({frame_rule})")
    if kept < n:
        notes.append(
            f"{_frames(kept, n - 1)} cut off (on_bad_length trim): the compositor leaves the old there"
        )
    cut = int(sum(_outside(mask[t], stitch, t) for t in range(kept))) if rules.overflow == "shrink" else 0
    if cut:
        notes.append(f"the box is smaller than the mask: {cut} px of it are cut off")
    return Crop(cut_images(images, stitch, ctx), cut_mask(mask, stitch), stitch, tuple(notes))


def same_crop(images: Full, mask: torch.Tensor, stitch: Stitch, ctx: RunContext | None = None) -> Crop:
    """Return what the boxes of another crop hold of these full frames, IMAGE (T,H,W,3) or a stream, and of this MASK.

    The mask may be empty. ValueError if either has not the size and length that was cropped.
    """
    check_source(NODE, "images", images, stitch)
    n, height, width = stitch.source
    mask = check_mask(NODE, "mask", mask, n, (width, height))
    return Crop(cut_images(images, stitch, ctx), cut_mask(mask, stitch), stitch, ())


def mask_in_crop(node: str, name: str, mask: torch.Tensor, stitch: Stitch) -> torch.Tensor:
    """Return a MASK (n,h,w) over the crop; one of the full frames' size and length, or one frame of it, is cut here.

    ValueError for any other size or length.
    """
    check_kind(node, "stitch", stitch, Stitch, "what Wardrobe Subject Crop gives")
    n, height, width = stitch.source
    shape = tuple(getattr(mask, "shape", ()))[-2:]
    if shape == (height, width) != stitch.size[::-1]:
        return cut_mask(check_mask(node, name, mask, n, (width, height), "what was cropped"), stitch)
    return check_mask(node, name, mask, stitch.frames, stitch.size, "the crop")


def cut_images(images: Full, stitch: Stitch, ctx: RunContext | None = None) -> torch.Tensor:
    """Return the crop's IMAGE (n,h,w,3); pixels outside the picture repeat its edge, frames behind its end the last."""
    ctx = ctx or RunContext()
    width, height = stitch.size
    crop, at = torch.empty((stitch.frames, height, width, 3)), 0
    with closing(full_chunks(images, ctx)) as runs:
        for run in runs:
            for frame in run[: stitch.kept - at]:
                crop[at] = as_float(_cut_frame(frame, *(int(v) for v in stitch.boxes[at])))
                at += 1
            ctx.tick(at, stitch.kept)
            if at == stitch.kept:
                break
    crop[at:] = crop[at - 1]
    return crop


def cut_mask(mask: torch.Tensor, stitch: Stitch) -> torch.Tensor:
    """Return the crop's MASK (n,h,w), 0 outside the picture. `mask` is (T,H,W) of the full frames."""
    width, height = stitch.size
    crop = torch.zeros((stitch.frames, height, width))
    for t in range(stitch.frames):
        (rows, columns), (own_rows, own_columns) = stitch.window(t)
        crop[t, own_rows, own_columns] = mask[min(t, stitch.kept - 1), rows, columns].to(crop)
    return crop


def _cut_frame(frame: torch.Tensor, x: int, y: int, w: int, h: int) -> torch.Tensor:
    height, width = frame.shape[:2]
    if x >= 0 and y >= 0 and x + w <= width and y + h <= height:
        return frame[y : y + h, x : x + w]
    rows = torch.arange(y, y + h).clamp(0, height - 1).to(frame.device)
    columns = torch.arange(x, x + w).clamp(0, width - 1).to(frame.device)
    return frame[rows][:, columns]


def _extents(mask: torch.Tensor, ctx: RunContext) -> tuple[np.ndarray, str]:
    """Return int (T,4) left, right, top, bottom of every frame (left > right where it is empty), and the mask's digest."""
    height, width = mask.shape[1:]
    found = np.empty((len(mask), 4), np.int64)
    digest = hashlib.blake2b(repr(tuple(mask.shape)).encode(), digest_size=16)
    for span in spans(len(mask), ctx):
        on = (mask[span] >= THRESHOLD).cpu().numpy()
        digest.update(np.packbits(on).tobytes())
        for t, frame in enumerate(on, span.start):
            columns, rows = np.flatnonzero(frame.any(0)), np.flatnonzero(frame.any(1))
            found[t] = (
                (columns[0], columns[-1] + 1, rows[0], rows[-1] + 1) if rows.size else (width, 0, height, 0)
            )
    if not (found[:, 0] < found[:, 1]).any():
        raise problem(
            NODE, "mask", f"empty in all {len(mask)} frames", "something at or above 0.5 to crop round"
        )
    return found, digest.hexdigest()


def _static_boxes(
    found: np.ndarray, picture: tuple[int, int], rules: BoxRules
) -> tuple[np.ndarray, list[str]]:
    box = []
    for axis, (limit, low, high) in enumerate(
        zip(picture, found.min(0)[::2], found.max(0)[1::2], strict=True)
    ):
        low, high = int(low), int(high)
        first, last = even(low, high)
        size = axis_size(high - low, limit, rules, ("width", "height")[axis], last - first)
        box.append((static_origin(low, high, size, limit), size))
    (x, w), (y, h) = box
    return np.repeat([[x, y, w, h]], len(found), 0), []


def _tracked_boxes(
    found: np.ndarray, picture: tuple[int, int], rules: BoxRules, wrap: bool
) -> tuple[np.ndarray, list[str]]:
    seen = np.flatnonzero(found[:, 0] < found[:, 1])
    notes = []
    if len(seen) < len(found):
        notes.append(
            f"the mask is empty in {len(found) - len(seen)} frames; the box stays near its neighbours there"
        )
    # A frame without a mask asks for what the nearest one with a mask asks for.
    nearest = seen[np.abs(seen[None] - np.arange(len(found))[:, None]).argmin(1)]
    axes = []
    for axis, limit in enumerate(picture):
        low, high = found[nearest, 2 * axis], found[nearest, 2 * axis + 1]
        extent = int((high - low).max())
        low, high = even(low, high)
        size = axis_size(extent, limit, rules, ("width", "height")[axis], int((high - low).max()))
        axes.append((tracked_origins(low, high, size, limit, wrap), np.full(len(found), size)))
    (x, w), (y, h) = axes
    return np.stack([x, y, w, h], 1), notes


def _frames(first: int, last: int) -> str:
    return f"frame {first} is" if first == last else f"frames {first}-{last} are"


def _outside(mask: torch.Tensor, stitch: Stitch, frame: int) -> int:
    rows, columns = stitch.window(frame)[0]
    on = mask >= THRESHOLD
    return int(on.sum()) - int(on[rows, columns].sum())
