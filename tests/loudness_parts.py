"""Meters that are not the pack's own, and the recorded sentence: what tests of mastering measure with and on."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import soundfile as sf
import soxr
from scipy.signal import resample_poly

from talkinghead.nodes.tts.mastering.options import MasterOptions
from talkinghead.nodes.tts.voices import SAMPLES

OFF = MasterOptions(
    join_reach_s=None,
    lowpass_hz=None,
    deess_db=None,
    fricative_s=None,
    duck_db=None,
    target_lufs=None,
    room_tone_dbfs=None,
    ceiling_dbtp=None,
)
"""Every stage that can be off."""


def sine(hz: float, seconds: float, rate: int, level: float = 0.5) -> np.ndarray:
    """Return a tone, float32 (n,)."""
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def speech(rate: int, seconds: float | None = None) -> np.ndarray:
    """Return the recorded sentence, float32 (n,), again and again for `seconds`."""
    sound, own = sf.read(SAMPLES / "sample_sentence.flac", dtype="float32")
    sound = soxr.resample(sound, own, rate)
    return sound if seconds is None else np.resize(sound, round(seconds * rate))


def true_peaks(sound: np.ndarray, rate: int) -> dict[str, float]:
    """Return dBTP of (channels, n) by SciPy at 4 and 8 times the rate and by soxr at 4 times."""
    samples = sound.astype(np.float64)
    found = {
        "scipy x4": resample_poly(samples, 4, 1, axis=1),
        "scipy x8": resample_poly(samples, 8, 1, axis=1),
        "soxr x4": soxr.resample(samples.T, rate, 4 * rate, "VHQ"),
    }
    return {name: 20 * np.log10(np.abs(values).max()) for name, values in found.items()}


def ebur128(sound, rate):
    """FFmpeg's meter, which is not ours: integrated LUFS and true peak (linear)."""
    graph = av.filter.Graph()
    layout = "mono" if len(sound) == 1 else "stereo"
    source = graph.add_abuffer(sample_rate=rate, format="fltp", layout=layout, time_base=Fraction(1, rate))
    meter, sink = graph.add("ebur128", "peak=true:metadata=1"), graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    found = {}
    for start in range(0, sound.shape[1], 4096):
        block = np.ascontiguousarray(sound[:, start : start + 4096])
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, start
        graph.push(frame)
        while True:
            try:
                found.update(graph.pull().metadata)
            except (av.error.BlockingIOError, EOFError):
                break
    return float(found["lavfi.r128.I"]), float(found["lavfi.r128.true_peak"])
