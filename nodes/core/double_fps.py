"""Twice the frame rate by optical flow: between every two frames the one half way along the motion.

Frame 2k of the result is frame k of the source, byte for byte. Frame 2k+1 lies half way to frame k+1: both are moved
there along the flow (OpenCV's DIS, Kroeger et al. 2016) and averaged where they agree. It repeats frame k where there
is nothing to go by: after the last frame, where nothing moved, at a cut, and if the flow is not finite. Only the part
that changed is worked on. RGB or NV12, whatever the source is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from .color import nv12_planes
from .frames import FrameStream, Made, RunContext
from .timeline import MAX_FPS, fps_text

CUT_LEVELS = 24.0
"""Mean difference of luma, after moving the one frame onto the other, above which two frames are not one shot: film of
one shot stays below 6, unrelated pictures lie near 60."""
_FLOW_SIDE = 320
"""Flow is looked for at this longest side: lips move less than the loss of detail, and its time grows with the area."""
_MARGIN = 32
"""Pixels around what changed: flow needs its surroundings."""
_DISAGREE = 40
"""Levels between the two moved frames above which the nearer one in time is taken alone: an average would be a ghost."""
_STILL = 2
"""Levels of change that count as noise of the source's own coding."""


class DoubledStream(FrameStream):
    """`source` at twice its rate, with exactly twice its frames and the same duration."""

    stage = "Frame doubling"

    def __init__(self, source: FrameStream) -> None:
        fps = source.info.fps * 2
        if fps > MAX_FPS:
            raise ValueError(
                f"{fps_text(source.info.fps)} fps doubled is {fps_text(fps)}, above {MAX_FPS}; leave smoothing off"
            )
        self._source, length = source, source.info.n_frames
        self.info = replace(source.info, fps=fps, n_frames=None if length is None else 2 * length)

    def nv12(self, matrix: str, color_range: str = "limited") -> FrameStream | None:
        made = self._source.nv12(matrix, color_range)
        return None if made is None else DoubledStream(made)

    def generate(self, ctx: RunContext, n: int) -> Iterator[Made]:
        middle, held, cuts = _Middle(self.info.layout), None, 0
        chunks = self._source.chunks(ctx, max(1, n // 2))
        out: list[np.ndarray] = []
        try:
            for chunk in chunks:
                for frame in chunk.frames.cpu().numpy():
                    if held is not None:
                        with ctx.report.timed("frame doubling"):
                            between = middle.between(held, frame)
                        cuts += between is None
                        out += [held, held if between is None else between]
                    held = frame
                while len(out) >= n:
                    yield torch.from_numpy(np.stack(out[:n])), None, False
                    out = out[n:]
            if held is not None:
                out += [held, held]
            for i in range(0, len(out), n):
                yield torch.from_numpy(np.stack(out[i : i + n])), None, i + n >= len(out)
        finally:
            chunks.close()
            if cuts:
                ctx.report.fact("cuts_repeated", cuts)


class _Middle:
    """Finds the frame between two; keeps the flow's buffers, so use one per run."""

    def __init__(self, layout: str) -> None:
        import cv2

        self._layout = layout
        self._flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)

    def between(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """Return the frame half way from `a` to `b`, `a` itself where nothing moved, None at a cut."""
        luma_a, luma_b = self._luma(a), self._luma(b)
        area = _changed(luma_a, luma_b)
        if area is None:
            return a
        x1, y1, x2, y2 = area
        part_a, part_b = luma_a[y1:y2, x1:x2], luma_b[y1:y2, x1:x2]
        flow = self._half_flow(part_a, part_b)
        if flow is None:
            return None
        out = a.copy()
        for plane_a, plane_b, target, step in zip(
            self._planes(a), self._planes(b), self._planes(out), (1, 2), strict=False
        ):
            cut = np.s_[y1 // step : y2 // step, x1 // step : x2 // step]
            target[cut] = _moved(plane_a[cut], plane_b[cut], flow, step)
        return out

    def _luma(self, frame: np.ndarray) -> np.ndarray:
        import cv2

        return nv12_planes(frame)[0] if self._layout == "nv12" else cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)

    def _planes(self, frame: np.ndarray) -> tuple[np.ndarray, ...]:
        return nv12_planes(frame) if self._layout == "nv12" else (frame,)

    def _half_flow(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return where the middle frame's pixels come from, float32 (h, w, 2) offsets into a and into b; None at a cut."""
        import cv2

        h, w = a.shape
        scale = min(1.0, _FLOW_SIDE / max(h, w))
        size = max(_MIN_FLOW, round(w * scale)), max(_MIN_FLOW, round(h * scale))
        small_a, small_b = (cv2.resize(part, size, interpolation=cv2.INTER_AREA) for part in (a, b))
        there, back = self._flow.calc(small_a, small_b, None), self._flow.calc(small_b, small_a, None)
        if not (np.isfinite(there).all() and np.isfinite(back).all()):
            return None
        carried = cv2.remap(small_b, *_grid(there), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        if float(cv2.absdiff(carried, small_a).mean()) > CUT_LEVELS:
            return None
        ratio = np.array([w / size[0], h / size[1]], np.float32) / 2
        # The flow is known at its own frame's pixels; half of it carries it to the middle.
        to_b = cv2.remap(there, *_grid(-there / 2), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        to_a = cv2.remap(back, *_grid(-back / 2), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return tuple(cv2.resize(f * ratio, (w, h), interpolation=cv2.INTER_LINEAR) for f in (to_a, to_b))


_MIN_FLOW = 32
"""Side below which DIS has no pyramid to stand on."""


def _changed(a: np.ndarray, b: np.ndarray) -> tuple[int, int, int, int] | None:
    """Return x1, y1, x2, y2 of what differs, with a margin, on even pixels; None if nothing does."""
    import cv2

    differs = cv2.absdiff(a, b) > _STILL
    rows, columns = np.flatnonzero(differs.any(1)), np.flatnonzero(differs.any(0))
    if not rows.size:
        return None
    height, width = a.shape
    x1, y1 = (max(0, int(v[0]) - _MARGIN) // 2 * 2 for v in (columns, rows))
    x2, y2 = (
        min(limit, (int(v[-1]) + 1 + _MARGIN + 1) // 2 * 2) for v, limit in ((columns, width), (rows, height))
    )
    return x1, y1, x2, y2


def _grid(flow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the maps of cv2.remap for offsets (h, w, 2)."""
    h, w = flow.shape[:2]
    x = flow[..., 0] + np.arange(w, dtype=np.float32)
    y = flow[..., 1] + np.arange(h, dtype=np.float32)[:, None]
    return x, y


def _moved(a: np.ndarray, b: np.ndarray, flow: tuple[np.ndarray, np.ndarray], step: int) -> np.ndarray:
    """Return the middle of a and b, uint8 of their shape; `flow` is at `step` times their resolution."""
    import cv2

    to_a, to_b = flow
    if step > 1:
        size = a.shape[1], a.shape[0]
        to_a, to_b = (cv2.resize(f, size, interpolation=cv2.INTER_AREA) / step for f in flow)
    from_a, from_b = (
        cv2.remap(plane, *_grid(offset), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        for plane, offset in ((a, to_a), (b, to_b))
    )
    middle = cv2.addWeighted(from_a, 0.5, from_b, 0.5, 0)
    apart = cv2.absdiff(from_a, from_b)
    apart = apart.max(axis=2) if apart.ndim == 3 else apart
    cv2.copyTo(from_a, (apart > _DISAGREE).astype(np.uint8), middle)
    return middle
