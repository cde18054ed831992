"""The wire format of a live session: speech in, video out, over one websocket. Version 1.

Client, in this order:

1. text: `{"type": "start", "version": 1, "avatar": "demo", "sample_rate": 16000, ...}`, see `StartRequest`;
2. binary: samples as they come, interleaved, little-endian; any length, a sample may be cut by a message's end;
3. text: `{"type": "end"}` when there is no more sound (the rest of the video follows), or `{"type": "cancel"}`.

`{"type": "text", ...}` is kept for text to be spoken and is refused so far.

Server, text: `ready` (codec string, size, rates), `stats` (at most two a second), `warning`, and as the last one `done`
(frames, seconds) or `error` (stage, message). Server, binary: the bytes of the video in order; where a message ends
means nothing. Output "mp4": fragmented MP4, H.264 and AAC, for MediaSource or a file. Output "h264": H.264 Annex B with
its parameter sets before every key frame, no sound.

Nothing here knows of sockets: bytes and text in, values and text out. What is refused raises ProtocolError.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .timeline import parse_fps

VERSION = 1
MAX_TEXT = 8 << 10
"""Bytes of a text message."""
MAX_BINARY = 1 << 20
"""Bytes of a binary message: 2.7 s of 48 kHz stereo in float32."""
SAMPLE_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
"""Hz that AAC takes too, so that the sound track holds the samples as they came."""
MAX_CHANNELS = 2
SAMPLE_FORMATS = {"s16": np.dtype("<i2"), "f32": np.dtype("<f4")}
OUTPUTS = ("mp4", "h264")
QUALITIES = ("draft", "balanced")
"""The presets that keep up with speech; "high" looks ahead of the frame it encodes."""
CADENCES = ("dense", "2", "3", "adaptive")
MIN_FPS, MAX_FPS = Fraction(10), Fraction(60)
"""Below 10 a batch of frames hears more sound than a session may hold back."""
MAX_NAME = 100

_NAME = re.compile(r"[^\x00-\x1f/\\]+")


class ProtocolError(ValueError):
    """A message that the protocol does not allow; the text says the value, the limit and what to do."""

    stage = "protocol"


@dataclass(frozen=True)
class StartRequest:
    """What a client asks for; `parse_start` gives the defaults.

    avatar: name of a presenter, as Load Avatar shows it. checkpoint, precision: as the loader of its engine shows them,
    "" for what suits the machine. fps of the video, 10..60. sample_rate in Hz, one of SAMPLE_RATES; channels 1 or 2;
    sample_format "s16" or "f32" (full scale 1.0). output "mp4" or "h264"; quality "draft" or "balanced". cadence: which
    frames are drawn, and rest: whether the mouth is still in silence, both as the Cadence node has them.
    """

    avatar: str
    sample_rate: int
    checkpoint: str = ""
    precision: str = ""
    fps: Fraction = Fraction(25)
    channels: int = 1
    sample_format: str = "s16"
    output: str = "mp4"
    quality: str = "balanced"
    cadence: str = "dense"
    rest: bool = False

    @property
    def bytes_per_sample(self) -> int:
        """Of all channels together."""
        return SAMPLE_FORMATS[self.sample_format].itemsize * self.channels


def parse_message(text: str) -> dict[str, Any]:
    """Return the JSON object of a text message; it has a "type"."""
    if len(text.encode()) > MAX_TEXT:
        raise ProtocolError(
            f"a text message of {len(text.encode())} bytes is longer than {MAX_TEXT}; shorten it"
        )
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ProtocolError(f"a text message is not JSON ({e}); send sound as binary messages") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError('a text message is a JSON object with a "type": start, end or cancel')
    return message


def parse_start(text: str) -> StartRequest:
    """Return the request in the first message of a session."""
    message = parse_message(text)
    kind = message.pop("type")
    if kind != "start":
        raise ProtocolError(f'the first message is of type "start", not {_shown(kind)}')
    version = message.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise ProtocolError(f"version {_shown(version)} is not spoken here; this server speaks {VERSION}")
    known = StartRequest.__dataclass_fields__
    unknown = sorted(key for key in message if key not in known)
    if unknown:
        raise ProtocolError(f"start has no field {_shown(unknown[0])}; it has version, {', '.join(known)}")
    for field in ("avatar", "sample_rate"):
        if field not in message:
            raise ProtocolError(f"start lacks {field!r}; give it")
    return StartRequest(
        avatar=_name(message, "avatar"),
        sample_rate=_choice(message, "sample_rate", SAMPLE_RATES),
        checkpoint=_name(message, "checkpoint", ""),
        precision=_name(message, "precision", ""),
        fps=_fps(message.get("fps", 25)),
        channels=_choice(message, "channels", tuple(range(1, MAX_CHANNELS + 1)), 1),
        sample_format=_choice(message, "sample_format", tuple(SAMPLE_FORMATS), "s16"),
        output=_choice(message, "output", OUTPUTS, "mp4"),
        quality=_choice(message, "quality", QUALITIES, "balanced"),
        cadence=_choice(message, "cadence", CADENCES, "dense"),
        rest=_flag(message, "rest", False),
    )


def parse_control(text: str) -> str:
    """Return "end" or "cancel", the text messages that may follow start."""
    kind = parse_message(text)["type"]
    if kind == "text":
        raise ProtocolError(
            "text is not available yet: this server speaks no text; send sound as binary messages"
        )
    if kind not in ("end", "cancel"):
        raise ProtocolError(
            f"a message of type {_shown(kind)} is unknown here; after start come end or cancel"
        )
    return kind


class PcmReader:
    """Turns binary messages into samples, whatever their borders cut; counts what it had to repair."""

    def __init__(self, request: StartRequest) -> None:
        self._dtype, self._channels = SAMPLE_FORMATS[request.sample_format], request.channels
        self._width = request.bytes_per_sample
        self._rest = b""
        self.n_samples = 0
        self.bad, self.hot = 0, 0
        """Values that were no numbers, and values above full scale."""

    def read(self, data: bytes) -> np.ndarray:
        """Return the whole samples that are there: float32 (channels, n), n >= 0, finite, within -1..1."""
        if len(data) > MAX_BINARY:
            raise ProtocolError(
                f"a binary message of {len(data)} bytes is longer than {MAX_BINARY}; send shorter pieces, such as 80 ms"
            )
        data = self._rest + data if self._rest else data
        whole = len(data) - len(data) % self._width
        self._rest = data[whole:]
        samples = np.frombuffer(data, self._dtype, whole // self._dtype.itemsize)
        samples = samples.reshape(-1, self._channels).T
        self.n_samples += samples.shape[1]
        if self._dtype.kind == "i":
            return samples.astype(np.float32) * np.float32(2.0**-15)
        return self._clean(samples.astype(np.float32))

    def _clean(self, samples: np.ndarray) -> np.ndarray:
        finite = np.isfinite(samples)
        if not finite.all():
            self.bad += int(finite.size - finite.sum())
            samples = np.where(finite, samples, np.float32(0))
        hot = np.abs(samples) > 1
        if hot.any():
            self.hot += int(hot.sum())
            samples = samples.clip(-1, 1)
        return samples

    def notes(self) -> list[str]:
        """Return what was wrong with the sound, once it has ended."""
        lines = []
        if self._rest:
            lines.append(
                f"the sound ended {len(self._rest)} of {self._width} bytes into a sample; they were dropped"
            )
        if self.bad:
            lines.append(f"the sound had {self.bad} NaN or infinite values; they became silence")
        if self.hot:
            lines.append(f"the sound had {self.hot} values above full scale 1.0; they were clipped")
        return lines


def event(kind: str, **fields: object) -> str:
    """Return the text of a message to the client; Fractions become "N/D"."""
    return json.dumps({"type": kind, **fields}, default=str)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MAX_NAME else text[:MAX_NAME] + "..."


def _name(message: dict, field: str, default: str | None = None) -> str:
    value = message.get(field, default)
    if value == default and default is not None:
        return default
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > MAX_NAME:
        raise ProtocolError(
            f"{field} {_shown(value)} is not a name; give 1 to {MAX_NAME} characters without slashes"
        )
    return value


def _choice(message: dict, field: str, choices: tuple, default: object = None) -> Any:
    value = message.get(field, default)
    if isinstance(value, bool) or value not in choices or type(value) is not type(choices[0]):
        raise ProtocolError(
            f"{field} {_shown(value)} is not possible; use one of {', '.join(map(str, choices))}"
        )
    return value


def _flag(message: dict, field: str, default: bool) -> bool:
    value = message.get(field, default)
    if not isinstance(value, bool):
        raise ProtocolError(f"{field} {_shown(value)} is not possible; use true or false")
    return value


def _fps(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ProtocolError(
            f'fps {_shown(value)} is not a rate; give a number or text such as 25 or "30000/1001"'
        )
    try:
        fps = parse_fps(value)
    except ValueError as e:
        raise ProtocolError(str(e)) from None
    if not MIN_FPS <= fps <= MAX_FPS:
        raise ProtocolError(
            f"fps {value} is outside {MIN_FPS}..{MAX_FPS} for live video; choose a rate in that range"
        )
    return fps
