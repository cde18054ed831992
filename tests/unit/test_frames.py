"""The stream contract: lazy, re-iterable, counted, cancellable, errors that name their stage."""

import threading
from fractions import Fraction

import pytest
import torch

from talkinghead.nodes.core.frames import (
    FrameInfo,
    FrameStream,
    MappedStream,
    RunCancelled,
    RunContext,
    StageError,
    TensorStream,
)
from talkinghead.nodes.core.images import resized


def counted(n, height=4, width=6):
    return torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, height, width, 3).contiguous()


class Faulty(FrameStream):
    stage = "faulty"

    def __init__(self, pieces, n_frames):
        self.pieces, self.closed = pieces, 0
        self.info = FrameInfo(6, 4, Fraction(25), n_frames)

    def generate(self, ctx, n):
        try:
            for piece in self.pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece, None
        finally:
            self.closed += 1


def test_chunks_cover_the_stream_in_order_for_every_chunk_size():
    stream = TensorStream(counted(13), Fraction(25))
    for n in (1, 4, 13, 100):
        chunks = list(stream.chunks(RunContext(), n))
        assert torch.equal(torch.cat([c.frames for c in chunks]), counted(13))
        assert [c.chunk_idx for c in chunks] == list(range(len(chunks)))
        assert [c.is_last for c in chunks] == [False] * (len(chunks) - 1) + [True]
        assert sum(c.num_frames for c in chunks) == 13
    # a second consumer starts from frame 0
    assert next(stream.chunks(RunContext(), 4)).frame_start == 0


@pytest.mark.parametrize(
    ("pieces", "n", "message"),
    [
        ([counted(2)], 3, "faulty: ended at frame 2 of 3"),
        ([counted(4)], 3, "4 frames at 0, 3 are left"),
        ([counted(2).float()], 2, "float32"),
        ([counted(2, 5)], 2, r"\(2, 5, 6, 3\)"),
        ([counted(2), ValueError("odd thing")], 3, "faulty, from frame 2 of 3: odd thing"),
    ],
)
def test_a_broken_stage_is_named(pieces, n, message):
    with pytest.raises(StageError, match=message):
        list(Faulty(pieces, n).chunks(RunContext(), 8))


def test_an_error_keeps_the_name_of_the_stage_it_came_from():
    inner = Faulty([ValueError("deep")], 3)
    outer = MappedStream(inner, "outer", lambda ctx, chunk: chunk.frames)
    with pytest.raises(StageError, match="^faulty, from frame 0 of 3: deep$"):
        list(outer.chunks(RunContext(), 2))


def test_interrupts_pass_through_unwrapped():
    class InterruptProcessingException(Exception):
        pass

    with pytest.raises(InterruptProcessingException):
        list(Faulty([InterruptProcessingException()], 3).chunks(RunContext(), 2))


def test_cancel_is_asked_once_a_chunk_and_closes_the_sources():
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) == 3

    stream = Faulty([counted(2)] * 10, 20)
    done = []
    with pytest.raises(RunCancelled):
        for chunk in stream.chunks(RunContext(is_cancelled=cancelled), 2):
            done.append(chunk.frame_start)
    assert done == [0, 2]
    assert stream.closed == 1


def test_a_consumer_that_stops_early_closes_every_stage():
    inner = Faulty([counted(2)] * 10, 20)
    chunks = MappedStream(inner, "outer", lambda ctx, chunk: chunk.frames).chunks(RunContext(), 2)
    next(chunks)
    chunks.close()
    assert inner.closed == 1


def test_models_are_built_once_a_run_and_not_shared_between_runs():
    class Handle:
        key, built = "k", 0

        def build(self):
            self.built += 1
            return torch.nn.Linear(1, 1)

    handle, ctx = Handle(), RunContext()
    assert ctx.load(handle) is ctx.load(handle)
    RunContext().load(handle)
    assert handle.built == 2


def test_info_is_checked():
    with pytest.raises(ValueError, match="even"):
        FrameInfo(5, 4, Fraction(25), 1, layout="nv12")
    with pytest.raises(ValueError, match="layout"):
        FrameInfo(4, 4, Fraction(25), 1, layout="bgr")
    assert FrameInfo(6, 4, Fraction(25), 1, layout="nv12").frame_shape == (6, 6)
    with pytest.raises(ValueError, match="uint8"):
        TensorStream(counted(2).float(), Fraction(25))
    with pytest.raises(ValueError, match="0"):
        next(TensorStream(counted(2), Fraction(25)).chunks(RunContext(), 0))


def test_resized_covers_without_bars_or_stretch():
    frames = torch.zeros(2, 40, 80, 3, dtype=torch.uint8)
    frames[:, :, 20:60] = 200  # the middle square
    out = torch.cat(
        [c.frames for c in resized(TensorStream(frames, Fraction(25)), 20, 20).chunks(RunContext(), 1)]
    )
    assert out.shape == (2, 20, 20, 3)
    assert int(out.min()) >= 190  # sides cut, middle kept
    wide = next(resized(TensorStream(frames, Fraction(25)), 160, 80).chunks(RunContext(), 2)).frames
    assert wide.shape == (2, 80, 160, 3)
    assert int(wide[:, :, 70:90].min()) == 200
    assert int(wide[:, :, :30].max()) == 0


def test_no_threads_are_left():
    before = threading.active_count()
    list(TensorStream(counted(5), Fraction(25)).chunks(RunContext(), 2))
    assert threading.active_count() == before


class Endless(FrameStream):
    """A stream that knows its end only when it is there."""

    stage = "endless"

    def __init__(self, pieces):
        self.pieces = pieces
        self.info = FrameInfo(6, 4, Fraction(25), None)

    def generate(self, ctx, n):
        yield from self.pieces


def test_a_stream_of_unknown_length_marks_its_last_chunk():
    assert Endless([]).info.seconds is None
    pieces = [(counted(2), None, False), (counted(1), None, True)]
    for stream in (
        Endless(pieces),
        resized(Endless(pieces), 6, 4),
        MappedStream(Endless(pieces), "m", lambda c, f: f.frames),
    ):
        assert stream.info.n_frames is None
        chunks = list(stream.chunks(RunContext(), 8))
        assert [(c.frame_start, c.num_frames, c.is_last) for c in chunks] == [(0, 2, False), (2, 1, True)]
    assert list(Endless([]).chunks(RunContext(), 8)) == []


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(counted(2), None)], "not said whether they are the last"),
        ([(counted(2), None, False)], "ended at frame 2 without a last one"),
        ([(counted(0), None, False)], "0 frames at 0"),
    ],
)
def test_a_stream_of_unknown_length_has_to_say_when_it_ends(pieces, message):
    with pytest.raises(StageError, match=message):
        list(Endless(pieces).chunks(RunContext(), 8))


def test_progress_needs_a_length():
    told = []
    ctx = RunContext(progress=lambda *a: told.append(a))
    ctx.tick(3, None)
    ctx.tick(3, 4)
    assert told == [(3, 4)]
