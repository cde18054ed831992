"""Pictures as an encoder takes them: pixels of a stream in the encoder's layout, with time and colour tags."""

from __future__ import annotations

import av
import numpy as np

from .color import Nv12Encoder, color_tags, matrix_for_height, nv12_planes, pad_to_even, plane_view
from .encoders import ENCODERS
from .frames import FrameInfo

X264_THREADS = 3
"""Fixed, so that a film has the same bytes on every machine. 512x512 on 2 shared cores, a busy torch producer
beside it: 1 thread costs 25-40 % more wall time than 2 or 3; CPU time is the same (draft 5.1, balanced 6.4,
high 12 ms a frame, 0.9 of it colour)."""


def even_size(info: FrameInfo) -> tuple[int, int]:
    """Return width and height of the video: those of the frames, padded to even."""
    return info.width + info.width % 2, info.height + info.height % 2


class Pictures:
    """Makes the pictures of one video. `info` describes the frames that come in, uint8 RGB or NV12; pts count frames."""

    def __init__(self, info: FrameInfo, encoder: str) -> None:
        self._info, self._encoder = info, encoder
        self.width, self.height = even_size(info)
        self.matrix = info.matrix or matrix_for_height(self.height)
        self.range = info.range or "limited"
        self._tags = color_tags(self.matrix, self.range)
        self._converter = None
        if info.layout == "rgb":
            self._converter = Nv12Encoder(self.width, self.height, self.matrix, self.range)

    def set_up(self, context: av.VideoCodecContext) -> None:
        """Tell a codec context, not yet open, what is coming."""
        context.width, context.height = self.width, self.height
        context.pix_fmt, context.time_base = ENCODERS[self._encoder].pix_fmt, 1 / self._info.fps
        context.color_range, context.colorspace = self._tags.range, self._tags.colorspace
        context.color_primaries, context.color_trc = self._tags.primaries, self._tags.trc
        if self._encoder == "libx264":
            context.thread_count = X264_THREADS

    def make(self, pixels: np.ndarray, index: int) -> av.VideoFrame:
        """Return frame `index` of the video, made of `pixels` shaped info.frame_shape."""
        layout = ENCODERS[self._encoder].pix_fmt
        picture = av.VideoFrame(self.width, self.height, layout)
        y = plane_view(picture.planes[0], self.width, self.height)
        half = (self.height // 2, self.width // 2, 2)
        if layout == "nv12":
            uv = plane_view(picture.planes[1], self.width, self.height // 2).reshape(half)
        else:
            uv = np.empty(half, np.uint8)
        if self._converter:
            self._converter.convert(pad_to_even(pixels[None])[0], y, uv)
        else:
            y[:], uv[:] = nv12_planes(pixels)
        if layout != "nv12":
            for k in range(2):
                plane_view(picture.planes[1 + k], half[1], half[0])[:] = uv[..., k]
        picture.pts, picture.time_base, picture.duration = index, 1 / self._info.fps, 1
        picture.color_range, picture.colorspace = self._tags.range, self._tags.colorspace
        picture.color_primaries, picture.color_trc = self._tags.primaries, self._tags.trc
        return picture
