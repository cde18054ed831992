"""Mastering as a small picture: waveform and mean spectrum before and after, and the bands that stages work in.

Its size and its memory do not depend on the length of the take.
"""

from __future__ import annotations

import numpy as np

from .filters import BAND_HZ, LOWPASS_HZ
from .levels import COLUMNS, Levels, Trace

WIDTH, HEIGHT = COLUMNS, 480
TOP, WAVE, GAP = 22, 218, 20
"""Rows of the legend, of the waveform, and between it and the spectrum, which has the rest."""
FLOOR_DB, LOW_HZ = -100.0, 50.0
BACK, BEFORE, AFTER = (24, 26, 30), (110, 116, 128), (92, 176, 116)
LIMIT, BAND, INK = (226, 92, 74), (44, 48, 58), (226, 228, 232)


def draw_mastering(
    traces: tuple[Trace, Trace], levels: tuple[Levels, Levels], ceiling_dbtp: float | None = None
) -> np.ndarray:
    """Return uint8 RGB (HEIGHT, WIDTH, 3) of a take before and after mastering."""
    picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    picture[:] = BACK
    drawn = list(zip(levels, traces, (BEFORE, AFTER), strict=True))
    for _, trace, colour in sorted(drawn, key=lambda d: -d[0].peak_dbfs):  # the lower one in front
        _waveform(picture[TOP : TOP + WAVE], trace, colour)
    if ceiling_dbtp is not None:
        for row in (wave_row(10 ** (ceiling_dbtp / 20)), wave_row(-(10 ** (ceiling_dbtp / 20)))):
            picture[row, ::4] = LIMIT
    spectrum = picture[TOP + WAVE + GAP :]
    top_hz = traces[0].rate / 2
    left, right = (frequency_column(min(hz, top_hz), top_hz) for hz in BAND_HZ)
    spectrum[:, left : right + 1] = BAND
    if top_hz > LOWPASS_HZ:
        spectrum[::4, frequency_column(LOWPASS_HZ, top_hz)] = LIMIT
    for _, trace, colour in drawn:
        _spectrum(spectrum, trace, colour)
    _legend(picture, levels, top_hz)
    return picture


def wave_row(value: float) -> int:
    """Return the row of the picture in which a sample of this value lies; full scale fills the waveform's height."""
    return TOP + round((WAVE - 1) * (1 - min(1.0, max(-1.0, value))) / 2)


def frequency_column(hz: float, top_hz: float) -> int:
    """Return the column of a frequency; the axis is logarithmic from LOW_HZ to half the sample rate."""
    return round((WIDTH - 1) * np.log(max(hz, LOW_HZ) / LOW_HZ) / np.log(top_hz / LOW_HZ))


def _waveform(area: np.ndarray, trace: Trace, colour: tuple[int, int, int]) -> None:
    low, high = trace.outline()
    columns = len(low)
    if not columns:
        return
    rows = np.arange(WAVE)[:, None]
    # Columns by their share of the width; where there are more than pixels, a pixel spans all that fall into it.
    starts = np.arange(WIDTH) * columns // WIDTH
    ends = np.maximum(starts + 1, -(-(np.arange(WIDTH) + 1) * columns // WIDTH))
    index = np.minimum(starts[:, None] + np.arange(int((ends - starts).max())), ends[:, None] - 1)
    top = np.array([wave_row(v) - TOP for v in high[index].max(axis=1)])
    bottom = np.array([wave_row(v) - TOP for v in low[index].min(axis=1)])
    area[(rows >= top) & (rows <= bottom)] = colour


def _spectrum(area: np.ndarray, trace: Trace, colour: tuple[int, int, int]) -> None:
    import cv2

    hz, level = trace.spectrum()
    top_hz = trace.rate / 2
    shown = hz >= LOW_HZ
    x = [frequency_column(f, top_hz) for f in hz[shown]]
    y = np.rint((len(area) - 1) * np.clip(level[shown] / FLOOR_DB, 0, 1))
    points = np.stack([x, y], axis=1).astype(np.int32)
    line = np.ascontiguousarray(area)
    cv2.polylines(line, [points], False, colour, 1, cv2.LINE_AA)
    area[:] = line


def _legend(picture: np.ndarray, levels: tuple[Levels, Levels], top_hz: float) -> None:
    import cv2

    def write(text: str, x: int, y: int, colour: tuple[int, int, int], size: float = 0.42) -> int:
        cv2.putText(picture, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, colour, 1, cv2.LINE_AA)
        return x + cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)[0][0] + 18

    x = write(f"before: {levels[0]}", 8, 15, tuple(v + 60 for v in BEFORE))
    write(f"after: {levels[1]}", x, 15, AFTER)
    for hz in (100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000):
        if frequency_column(hz, top_hz) < WIDTH - 30:
            text = f"{hz // 1000}k" if hz >= 1000 else str(hz)
            write(text, frequency_column(hz, top_hz), TOP + WAVE + 14, INK, 0.36)
