"""Speech rows of sound that is still arriving, by upstream's online rule.

A window of the encoder is run as soon as its sound is there: five rows, which come 80 ms and 80 samples of sound later than
the last of them ends. With the motion's own windows (`audio2motion.WindowScheme.live`) 10 frames at a time become known when
10 more rows are: the first ones when 20 are, after 0.885 s of sound at 16 kHz.

Rows depend on the sound and its rate alone, never on how it was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from torch import Tensor

from ..core.frames import RunContext
from ..core.live_audio import Sound
from ..core.timeline import frame_count
from .handle import DittoModel
from .hubert import FPS, ONLINE, SpeechRows, silence_rows
from .speech import Listener, open_encoder


@dataclass
class LiveDittoSpeech:
    """Speech that is heard while it arrives; see the module and `speech.Heard`. One run only if its sound is."""

    model: DittoModel
    sound: Sound
    fps: Fraction
    _total: int | None = field(default=None, init=False)

    @property
    def n_frames(self) -> int | None:
        """None: known when the sound has ended."""
        return None

    @property
    def known(self) -> int:
        return self._count(self.fps)

    def ends_at(self, frame: int) -> bool:
        return self._total is not None and frame >= self._total

    def rows(
        self, ctx: RunContext, silence: int = 0, listeners: Sequence[Listener] = ()
    ) -> Iterator[Tensor | None]:
        """See `Heard`; the encoder is opened before the first sound is there."""
        self._total = None
        with open_encoder(ctx, self.model, 1) as encoder:
            if silence:
                yield silence_rows(encoder, silence, ONLINE, encoder.batch)
            stream = SpeechRows(encoder, ONLINE, self.model.config.speech_width, encoder.batch)
            try:
                for block in self.sound.blocks(ctx.check_cancelled):
                    for listener in listeners:
                        listener.feed(block)
                    for start in range(0, len(block), ONLINE.hop):
                        ready = stream.feed(block[start : start + ONLINE.hop])
                        if len(ready):
                            yield ready
                    if self.sound.waits:
                        yield None
                self._total = self._count(self.fps)
                for listener in listeners:
                    listener.finish(self._total)
                if len(rest := stream.finish(self._count(FPS))):
                    yield rest
            finally:
                for note in self.sound.notes:
                    ctx.warn(note)

    def _count(self, fps: Fraction) -> int:
        return frame_count(self.sound.taken, self.sound.sample_rate, fps)
