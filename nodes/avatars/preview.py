"""An avatar shown as pictures, with what its engine knows of the face drawn in."""

from __future__ import annotations

import numpy as np

from ..core.packet import AvatarPacket

BOX, CROP, POINT, MASK = (64, 220, 64), (250, 200, 60), (70, 170, 255), (255, 60, 90)
"""Colours, RGB: the face, the crop around it, landmarks, and the tint of what is put back."""
_TINT = 0.45


def avatar_overlay(avatar: AvatarPacket, start: int = 0, count: int = 1) -> np.ndarray:
    """Return avatar frames `start` .. `start + count - 1` with their geometry drawn in, uint8 (count, H, W, 3) RGB.

    Green: the face (MuseTalk: the box the network fills). Yellow: the crop around it. Red tint: the mask, as strong as
    it blends. Blue: MuseTalk's 68 landmarks, if the face was found by a detector. A frame without a face is left as it
    is. ValueError for frames the avatar does not have.
    """
    n = avatar.info.n_frames
    if not 0 <= start < n or count < 1:
        raise ValueError(f"frames {start}..{start + count - 1} are not in the avatar; it has 0..{n - 1}")
    if avatar.info.engine == "ditto":
        from ..ditto.preview import draw_frame
    else:
        from ..musetalk.preview import draw_frame
    with avatar.open() as reader:
        out = np.stack([reader.frame(i).numpy() for i in range(start, min(n, start + count))])
        for i, picture in enumerate(out, start):
            if reader.found[i]:
                draw_frame(picture, reader, i)
    return out


def tint(area: np.ndarray, mask: np.ndarray) -> None:
    """Colour `area` uint8 (h, w, 3) in place where `mask` float (h, w) in 0..1 lies, as strongly as it blends."""
    weight = mask[..., None].astype(np.float32) * np.float32(_TINT)
    area[...] = np.rint(area * (1 - weight) + np.array(MASK, np.float32) * weight)


def line_width(picture: np.ndarray) -> int:
    """Return how thick lines are drawn into `picture`, in pixels."""
    return max(1, round(max(picture.shape[:2]) / 500))
