"""Numbers that say how good a video is: fidelity, steadiness, seams, lips, sync.

Frames are uint8 or float (n,H,W,3) RGB in 0..255, numpy or torch. A box is (x1, y1, x2, y2) in pixels,
x2 and y2 outside. Compare figures only for the same box and the same formula; each function states its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Box = tuple[int, int, int, int]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True)
class Psnr:
    """dB: `mean` of the frames' values (what papers report), `pooled` from one error over all frames, which
    is lower where frames differ. `frames`: value of each frame; equal frames are inf."""

    mean: float
    pooled: float
    frames: tuple[float, ...]


def psnr(a, b, box: Box | None = None) -> Psnr:
    """Return 10 log10(255^2 / MSE) over the box, all channels."""
    a, b = _pair(a, b, box)
    errors = np.array([np.mean((x.astype(np.float64) - y) ** 2) for x, y in zip(a, b, strict=True)])
    frames = [_decibel(e) for e in errors]
    return Psnr(float(np.mean(frames)), _decibel(float(errors.mean())), tuple(frames))


def ssim(a, b, box: Box | None = None) -> float:
    """Return the mean structural similarity of luma over frames, 1 for equal ones.

    Wang et al., "Image quality assessment", IEEE TIP 13(4), 2004: Gaussian 11x11, sigma 1.5, K 0.01 and
    0.03, only where the window fits. ValueError below 11x11.
    """
    import cv2

    a, b = _pair(a, b, box)
    if min(a.shape[1:3]) < 11:
        raise ValueError(f"SSIM needs at least 11x11 pixels, the box is {a.shape[2]}x{a.shape[1]}")
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2

    def blur(x: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(x, (11, 11), 1.5)[5:-5, 5:-5]

    values = []
    for x, y in zip(_luma(a), _luma(b), strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        mx, my = blur(x), blur(y)
        vx, vy, vxy = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
        s = ((2 * mx * my + c1) * (2 * vxy + c2)) / ((mx * mx + my * my + c1) * (vx + vy + c2))
        values.append(s.mean())
    return float(np.mean(values))


def flicker(result, source, box: Box | None = None) -> float:
    """Return mean |frame step| of the result minus that of the source, in levels; 0 for equal videos.

    Positive: the result moves or trembles more than what it was made from. 0 for a single frame.
    """
    result, source = _pair(result, source, box)
    return _step(result) - _step(source)


def seam_gradient(result, reference, box: Box, width: int = 1) -> float:
    """Return how much harder the edge of `box` is in the result than in the reference (1 = the same).

    Mean |inside - outside| of luma over the four borders, `width` pixels on each side averaged, result
    divided by reference. A border on the frame's edge is left out. ValueError if all four are.
    """
    result, reference = _pair(result, reference, None)
    return _border(_luma(result), box, width) / max(_border(_luma(reference), box, width), 1e-6)


def tone_difference(result, reference, box: Box) -> float:
    """Return the mean over frames of the largest channel's |mean result - mean reference| in the box, levels.

    What a seam measure is blind to: a patch of skin that is evenly too light or too orange.
    """
    result, reference = _pair(result, reference, box)
    means = [f.astype(np.float64).mean(axis=(1, 2)) for f in (result, reference)]
    return float(np.abs(means[0] - means[1]).max(axis=1).mean())


def aperture(frames, box: Box, dark: float = 60.0) -> np.ndarray:
    """Return per frame (n,) the pixels of the box whose luma (BT.601, 0..255) is below `dark`.

    The mouth's interior is the darkest thing between the lips; pick a tight mouth box, and compare with
    the same measure on the truth, not with an opening in other units.
    """
    inside = _luma(_crop(_array(frames), box))
    return (inside < dark).sum(axis=(1, 2)).astype(np.float64)


def correlation(a, b) -> float:
    """Return Pearson's r of two series of equal length; 0 if either does not vary."""
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if a.shape != b.shape or len(a) < 2:
        raise ValueError(f"correlation needs two series of equal length >= 2, not {len(a)} and {len(b)}")
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


@dataclass(frozen=True)
class AvLengths:
    """Seconds of each track, read from its packets, and their difference video - audio in frames."""

    video: Fraction
    audio: Fraction
    n_frames: int
    frames_apart: float


def av_difference(path: str | os.PathLike) -> AvLengths:
    """Return how long the pictures and the sound of a file last, from packet times and sizes.

    Audio that a player drops (encoder priming, final padding) is not counted. ValueError if a track is missing.
    """
    import av

    with av.open(str(path)) as box:
        if not box.streams.video or not box.streams.audio:
            raise ValueError(f"{os.fspath(path)} needs a video and an audio track to compare them")
        fps = Fraction(box.streams.video[0].average_rate or 25)
        ends = {"video": Fraction(0), "audio": Fraction(0)}
        starts: dict[str, Fraction] = {}
        n_frames = 0
        for packet in box.demux(box.streams.video[0], box.streams.audio[0]):
            if packet.size == 0 or packet.pts is None:
                continue
            kind = packet.stream.type
            at = packet.pts * Fraction(packet.time_base)
            starts[kind] = min(starts.get(kind, at), at)
            ends[kind] = max(ends[kind], at + (packet.duration or 0) * Fraction(packet.time_base))
            n_frames += kind == "video"
        stated = box.streams.audio[0].duration
        if stated:  # the container knows where the last packet's padding begins
            ends["audio"] = min(ends["audio"], stated * Fraction(box.streams.audio[0].time_base))
    video, audio = ends["video"] - starts["video"], ends["audio"] - max(Fraction(0), starts["audio"])
    return AvLengths(video, audio, n_frames, float((video - audio) * fps))


def _decibel(error: float) -> float:
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


def _array(frames) -> np.ndarray:
    data = frames.detach().cpu().numpy() if hasattr(frames, "detach") else np.asarray(frames)
    if data.ndim == 3:
        data = data[None]
    if data.ndim != 4 or data.shape[3] != 3 or not data.shape[0]:
        raise ValueError(f"frames must be (n,H,W,3) with n >= 1, not {tuple(data.shape)}")
    return data


def _pair(a, b, box: Box | None) -> tuple[np.ndarray, np.ndarray]:
    a, b = _array(a), _array(b)
    if a.shape != b.shape:
        raise ValueError(
            f"videos of unequal shape: {a.shape} and {b.shape}; bring them to one size and length"
        )
    return (a, b) if box is None else (_crop(a, box), _crop(b, box))


def _crop(frames: np.ndarray, box: Box) -> np.ndarray:
    x1, y1, x2, y2 = box
    if not (0 <= x1 < x2 <= frames.shape[2] and 0 <= y1 < y2 <= frames.shape[1]):
        raise ValueError(f"box {tuple(box)} is not inside the {frames.shape[2]}x{frames.shape[1]} frame")
    return frames[:, y1:y2, x1:x2]


def _luma(frames: np.ndarray) -> np.ndarray:
    return frames.astype(np.float32) @ LUMA


def _step(frames: np.ndarray) -> float:
    steps = [np.abs(b.astype(np.float32) - a).mean() for a, b in zip(frames, frames[1:], strict=False)]
    return float(np.mean(steps)) if steps else 0.0


def _border(luma: np.ndarray, box: Box, width: int) -> float:
    x1, y1, x2, y2 = box
    _crop(luma[..., None], box)
    height, right = luma.shape[1:]
    pairs = []
    for near, far, limit, axis in ((y1, y2, height, 1), (x1, x2, right, 2)):
        lines = np.moveaxis(luma, axis, 1)
        lines = lines[:, :, x1:x2] if axis == 1 else lines[:, :, y1:y2]
        for edge, sides in ((near, near >= width), (far, far + width <= limit)):
            if sides:
                before, after = lines[:, edge - width : edge].mean(1), lines[:, edge : edge + width].mean(1)
                pairs.append(np.abs(after - before).ravel())
    if not pairs:
        raise ValueError(f"box {tuple(box)} has no border inside the frame; choose a smaller one")
    return float(np.concatenate(pairs).mean())
