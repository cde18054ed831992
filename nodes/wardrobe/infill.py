"""Masks between trusted frames, and masks that a tracker lost for a moment, from their neighbours and the picture's motion.

A mask is moved as its signed distance, so that it stays a clean outline, along the optical flow (DIS, at half size) from
the frame that needs it to the neighbour that has it. Two neighbours are mixed by their distance in time; where a lost frame
is repaired, the median of up to four counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

from ..core.frames import RunContext
from ..core.report import FrameList
from .checks import check_choice, check_images, check_mask, check_range, problem, spans
from .distance import signed_distance
from .limits import AREA_JUMP, CUT_DIFFERENCE, GAP_LIMIT, INFILL_MODES, STRIDE_LIMIT, THRESHOLD

NODE = "Wardrobe Mask Infill"
_KEPT_FRAMES = 32


@dataclass(frozen=True)
class Infilled:
    """mask: MASK (T,H,W) of 0 and 1; report: which frames are made, and where the cuts are."""

    mask: torch.Tensor
    report: str


def mask_infill(
    mask: torch.Tensor,
    images: torch.Tensor,
    stride: int = 4,
    mode: str = INFILL_MODES[0],
    max_gap: int = 4,
    ctx: RunContext | None = None,
) -> Infilled:
    """Return the mask, cut at 0.5, with frames made from their neighbours.

    Args:
        mask: MASK (T,H,W); images: the frames it belongs to, IMAGE (T,H,W,3).
        stride: for infill, frames 0, stride, 2*stride ... are trusted, the others are made.
        mode: infill; or stabilise: a frame whose area is more than 30 % off what its neighbours, moved with the picture,
            say is replaced by that.
        max_gap: how many frames in a row may be made, 1..16; the report names longer gaps, which stay as they came.

    Nothing is taken over a cut (mean difference of neighbours above 0.25). Least IoU on a moving hand: 0.98 at stride 2,
    0.97 at 4, 0.92 at 8; holding the last mask gives 0.58, 0.49 and 0.25.
    """
    ctx = ctx or RunContext()
    check_choice(NODE, "mode", mode, INFILL_MODES)
    check_range(NODE, "stride", stride, 1, STRIDE_LIMIT)
    check_range(NODE, "max_gap", max_gap, 1, GAP_LIMIT)
    images = check_images(NODE, "images", images)
    n, height, width = images.shape[:3]
    mask = check_mask(NODE, "mask", mask, n, (width, height))
    if mode == "infill" and stride - 1 > max_gap:
        wanted = f"at most {max_gap + 1}: {stride - 1} frames in a row would be made; raise max_gap or lower stride"
        raise problem(NODE, "stride", stride, wanted)
    motion = _Motion(images, mask)
    cuts = find_cuts(images, ctx)
    shot = np.cumsum(cuts)
    if mode == "infill":
        sources, lost = _infill_sources(shot, stride), np.zeros(n, bool)
    else:
        sources, lost = _suspects(mask, shot, max_gap, ctx)
    made, replaced, alone = torch.empty(mask.shape), FrameList(), FrameList()
    for span in spans(n, ctx):
        for t in range(span.start, span.stop):
            own = (mask[t] >= THRESHOLD).cpu().numpy()
            near = sources.get(t)
            if near is not None and not near:
                alone.add(t, [not lost[t]])
            elif near:
                moved = motion.predict(t, near, mode)
                if mode == "infill" or _jumps(own, moved):
                    own = moved
                    replaced.add(t, [True])
            made[t] = torch.from_numpy(own)
    report = _report(n, mode, replaced, alone, np.flatnonzero(cuts))
    return Infilled(made, report + _too_long(lost, max_gap))


def find_cuts(images: torch.Tensor, ctx: RunContext | None = None) -> np.ndarray:
    """Return bool (T,): whether a new shot begins with the frame (mean |difference| to the one before above 0.25)."""
    cuts = np.zeros(len(images), bool)
    for span in spans(len(images), ctx):
        for t in range(max(1, span.start), span.stop):
            cuts[t] = float((images[t] - images[t - 1]).abs().mean()) > CUT_DIFFERENCE
    return cuts


class _Motion:
    """Moves masks along the picture's motion; keeps the last few half-size frames and distances."""

    def __init__(self, images: torch.Tensor, mask: torch.Tensor) -> None:
        import cv2

        self._images, self._mask = images, mask
        self._flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        self._gray = lru_cache(_KEPT_FRAMES)(self._make_gray)
        self._signed = lru_cache(_KEPT_FRAMES)(self._make_signed)
        self._step = lru_cache(_KEPT_FRAMES)(self._make_step)

    def predict(self, t: int, near: tuple[tuple[int, float], ...], mode: str) -> np.ndarray:
        """Return bool (H,W) of frame t from frames `near`, (index, weight), their weights summing to 1.

        infill: mixed by weight. stabilise: their median, so that one odd neighbour of several has no say.
        """
        moved = [self._moved(t, index) for index, _ in near]
        if mode == "stabilise":
            return np.median(moved, axis=0) > 0
        return sum(weight * distance for (_, weight), distance in zip(near, moved, strict=True)) > 0

    def _moved(self, t: int, neighbour: int) -> np.ndarray:
        """Return the neighbour's signed distance as seen from frame t: step by step, for one flow over several frames
        takes one finger for another (least IoU over eight: 0.74 instead of 0.92)."""
        import cv2

        height, width = self._gray(t).shape
        x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
        step = 1 if neighbour > t else -1
        for index in range(t, neighbour, step):
            moved = cv2.remap(
                self._step(index, step), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
            x, y = x + moved[..., 0], y + moved[..., 1]
        full = self._mask.shape[1:]
        x, y = (
            cv2.resize(grid, full[::-1], interpolation=cv2.INTER_LINEAR) for grid in self._to_full(x, y, full)
        )
        return cv2.remap(self._signed(neighbour), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

    def _to_full(self, x: np.ndarray, y: np.ndarray, full: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        # Pixel centres: the middle of a half-size pixel lies between two full ones.
        grow_x, grow_y = full[1] / x.shape[1], full[0] / x.shape[0]
        return (x + 0.5) * grow_x - 0.5, (y + 0.5) * grow_y - 0.5

    def _make_step(self, t: int, step: int) -> np.ndarray:
        return self._flow.calc(self._gray(t), self._gray(t + step), None)

    def _make_gray(self, t: int) -> np.ndarray:
        import cv2

        frame = (self._images[t].cpu().float().nan_to_num().clamp(0, 1) * 255).to(torch.uint8).numpy()
        gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        # DIS needs patches of 8 on its coarsest level; small pictures stay as they are.
        scale = 0.5 if min(gray.shape) >= 128 else 1.0
        return cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else gray

    def _make_signed(self, t: int) -> np.ndarray:
        return signed_distance((self._mask[t] >= THRESHOLD).cpu().numpy())


Sources = dict[int, tuple[tuple[int, float], ...]]
"""Frame -> the (index, weight) it is made from; an empty tuple where there is nothing to make it from."""


def _infill_sources(shot: np.ndarray, stride: int) -> Sources:
    sources: Sources = {}
    for t in range(len(shot)):
        if t % stride == 0:
            continue
        before, after = t - t % stride, t - t % stride + stride
        near = [a for a in (before, after) if a < len(shot) and shot[a] == shot[t]]
        sources[t] = _weighted(t, near)
    return sources


def _suspects(
    mask: torch.Tensor, shot: np.ndarray, max_gap: int, ctx: RunContext
) -> tuple[Sources, np.ndarray]:
    """Return the frames whose area is far from the usual one nearby, and the nearest two good frames on each side that they
    are made from: what a tracker blanks for several frames cannot judge itself.

    Usual is the median of `max_gap` frames on each side; at the ends of a shot of as many frames, the nearest ones, so that
    `max_gap` blanked frames never outvote the good ones. Runs of more odd frames than `max_gap` have no sources, nor has
    more mask than usual at the end of a shot: that is rather something that leaves, and to lose it would be worse.

    Also bool (T,): frames that are lost for longer than `max_gap`, which are neither repaired nor any other's neighbour.
    """
    areas = np.empty(len(mask))
    for span in spans(len(mask), ctx):
        areas[span] = (mask[span] >= THRESHOLD).sum((1, 2)).cpu().numpy()
    lost = _lost_for_long(areas, shot, max_gap)
    sources: Sources = {}
    for first, last in _shots(shot):
        usual = [_usual(areas[first:last], t, max_gap) for t in range(last - first)]
        odd = np.abs(areas[first:last] - usual) > AREA_JUMP * np.maximum(usual, 1)
        odd |= lost[first:last]
        for start, end in _runs(odd):
            at_end = start == 0 or end == last - first
            extra = at_end and areas[first + start : first + end].sum() > sum(usual[start:end])
            reach = end - start <= max_gap and not extra
            good = [i for i in range(start - 2, end + 2) if reach and 0 <= i < len(odd) and not odd[i]]
            for t in range(start, end):
                sources[first + t] = _weighted(t, good, first)
    return sources, lost


def _lost_for_long(areas: np.ndarray, shot: np.ndarray, max_gap: int) -> np.ndarray:
    """Return bool (T,): runs of more than `max_gap` frames that are empty, or whose area is more than 30 % off the frame
    before them until one comes that is not, in a shot whose other frames show something."""
    lost = np.zeros(len(areas), bool)
    for first, last in _shots(shot):
        own = areas[first:last]
        bad = own == 0 if own.any() else np.zeros(len(own), bool)
        t = 1
        while t < len(own):
            stop = t
            while stop < len(own) and abs(own[stop] - own[t - 1]) > AREA_JUMP * max(own[t - 1], 1):
                stop += 1
            bad[t:stop] |= stop < len(own) and own[t - 1] > 0
            t = stop + 1 if t < stop < len(own) else t + 1
        for start, stop in _runs(bad):
            lost[first + start : first + stop] = stop - start > max_gap
    return lost


def _too_long(lost: np.ndarray, max_gap: int) -> str:
    if not lost.any():
        return ""
    frames = FrameList()
    frames.add(0, lost)
    return (
        f"\nwarning: lost and not repaired: {frames}; more than max_gap {max_gap} in a row, so they are kept as they came: "
        "raise max_gap (16 at most), track anew, or repair them by hand"
    )


def _shots(shot: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, behind the last) frame of every shot."""
    bounds = [0, *(np.flatnonzero(np.diff(shot)) + 1), len(shot)]
    return [(int(a), int(b)) for a, b in pairwise(bounds)]


def _usual(areas: np.ndarray, t: int, max_gap: int) -> float:
    width = min(len(areas), 2 * max_gap + 1)
    start = min(max(0, t - max_gap), len(areas) - width)
    return float(np.median(areas[start : start + width]))


def _runs(odd: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, behind the last) of every run of true values."""
    steps = np.flatnonzero(np.diff(np.concatenate([[False], odd, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(steps[::2], steps[1::2], strict=True)]


def _weighted(t: int, near: list[int], first: int = 0) -> tuple[tuple[int, float], ...]:
    """Return (index, weight) of `near` for frame t, the nearer the more; all are counted from frame `first`."""
    weights = [1 / abs(i - t) for i in near]
    return tuple((first + int(i), w / sum(weights)) for i, w in zip(near, weights, strict=True))


def _jumps(own: np.ndarray, expected: np.ndarray) -> bool:
    wanted = int(expected.sum())
    return abs(int(own.sum()) - wanted) > AREA_JUMP * max(wanted, 1)


def _report(n: int, mode: str, replaced: FrameList, alone: FrameList, cuts: np.ndarray) -> str:
    lines = [f"{n} frames, {mode}: made {replaced}" if replaced else f"{n} frames, {mode}: none made"]
    if alone:
        lines.append(f"warning: no trusted frame in reach of {alone}; they are kept as they came")
    if cuts.size:
        lines.append("cuts before frames " + ", ".join(str(c) for c in cuts))
    return "\n".join(lines)
