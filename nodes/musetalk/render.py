"""MuseTalk as a stage: a stream of face crops, and the stream that puts them back into the avatar's frames."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ..core.blend import MASK_MODES, SEAM_MODES, composite, lower_face_mask, lower_half_mask, mouth_mask
from ..core.frames import FrameInfo, FrameStream, Placement, RunContext, StageError
from ..core.packet import AvatarPacket, PacketReader
from ..core.packet_import import OFFICIAL_VAE
from ..core.report import FrameList
from .handle import MuseTalkModel
from .model import to_rgb_uint8
from .speech import Speech

MAX_BATCH = 64
_DRAWN = {"lower half": lower_half_mask, "mouth only": mouth_mask, "lower face": lower_face_mask}
"""Mask modes that ignore the avatar's own mask."""


class CropStream(FrameStream):
    """Face crops (n, crop, crop, 3) for every video frame of `speech`, each with its placement.

    The network always runs on `batch` frames counted from frame 0 (the tail is padded and trimmed), so
    the result depends neither on where the audio ends nor on how many frames the consumer asks for.
    """

    stage = "MuseTalk render"

    def __init__(self, model: MuseTalkModel, avatar: AvatarPacket, speech: Speech, batch: int = 8) -> None:
        if not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"batch {batch} is outside 1..{MAX_BATCH}; 8 suits most machines")
        if speech.model.key != model.key:
            raise ValueError("the speech features come from another model; connect one loader to both nodes")
        check_avatar(model, avatar)
        self.model, self.avatar, self.speech, self.batch = model, avatar, speech, batch
        size = model.config.crop_size
        self.info = FrameInfo(size, size, speech.fps, speech.n_frames)

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, Placement]]:
        nets = ctx.load(self.model)
        faceless, broken = FrameList(), FrameList()
        try:
            with ctx.use_avatar(self.avatar) as resident:
                reader, start = resident.reader, 0
                for tokens in self.speech.windows(ctx, self.batch):
                    count = tokens.shape[0]
                    index = torch.from_numpy(self.avatar.avatar_indices(start, count, self.info.fps))
                    with ctx.report.timed("neural"):
                        crops, finite = self._predict(nets, resident.latents, index, tokens)
                    found = reader.found[index]
                    faceless.add(start, ~found)
                    broken.add(start, ~finite & found)
                    for i in range(0, count, n):
                        yield crops[i : i + n], Placement(index[i : i + n], (found & finite)[i : i + n])
                    start += count
        finally:
            why = {"no face in the avatar": faceless, "the network's output is not finite": broken}
            for reason, frames in why.items():
                if frames:
                    ctx.warn(f"frames {frames}: {reason}, the avatar's own frame is shown")

    def _predict(self, nets, pool: torch.Tensor, index: torch.Tensor, tokens: torch.Tensor):
        count = tokens.shape[0]
        latents = pool[index.to(pool.device)].to(tokens.device, tokens.dtype)
        if count < self.batch:
            latents = torch.cat([latents, latents[-1:].expand(self.batch - count, -1, -1, -1)])
            tokens = torch.cat([tokens, tokens[-1:].expand(self.batch - count, -1, -1)])
        with torch.inference_mode():
            decoded = nets(latents, tokens)[:count]
            finite = decoded.isfinite().flatten(1).all(1).cpu()
            return to_rgb_uint8(decoded.nan_to_num()), finite


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
        made_for = getattr(crops, "avatar", None)
        if made_for is None:
            raise ValueError("these frames carry no face placement; connect the output of a Render node")
        if made_for.digest != avatar.digest:
            raise ValueError(
                f"the crops were rendered for avatar {made_for.info.id!r}, not {avatar.info.id!r}; "
                "connect the same avatar to Render and Composite"
            )
        self._crops, self._avatar, self._mask_mode, self._seam_mode = crops, avatar, mask_mode, seam_mode
        width, height = avatar.info.size
        self.info = FrameInfo(width, height, crops.info.fps, crops.info.n_frames)

    def generate(self, ctx: RunContext, n: int) -> Iterator[tuple[torch.Tensor, None]]:
        source = self._crops.chunks(ctx, n)
        try:
            with ctx.use_avatar(self._avatar) as resident:
                for chunk in source:
                    if chunk.placement is None:
                        raise StageError("Composite: a chunk has no placement")
                    with ctx.report.timed("composite"):
                        frames = self._blend(resident.reader, chunk.frames.cpu().numpy(), chunk.placement)
                    yield frames, None
        finally:
            source.close()

    def _blend(self, reader: PacketReader, faces: np.ndarray, placement: Placement) -> torch.Tensor:
        out = np.empty((len(faces), *self.info.frame_shape), np.uint8)
        for k, at in enumerate(placement.avatar_index.tolist()):
            out[k] = reader.frame(at).numpy()
            if placement.usable[k]:
                crop = reader.crops[at].tolist()
                mask = self._mask(reader, at, crop)
                colour = self._seam_mode == "colour match"
                composite(out[k], faces[k], reader.boxes[at].tolist(), crop, mask, colour)
        return torch.from_numpy(out)

    def _mask(self, reader: PacketReader, at: int, crop: list[int]) -> np.ndarray:
        draw = _DRAWN.get(self._mask_mode)
        mask = draw(tuple(crop)) if draw else reader.mask(at).numpy()
        return np.where(mask >= 128, np.uint8(255), np.uint8(0)) if self._seam_mode == "none" else mask


def check_avatar(model: MuseTalkModel, avatar: AvatarPacket) -> None:
    """Raise ValueError unless `avatar` was built for `model`: engine, weights, shape of the latents."""
    if avatar.info.engine != "musetalk":
        raise ValueError(
            f"avatar {avatar.info.id!r} is for the {avatar.info.engine} engine, this is MuseTalk"
        )
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
    if avatar.latent_shape != wanted:
        raise ValueError(
            f"avatar {avatar.info.id!r} has latents of {'x'.join(map(str, avatar.latent_shape))}, the model takes "
            f"{'x'.join(map(str, wanted))}; build the avatar again with this model"
        )
