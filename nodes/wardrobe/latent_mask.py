"""The sampler's mask: which latents are drawn anew. Its own type, because no compositor may ever get it.

A latent covers `spatial` pixels a side and a run of frames; a token covers `token` latents a side, and the model looks at
whole tokens. Anything above 0 anywhere in a token and run sets it: a superset of what is painted. ComfyUI's own resampling
of a pixel mask is trilinear over time: of 175 masks that each mark a single frame, 123 come out at half or less on H3's 52
latents, 71 of them at 0. A mask that has the latent's size already passes unchanged.

There is no way from a LatentMask to a MASK, on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..core.frames import RunContext
from .checks import check_choice, check_kind, check_mask, check_range, problem, spans
from .distance import grow
from .limits import GRIDS, LATENT_GROW_LIMIT_PX

NODE = "Wardrobe Latent Mask"


@dataclass(frozen=True)
class LatentGrid:
    """How a model cuts pixels into latents.

    spatial: pixels a latent covers on each side; token: latents a token covers on each side; head: frames of the runs at
    the beginning, once; cycle: frames of the runs behind them, again and again; count: latents of n frames where the
    model itself says so (None: as many runs as hold n frames, the last may be short).
    """

    name: str
    spatial: int
    token: int
    head: tuple[int, ...]
    cycle: tuple[int, ...]
    count: Callable[[int], int] | None = None

    @property
    def cell(self) -> int:
        """Pixels of a token's side."""
        return self.spatial * self.token

    def runs(self, n: int) -> tuple[int, ...]:
        """Return the frames of each latent, together `n`."""
        if self.count is not None:
            return _counted_runs(self.count, n)
        runs, left, at = [], n, 0
        while left > 0:
            length = (
                self.head[at] if at < len(self.head) else self.cycle[(at - len(self.head)) % len(self.cycle)]
            )
            runs.append(min(length, left))
            left, at = left - length, at + 1
        return tuple(runs)


NAMED_GRIDS = {
    "h3": LatentGrid("h3", 16, 2, (), (1, 4, 4, 4, 4)),
    "wan": LatentGrid("wan", 8, 2, (1,), (4,)),
    "ltx": LatentGrid("ltx", 32, 1, (1,), (8,)),
    "sd": LatentGrid("sd", 8, 1, (), (1,)),
}


@dataclass(frozen=True, eq=False)
class LatentMask:
    """cells: uint8 (Tl, h, w) of 0 and 1 on the latent's grid; runs: frames of each latent; source: (T, H, W) in pixels.

    Not a tensor and without a tensor's methods: laundered through a socket of any type it fails where a mask is used.
    """

    cells: np.ndarray
    grid: LatentGrid
    runs: tuple[int, ...]
    source: tuple[int, int, int]

    def __post_init__(self) -> None:
        cells = np.array(self.cells, np.uint8)
        cells.flags.writeable = False
        object.__setattr__(self, "cells", cells)

    def covered(self, start: int, stop: int) -> np.ndarray:
        """Return bool (stop - start, H, W): which pixels of these frames the sampler draws anew. To look at, and to
        measure what it left alone."""
        latent = np.repeat(np.arange(len(self.runs)), self.runs)[start:stop]
        side = self.grid.spatial
        return self.cells[latent].repeat(side, 1).repeat(side, 2) > 0


def latent_mask(
    mask: torch.Tensor, grid: LatentGrid, grow_px: int = 0, ctx: RunContext | None = None
) -> LatentMask:
    """Return the latents that a MASK (T,H,W) touches, whole tokens of them.

    `grow_px`: 0..128, pixels by which the mask grows before (a Euclidean disc). ValueError if width or height are no
    multiple of a token; Subject Crop's align sees to that. 4 ms a frame on 736x960.
    """
    check_range(NODE, "grow_px", grow_px, 0, LATENT_GROW_LIMIT_PX)
    mask = check_mask(NODE, "mask", mask)
    n, height, width = mask.shape
    cell = grid.cell
    if height % cell or width % cell:
        wanted = (
            f"multiples of {cell}, a token of {grid.name}; set Subject Crop's align to {cell} or a multiple"
        )
        raise problem(NODE, "mask", f"{width}x{height}", wanted)
    runs = grid.runs(n)
    tokens = np.zeros((len(runs), height // cell, width // cell), bool)
    latent = np.repeat(np.arange(len(runs)), runs)
    for span in spans(n, ctx):
        on = (mask[span] > 0).cpu().numpy()
        for t, frame in enumerate(on, span.start):
            frame = grow(frame, grow_px) if grow_px else frame
            tokens[latent[t]] |= frame.reshape(height // cell, cell, -1, cell).any(axis=(1, 3))
    cells = tokens.repeat(grid.token, 1).repeat(grid.token, 2)
    return LatentMask(cells, replace(grid, count=None), runs, (n, height, width))


def preview(latent: LatentMask) -> torch.Tensor:
    """Return a small picture of each latent for people, IMAGE (Tl,h,w,3): drawn anew is orange, kept is dark."""
    colours = torch.tensor([[0.1, 0.1, 0.12], [1.0, 0.55, 0.1]])
    return colours[torch.from_numpy(latent.cells.astype(np.int64))]


def find_grid(grid: str, custom: str = "", vae: object | None = None) -> LatentGrid:
    """Return the grid of a name, of the text "spatial,token,head,cycle", or of a VAE (auto).

    head and cycle are frame counts joined by "+", head may be empty: "16,2,,1+4+4+4+4" is H3, "8,2,1,4" Wan.
    """
    check_choice(NODE, "grid", grid, GRIDS)
    if grid == "custom":
        return parse_grid(custom)
    if grid != "auto":
        return NAMED_GRIDS[grid]
    if vae is None:
        raise problem(
            NODE, "grid", "auto without a vae", "the model's VAE at the input vae, or a grid by name"
        )
    return vae_grid(vae)


def parse_grid(text: str) -> LatentGrid:
    """Return the grid of "spatial,token,head,cycle". ValueError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    wanted = '"spatial,token,head,cycle" such as 8,2,1,4 or 16,2,,1+4+4+4+4 (pixels, latents, frames, frames)'
    runs = r"[1-9]\d{0,3}(\+[1-9]\d{0,3})*"
    fits = len(parts) == 4 and all(re.fullmatch(r"[1-9]\d{0,3}", part) for part in parts[:2])
    if not (fits and re.fullmatch(f"({runs})?", parts[2]) and re.fullmatch(runs, parts[3])):
        raise problem(NODE, "custom", repr(text), wanted)
    head, cycle = (tuple(int(v) for v in part.split("+")) if part else () for part in parts[2:])
    return LatentGrid("custom", int(parts[0]), int(parts[1]), head, cycle)


def vae_grid(vae: object) -> LatentGrid:
    """Return the grid that a ComfyUI VAE says it has.

    In this order: H3's own numbers (clip_length, vae_ratio_t ... on the network), `downscale_ratio` with a function for
    the frames (asked for every length; H3's preview VAE says with it that it counts as H3 does), an image VAE's plain
    factor, `temporal_compression_decode`. Tokens are taken to be 2x2 latents for video VAEs below 32 px, 1 otherwise:
    larger than a model's own is only a wider superset.
    """
    network = getattr(vae, "first_stage_model", None)
    ratio_t, pad = getattr(network, "vae_ratio_t", None), getattr(network, "frame_pre_padding", 0)
    if ratio_t and getattr(network, "clip_length", None):
        chunk = getattr(network, "tokens_chunk_size", None) or -(-(network.clip_length + pad) // ratio_t)
        cycle = (ratio_t - pad, *[ratio_t] * (chunk - 1))
        return LatentGrid("h3", int(network.vae_ratio), 2, (), cycle)
    ratio = getattr(vae, "downscale_ratio", None)
    if isinstance(ratio, (tuple, list)) and len(ratio) == 3 and callable(ratio[0]):
        spatial, h3 = int(ratio[1]), NAMED_GRIDS["h3"]
        if spatial == h3.spatial and all(ratio[0](n) == len(h3.runs(n)) for n in (5, 22, 175)):
            return h3
        return LatentGrid("vae", spatial, 2 if spatial < 32 else 1, (), (1,), ratio[0])
    temporal = getattr(vae, "temporal_compression_decode", None)
    frames = temporal() if callable(temporal) else None
    if isinstance(ratio, int) and ratio > 0:
        if frames is None:
            return LatentGrid("vae", ratio, 1, (), (1,))
        return LatentGrid("vae", ratio, 2 if ratio < 32 else 1, (1,), (int(frames),))
    raise problem(
        NODE, "vae", f"a {type(network).__name__} whose grid is unknown", "a grid by name, or custom"
    )


def latents_of_frames(mask: LatentMask, latent: torch.Tensor) -> torch.Tensor:
    """Return the noise mask for a video latent (B,C,Tl,h,w) or image latents (T,C,h,w).

    float32 (1,1,Tl,h,w) or (T,1,h,w), 1 where the sampler draws. ValueError if the latent has another size.
    """
    check_kind("Apply Latent Mask", "latent_mask", mask, LatentMask, "what Wardrobe Latent Mask gives")
    have = (latent.shape[2], *latent.shape[3:]) if latent.ndim == 5 else (latent.shape[0], *latent.shape[2:])
    if latent.ndim not in (4, 5) or have != mask.cells.shape:
        t, h, w = mask.cells.shape
        frames, height, width = mask.source
        wanted = (
            f"(.., {t}, {h}, {w}) as latent_mask, made of {frames} frames of {width}x{height} on the grid "
            f"{mask.grid.name}; encode the frames that the mask was made of, and let Subject Crop fit frame_rule"
        )
        raise problem("Wardrobe Apply Latent Mask", "video_latent", tuple(latent.shape), wanted)
    cells = torch.from_numpy(mask.cells.astype(np.float32))
    return cells[None, None] if latent.ndim == 5 else cells[:, None]


def audio_length(mask: LatentMask, fps: float, rate: float) -> int:
    """Return how many audio latents the clip's frames have at `rate` a second."""
    return round(mask.source[0] / fps * rate)


def fit_audio(latent: torch.Tensor, length: int) -> torch.Tensor:
    """Return an audio latent (..., time) cut or padded with zeros to `length`."""
    if latent.ndim not in (3, 4):
        wanted = "sound, (1, channels, time) or (1, channels, 2, time)"
        raise problem("Wardrobe Apply Latent Mask", "audio_latent", tuple(latent.shape), wanted)
    have = latent.shape[-1]
    if have >= length:
        return latent[..., :length]
    return torch.nn.functional.pad(latent, (0, length - have))


def audio_mask(mask: LatentMask, shape: tuple[int, ...], mode: str, fps: float, rate: float) -> torch.Tensor:
    """Return the noise mask of an audio latent shaped `shape`, float32 (1, 1, ..., time) of 0 and 1.

    keep: zeros, the sound conditions the model and comes out as it went in; regenerate: ones; follow: 1 where the
    picture is drawn anew at that moment.
    """
    length = shape[-1]
    if mode == "follow":
        drawn = np.repeat(mask.cells.any(axis=(1, 2)), mask.runs)
        # Any frame on screen during an audio latent counts.
        drawn_before = np.concatenate([[0], np.cumsum(drawn)])
        edges = np.arange(length + 1) / rate * fps
        first = np.floor(edges[:-1] + 1e-9).astype(np.int64).clip(0, len(drawn) - 1)
        stop = np.ceil(edges[1:] - 1e-9).astype(np.int64).clip(1, len(drawn))
        row = torch.from_numpy((drawn_before[stop] > drawn_before[first]).astype(np.float32))
    else:
        row = torch.full((length,), float(mode == "regenerate"))
    return row.reshape([1] * (len(shape) - 1) + [length]).expand(1, 1, *shape[2:]).contiguous()


def _counted_runs(count: Callable[[int], int], n: int) -> tuple[int, ...]:
    """Return the runs of a model that says how many latents a clip of each length has; the last takes what is left.

    Where two frames still make one latent, as everywhere in ComfyUI, a new latent is complete with the frame that adds it;
    where two make two it begins with that frame.
    """
    counts = np.array([int(count(frames)) for frames in range(n + 1)][1:])
    if counts[-1] < 1:
        raise problem(NODE, "mask", f"{n} frames", "as many as the VAE makes a latent of")
    steps = np.diff(counts, prepend=0)
    if steps.min() < 0 or steps.max() > 1:
        got = f"one whose latents grow by {steps.min()} to {steps.max()} a frame"
        raise problem(NODE, "vae", got, "0 or 1; name the grid, or write it as custom")
    added = np.flatnonzero(steps)
    complete = int(count(2)) == 1 or (np.diff(counts) == 1).all()
    ends = added + 1 if complete else np.append(added[1:], n)
    ends[-1] = n
    return tuple(int(length) for length in np.diff(ends, prepend=0))
