"""Sockets and inputs that the wardrobe's nodes share."""

from __future__ import annotations

import torch
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..comfy_nodes import ComfyContext, Frames
from .limits import THRESHOLD
from .stitch import Full

CATEGORY = "Talking Head/wardrobe"

LatentMaskSocket = io.Custom("LATENT_MASK")
"""What a sampler draws anew. Never a MASK: the server refuses the link, and no node turns one into the other."""
StitchSocket = io.Custom("WARDROBE_STITCH")


def full_input(name: str, tooltip: str) -> io.MultiType.Input:
    """Return a socket for full frames: IMAGE, or FRAMES, which need no memory for the whole clip."""
    return io.MultiType.Input(name, [io.Image, Frames], tooltip=tooltip)


def full_outputs() -> list:
    return [
        io.Image.Output("IMAGE", display_name="images"),
        Frames.Output("FRAMES", display_name="frames"),
        io.String.Output("REPORT", display_name="report"),
    ]


def full_output(made: Full, ctx: ComfyContext) -> io.NodeOutput:
    """Return the answer of a node that gives IMAGE for IMAGE and FRAMES for FRAMES; the other socket says so if used."""
    if isinstance(made, torch.Tensor):
        blocked = ExecutionBlocker("the full frames came as IMAGE, so they leave at the output images")
        return io.NodeOutput(made, blocked, ctx.report.text())
    blocked = ExecutionBlocker("the full frames came as FRAMES, so they leave at the output frames")
    return io.NodeOutput(blocked, made, ctx.report.text())


def choice_input(
    name: str, options: tuple[str, ...], tooltip: str, default: str | None = None
) -> io.Combo.Input:
    """Return a list of words; the first is the default unless another is given."""
    return io.Combo.Input(name, options=list(options), default=default or options[0], tooltip=tooltip)


def whole_input(
    name: str, default: int, limits: tuple[int, int], tooltip: str, optional: bool = False
) -> io.Int.Input:
    """Return a whole number, of pixels or frames as `tooltip` says, within `limits`."""
    low, high = limits
    return io.Int.Input(name, default=default, min=low, max=high, tooltip=tooltip, optional=optional)


def threshold_input(
    tooltip: str = "Mask value from which a pixel is inside; 0.5 is where a tracker's soft edge has its outline.",
    optional: bool = False,
) -> io.Float.Input:
    return io.Float.Input(
        "threshold", default=THRESHOLD, min=0.0, max=1.0, step=0.01, tooltip=tooltip, optional=optional
    )
