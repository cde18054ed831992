"""The real hands on top: whatever the compositor's mask said, hands are the source's own pixels.

When the paint mask had the hands taken out this changes nothing; it is the proof, and the place where the edge of a finger
loses the old garment's colour.
"""

from __future__ import annotations

import numpy as np
import torch

from ..core.frames import FrameStream, RunContext
from .checks import check_choice, check_images, check_mask, check_range, problem
from .crop import mask_in_crop
from .distance import bounds, inside_distance, outside_distance
from .limits import BAND_LIMIT_PX, BAND_PX, CORE_PX, MATTES, THRESHOLD
from .masks import inward_feather
from .stitch import (
    Full,
    PatchedStream,
    Stitch,
    as_float,
    check_full,
    check_source,
    full_shape,
    patch_images,
    store,
)

NODE = "Wardrobe Repaste"
_FAR = 4
_BEHIND_PX = 2
_MIXED = (2.5 / 255, 0.25)
"""Behind the band a pixel that is this far from the generated one is mixed; more than this share of them is a ramp."""
_MIN_CONTRAST = 0.05
"""Distance of hand and garment in RGB below which mixed pixels cannot be told apart."""


def repaste(
    base: Full,
    source: Full,
    occluders: torch.Tensor,
    stitch: Stitch | None = None,
    generated: torch.Tensor | None = None,
    matte: str = MATTES[0],
    band_px: int = BAND_PX,
    ctx: RunContext | None = None,
) -> Full:
    """Return `base` with the source's hands laid over it.

    Args:
        base, source: full frames, IMAGE (T,H,W,3) or streams; a stream `base` gives a lazy stream.
        occluders: MASK of the hands, over the full frames or, if `stitch` is given, over the crop.
        generated: the crop repainted (n,h,w,3); colour_line needs it, soft fades into it.
        matte: hard, hand pixels are the source's bits. soft, the outermost `band_px` of the hand fade into what is under
            it. colour_line, pixels within `band_px` of the hand's outline that lie between the hand's and the old
            garment's colour get the new garment's share instead; the hand's core keeps its bits.

    Warns of what cannot have the effect that is asked for: soft that fades a hand into itself, a band that is narrower than
    the feather of the alpha. A stream warns while it runs. ValueError for what does not fit, and for colour_line without
    stitch and generated.
    """
    ctx = ctx or RunContext()
    check_choice(NODE, "matte", matte, MATTES)
    check_range(NODE, "band_px", band_px, 0, BAND_LIMIT_PX)
    shape = full_shape(NODE, "base", base)
    check_full(NODE, "source", source, shape, "as base")
    if stitch is None:
        stitch = Stitch.whole(shape)
        occluders = check_mask(NODE, "occluders", occluders, shape[0], (shape[2], shape[1]), "base")
        if generated is not None or matte == "colour_line":
            wanted = "that of Subject Crop: generated lies in it (matte hard does without both)"
            raise problem(NODE, "stitch", "not connected", wanted)
    else:
        check_source(NODE, "base", base, stitch)
        occluders = mask_in_crop(NODE, "occluders", occluders, stitch)
    if generated is not None:
        check_images(NODE, "generated", generated, stitch.frames, stitch.size, "the crop")
    elif matte == "colour_line":
        wanted = "the repainted crop that Composite got: colour_line mixes it in (matte hard does without)"
        raise problem(NODE, "generated", "not connected", wanted)
    if matte == "hard" and band_px != BAND_PX:
        ctx.warn(f"band_px {band_px} has no effect with the matte hard")
    elif matte != "hard" and not band_px:
        ctx.warn(f"the matte {matte} has no effect with band_px 0: it is as hard")

    def patch(start: int, run: tuple[torch.Tensor, ...], ctx: RunContext) -> torch.Tensor:
        made, photos = run[0].clone(), run[1]
        for i in range(min(len(made), max(0, stitch.kept - start))):
            (rows, columns), own = stitch.window(start + i)
            new = None if generated is None else generated[start + i][own].cpu().float()
            hands = (occluders[start + i][own] >= THRESHOLD).cpu()
            _lay_over(made[i][rows, columns], photos[i][rows, columns], hands, new, matte, band_px, ctx)
        return made

    if isinstance(base, FrameStream):
        return PatchedStream("wardrobe repaste", (base, source), patch)
    return patch_images((base, source), patch, ctx)


def colour_line(
    base: np.ndarray, source: np.ndarray, generated: np.ndarray, hands: np.ndarray, band_px: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the band's pixels float32 (h,w,3) and where they count, bool (h,w).

    base, source, generated: float32 (h,w,3) in 0..1; hands: bool (h,w). With F the mean of the hand's core nearby and B
    that of the old garment, both away from the outline, a pixel S of the band is M = ((S-B).(F-B)) / |F-B|^2 hand, cut to
    0..1, and S + (1-M) (G-B) is what it would be on the new garment G. Bands without repainted pixels nearby are left out.
    """
    inside, outside = inside_distance(hands), outside_distance(hands)
    painted = (base != source).any(2) & ~hands
    reach = _reach(band_px)
    core, garment = inside > CORE_PX, painted & (outside > CORE_PX) & (outside <= reach)
    band = np.where(hands, inside <= band_px, painted & (outside <= band_px))
    (front, has_front), (back, has_back) = (
        _nearby_mean(source, area, band, reach) for area in (core, garment)
    )
    toward = front - back
    contrast = (toward * toward).sum(2)
    known = has_front & has_back & (contrast > _MIN_CONTRAST**2)
    band &= known
    share = ((source - back) * toward).sum(2) / np.where(known, contrast, 1)
    made = source + (1 - share.clip(0, 1))[..., None] * (generated - back)
    return np.where(band[..., None], made, 0).clip(0, 1).astype(np.float32), band


def _lay_over(
    area: torch.Tensor,
    photo: torch.Tensor,
    hands: torch.Tensor,
    new: torch.Tensor | None,
    matte: str,
    band_px: int,
    ctx: RunContext,
) -> None:
    """Lay the hands of `photo` over `area` (both (h,w,3) views of the frames) in place."""
    where = bounds(hands.numpy(), (_FAR + 1) * _reach(band_px))
    if where is None:
        return
    area, photo, hands = area[where], photo[where], hands[where]
    before = as_float(area).cpu().clone()  # `area` is written to below
    old = as_float(photo).cpu()
    # The bits themselves, never through another format.
    same = photo.dtype == area.dtype
    area.copy_(
        torch.where(
            hands[..., None].to(area.device), photo.to(area.device) if same else _like(old, area), area
        )
    )
    if matte == "hard" or not band_px:
        return
    if matte == "soft":
        weight = torch.from_numpy(inward_feather(hands.numpy(), band_px, keep_thin=True))
        under = before if new is None else new[where]
        edge = hands & (weight < 1)
        made = torch.lerp(under, old, weight[..., None])
        if new is None and bool(edge.any()) and torch.equal(before[edge], old[edge]):
            ctx.warn(
                "the matte soft changes nothing: base has the source's hands already (Subtract Occluders), so they fade into "
                "themselves; connect stitch and generated"
            )
    else:
        arrays = before.numpy(), old.numpy(), new[where].numpy(), hands.numpy()
        if _ramp_is_wider(*arrays, band_px):
            ctx.warn(
                f"behind the band of {band_px} px round the hands the old colour is still mixed in: let band_px be at least "
                "Pixel Mask's feather_px, and generated be what Composite got"
            )
        line, band = colour_line(*arrays, band_px)
        made, edge = torch.from_numpy(line), torch.from_numpy(band)
    edge = edge & torch.isfinite(made).all(2)  # what was decoded as NaN or infinite leaves the pixel as it is
    store(area, made.to(area.device), edge[..., None].to(area.device))


def _ramp_is_wider(
    base: np.ndarray, source: np.ndarray, generated: np.ndarray, hands: np.ndarray, band_px: int
) -> bool:
    """Return whether painted pixels just behind the band are not the generated ones, so that alpha is below 1 there.

    Pixels that are nearer to the paint's other borders than to a hand have their feather from those.
    """
    painted = (base != source).any(2) & ~hands
    apart = outside_distance(hands)
    behind = painted & (apart > band_px) & (apart <= band_px + _BEHIND_PX)
    behind &= inside_distance(painted | hands) > apart + _BEHIND_PX
    if not behind.any():
        return False
    difference, share = _MIXED
    return float((np.abs(base - generated)[behind].max(1) > difference).mean()) > share


def _reach(band_px: int) -> int:
    """Return how far the colours of a pixel of the band are looked for, in pixels."""
    return band_px + CORE_PX + 4


def _like(pixels: torch.Tensor, area: torch.Tensor) -> torch.Tensor:
    if area.dtype == torch.uint8:
        pixels = (pixels * 255).round()
    return pixels.to(area.device, area.dtype)


def _nearby_mean(
    pixels: np.ndarray, area: np.ndarray, wanted: np.ndarray, radius: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `local_mean`, over four times the radius where there is nothing near and bool (h,w) `wanted` asks for it.

    A slit of 3 px has no garment of its own that is not mixed, a strand of 3 px no skin: they take the colours beyond their
    ends. Mean colour error of such slits 0.3, of slits that are left as they are 11.4, left half done 4.6.
    """
    near, known = local_mean(pixels, area, radius)
    if not (wanted & ~known).any():
        return near, known
    far, reached = local_mean(pixels, area, _FAR * radius)
    return np.where(known[..., None], near, far), known | reached


def local_mean(pixels: np.ndarray, area: np.ndarray, radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of `pixels` over the part of `area` in a square of `radius` round each pixel, and where there is any."""
    import cv2

    side = (2 * radius + 1,) * 2
    weight = area.astype(np.float32)
    count = cv2.boxFilter(weight, -1, side, normalize=False, borderType=cv2.BORDER_CONSTANT)
    total = cv2.boxFilter(
        pixels * weight[..., None], -1, side, normalize=False, borderType=cv2.BORDER_CONSTANT
    )
    return total / np.maximum(count, 1)[..., None], count > 0.5
