"""Speech features of sound that is still arriving: the rule "live", beside the whole-file rule of `speech.py`.

A file is encoded in pieces of 30 s, each hearing all of its sound. Live, every frame hears the newest past instead: when
sound is there up to the first multiple of 80 ms, counted from sample 0, that lies 80 ms or more behind the frame's last
row, the last 12 s of sound are encoded (while there is less, with silence behind it) and the frame's rows taken from that.
After the last sample, what is left is taken from the last 12 s. Rows keep the positions they have in a file, and rows outside the sound
are zeros, as there.

Whisper's floor is 80 dB under the loudest of a piece; of 12 s that would jump at every onset. Here it is 80 dB under
the loudest of the 12 s, taken to be `LEAST_PEAK` at least: what ordinary speech reaches.

What a frame hears depends on the sound and its rate alone, never on how the sound was cut: every evaluation has the same
shape and is made alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..core.cadence import LOOK_AHEAD
from ..core.engine_reopen import ReopeningEngine
from ..core.engine_spec import StageSpec, TensorSpec
from ..core.frames import RunContext
from ..core.host_copy import upload
from ..core.live_audio import Sound
from ..core.mel import N_FFT, floored, mel_filters, mel_level
from ..core.report import Report
from ..core.timeline import frame_count, speech_row_start
from .handle import MuseTalkModel
from .speech import SAMPLES_PER_ROW

if TYPE_CHECKING:
    from ..core.loudness import LiveLoudness
    from .model import MuseTalkNets

WINDOW_ROWS = 600
"""12 s. Mouth against the whole file's, 31 s of three voices, embedded model: 34.1 dB with 4 s, 36.1 with 8, 37.9 with 12 and
with 16. An evaluation costs 14 ms of a slow core with 8 s, 22 with 12, 77 with whisper's own 30."""
HOP_ROWS, LOOK_AHEAD_ROWS = 4, 4
"""80 ms each: the grid of the evaluations, and the sound behind a frame's last row. On this grid less look-ahead brings no
frame of an even batch at 25 fps sooner; 160 ms gave 0.3 dB."""
LEAST_PEAK = 1.5
"""log10 of mel power. The clips of tests/golden/embedded and the demo's sentence reach 1.62 to 1.64."""
STAGE = "live speech"


@dataclass
class LiveSpeech:
    """Speech that is heard while it arrives; see the module. One run only if its sound is.

    Args:
        first_batch: frames of the first batch, 1 to the renderer's: fewer need less sound before the first frame is
            there. Which frames share a batch is part of the rule, so that results do not depend on when sound came.
    """

    model: MuseTalkModel
    sound: Sound
    fps: Fraction
    first_batch: int | None = None
    _total: int | None = field(default=None, init=False)

    @property
    def n_frames(self) -> int | None:
        """None: known when the sound has ended."""
        return None

    def ends_at(self, frame: int) -> bool:
        return self._total is not None and frame >= self._total

    def windows(
        self, ctx: RunContext, n: int, loudness: LiveLoudness | None = None
    ) -> Iterator[Tensor | None]:
        """Yield the tokens of the next frames as soon as their sound is there; see `Heard`.

        A batch is held back until it is known whether a frame follows: at 1 fps that takes a second.

        Args:
            loudness: fed with the sound that is pulled here, in the same pass. A batch is then held back too until the
                loudness of the LOOK_AHEAD frames behind its last one is known, or the sound has ended: that is what
                planning these frames asks for.
        """
        self._total = None
        listener, batches = _Listener(ctx, self.model, self.fps), _Batches(self.first_batch or n, n)
        try:
            for block in self.sound.blocks(ctx.check_cancelled):
                if loudness is not None:
                    loudness.feed(block)
                for tokens in listener.feed(block):
                    batches.add(tokens)
                    yield from batches.whole(self._followed(loudness))
                yield from batches.whole(self._followed(loudness))
                if self.sound.waits:
                    yield None
            self._total = self._known()
            if loudness is not None:
                loudness.finish(self._total)
            batches.add(listener.finish(self._total))
            yield from batches.rest()
        finally:
            for note in self.sound.notes:
                ctx.warn(note)

    def _known(self) -> int:
        """Frames that exist for certain."""
        return frame_count(self.sound.taken, self.sound.sample_rate, self.fps)

    def _followed(self, loudness: LiveLoudness | None) -> int:
        """Frames that another one follows for certain and that can be planned, where they are."""
        followed = self._known() - 1
        return followed if loudness is None else min(followed, loudness.frames - LOOK_AHEAD)


class _Batches:
    """Cuts tokens (k, n_tokens, width) into the batches of a run: `first` frames, then `n` each."""

    def __init__(self, first: int, n: int) -> None:
        self._size, self._n = min(first, n), n
        self._held: list[Tensor] = []
        self._given = 0

    def add(self, tokens: Tensor | None) -> None:
        if tokens is not None:
            self._held += tokens.split(1)

    def whole(self, most: int) -> Iterator[Tensor]:
        """Yield full batches of the first `most` frames."""
        while len(self._held) >= self._size and most >= self._given + self._size:
            yield self._next()

    def rest(self) -> Iterator[Tensor]:
        while self._held:
            yield self._next()

    def _next(self) -> Tensor:
        part, self._held = self._held[: self._size], self._held[self._size :]
        self._given, self._size = self._given + len(part), self._n
        return torch.cat(part)


class _Listener:
    """Keeps the last 12 s of sound and evaluates them when frames become ready."""

    def __init__(self, ctx: RunContext, model: MuseTalkModel, fps: Fraction) -> None:
        self._ctx, self._fps = ctx, fps
        # Nothing is built for it: recorded where that works, else run as it is.
        self._model = replace(model, backend="cuda graph" if ctx.device.type == "cuda" else "eager")
        self._width = window_rows(model) * SAMPLES_PER_ROW
        self._buffer = np.zeros(2 * self._width, np.float32)
        self._start = self._end = (
            0  # numbers of the first sample in the buffer, and of the one after the last
        )
        self._frame = 0
        self._due = HOP_ROWS * SAMPLES_PER_ROW
        # Before the first sound is there, for opening takes longer than a frame may.
        # Its choice of backend is no news for the report of the run.
        open_engine = partial(ctx.engine, self._model, live_stage, 1, report=Report())
        self._engine = ReopeningEngine(open_engine, ctx.check_cancelled)

    def feed(self, block: np.ndarray) -> Iterator[Tensor]:
        """Take 16 kHz samples; yield the tokens (k, n_tokens, width) of the frames that each evaluation makes ready."""
        at = 0
        while at < len(block):
            count = min(len(block) - at, self._due - self._end)
            self._keep(block[at : at + count])
            at += count
            if self._end == self._due:
                self._due += HOP_ROWS * SAMPLES_PER_ROW
                rows = self._end // SAMPLES_PER_ROW - LOOK_AHEAD_ROWS
                count = self._ready(rows)
                if count:
                    yield self._evaluate(count, rows)

    def finish(self, total: int) -> Tensor | None:
        """Return the tokens of the frames up to `total` that are left, None if there are none."""
        count = total - self._frame
        return self._evaluate(count, self._end // SAMPLES_PER_ROW) if count > 0 else None

    def _ready(self, rows: int) -> int:
        """Count the frames from the next one on whose windows end within the first `rows` rows."""
        window, count = self._model.config.window_rows, 0
        while speech_row_start(self._frame + count, self._fps) + window <= rows:
            count += 1
        return count

    def _keep(self, samples: np.ndarray) -> None:
        at = self._end - self._start
        if at + len(samples) > len(self._buffer):
            kept = self._width
            self._buffer[:kept] = self._buffer[at - kept : at]
            self._start, at = self._end - kept, kept
        self._buffer[at : at + len(samples)] = samples
        self._end += len(samples)

    def _evaluate(self, count: int, n_rows: int) -> Tensor:
        """Encode the newest sound; return what the next `count` frames hear of its rows before `n_rows`."""
        row_end = -(-self._end // SAMPLES_PER_ROW)
        first = max(0, row_end - self._width // SAMPLES_PER_ROW)
        sound = np.zeros((1, self._width), np.float32)
        newest = self._buffer[first * SAMPLES_PER_ROW - self._start : self._end - self._start]
        sound[0, : len(newest)] = newest
        with self._ctx.report.timed("speech features"):
            states = self._states(torch.from_numpy(sound), torch.tensor([first]))
            window = self._model.config.window_rows
            tokens = states.new_zeros(count, window, *states.shape[1:])
            for k in range(count):
                start = speech_row_start(self._frame + k, self._fps)
                low, high = max(start, 0), min(start + window, n_rows)
                if low < high:
                    tokens[k, low - start : high - start] = states[low - first : high - first]
        self._frame += count
        return tokens.flatten(1, 2)

    def _states(self, sound: Tensor, first: Tensor) -> Tensor:
        device = self._engine.engine.device
        return self._engine(sound=upload(sound, device), first=upload(first, device))["states"][0]


class LiveStage(nn.Module):
    """Sound to encoder states: in float32 sound (B, 320 * rows) and int64 first (B,), out states (B, rows, states, width).

    first: number of the first row from the start of the sound.
    """

    def __init__(self, nets: MuseTalkNets, device: torch.device) -> None:
        super().__init__()
        self.nets = nets
        filters = torch.from_numpy(mel_filters(nets.config.whisper.n_mels))
        self.register_buffer("hann", torch.hann_window(N_FFT).to(device), persistent=False)
        self.register_buffer("filters", filters.to(device), persistent=False)

    def forward(self, sound: Tensor, first: Tensor) -> dict[str, Tensor]:
        level = mel_level(sound, self.hann, self.filters)
        peak = level.amax(dim=(1, 2), keepdim=True).clamp(min=LEAST_PEAK)
        mel = floored(level, peak).to(self.nets.weights_dtype)
        return {"states": self.nets.whisper.encode_part(mel, first)}


def live_stage(nets: MuseTalkNets, device: torch.device) -> tuple[StageSpec, LiveStage]:
    """Return what an engine needs of `nets`, which lie on `device`, to evaluate live sound."""
    config = nets.config.whisper
    rows = min(WINDOW_ROWS, config.max_source_positions)
    spec = StageSpec(
        STAGE,
        inputs=(
            TensorSpec("sound", (rows * SAMPLES_PER_ROW,), torch.float32),
            TensorSpec("first", (), torch.int64),
        ),
        outputs=(TensorSpec("states", (rows, config.n_states, config.d_model), nets.weights_dtype),),
    )
    return spec, LiveStage(nets, device)


def sound_needed(model: MuseTalkModel, frames: int, fps: Fraction) -> int:
    """Return the 16 kHz samples that have to be there before the first `frames` frames are all heard."""
    window = model.config.window_rows
    rows = speech_row_start(frames - 1, fps) + window + LOOK_AHEAD_ROWS
    return max(1, -(-rows // HOP_ROWS)) * HOP_ROWS * SAMPLES_PER_ROW


def window_rows(model: MuseTalkModel) -> int:
    """Rows of one evaluation."""
    return min(WINDOW_ROWS, model.config.whisper.max_source_positions)
