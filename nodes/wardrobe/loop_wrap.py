"""Loops through a sampler that knows no loops: the beginning is drawn a second time at the end, then both are mixed.

Mixing ends where the second drawing of the beginning is: frame n-1 is nearly the first drawing, so it flows into frame n,
and frame 0 nearly the second one, so the last frame flows into it.
"""

from __future__ import annotations

import torch

from ..core.frames import RunContext
from .checks import check_choice, check_images, check_mask, check_range, problem, spans
from .limits import FRAME_RULES
from .plan import fitting_lengths

MIN_OVERLAP = 4


def overlap_for(n: int, rule: str, min_overlap: int = MIN_OVERLAP) -> int:
    """Return how many frames to repeat so that n + overlap fits `rule`: the fewest that are at least `min_overlap`.

    175 frames and 17k+5 give 17, for 192. A `min_overlap` of 0 is for clips that are no loops: nothing is repeated, n must fit
    the rule. ValueError if it does not, or if the repeat is more than the clip has.
    """
    node = "Wardrobe Loop Wrap"
    check_choice(node, "frame_rule", rule, FRAME_RULES)
    check_range(node, "min_overlap", min_overlap, 0, 10_000)
    if not min_overlap:
        below, above = fitting_lengths(n, rule)
        if n not in (below, above):
            near = f"{below} or {above}" if below else f"at least {above}"
            wanted = f"{near} ({rule}), for min_overlap 0 repeats nothing; trim the clip in Subject Crop (on_bad_length)"
            raise problem(node, "images", f"{n} frames", wanted)
        return 0
    overlap = fitting_lengths(n + min_overlap, rule)[1] - n
    if overlap > n:
        raise problem(
            node,
            "images",
            f"{n} frames",
            f"at least {overlap}, as many as are repeated (frame_rule {rule}); use a longer loop",
        )
    return overlap


def loop_wrap(
    images: torch.Tensor, mask: torch.Tensor | None, overlap: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return images (T+n,h,w,3) and mask (T+n,h,w) with their first `overlap` (0..T) frames once more at the end."""
    node = "Wardrobe Loop Wrap"
    images = check_images(node, "images", images)
    size = (images.shape[2], images.shape[1])
    check_range(node, "overlap", overlap, 0, len(images))
    wrapped = torch.cat([images, images[:overlap]])
    if mask is None:
        return wrapped, None
    mask = check_mask(node, "mask", mask, len(images), size)
    return wrapped, torch.cat([mask, mask[:overlap]])


def loop_close(generated: torch.Tensor, overlap: int, ctx: RunContext | None = None) -> torch.Tensor:
    """Return the T frames of a loop from T + `overlap` generated ones.

    Frame i below `overlap` is (1-a) * generated[T+i] + a * generated[i] with a = (i+1) / (overlap+1); the others are
    generated[i], untouched. On a drifting signal the step over the seam falls from 12.5 to 0.9 of an ordinary one.
    """
    node = "Wardrobe Loop Close"
    generated = check_images(node, "generated", generated)
    n = len(generated) - overlap
    if overlap < 1 or n < overlap:
        got = f"{overlap} for {len(generated)} frames"
        raise problem(node, "overlap", got, "that of Loop Wrap, from 1 to half of the frames")
    made = generated[:n].clone()
    for span in spans(overlap, ctx):
        for i in range(span.start, span.stop):
            made[i] = torch.lerp(generated[n + i], generated[i], (i + 1) / (overlap + 1))
    return made
