"""What every wardrobe stage asks of its inputs, and how it goes through them.

MASK is float (T,H,W) in 0..1, IMAGE float (T,H,W,3) in 0..1. A mask of one frame stands for all frames; any other
difference of length or size is an error, for nothing is ever resized silently. Errors name node, input, what came and
what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..core.frames import RunContext
from .limits import CHUNK, MASK_SLACK


def problem(node: str, name: str, got: object, wanted: str) -> ValueError:
    """Return the error of an input: which node, which input, what it is, what it should be."""
    return ValueError(f"{node}: {name} is {got}; expected {wanted}")


def spans(n: int, ctx: RunContext | None = None) -> Iterator[slice]:
    """Yield 0..n in runs of CHUNK frames; asks for the user's stop before each and reports progress after it."""
    for start in range(0, n, CHUNK):
        if ctx:
            ctx.check_cancelled()
        yield slice(start, min(start + CHUNK, n))
        if ctx:
            ctx.tick(min(start + CHUNK, n), n)


def check_mask(
    node: str,
    name: str,
    mask: torch.Tensor,
    frames: int | None = None,
    size: tuple[int, int] | None = None,
    fits: str = "images",
) -> torch.Tensor:
    """Return a MASK as (T,H,W), one frame broadcast to `frames` without copying.

    Args:
        frames, size: what it must have, `size` as (width, height); None leaves it open.
        fits: whose size and length that is, for the message.

    ValueError for another shape, length or size, integers, NaN, and values outside 0..1.
    """
    wanted = "a MASK, float (frames, height, width) in 0..1"
    check_kind(node, name, mask, torch.Tensor, wanted)
    mask = mask[None] if mask.ndim == 2 else mask
    if mask.ndim != 3 or not mask.numel() or not mask.is_floating_point():
        raise problem(node, name, f"{mask.dtype} {tuple(mask.shape)}", wanted)
    height, width = mask.shape[1:]
    if size is not None and (width, height) != tuple(size):
        raise problem(
            node,
            name,
            f"{width}x{height}",
            f"{size[0]}x{size[1]}, the size of {fits}; masks are not resized (is it of the crop, or of the latent?)",
        )
    if frames is not None and mask.shape[0] not in (1, frames):
        raise problem(node, name, f"{mask.shape[0]} frames", f"{frames} as {fits}, or 1 for all")
    for span in spans(mask.shape[0]):
        low, high = (float(v) for v in mask[span].aminmax())
        # A comparison with NaN is false, so this catches it too.
        if not (low >= -MASK_SLACK and high <= 1 + MASK_SLACK):
            raise problem(
                node, name, f"in {low:.4g}..{high:.4g} from frame {span.start}", "finite values in 0..1"
            )
    return mask if frames is None else mask.expand(frames, -1, -1)


def check_pair(
    node: str, first: tuple[str, torch.Tensor], second: tuple[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two MASKs, each given as (name, mask), as (T,H,W) of one size and length; one frame of either serves all."""
    masks = [check_mask(node, name, mask) for name, mask in (first, second)]
    n, (height, width) = max(len(m) for m in masks), masks[0].shape[1:]
    one = check_mask(node, first[0], masks[0], n, fits=second[0])
    return one, check_mask(node, second[0], masks[1], n, (width, height), first[0])


def check_kind(node: str, name: str, value: object, kind: type, wanted: str) -> None:
    """Raise ValueError unless `value` is a `kind`: a socket of any type lets everything through."""
    if not isinstance(value, kind):
        raise problem(node, name, f"a {type(value).__name__}", wanted)


def check_images(
    node: str,
    name: str,
    images: torch.Tensor,
    frames: int | None = None,
    size: tuple[int, int] | None = None,
    fits: str = "source",
) -> torch.Tensor:
    """Return an IMAGE batch after checking its shape, length and `size` (width, height); values are not looked at."""
    wanted = "an IMAGE, float (frames, height, width, 3); drop an alpha channel or repeat gray first"
    check_kind(node, name, images, torch.Tensor, wanted)
    if images.ndim != 4 or images.shape[3] != 3 or not images.numel() or not images.is_floating_point():
        raise problem(node, name, f"{images.dtype} {tuple(images.shape)}", wanted)
    height, width = images.shape[1:3]
    if size is not None and (width, height) != tuple(size):
        wanted = f"{size[0]}x{size[1]}, the size of {fits}; resize it with a node of its own if that is meant"
        raise problem(node, name, f"{width}x{height}", wanted)
    if frames is not None and images.shape[0] != frames:
        raise problem(node, name, f"{images.shape[0]} frames", f"{frames} as {fits}")
    return images


def check_choice(node: str, name: str, value: str, options: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `options`."""
    if value not in options:
        raise problem(node, name, repr(value), f"one of {', '.join(options)}")


def check_range(node: str, name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless low <= value <= high."""
    if not low <= value <= high:
        raise problem(node, name, value, f"{low}..{high}")
