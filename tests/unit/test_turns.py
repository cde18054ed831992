"""Turns on a device: first come, first served, and nobody is left behind."""

import sys
import threading
import time

import pytest
import torch

from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_spec import StageSpec, TensorSpec
from talkinghead.nodes.core.turns import FairLock, device_turns


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


def taking(lock, got):
    def take():
        with lock.turn():
            got.append(1)

    return take


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_the_order_is_that_of_asking():
    lock, order, threads = FairLock(), [], []

    def ask(name):
        with lock.turn():
            order.append(name)

    with lock.turn():
        for name in range(6):
            threads.append(threading.Thread(target=ask, args=(name,)))
            threads[-1].start()
            wait_until(lambda at=name: lock.waiting == at + 1)
    for thread in threads:
        thread.join(20)
    assert order == list(range(6))
    assert lock.waiting == 0


def test_a_thread_that_asks_again_at_once_goes_behind_the_one_that_waits():
    lock, order, go = FairLock(), [], threading.Event()

    def greedy(name):
        go.wait(20)
        for _ in range(50):
            with lock.turn():
                order.append(name)
                # Whoever wants a turn is in the queue before this one ends, as with batches that take a while.
                wait_until(lambda: lock.waiting or len(order) in (1, 100) or order.count(other[name]) == 50)

    other = {"a": "b", "b": "a"}
    threads = [threading.Thread(target=greedy, args=(n,)) for n in "ab"]
    threads[0].start(), threads[1].start()
    go.set()
    for thread in threads:
        thread.join(20)
    assert len(order) == 100
    # The first may have had a second turn before the other thread woke up at all.
    both = order[2:98]
    assert all(x != y for x, y in zip(both, both[1:], strict=False))


def test_it_is_reentrant_and_kept_until_the_outermost_block_ends():
    lock, got = FairLock(), []
    thread = threading.Thread(target=taking(lock, got))
    with lock.turn():
        with lock.turn():
            thread.start()
            wait_until(lambda: lock.waiting == 1)
        assert got == []
    thread.join(20)
    assert got == [1]


def test_an_error_inside_ends_the_turn():
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock.turn():
        raise ZeroDivisionError
    got = []
    run_all([threading.Thread(target=taking(lock, got))])
    assert got == [1]


@pytest.mark.parametrize("handed_over", [False, True])
def test_who_stops_waiting_leaves_the_queue(handed_over, monkeypatch):
    """Ctrl-C while it waits, also in the moment in which its turn came."""
    lock, got = FairLock(), []

    class Stopped(BaseException):
        pass

    class Gate:
        """Interrupted in `acquire`."""

        def __init__(self):
            self.opened = threading.Event()

        def acquire(self):
            if handed_over:
                self.opened.wait(20)
            raise Stopped

        def locked(self):
            return True

        def release(self):
            self.opened.set()

    def stop():
        turn = lock.turn()
        turn.gate = Gate()
        with pytest.raises(Stopped), turn:
            got.append("never")
        got.append("stopped")

    thread, last = threading.Thread(target=stop), threading.Thread(target=taking(lock, got))
    with lock.turn():
        thread.start()
        wait_until(lambda: lock.waiting == 1 or got)
        last.start()
        wait_until(lambda: lock.waiting == (2 if handed_over else 1))
    for one in (thread, last):
        one.join(20)
        assert not one.is_alive()
    assert sorted(map(str, got)) == ["1", "stopped"]
    assert lock.waiting == 0


@pytest.mark.parametrize("line", range(12))
def test_a_stop_anywhere_in_the_end_of_a_turn_loses_nothing(line):
    """Ctrl-C at each line of it; the next in the queue gets its turn and the lock goes on."""
    lock, got, cut = FairLock(), [], []
    waiter = threading.Thread(target=taking(lock, got))

    def trace(frame, event, arg):
        if frame.f_code.co_name != "_end":
            return None
        if event == "line" and frame.f_lineno - frame.f_code.co_firstlineno == line + 2 and not cut:
            cut.append(line)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        with lock.turn():
            waiter.start()
            wait_until(lambda: lock.waiting == 1)
            sys.settrace(trace)
    except KeyboardInterrupt:
        assert cut == [line]
    finally:
        sys.settrace(before)
    waiter.join(20)
    assert got == [1]
    with lock.turn():
        got.append(2)
    assert lock.waiting == 0
    assert not lock._held


def test_two_engines_of_a_device_take_turns_batch_by_batch():
    """A run of large batches lets each batch of the other in between: the calls never overlap."""
    spec = StageSpec(
        "probe", (TensorSpec("x", (1,), torch.float32),), (TensorSpec("y", (1,), torch.float32),)
    )
    inside, calls, turn = [], [], device_turns("cpu:0")

    def stage_of(name):
        def stage(x):
            inside.append(name)
            if len(calls) not in (0, 19):
                wait_until(lambda: turn.waiting or calls.count(other[name]) == 10)
            assert inside == [name]
            inside.pop()
            calls.append(name)
            return {"y": x}

        return stage

    other = {"session": "prompt", "prompt": "session"}
    engines = {
        n: open_engine(spec, stage_of(n), EngineOptions(backend="eager", batch=2), "cpu") for n in other
    }
    failed = []

    def run(name):
        try:
            for _ in range(10):
                engines[name](x=torch.zeros(2, 1))
        except BaseException as e:
            failed.append(e)

    run_all([threading.Thread(target=run, args=(n,)) for n in other])
    assert failed == []
    assert sorted(calls) == ["prompt"] * 10 + ["session"] * 10
    both = calls[2:18]
    assert all(x != y for x, y in zip(both, both[1:], strict=False)), calls
