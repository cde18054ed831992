"""Phoneme timings -> mouth curves.

A curve is (n, 3) float at 100 Hz: open 0..1, width 0..1 (0.5 at rest, 1 spread), round 0..1. Value k belongs to
time k / 100 s. Silence closes the mouth, p/b/m force it shut for the length of the closure.
"""

import numpy as np
from scipy.ndimage import gaussian_filter1d

CURVE_HZ = 100
FINE_HZ = 200
REST = (0.0, 0.5, 0.0)
SMOOTH_S = 0.038
CLOSURE_S = 0.022

# espeak / Kokoro symbols: open, width, round
SHAPES = {
    "a": (0.92, 0.66, 0.0), "æ": (0.88, 0.74, 0.0), "ɑ": (1.0, 0.52, 0.06), "ɒ": (0.95, 0.40, 0.2),
    "ʌ": (0.66, 0.52, 0.0), "ɐ": (0.62, 0.54, 0.0), "ə": (0.40, 0.50, 0.05), "ɚ": (0.42, 0.40, 0.38),
    "ɜ": (0.45, 0.40, 0.36), "ɝ": (0.45, 0.40, 0.38), "ɛ": (0.62, 0.72, 0.0), "e": (0.56, 0.76, 0.0),
    "ɪ": (0.38, 0.72, 0.0), "i": (0.32, 0.88, 0.0), "ᵻ": (0.34, 0.66, 0.0), "ɔ": (0.74, 0.28, 0.6),
    "o": (0.60, 0.18, 0.82), "ʊ": (0.42, 0.22, 0.72), "u": (0.34, 0.08, 1.0), "y": (0.32, 0.1, 0.9),
    "A": (0.52, 0.76, 0.0), "I": (0.80, 0.66, 0.0), "O": (0.55, 0.2, 0.8), "W": (0.78, 0.45, 0.3), "Y": (0.6, 0.4, 0.4),
    "p": (0.0, 0.5, 0.0), "b": (0.0, 0.5, 0.0), "m": (0.0, 0.5, 0.0),
    "f": (0.08, 0.56, 0.0), "v": (0.08, 0.56, 0.0), "w": (0.20, 0.08, 0.95), "ʍ": (0.20, 0.08, 0.95),
    "ɹ": (0.30, 0.34, 0.5), "r": (0.30, 0.34, 0.5), "l": (0.36, 0.56, 0.0), "ɫ": (0.36, 0.52, 0.05),
    "n": (0.22, 0.58, 0.0), "t": (0.20, 0.60, 0.0), "d": (0.22, 0.60, 0.0), "ɾ": (0.26, 0.58, 0.0),
    "s": (0.14, 0.70, 0.0), "z": (0.14, 0.70, 0.0), "ʃ": (0.20, 0.28, 0.62), "ʒ": (0.20, 0.28, 0.62),
    "ʧ": (0.20, 0.30, 0.6), "ʤ": (0.20, 0.30, 0.6), "θ": (0.24, 0.60, 0.0), "ð": (0.26, 0.60, 0.0),
    "k": (0.30, 0.56, 0.0), "ɡ": (0.30, 0.56, 0.0), "g": (0.30, 0.56, 0.0), "ŋ": (0.28, 0.56, 0.0),
    "x": (0.30, 0.56, 0.0), "h": (0.40, 0.52, 0.0), "j": (0.26, 0.82, 0.0), "ʔ": (0.25, 0.54, 0.0),
}
LABIAL = {"p": 1.0, "b": 1.0, "m": 1.0, "f": 0.8, "v": 0.8}
JOIN_NEXT = set("ˈˌ")
JOIN_PREVIOUS = set("ːˑ ʲʰ̩̃ˀ-‿͡")
SILENT = set("^$_,.;:!?—…\"'()“”\n")


def merge(timings: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Attach stress marks to the following sound and length marks and spaces to the one before."""
    joined: list[list] = []
    pending: float | None = None
    for symbol, start, end in timings:
        if symbol in JOIN_NEXT:
            pending = start if pending is None else pending
        elif symbol in JOIN_PREVIOUS:
            if joined:
                joined[-1][2] = end
        else:
            joined.append([symbol, start if pending is None else pending, end])
            pending = None
    return [(s, a, b) for s, a, b in joined]


def _target(segments, index: int):
    symbol = segments[index][0]
    if symbol == "h" and index + 1 < len(segments):
        following = SHAPES.get(segments[index + 1][0])
        if following and following[0] > 0.3:
            return (0.85 * following[0], following[1], following[2])
    return SHAPES.get(symbol)


def curves(timings: list[tuple[str, float, float]], dur_s: float, *, merged: bool = False) -> np.ndarray:
    """Timings [(symbol, start_s, end_s)] -> (ceil(dur_s * 100), 3) float32 curve.

    Args:
        timings: every sound with its own symbol; unknown symbols count as silence.
        dur_s: length of the audio they belong to.
        merged: timings already passed through `merge`.
    """
    segments = timings if merged else merge(timings)
    n_fine = int(np.ceil(dur_s * FINE_HZ)) + 2
    values = np.tile(np.array(REST, np.float64), (n_fine, 1))
    voiced = np.zeros(n_fine)
    closed = np.zeros(n_fine)
    for index, (symbol, start, end) in enumerate(segments):
        shape = None if symbol in SILENT else _target(segments, index)
        if shape is None:
            continue
        a, b = int(round(start * FINE_HZ)), max(int(round(end * FINE_HZ)), int(round(start * FINE_HZ)) + 1)
        values[a:b] = shape
        voiced[a:b] = 1.0
        if symbol in LABIAL:
            closed[a:b] = LABIAL[symbol]
    smooth = gaussian_filter1d(values, SMOOTH_S * FINE_HZ, axis=0, mode="nearest")
    shut = gaussian_filter1d(closed, CLOSURE_S * FINE_HZ, mode="nearest")
    audible = gaussian_filter1d(voiced, CLOSURE_S * FINE_HZ, mode="nearest")
    smooth[:, 0] *= (1.0 - np.clip(1.35 * shut, 0, 1)) * np.clip(audible, 0, 1)
    return smooth[: n_fine - 2 : FINE_HZ // CURVE_HZ].astype(np.float32)


def shut_in_silence(curve: np.ndarray, audio: np.ndarray, below: float = 0.0025, shortest_s: float = 0.1) -> np.ndarray:
    """Close the mouth where the sound itself is silent, whatever the labels say.

    Kokoro stretches the last sound of a phrase: its labels stay open up to 0.4 s after the voice has stopped.

    Args:
        curve: (m, 3) at 100 Hz.
        audio: int16 (160 m,), peak about 0.7.
        below: RMS of 10 ms that counts as silent.
        shortest_s: shorter silences are left alone, they are stops.
    """
    blocks = audio[: len(curve) * 160].reshape(-1, 160).astype(np.float32) / 32768
    level = np.sqrt((blocks**2).mean(axis=1))
    silent = level < below
    edges = np.flatnonzero(np.diff(np.concatenate([[0], silent.astype(np.int8), [0]])))
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if b - a < shortest_s * CURVE_HZ:
            silent[a:b] = False
    heard = np.clip(gaussian_filter1d((~silent).astype(np.float64), 0.025 * CURVE_HZ, mode="nearest"), 0, 1)
    out = curve.astype(np.float32).copy()
    out[:, 0] *= np.clip(2 * heard - 0.6, 0, 1) if silent.any() else 1.0
    out[out[:, 0] < 0.004, 0] = 0.0
    return out
