"""The encoders a video can be written with: what they take, how they are set, which of them work here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import av

from .thread_priority import callers_scheduling

CODECS = ("auto", "h264_nvenc", "libx264", "hevc_nvenc", "libx265", "av1_nvenc", "libsvtav1")


@dataclass(frozen=True)
class Encoder:
    """kind: H.264, HEVC or AV1; pix_fmt: the 4:2:0 layout it takes; tag: of its track in MP4 and MOV, "" as FFmpeg likes."""

    kind: str
    pix_fmt: str
    tag: str = ""


ENCODERS = {
    "h264_nvenc": Encoder("H.264", "nv12"),
    "libx264": Encoder("H.264", "nv12"),
    # Apple's players know HEVC by hvc1 only.
    "hevc_nvenc": Encoder("HEVC", "nv12", "hvc1"),
    "libx265": Encoder("HEVC", "yuv420p", "hvc1"),
    "av1_nvenc": Encoder("AV1", "nv12"),
    "libsvtav1": Encoder("AV1", "yuv420p"),
}


@dataclass(frozen=True)
class Quality:
    """x264 preset and CRF; NVENC preset, tune and CQ; x265 preset and CRF; SVT-AV1 preset and CRF."""

    x264: str
    crf: int
    nvenc: str
    tune: str
    cq: int
    x265: str
    x265_crf: int
    svt: int
    svt_crf: int


QUALITIES = {
    "draft": Quality("ultrafast", 26, "p1", "ull", 30, "ultrafast", 28, 12, 40),
    "balanced": Quality("superfast", 20, "p1", "ull", 23, "superfast", 22, 10, 30),
    "high": Quality("medium", 16, "p5", "hq", 18, "medium", 18, 8, 18),
}


def encoder_options(encoder: str, quality: Quality, fps: Fraction) -> tuple[dict[str, str], str]:
    """Return FFmpeg's options and their short name for the report.

    A closed group of pictures of one second and no B frames: a player may start at every second, and packets leave in
    the order of the frames.
    """
    options = {"g": str(max(1, round(fps))), "bf": "0", "chroma_sample_location": "center"}
    if encoder == "libx264":
        return options | {
            "preset": quality.x264,
            "crf": str(quality.crf),
        }, f"{quality.x264} crf {quality.crf}"
    if encoder == "libx265":
        options |= {"preset": quality.x265, "crf": str(quality.x265_crf)}
        options["x265-params"] = "open-gop=0:log-level=error"
        return options, f"{quality.x265} crf {quality.x265_crf}"
    if encoder == "libsvtav1":
        options |= {"preset": str(quality.svt), "crf": str(quality.svt_crf)}
        # Filtering over time costs up to 2 dB where something moves, a mouth for one.
        options["svtav1-params"] = "enable-tf=0"
        return options, f"preset {quality.svt} crf {quality.svt_crf}"
    options |= {"preset": quality.nvenc, "tune": quality.tune, "rc": "vbr", "cq": str(quality.cq)}
    options |= {"b": "0", "strict_gop": "1"}
    if quality.tune == "ull":
        # A frame's packet leaves before the next frame goes in.
        options |= {"zerolatency": "1", "delay": "0", "rc-lookahead": "0"}
    return options, f"{quality.nvenc} {quality.tune} cq {quality.cq}"


def live_options(encoder: str, quality: Quality, fps: Fraction) -> dict[str, str]:
    """Return FFmpeg's options for H.264 whose packet leaves before the next frame goes in, whatever the quality."""
    if encoder == "libx264":
        return encoder_options(encoder, quality, fps)[0] | {"tune": "zerolatency"}
    return encoder_options(encoder, replace(quality, tune="ull"), fps)[0]


@lru_cache(maxsize=64)
def encoder_problem(codec: str, width: int, height: int) -> str | None:
    """Return why `codec` cannot encode this size here, or None if it opens. Asked once per process and size.

    Only `open()` tells: without a driver the codec object is made without complaint.
    """
    known = ENCODERS.get(codec)
    try:
        context = av.CodecContext.create(codec, "w")
        context.width, context.height = width, height
        context.pix_fmt = known.pix_fmt if known else "nv12"
        context.time_base = Fraction(1, 25)
        if codec == "libx265":
            context.options = {"x265-params": "log-level=error"}
        with callers_scheduling():
            context.open()
    except (av.error.FFmpegError, OSError, ValueError) as e:
        return getattr(e, "strerror", None) or str(e)
    return None
