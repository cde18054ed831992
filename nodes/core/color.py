"""RGB <-> NV12 with the matrix and the range said aloud, and the stream tags that go with them.

RGB is uint8 (n,H,W,3) full range; NV12 is uint8 (n, H*3/2, W): H rows of luma, then H/2 rows of
interleaved U,V. Sides are even. Chroma sits in the centre of its 2x2 pixels (their mean), which is what
`chroma_sample_location=center` in `video_write` tells the decoder.

Both ways are OpenCV with 3 -> 3 channel matrices, the form of `cv2.transform` that is vectorised, and stay
within 1 level of the float formulas in Y, U and V (2 in RGB, which amplifies chroma's rounding). Measured
at 512x512 / 1080x1920 on one core: to NV12 0.6 / 5 ms (swscale 1.1 / 9), to RGB 1.1 / 8 ms.
swscale's own defaults do worse: its RGB is 1-2 levels too dark, which adds up over load-save rounds. Here
chroma is interpolated so that its 2x2 mean is the chroma again, hence load-save rounds do not blur it.

Functions take and give numpy arrays or torch tensors; on a CUDA device `rgb_to_nv12` works there, within 1 level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from av import VideoFrame
    from av.video.plane import VideoPlane

Frames = TypeVar("Frames", np.ndarray, torch.Tensor)

MATRICES = ("bt709", "bt601")
RANGES = ("limited", "full")
_KR_KB = {"bt709": (0.2126, 0.0722), "bt601": (0.299, 0.114)}
_COLORSPACE = {"bt709": 1, "bt601": 6}
_CHROMA_UP = np.array([-1, 2, 6, 2, -1], np.float32) / 8
"""On doubled chroma: c +- (next - previous) / 8, exact on gradients, and the pair's mean is c."""
_SWSCALE = {"bt709": "ITU709", "bt601": "ITU601", "bt2020": "BT2020"}


def matrix_for_height(height: int) -> str:
    """Return the matrix that players assume for an untagged picture `height` pixels high."""
    return "bt709" if height >= 720 else "bt601"


@dataclass(frozen=True)
class ColorTags:
    """FFmpeg's numbers for a stream: AVColorSpace, AVColorPrimaries, AVColorTransferCharacteristic, AVColorRange."""

    colorspace: int
    primaries: int
    trc: int
    range: int


def color_tags(matrix: str, color_range: str = "limited") -> ColorTags:
    """Return the tags of content made with `matrix`; primaries and transfer are BT.709 (sRGB sources)."""
    _check(matrix, color_range)
    return ColorTags(_COLORSPACE[matrix], 1, 1, 1 if color_range == "limited" else 2)


def coefficients(matrix: str, color_range: str = "limited") -> np.ndarray:
    """Return float64 (3,4): rows Y,U,V of `yuv = M[:, :3] @ rgb + M[:, 3]`, both in 0..255.

    ITU-R BT.709-6 and BT.601-7: Y = Kr R + Kg G + Kb B, U = (B-Y)/(2-2Kb), V = (R-Y)/(2-2Kr).
    """
    _check(matrix, color_range)
    kr, kb = _KR_KB[matrix]
    luma = np.array([kr, 1 - kr - kb, kb])
    blue, red = np.array([0, 0, 1.0]), np.array([1.0, 0, 0])
    rows = np.stack([luma, (blue - luma) / (2 - 2 * kb), (red - luma) / (2 - 2 * kr)])
    limited = color_range == "limited"
    scale = np.array([219, 224, 224]) / 255 if limited else np.ones(3)
    offset = [16.0 if limited else 0.0, 128.0, 128.0]
    return np.column_stack([rows * scale[:, None], offset])


def inverse_coefficients(matrix: str, color_range: str = "limited") -> np.ndarray:
    """Return float64 (3,4): rows R,G,B of `rgb = M[:, :3] @ yuv + M[:, 3]`."""
    forward = coefficients(matrix, color_range)
    back = np.linalg.inv(forward[:, :3])
    return np.column_stack([back, -back @ forward[:, 3]])


class Nv12Encoder:
    """Converts frames, or parts of frames, of at most one size; owns its scratch buffers, so use one per thread."""

    def __init__(self, width: int, height: int, matrix: str, color_range: str = "limited") -> None:
        _check_even(width, height)
        m = coefficients(matrix, color_range).astype(np.float32)
        self._luma, self._chroma = m[[0, 0, 0]], m[[1, 2, 2]]
        self._full = np.empty(height * width * 3, np.uint8)
        self._half, self._uvv = (np.empty(height * width * 3 // 4, np.uint8) for _ in range(2))

    def convert(self, rgb: np.ndarray, y: np.ndarray, uv: np.ndarray) -> None:
        """Write one picture (h,w,3) into `y` (h,w) and `uv` (h/2,w/2,2); rows of y and uv may be apart."""
        import cv2

        height, width = y.shape
        half = (height // 2, width // 2, 3)
        full = self._full[: height * width * 3].reshape(height, width, 3)
        small, uvv = (b[: half[0] * half[1] * 3].reshape(half) for b in (self._half, self._uvv))
        cv2.transform(rgb, self._luma, dst=full)
        cv2.extractChannel(full, 0, dst=y)
        cv2.resize(rgb, (width // 2, height // 2), dst=small, interpolation=cv2.INTER_AREA)
        cv2.transform(small, self._chroma, dst=uvv)
        cv2.mixChannels([uvv], [uv], [0, 0, 1, 1])


def rgb_to_nv12(frames: Frames, matrix: str, color_range: str = "limited") -> Frames:
    """Return uint8 (n,H,W,3) frames as NV12 (n,H*3/2,W), as the type they came in and where they are.

    ValueError for odd sides: pad first, see `pad_to_even`.
    """
    if isinstance(frames, torch.Tensor) and frames.device.type == "cuda":
        return torch_nv12(frames, matrix, color_range)
    rgb = _as_numpy(frames, channels=True)
    n, height, width, _ = rgb.shape
    encoder = Nv12Encoder(width, height, matrix, color_range)
    out = np.empty((n, height * 3 // 2, width), np.uint8)
    for source, target in zip(rgb, out, strict=True):
        encoder.convert(source, *nv12_planes(target))
    return _like(out, frames)


def torch_nv12(frames: torch.Tensor, matrix: str, color_range: str = "limited") -> torch.Tensor:
    """Return uint8 (n,H,W,3) as NV12 (n,H*3/2,W) by torch operations, on the frames' device."""
    _, height, width, _ = frames.shape
    _check_even(width, height)
    luma, chroma = torch_luma_chroma(frames, matrix, color_range)
    return torch.cat([luma, chroma.flatten(2)], dim=1)


def torch_luma_chroma(
    rgb: torch.Tensor, matrix: str, color_range: str = "limited"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return luma (n,h,w) and chroma (n,h/2,w/2,2), uint8, of RGB (n,h,w,3) of any integer type, on its device.

    Chroma is that of the 2x2 mean rounded to 8 bits, as `Nv12Encoder` has it.
    """
    # Sums, not a matrix product: with TF32 allowed that has 10 bits, too few for 255 levels.
    m = coefficients(matrix, color_range).tolist()

    def row(pixels: torch.Tensor, k: int) -> torch.Tensor:
        r, g, b, offset = m[k]
        red, green, blue = pixels.float().unbind(-1)
        return (red * r + green * g + blue * b + offset).round().clamp(0, 255).to(torch.uint8)

    n, h, w, _ = rgb.shape
    mean = (rgb.int().view(n, h // 2, 2, w // 2, 2, 3).sum((2, 4)) + 2) >> 2
    return row(rgb, 0), torch.stack([row(mean, 1), row(mean, 2)], dim=-1)


class RgbDecoder:
    """Converts decoded PyAV frames to RGB; owns its scratch buffers, so use one per thread.

    8-bit 4:2:0 is converted here, other formats and sizes by swscale, told to round.
    """

    def __init__(self) -> None:
        self._size: tuple[int, int] = (0, 0)
        self._reformatter = None

    def convert(
        self,
        frame: VideoFrame,
        matrix: str,
        color_range: str = "limited",
        width: int | None = None,
        height: int | None = None,
    ) -> np.ndarray:
        """Return uint8 (H,W,3), scaled if a size is given; valid until the next call.

        `matrix` may also be "bt2020".
        """
        width, height = width or frame.width, height or frame.height
        planes = None
        if (width, height) == (frame.width, frame.height) and matrix in MATRICES:
            planes = _planes_420(frame)
        if planes is None:
            return self._swscale(frame, matrix, color_range, width, height)
        return self.planes_to_rgb(*planes, matrix, color_range)

    def planes_to_rgb(self, y: np.ndarray, uv: np.ndarray, matrix: str, color_range: str) -> np.ndarray:
        """Convert one frame: luma (H,W) and interleaved chroma (H/2,W/2,2) to RGB (H,W,3)."""
        import cv2

        height, width = y.shape
        if self._size != (width, height):
            self._size = (width, height)
            self._wide, self._smooth = (np.empty((height, width, 2), np.uint8) for _ in range(2))
            self._yuv, self._rgb = (np.empty((height, width, 3), np.uint8) for _ in range(2))
        cv2.resize(uv, (width, height), dst=self._wide, interpolation=cv2.INTER_NEAREST)
        cv2.sepFilter2D(
            self._wide, -1, _CHROMA_UP, _CHROMA_UP, dst=self._smooth, borderType=cv2.BORDER_REPLICATE
        )
        cv2.mixChannels([y, self._smooth], [self._yuv], [0, 0, 1, 1, 2, 2])
        m = inverse_coefficients(matrix, color_range).astype(np.float32)
        return cv2.transform(self._yuv, m, dst=self._rgb)

    def _swscale(
        self, frame: VideoFrame, matrix: str, color_range: str, width: int, height: int
    ) -> np.ndarray:
        from av.video.reformatter import Interpolation, VideoReformatter

        self._reformatter = self._reformatter or VideoReformatter()
        # Without the last two flags swscale rounds down: 1.5 levels too dark.
        exact = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
        return self._reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="rgb24",
            src_colorspace=_SWSCALE[matrix],
            dst_colorspace=_SWSCALE[matrix],
            src_color_range="MPEG" if color_range == "limited" else "JPEG",
            dst_color_range="JPEG",
            interpolation=exact,
            threads=1,
        ).to_ndarray()


def nv12_to_rgb(frames: Frames, matrix: str, color_range: str = "limited") -> Frames:
    """Return NV12 (n,H*3/2,W) as uint8 (n,H,W,3), as the type it came in (torch: on the CPU)."""
    nv12 = _as_numpy(frames, channels=False)
    n, rows, width = nv12.shape
    height = rows * 2 // 3
    _check_even(width, height)
    decoder, out = RgbDecoder(), np.empty((n, height, width, 3), np.uint8)
    for source, target in zip(nv12, out, strict=True):
        target[:] = decoder.planes_to_rgb(*nv12_planes(source), matrix, color_range)
    return _like(out, frames)


def plane_view(plane: VideoPlane, width: int, height: int) -> np.ndarray:
    """Return a writable view (height, width) of a PyAV plane of bytes, without the padding of its lines."""
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]


def _planes_420(frame: VideoFrame) -> tuple[np.ndarray, np.ndarray] | None:
    """Return luma and interleaved chroma of an 8-bit 4:2:0 frame with even sides, None for any other."""
    import cv2

    width, height, name = frame.width, frame.height, frame.format.name
    if name not in ("nv12", "yuv420p", "yuvj420p") or width % 2 or height % 2:
        return None
    y = plane_view(frame.planes[0], width, height)
    if name == "nv12":
        uv = plane_view(frame.planes[1], width, height // 2).reshape(height // 2, width // 2, 2)
    else:
        uv = cv2.merge([plane_view(p, width // 2, height // 2) for p in frame.planes[1:]])
    return y, uv


def nv12_planes(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return views of one NV12 frame (H*3/2,W): luma (H,W) and chroma (H/2,W/2,2)."""
    height, width = frame.shape[0] * 2 // 3, frame.shape[1]
    return frame[:height], frame[height:].reshape(height // 2, width // 2, 2)


def pad_to_even(frames: Frames) -> Frames:
    """Return (n,H,W,3) frames with the last row and/or column doubled where a side is odd."""
    odd_h, odd_w = frames.shape[1] % 2, frames.shape[2] % 2
    if not (odd_h or odd_w):
        return frames
    if isinstance(frames, np.ndarray):
        return np.pad(frames, ((0, 0), (0, odd_h), (0, odd_w), (0, 0)), mode="edge")
    if odd_h:
        frames = torch.cat([frames, frames[:, -1:]], dim=1)
    return torch.cat([frames, frames[:, :, -1:]], dim=2) if odd_w else frames


def _as_numpy(frames: np.ndarray | torch.Tensor, channels: bool) -> np.ndarray:
    data = frames.cpu().numpy() if isinstance(frames, torch.Tensor) else frames
    good = data.ndim == 4 and data.shape[3] == 3 if channels else data.ndim == 3 and data.shape[1] % 3 == 0
    if data.dtype != np.uint8 or not good:
        wanted = "(n,H,W,3)" if channels else "(n,H*3/2,W)"
        raise ValueError(f"frames must be uint8 {wanted}, not {data.dtype} {tuple(data.shape)}")
    return np.ascontiguousarray(data)


def _like(out: np.ndarray, frames: np.ndarray | torch.Tensor) -> np.ndarray | torch.Tensor:
    return torch.from_numpy(out) if isinstance(frames, torch.Tensor) else out


def _check(matrix: str, color_range: str) -> None:
    if matrix not in MATRICES:
        raise ValueError(f"matrix {matrix!r} is unknown; use one of {', '.join(MATRICES)}")
    if color_range not in RANGES:
        raise ValueError(f"range {color_range!r} is unknown; use one of {', '.join(RANGES)}")


def _check_even(width: int, height: int) -> None:
    if width < 2 or height < 2 or width % 2 or height % 2:
        raise ValueError(f"NV12 needs even sides of at least 2, not {width}x{height}; pad by one pixel")
