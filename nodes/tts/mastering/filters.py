"""The low-pass of mastering, and the filters that tell sibilants from voiced sounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .blocks import Fir

LOWPASS_HZ = 9600.0
LOWPASS_ORDER = 4
BAND_HZ = (4800.0, 8200.0)
"""Where sibilants lie (system.md 7)."""
LOW_HZ = 3000.0
"""Voiced sounds have most of their energy below, sibilants next to none."""
EDGE_HZ = 800.0
"""Width of the band's edges: 9 kHz lies outside with the full attenuation."""
STOP_DB = 70.0
OFFSET, OFFSET_HZ = 0.01, 10.0
"""Offsets over this share of full scale are taken out; a voice has none."""
TAIL = 1e-9
"""Where an impulse response may end, as a share of its start."""


def impulse_response(sections: np.ndarray) -> np.ndarray:
    """Return what second-order sections (k, 6), as scipy's `sos`, make of an impulse: float64 (taps,), down to TAIL.

    Convolving with it is the recursive filter to 1e-9.
    """
    slowest = max(float(np.abs(np.roots(s[3:])).max(initial=0)) for s in sections)
    # A quarter more: poles that lie together fall later than one alone.
    taps = 8 + math.ceil(1.25 * math.log(TAIL) / math.log(max(slowest, 0.1)))
    size = 1 << (2 * taps).bit_length()
    response = np.prod([np.fft.rfft(s[:3], size) / np.fft.rfft(s[3:], size) for s in sections], axis=0)
    return np.fft.irfft(response, size)[:taps]


@lru_cache(maxsize=32)
def butterworth(rate: int, hz: float) -> np.ndarray:
    """Return the impulse response, float64 (taps,), of a low-pass of LOWPASS_ORDER (bilinear transform)."""
    k = math.tan(math.pi * hz / rate)
    sections = []
    for pair in range(LOWPASS_ORDER // 2):
        damping = 2 * math.sin(math.pi * (2 * pair + 1) / (2 * LOWPASS_ORDER))  # 1 / Q
        a0 = 1 + damping * k + k * k
        sections.append(
            np.array([k * k, 2 * k * k, k * k, a0, 2 * (k * k - 1), 1 - damping * k + k * k]) / a0
        )
    return impulse_response(np.array(sections))


class LowPass:
    """Butterworth of 4th order, causal: its delay is 0.05 ms and its state goes from block to block.

    Run both ways it would keep phases but be of 8th order, and need the end of the sound before its start.
    """

    def __init__(self, rate: int, channels: int, hz: float = LOWPASS_HZ) -> None:
        self._fir, self._channels = Fir([butterworth(rate, hz)], channels), channels

    def feed(self, block: np.ndarray) -> np.ndarray:
        return self._fir.feed(block.astype(np.float64))[0].astype(np.float32)

    def finish(self) -> np.ndarray:
        return np.zeros((self._channels, 0), np.float32)


def offset_of(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Return the offset of every channel of blocks (channels, n), float64 (channels,); 0 up to OFFSET.

    Of mean and median the one nearer to 0: a clipped or lopsided voice has a mean, and silence at zero all the same.
    """
    mean = sum(block.sum(axis=1, dtype=np.float64) for block in blocks) / sum(b.shape[1] for b in blocks)
    # Every 16th sample tells it as well, and a median sorts.
    median = np.median(np.concatenate([block[:, ::16] for block in blocks], axis=1), axis=1)
    nearer = np.where(np.abs(mean) < np.abs(median), mean, median)
    return np.where((np.abs(nearer) > OFFSET) & (mean * median > 0), nearer, 0.0)


class OffsetFilter:
    """Takes an offset out: a high-pass of first order at OFFSET_HZ, which has settled on `offsets` (channels,).

    At 80 Hz, under the lowest voice, it takes 0.07 dB.
    """

    def __init__(self, rate: int, offsets: np.ndarray) -> None:
        keep = math.exp(-2 * math.pi * OFFSET_HZ / rate)
        half = (1 + keep) / 2
        kernel = impulse_response(np.array([[half, -half, 0, 1, -keep, 0]]))
        before = np.tile(np.asarray(offsets, np.float64)[:, None], len(kernel) - 1)
        self._fir = Fir([kernel], len(before), before=before)

    def feed(self, block: np.ndarray) -> np.ndarray:
        return self._fir.feed(block.astype(np.float64))[0].astype(np.float32)


def lowpass_applies(rate: int, hz: float = LOWPASS_HZ) -> bool:
    """Say whether sound at `rate` Hz holds anything to speak of above `hz`."""
    return hz < 0.49 * rate


def band_applies(rate: int) -> bool:
    """Say whether sound at `rate` Hz reaches into the sibilants' band."""
    return rate / 2 > BAND_HZ[0] + EDGE_HZ


class Splitter:
    """Linear-phase filters: feed gives (band, low), what lies in BAND_HZ and what lies below LOW_HZ.

    Neither is shifted against the sound; both lag behind what was fed (2.8 ms) until `finish`.
    """

    def __init__(self, rate: int, channels: int) -> None:
        taps, beta = _kaiser(STOP_DB, EDGE_HZ / (rate / 2))
        low, under, high = (_lowpass(taps, beta, hz / rate) for hz in (LOW_HZ, *BAND_HZ))
        if rate / 2 <= BAND_HZ[1]:
            high = np.zeros(taps)
            high[taps // 2] = 1.0  # the band ends with the sound
        self._fir = Fir([high - under, low], channels, taps // 2)

    def feed(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        band, low = self._fir.feed(block)
        return band, low

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        band, low = self._fir.finish()
        return band, low


def _kaiser(stop_db: float, width: float) -> tuple[int, float]:
    """Return (odd taps, beta) for an edge of `width`, a share of half the rate (Kaiser's formulas, over 50 dB)."""
    return math.ceil((stop_db - 7.95) / (2.285 * math.pi * width) + 1) | 1, 0.1102 * (stop_db - 8.7)


def _lowpass(taps: int, beta: float, cutoff: float) -> np.ndarray:
    """Return a windowed-sinc low-pass of gain 1 at 0 Hz; `cutoff` in cycles per sample."""
    at = np.arange(taps) - taps // 2
    kernel = np.sinc(2 * cutoff * at) * np.kaiser(taps, beta)
    return kernel / kernel.sum()
