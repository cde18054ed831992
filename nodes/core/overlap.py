"""One stage ahead of the next: an iterator runs in a thread of its own, a bounded number of items in front.

    features | neural | composite | encode

`ahead` stands between two stages. Every stage that is ahead has one thread; the consumer of the run (write_video, a
node, a test) keeps its own. Threads end with the iteration: finished, closed early, failed or dropped.

**Who asks for cancel.** ComfyUI's `throw_exception_if_processing_interrupted` clears its flag when it raises, so one
thread only may ask: the consumer of the run, once a chunk and every `POLL_S` while it waits for a stage. In a stage's
thread `RunContext.check_cancelled` looks at nothing but that stage's own stop, which its consumer sets; a stop travels
upstream from thread to thread. What a stage is busy with (one batch of the network) ends before its thread does.

**On a CUDA device** a stage queues its work on a stream of its own, one for each stage name and card. The stream starts
after what the consumer had queued; the consumer's stream waits by event for each item it takes, and for all of the
stage's work when the stage ends.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TypeVar

import torch

from .frames import RunContext, StageError
from .interrupt import is_interrupt
from .stage_thread import StageThread, wait_for_end

T = TypeVar("T")
POLL_S = 0.02
"""Longest time between two looks at the user's stop while waiting: an interrupt is heard within 50 ms."""
_ORPHAN_S = 0.25


def ahead(
    ctx: RunContext, make: Callable[[], Iterator[T]], depth: int, name: str, on_card: bool = True
) -> Generator[T, None, None]:
    """Yield what `make()` yields, made in a thread of its own, at most `depth` items before they are asked for.

    `make` is called in that thread, and a generator it returns is closed there. The item being made counts: with depth 1
    the next one is begun when the last one is taken. An iteration that was never begun has no thread. Pull from one
    thread; when that one has died, the stage ends as well.

    With `ctx.overlap` False everything runs in the caller's thread, at the same points and with the same errors. None,
    the default, leaves to `on_card` whether there is a thread on a CUDA device.

    Args:
        ctx: the run; its device, its stop.
        make: gives the iterator; what it uses must be ready for another thread.
        depth: items, >= 1. Their memory is held.
        name: of the stage, for errors.

    Raises:
        StageError: what the stage raised, after the items before it, named; `__cause__` is the original with its
            traceback. StageError, MemoryError and interrupts pass as they are. An error of closing comes alone only: it
            hides neither another one nor a stop.
        ValueError: depth below 1.
    """
    if depth < 1:
        raise ValueError(f"{name}: a stage can be 1 item ahead or more, not {depth}")
    return (_threaded if ctx.runs_ahead(on_card) else _inline)(ctx, make, depth, name)


def _inline(ctx: RunContext, make: Callable[[], Iterator[T]], depth: int, name: str) -> Iterator[T]:
    source, failed = None, True
    try:
        while True:
            try:
                source = make() if source is None else source
                got = [next(source)]
            except StopIteration:
                failed = False
                return
            except BaseException as e:
                _raise(e, name)
            yield got.pop()  # not kept while the consumer works on it
    except GeneratorExit:
        failed = False
        raise
    finally:
        try:
            _close(source)
        except BaseException as e:
            if not (failed and isinstance(e, Exception)):
                _raise(e, name)


def _threaded(ctx: RunContext, make: Callable[[], Iterator[T]], depth: int, name: str) -> Iterator[T]:
    consumer = _Consumer()
    stage = _Stage(make, depth, name, _Streams(ctx.device, name), consumer)
    failed = True
    try:
        stage.start()
        while (got := stage.take(ctx)) is not None:
            yield got.pop()  # not kept while the consumer works on it
        failed = False
    except GeneratorExit:
        failed = False
        raise
    finally:
        stage.stop(failed)


class _Consumer:
    """Lives as long as the generator that takes the items."""


class _Stage:
    """The thread and what lies between it and the consumer."""

    def __init__(
        self, make: Callable[[], Iterator], depth: int, name: str, streams: _Streams, consumer: _Consumer
    ) -> None:
        self._make, self._name, self._streams = make, name, streams
        self._changed = threading.Condition()
        self._ready: deque[tuple[object, torch.cuda.Event | None]] = deque()
        self._room = depth
        self._error: BaseException | None = None
        self._close_error: BaseException | None = None
        self._ended = False
        self._consumer, self._taker = weakref.ref(consumer), threading.current_thread()
        self._thread = StageThread(self._work, name)

    def start(self) -> None:
        self._streams.begin()
        self._thread.start()

    def take(self, ctx: RunContext) -> list | None:
        """Return [item], None at the end; raise the stage's error when all items before it are taken."""
        self._taker = threading.current_thread()
        while True:
            with self._changed:
                if not self._ready and not self._ended:
                    self._changed.wait(POLL_S)
                if self._ready:
                    item, made = self._ready.popleft()
                    self._room += 1
                    self._changed.notify_all()
                    break
                if self._ended:
                    self._raise_error()
                    return None
            ctx.check_cancelled()
        self._streams.receive(item, made)
        return [item]

    def stop(self, failed: bool) -> None:
        """End the stage after the step it is at; return when its thread has ended.

        What the stage would have raised behind the last item taken is of no interest; what closing it raises is, unless
        the run has `failed` by then: what it failed of, or the user's stop, is what the consumer gets.
        """
        with self._changed:
            self._thread.stopped.set()
            self._changed.notify_all()
        wait_for_end(self._thread)
        self._streams.end()
        self._ready.clear()
        self._error = None
        if failed and isinstance(self._close_error, Exception):
            self._close_error = None
        self._raise_error()

    def _raise_error(self) -> None:
        error = self._error or self._close_error
        self._error = self._close_error = None
        try:
            if error is not None:
                _raise(error, self._name)
        finally:
            del error  # its traceback holds this frame

    def _work(self) -> None:
        try:
            with self._streams.inside():
                self._produce()
        except BaseException as e:
            self._error = e
        finally:
            self._make = None  # it may hold the whole chain of streams
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _produce(self) -> None:
        source = None
        try:
            while self._wait_for_room():
                source = self._make() if source is None else source
                try:
                    item = next(source)
                except StopIteration:
                    return
                made = self._streams.mark()
                with self._changed:
                    self._ready.append((item, made))
                    self._changed.notify_all()
                del item
        finally:
            try:
                _close(source)
            except BaseException as e:
                self._close_error = e

    def _wait_for_room(self) -> bool:
        """Reserve the place of the next item; False when nobody wants it."""
        with self._changed:
            while not self._room and not self._thread.stopped.is_set():
                if not self._changed.wait(_ORPHAN_S) and self._is_orphan():
                    self._ready.clear()
                    raise RuntimeError(
                        "the thread that took its results has ended; pull from one that lives on"
                    )
            self._room -= 1
            return not self._thread.stopped.is_set()

    def _is_orphan(self) -> bool:
        # An exception that someone keeps keeps the generator from being closed; Ctrl-C can hit while it is closed.
        return not self._taker.is_alive() or self._consumer() is None


class _Streams:
    """The torch state of a stage's thread, and the order between its CUDA work and its consumer's."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._device, self._name = device, name
        self._own: torch.cuda.Stream | None = None
        self._inference, self._grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def begin(self) -> None:
        """In the consumer's thread, before the stage starts."""
        if self._device.type == "cuda":
            index = self._device.index
            self._own = _stage_stream(torch.cuda.current_device() if index is None else index, self._name)
            self._own.wait_stream(torch.cuda.current_stream(self._own.device))

    def inside(self) -> ExitStack:
        """Return the context in which the stage's thread works: these are settings of a thread in torch."""
        settings = ExitStack()
        settings.enter_context(torch.inference_mode(self._inference))
        if not self._inference:
            settings.enter_context(torch.set_grad_enabled(self._grad))
        if self._own is not None:
            settings.enter_context(torch.cuda.stream(self._own))  # its device too
        return settings

    def mark(self) -> torch.cuda.Event | None:
        """Note what has been queued, in the stage's thread."""
        return None if self._own is None else self._own.record_event()

    def receive(self, item: object, made: torch.cuda.Event | None) -> None:
        """Let the consumer's stream wait for the item, and its memory for the consumer."""
        if made is None:
            return
        stream = torch.cuda.current_stream(self._own.device)
        stream.wait_event(made)
        for tensor in _tensors(item):
            if tensor.device == self._own.device:
                tensor.record_stream(stream)

    def end(self) -> None:
        """In the consumer's thread: what it frees or changes from here on is behind the stage's last work."""
        if self._own is not None:
            torch.cuda.current_stream(self._own.device).wait_stream(self._own)


@cache
def _stage_stream(index: int, name: str) -> torch.cuda.Stream:
    """One stream a card for every stage of that name: cuBLAS keeps a workspace for every stream it ever saw."""
    return torch.cuda.Stream(torch.device("cuda", index))


def _tensors(item: object) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (tuple, list)):
        for part in item:
            yield from _tensors(part)
    elif isinstance(item, dict):
        yield from _tensors(list(item.values()))
    elif is_dataclass(item):
        for field in fields(item):
            yield from _tensors(getattr(item, field.name))


def _close(source: object) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()


def _raise(error: BaseException, name: str) -> None:
    """Raise a stage's error with the stage's name, without a cycle that would keep its frames."""
    passes = isinstance(error, (StageError, MemoryError)) or not isinstance(error, Exception)
    try:
        if passes or is_interrupt(error):
            raise error
        raise StageError(f"{name}: {error}") from error
    finally:
        del error
