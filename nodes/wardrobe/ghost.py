"""A second pair of hands: does the result show hands where the source has none?

No pixel mask keeps a model from painting another hand on the garment beside the real one, so somebody has to look.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core.frames import RunContext
from ..core.report import FrameList
from .checks import check_pair, check_range, spans
from .distance import grow
from .limits import GHOST_PX, SHAPE_LIMIT_PX, THRESHOLD


@dataclass(frozen=True)
class GhostCheck:
    """ok: no ghost at all; report: where and how large; mask: MASK (T,H,W) of the ghosts' pixels."""

    ok: bool
    report: str
    mask: torch.Tensor


def ghost_check(
    occluders_source: torch.Tensor,
    occluders_result: torch.Tensor,
    tolerance_px: int = GHOST_PX,
    min_px: int = 0,
    ctx: RunContext | None = None,
) -> GhostCheck:
    """Find hands of the result that lie outside the source's hands grown by `tolerance_px` (0..64).

    Both MASK (T,H,W) of one size, cut at 0.5, as a tracker gives them for the same words. Connected parts of at most
    `min_px` pixels are taken for the tracker's noise.
    """
    import cv2

    node = "Wardrobe Ghost Check"
    check_range(node, "tolerance_px", tolerance_px, 0, SHAPE_LIMIT_PX)
    check_range(node, "min_px", min_px, 0, 1_000_000)
    result, source = check_pair(
        node, ("occluders_result", occluders_result), ("occluders_source", occluders_source)
    )
    n, ghosts, found, worst = len(result), torch.zeros(result.shape), FrameList(), (0, 0)
    for span in spans(n, ctx):
        for i in range(span.start, span.stop):
            allowed = grow((source[i] >= THRESHOLD).cpu().numpy(), tolerance_px)
            ghost = (result[i] >= THRESHOLD).cpu().numpy() & ~allowed
            if min_px and ghost.any():
                _, labels, stats, _ = cv2.connectedComponentsWithStats(ghost.view(np.uint8), connectivity=8)
                ghost &= (stats[:, cv2.CC_STAT_AREA] > min_px)[labels]
            count = int(ghost.sum())
            found.add(i, [count > 0])
            worst = max(worst, (count, -i))
            ghosts[i] = torch.from_numpy(ghost)
    if not found:
        return GhostCheck(True, f"no second hands in {n} frames", ghosts)
    total = int(ghosts.sum())
    report = (
        f"hands where the source has none: frames {found}; {total} px in all, {worst[0]} px at most (frame {-worst[1]}). "
        "Say in the prompt that nothing rests on the garment, or try another seed"
    )
    return GhostCheck(False, report, ghosts)
