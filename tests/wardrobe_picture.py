"""Draws web/docs/wardrobe.png from the hand scene: `python tests/wardrobe_picture.py FILE`. The same bytes on every machine
that has the same OpenCV.

Six panels, three times enlarged so that pixels show: what is tracked, the sampler's latents, the compositor's alpha, the
result, Metrics' heat, and Ghost Check on a result where the model painted a second hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from wardrobe_scene import BLUE, HandScene, photo

from talkinghead.nodes.wardrobe.composite import composite
from talkinghead.nodes.wardrobe.crop import subject_crop
from talkinghead.nodes.wardrobe.ghost import ghost_check
from talkinghead.nodes.wardrobe.latent_mask import NAMED_GRIDS, latent_mask
from talkinghead.nodes.wardrobe.masks import pixel_mask, subtract_occluders
from talkinghead.nodes.wardrobe.measure import measure
from talkinghead.nodes.wardrobe.repaste import repaste

ENLARGED = 3
ORANGE, GREEN, RED = (1.0, 0.55, 0.1), (0.2, 0.9, 0.4), (1.0, 0.1, 0.1)
CAPTION_PX = 34


class Dressing:
    """The chain on one frame of the hand scene; everything as float32 (H,W,3) or bool (H,W) of the whole frame."""

    def __init__(self) -> None:
        scene = HandScene()
        source = photo(scene)
        crop = subject_crop(source, scene.mask)
        x, y, w, h = (int(v) for v in crop.stitch.boxes[0])
        hands = scene.occluders[:, y : y + h, x : x + w]
        done = subtract_occluders(crop.mask, hands, grow_px=6)
        alpha = pixel_mask(done.paint)
        latents = latent_mask(done.paint, NAMED_GRIDS["h3"])
        # What a model makes: the new garment, and a second hand that nobody asked for.
        generated = torch.tensor(BLUE).expand(1, h, w, 3).clone()
        ghost = np.zeros((h, w), bool)
        ghost[118:138, 105:135] = True
        ghost[104:118, 105:135] = (np.arange(30) % 9 < 7)[None]
        generated[0][torch.from_numpy(ghost)] = torch.tensor((0.8, 0.57, 0.46))
        dressed = composite(source, generated, crop.stitch, alpha)
        result = repaste(dressed, source, hands, crop.stitch, generated, "colour_line")
        seen = scene.occluders.clone()  # what a tracker finds in the result
        seen[0, y : y + h, x : x + w] = torch.maximum(seen[0, y : y + h, x : x + w], torch.from_numpy(ghost))
        self.check = ghost_check(scene.occluders, seen)
        self.numbers, heat = measure(source, dressed, alpha, crop.stitch, hands)

        def whole(part: torch.Tensor) -> np.ndarray:
            full = np.zeros(scene.garment.shape, np.float32)
            full[y : y + h, x : x + w] = part.numpy()
            return full

        self.source, self.result, self.heat = source[0].numpy(), result[0].numpy(), heat[0].numpy()
        self.paint, self.alpha = whole(done.paint[0]) > 0, whole(alpha[0])
        self.hands, self.ghosts = scene.hand, self.check.mask[0].numpy() > 0
        self.latents = whole(torch.from_numpy(latents.covered(0, 1)[0])) > 0


def tinted(picture: np.ndarray, area: np.ndarray, colour: tuple[float, float, float]) -> np.ndarray:
    return np.where(area[..., None], 0.45 * picture + 0.55 * np.float32(colour), picture)


def panels(dressing: Dressing) -> list[tuple[str, np.ndarray]]:
    """Return (caption, float32 (H,W,3)) of each panel."""
    d = dressing
    return [
        ("to paint (orange), hands (green)", tinted(tinted(d.source, d.paint, ORANGE), d.hands, GREEN)),
        ("latent mask, h3: 32 px tokens", tinted(d.source, d.latents, ORANGE)),
        ("alpha: 0 on hands, 1 in slits", np.repeat(d.alpha[..., None], 3, 2)),
        ("composite, repaste colour_line", d.result),
        ("Metrics heat: outside 0 px", d.heat),
        (f"Ghost Check: {int(d.ghosts.sum())} px (red)", tinted(d.result, d.ghosts, RED)),
    ]


def sheet() -> np.ndarray:
    """Return the whole picture, uint8 (H,W,3) RGB."""
    made = []
    for caption, picture in panels(Dressing()):
        eight = (picture.clip(0, 1) * 255).round().astype(np.uint8)
        eight = eight.repeat(ENLARGED, 0).repeat(ENLARGED, 1)
        bar = np.full((CAPTION_PX, eight.shape[1], 3), 24, np.uint8)
        cv2.putText(bar, caption, (8, 23), cv2.FONT_HERSHEY_SIMPLEX, 0.56, (235, 235, 235), 1, cv2.LINE_AA)
        made.append(np.pad(np.vstack([bar, eight]), ((0, 6), (0, 6), (0, 0)), constant_values=255))
    return np.vstack([np.hstack(made[:3]), np.hstack(made[3:])])[:-6, :-6]


if __name__ == "__main__":
    done = cv2.imwrite(sys.argv[1], sheet()[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])
    print(
        f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size} bytes" if done else f"cannot write {sys.argv[1]}"
    )
