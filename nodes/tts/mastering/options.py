"""What mastering does, and in which bounds."""

from __future__ import annotations

from dataclasses import dataclass

from . import deesser, duck, filters, joins, limiter, loudness, room_tone, sibilants

MIN_RATE, MAX_RATE = 8000, 192000
_RANGES = {
    "join_reach_s": (0.0, 0.01),
    "pause_s": (0.0, 10.0),
    "lowpass_hz": (1000.0, 96000.0),
    "deess_db": (0.0, 24.0),
    "fricative_s": (0.02, 0.5),
    "duck_db": (0.0, 60.0),
    "target_lufs": (-50.0, -5.0),
    "lookahead_s": (0.4, 30.0),
    "room_tone_dbfs": (-90.0, -30.0),
    "ceiling_dbtp": (-20.0, 0.0),
    "seed": (0, 2**63),
}


@dataclass(frozen=True)
class MasterOptions:
    """What mastering does; None switches a stage off."""

    join_reach_s: float | None = joins.REACH_S
    """How far from its ends a sentence may be silenced to start and end at a zero crossing."""
    pause_s: float = joins.PAUSE_S
    """Silence between two sentences."""
    lowpass_hz: float | None = filters.LOWPASS_HZ
    deess_db: float | None = deesser.MAX_DB
    """The most that 4.8-8.2 kHz goes down where it is too loud."""
    fricative_s: float | None = sibilants.CAP_S
    """What stays of a fricative in front of a pause, before its release of 25 ms."""
    duck_db: float | None = duck.DEPTH_DB
    """How far the second speaker goes down while the first one speaks."""
    target_lufs: float | None = loudness.TARGET_LUFS
    lookahead_s: float | None = None
    """None: two passes. Else what the moving gain knows of the sound to come."""
    room_tone_dbfs: float | None = room_tone.LEVEL_DBFS
    ceiling_dbtp: float | None = limiter.CEILING_DBTP
    seed: int = 0
    """Of the room tone."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} {value} is outside {low:g}..{high:g}")
