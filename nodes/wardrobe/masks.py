"""Pixel masks: what is painted, and with which alpha it is put back.

Order is fixed: the garment grows first, then the hands are taken out. The other way round the growth swallows the hands
again. Nothing here fills holes or closes gaps: the gaps between fingers are 3 to 6 px wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core.frames import RunContext
from .checks import check_choice, check_kind, check_mask, check_pair, check_range, spans
from .crop import mask_in_crop
from .distance import bounds, grow, inside_distance, opened
from .limits import (
    CLEARANCE_WARNING_PX,
    FEATHER_MODES,
    FEATHER_PX,
    SHAPE_LIMIT_PX,
    SLIT_MOUTH_PX,
    SLIT_ROWS,
    THRESHOLD,
)
from .stitch import Stitch


@dataclass(frozen=True)
class Subtracted:
    """paint, occluders: MASK (T,H,W) of 0 and 1; report: counts and warnings as lines."""

    paint: torch.Tensor
    occluders: torch.Tensor
    report: str


def subtract_occluders(
    mask: torch.Tensor,
    occluders: torch.Tensor,
    grow_px: int = 0,
    clearance_px: int = 0,
    threshold: float = THRESHOLD,
    keep_holes: bool = True,
    ctx: RunContext | None = None,
) -> Subtracted:
    """Return grow(mask, grow_px) and not grow(occluders, clearance_px), both binary at `>= threshold`.

    Args:
        mask, occluders: MASK (T,H,W) of one size; one frame stands for all.
        grow_px: -64..64, a Euclidean disc; negative shrinks.
        clearance_px: 0..64, kept free round the occluders. It shows as a ring of the old garment.
        keep_holes: holes of the mask, skin seen through a cut-out, are not grown over.

    5 ms a frame for each growth on 736x960. ValueError for masks that do not fit each other.
    """
    node = "Wardrobe Subtract Occluders"
    check_range(node, "grow_px", grow_px, -SHAPE_LIMIT_PX, SHAPE_LIMIT_PX)
    check_range(node, "clearance_px", clearance_px, 0, SHAPE_LIMIT_PX)
    check_range(node, "threshold", threshold, 0, 1)
    mask, occluders = check_pair(node, ("mask", mask), ("occluders", occluders))
    paint, free, facts = torch.empty(mask.shape), torch.empty(mask.shape), _Facts()
    for span in spans(len(mask), ctx):
        for i in range(span.start, span.stop):
            garment = (mask[i] >= threshold).cpu().numpy()
            hands = (occluders[i] >= threshold).cpu().numpy()
            wanted = grow(garment, grow_px)
            if keep_holes and grow_px > 0:
                wanted &= ~holes(garment)
            kept = wanted & ~grow(hands, clearance_px)
            facts.add(garment, wanted, hands, kept)
            paint[i], free[i] = torch.from_numpy(kept), torch.from_numpy(hands)
    return Subtracted(paint, free, facts.text(grow_px, clearance_px))


def holes(mask: np.ndarray) -> np.ndarray:
    """Return the pixels outside the mask that it encloses (bool (H,W)): no way of 4 neighbours to the frame's edge."""
    import cv2

    area = bounds(mask, 1)
    enclosed = np.zeros_like(mask)
    if area is None:
        return enclosed
    part = np.pad(mask[area], 1)  # joins what reaches the frame's edge into one outside
    _, labels = cv2.connectedComponents((~part).view(np.uint8), connectivity=4)
    enclosed[area] = ((labels != labels[0, 0]) & ~part)[1:-1, 1:-1]
    return enclosed


def pixel_mask(
    mask: torch.Tensor,
    feather_px: int = FEATHER_PX,
    feather_mode: str = FEATHER_MODES[0],
    keep_thin: bool = True,
    threshold: float = THRESHOLD,
    ctx: RunContext | None = None,
    stitch: Stitch | None = None,
    occluders: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the compositor's alpha of a MASK (T,H,W): exactly 0 outside the mask, rising inward.

    alpha = clip((d - 0.5) / feather_px, 0.5 / feather_px, 1) at distance d from the nearest outside pixel; the frame's
    edge is no outline. `keep_thin`: what a disc of radius `feather_px` cannot reach, such as a strap or the garment
    between two fingers, gets 1: a feather would leave nothing of it. `hard`: 1 inside. 16 ms a frame on 736x960.

    `stitch` of the crop that the mask is of: where its boxes leave the picture, it is the picture's edge that is no
    outline, and alpha is 0 behind it. `occluders`: MASK of the hands that were taken out; along them alpha stays as it is
    inside, since a feather there would show the old garment as a line round the fingers. Over the mask, or with a stitch
    over the full frames. ValueError for what differs in size or length.
    """
    node = "Wardrobe Pixel Mask"
    check_range(node, "feather_px", feather_px, 0, SHAPE_LIMIT_PX)
    check_range(node, "threshold", threshold, 0, 1)
    check_choice(node, "feather_mode", feather_mode, FEATHER_MODES)
    if stitch is None:
        mask = check_mask(node, "mask", mask)
    else:
        check_kind(node, "stitch", stitch, Stitch, "what Wardrobe Subject Crop gives")
        mask = check_mask(node, "mask", mask, stitch.frames, stitch.size, "the crop of stitch")
    if occluders is not None and stitch is not None:
        occluders = mask_in_crop(node, "occluders", occluders, stitch)
    elif occluders is not None:
        occluders = check_mask(node, "occluders", occluders, len(mask), mask.shape[:0:-1], "mask")
    hard = feather_mode == "hard" or feather_px == 0
    alpha = torch.zeros(mask.shape)
    for span in spans(len(mask), ctx):
        for i in range(span.start, span.stop):
            picture = ... if stitch is None else stitch.window(i)[1]
            inside = (mask[i][picture] >= threshold).cpu().numpy()
            around = inside
            if occluders is not None:
                around = inside | (occluders[i][picture] >= threshold).cpu().numpy()
            feathered = inside if hard else inside * inward_feather(around, feather_px, keep_thin)
            alpha[i][picture] = torch.from_numpy(feathered).to(alpha)
    return alpha


def inward_feather(inside: np.ndarray, px: int, keep_thin: bool) -> np.ndarray:
    """Return float32 (H,W): the alpha of `pixel_mask` for one frame, bool (H,W)."""
    alpha = np.zeros(inside.shape, np.float32)
    area = bounds(inside, 1)
    if area is None:
        return alpha
    part = inside[area]
    distance = inside_distance(part)
    ramp = ((distance - 0.5) / px).clip(0.5 / px, 1)
    if keep_thin:
        ramp[_thin(part, px, distance)] = 1
    alpha[area] = np.where(part, ramp, 0)
    return alpha


def _thin(mask: np.ndarray, px: int, distance: np.ndarray) -> np.ndarray:
    """Return what a disc of radius `px` cannot reach, but for the tips of corners: at full alpha they would stand as dots
    in the feathered outline. A part that stands alone is no tip, however small.

    The tip of a right angle has an area of 0.2 px^2, which is 2.5 times the square of its depth, a blunter one less, that
    of 60 degrees 0.7 px^2. A slit of 3x20 px has 15 times the square of its depth, however wide the feather is.
    """
    import cv2

    broad = opened(mask, px, distance)
    thin = mask & ~broad
    parts, own = cv2.connectedComponents(mask.view(np.uint8), connectivity=8)
    alone = np.ones(parts, bool)
    alone[own[broad]] = alone[0] = False
    count, labels, stats, _ = cv2.connectedComponentsWithStats(thin.view(np.uint8), connectivity=8)
    area, depth = stats[:, cv2.CC_STAT_AREA], np.zeros(count, np.float32)
    np.maximum.at(depth, labels[thin], distance[thin])
    long = (depth >= 2) & (area > 5 * depth**2)  # single rows of a jagged outline have a depth of 1
    kept = (area > px * px / 2) | long
    kept[0] = False  # all that is not thin
    thin = kept[labels] | alone[own]
    # Where a slit opens into the garment the disc reaches into it; not from single pixels of a jagged outline.
    return thin | grow(thin & (distance > 1.5), SLIT_MOUTH_PX)


class _Facts:
    """Counts over the frames of `subtract_occluders`."""

    def __init__(self) -> None:
        self.garment, self.hands, self.paint, self.hidden = 0, 0, 0, []
        self.slit: tuple[float, int] | None = None

    def add(self, garment: np.ndarray, wanted: np.ndarray, hands: np.ndarray, kept: np.ndarray) -> None:
        covered = hands & _between(garment)
        whole = int(garment.sum()) + int((covered & ~garment).sum())
        self.garment += int(wanted.sum())
        self.hands += int(hands.sum())
        self.paint += int(kept.sum())
        self.hidden.append(100 * int(covered.sum()) / max(1, whole))
        if covered.any():
            width = narrowest_gap(kept, hands)
            if width and (self.slit is None or width < self.slit[0]):
                self.slit = width, len(self.hidden) - 1

    def text(self, grow_px: int, clearance_px: int) -> str:
        lines = [
            f"frames: {len(self.hidden)}; grown by {grow_px} px, clearance {clearance_px} px",
            f"garment {self.garment} px, hands {self.hands} px, to paint {self.paint} px",
            f"hidden by hands: {np.mean(self.hidden):.1f} % of the garment, {max(self.hidden):.1f} % at most "
            f"(frame {int(np.argmax(self.hidden))}); frame by frame: " + _runs_text(self.hidden),
        ]
        if self.slit:
            lines.append(f"narrowest gap between fingers to paint: {self.slit[0]} px (frame {self.slit[1]})")
        if grow_px < 0:
            lines.append(
                f"warning: grow_px {grow_px} takes {-grow_px} px from the garment's own outline too, also round the hands if the "
                "mask ends at them: the old garment shows there; use 0 or more"
            )
        elif grow_px == 0:
            lines.append(
                "not grown: the feather of Pixel Mask shows the old garment at its hem; grow by at least the feather, 8 for its 4"
            )
        if clearance_px >= CLEARANCE_WARNING_PX:
            lines.append(
                f"warning: clearance {clearance_px} px takes {2 * clearance_px} px from every gap between fingers and "
                "leaves a ring of the old garment; use 0 with the matte colour_line of Repaste"
            )
        if not self.paint:
            lines.append("warning: nothing is left to paint")
        return "\n".join(lines)


def _between(garment: np.ndarray) -> np.ndarray:
    """Return bool (H,W): pixels that have garment on both sides in their row. A tracker's garment has the hands cut out."""
    columns, last = np.arange(garment.shape[1]), garment.shape[1] - 1
    left, right = garment.argmax(1), last - garment[:, ::-1].argmax(1)
    return garment.any(1)[:, None] & (columns >= left[:, None]) & (columns <= right[:, None])


def _runs_text(percents: list[float]) -> str:
    """Return whole percents as "0-4 12, 5 13": frames and what they have in common."""
    parts, start, rounded = [], 0, [round(p) for p in percents]
    for i in range(1, len(rounded) + 1):
        if i == len(rounded) or rounded[i] != rounded[start]:
            parts.append(
                f"{start}-{i - 1} {rounded[start]}" if i - 1 > start else f"{start} {rounded[start]}"
            )
            start = i
    return ", ".join(parts)


def narrowest_gap(paint: np.ndarray, hands: np.ndarray, limit: int = 32) -> int | None:
    """Return the width in pixels of the narrowest gap between two hand pixels that is to be painted (bool (H,W) both).

    Runs of `paint` along rows or columns with a hand at both ends, up to `limit` px, that touch each other are one gap. Its
    width is the one that SLIT_ROWS of them do not exceed; what has fewer is a notch in an outline. None if there is no gap.
    """
    area = bounds(hands)
    if area is None:
        return None
    paint, hands = paint[area], hands[area]
    widths = [w for w in (_gap(paint, hands, limit), _gap(paint.T, hands.T, limit)) if w]
    return min(widths, default=None)


def _gap(paint: np.ndarray, hands: np.ndarray, limit: int) -> int | None:
    """Return the width of the narrowest gap along rows, or None."""
    import cv2

    edges = np.diff(np.pad(paint, ((0, 0), (1, 1))).view(np.int8), axis=1).ravel()
    width = paint.shape[1]
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    row, first = np.divmod(starts, width + 1)
    last = stops % (width + 1)  # one behind the run
    inner = (first > 0) & (last < width) & (last - first <= limit)
    row, first, last = row[inner], first[inner], last[inner]
    both = hands[row, first - 1] & hands[row, last]
    row, first, last = row[both], first[both], last[both]
    if len(row) < SLIT_ROWS:
        return None
    marks = np.zeros((paint.shape[0], width + 1), np.int8)
    np.add.at(marks, (row, first), 1)
    np.add.at(marks, (row, last), -1)
    gaps = marks.cumsum(1)[:, :width].astype(np.uint8)
    labels = cv2.connectedComponents(gaps, connectivity=4)[1][row, first]
    order = np.lexsort((last - first, labels))
    labels, widths = labels[order], (last - first)[order]
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    counts = np.diff(starts, append=len(labels))
    long = starts[counts >= SLIT_ROWS]
    return int(widths[long + SLIT_ROWS - 1].min()) if long.size else None
