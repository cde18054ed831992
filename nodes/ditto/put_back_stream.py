"""Ditto's faces in the avatar's frames: a stream of full frames, as RGB on the host or as NV12 where the faces are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.crop_render import check_made_for, crops_ahead
from ..core.frames import FrameInfo, FrameStream, Made, Placement, RunContext, StageError
from ..core.packet import AvatarPacket
from ..core.plated_stream import PlatedStream

if TYPE_CHECKING:
    from ..core.packet_readers import DittoReader
    from ..core.pool import Resident
    from .face_plates import FaceSlots, HostFaces


class PutBackStream(FrameStream):
    """Full frames: every avatar frame with its face blended in. Frames without a usable face stay as they are.

    Raises:
        ValueError: frames without a face placement, or made for another avatar.
    """

    stage = "Put back"

    def __init__(self, crops: FrameStream, avatar: AvatarPacket) -> None:
        check_made_for(crops, avatar)
        self.crops, self.avatar = crops, avatar
        width, height = avatar.info.size
        self.info = FrameInfo(width, height, crops.info.fps, crops.info.n_frames)

    def nv12(self, matrix: str, color_range: str = "limited") -> FrameStream | None:
        """Return the frames as NV12, of which only the face areas are computed; None for odd sides."""
        if self.info.width % 2 or self.info.height % 2:
            return None
        return PutBackNv12Stream(self, matrix, color_range)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        from .putback import feather_mask

        side = self.crops.info.width
        mask = feather_mask(side, side)
        # The host blends: on a card too it has work of its own.
        source = crops_ahead(ctx, self.crops, n, on_card=True)
        try:
            with ctx.use_avatar(self.avatar) as resident:
                for chunk in source:
                    if chunk.placement is None:
                        raise StageError(f"{self.stage}: a chunk has no placement")
                    with ctx.report.timed("put back"):
                        faces = chunk.frames.cpu().numpy()
                        frames = _put_back(resident.reader, faces, chunk.placement, mask)
                    yield frames, None, chunk.is_last
        finally:
            source.close()


class PutBackNv12Stream(PlatedStream):
    """NV12 of a PutBackStream."""

    name = "put back"
    source: PutBackStream

    def kind(self, where: str) -> tuple[str, ...]:
        side = str(self.source.crops.info.width)
        return ("ditto plates", where, str(self.info.matrix), str(self.info.range), side)

    def make_plates(self, where: str, resident: Resident, device: torch.device) -> FaceSlots | HostFaces:
        from .face_plates import FaceSlots, HostFaces

        given = resident.reader, self.source.crops.info.width, self.info.matrix, self.info.range
        return HostFaces(*given) if where == "host" else FaceSlots(*given, device)


def _put_back(reader: DittoReader, faces: np.ndarray, placement: Placement, mask: np.ndarray) -> torch.Tensor:
    from .putback import from_face, put_into

    width, height = reader.packet.info.size
    out = np.empty((len(faces), height, width, 3), np.uint8)
    for k, at in enumerate(placement.avatar_index.tolist()):
        out[k] = reader.frame(at).numpy()
        if placement.usable[k]:
            put_into(out[k], faces[k].astype(np.float32), from_face(reader.c2o[at].numpy(), len(mask)), mask)
    return torch.from_numpy(out)
