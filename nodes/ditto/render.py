"""Ditto as a stage: a stream of whole faces, drawn from the avatar's feature volumes and the motion's key points."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from ..core.crop_render import CropBatch, CropNetwork, crop_frames
from ..core.frames import FrameInfo, FrameStream, Made, RunContext
from ..core.overlap import ahead
from ..core.packet import AvatarPacket
from .handle import DittoModel

if TYPE_CHECKING:
    from ..core.cadence import Cadence, CadenceOptions
    from ..core.pool import Resident
    from .motion_plan import Motion, PoseBatch

MAX_BATCH = 64
POSES_AHEAD = 160
"""Video frames whose key points are ready before the network asks: the diffusion gives 70 at a time, and the next ones
should be under way when the last are drawn. 80 KB."""


class DittoCropStream(FrameStream):
    """Faces (n, S, S, 3) for every video frame of `motion`, each with its placement; S is the model's render size.

    The network always runs on `batch` frames counted from frame 0 (the tail is padded and trimmed), so the result depends
    neither on where the motion ends nor on how many frames the consumer asks for.

    Args:
        motion: made for this avatar with this model; its key points are made ahead of the network.
        batch: frames of one pass, 1 to MAX_BATCH.
        cadence: which frames are key frames of the motion; poses between them are interpolated before the network, which
            draws every frame. None for all.
        memory: where the feature volumes lie, see `volumes.open_volumes`.

    Raises:
        ValueError: a value out of range, or model, avatar and motion that do not belong together.
    """

    stage = "Ditto render"

    def __init__(
        self,
        model: DittoModel,
        avatar: AvatarPacket,
        motion: Motion,
        batch: int = 8,
        cadence: Cadence | CadenceOptions | None = None,
        memory: str = "auto",
    ) -> None:
        # Not needed to list nodes.
        from .bake import check_avatar
        from .volumes import check_memory

        if not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"batch {batch} is outside 1..{MAX_BATCH}; 8 suits most machines")
        check_memory(memory)
        if motion.model.key != model.key:
            raise ValueError("the motion comes from another model; connect one loader to both nodes")
        if motion.avatar.digest != avatar.digest:
            raise ValueError(
                f"the motion was made for avatar {motion.avatar.info.id!r}, not {avatar.info.id!r}; "
                "connect the same avatar to Motion and Render"
            )
        check_avatar(model, avatar)
        self.model, self.avatar, self.motion, self.batch = model, avatar, motion, batch
        self.cadence, self.memory = cadence, memory
        side = model.config.nets.render_size
        self.info = FrameInfo(side, side, motion.fps, motion.n_frames)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        from .stages import ditto_stage

        network = CropNetwork(ctx, self.model, ditto_stage, self.batch)
        with ctx.use_avatar(self.avatar) as resident:
            yield from crop_frames(ctx, network, self._batches(ctx, resident, network), n)

    def _batches(
        self, ctx: RunContext, resident: Resident, network: CropNetwork
    ) -> Generator[CropBatch | None, None, None]:
        """Start every batch; whoever asks for the next one need not have looked at the last.

        None: the motion has no more at hand and will wait for sound.
        """
        import torch

        from .volumes import in_turn, open_volumes

        dtype = torch.float32 if self.model.precision == "fp32" else torch.float16
        volumes = open_volumes(ctx, resident, dtype, self.memory)
        depth = max(2, POSES_AHEAD // self.batch)
        poses = ahead(
            ctx, lambda: self.motion.keypoints(ctx, self.batch, self.cadence), depth, "Ditto motion"
        )
        with closing(poses):
            for pair in in_turn(volumes, poses):
                if pair is None:
                    yield None
                    continue
                pose, sent = pair
                yield network.start(
                    pose.start,
                    pose.avatar_index,
                    resident.reader.found[pose.avatar_index],
                    _is_last(pose),
                    wanted=pose.usable,  # the motion says itself what of it is no number
                    volume=sent.take(),
                    kp_source=pose.kp_source,
                    kp_driving=pose.kp_driving,
                )


def _is_last(pose: PoseBatch):
    last = pose.is_last  # not the batch: its key points need not live as long
    return lambda: last
