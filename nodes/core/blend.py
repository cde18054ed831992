"""Putting a generated face crop back into its frame: crop geometry, feathered mouth mask, composite.

Geometry of one frame, as in the legacy packets: `box` = face box (x1,y1,x2,y2); `crop` = the square
around it (x_s,y_s,x_e,y_e, rel_x,rel_y,rel_w,rel_h), where rel places the box inside the square. The square
may leave the frame; the mask covers the square.
"""

from __future__ import annotations

import numpy as np

from .mouth import mouth_ellipse

MASK_MODES = ("mouth", "lower half", "mouth only", "lower face")
"""mouth is the avatar's own mask, whatever it was built with; the others are drawn from the box alone."""
SEAM_MODES = ("feather", "none", "colour match")
_MIN_RING = 64
_MAX_GAIN = 1.25


def clamp_box(
    box: tuple[int, int, int, int], width: int, height: int, minimum: int = 16
) -> tuple[int, int, int, int]:
    """Return the part of `box` (x1,y1,x2,y2) inside a width x height frame.

    Never negative (a negative index would count from the frame's end). ValueError if less than
    `minimum` pixels a side are left.
    """
    x1, y1 = max(0, box[0]), max(0, box[1])
    x2, y2 = min(width, box[2]), min(height, box[3])
    if x2 - x1 < minimum or y2 - y1 < minimum:
        raise ValueError(
            f"face box {tuple(box)} leaves {max(0, x2 - x1)}x{max(0, y2 - y1)} pixels of a {width}x{height} frame; "
            f"at least {minimum}x{minimum} are needed: give x1,y1,x2,y2 with x1 < x2 and y1 < y2 inside the frame"
        )
    return x1, y1, x2, y2


def crop_geometry(box: tuple[int, int, int, int], expand: float = 1.5) -> tuple[int, ...]:
    """Return the eight numbers of the crop square around `box`: half side = int(max(w,h)//2*expand)."""
    x1, y1, x2, y2 = box
    cx, cy = (x1 + x2) // 2, (y1 + y2) // 2
    half = int((max(x2 - x1, y2 - y1) // 2) * expand)
    return (cx - half, cy - half, cx + half, cy + half, x1 - cx + half, y1 - cy + half, x2 - x1, y2 - y1)


def face_crop(frame: np.ndarray, box: tuple[int, int, int, int], size: int) -> np.ndarray:
    """Return the box of `frame` (H,W,3) resized to (size,size,3), Lanczos over 8x8 as upstream."""
    import cv2

    x1, y1, x2, y2 = box
    return cv2.resize(
        np.ascontiguousarray(frame[y1:y2, x1:x2]), (size, size), interpolation=cv2.INTER_LANCZOS4
    )


def mouth_mask(crop: tuple[int, ...]) -> np.ndarray:
    """Return a mask of the lips alone, uint8 (rows, columns) over the crop square.

    An ellipse in the box, in units of a 256 px crop: centre (127, 196), radii 66 and 38; full inside 0.6 of
    the radius, cosine to 0 at the edge. Above row 158 of 256 it is exactly 0, so nostrils are never carried over.
    """
    rel_x, rel_y, w, h = crop[4:8]
    mask = np.zeros((crop[3] - crop[1], crop[2] - crop[0]), np.uint8)
    mask[rel_y : rel_y + h, rel_x : rel_x + w] = np.rint(255 * mouth_ellipse(w, h))
    return mask


def lower_face_mask(crop: tuple[int, ...], boundary: float = 0.5) -> np.ndarray:
    """Return a mask of lips, cheeks' inner part and chin, uint8 (rows, columns) over the crop square.

    A superellipse over the lower face in the box, feathered by a Gaussian as wide as upstream's realtime
    mask (kernel 0.1 of the square's side). Rows above `boundary` (share of the box's height, where the
    network's black half starts) and all outside the box are exactly 0.
    """
    import cv2

    side_x, side_y = crop[2] - crop[0], crop[3] - crop[1]
    rel_x, rel_y, w, h = crop[4:8]
    v, u = np.mgrid[0:h, 0:w].astype(np.float32)
    u, v = (u + 0.5) / w, (v + 0.5) / h
    inside = np.abs((u - 0.5) / 0.36) ** 2.5 + np.abs((v - 0.755) / 0.185) ** 2.5 <= 1
    mask = np.zeros((side_y, side_x), np.uint8)
    mask[rel_y : rel_y + h, rel_x : rel_x + w] = inside * np.uint8(255)
    kernel = int(0.05 * side_x) // 2 * 4 + 1
    mask = cv2.GaussianBlur(mask, (kernel, kernel), 0)
    keep = np.zeros_like(mask)
    top = rel_y + int(np.ceil(h * boundary))
    keep[top : rel_y + h, rel_x : rel_x + w] = 255
    return np.minimum(mask, keep)


def lower_half_mask(crop: tuple[int, ...]) -> np.ndarray:
    """Return a mask of the whole lower half of the box, uint8 over the crop square, without feather."""
    rel_x, rel_y, w, h = crop[4:8]
    mask = np.zeros((crop[3] - crop[1], crop[2] - crop[0]), np.uint8)
    mask[rel_y + h - h // 2 : rel_y + h, rel_x : rel_x + w] = 255
    return mask


def match_colour(face: np.ndarray, around: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return `face` (h,w,3) with the colours of `around` (h,w,3), both RGB uint8, as seen in the feather.

    Reinhard, Ashikhmin, Gooch, Shirley, "Color Transfer between Images", 2001: mean and spread of each Lab
    channel. They are taken where 0 < `weight` < 255, skin in both pictures; the open mouth has no say. Spread
    changes by a quarter at most. With fewer than 64 such pixels the face is returned as it is.
    """
    import cv2

    ring = (weight > 0) & (weight < 255)
    if int(ring.sum()) < _MIN_RING:
        return face
    lab = cv2.cvtColor(face.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    own = lab[ring]
    wanted = cv2.cvtColor(around.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[ring]
    gain = (wanted.std(0) / np.maximum(own.std(0), 1e-3)).clip(1 / _MAX_GAIN, _MAX_GAIN)
    matched = cv2.cvtColor((lab - own.mean(0)) * gain + wanted.mean(0), cv2.COLOR_LAB2RGB)
    return np.rint(matched.clip(0, 1) * 255).astype(np.uint8)


def composite(
    frame: np.ndarray,
    face: np.ndarray,
    box: tuple[int, ...],
    crop: tuple[int, ...],
    mask: np.ndarray,
    colour: bool = False,
) -> None:
    """Blend `face` (any square, RGB uint8) into `frame` (H,W,3) in place, inside `box`, by `mask`.

    The blend is (face*m + frame*(255-m)) / 255, rounded: mask 0 leaves the frame's bytes, mask 255 gives the face's.
    The box may leave the frame, the mask must cover it. OpenCV's float blend gives the integer formula's number for
    every mask and pair of levels (2**24 cases compared), in a ninth of numpy's time.
    `colour` first brings the face to the frame's colours (`match_colour`).
    """
    import cv2

    x1, y1, x2, y2 = box
    rel_x, rel_y = x1 - crop[0], y1 - crop[1]
    m = mask[rel_y : rel_y + y2 - y1, rel_x : rel_x + x2 - x1]
    rows, columns = np.flatnonzero(m.any(1)), np.flatnonzero(m.any(0))
    if not rows.size:
        return
    # A box may leave the frame: what lies outside is not blended.
    r0, r1 = max(rows[0], -y1), min(rows[-1] + 1, frame.shape[0] - y1)
    c0, c1 = max(columns[0], -x1), min(columns[-1] + 1, frame.shape[1] - x1)
    if r0 >= r1 or c0 >= c1:
        return
    scaled = cv2.resize(face, (x2 - x1, y2 - y1), interpolation=cv2.INTER_LINEAR)[r0:r1, c0:c1]
    area = frame[y1 + r0 : y1 + r1, x1 + c0 : x1 + c1]
    if colour:
        scaled = match_colour(scaled, area, m[r0:r1, c0:c1])
    weight = m[r0:r1, c0:c1].astype(np.float32)
    area[...] = cv2.blendLinear(scaled, area, weight, 255 - weight)
