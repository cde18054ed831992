"""Where the crop lies: one constant box, or a box of constant size on a path; and how many frames it has.

Boxes are x, y, width, height in pixels of the source. Sizes are multiples of `align`, origins even, so that 4:2:0 video
keeps its chroma grid. An origin may be negative when the picture is smaller than the aligned box.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from .checks import problem
from .limits import ALIGN, PAD_FRACTION

NODE = "Wardrobe Subject Crop"


@dataclass(frozen=True)
class BoxRules:
    """align: even, 2..128, what sides are multiples of; pad_fraction, pad_px: room on each side, as a share of the extent
    and in pixels; overflow: what happens if the box is larger than the picture."""

    align: int = ALIGN
    pad_fraction: float = PAD_FRACTION
    pad_px: int = 0
    overflow: str = "pad"

    def padded(self, extent: int) -> int:
        return extent + 2 * (self.pad_px + math.ceil(self.pad_fraction * extent))

    def aligned(self, extent: int) -> int:
        return math.ceil(extent / self.align) * self.align


def axis_size(extent: int, limit: int, rules: BoxRules, axis: str, span: int = 0) -> int:
    """Return the box's side for a subject of `extent` pixels in a picture of `limit`.

    `span`: pixels between the even positions that hold the subject; a box with an even origin has as many at least. With
    its room if that fits, without it otherwise; then `overflow` decides. ValueError for "error", and for a picture
    smaller than `align` that must not be padded.
    """
    size = rules.aligned(max(rules.padded(extent), span))
    largest = limit // rules.align * rules.align
    if size > largest:
        size = rules.aligned(max(extent, span))
    if size <= largest or rules.overflow == "pad":
        return size
    if rules.overflow == "shrink" and largest:
        return largest
    wanted = (
        f"at most {largest}, the multiple of {rules.align} that fits; choose overflow pad or a smaller align"
    )
    raise problem(NODE, f"the mask's {axis}", f"{extent} px of {limit}, a box of {size}", wanted)


def static_origin(low: int, high: int, size: int, limit: int) -> int:
    """Return the even origin of a box of `size` centred on low..high, shifted inside 0..limit where it can be."""
    origin = (low + high - size) // 2
    if size <= limit:
        origin = min(max(origin, 0), limit - size)
    else:
        origin = (limit - size) // 2
    origin -= origin % 2
    # An odd picture with the subject at its far edge: the box reaches one pixel out.
    return origin + 2 if origin + size < min(high, limit) and origin + 2 <= low else origin


def even(low: np.ndarray | int, high: np.ndarray | int) -> tuple:
    """Return the span widened to even ends: an even origin then never cuts its first or last pixel."""
    return low - low % 2, high + high % 2


def tracked_origins(low: np.ndarray, high: np.ndarray, size: int, limit: int, wrap: bool) -> np.ndarray:
    """Return even origins (T,) of boxes of `size` that hold low[t]..high[t] and move as little as they can.

    low, high: int (T,), even, of the subject in each frame. `wrap`: the path ends where it begins, for a loop.
    A subject larger than the box is centred.
    """
    room = max(0, limit - size)
    lowest, highest = high - size, low
    if size > limit:  # the box hangs over on both sides, wherever it is: it stays
        return np.full(len(low), static_origin(int(low.min()), int(high.max()), size, limit))
    middle = (low + high - size) // 4 * 2
    room += room % 2  # an odd picture's last pixel
    lowest, highest = np.where(lowest > highest, middle, lowest), np.where(lowest > highest, middle, highest)
    lowest, highest = lowest.clip(0, room) // 2, highest.clip(0, room) // 2
    path = np.rint(taut_string(lowest, highest))
    if wrap and len(path) > 1:
        three = np.rint(taut_string(np.tile(lowest, 3), np.tile(highest, 3)))
        ends = np.array([three[len(path)]])
        closed = taut_string(
            np.concatenate([ends, lowest[1:], ends]), np.concatenate([ends, highest[1:], ends])
        )
        path = np.rint(closed)[:-1]
    return path.astype(np.int64) * 2


def taut_string(lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """Return the shortest path y (T,) with lowest <= y <= highest, its ends free: it bends only where it is forced to.

    Both bounds (T,) with lowest <= highest.
    """
    n = len(lowest)
    start, level = _free_start(lowest, highest)
    path = np.full(n, level, np.float64)
    while start < n - 1:
        stop, value = _next_bend(lowest, highest, start, path[start])
        path[start : stop + 1] = np.linspace(path[start], value, stop - start + 1)
        start = stop
    return path


def _free_start(lowest: np.ndarray, highest: np.ndarray) -> tuple[int, float]:
    """Return (frame, value) where the level stretch at the beginning ends."""
    low, high = np.maximum.accumulate(lowest), np.minimum.accumulate(highest)
    apart = np.flatnonzero(low > high)
    if not apart.size:
        return len(lowest) - 1, (low[-1] + high[-1]) / 2
    at = int(apart[0])
    # The new frame is above all that came (its lower bound rose) or below: leave from the nearest bound.
    if lowest[at] > high[at - 1]:
        return int(np.flatnonzero(highest[:at] == high[at - 1])[-1]), float(high[at - 1])
    return int(np.flatnonzero(lowest[:at] == low[at - 1])[-1]), float(low[at - 1])


def _next_bend(lowest: np.ndarray, highest: np.ndarray, start: int, y: float) -> tuple[int, float]:
    """Return (frame, value) where the straight line from (start, y) ends: the bound it bends round, or the last frame."""
    steps = np.arange(1, len(lowest) - start)
    up, down = (highest[start + 1 :] - y) / steps, (lowest[start + 1 :] - y) / steps
    ceiling, floor = np.minimum.accumulate(up), np.maximum.accumulate(down)
    apart = np.flatnonzero(floor > ceiling)
    if apart.size:
        at = int(apart[0])
        round_upper, last = down[at] > ceiling[at - 1], at - 1
    elif floor[-1] <= 0 <= ceiling[-1]:
        return len(lowest) - 1, y
    else:
        round_upper, last = ceiling[-1] < 0, len(steps) - 1
    slopes, slope, bound = (up, ceiling[last], highest) if round_upper else (down, floor[last], lowest)
    bend = start + 1 + int(np.flatnonzero(slopes[: last + 1] == slope)[-1])
    return bend, float(bound[bend])


def fitting_lengths(n: int, rule: str) -> tuple[int, int]:
    """Return the nearest frame counts (at most n, at least n) that fit a rule such as "17k+5"; 0 if none is below."""
    if rule == "none":
        return n, n
    match = re.fullmatch(r"(\d+)k\+(\d+)", rule)
    if not match:
        raise problem(NODE, "frame_rule", repr(rule), "none or a rule such as 17k+5")
    step, rest = int(match[1]), int(match[2])
    if n < rest:
        return 0, rest
    below = (n - rest) // step * step + rest
    return below, below if below == n else below + step


def kept_and_made(n: int, rule: str, on_bad_length: str) -> tuple[int, int]:
    """Return (source frames that are used, frames of the crop) for a clip of `n` frames.

    ValueError with the nearest valid counts if n does not fit the rule and nothing may be done about it.
    """
    below, above = fitting_lengths(n, rule)
    if below == n:
        return n, n
    if on_bad_length == "trim" and below:
        return below, below
    if on_bad_length == "repeat_last":
        return n, above
    near = f"{below} or {above}" if below else f"at least {above}"
    wanted = f"a length of {rule}: {near} frames (on_bad_length trim or repeat_last, or Loop Wrap)"
    raise problem(NODE, "images", f"{n} frames", wanted)
