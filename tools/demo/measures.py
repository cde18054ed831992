"""The numbers of the bars. Each takes pictures and knows nothing of who made them.

* opening: pixels of the lip box darker than a threshold between the presenter's lip and the mouth's inside.
* PSNR: of every frame in a box, then the mean over frames.
* tone and seam: the crop is composited by the pack's own mask into the TRUE frame; tone is the mean colour step from
  the ring just inside the mask's edge to the ring just outside, less the same step of the truth (8-bit levels, signed,
  per channel, skin pixels only); seam is the mean luma gradient on the mask's feathered band over the truth's.
"""

import numpy as np
import torch
from torch import Tensor

from . import nets as store
from . import presenter, visemes
from .identity import LUMA
from .pictures import box_slices

FRAME_SIDE = 352
RING = 9


def open_pixels(pictures: Tensor, edge: float) -> np.ndarray:
    """Dark pixels in the lip box of uint8 (n, size, size, 3): (n,) counts."""
    rows, cols = box_slices(pictures.shape[1])
    level = pictures[:, rows, cols].float() @ torch.tensor(LUMA) / 255
    return (level < edge).sum(dim=(1, 2)).numpy().astype(np.float64)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    if a.std() < 1e-9 or b.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def psnr_frames(made: Tensor, truth: Tensor, rows: slice, cols: slice) -> float:
    error = (made[:, rows, cols].float() - truth[:, rows, cols].float()).square().mean(dim=(1, 2, 3)).clamp(min=1e-2)
    return float((10 * torch.log10(255.0**2 / error)).mean())


def closed_after(own: np.ndarray, want: np.ndarray, quiet: np.ndarray | None) -> float:
    """Share of the quiet frames whose opening is under 10 % of the range of the clip's truth."""
    own = own if quiet is None else own[quiet]
    if not len(own):
        return 1.0
    low, high = want.min(), want.max()
    return float((own < low + 0.10 * (high - low)).mean())


def measure_seam(nets, look, pose, mouth: Tensor, view: Tensor, tokens: Tensor, step: int) -> dict:
    """Tone and seam over every `step`-th frame, at the size of a 512 picture, through the pack's own compositing."""
    blend = store.pack_module("nodes.core.blend")
    pick = torch.arange(step // 2, len(mouth), step)
    center = 0.5 * (view[:, :2] + view[:, 2:])
    half = 0.8 * (view[:, 3] - view[:, 1])[:, None]
    wide = torch.cat([center - half, center + half], 1)[pick]
    n = len(pick)
    rows = {k: v.expand(n, -1, -1, -1) for k, v in look.items()}
    poses = {k: v[pick] for k, v in pose.items()}
    rest = torch.tensor([visemes.REST], dtype=torch.float32).expand(n, 3)
    truth, still = (
        (presenter.render(rows, poses, m, wide, FRAME_SIDE, FRAME_SIDE)[0] * 255).round().byte().permute(0, 2, 3, 1).numpy()
        for m in (mouth[pick], rest)
    )
    scale = FRAME_SIDE / (wide[:, 2:] - wide[:, :2])
    boxes = torch.cat([(view[pick][:, :2] - wide[:, :2]) * scale, (view[pick][:, 2:] - wide[:, :2]) * scale], 1)
    boxes = [tuple(int(v) for v in b) for b in boxes.round().tolist()]
    size = nets.config.crop_size
    crops = np.stack([blend.face_crop(f, b, size) for f, b in zip(still, boxes, strict=True)])
    made = nets.predict(nets.encode_crops(torch.from_numpy(crops)), tokens[pick]).numpy()
    tones, ratios = [], []
    skin = look["skin"][0, :, 0, 0].numpy() * 255
    for frame, face, box in zip(truth, made, boxes, strict=True):
        square = blend.crop_geometry(box)
        mask = blend.lower_face_mask(square)
        pasted = frame.copy()
        blend.composite(pasted, face, box, square, mask)
        full = np.zeros(frame.shape[:2], np.uint8)
        full[box[1] : box[3], box[0] : box[2]] = mask[square[5] : square[5] + square[7], square[4] : square[4] + square[6]]
        tones.append(_tone(pasted, frame, full, skin))
        ratios.append(_gradient(pasted, full) / max(_gradient(frame, full), 1e-6))
    tones = np.array([t for t in tones if t is not None])
    if not len(tones):
        return {"seam": float(np.mean(ratios))}
    return {"seam": float(np.mean(ratios)), "tone": tones.mean(0).tolist(), "tone_abs": float(np.abs(tones).mean())}


def _tone(pasted: np.ndarray, truth: np.ndarray, mask: np.ndarray, skin: np.ndarray) -> np.ndarray | None:
    """Colour step over the mask's edge, pasted less truth, per channel; None without enough skin."""
    import cv2

    kernel = np.ones((2 * RING + 1, 2 * RING + 1), np.uint8)
    solid, any_mask = (mask >= 230).astype(np.uint8), (mask >= 5).astype(np.uint8)
    inner = (solid - cv2.erode(solid, kernel)).astype(bool)
    outer = (cv2.dilate(any_mask, kernel) - any_mask).astype(bool)
    colour = truth.astype(np.float64)
    direction = colour @ (skin / np.linalg.norm(skin)) / (np.linalg.norm(colour, axis=2) + 1e-6)
    level = colour.mean(2) / skin.mean()
    is_skin = (direction > 0.995) & (level > 0.6) & (level < 1.35)
    inner, outer = inner & is_skin, outer & is_skin
    if inner.sum() < 50 or outer.sum() < 50:
        return None
    ours = pasted[inner].mean(0) - pasted[outer].mean(0)
    return ours - (truth[inner].mean(0) - truth[outer].mean(0))


def _gradient(picture: np.ndarray, mask: np.ndarray) -> float:
    luma = picture.astype(np.float64) @ np.array(LUMA)
    gy, gx = np.gradient(luma)
    band = (mask > 5) & (mask < 250)
    return float(np.hypot(gx, gy)[band].mean())
