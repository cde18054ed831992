"""Sentences one behind the other without clicks: each starts and ends where its waveform crosses zero."""

from __future__ import annotations

import numpy as np

from .filters import offset_of

REACH_S = 0.0015
PAUSE_S = 0.2
LOW = 0.25
"""A crossing counts where no channel is above this share of the loudest sample around."""


def settle_ends(sentence: np.ndarray, rate: int, reach_s: float = REACH_S) -> np.ndarray:
    """Return `sentence` float32 (channels, n) of the same length, silent before its first and behind its last zero.

    Only the outer `reach_s` at each end are touched. Of the crossings there the one nearest to zero is taken; without
    one where all channels are low (a very low tone, an offset, wide stereo) the end is faded by a raised cosine.
    """
    reach = min(max(1, round(reach_s * rate)), sentence.shape[1] // 2)
    if not reach:
        return sentence
    made = sentence.copy()
    _settle_start(made[:, : reach + 1])
    _settle_start(made[:, ::-1][:, : reach + 1])
    return made


def _settle_start(edge: np.ndarray) -> None:
    """Silence `edge` (channels, n) in place up to where it crosses zero."""
    mono, loudest = edge.sum(axis=0), np.abs(edge).max(axis=0)
    crossed = np.flatnonzero(np.signbit(mono[1:]) != np.signbit(mono[:-1]))
    starts = np.union1d(crossed, crossed + 1)
    starts = starts[starts < len(mono) - 1]
    if not edge[:, 0].any():
        return
    best = int(starts[np.argmin(loudest[starts])]) if len(starts) else 0
    if best and loudest[best] <= LOW * loudest.max():
        edge[:, :best] = 0
    else:
        turns = np.linspace(0, np.pi, edge.shape[1])
        edge *= (0.5 - 0.5 * np.cos(turns)).astype(edge.dtype)


class Joiner:
    """Puts sentences one behind the other with `pause_s` of silence between two.

    Its output is as long as the sentences and the pauses together. An offset of a sentence would be a step at each of
    its ends and is taken out. `reach_s` None joins them as they are.
    """

    def __init__(self, rate: int, pause_s: float = PAUSE_S, reach_s: float | None = REACH_S) -> None:
        self._rate, self._pause, self._reach_s = rate, round(pause_s * rate), reach_s
        self._first = True
        self.removed = 0.0
        """The largest offset that was taken out so far."""

    @property
    def next_pause(self) -> int:
        """Samples of silence in front of the next sentence."""
        return 0 if self._first else self._pause

    def feed(self, sentence: np.ndarray) -> np.ndarray:
        """Return what `sentence`, float32 (channels, n), adds: a pause but for the first one, and itself."""
        if not sentence.shape[1]:
            return sentence
        if self._reach_s is not None:
            sentence = settle_ends(self._centred(sentence), self._rate, self._reach_s)
        pause = self.next_pause
        self._first = False
        return np.concatenate([np.zeros((len(sentence), pause), np.float32), sentence], axis=1)

    def _centred(self, sentence: np.ndarray) -> np.ndarray:
        offsets = offset_of([sentence])
        self.removed = float(max(self.removed, *offsets, key=abs))
        return sentence - offsets[:, None].astype(np.float32) if offsets.any() else sentence
