"""How far live features are from those of the whole file: as numbers, and in the rendered mouth."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ..core.audio import AudioClip
from ..core.frames import RunContext
from ..core.live_audio import ClipSound
from ..core.packet import AvatarPacket
from .handle import MuseTalkModel
from .live_speech import LiveSpeech
from .render import CropStream
from .speech import Heard, Speech

MOUTH_ROWS, MOUTH_COLUMNS = (0.60, 0.90), (0.25, 0.75)
"""Parts of the crop's side: lips and the skin they move."""
_BATCH = 8


@dataclass(frozen=True)
class FeatureDistance:
    """Of all frames' tokens: `relative` ||live - file|| / ||file||, and the mean `cosine` of a frame's."""

    relative: float
    cosine: float

    def __str__(self) -> str:
        return f"{self.relative:.3f} relative, cosine {self.cosine:.4f}"


@dataclass(frozen=True)
class MouthDistance:
    """PSNR in dB of the live rendering against the whole file's: `mouth` pooled over the box of `MOUTH_ROWS` and
    `MOUTH_COLUMNS`, `worst` its worst frame, `crop` pooled over the whole crop (easier: most of it hardly moves)."""

    mouth: float
    worst: float
    crop: float


def feature_distance(
    ctx: RunContext, model: MuseTalkModel, clip: AudioClip, fps: Fraction = Fraction(25)
) -> FeatureDistance:
    """Compare what every frame of `clip` hears by the two rules; the report of `ctx` gets a line."""
    difference = total = cosine = 0.0
    count = 0
    for live, file in _pairs(ctx, model, clip, fps):
        live, file = (t.double().flatten(1) for t in (live, file))
        difference += float((live - file).square().sum())
        total += float(file.square().sum())
        cosine += float(torch.cosine_similarity(live, file, eps=1e-12).sum())
        count += len(file)
    result = FeatureDistance((difference / max(total, 1e-30)) ** 0.5, cosine / count)
    ctx.report.fact("live features against the whole file's", str(result))
    return result


def mouth_distance(
    ctx: RunContext, model: MuseTalkModel, avatar: AvatarPacket, clip: AudioClip, fps: Fraction = Fraction(25)
) -> MouthDistance:
    """Render the crops of `clip` by the two rules and compare them; frames without a face are left out."""
    mouth = []
    crop_error = 0.0
    streams = [
        CropStream(model, avatar, speech, _BATCH).chunks(ctx, _BATCH) for speech in _rules(model, clip, fps)
    ]
    try:
        for live, file in zip(*streams, strict=True):
            usable = live.placement.usable & file.placement.usable
            error = (live.frames.cpu()[usable].double() - file.frames.cpu()[usable].double()).square()
            crop_error += float(error.mean((1, 2, 3)).sum())
            mouth += _mouth(error).mean((1, 2, 3)).tolist()
    finally:
        for stream in streams:
            stream.close()
    if not mouth:
        raise ValueError(f"avatar {avatar.info.id!r} has no frame with a face to compare")
    return MouthDistance(_psnr(sum(mouth) / len(mouth)), _psnr(max(mouth)), _psnr(crop_error / len(mouth)))


def _rules(model: MuseTalkModel, clip: AudioClip, fps: Fraction) -> tuple[Heard, Heard]:
    return LiveSpeech(model, ClipSound(clip), fps), Speech(model, clip, fps)


def _pairs(ctx: RunContext, model: MuseTalkModel, clip: AudioClip, fps: Fraction):
    live, file = _rules(model, clip, fps)
    heard = (tokens for tokens in live.windows(ctx, _BATCH) if tokens is not None)
    yield from zip(heard, file.windows(ctx, _BATCH), strict=True)


def _mouth(images: Tensor) -> Tensor:
    height, width = images.shape[1:3]
    rows, columns = (
        slice(round(low * side), round(high * side))
        for (low, high), side in ((MOUTH_ROWS, height), (MOUTH_COLUMNS, width))
    )
    return images[:, rows, columns]


def _psnr(error: float) -> float:
    return float("inf") if error == 0 else float(10 * torch.log10(torch.tensor(255.0**2 / error)))
