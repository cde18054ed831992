"""The compositor: generated pixels where alpha says so, and the source's own bits everywhere else.

It takes the pixel mask only. A latent mask is blocky (tokens of 16 to 32 px) and would bring second fingers that the
model painted beside the real ones; its type fits no mask input, and a mask that looks like one is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core.frames import FrameStream, RunContext
from .checks import check_choice, check_images, check_mask, problem, spans
from .crop import mask_in_crop
from .distance import bounds
from .limits import (
    BLOCKY_DOUBT,
    BLOCKY_EDGES,
    BLOCKY_GRIDS,
    BLOCKY_MODES,
    BLOCKY_SHARE,
    RECTANGLE_LINES,
    THRESHOLD,
)
from .stitch import Full, PatchedStream, Stitch, as_float, check_source, patch_images, store

NODE = "Wardrobe Composite"


@dataclass(frozen=True)
class Blocky:
    """How much of a mask's outline lies on the lines of a grid: `share` of `edges` on multiples of `grid` pixels.

    lines: on how many different rows and columns it has edges; a rectangle has four, wherever it lies.
    """

    grid: int
    share: float
    edges: int
    lines: int

    @property
    def tells(self) -> bool:
        """Whether there is enough of an outline to judge by."""
        return self.edges >= BLOCKY_EDGES and self.lines > RECTANGLE_LINES

    @property
    def suspicious(self) -> bool:
        return self.tells and self.share > BLOCKY_SHARE


def composite(
    source: Full,
    generated: torch.Tensor,
    stitch: Stitch,
    mask: torch.Tensor,
    on_blocky: str = BLOCKY_MODES[0],
    occluders: torch.Tensor | None = None,
    ctx: RunContext | None = None,
) -> Full:
    """Return the full frames with the crop painted in: alpha 0 keeps the source's bits, 1 takes the generated ones.

    Args:
        source: IMAGE (T,H,W,3), or a stream, then the answer is a lazy stream.
        generated: IMAGE (n,h,w,3), the crop repainted; NaN is harmless where alpha is 0.
        stitch: from the crop.
        mask: alpha (n,h,w) over the crop, from `pixel_mask`.
        on_blocky: what happens to a mask that looks like a latent mask.
        occluders: MASK over the crop (n,h,w) or the full frames (T,H,W), pixels at or above 0.5 keep the source.

    Frames that the crop left out are the source's. 12 ms a frame on 736x960. ValueError for what does not fit, a blocky
    mask, and NaN in `generated` inside the mask.
    """
    ctx = ctx or RunContext()
    check_choice(NODE, "on_blocky", on_blocky, BLOCKY_MODES)
    check_source(NODE, "source", source, stitch)
    generated = check_images(NODE, "generated", generated, stitch.frames, stitch.size, "the crop")
    mask = check_mask(NODE, "mask", mask, stitch.frames, stitch.size, "the crop")
    if occluders is not None:
        occluders = mask_in_crop(NODE, "occluders", occluders, stitch)
    if on_blocky != "ignore":
        _guard(mask, on_blocky, ctx)

    def patch(start: int, run: tuple[torch.Tensor, ...], _: RunContext) -> torch.Tensor:
        made = run[0].clone()
        for i in range(min(len(made), max(0, stitch.kept - start))):
            alpha = mask[start + i]
            if occluders is not None:
                alpha = torch.where(occluders[start + i] >= THRESHOLD, 0, alpha)
            paint(made[i], generated[start + i], alpha, stitch, start + i)
        return made

    if isinstance(source, FrameStream):
        return PatchedStream("wardrobe composite", (source,), patch)
    return patch_images((source,), patch, ctx)


def paint(frame: torch.Tensor, crop: torch.Tensor, alpha: torch.Tensor, stitch: Stitch, index: int) -> None:
    """Blend `crop` (h,w,3) into `frame` (H,W,3, float or uint8) in place, where frame `index`'s box lies.

    ValueError if the crop is not finite where `alpha` (h,w) is above 0.
    """
    (rows, columns), own = stitch.window(index)
    area, weight = frame[rows, columns], alpha[own].to(frame.device, torch.float32)
    where = bounds((weight > 0).cpu().numpy())
    if where is None:
        return
    area, weight = area[where], weight[where].clamp(max=1)
    old, new = as_float(area), crop[own][where].to(area.device, torch.float32)
    made = blend(old, new, weight)
    # One sum tells whether anything is wrong; what and where only then.
    if not bool(torch.isfinite(made.sum())):
        # A NaN of the source is not there where alpha is 1.
        made = torch.where((weight >= 1)[..., None], new, made)
        _check_finite(made, {"generated": new, "source": old}, weight, index)
    if area.dtype == torch.float32:
        area.copy_(made)
    else:
        store(area, made, (weight > 0)[..., None])


def _check_finite(
    made: torch.Tensor, pixels: dict[str, torch.Tensor], weight: torch.Tensor, index: int
) -> None:
    inside = weight > 0
    if bool(torch.isfinite(made[inside]).all()):
        return
    guilty = [name for name, frame in pixels.items() if not bool(torch.isfinite(frame[inside]).all())]
    wanted = "numbers; decode it anew"
    raise problem(NODE, guilty[0], f"not finite inside the mask in frame {index}", wanted)


def blend(source: torch.Tensor, generated: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Return (...,3): the source's bits where alpha (...) is 0, the generated ones where it is 1, a mix between."""
    alpha = alpha[..., None]
    # torch.lerp counts from the nearer end, so it is exact at 1; at 0 a NaN or infinity would still come through.
    return torch.where(alpha <= 0, source, torch.lerp(source, generated, alpha))


def blockiness(mask: torch.Tensor) -> Blocky:
    """Return how blocky a MASK (T,H,W) is, on the grid where it is most so: what a quarter of its frames reach.

    The share of steps between neighbouring pixels that lie on multiples of 8, 16 or 32 px from the crop's corner, of the
    mask cut at 0.5 (where a blur leaves the edge) and just above 0 (where an inward feather does), whichever is more. Frames
    count one by one; all together where none has enough of an outline. Measured: natural outlines up to 0.26, token masks
    1.0, token masks with a feather 0.985.
    """
    # One frame that stands for all is counted once.
    frames = mask[:1] if mask.stride(0) == 0 else mask
    total = [[np.zeros(n - 1, np.int64) for n in frames.shape[:0:-1]] for _ in range(2)]
    found: list[Blocky] = []
    for span in spans(len(frames)):
        cuts = [cut.cpu().numpy() for cut in (frames[span] >= THRESHOLD, frames[span] > 0)]
        steps = [[np.diff(cut, axis=axis).sum(axis=3 - axis) for axis in (2, 1)] for cut in cuts]
        for t in range(len(cuts[0])):
            frame = [[lines[t] for lines in both] for both in steps]
            for lines, made in zip(total, frame, strict=True):
                for one, more in zip(lines, made, strict=True):
                    one += more
            found.append(_on_grid(frame))
    found = sorted((f for f in found if f.tells), key=lambda f: f.share)
    return found[-max(1, len(found) // 4)] if found else _on_grid(total)


def _on_grid(on_line: list[list[np.ndarray]]) -> Blocky:
    """Return the most blocky of several cuts, each given as the steps on every column and on every row."""
    edges = [sum(int(lines.sum()) for lines in both) for both in on_line]
    shares = np.array(
        [
            [sum(lines[grid - 1 :: grid].sum() for lines in both) / max(1, total) for grid in BLOCKY_GRIDS]
            for both, total in zip(on_line, edges, strict=True)
        ]
    )
    level = int(shares.max(1).argmax())
    best = float(shares[level].max())
    # The widest grid that explains nearly all of it: every line of 32 is also one of 8.
    grid = max(g for g, share in zip(BLOCKY_GRIDS, shares[level], strict=True) if share >= 0.95 * best)
    return Blocky(grid, best, edges[level], sum(int((lines > 0).sum()) for lines in on_line[level]))


def _guard(mask: torch.Tensor, on_blocky: str, ctx: RunContext) -> None:
    found = blockiness(mask)
    if not (found.tells and found.share > BLOCKY_DOUBT):
        return
    got = f"blocky: {found.share:.0%} of its outline lies on a grid of {found.grid} px"
    wanted = (
        "the alpha of Pixel Mask, not a mask on the sampler's grid (on_blocky warn or ignore lets it pass)"
    )
    if on_blocky == "error" and found.suspicious:
        raise problem(NODE, "mask", got, wanted)
    ctx.warn(f"mask is {got}; expected {wanted}")
