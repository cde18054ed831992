"""FP8 (e4m3) for the fast networks: calibrated, and only where the pictures stay within 45 dB of fp32.

What may be quantised: the 3x3 convolutions of residual blocks and upsamplings (`core.conv_kernel`), the products for
queries, keys and values and for the feed-forward (`torch._scaled_mm`). Weights get a scale for each output, inputs
one for the layer, from what they reach on a calibration sample. If everything together is too coarse, the layers that
cost the least quality for their arithmetic are kept. Random weights amplify what trained ones smooth: with every layer
that may be quantised the embedded model is at 46.6 dB, the official sizes filled at random are at 25 to 27 dB.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.bench import likeness
from ..core.kernel_ops import conv_fits
from ..core.rows import E4M3_MAX, ConvWeight, Grid, LinearWeight
from .fast import FastNets
from .model import MuseTalkNets
from .whisper import log_mel

LEAST_DB = 45.0
"""Peak signal to noise of the pictures against fp32, peak 2 (they lie in [-1, 1])."""
_HEADROOM = 2.0
"""A floating-point format loses nothing by a scale that leaves room for inputs twice as large as the sample's."""
_PRESENTERS = Path(__file__).parent / "embedded" / "presenters"
_ROWS = 4
_RATE = 16000
_CALIBRATION_PHRASE_HZ = ((110.0, 700.0), (140.0, 400.0), (180.0, 1100.0), (0.0, 0.0))


@dataclass(frozen=True)
class Fp8Outcome:
    """What was quantised: names of the layers, of how many, the pictures' PSNR, that of everything at once, and the
    least that was asked for."""

    layers: tuple[str, ...]
    n_layers: int
    psnr_db: float
    psnr_all_db: float
    least_db: float = LEAST_DB

    @property
    def text(self) -> str:
        """The outcome in one line for a report."""
        if not self.n_layers:
            return "no layer in fp8: none of this model is large enough to gain by it; fp16 runs"
        if not self.layers:
            return (
                f"no layer in fp8: everything at once is at {self.psnr_all_db:.1f} dB against fp32, at least "
                f"{self.least_db:g} dB are asked for; fp16 runs"
            )
        return f"{len(self.layers)} of {self.n_layers} layers in fp8, {self.psnr_db:.1f} dB against fp32"


@dataclass
class _Slot:
    """One quantisable weight: attribute `name` of `owner`. `peak`: the largest input seen; `work`: products; `grid`:
    of the pictures a convolution gets."""

    title: str
    owner: object
    name: str
    weight: ConvWeight | LinearWeight
    grid: Grid | None = None
    peak: float = 0.0
    work: int = 0
    error: float = 0.0

    def quantise(self) -> None:
        step = max(self.peak, 1e-6) * _HEADROOM / E4M3_MAX
        setattr(self.owner, self.name, self.weight.quantised(step))

    def restore(self) -> None:
        setattr(self.owner, self.name, self.weight)


class _Watch:
    """The operations of another object, noting what enters quantisable weights."""

    def __init__(self, ops, slots: Sequence[_Slot]) -> None:
        self._ops, self._slots = ops, {id(slot.weight): slot for slot in slots}

    def __getattr__(self, name: str):
        return getattr(self._ops, name)

    def _see(self, x: Tensor, weight: ConvWeight | LinearWeight, grid: Grid | None = None) -> None:
        if slot := self._slots.get(id(weight)):
            slot.peak, slot.grid = max(slot.peak, float(x.abs().max())), grid
            held = weight.rows if isinstance(weight, ConvWeight) else weight.weight
            slot.work = x.numel() // x.shape[-1] * held.numel()

    def conv_sums(self, x: Tensor, weight: ConvWeight, grid: Grid):
        self._see(x, weight, grid)
        return self._ops.conv_sums(x, weight, grid)

    def conv_add(self, x: Tensor, weight: ConvWeight, bias: Tensor, skip: Tensor, grid: Grid):
        self._see(x, weight, grid)
        return self._ops.conv_add(x, weight, bias, skip, grid)

    def conv_double(self, x: Tensor, weight: ConvWeight, bias: Tensor, grid: Grid):
        self._see(x, weight, grid)
        return self._ops.conv_double(x, weight, bias, grid)

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        self._see(x, weight)
        return self._ops.linear(x, weight)


def quantise(
    fast: FastNets, given: tuple[Tensor, Tensor] | None = None, least_db: float = LEAST_DB
) -> Fp8Outcome:
    """Quantise the layers of `fast` that may be, in place.

    Needs memory for fp32 copies of UNet and decoder for a moment (3.6 GB for the official ones).

    Args:
        given: latents (B, ...) and tokens (B, ...) to calibrate and measure with; default `calibration_inputs`.
        least_db: what the pictures must reach; -inf quantises everything.
    """
    given = given or calibration_inputs(fast.nets)
    wanted = _exact_pictures(fast.nets, given)
    slots = _slots(fast)
    _observe(fast, slots, given)
    slots = [slot for slot in slots if slot.work and _quick(slot)]

    def error() -> float:
        got = fast(*given).float()
        return float((got - wanted).double().square().mean()) if got.isfinite().all() else float("inf")

    def decibel() -> float:
        return likeness(fast(*given).float(), wanted, peak=2.0)[1]

    for slot in slots:
        slot.quantise()
    everything = decibel()
    kept, reached = slots, everything
    if not everything >= least_db:  # NaN is not enough either
        for slot in slots:
            slot.restore()
        kept = _choose(slots, error, 4 / 10 ** (least_db / 10))
        while not (reached := decibel()) >= least_db and kept:
            kept.pop().restore()
    return Fp8Outcome(tuple(s.title for s in kept), len(slots), reached, everything, least_db)


def _choose(slots: list[_Slot], error, allowed: float) -> list[_Slot]:
    """Quantise those whose errors, measured one by one, add up to what is allowed; the best bargain first."""
    before = error()
    for slot in slots:
        slot.quantise()
        slot.error = max(error() - before, 1e-12)
        slot.restore()
    kept, total = [], before
    for slot in sorted(slots, key=lambda s: s.error / s.work):
        if total + slot.error > allowed:
            continue
        total += slot.error
        slot.quantise()
        kept.append(slot)
    return kept


def _slots(fast: FastNets) -> list[_Slot]:
    parts = [*fast.unet.parts(), *fast.decoder.parts()]
    return [
        _Slot(f"{title} {name}", part, name, getattr(part, name))
        for title, part in parts
        for name in part.QUANTISABLE
    ]


def _quick(slot: _Slot) -> bool:
    """Whether it gains: on an H200 narrower convolutions and those of smaller pictures ran slower than in fp16."""
    weight, grid = slot.weight, slot.grid
    if isinstance(weight, LinearWeight):
        return all(n % 16 == 0 for n in weight.weight.shape)
    return weight.inputs % 128 == 0 and weight.outputs % 128 == 0 and conv_fits(weight, grid)


def _observe(fast: FastNets, slots: Sequence[_Slot], given: tuple[Tensor, Tensor]) -> None:
    watch = _Watch(fast.ops, slots)
    nets = (fast.unet, fast.decoder)
    for net in nets:
        net.ops = watch
    try:
        fast(*given)
    finally:
        for net in nets:
            net.ops = fast.ops


def _exact_pictures(nets: MuseTalkNets, given: tuple[Tensor, Tensor]) -> Tensor:
    from ..core.engine_build import full_fp32

    unet, vae = (copy.deepcopy(part).float() for part in (nets.unet, nets.vae))
    latents, tokens = (t.to(nets.weights_device).float() for t in given)
    with torch.no_grad(), full_fp32():
        made = unet(latents, tokens + nets.positions.float())
        return vae.decode(made / nets.config.vae.scaling_factor)


@torch.no_grad()
def calibration_inputs(nets: MuseTalkNets) -> tuple[Tensor, Tensor]:
    """Latents and tokens as a real run has them: a demo presenter's face, moved, mirrored and toned, and vowels.

    Encoded by `nets` themselves, so they suit any weights. (4, ...) each, in the dtype of the weights.
    """
    crops = np.stack(list(_faces(nets.config.crop_size)))
    latents = nets.encode_crops(torch.from_numpy(crops))
    whisper = nets.config.whisper
    sound = torch.from_numpy(_vowels())[None].to(nets.weights_device)
    states = nets.encode_audio(log_mel(sound, whisper.n_mels, whisper.piece_samples))[0]
    window = nets.config.window_rows
    starts = [10 + 25 * row for row in range(_ROWS)]
    tokens = torch.stack([states[first : first + window].flatten(0, 1) for first in starts])
    return latents, tokens


def _faces(size: int) -> Iterator[np.ndarray]:
    import cv2

    from ..core.image_read import read_image

    demo = json.loads((_PRESENTERS / "presenters.json").read_text("utf-8"))["demo"]
    picture = read_image(_PRESENTERS / demo["file"])
    x1, y1, x2, y2 = demo["boxes"][0]
    for row in range(_ROWS):
        move = 6 * row
        face = cv2.resize(picture[y1 - move : y2, x1 : x2 - move], (size, size), interpolation=cv2.INTER_AREA)
        face = face[:, ::-1] if row % 2 else face
        yield np.ascontiguousarray((face * (1.0 - 0.15 * row)).astype(np.uint8))


def _vowels() -> np.ndarray:
    """Half a second each of three voiced sounds and of silence, float32 at 16 kHz."""
    t = np.arange(_RATE // 2) / _RATE
    parts = []
    for pitch, formant in _CALIBRATION_PHRASE_HZ:
        tones = range(1, int(4000 // pitch)) if pitch else ()
        sound = sum(
            (np.exp(-abs(n * pitch - formant) / 500) / n**0.5 * np.sin(2 * np.pi * n * pitch * t) for n in tones),
            np.zeros_like(t),
        )  # fmt: skip
        parts.append(0.3 * sound / max(float(np.abs(sound).max()), 1e-9))
    return np.concatenate(parts).astype(np.float32)
