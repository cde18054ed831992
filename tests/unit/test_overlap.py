"""One stage ahead of the next: order, bounds, errors, cancel, and that no thread outlives its iteration."""

import contextvars
import gc
import threading
import time
import traceback
import weakref

import pytest
import torch

from talkinghead.nodes.core import overlap
from talkinghead.nodes.core.frames import RunCancelled, RunContext, StageError
from talkinghead.nodes.core.overlap import POLL_S, ahead
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.stage_thread import current_stage

MODES = pytest.mark.parametrize("threads", [True, False], ids=["threads", "one thread"])
LONG = 20.0


class InterruptProcessingException(Exception):
    pass


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Source:
    """An iterator 0, 1, 2, ... that counts what was begun and knows which threads called it."""

    def __init__(self, n=1000, fails=None, on_step=None):
        self.n, self.fails, self.on_step = n, fails or {}, on_step
        self.begun, self.threads, self.closed_in = 0, set(), None

    def __call__(self):
        self.threads.add(threading.current_thread())
        try:
            for i in range(self.n):
                self.begun += 1
                if self.on_step:
                    self.on_step(i)
                if i in self.fails:
                    raise self.fails[i]
                yield i
        finally:
            self.closed_in = threading.current_thread()


def until(condition):
    """Wait for what another thread is about to do; the limit only ends a broken test."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def run(source, depth=2, threads=True, name="stage"):
    return ahead(RunContext(overlap=threads), source, depth, name)


@MODES
@pytest.mark.parametrize("depth", [1, 3])
def test_items_come_complete_and_in_order_and_the_source_is_closed(threads, depth):
    source = Source(50)
    assert list(run(source, depth, threads)) == list(range(50))
    [thread] = source.threads
    assert source.closed_in is thread
    assert (thread is threading.current_thread()) == (not threads)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_never_more_than_depth_items_ahead(depth):
    source = Source(30)
    items = run(source, depth)
    taken = 0
    for _ in range(4):
        next(items)
        taken += 1
        until(lambda want=taken + depth: source.begun == want)
        time.sleep(0.02)
        assert source.begun == taken + depth
    items.close()
    assert source.begun == taken + depth


def test_what_was_never_begun_has_no_thread_and_makes_nothing():
    source = Source()
    before = threading.enumerate()
    items = run(source)
    assert threading.enumerate() == before
    items.close()
    del items
    assert source.begun == 0
    with pytest.raises(ValueError, match="deep: .* not 0"):
        run(source, 0, name="deep")


@MODES
@pytest.mark.parametrize("end", ["close", "drop", "throw", "break"])
def test_stopping_early_ends_the_thread_and_closes_the_source_there(threads, end):
    source = Source()
    items = run(source, 2, threads)
    next(items)
    if end == "close":
        items.close()
    elif end == "throw":
        with pytest.raises(KeyboardInterrupt):
            items.throw(KeyboardInterrupt())
    elif end == "break":
        for _ in items:
            break
        items.close()
    del items
    [thread] = source.threads
    assert source.closed_in is thread
    assert not threads or not thread.is_alive()


@MODES
def test_an_error_comes_at_its_place_named_with_its_cause(threads):
    error = ValueError("odd thing")
    items = run(Source(fails={3: error}), 5, threads, "Speech features")
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StageError, match="^Speech features: odd thing$") as raised:
        next(items)
    assert raised.value.__cause__ is error
    assert any(line.name == "__call__" for line in traceback.extract_tb(error.__traceback__))
    assert list(items) == []


@MODES
@pytest.mark.parametrize(
    "error",
    [
        StageError("inner: x"),
        MemoryError("none"),
        RunCancelled("stop"),
        InterruptProcessingException(),
        KeyboardInterrupt(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_these_pass_as_they_are(threads, error):
    items = run(Source(fails={1: error}), 2, threads)
    assert next(items) == 0
    with pytest.raises(type(error)) as raised:
        next(items)
    assert raised.value is error


@MODES
def test_an_error_of_make_itself(threads):
    def make():
        raise OSError("no such file")

    with pytest.raises(StageError, match="stage: no such file"):
        next(run(make, threads=threads))


def test_an_error_nobody_came_to_is_not_raised():
    source = Source(fails={2: ValueError("later")})
    items = run(source, 3)
    assert next(items) == 0
    until(lambda: source.closed_in is not None)
    items.close()


@MODES
def test_an_error_while_closing_is_raised(threads):
    def make():
        try:
            yield from range(9)
        finally:
            raise OSError("cannot close")

    items = run(make, threads=threads)
    next(items)
    with pytest.raises(StageError, match="stage: cannot close"):
        items.close()


STOPS = pytest.mark.parametrize("kind", [RunCancelled, KeyboardInterrupt, InterruptProcessingException])


@MODES
@STOPS
def test_an_error_while_closing_hides_no_stop(threads, kind):
    def make():
        try:
            yield from range(9)
        finally:
            raise OSError("cannot close")

    items = run(make, threads=threads)
    next(items)
    with pytest.raises(kind):
        items.throw(kind())


@STOPS
def test_nor_a_stop_that_comes_while_the_stage_is_waited_for(kind):
    stop = threading.Event()

    class Stopped(RunContext):
        def raise_if_cancelled(self):
            if stop.is_set():
                raise kind

    def make():
        try:
            yield 0
            stop.set()
            until(current_stage().stopped.is_set)
            yield 1
        finally:
            raise OSError("cannot close")

    with pytest.raises(kind):
        list(ahead(Stopped(overlap=True), make, 1, "stage"))


def test_cancel_is_heard_while_waiting_and_only_the_consumer_asks():
    """The stage is busy until the test lets it go; the stop comes while the consumer waits."""
    go, stop, asked = threading.Event(), threading.Event(), []

    def is_cancelled():
        asked.append(threading.current_thread())
        return stop.is_set()

    ctx = RunContext(is_cancelled=is_cancelled, overlap=True)

    def step(i):
        ctx.check_cancelled()
        if i == 2:
            until(lambda: len(asked) > 3)
            stop.set()
            go.wait(LONG)

    heard = []

    class Watched(RunContext):
        def raise_if_cancelled(self):
            try:
                ctx.raise_if_cancelled()
            except RunCancelled:
                heard.append(time.monotonic())
                go.set()  # only now: the consumer woke although the stage was busy
                raise

    with pytest.raises(RunCancelled, match="by the user"):
        list(ahead(Watched(overlap=True), Source(on_step=step), 2, "stage"))
    assert heard
    assert set(asked) == {threading.current_thread()}
    assert POLL_S <= 0.05


@STOPS
def test_a_stop_travels_upstream_through_every_thread(kind):
    ctx = RunContext(overlap=True)
    source, seen = Source(), []

    def middle():
        for item in ahead(ctx, source, 2, "inner"):
            seen.append(current_stage().rank)
            yield item

    items = ahead(ctx, middle, 2, "outer")
    assert [next(items) for _ in range(5)] == list(range(5))
    with pytest.raises(kind):
        items.throw(kind())
    [inner] = source.threads
    assert not inner.is_alive()
    assert source.closed_in is inner
    assert inner.rank == 2
    assert set(seen) == {1}


def test_a_stop_reaches_a_stage_whose_consumer_waits_for_it():
    """The middle stage sits in a wait of its own: it hears the stop there and passes it on."""
    ctx, busy, heard = RunContext(overlap=True), threading.Event(), []

    def inner():
        yield 0
        busy.set()
        until(current_stage().stopped.is_set)
        heard.append(1)

    items = ahead(ctx, lambda: ahead(ctx, inner, 1, "inner"), 1, "outer")
    next(items)
    assert busy.wait(LONG)
    items.close()
    assert heard


def test_errors_travel_downstream_with_the_name_of_their_own_stage():
    ctx = RunContext(overlap=True)
    broken = Source(fails={4: ValueError("bad")})
    outer = ahead(ctx, lambda: ahead(ctx, broken, 2, "inner"), 2, "outer")
    got = []
    with pytest.raises(StageError, match="^inner: bad$"):
        for item in outer:
            got.append(item)
    assert got == [0, 1, 2, 3]


def test_a_consumer_whose_thread_dies_leaves_no_stage_behind():
    """The exception, and with it the half-used iteration, is kept by somebody."""
    source, kept = Source(), []

    def consume():
        items = run(source)
        try:
            next(items)
            raise ValueError("died")
        except ValueError as e:
            kept.append(e)

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join()
    [stage] = source.threads
    until(lambda: not stage.is_alive())
    assert source.closed_in is stage
    assert kept


def test_ctrl_c_while_the_stage_is_being_stopped_leaves_it_behind_for_a_moment_only(monkeypatch):
    source = Source()
    items = run(source)
    next(items)

    def interrupted(self, failed):
        raise KeyboardInterrupt

    monkeypatch.setattr(overlap._Stage, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        items.close()
    del items
    [stage] = source.threads
    until(lambda: not stage.is_alive())
    assert source.closed_in is stage


def test_the_state_of_torch_and_context_variables_go_along():
    name = contextvars.ContextVar("name")

    def state():
        while True:
            yield torch.is_inference_mode_enabled(), torch.is_grad_enabled(), name.get()

    for inference, grad in ((True, False), (False, False), (False, True)):
        name.set(f"{inference} {grad}")
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            items = run(state)
            assert next(items) == (inference, grad, name.get())
        items.close()


@pytest.fixture
def tensors():
    """Make tensors and remember them weakly; without the garbage collector, so that cycles show."""

    class Tensors:
        refs: list = []

        def __call__(self):
            tensor = torch.zeros(4)
            self.refs.append(weakref.ref(tensor))
            return tensor

        def alive(self):
            return [k for k, ref in enumerate(self.refs) if ref() is not None]

    gc.collect()
    gc.disable()
    made = Tensors()
    made.refs = []
    yield made
    gc.enable()


@MODES
@pytest.mark.parametrize("error", [ValueError, StageError])
def test_memory_of_items_and_stage_is_free_at_once(threads, error, tensors):
    def make():
        for _ in range(6):
            yield tensors()
        kept = tensors()
        raise error(f"end {len(kept)}")

    items = run(make, 2, threads)
    for k in range(6):
        next(items)
        assert not [old for old in tensors.alive() if old < k]
    with pytest.raises(StageError) as raised:
        next(items)
    del raised
    assert not tensors.alive()
    early = run(make, 2, threads)
    next(early)
    early.close()
    assert not tensors.alive()


def test_an_item_that_was_taken_is_free_while_the_next_one_is_made(tensors):
    go, busy = threading.Event(), threading.Event()

    def make():
        yield tensors()
        busy.set()
        go.wait(LONG)
        yield tensors()

    items = run(make, 1)
    next(items)
    assert busy.wait(LONG)
    assert not tensors.alive()
    go.set()
    items.close()


def test_an_exception_that_is_kept_keeps_no_items(tensors):
    def make():
        while True:
            yield tensors()

    def consume():
        items = run(make, 3)
        next(items)
        until(lambda: len(tensors.refs) == 4)
        items.throw(ValueError("of the consumer"))

    with pytest.raises(ValueError, match="of the consumer") as kept:
        consume()
    assert not tensors.alive()
    assert kept.value


def test_on_a_card_a_stage_may_stay_with_its_consumer():
    assert RunContext().runs_ahead(on_card=False)
    assert not RunContext("cuda").runs_ahead(on_card=False)
    assert RunContext("cuda").runs_ahead(on_card=True)
    assert RunContext("cuda", overlap=True).runs_ahead(on_card=False)
    assert not RunContext(overlap=False).runs_ahead()
    assert RunContext(overlap=False).nested().overlap is False


def test_models_are_built_once_by_any_number_of_threads():
    class Handle:
        key, built = "k", 0

        def build(self):
            self.built += 1
            time.sleep(0.05)
            return torch.nn.Linear(1, 1)

    handle, ctx = Handle(), RunContext()
    nested = ctx.nested()
    assert nested.using_models() is ctx.using_models()
    inside = []

    def load(of):
        with of.using_models():
            inside.append(of.load(handle))

    threads = [threading.Thread(target=load, args=(of,)) for of in (ctx, nested, ctx)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.built == 1
    assert len({id(module) for module in inside}) == 1


def test_a_report_loses_nothing_and_keeps_its_order():
    """Warnings of a stage ahead stand before those of its consumer, whoever was first."""
    report, ctx = Report(), RunContext(overlap=True)
    report.warn("of the consumer")

    def make():
        report.warn("of the stage")
        for i in range(300):
            report.spent("work", 1.0)
            report.warn("again")
            yield i

    for _ in ahead(ctx, make, 2, "stage"):
        report.spent("work", 1.0)
        report.fact("last", "consumer")
        report.text()
    assert report.seconds["work"] == 600
    assert report.warnings["again"] == 300
    assert report.as_dict()["warnings"] == ["of the stage", "again", "of the consumer"]
    assert report.text().endswith("warning: of the stage\nwarning: again (x300)\nwarning: of the consumer")
