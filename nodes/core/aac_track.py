"""An AAC track: samples in, packets out, counted from sample 0."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np

AAC_RATES = (7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
_BITS_PER_CHANNEL = 96000


class AacTrack:
    """A track of `box` at one of AAC_RATES with 1 or 2 channels. What `encode` and `finish` give is to be muxed."""

    def __init__(self, box: av.container.OutputContainer, rate: int, channels: int) -> None:
        self.rate, self.sent = rate, 0
        self._layout = "mono" if channels == 1 else "stereo"
        self.stream = box.add_stream("aac", rate=rate, layout=self._layout)
        self.stream.codec_context.bit_rate = _BITS_PER_CHANNEL * channels

    def encode(self, samples: np.ndarray) -> list[av.Packet]:
        """Take the next samples, float32 (channels, n) within -1..1."""
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", self._layout)
        frame.sample_rate, frame.time_base, frame.pts = self.rate, Fraction(1, self.rate), self.sent
        self.sent += samples.shape[1]
        return self.stream.encode(frame)

    def finish(self) -> list[av.Packet]:
        """Give what the encoder still holds."""
        return self.stream.encode(None)
