"""What the NV12 plates save, measured: a frame converted whole against its face area spliced into a ready background."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from .blend import composite, crop_geometry, lower_face_mask
from .color import Nv12Encoder, matrix_for_height, nv12_planes
from .host_plates import splice
from .plates import make_plate


def bench_splice(
    width: int = 1080, height: int = 1920, face: int | None = None, rounds: int = 25
) -> dict[str, float | str]:
    """Measure both ways in turn, in this process, on one thread as the writer has it.

    Args:
        width, height: of the frame, even.
        face: width of the face box in pixels, its height is 1.2 times that; by default 400 pixels of 1080, a
            presenter's share of the shorter side.
        rounds: pairs of measurements; medians are returned.

    Returns:
        milliseconds a frame: convert_ms (whole frame RGB to NV12), splice_ms (background copied, area converted and
        spliced), their ratio; and with the blend of the crop: whole_ms (RGB background copied, blended, converted),
        area_ms (what `HostPlates` does), whole_ratio.
    """
    face = face or min(width, height) * 400 // 1080
    frame, box, made = _scene(width, height, face)
    crop, mask, crops = crop_geometry(box), lower_face_mask(crop_geometry(box)), made
    matrix = matrix_for_height(height)
    encoder = Nv12Encoder(width, height, matrix)
    plate = make_plate(frame, box, crop, mask, encoder)
    out = np.empty((height * 3 // 2, width), np.uint8)
    x1, y1, x2, y2 = plate.area
    part = np.ascontiguousarray(frame[y1:y2, x1:x2])

    def convert() -> None:
        encoder.convert(frame, *nv12_planes(out))

    def put() -> None:
        out[:] = plate.nv12
        splice(plate, part, encoder, out)

    def whole() -> None:
        picture = frame.copy()
        composite(picture, crops, box, crop, mask)
        encoder.convert(picture, *nv12_planes(out))

    def area() -> None:
        out[:] = plate.nv12
        splice(plate, plate.blended(frame, crops, box), encoder, out)

    times = _medians({"convert": convert, "splice": put, "whole": whole, "area": area}, rounds)
    return {
        "size": f"{width}x{height}, face {face} px, area {x2 - x1}x{y2 - y1}",
        **{f"{name}_ms": round(ms, 3) for name, ms in times.items()},
        "ratio": round(times["convert"] / times["splice"], 2),
        "whole_ratio": round(times["whole"] / times["area"], 2),
    }


def splice_text(found: dict[str, float | str]) -> str:
    """Say in one line what `bench_splice` found."""
    return (
        f"{found['size']}: converted whole {found['convert_ms']:.2f} ms a frame, area spliced {found['splice_ms']:.2f} ms, "
        f"{found['ratio']:.1f}x; with the blend {found['whole_ms']:.2f} and {found['area_ms']:.2f} ms, "
        f"{found['whole_ratio']:.1f}x"
    )


def _scene(width: int, height: int, face: int) -> tuple[np.ndarray, tuple[int, int, int, int], np.ndarray]:
    import cv2

    rng = np.random.default_rng(0)
    frame = cv2.resize(rng.integers(0, 256, (9, 8, 3), np.uint8), (width, height))
    x, y = (width - face) // 2, height // 4
    made = cv2.resize(rng.integers(0, 256, (8, 8, 3), np.uint8), (256, 256))
    return frame, (x, y, x + face, y + face * 6 // 5), made


def _medians(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return each way's median in ms; in turn, so that a busy neighbour slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for k in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if k:  # the first one fills caches
                times[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}
