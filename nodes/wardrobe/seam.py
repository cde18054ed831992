"""Bringing the colours of a generated crop back to the picture they go into.

context_gain is for garments: a decoder drifts by a little gain and offset, and what was not drawn anew shows by how much.
reinhard_lab and poisson pull the painted part itself towards the source and are for faces. On a garment they bring the
old one back: Reinhard turned a blue of (.06, .12, .45) into the burgundy it replaced (.36, .04, .13), Poisson a patch of
190, 170, 150 into the plate's 90, 80, 70.
"""

from __future__ import annotations

import numpy as np
import torch

from ..core.frames import RunContext
from .checks import check_choice, check_images, check_kind, check_mask, problem, spans
from .distance import bounds, grow
from .latent_mask import LatentMask
from .limits import (
    CONTEXT_MARGIN_PX,
    CONTEXT_MIN_PX,
    GAIN_FRAMES,
    GAIN_RANGE,
    GAIN_RIDGE,
    OFFSET_LIMIT,
    POISSON_BORDER_PX,
    SEAM_MODES,
    SPREAD_RANGE,
    THRESHOLD,
)

NODE = "Wardrobe Seam Blend"
_MIN_PX = 64
_MIN_CLONE = 3
"""seamlessClone fails in its solver for masks that are narrower."""


def seam_blend(
    generated: torch.Tensor,
    source: torch.Tensor,
    mask: torch.Tensor,
    mode: str = SEAM_MODES[1],
    latent_mask: LatentMask | None = None,
    ctx: RunContext | None = None,
) -> torch.Tensor:
    """Return `generated` with its colours matched, IMAGE (n,h,w,3) in 0..1.

    Args:
        generated, source: IMAGE (n,h,w,3), both of the crop.
        mask: alpha (n,h,w) of the crop.
        mode: none, context_gain, reinhard_lab, poisson (8 bits a channel; 243 ms a frame on 640x896).
        latent_mask: what the sampler drew anew; without it all within 64 px of the mask counts as that.

    context_gain reports the gain and offset it applied and where it ran into a limit: then the context is not what drifted,
    but was drawn anew, as in a crop that was repainted as a whole.
    The compositor applies `mask` afterwards, so whatever changes outside it never reaches the picture.
    """
    ctx = ctx or RunContext()
    check_choice(NODE, "mode", mode, SEAM_MODES)
    generated = check_images(NODE, "generated", generated)
    n, (height, width) = len(generated), generated.shape[1:3]
    source = check_images(NODE, "source", source, n, (width, height), "generated")
    mask = check_mask(NODE, "mask", mask, n, (width, height), "generated")
    if latent_mask is not None:
        check_kind(NODE, "latent_mask", latent_mask, LatentMask, "what Wardrobe Latent Mask gives")
    if latent_mask is not None and latent_mask.source != (n, height, width):
        got, wanted = (f"of {t} frames of {w}x{h}" for t, h, w in (latent_mask.source, (n, height, width)))
        raise problem(NODE, "latent_mask", got, f"{wanted}, as generated")
    if mode == "none":
        return generated
    if mode == "context_gain":
        return _context_gain(generated, source, mask, latent_mask, ctx)
    frame = _reinhard if mode == "reinhard_lab" else _poisson
    made = torch.empty_like(generated, dtype=torch.float32, device="cpu")
    for span in spans(n, ctx):
        for i in range(span.start, span.stop):
            new = _pixels(generated[i])
            done = frame(new, _pixels(source[i]), mask[i].cpu().float().numpy())
            # What is not finite stays so: the compositor refuses it, instead of showing it black.
            made[i] = torch.from_numpy(np.where(np.isfinite(new), done, new))
    return made


def fit_gain(generated: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return (3, 2): gain and offset of each channel so that gain * generated + offset is nearest to the source.

    generated, source: float (pixels, 3) of the context. Least squares with a ridge towards gain 1, clipped to 0.9..1.1 and
    +-0.03. NaN with fewer than 1024 pixels.

    Noise of either side draws a slope towards 0: what the decoder adds, the slope of source on generated, and what it smooths
    away, that of generated on source. The true gain lies between the first and the inverse of the second (Frisch's
    bounds), and of these the one nearest to 1 is taken: a plain wall says nothing of the gain and moves nothing.
    """
    if len(generated) < CONTEXT_MIN_PX:
        return np.full((3, 2), np.nan)
    x, y = generated.astype(np.float64), source.astype(np.float64)
    mean_x, mean_y = x.mean(0), y.mean(0)
    shared = ((x - mean_x) * (y - mean_y)).mean(0) + GAIN_RIDGE
    forward = shared / (x.var(0) + GAIN_RIDGE)
    inverse = (y.var(0) + GAIN_RIDGE) / np.maximum(shared, GAIN_RIDGE / 2)
    low, high = np.minimum(forward, inverse), np.maximum(forward, inverse)
    gain = np.ones(3).clip(low, high).clip(*GAIN_RANGE)
    offset = mean_y - gain * mean_x  # the best one for the clipped gain
    return np.stack([gain, offset.clip(-OFFSET_LIMIT, OFFSET_LIMIT)], 1)


def steady(fits: np.ndarray) -> np.ndarray:
    """Return fits (T, 3, 2) as their median over 9 frames, so that nothing flickers; NaN entries have no say."""
    half = GAIN_FRAMES // 2
    made = np.empty_like(fits)
    for t in range(len(fits)):
        near = fits[max(0, t - half) : t + half + 1]
        near = near[np.isfinite(near).all((1, 2))]
        made[t] = np.median(near, axis=0) if len(near) else (1.0, 0.0)
    return made


def _context_gain(
    generated: torch.Tensor,
    source: torch.Tensor,
    mask: torch.Tensor,
    latent_mask: LatentMask | None,
    ctx: RunContext,
) -> torch.Tensor:
    n, fits = len(generated), np.empty((len(generated), 3, 2))
    for span in spans(n, ctx):
        drawn = None if latent_mask is None else latent_mask.covered(span.start, span.stop)
        for i in range(span.start, span.stop):
            painted = (mask[i] > 0).cpu().numpy()
            context = ~(grow(painted, CONTEXT_MARGIN_PX) if drawn is None else drawn[i - span.start])
            new, old = _pixels(generated[i])[context], _pixels(source[i])[context]
            known = np.isfinite(new).all(1) & np.isfinite(old).all(1)
            fits[i] = fit_gain(new[known], old[known])
    blind = int(np.isnan(fits).any((1, 2)).sum())
    if blind:
        ctx.warn(f"{blind} of {n} frames have too little untouched context to measure the decoder's drift")
    if blind == n:
        ctx.warn("nothing outside what was drawn anew is left to compare: the colours stay as they are")
    limited = int(_at_limit(fits).sum())
    if limited:
        ctx.warn(
            f"context_gain ran into its limits (gain {GAIN_RANGE[0]} to {GAIN_RANGE[1]}, offset {OFFSET_LIMIT}) in {limited} of "
            f"{n} frames: what counts as untouched was repainted too; connect latent_mask, or use the mode none"
        )
    fits = steady(fits)
    for k, name in enumerate(("red", "green", "blue")):
        gain, offset = (f"{v.min():.3f} to {v.max():.3f}" for v in fits[:, k].T)
        ctx.report.fact(f"context_gain of {name}", f"gain {gain}, offset {offset}")
    made = torch.empty_like(generated, dtype=torch.float32)
    for i in range(n):
        gain, offset = (torch.from_numpy(v).to(generated.device, torch.float32) for v in fits[i].T)
        made[i] = generated[i]
        if float((gain - 1).abs().max() + offset.abs().max()) > 1e-4:
            made[i].mul_(gain).add_(offset).clamp_(0, 1)
    return made


def _at_limit(fits: np.ndarray) -> np.ndarray:
    """Return bool (T,): whether a gain or an offset of fits (T, 3, 2) lies on its limit; NaN does not."""
    gain, offset = fits[..., 0], fits[..., 1]
    on = (
        np.isclose(gain, GAIN_RANGE[0])
        | np.isclose(gain, GAIN_RANGE[1])
        | np.isclose(abs(offset), OFFSET_LIMIT)
    )
    return on.any(1)


def _reinhard(new: np.ndarray, old: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Reinhard, Ashikhmin, Gooch, Shirley, "Color Transfer between Images", 2001, in CIE Lab (D65)."""
    import cv2

    area = bounds(alpha > 0)
    if area is None:
        return new
    part = alpha[area] >= THRESHOLD
    part &= np.isfinite(new[area]).all(2) & np.isfinite(old[area]).all(2)
    if int(part.sum()) < _MIN_PX:
        return new
    lab, there = (
        cv2.cvtColor(np.nan_to_num(x[area], posinf=1, neginf=0), cv2.COLOR_RGB2LAB) for x in (new, old)
    )
    own, wanted = lab[part], there[part]
    spread = (wanted.std(0) / np.maximum(own.std(0), 1e-3)).clip(*SPREAD_RANGE)
    matched = cv2.cvtColor(
        ((lab - own.mean(0)) * spread + wanted.mean(0)).astype(np.float32), cv2.COLOR_LAB2RGB
    )
    made = new.copy()
    made[area] = np.where((alpha[area] > 0)[..., None], matched.clip(0, 1), made[area])
    return made


def _poisson(new: np.ndarray, old: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Perez, Gangnet, Blake, "Poisson Image Editing", 2003: OpenCV's seamlessClone, through 8 bits."""
    import cv2

    area = bounds(alpha > 0, POISSON_BORDER_PX)
    if area is None:
        return new

    def padded(pixels: np.ndarray) -> np.ndarray:
        eight = (np.nan_to_num(pixels[area]).clip(0, 1) * 255).round().astype(np.uint8)
        return cv2.copyMakeBorder(eight, *[POISSON_BORDER_PX] * 4, cv2.BORDER_REPLICATE)

    inside = np.pad((alpha[area] > 0).astype(np.uint8) * 255, POISSON_BORDER_PX)
    x, y, w, h = cv2.boundingRect(inside)
    if min(w, h) < _MIN_CLONE:
        return new
    cloned = cv2.seamlessClone(padded(new), padded(old), inside, (x + w // 2, y + h // 2), cv2.NORMAL_CLONE)
    b = POISSON_BORDER_PX
    made = new.copy()
    made[area] = np.where(
        (alpha[area] > 0)[..., None], cloned[b:-b, b:-b].astype(np.float32) / 255, made[area]
    )
    return made


def _pixels(frame: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(frame.cpu().float().numpy())
