"""What the wardrobe costs: milliseconds a frame of every stage, and the memory of a whole clip beside its inputs and outputs.

The clip is drawn while it is read: a presenter's garment, hands with five fingers on it, all of it moving.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from ..core.frames import FrameInfo, FrameStream, RunContext
from .composite import composite
from .crop import subject_crop
from .latent_mask import NAMED_GRIDS, latent_mask
from .masks import pixel_mask, subtract_occluders
from .measure import measure
from .repaste import repaste
from .seam import seam_blend
from .stitch import Stitch, as_float

FULL = (1080, 1920)
CROP = (736, 960)
CHAIN = ("subtract occluders", "pixel mask", "composite")
"""What runs for every frame of every clip."""
LIMIT_MS = 80.0
"""For CHAIN together, a frame of CROP on two cores."""
LIMIT_MB = 1500
"""For all stages, beside inputs and outputs, 175 frames of FULL."""


class DrawnFrames(FrameStream):
    """Frames (n,H,W,3) uint8 that are never held: a soft picture that wanders."""

    stage = "drawn frames"

    def __init__(self, n: int, size: tuple[int, int] = FULL) -> None:
        import cv2

        width, height = size
        self.info = FrameInfo(width, height, Fraction(25), n)
        coarse = np.random.default_rng(0).integers(0, 256, (9, 8, 3), np.uint8)
        self._picture = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, None]]:
        for start in range(0, self.info.n_frames, n):
            frames = range(start, min(start + n, self.info.n_frames))
            yield torch.from_numpy(np.stack([np.roll(self._picture, t, axis=1) for t in frames])), None


def drawn_masks(n: int, size: tuple[int, int] = CROP) -> tuple[torch.Tensor, torch.Tensor]:
    """Return garment and hands, MASK (n,h,w) of 0 and 1: a body that fills the crop, two hands with gaps of 4 px."""
    import cv2

    width, height = size
    masks = np.zeros((2, n, height, width), np.float32)
    for t in range(n):
        garment, hands = masks[:, t]
        cv2.ellipse(garment, (width // 2, height // 2), (width * 2 // 5, height * 9 // 20), 0, 0, 360, 1, -1)
        for side in (-1, 1):
            x, y = width // 2 + side * width // 5 + t % 9, height * 3 // 5 + t % 5
            cv2.ellipse(hands, (x, y), (width // 10, height // 14), 0, 0, 360, 1, -1)
            for finger in range(5):
                left = x - width // 10 + finger * (width // 25 + 4)
                cv2.rectangle(hands, (left, y - height // 6), (left + width // 25 - 1, y), 1, -1)
    return torch.from_numpy(masks[0]), torch.from_numpy(masks[1])


def run_speed(rounds: int = 9, full: tuple[int, int] = FULL, size: tuple[int, int] = CROP) -> dict:
    """Measure every stage on one chunk's frames, in turn, so that a busy neighbour slows all alike.

    Returns ms: stage -> (best, median) milliseconds a frame; lerp_ms: the same for one `torch.lerp` of the crop's pixels,
    the least that any blend of them costs; chain_ms and chain_ratio: CHAIN together by its best, and by lerp's.
    """
    n = 4
    stream = DrawnFrames(n, full)
    images = as_float(next(stream.chunks(RunContext(), n)).frames)
    garment, hands = drawn_masks(n, size)
    left, top = ((a - b) // 4 * 2 for a, b in zip(full, size, strict=True))
    stitch = Stitch((n, full[1], full[0]), np.repeat([[left, top, *size]], n, 0), n, 32, False, "")
    crop = images[:, top : top + size[1], left : left + size[0]].clone()
    new, weight = 1 - crop, garment[..., None]
    done = subtract_occluders(garment, hands, 8)
    alpha = pixel_mask(done.paint)
    base = composite(images, new, stitch, alpha)
    ways: dict[str, Callable[[], object]] = {
        "lerp": lambda: [torch.lerp(a, b, w) for a, b, w in zip(crop, new, weight, strict=True)],
        "subtract occluders": lambda: subtract_occluders(garment, hands, 8),
        "pixel mask": lambda: pixel_mask(done.paint),
        "composite": lambda: composite(images, new, stitch, alpha),
        "latent mask": lambda: latent_mask(done.paint, NAMED_GRIDS["h3"]),
        "seam blend, context_gain": lambda: seam_blend(new, crop, alpha),
        "repaste, hard": lambda: repaste(base, images, done.occluders, stitch),
        "repaste, colour_line": lambda: repaste(
            base, images, done.occluders, stitch, new, matte="colour_line"
        ),
        "metrics": lambda: measure(images, base, alpha, stitch, done.occluders),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for k in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if k:  # the first round fills caches
                times[name].append((time.perf_counter() - began) * 1000 / n)
    found = {name: (round(min(t), 2), round(statistics.median(t), 2)) for name, t in times.items()}
    lerp = found.pop("lerp")[0]
    chain = round(sum(found[name][0] for name in CHAIN), 2)
    return {"ms": found, "lerp_ms": lerp, "chain_ms": chain, "chain_ratio": round(chain / lerp, 1)}


@dataclass(frozen=True)
class StageMemory:
    """made_mb: what the stage gave; own_mb: the most it held beside that and all there was before."""

    stage: str
    made_mb: int
    own_mb: int


def run_memory(n: int = 175, full: tuple[int, int] = FULL, size: tuple[int, int] = CROP) -> dict:
    """Take a clip of FRAMES through crop, masks, seam, composite, repaste and metrics, every output kept as ComfyUI does.

    Returns stages: StageMemory of each; own_mb: the largest of them; peak_mb: of the process, outputs included, beyond what
    it had before the clip. Linux only: OSError where the kernel keeps no peak that can be reset.
    """
    width, height = full
    coarse = torch.zeros(1, height, width)
    left, top = ((a - b) // 2 for a, b in zip(full, size, strict=True))
    margin = min(size) // 8
    coarse[:, top + margin : top + size[1] - margin, left + margin : left + size[0] - margin] = 1
    # Libraries and threads that the first call brings are nobody's working memory.
    _chain(DrawnFrames(2, full), coarse, lambda stage, call: call())
    stages: list[StageMemory] = []
    give_back()
    began = memory_mb("VmRSS")

    def watched(stage: str, call: Callable[[], object]) -> object:
        give_back()
        before = memory_mb("VmRSS")
        reset_peak()
        made = call()
        size_mb = sum(t.numel() * t.element_size() for t in _tensors(made)) >> 20
        stages.append(StageMemory(stage, size_mb, max(0, memory_mb("VmHWM") - before - size_mb)))
        peaks.append(memory_mb("VmHWM"))
        return made

    peaks: list[int] = []
    _chain(DrawnFrames(n, full), coarse, watched)
    return {"stages": stages, "own_mb": max(s.own_mb for s in stages), "peak_mb": max(peaks) - began}


def _chain(
    source: FrameStream, coarse: torch.Tensor, watched: Callable[[str, Callable[[], object]], object]
) -> None:
    """Dress a clip, each stage as `watched(name, call)`; what stages give stays until the end."""
    n = source.info.n_frames
    crop = watched("subject crop", lambda: subject_crop(source, coarse))
    garment, hands = watched("tracked masks (inputs)", lambda: drawn_masks(n, crop.stitch.size))
    done = watched("subtract occluders", lambda: subtract_occluders(garment, hands, 8))
    alpha = watched("pixel mask", lambda: pixel_mask(done.paint))
    latent = watched("latent mask", lambda: latent_mask(done.paint, NAMED_GRIDS["h3"]))
    new = watched("sampler (input)", lambda: 1 - crop.images)
    seam = watched("seam blend", lambda: seam_blend(new, crop.images, alpha, latent_mask=latent))
    dressed = watched("composite (lazy)", lambda: composite(source, seam, crop.stitch, alpha))
    final = watched(
        "repaste (lazy)",
        lambda: repaste(dressed, source, done.occluders, crop.stitch, seam, "colour_line"),
    )
    watched("metrics, pulls both", lambda: measure(source, final, alpha, crop.stitch, done.occluders))


def memory_mb(field: str) -> int:
    """Return a field of this process's /proc status, VmRSS (now) or VmHWM (the most since `reset_peak`), in MB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) >> 10
    raise OSError(f"the kernel does not say {field}")


def give_back() -> None:
    """Let the allocator return what is free, or the next stage would find its working memory there."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others return it by themselves
    if trim is not None:
        trim(0)


def reset_peak() -> None:
    """Let VmHWM begin anew at what is held now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _tensors(made: object) -> Iterator[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, tuple):
        for part in made:
            yield from _tensors(part)
    elif hasattr(made, "__dataclass_fields__"):
        for name in made.__dataclass_fields__:
            yield from _tensors(getattr(made, name))
