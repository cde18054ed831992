"""Opening a media file so that only that file is read.

FFmpeg follows playlists and lists of clips (HLS, DASH, concat, SDP, ...) to other files and to the network, whatever the
file's name says. Those formats are left out of what it may take a file for, and no protocol but `file` is open.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

_FOLLOWING = frozenset(
    "applehttp avisynth concat concatf dash dvdvideo hls image2 imf lavfi rtp rtsp sap sdp tty vapoursynth vobsub "
    "webm_dash_manifest".split()
)
"""Formats that read other files, the network, devices or scripts; tty makes pictures of any text."""


def open_media(path: str | os.PathLike):
    """Return the opened av container of one file, which the caller closes.

    Raises:
        ValueError: no such file, or a list of other files: playlists are not followed.
        av.error.FFmpegError, OSError: it cannot be read.
    """
    import av

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {path}; check the path")
    options = {"format_whitelist": _formats(), "protocol_whitelist": "file"}
    try:
        return av.open(os.path.abspath(path), options=options, **_lenient())
    except (av.error.FFmpegError, OSError) as e:
        kind = _list_kind(path)
        if kind is None and not isinstance(e, av.error.ArgumentError):
            raise
        raise ValueError(
            f"{path.name} is {kind or 'of a format that points to other files'}, which is not followed; "
            "give the video or sound file itself"
        ) from e


@lru_cache(maxsize=1)
def _lenient() -> dict[str, str]:
    """PyAV before 19 refuses a file whose metadata is not UTF-8 unless told otherwise; 19 knows no such argument."""
    import av

    return {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


@lru_cache(maxsize=1)
def _formats() -> str:
    """Every format FFmpeg knows but those of `_FOLLOWING`, as its option takes them."""
    import av

    return ",".join(sorted(name for name in av.formats_available if not _FOLLOWING & set(name.split(","))))


def _list_kind(path: Path) -> str | None:
    """Say what kind of list a file is by its first bytes; None if it is none that we know."""
    with path.open("rb") as f:
        head = f.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"#EXTM3U"):
        return "a playlist (HLS)"
    if head.startswith(b"ffconcat"):
        return "a list of clips (ffconcat)"
    if b"<MPD" in head:
        return "a playlist (DASH)"
    return "a description of a network stream (SDP)" if head.startswith(b"v=0") else None
