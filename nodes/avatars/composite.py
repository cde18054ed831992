"""Crops back into full frames, as the engine of their avatar does it."""

from __future__ import annotations

from ..core.blend import MASK_MODES, SEAM_MODES
from ..core.frames import FrameStream
from ..core.packet import AvatarPacket


def composite_stream(
    crops: FrameStream,
    avatar: AvatarPacket,
    mask_mode: str = MASK_MODES[0],
    seam_mode: str = SEAM_MODES[0],
) -> FrameStream:
    """Return the full frames of `avatar` with its rendered crops in them.

    Args:
        crops: of a Render node, made for this avatar.
        mask_mode: what of a MuseTalk crop is shown. A Ditto face is always shown whole.
        seam_mode: how a MuseTalk crop meets its frame. A Ditto face fades out over a twentieth of its side.

    Raises:
        ValueError: an unknown mode, one that a Ditto avatar has not, or crops without a placement or of another avatar.
    """
    if avatar.info.engine == "musetalk":
        from ..musetalk.render import CompositeStream

        return CompositeStream(crops, avatar, mask_mode, seam_mode)
    from ..ditto.put_back_stream import PutBackStream

    for name, mode, only in (
        ("mask mode", mask_mode, MASK_MODES[0]),
        ("seam mode", seam_mode, SEAM_MODES[0]),
    ):
        if mode != only:
            raise ValueError(
                f"{name} {mode!r} is for MuseTalk; a Ditto face is put back whole with a soft edge: leave it at {only!r}"
            )
    return PutBackStream(crops, avatar)
