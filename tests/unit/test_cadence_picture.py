"""The picture of a plan: its colours are the plan's choices, its size and memory do not grow with the sound."""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from talkinghead.nodes.core import cadence_picture
from talkinghead.nodes.core.audio import AudioClip, MemoryAudio
from talkinghead.nodes.core.cadence import Cadence, CadenceOptions, FramePlan
from talkinghead.nodes.core.cadence_picture import COLOURS, HEIGHT, WIDTH, choice_of, draw_cadence

FPS = Fraction(25)
DENSE, TWO, THREE, REST, NO_FACE = COLOURS


def sound(*parts):
    return MemoryAudio(np.concatenate([np.full(round(s * 16000), v, np.float32) for s, v in parts]), 16000)


def band(picture):
    """Colour in the middle of the lowest rows, from left to right."""
    return [tuple(c) for c in picture[HEIGHT - 10].tolist()]


def test_colours_are_the_choices():
    drawn = draw_cadence(Cadence(sound((2, 0.0), (2, 0.2)), FPS, CadenceOptions("2")))
    assert drawn.picture.shape == (HEIGHT, WIDTH, 3)
    assert drawn.picture.dtype == np.uint8
    colours = band(drawn.picture)
    assert colours[: WIDTH // 2 - 40] == [REST] * (WIDTH // 2 - 40)
    assert colours[WIDTH // 2 + 40 : -40] == [TWO] * (WIDTH // 2 - 80)
    assert drawn.mix.frames == 100
    assert {choice_of(FramePlan(0, 0, 0, w, s)) for w, s in ((1.0, 1), (1.0, 3), (0.0, 0), (1.0, 0))} == {
        0,
        2,
        3,
        4,
    }


def test_the_bar_is_as_high_as_the_sound():
    loud = draw_cadence(Cadence(sound((1, 0.5)), FPS)).picture
    quiet = draw_cadence(Cadence(sound((1, 0.05)), FPS)).picture
    heights = [int((p[22:200, 481] != p[25, 2]).any(axis=1).sum()) for p in (loud, quiet)]
    scale = (HEIGHT - 22 - 40) / 72
    assert heights[0] - heights[1] == pytest.approx(20 * scale, abs=3)


def test_both_thresholds_are_drawn():
    plain = draw_cadence(Cadence(sound((1, 0.0)), FPS, CadenceOptions(rms_threshold=0))).picture
    lined = draw_cadence(Cadence(sound((1, 0.0)), FPS)).picture
    rows = np.flatnonzero((plain[22:195] != lined[22:195]).any(axis=(1, 2))) + 22
    assert rows.tolist() == [cadence_picture._row(20 * np.log10(v)) for v in (0.008, 0.004)]


class Hour(AudioClip):
    """Sound of any length that is made while it is read."""

    def __init__(self, seconds):
        super().__init__(16000, 1, seconds * 16000, "hour")

    def blocks(self, size=65536):
        made = np.full((1, size), 0.1, np.float32)
        for start in range(0, self.n_samples, size):
            yield made[:, : min(size, self.n_samples - start)]

    def fingerprint(self):
        return "hour"


def peak(seconds):
    tracemalloc.start()
    draw_cadence(Cadence(Hour(seconds), FPS))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def test_memory_does_not_grow_with_the_sound():
    draw_cadence(Cadence(Hour(10), FPS))  # imports
    assert peak(120) < peak(40) + 100_000


@pytest.mark.parametrize("n", [1, 7, 960, 961])
def test_any_number_of_frames(n):
    drawn = draw_cadence(Cadence(Hour(1) if n == 7 else sound((n / 25, 0.1)), FPS if n != 7 else Fraction(7)))
    assert drawn.mix.frames == n
    assert DENSE in band(drawn.picture)
