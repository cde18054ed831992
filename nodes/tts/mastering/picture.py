"""Mastering as a small picture: waveform over seconds and mean spectrum over Hz, in dBFS, before and after, and where
stages work: the limit, the de-esser's band, the low-pass.

Its size and its memory do not depend on the length of the take.
"""

from __future__ import annotations

import numpy as np

from .filters import BAND_HZ, LOWPASS_HZ
from .levels import COLUMNS, Levels, Trace

WIDTH, HEIGHT = COLUMNS, 480
TOP, WAVE, GAP = 22, 218, 20
"""Rows of the legend, of the waveform, and of the seconds between it and the spectrum, which has the rest."""
FLOOR_DB, LOW_HZ = -100.0, 50.0
BACK, BEFORE, AFTER = (24, 26, 30), (110, 116, 128), (92, 176, 116)
LIMIT, BAND, INK, GRID = (226, 92, 74), (44, 48, 58), (226, 228, 232), (46, 49, 55)
WAVE_DB, SPECTRUM_DB = (-6, -20), (-20, -40, -60, -80)
FREQUENCIES = (100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
SECONDS = tuple(n * 10.0**k for k in range(-4, 5) for n in (1, 2, 5))
MOST_TICKS = 12


def draw_mastering(
    traces: tuple[Trace, Trace], levels: tuple[Levels, Levels], ceiling_dbtp: float | None = None
) -> np.ndarray:
    """Return uint8 RGB (HEIGHT, WIDTH, 3) of a take before and after mastering."""
    picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    picture[:] = BACK
    top_hz, seconds = traces[0].rate / 2, traces[0].n / traces[0].rate
    spectrum = picture[TOP + WAVE + GAP :]
    left, right = (frequency_column(min(hz, top_hz), top_hz) for hz in BAND_HZ)
    spectrum[:, left : right + 1] = BAND
    _grid(picture, top_hz, seconds)
    drawn = list(zip(levels, traces, (BEFORE, AFTER), strict=True))
    for _, trace, colour in sorted(drawn, key=lambda d: -d[0].peak_dbfs):  # the lower one in front
        _waveform(picture[TOP : TOP + WAVE], trace, colour)
    if ceiling_dbtp is not None:
        for row in (wave_row(10 ** (ceiling_dbtp / 20)), wave_row(-(10 ** (ceiling_dbtp / 20)))):
            picture[row, ::4] = LIMIT
    if top_hz > LOWPASS_HZ:
        spectrum[::4, frequency_column(LOWPASS_HZ, top_hz)] = LIMIT
    for _, trace, colour in drawn:
        _spectrum(spectrum, trace, colour)
    _legend(picture, levels)
    _scales(picture, top_hz, seconds)
    return picture


def time_ticks(seconds: float) -> list[float]:
    """Return round times from 0 on within `seconds`, MOST_TICKS at most, the last one not at the very end."""
    step = next((s for s in SECONDS if seconds / s <= MOST_TICKS), SECONDS[-1])
    return [i * step for i in range(int(0.97 * seconds / step) + 1)][: MOST_TICKS + 1]


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


def _level_row(db: float) -> int:
    """Return the row of the picture of a level in the spectrum."""
    return TOP + WAVE + GAP + round((HEIGHT - TOP - WAVE - GAP - 1) * db / FLOOR_DB)


def _grid(picture: np.ndarray, top_hz: float, seconds: float) -> None:
    for db in WAVE_DB:
        for sign in (1, -1):
            picture[wave_row(sign * 10 ** (db / 20))] = GRID
    for at in time_ticks(seconds)[1:]:
        picture[TOP : TOP + WAVE, _time_column(at, seconds)] = GRID
    for db in SPECTRUM_DB:
        picture[_level_row(db)] = GRID
    for hz in FREQUENCIES:
        if hz < top_hz:
            picture[TOP + WAVE + GAP :, frequency_column(hz, top_hz)] = GRID


def _time_column(at: float, seconds: float) -> int:
    return min(WIDTH - 1, int(WIDTH * at / seconds)) if seconds else 0


def _write(
    picture: np.ndarray, text: str, x: int, y: int, colour: tuple[int, int, int], size: float = 0.36
) -> int:
    """Write `text` on the picture's ground, so that it is read on any curve; return the column behind it."""
    import cv2

    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    picture[max(0, y - height - 1) : y + 3, max(0, x - 1) : x + width + 1] = BACK
    cv2.putText(picture, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, colour, 1, cv2.LINE_AA)
    return x + width


def _legend(picture: np.ndarray, levels: tuple[Levels, Levels]) -> None:
    x = _write(picture, f"before: {levels[0]}", 8, 15, tuple(v + 60 for v in BEFORE), 0.42)
    _write(picture, f"after: {levels[1]}", x + 18, 15, AFTER, 0.42)


def _scales(picture: np.ndarray, top_hz: float, seconds: float) -> None:
    """Write what the lines of the grid stand for, with their units."""
    for db in WAVE_DB:
        _write(picture, f"{db} dBFS", 4, wave_row(10 ** (db / 20)) - 3, INK)
    for at in time_ticks(seconds):
        _write(picture, f"{at:g} s", _time_column(at, seconds) + 3, TOP + WAVE + 14, INK)
    for db in SPECTRUM_DB:
        _write(picture, f"{db} dBFS", 4, _level_row(db) - 3, INK)
    for hz in FREQUENCIES:
        if (column := frequency_column(hz, top_hz)) < WIDTH - 50:
            text = f"{hz // 1000} kHz" if hz >= 1000 else f"{hz} Hz"
            _write(picture, text, column + 3, HEIGHT - 5, INK)
    top = TOP + WAVE + GAP + 12
    if top_hz > BAND_HZ[0]:
        _write(picture, "de-esser", frequency_column(BAND_HZ[0], top_hz) + 4, top, INK)
    if top_hz > LOWPASS_HZ:
        _write(
            picture, "low-pass", min(WIDTH - 52, frequency_column(LOWPASS_HZ, top_hz) + 3), top + 14, LIMIT
        )
