"""The low-pass of mastering, and the filters that tell sibilants from voiced sounds."""

from __future__ import annotations

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


class LowPass:
    """Butterworth of 4th order, causal: its delay is 0.05 ms and its state goes from block to block.

    Run both ways it would keep phases but be of 8th order, and need the end of the sound before its start.
    """

    def __init__(self, rate: int, channels: int, hz: float = LOWPASS_HZ) -> None:
        from scipy.signal import butter

        self._sections = butter(LOWPASS_ORDER, hz, fs=rate, output="sos")
        self._state = np.zeros((len(self._sections), channels, 2))
        self._channels = channels

    def feed(self, block: np.ndarray) -> np.ndarray:
        from scipy.signal import sosfilt

        if not block.shape[1]:
            return block
        made, self._state = sosfilt(self._sections, block.astype(np.float64), zi=self._state)
        return made.astype(np.float32)

    def finish(self) -> np.ndarray:
        return np.zeros((self._channels, 0), np.float32)


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
        from scipy.signal import kaiserord

        taps, beta = kaiserord(STOP_DB, EDGE_HZ / (rate / 2))
        taps |= 1
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


def _lowpass(taps: int, beta: float, cutoff: float) -> np.ndarray:
    """Return a windowed-sinc low-pass of gain 1 at 0 Hz; `cutoff` in cycles per sample."""
    at = np.arange(taps) - taps // 2
    kernel = np.sinc(2 * cutoff * at) * np.kaiser(taps, beta)
    return kernel / kernel.sum()
