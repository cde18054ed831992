"""Numbers that prove a dressed clip: what changed where it must not, how it looks at the seam, how steady it is.

Levels are of 255. Frames are compared as float; equal bits are equal whatever the format.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass

import numpy as np
import torch

from ..core.frames import RunContext
from ..core.metrics import LUMA, ssim
from .checks import check_mask
from .composite import blockiness
from .crop import mask_in_crop
from .halo import old_colour_ring
from .limits import THRESHOLD
from .stitch import Full, Stitch, as_float, check_full, check_source, full_shape, paired_runs

NODE = "Wardrobe Metrics"
HEAT_SIDE = 512


@dataclass(frozen=True)
class Measures:
    """outside_changed_px, occluder_changed_px: pixels, all frames together, whose colour is not the source's: outside both
    paint (alpha above 0) and occluders, and on the occluders, where a matte other than hard works by design; psnr_outside, psnr_inside: dB, pooled; ssim: of luma over the crop; flicker_outside,
    flicker_inside: mean frame step of the result minus the source's, levels; seam: mean step of luma across the alpha's
    outline, result by source; loop_jump: step from the last frame to the first by the median step, None unless asked for;
    blocky: share of the mask's outline on a grid; old_colour_ring: share of the paint within 3 px of its outline that kept
    the old colour (`halo.old_colour_ring`), NaN where nothing can be compared."""

    frames: int
    outside_changed_px: int
    occluder_changed_px: int | None
    psnr_outside: float
    psnr_inside: float
    ssim: float
    flicker_outside: float
    flicker_inside: float
    seam: float
    loop_jump: float | None
    blocky: float
    old_colour_ring: float

    def as_dict(self) -> dict:
        """Return the numbers for JSON, which knows no infinity: an infinite one as the text "inf" or "-inf" (pixels that
        are not finite), what cannot be measured as None."""
        endless = {float("inf"): "inf", float("-inf"): "-inf"}
        return {k: None if v != v else endless.get(v, v) for k, v in asdict(self).items()}


def measure(
    source: Full,
    result: Full,
    mask: torch.Tensor,
    stitch: Stitch | None = None,
    occluders: torch.Tensor | None = None,
    loop: bool = False,
    ctx: RunContext | None = None,
) -> tuple[Measures, torch.Tensor]:
    """Compare a result with its source; returns the measures and a heat picture, IMAGE (1,h,w,3).

    Args:
        source, result: full frames, IMAGE (T,H,W,3) or streams, of one size and length.
        mask: alpha; over the crop if `stitch` is given, else over the full frames.
        occluders: over the full frames or, if `stitch` is given, over the crop.
        loop: also measure the step from the last frame to the first.

    The picture shows where and how much anything changed (mean over frames, black to white through red), the mask's outline
    in blue. One pass, CHUNK frames at a time.
    """
    ctx = ctx or RunContext()
    shape = full_shape(NODE, "source", source)
    check_full(NODE, "result", result, shape, "as source")
    if stitch is None:
        stitch, fits = Stitch.whole(shape), "source"
    else:
        check_source(NODE, "source", source, stitch)
        fits = "the crop"
    mask = check_mask(NODE, "mask", mask, stitch.frames, stitch.size, fits)
    if occluders is not None:
        occluders = mask_in_crop(NODE, "occluders", occluders, stitch)
    sums = _Sums(shape, stitch, loop)
    with closing(paired_runs((source, result), ctx)) as runs:
        for start, (old, new) in runs:
            for i in range(len(old)):
                alpha, hands = _on_frame(mask, stitch, start + i), None
                if occluders is not None:
                    hands = _on_frame(occluders, stitch, start + i) >= THRESHOLD
                pair = (as_float(x[i]).cpu().numpy() for x in (old, new))
                sums.add(*pair, alpha, hands, start + i)
            ctx.tick(start + len(old), shape[0])
    return sums.measures(blockiness(mask).share), sums.heat()


class _Sums:
    """What one pass over the frames collects."""

    def __init__(self, shape: tuple[int, int, int], stitch: Stitch, loop: bool) -> None:
        self.n, height, width = shape
        self.stitch, self.loop = stitch, loop
        self.outside, self.hands, self.has_hands = 0, 0, False
        self.error, self.count = np.zeros(2), np.zeros(2, np.int64)
        self.similar: list[float] = []
        self.steps: list[tuple[np.ndarray, np.ndarray]] = []
        self.jumps: list[float] = []
        self.seam, self.ring = np.zeros(2), np.zeros(2, np.int64)
        self.difference, self.union = np.zeros((height, width), np.float32), np.zeros((height, width), bool)
        self.first: np.ndarray | None = None
        self.before: tuple[np.ndarray, np.ndarray] | None = None

    @np.errstate(invalid="ignore")  # infinite pixels count as changed
    def add(
        self, old: np.ndarray, new: np.ndarray, alpha: np.ndarray, hands: np.ndarray | None, at: int
    ) -> None:
        inside = alpha > 0
        outside = ~inside if hands is None else ~(inside | hands)
        difference = np.abs(new - old)
        total = _channels(difference)
        # A NaN differs from everything, itself too.
        changed = ~(total == 0)
        self.outside += int((changed & outside).sum())
        if hands is not None:
            self.has_hands = True
            self.hands += int((changed & hands).sum())
        squares = _channels(difference * difference)
        for k, area in enumerate((outside, inside)):
            self.error[k] += float(squares[area].sum(dtype=np.float64))
            self.count[k] += 3 * int(area.sum())
        self.difference += total / 3
        self.union |= inside
        self.ring += old_colour_ring(old, new, alpha)
        self.similar.append(self._similarity(old, new, at))
        luma = [x @ LUMA for x in (new, old)]
        self.seam += [_across(v, inside) for v in luma]
        if self.before is not None:
            pairs = zip((new, old), self.before, strict=True)
            steps = [_channels(np.abs(now - then)) / 3 for now, then in pairs]
            self.steps.append(tuple(_mean(steps[0] - steps[1], area) for area in (outside, inside)))
            self.jumps.append(float(steps[0].mean()))
        if self.first is None:
            self.first = new.copy() if self.loop else new
        self.before = (new, old)

    def _similarity(self, old: np.ndarray, new: np.ndarray, at: int) -> float:
        (rows, columns), _ = self.stitch.window(min(at, self.stitch.frames - 1))
        pair = [255 * x[rows, columns] for x in (new, old)]
        if min(pair[0].shape[:2]) < 11:
            return 1.0 if np.array_equal(*pair) else float("nan")
        return ssim(*pair)

    @np.errstate(divide="ignore")  # an infinite error is -inf dB
    def measures(self, blocky: float) -> Measures:
        psnr = [
            float("inf") if e == 0 else float(10 * np.log10(c / e))
            for e, c in zip(self.error, self.count, strict=True)
        ]
        flicker = [255 * float(np.mean([s[k] for s in self.steps])) if self.steps else 0.0 for k in (0, 1)]
        jump = None
        if self.loop and self.jumps:
            seam = float(np.abs(self.before[0] - self.first).mean())
            jump = seam / max(float(np.median(self.jumps)), 1e-6)
        return Measures(
            self.n,
            self.outside,
            self.hands if self.has_hands else None,
            *psnr,
            float(np.mean(self.similar)),
            *flicker,
            float(self.seam[0] / self.seam[1]) if self.seam[1] > 0 else 1.0,
            jump,
            blocky,
            float(self.ring[0] / self.ring[1]) if self.ring[1] else float("nan"),
        )

    def heat(self) -> torch.Tensor:
        import cv2

        mean = self.difference / max(1, self.n) * 4  # a quarter of full scale is white
        picture = np.stack([(3 * mean).clip(0, 1), (3 * mean - 1).clip(0, 1), (3 * mean - 2).clip(0, 1)], 2)
        edge = cv2.morphologyEx(self.union.view(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))
        picture[edge > 0] = (0.2, 0.4, 1.0)
        height, width = picture.shape[:2]
        scale = min(1.0, HEAT_SIDE / max(height, width))
        if scale < 1:
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        return torch.from_numpy(np.ascontiguousarray(picture, np.float32))[None]


def _on_frame(mask: torch.Tensor, stitch: Stitch, index: int) -> np.ndarray:
    """Return a crop's mask over the full frame, float32 (H,W); 0 in frames that the crop leaves out."""
    _, height, width = stitch.source
    full = np.zeros((height, width), np.float32)
    if index < stitch.kept:
        area, own = stitch.window(index)
        full[area] = mask[index][own].cpu().float().numpy()
    return full


def _across(luma: np.ndarray, inside: np.ndarray) -> float:
    """Return the sum over the outline of |inside - outside| of luma, neighbours along rows and columns."""
    total = 0.0
    for axis in (0, 1):
        edge = np.diff(inside, axis=axis)
        total += float(np.abs(np.diff(luma, axis=axis))[edge].sum())
    return total


def _channels(pixels: np.ndarray) -> np.ndarray:
    """Return the sum over the channels of float32 (H,W,3); numpy takes ten times as long for it."""
    import cv2

    return cv2.transform(pixels, np.ones((1, 3), np.float32))


def _mean(values: np.ndarray, area: np.ndarray) -> float:
    return float(values[area].mean()) if area.any() else 0.0
