"""Which encoder rows a frame hears: against a direct computation, and across the 30 s cut."""

from fractions import Fraction

import pytest
import torch

from talkinghead.nodes.core.audio import MemoryAudio
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.timeline import parse_fps
from talkinghead.nodes.musetalk.speech import Speech


class RowNumbers(torch.nn.Module):
    """In the encoder's place: state values are the row's number in the whole audio (1-based)."""

    def __init__(self):
        super().__init__()
        self.done = 0

    def encode_audio(self, mel):
        rows = torch.arange(self.done + 1, self.done + 1501, dtype=torch.float32)
        self.done += 1500
        return rows[None, :, None, None].expand(1, 1500, 2, 32)


class Context(RunContext):
    def load(self, handle):
        return RowNumbers()


def windows(model, audio, fps, n):
    speech = Speech(model, audio, parse_fps(fps))
    return speech, torch.cat(list(speech.windows(Context(), n)))


@pytest.mark.parametrize("fps", ["24", "25", "29.97", "30", "50", "60"])
@pytest.mark.parametrize("seconds", [0.05, 0.3, 3.0, 31.7])
def test_windows_are_the_rows_of_the_rule(tiny_model, tone, fps, seconds):
    speech, tokens = windows(tiny_model, tone(seconds), fps, 8)
    rate = parse_fps(fps)
    assert tokens.shape == (speech.n_frames, 20, 32)
    n_rows = int(seconds * 16000) // 320
    for i in range(speech.n_frames):
        start = int(Fraction(50) * i / rate) - 4
        expected = [r + 1 if 0 <= r < n_rows else 0 for r in range(start, start + 10)]
        assert tokens[i, ::2, 0].tolist() == expected, f"frame {i}"
        assert tokens[i, 1::2, 5].tolist() == expected


def test_chunk_size_does_not_matter(tiny_model, tone):
    _, one = windows(tiny_model, tone(61.3), "25", 1)
    for n in (7, 8, 5000):
        assert torch.equal(windows(tiny_model, tone(61.3), "25", n)[1], one)


def test_low_rates_skip_rows_without_losing_their_place(tiny_model, tone):
    speech, tokens = windows(tiny_model, tone(65.0), "1", 8)
    assert speech.n_frames == 65
    assert tokens[40, 8, 0] == 2001  # fifth row of the window = row at 40 s, counted from 1


def test_the_host_never_asks_the_device(tiny_model, tone):
    """A "meta" tensor has no values: whatever would wait for a card raises there."""

    class Meta(RunContext):
        def load(self, handle):
            return MetaRows()

    class MetaRows(RowNumbers):
        def encode_audio(self, mel):
            assert (mel.device.type, mel.shape) == ("meta", (1, 80, 3000))
            return super().encode_audio(mel).to("meta")

    speech = Speech(tiny_model, tone(61.3), parse_fps("29.97"))
    shapes = [tuple(tokens.shape) for tokens in speech.windows(Meta("meta"), 8)]
    assert sum(n for n, *_ in shapes) == speech.n_frames
    assert shapes[0] == (8, 20, 32)


def test_rows_that_no_frame_needs_are_dropped(tiny_model, tone):
    from talkinghead.nodes.musetalk import speech as speech_module

    kept = []

    class Watched(speech_module._RowBuffer):
        def drop_before(self, row):
            super().drop_before(row)
            kept.append(len(self._rows))

    speech_module_buffer = speech_module._RowBuffer
    speech_module._RowBuffer = Watched
    try:
        windows(tiny_model, tone(200.0), "25", 8)
    finally:
        speech_module._RowBuffer = speech_module_buffer
    assert max(kept) <= 3000 + 64


def test_silence_of_no_length_is_refused(tiny_model):
    import numpy as np

    with pytest.raises(ValueError, match="sample"):
        Speech(tiny_model, MemoryAudio(np.zeros(0, np.float32), 16000), Fraction(25))


def test_a_single_sample_gives_one_frame_of_zeros_heard(tiny_model, tone):
    speech, tokens = windows(tiny_model, tone(1 / 16000), "25", 8)
    assert speech.n_frames == 1
    assert tokens.abs().max() == 0
