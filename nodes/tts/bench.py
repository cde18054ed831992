"""How fast this machine masters: seconds of sound per second, the first call in a process apart."""

from __future__ import annotations

import statistics
import time

import numpy as np


def bench_mastering(seconds: float = 60.0, rounds: int = 5) -> dict[str, float]:
    """Master the recorded sentence, repeated for `seconds`, with every stage on.

    Returns:
        seconds: of sound; first_ms: the first call, which imports what mastering needs unless it was there already; ms:
        the median of `rounds` more; first_factor and factor: times real time, which compare within one run.
    """
    import soundfile

    from .voices import SAMPLES

    sentence, rate = soundfile.read(SAMPLES / "sample_sentence.flac", dtype="float32")
    sound, times = np.resize(sentence, round(seconds * rate)), []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        from .master import master

        master(sound, rate)
        times.append(time.perf_counter() - began)
    first, rest = times[0], statistics.median(times[1:])
    return {
        "seconds": seconds,
        "first_ms": round(first * 1e3, 1),
        "ms": round(rest * 1e3, 1),
        "first_factor": round(seconds / first, 1),
        "factor": round(seconds / rest, 1),
    }


def mastering_text(found: dict[str, float]) -> str:
    """Say in one line what `bench_mastering` found."""
    return (
        f"{found['seconds']:g} s of speech in {found['ms']:.0f} ms, {found['factor']:.0f} times real time; the first call "
        f"in {found['first_ms']:.0f} ms, {found['first_factor']:.0f} times"
    )
