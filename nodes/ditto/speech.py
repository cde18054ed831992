"""SPEECH for Ditto: rows of the speech encoder at 25 fps, made window by window while they are asked for.

The official model listens by HuBERT, through onnxruntime and in float32; the embedded one by its own small network. Both
hear the same windows (`hubert.ChunkRule`), so rows of either come in the same order and at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.audio import AudioClip
from ..core.frames import RunContext
from ..core.host_copy import upload
from ..core.loudness import frame_energies
from ..core.timeline import frame_count
from .handle import DittoModel
from .hubert import FPS, OFFLINE, Encoder, HubertEncoder, clip_rows

ENCODER_BATCH = 16
"""Windows that the embedded encoder takes at once: 80 rows, which is a window of the diffusion."""


class Listener(Protocol):
    """Hears the sound beside the encoder."""

    @property
    def frames(self) -> int:
        """Video frames that are known so far."""

    def feed(self, block: np.ndarray) -> object:
        """Take the next 16 kHz mono samples, float32 (n,)."""

    def finish(self, n_frames: int) -> object:
        """Learn that the sound has ended and has `n_frames` frames."""


class Heard(Protocol):
    """What motion needs of speech: how many frames there are, and the rows of the encoder."""

    model: DittoModel
    fps: Fraction
    """Rate of the video, in which frames are counted; rows come at 25 fps always."""

    @property
    def n_frames(self) -> int | None:
        """None: known when the sound has ended."""

    @property
    def known(self) -> int:
        """Frames that exist for certain by what was heard so far."""

    def ends_at(self, frame: int) -> bool:
        """Return whether frame `frame` does not exist; certain when the rows have ended."""

    def rows(
        self, ctx: RunContext, silence: int = 0, listeners: Sequence[Listener] = ()
    ) -> Iterator[Tensor | None]:
        """Yield the rows (k, width) of the sound in order, on the CPU. None before a wait for sound.

        Args:
            silence: rows of silence to give first, in one piece.
            listeners: fed with the sound that is pulled here.
        """


@dataclass(frozen=True)
class DittoSpeech:
    """Audio, the rate of the video that will show it, and the model whose encoder listens."""

    model: DittoModel
    audio: AudioClip
    fps: Fraction

    @property
    def n_frames(self) -> int:
        """Frames that cover the audio: ceil(seconds * fps)."""
        return frame_count(self.audio.n_samples, self.audio.sample_rate, self.fps)

    @property
    def known(self) -> int:
        return self.n_frames

    @property
    def n_rows(self) -> int:
        """Rows at 25 fps that cover the audio."""
        return frame_count(self.audio.n_samples, self.audio.sample_rate, FPS)

    def ends_at(self, frame: int) -> bool:
        return frame >= self.n_frames

    def energies(self) -> Iterator[float]:
        """Yield how loud every frame's own stretch of sound is (RMS, full scale 1); see `core.cadence`."""
        return frame_energies(self.audio, self.fps)

    def rows(
        self, ctx: RunContext, silence: int = 0, listeners: Sequence[Listener] = ()
    ) -> Iterator[Tensor | None]:
        """See `Heard`. A file has no warm-up, and who wants its sound reads it: both arguments are for live speech.

        Raises:
            ValueError: silence or listeners are given; the encoder's file is damaged.
            MissingPackage: HuBERT without onnxruntime.
        """
        if silence or listeners:
            raise ValueError(
                "the whole sound is there: silence before it and listeners beside it are for live speech"
            )
        with open_encoder(ctx, self.model, ENCODER_BATCH) as encoder:
            yield from clip_rows(
                self.audio, encoder, OFFLINE, ctx.report, self.model.config.speech_width, encoder.batch
            )


class RunEncoder:
    """The encoder of one run; see `open_encoder`."""

    def __init__(self, ctx: RunContext, encode: Encoder, batch: int | None) -> None:
        self._ctx, self._encode = ctx, encode
        self.batch = batch
        """For `SpeechRows`: windows in a call, None for one without a batch."""

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        self._ctx.check_cancelled()
        with self._ctx.report.timed("speech features"):
            return self._encode(windows)


@contextmanager
def open_encoder(ctx: RunContext, model: DittoModel, batch: int) -> Iterator[RunEncoder]:
    """Give the model's encoder for one run: HuBERT's session is opened once and closed with it.

    batch: windows in a call of the embedded encoder, `SpeechRows` fills them up. HuBERT's graph takes one at a time.
    """
    if model.hubert is None:
        yield RunEncoder(ctx, _EmbeddedEncoder(ctx, model), batch)
        return
    providers = None if ctx.device.type == "cuda" else ["CPUExecutionProvider"]
    with ctx.report.timed("speech features"):
        hubert = HubertEncoder(model.hubert, providers)
    ctx.report.fact("speech encoder", f"HuBERT on {hubert.providers[0].removesuffix('ExecutionProvider')}")
    yield RunEncoder(ctx, hubert, None)


class _EmbeddedEncoder:
    def __init__(self, ctx: RunContext, model: DittoModel) -> None:
        self._ctx, self._model = ctx, model

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        ctx = self._ctx
        # Beside networks that run: nobody may move the weights meanwhile.
        with ctx.using_models(), torch.inference_mode():
            frames = ctx.load(self._model).speech(upload(torch.from_numpy(windows), ctx.device))
            return frames.float().cpu().numpy()
