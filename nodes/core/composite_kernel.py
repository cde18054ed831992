"""The Triton kernel behind `device_composite.composite_nv12`: one program for a run of 2x2 blocks of the roi.

Needs the `triton` package: import this module only behind `kernel_ops.why_not`.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

_BLOCKS = 256


@triton.jit
def _round(v):
    # To the nearest, halves to even: 2**23 leaves no bit behind the point.
    v = tl.minimum(tl.maximum(v, 0.0), 255.0)
    return (v + 8388608.0) - 8388608.0


@triton.jit
def _tap(offset, size, side):
    place = (offset.to(tl.float32) + 0.5) * (side / size.to(tl.float32)) - 0.5
    place = tl.minimum(tl.maximum(place, 0.0), side - 1.0)
    low = tl.floor(place).to(tl.int32)
    return low, tl.minimum(low + 1, side - 1), place - low.to(tl.float32)


@triton.jit(do_not_specialize=["side", "roi_h", "roi_w", "height", "width"])
def blend_nv12(
    faces, rgb, weight, corner, boxes, index, usable, out, side, roi_h, roi_w, height, width,
    y_r, y_g, y_b, y_0, u_r, u_g, u_b, v_r, v_g, v_b, BLOCKS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    half_w = roi_w // 2
    by = i // half_w
    bx = i - by * half_w
    inside = by < roi_h // 2
    plate = tl.load(index + n)
    ok = tl.load(usable + n).to(tl.int32)
    cx, cy = tl.load(corner + plate * 2), tl.load(corner + plate * 2 + 1)
    x1, y1 = tl.load(boxes + plate * 4), tl.load(boxes + plate * 4 + 1)
    box_w, box_h = tl.load(boxes + plate * 4 + 2) - x1, tl.load(boxes + plate * 4 + 3) - y1
    touched = tl.zeros((BLOCKS,), tl.int32)
    red = tl.zeros((BLOCKS,), tl.int32)
    green, blue = red, red
    for pass_ in tl.static_range(2):
        # First whether a pixel of the block is touched, then the pixels: an untouched block is not written.
        for k in tl.static_range(4):
            y, x = by * 2 + k // 2, bx * 2 + k % 2
            at = (plate * roi_h + y) * roi_w + x
            w = tl.load(weight + at, mask=inside, other=0).to(tl.int32) * ok
            if pass_ == 0:
                touched = tl.maximum(touched, w)
            else:
                write = inside & (touched > 0)
                top, bottom, fy = _tap(cy + y - y1, box_h, side)
                left, right, fx = _tap(cx + x - x1, box_w, side)
                luma = tl.zeros((BLOCKS,), tl.float32) + y_0
                for c in tl.static_range(3):
                    face = faces + n * side * side * 3 + c
                    a = tl.load(face + (top * side + left) * 3, mask=write, other=0).to(tl.float32)
                    b = tl.load(face + (top * side + right) * 3, mask=write, other=0).to(tl.float32)
                    d = tl.load(face + (bottom * side + left) * 3, mask=write, other=0).to(tl.float32)
                    e = tl.load(face + (bottom * side + right) * 3, mask=write, other=0).to(tl.float32)
                    a = a + (b - a) * fx
                    d = d + (e - d) * fx
                    v = _round(a + (d - a) * fy).to(tl.int32)
                    back = tl.load(rgb + at * 3 + c, mask=write, other=0).to(tl.int32)
                    v = v * w + back * (255 - w) + 128
                    v = (v + (v >> 8)) >> 8
                    if c == 0:
                        luma += v.to(tl.float32) * y_r
                        red += v
                    elif c == 1:
                        luma += v.to(tl.float32) * y_g
                        green += v
                    else:
                        luma += v.to(tl.float32) * y_b
                        blue += v
                to = (n * (height * 3 // 2) + cy + y) * width + cx + x
                tl.store(out + to, _round(luma).to(tl.uint8), mask=write)
    write = inside & (touched > 0)
    r, g, b = (
        ((red + 2) >> 2).to(tl.float32),
        ((green + 2) >> 2).to(tl.float32),
        ((blue + 2) >> 2).to(tl.float32),
    )
    to = (n * (height * 3 // 2) + height + cy // 2 + by) * width + cx + 2 * bx
    tl.store(out + to, _round(r * u_r + g * u_g + b * u_b + 128.0).to(tl.uint8), mask=write)
    tl.store(out + to + 1, _round(r * v_r + g * v_g + b * v_b + 128.0).to(tl.uint8), mask=write)


def launch(faces, plates, index, usable, out: torch.Tensor, matrix: np.ndarray) -> None:
    """Blend into `out` (n, H*3/2, W), which holds the backgrounds; arguments as `composite_nv12`."""
    n, side = faces.shape[:2]
    roi_h, roi_w = plates.rgb.shape[1:3]
    width, height = plates.size
    (*y, y_0), (*u, _), (*v, _) = matrix.tolist()
    blocks = (triton.cdiv(roi_h * roi_w // 4, _BLOCKS), n)
    blend_nv12[blocks](
        faces, plates.rgb, plates.weight, plates.corner, plates.boxes, index, usable, out,
        side, roi_h, roi_w, height, width, *y, y_0, *u, *v, BLOCKS=_BLOCKS, num_warps=4,
    )  # fmt: skip
