"""Speech rows for Ditto: HuBERT on overlapping windows of the sound, five rows at 25 fps from each.

Sound is mono float32 at 16 kHz. A window holds (3 past + 5 current + 2 future) * 640 + 80 = 6480 samples and gives 20
encoder frames of 20 ms, of which the current ones are averaged in pairs. HuBERT runs in float32: in halves its softmax
underflows (feature norm 139 -> 20, the mouth stays shut). Source: spec/ditto.md section 7, spec/system.md section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.audio import AudioClip, mono_blocks
from ..core.onnx_session import open_session
from ..core.report import Report
from ..core.timeline import frame_count

SAMPLE_RATE_HZ = 16000
FPS = Fraction(25)
ROW_SAMPLES = 640
_TAIL_SAMPLES = 80
_FRAMES_PER_ROW = 2
WIDTH = 1024

Encoder = Callable[[np.ndarray], np.ndarray]
"""Samples (n,) float32 -> frames (T, width) float32, one per 20 ms; or a batch of windows, see `SpeechRows`."""


@dataclass(frozen=True)
class ChunkRule:
    """How windows lie on the sound.

    past, current, future: rows of a window. online: windows start 80 samples later, as in upstream's streaming script;
    a row hears other samples than offline, 5 ms apart.
    """

    past: int = 3
    current: int = 5
    future: int = 2
    online: bool = False

    def __post_init__(self) -> None:
        if min(self.past, self.future) < 0 or self.current < 1:
            raise ValueError(
                f"{self}: give rows of 0 or more, and at least one current row (upstream 3, 5, 2)"
            )

    @property
    def window(self) -> int:
        """Samples of a window."""
        return (self.past + self.current + self.future) * ROW_SAMPLES + _TAIL_SAMPLES

    @property
    def hop(self) -> int:
        """Samples between windows."""
        return self.current * ROW_SAMPLES

    @property
    def lead(self) -> int:
        """Samples of the first window before the sound."""
        return self.past * ROW_SAMPLES + (0 if self.online else _TAIL_SAMPLES)

    def rows_of(self, frames: np.ndarray) -> np.ndarray:
        """Return the current rows (current, width) of a window's encoder frames.

        Counted from the end: (T, width) with T at least 2 * (current + future), else ValueError.
        """
        first, end = (_FRAMES_PER_ROW * n for n in (self.current + self.future, self.future))
        if frames.ndim != 2 or len(frames) < first:
            raise ValueError(
                f"the speech encoder gave {frames.shape} for {self.window} samples, {first} frames or more are needed: "
                f"it is another network"
            )
        kept = frames[len(frames) - first : len(frames) - end]
        return kept.reshape(self.current, _FRAMES_PER_ROW, -1).mean(axis=1)


OFFLINE, ONLINE = ChunkRule(), ChunkRule(online=True)


class SpeechRows:
    """Sound in, rows out, each as soon as its window is full; the pieces in which the sound comes change nothing.

    Row k covers samples 640 k .. 640 k + 639. Before and behind the sound lie zeros. `feed` gives five rows at a time;
    `finish` the rest, so that all in all there are ceil(samples / 640), or as many as asked for.

    batch: the encoder takes that many windows at once, (batch, n) -> (batch, T, width). It runs when so many are full,
    counted from the first, and at the end with silence in the place of those that are missing: always the same shape,
    so that what a row is does not depend on where the sound ends. None: one window at a time, (n,) -> (T, width).
    """

    def __init__(
        self, encoder: Encoder, rule: ChunkRule = OFFLINE, width: int = WIDTH, batch: int | None = None
    ) -> None:
        self._encoder, self.rule = encoder, rule
        self.width, self._batch = width, batch
        self._held = np.zeros(rule.lead, np.float32)
        self._fed = self._made = 0

    def feed(self, samples: np.ndarray) -> Tensor:
        """Take mono float32 (n,); return the rows that are ready, (k, width)."""
        self._fed += len(samples)
        self._held = np.concatenate([self._held, np.asarray(samples, np.float32)])
        full = max(0, (len(self._held) - self.rule.window) // self.rule.hop + 1)
        return self._rows(full - full % (self._batch or 1))

    def finish(self, n_rows: int | None = None) -> Tensor:
        """Return the rows still owed; `n_rows` is how many there are in all, ceil(samples / 640) if not given."""
        total = -(-self._fed // ROW_SAMPLES) if n_rows is None else n_rows
        missing = total - self._made
        if missing < 0:
            return self._empty()
        windows = -(-missing // self.rule.current)
        padded = -(-windows // (self._batch or 1)) * (self._batch or 1)
        short = (padded - 1) * self.rule.hop + self.rule.window - len(self._held)
        self._held = np.concatenate([self._held, np.zeros(max(0, short), np.float32)])
        return self._rows(padded)[:missing]

    def _rows(self, windows: int) -> Tensor:
        """Encode the next `windows` windows, whole batches of them."""
        made, step = [], self._batch or 1
        for _ in range(0, windows, step):
            starts = range(0, step * self.rule.hop, self.rule.hop)
            heard = np.stack([self._held[at : at + self.rule.window] for at in starts])
            for frames in self._encode(heard):
                made.append(torch.from_numpy(self.rule.rows_of(frames)))
            self._held = self._held[step * self.rule.hop :]
            self._made += step * self.rule.current
        return torch.cat(made) if made else self._empty()

    def _encode(self, heard: np.ndarray) -> np.ndarray:
        """Return the encoder's frames (n, T, width) of windows (n, samples)."""
        given = self._encoder(heard[0] if self._batch is None else heard)
        frames = np.asarray(given, np.float32)
        frames = frames[None] if self._batch is None else frames
        if frames.ndim != 3 or len(frames) != len(heard) or frames.shape[2] != self.width:
            raise ValueError(
                f"the speech encoder gave {frames.shape[self._batch is None :]}, not rows of {self.width}: it is another "
                f"network"
            )
        return frames

    def _empty(self) -> Tensor:
        return torch.zeros(0, self.width)


def silence_rows(encoder: Encoder, count: int, rule: ChunkRule = ONLINE, batch: int | None = None) -> Tensor:
    """Return `count` rows of silence, what a stream hears before its first frame: (count, width).

    Every window of zeros is the same, so one is encoded and repeated, whatever the count. batch: see `SpeechRows`.
    """
    silence = np.zeros((batch or 1, rule.window), np.float32)
    frames = np.asarray(encoder(silence[0]) if batch is None else encoder(silence)[0], np.float32)
    rows = torch.from_numpy(rule.rows_of(frames))
    return rows.repeat(-(-count // len(rows)), 1)[:count]


def clip_rows(
    clip: AudioClip,
    encoder: Encoder,
    rule: ChunkRule = OFFLINE,
    report: Report | None = None,
    width: int = WIDTH,
    batch: int | None = None,
) -> Iterator[Tensor]:
    """Yield the rows (k, width) of a clip, ceil(seconds * 25) in all; memory does not depend on its length.

    width, batch: see `SpeechRows`.
    """
    rows = SpeechRows(encoder, rule, width, batch)
    total, given = frame_count(clip.n_samples, clip.sample_rate, FPS), 0
    for block in mono_blocks(clip, SAMPLE_RATE_HZ, report):
        for start in range(0, len(block), rule.hop):
            ready = rows.feed(block[start : start + rule.hop])[: total - given]
            given += len(ready)
            if len(ready):
                yield ready
    if given < total and len(ready := rows.finish(total)[: total - given]):
        yield ready


class HubertEncoder:
    """hubert.onnx or hubert_streaming_fix_kv.onnx through onnxruntime, in float32.

    Args:
        path: the file. providers: of onnxruntime, in order; CUDA where it is there, then the CPU, if not given.

    Raises:
        MissingPackage: onnxruntime is not installed; the message says how to install it.
        ValueError: no such file, not ONNX, another network, one in half precision, or an unknown provider.
    """

    def __init__(self, path: Path, providers: Sequence[str] | None = None) -> None:
        path = Path(path)
        fetch = "`talkinghead models` lists what Ditto needs and where it is looked for"
        self._session = open_session(path, "Ditto's speech encoder", fetch, providers)
        self.providers = tuple(self._session.get_providers())
        self._check(path)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Encode samples (n,) of a window into frames (T, 1024). ValueError for frames that are not finite."""
        (frames,) = self._session.run(
            ["encoding_out"], {"input_values": np.asarray(samples, np.float32)[None]}
        )
        if not np.isfinite(frames).all():
            raise ValueError(
                "the speech encoder gave numbers that are not finite: its file is damaged, fetch it again"
            )
        return frames

    def _check(self, path: Path) -> None:
        ins = {value.name: value for value in self._session.get_inputs()}
        outs = {value.name: value for value in self._session.get_outputs()}
        if set(ins) != {"input_values"} or "encoding_out" not in outs:
            raise ValueError(
                f"{path.name} has the inputs {', '.join(ins)} and the outputs {', '.join(outs)}: it is not Ditto's HuBERT, "
                f"which takes input_values and gives encoding_out"
            )
        kinds = {ins["input_values"].type, outs["encoding_out"].type}
        if kinds != {"tensor(float)"}:
            raise ValueError(
                f"{path.name} is {', '.join(sorted(kinds))}: HuBERT must be float32, in halves the mouth stays shut"
            )
