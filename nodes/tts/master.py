"""Mastering of speech: from the takes of a voice to sound of broadcast level. What nodes and command line call.

Order: joins | low-pass | de-esser | long fricatives | second speaker, ducked | loudness | room tone | true-peak limit.
Every stage carries its state over blocks of a fixed grid, so sound that comes sentence by sentence gives the same
samples as one that comes whole. Loudness has two forms, in both of which that holds:

- `lookahead_s` None, two passes: the gain is the same for the whole take and found by measuring what leaves the
  limiter. Nothing leaves before the last sentence came. It ends within 0.3 LU of the target (0.05 on what was
  tried), whatever is louder than the speech, or the report says why not.
- `lookahead_s` a number: the gain follows all that was heard and that many seconds to come; it rises by 1 dB/s at most.
  Sound leaves at most `lookahead_s` + 1.7 s behind what came in, and memory does not grow. 15 s of a sentence that
  needs 5 dB of limiting end 0.3 LU under the target at 3 s, 0.8 LU at 0.4 s; after a minute 0.1 and 0.3 LU are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ..core.audio import MemoryAudio, as_array, as_float
from ..core.report import Report
from .mastering.levels import Levels, Trace
from .mastering.options import MasterOptions
from .mastering.stream import MasterStream


@dataclass(frozen=True)
class Mastered:
    """samples: float32 (channels, n). before and after: their levels; traces: what `picture` is drawn from."""

    samples: np.ndarray
    sample_rate: int
    before: Levels
    after: Levels
    traces: tuple[Trace, Trace]
    ceiling_dbtp: float | None

    def picture(self) -> np.ndarray:
        """Return waveform and spectrum before and after as uint8 RGB (480, 960, 3)."""
        from .mastering.picture import draw_mastering

        return draw_mastering(self.traces, (self.before, self.after), self.ceiling_dbtp)


def master(
    samples: np.ndarray,
    sample_rate: int,
    options: MasterOptions | None = None,
    report: Report | None = None,
    other: np.ndarray | None = None,
) -> Mastered:
    """Return `samples`, (n,) or (1 or 2, n), float or integer, mastered; of the same length.

    `other` is a second speaker at the same rate, mixed in; the shorter of the two is followed by silence. `report` is
    told the levels and what is wrong with the sound. ValueError for no samples, more than two channels, a rate outside
    8..192 kHz.
    """
    sounds = [_shaped(sound) for sound in (samples, other) if sound is not None]
    n, channels = max(s.shape[1] for s in sounds), max(len(s) for s in sounds)
    sounds = [
        s
        if s.shape == (channels, n)
        else np.pad(s.repeat(channels // len(s), 0), ((0, 0), (0, n - s.shape[1])))
        for s in sounds
    ]
    stream = MasterStream(sample_rate, channels, options, report, speakers=len(sounds))
    made = np.concatenate([stream.feed(*sounds), stream.finish()], axis=1)
    ceiling = stream.options.ceiling_dbtp
    return Mastered(made, stream.sample_rate, stream.before, stream.after, stream.traces, ceiling)


def master_sentences(
    sentences: Iterable[np.ndarray],
    sample_rate: int,
    options: MasterOptions | None = None,
    report: Report | None = None,
) -> Iterator[np.ndarray]:
    """Yield the mastered sound, float32 (channels, n), of sentences with a pause between two, as soon as it is sure.

    All sentences have the channels of the first one. Set `options.lookahead_s`, or all comes behind the last one.
    """
    stream = None
    for sentence in sentences:
        sound = _shaped(sentence)
        stream = stream or MasterStream(sample_rate, len(sound), options, report)
        if (made := stream.feed(sound)).shape[1]:
            yield made
    if stream is not None and (made := stream.finish()).shape[1]:
        yield made


def master_takes(
    pieces: Iterable[MemoryAudio], options: MasterOptions | None = None, report: Report | None = None
) -> Iterator[MemoryAudio]:
    """Yield pieces of speech (`takes`) mastered as one sound, as soon as it is sure, for `push_takes`.

    The pieces bring their own pauses and ends, so `pause_s` and `join_reach_s` do not count. Set
    `options.lookahead_s`, or all comes behind the last piece. Closing it closes `pieces`.
    """
    options = replace(options or MasterOptions(), pause_s=0.0, join_reach_s=None)
    source = iter(pieces)
    try:
        if (first := next(source, None)) is None:
            return
        sounds = (piece.samples for piece in chain([first], source))
        for sound in master_sentences(sounds, first.sample_rate, options, report):
            yield MemoryAudio(sound, first.sample_rate, "speech")
    finally:
        if close := getattr(source, "close", None):
            close()


def _shaped(sound: np.ndarray) -> np.ndarray:
    data = as_array(sound, "sound")
    if data.ndim not in (1, 2) or 0 in data.shape or (data.ndim == 2 and len(data) > 2):
        raise ValueError(
            f"sound shaped {data.shape} cannot be mastered; give (n,), (1, n) or (2, n), at least one sample"
        )
    return as_float(data if data.ndim == 2 else data[None])
