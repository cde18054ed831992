"""SPEECH for MuseTalk: which encoder rows every video frame hears, gathered chunk by chunk.

Audio is cut into 30 s pieces; each gives 1500 rows of encoder states (rows, states, width). Frame i hears
the rows floor(i*50/fps)-4 .. +window, zeros outside the audio. States live for one piece and are dropped, so
memory does not grow with the audio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch

from ..core.audio import AudioClip, pieces, resampled_length
from ..core.frames import RunContext
from ..core.host_copy import upload
from ..core.loudness import frame_energies
from ..core.overlap import ahead
from ..core.timeline import frame_count, speech_row_start
from .handle import MuseTalkModel
from .whisper import log_mel

SAMPLE_RATE = 16000
SAMPLES_PER_ROW = 320
WINDOWS_AHEAD = 64
"""Video frames whose speech features are ready before the network asks: 5 MB in fp32 for the official model. Every 30 s
piece of sound must be read, resampled and encoded in the time these frames last: 100 ms on a card at 640 frames a second."""


class Heard(Protocol):
    """What a renderer needs of speech: the frames it has (None: not known yet) and what each of them hears."""

    model: MuseTalkModel
    fps: Fraction

    @property
    def n_frames(self) -> int | None: ...

    def windows(self, ctx: RunContext, n: int) -> Iterator[torch.Tensor | None]:
        """Yield the tokens of the next frames, at most `n`: (k, window_rows * states, width). None before a wait."""

    def ends_at(self, frame: int) -> bool:
        """Return whether frame `frame`, the one after those that `windows` gave, does not exist."""


@dataclass(frozen=True)
class Speech:
    """Audio, the rate of the video that will show it, and the model whose encoder listens."""

    model: MuseTalkModel
    audio: AudioClip
    fps: Fraction

    @property
    def n_frames(self) -> int:
        """Frames that cover the audio: ceil(seconds * fps)."""
        return frame_count(self.audio.n_samples, self.audio.sample_rate, self.fps)

    def ends_at(self, frame: int) -> bool:
        return frame >= self.n_frames

    @property
    def n_rows(self) -> int:
        """Whole encoder rows (20 ms each) the audio fills; what lies behind is zeros."""
        return resampled_length(self.audio.n_samples, self.audio.sample_rate, SAMPLE_RATE) // SAMPLES_PER_ROW

    def energies(self) -> Iterator[float]:
        """Yield how loud every frame's own stretch of sound is (RMS, full scale 1); see `core.cadence`."""
        return frame_energies(self.audio, self.fps)

    def windows(self, ctx: RunContext, n: int) -> Iterator[torch.Tensor]:
        """Yield the tokens of the next `n` frames (the last time fewer): (k, window_rows * states, width)."""
        window = self.model.config.window_rows
        steps = torch.arange(window)
        rows = _RowBuffer(self._piece_rows(ctx), self.n_rows)
        for first in range(0, self.n_frames, n):
            frames = range(first, min(first + n, self.n_frames))
            starts = [speech_row_start(i, self.fps) for i in frames]
            yield rows.gather(torch.tensor(starts)[:, None] + steps).flatten(1, 2)
            rows.drop_before(starts[0])

    def _piece_rows(self, ctx: RunContext) -> Iterator[torch.Tensor]:
        nets = ctx.load(self.model)
        done = 0
        whisper = self.model.config.whisper
        for piece in pieces(self.audio, whisper.piece_samples, SAMPLE_RATE, ctx.report):
            ctx.check_cancelled()
            count = min(-(-len(piece) // SAMPLES_PER_ROW), self.n_rows - done)
            # Beside a network that runs: nobody may move the weights meanwhile.
            with ctx.using_models(), torch.inference_mode(), ctx.report.timed("speech features"):
                sound = upload(torch.from_numpy(piece)[None], ctx.device)
                mel = log_mel(sound, whisper.n_mels, whisper.piece_samples)
                rows = nets.encode_audio(mel)[0, :count].clone()
            yield rows
            done += count


class _RowBuffer:
    """Rows pulled from the pieces so far, less those no frame needs any more."""

    def __init__(self, source: Iterator[torch.Tensor], n_rows: int) -> None:
        self._source, self._n_rows = source, n_rows
        self._rows: torch.Tensor | None = None
        self._first = 0

    def gather(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows (k, window) of `index` as (k, window, states, width); zeros outside 0..n_rows-1.

        `index` lies on the host, where it is decided what to pull: asking the device would wait for it every chunk.
        """
        last = min(int(index.max()), self._n_rows - 1)
        while self._rows is None or self._first + len(self._rows) <= last:
            more = next(self._source)
            self._rows = more if self._rows is None else torch.cat([self._rows, more])
        valid = (index >= 0) & (index < self._n_rows)
        if not len(self._rows):
            return self._rows.new_zeros(*index.shape, *self._rows.shape[1:])
        at = upload((index - self._first).clamp(0, len(self._rows) - 1), self._rows.device)
        return self._rows[at] * upload(valid, self._rows.device)[..., None, None].to(self._rows.dtype)

    def drop_before(self, row: int) -> None:
        cut = min(max(0, row - self._first), max(0, len(self._rows) - 1))
        if cut > 1500:
            # clone: a slice would keep the whole piece alive.
            self._rows, self._first = self._rows[cut:].clone(), self._first + cut


def silent_tokens(ctx: RunContext, model: MuseTalkModel) -> torch.Tensor:
    """Return what a frame hears in the middle of 30 s of digital silence: (window_rows * states, width)."""
    whisper = model.config.whisper
    with torch.inference_mode(), ctx.using_models():
        mel = log_mel(torch.zeros(1, 1, device=ctx.device), whisper.n_mels, whisper.piece_samples)
        states = ctx.load(model).encode_audio(mel)[0]
        middle = len(states) // 2
        return states[middle : middle + model.config.window_rows].flatten(0, 1).clone()


def windows_ahead(
    ctx: RunContext, make: Callable[[], Iterator[torch.Tensor | None]], n: int
) -> Generator[torch.Tensor | None, None, None]:
    """Yield the windows that `make()` gives, `n` frames each, made ahead of the network."""
    return ahead(ctx, make, max(2, WINDOWS_AHEAD // n), "Speech features")
