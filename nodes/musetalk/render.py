"""MuseTalk as a stage: a stream of face crops, and the stream that puts them back into the avatar's frames."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..avatars.build import check_engine
from ..core.blend import MASK_MODES, SEAM_MODES, composite, lower_face_mask, lower_half_mask, mouth_mask
from ..core.cadence import Cadence
from ..core.crop_render import CropBatch, CropNetwork, check_made_for, crop_frames, crops_ahead
from ..core.frames import FrameInfo, FrameStream, Made, Placement, RunContext, StageError
from ..core.packet import AvatarPacket, MuseTalkReader
from .handle import MuseTalkModel
from .speech import Heard, windows_ahead

if TYPE_CHECKING:
    from ..core.cadence import CadenceOptions
    from ..core.pool import Resident
    from .viseme_memory import VisemeMemory

MAX_BATCH = 64
_DRAWN = {"lower half": lower_half_mask, "mouth only": mouth_mask, "lower face": lower_face_mask}
"""Mask modes that ignore the avatar's own mask."""


class CropStream(FrameStream):
    """Face crops (n, crop, crop, 3) for every video frame of `speech` (a file's or live), each with its placement.

    The network always runs on `batch` frames counted from frame 0 (the tail is padded and trimmed), so
    the result depends neither on where the audio ends nor on how many frames the consumer asks for.
    With a `cadence` only key frames are drawn and the mouth rests in silence, see `cadence_render`; without one, or
    with a plain one, every frame is drawn. A `Cadence` must have been planned for `speech`; options are planned for it
    here, live speech takes nothing else.
    """

    stage = "MuseTalk render"

    def __init__(
        self,
        model: MuseTalkModel,
        avatar: AvatarPacket,
        speech: Heard,
        batch: int = 8,
        cadence: Cadence | CadenceOptions | None = None,
    ) -> None:
        if not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"batch {batch} is outside 1..{MAX_BATCH}; 8 suits most machines")
        if speech.model.key != model.key:
            raise ValueError("the speech features come from another model; connect one loader to both nodes")
        check_avatar(model, avatar)
        if isinstance(cadence, Cadence):
            if speech.n_frames is None:
                raise ValueError(
                    "a Cadence is the plan of a whole sound, live speech is planned as it comes; give CadenceOptions"
                )
            cadence.check(speech.audio, speech.fps)
            cadence = cadence.options
        self.model, self.avatar, self.speech, self.batch = model, avatar, speech, batch
        self.cadence = None if cadence is None or cadence.is_plain else cadence
        size = model.config.crop_size
        self.info = FrameInfo(size, size, speech.fps, speech.n_frames)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        return self._every_frame(ctx, n) if self.cadence is None else self._at_cadence(ctx, n)

    def _at_cadence(self, ctx: RunContext, n: int) -> Iterator[Made]:
        from .cadence_render import CadenceRun

        with ctx.use_avatar(self.avatar) as resident:
            run = CadenceRun(ctx, self, resident, self.cadence, self._memory(resident))
            try:
                with closing(run.batches()) as batches:
                    start = 0
                    for crops, placed in batches:
                        start += len(crops)
                        last = self.speech.ends_at(start)
                        for i in range(0, len(crops), n):
                            part = Placement(placed.avatar_index[i : i + n], placed.usable[i : i + n])
                            yield crops[i : i + n], part, last and i + n >= len(crops)
            finally:
                run.tell()

    def _memory(self, resident: Resident) -> VisemeMemory | None:
        """A memory of this run alone: mouths of two avatars must never meet."""
        if not self.cadence.viseme_cache_mb:
            return None
        from .viseme_memory import VisemeMemory

        size = self.model.config.crop_size
        return VisemeMemory(resident.reader, size, self.cadence.viseme_cache_mb << 20)

    def _every_frame(self, ctx: RunContext, n: int) -> Iterator[Made]:
        network = self._network(ctx)
        with ctx.use_avatar(self.avatar) as resident:
            yield from crop_frames(ctx, network, self._batches(ctx, resident, network), n)

    def _network(self, ctx: RunContext) -> CropNetwork:
        # The networks' modules are not needed to list nodes.
        from .engine import musetalk_stage

        network = CropNetwork(ctx, self.model, musetalk_stage, self.batch)
        if self.model.precision == "fp8" and network.backend != "cuda graph":
            ctx.warn(
                f"fp8 is for the cuda graph backend on Hopper cards and newer; {network.backend} runs in fp16"
            )
        return network

    def _batches(
        self, ctx: RunContext, resident: Resident, network: CropNetwork
    ) -> Generator[CropBatch | None, None, None]:
        """Start every batch; whoever asks for the next one need not have looked at the last.

        None: the speech has no more at hand and will wait for sound.
        """
        start = 0
        windows = windows_ahead(ctx, lambda: self.speech.windows(ctx, self.batch), self.batch)
        with closing(windows):
            for tokens in windows:
                if tokens is None:
                    yield None
                    continue
                count = tokens.shape[0]
                index = torch.from_numpy(self.avatar.avatar_indices(start, count, self.info.fps))
                latents = resident.latents[index.to(resident.latents.device)]
                is_last = partial(self.speech.ends_at, start + count)
                found = resident.reader.found[index]
                yield network.start(start, index, found, is_last, latents=latents, tokens=tokens)
                start += count


class CompositeStream(FrameStream):
    """Full frames: every avatar frame with its crop blended in. Frames without a usable crop stay as they are."""

    stage = "Composite"

    def __init__(
        self, crops: FrameStream, avatar: AvatarPacket, mask_mode: str = "mouth", seam_mode: str = "feather"
    ) -> None:
        if mask_mode not in MASK_MODES or seam_mode not in SEAM_MODES:
            raise ValueError(
                f"mask mode {mask_mode!r} must be one of {', '.join(MASK_MODES)}; "
                f"seam mode {seam_mode!r} one of {', '.join(SEAM_MODES)}"
            )
        check_made_for(crops, avatar)
        self.crops, self.avatar, self.mask_mode, self.seam_mode = crops, avatar, mask_mode, seam_mode
        width, height = avatar.info.size
        self.info = FrameInfo(width, height, crops.info.fps, crops.info.n_frames)

    def nv12(self, matrix: str, color_range: str = "limited") -> FrameStream | None:
        """Return the frames as NV12, of which only the face areas are computed; None for odd sides."""
        if self.info.width % 2 or self.info.height % 2:
            return None
        from .composite_nv12 import CompositeNv12Stream

        return CompositeNv12Stream(self, matrix, color_range)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        # The host blends: on a card too it has work of its own.
        source = crops_ahead(ctx, self.crops, n, on_card=True)
        try:
            with ctx.use_avatar(self.avatar) as resident:
                for chunk in source:
                    if chunk.placement is None:
                        raise StageError("Composite: a chunk has no placement")
                    with ctx.report.timed("composite"):
                        frames = self._blend(resident.reader, chunk.frames.cpu().numpy(), chunk.placement)
                    yield frames, None, chunk.is_last
        finally:
            source.close()

    def _blend(self, reader: MuseTalkReader, faces: np.ndarray, placement: Placement) -> torch.Tensor:
        out = np.empty((len(faces), *self.info.frame_shape), np.uint8)
        for k, at in enumerate(placement.avatar_index.tolist()):
            out[k] = reader.frame(at).numpy()
            if placement.usable[k]:
                crop = reader.crops[at].tolist()
                mask = blend_mask(reader, at, self.mask_mode, self.seam_mode)
                colour = self.seam_mode == "colour match"
                composite(out[k], faces[k], reader.boxes[at].tolist(), crop, mask, colour)
        return torch.from_numpy(out)


def blend_mask(reader: MuseTalkReader, at: int, mask_mode: str, seam_mode: str) -> np.ndarray:
    """Return the mask of avatar frame `at` in these modes: uint8 (rows, columns) over its crop square."""
    draw = _DRAWN.get(mask_mode)
    mask = draw(tuple(reader.crops[at].tolist())) if draw else reader.mask(at).numpy()
    return np.where(mask >= 128, np.uint8(255), np.uint8(0)) if seam_mode == "none" else mask


def check_avatar(model: MuseTalkModel, avatar: AvatarPacket) -> None:
    """Raise ValueError unless `avatar` was built for `model`: engine, weights, shape of the latents."""
    check_engine(avatar, "musetalk")
    from ..core.packet_import import OFFICIAL_VAE

    made_by = avatar.info.model.get("sha256")
    # An import that found no official weights to bind itself to names none.
    unbound = made_by == OFFICIAL_VAE["sha256"] and model.version != "embedded"
    if made_by != model.identity and not unbound:
        raise ValueError(
            f"avatar {avatar.info.id!r} was built with weights {str(made_by)[:12]}, the model has "
            f"{model.identity[:12]}; build the avatar again with this model"
        )
    config = model.config
    wanted = (2 * config.latent_channels, config.latent_size, config.latent_size)
    if avatar.feature_shape != wanted:
        raise ValueError(
            f"avatar {avatar.info.id!r} has latents of {'x'.join(map(str, avatar.feature_shape))}, the model takes "
            f"{'x'.join(map(str, wanted))}; build the avatar again with this model"
        )
