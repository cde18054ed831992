"""Blend masks out of face-parsing labels, as MuseTalk v1.5 and v1.0 make them.

Labels and mode masks are uint8 (512, 512) over the crop square of core.blend.crop_geometry, blend masks uint8 over the
square at its own size. Pictures are RGB uint8 (H, W, 3). Pillow, which ComfyUI needs itself, does the resizing: its
antialiased filters are what upstream's numbers come from. Source: spec/musetalk.md section 6.
"""

from __future__ import annotations

import numpy as np

PARSER_SIDE = 512
MODES = ("jaw", "raw", "neck")
SKIN, NOSE, NECK = 1, 10, 14
LIPS = (11, 12, 13)
BLUR_OFFLINE, BLUR_REALTIME = 0.05, 0.1
"""Kernel as a share of the square's side: upstream's two paths differ."""
UPPER_RATIO = 0.5
DEFAULT_CHEEKS = (90, 90)
"""Of upstream's scripts; its class default is 80, 80."""
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)


def dilation_kernel() -> np.ndarray:
    """Return the structuring element that grows the skin downward, uint8 (33, 33): a wedge on a bar."""
    kernel = np.zeros((33, 33), np.uint8)
    for row in range(10, 21):
        kernel[row, 16 - (row - 10) : 16 + (row - 10) + 1] = 1
    kernel[21:, 6:27] = 1
    return kernel


def cheek_kernel() -> np.ndarray:
    """Return the flat ellipse that narrows the cheeks, uint8 (3, 35)."""
    import cv2

    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (35, 3))


def cheek_columns(left: int, right: int, side: int = PARSER_SIDE) -> np.ndarray:
    """Return bool (side,): columns further than `left` / `right` pixels from the middle, where cheeks are narrowed."""
    column = np.arange(side)
    return (column <= side // 2 - left) | (column >= side // 2 + right)


def mode_mask(labels: np.ndarray, mode: str = "jaw", cheeks: tuple[int, int] = DEFAULT_CHEEKS) -> np.ndarray:
    """Return the mask (0 or 255) of a label map.

    Args:
        labels: uint8 (512, 512), 0..18.
        mode: raw = skin and lips; neck = those and the neck; jaw = skin grown below the chin and narrowed at the
            cheeks, without the nose, and the lips.
        cheeks: columns left and right of the middle that are not narrowed (jaw only).

    ValueError for an unknown mode or another size.
    """
    import cv2

    if mode not in MODES:
        raise ValueError(f"mask mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    if labels.shape != (PARSER_SIDE, PARSER_SIDE):
        raise ValueError(f"label map is {labels.shape}, the parser gives ({PARSER_SIDE}, {PARSER_SIDE})")
    if mode == "jaw":
        skin = np.where(labels == SKIN, np.uint8(255), np.uint8(0))
        grown = cv2.dilate(skin, dilation_kernel())
        narrowed = cv2.erode(grown, cheek_kernel(), iterations=2)
        region = np.where(cheek_columns(*cheeks), narrowed, grown)
        inside = ((region > 0) & (labels != NOSE)) | np.isin(labels, LIPS)
    else:
        inside = np.isin(labels, (SKIN, *LIPS) + ((NECK,) if mode == "neck" else ()))
    return np.where(inside, np.uint8(255), np.uint8(0))


def crop_square(frame: np.ndarray, crop: tuple[int, ...]) -> np.ndarray:
    """Return the crop square of `frame`, black where it leaves the frame."""
    x_s, y_s, x_e, y_e = crop[:4]
    square = np.zeros((y_e - y_s, x_e - x_s, frame.shape[2]), np.uint8)
    inside = frame[max(0, y_s) : max(0, y_e), max(0, x_s) : max(0, x_e)]
    top, left = max(0, -y_s), max(0, -x_s)
    square[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
    return square


def parser_input(square: np.ndarray) -> np.ndarray:
    """Return the parsing network's input of an RGB square: float32 (3, 512, 512), ImageNet normalisation."""
    small = _resize(square, PARSER_SIDE, PARSER_SIDE, "BILINEAR")
    unit = small.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    return (unit - _MEAN[:, None, None]) / _STD[:, None, None]


def blur_kernel(side: int, share: float) -> int:
    """Return the odd Gaussian kernel for a square of `side` pixels: upstream's floor on doubles."""
    return int((share * side) // 2 * 2) + 1


def blend_mask(
    mask: np.ndarray, crop: tuple[int, ...], blur: float = BLUR_REALTIME, upper_ratio: float = UPPER_RATIO
) -> np.ndarray:
    """Return the soft mask over the crop square of `crop` (core.blend.crop_geometry).

    Args:
        mask: uint8 (512, 512) of `mode_mask`.
        crop: eight numbers of the crop geometry.
        blur: share of the side for the Gaussian's kernel.
        upper_ratio: share of the square's rows, from above, that are cleared before the blur.

    The blur reaches a little past the box and above the boundary; the composite keeps to the box.
    """
    import cv2

    side_x, side_y = crop[2] - crop[0], crop[3] - crop[1]
    rel_x, rel_y, w, h = crop[4:8]
    whole = _resize(mask, side_x, side_y, "BICUBIC")
    kept = np.zeros_like(whole)
    top = max(rel_y, int(side_y * upper_ratio))
    area = (slice(top, rel_y + h), slice(rel_x, rel_x + w))
    kept[area] = whole[area]
    kernel = blur_kernel(side_x, blur)
    return cv2.GaussianBlur(kept, (kernel, kernel), 0)


def _resize(picture: np.ndarray, width: int, height: int, filter_name: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "face-parsing masks need Pillow, which ComfyUI installs: pip install pillow"
        ) from error

    resized = Image.fromarray(picture).resize((width, height), getattr(Image.Resampling, filter_name))
    return np.asarray(resized)
