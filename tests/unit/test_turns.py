"""Turns on a device: first come, first served, and nobody is left behind."""

import threading
import time

import pytest
import torch

from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_spec import StageSpec, TensorSpec
from talkinghead.nodes.core.turns import FairLock, device_turn


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_the_order_is_that_of_asking():
    lock, order, threads = FairLock(), [], []

    def ask(name):
        with lock:
            order.append(name)

    with lock:
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
            with lock:
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
    thread = threading.Thread(target=lambda: (lock.__enter__(), got.append(1), lock.__exit__()))
    with lock:
        with lock:
            thread.start()
            wait_until(lambda: lock.waiting == 1)
        assert got == []
    thread.join(20)
    assert got == [1]


def test_an_error_inside_ends_the_turn():
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    got = []
    run_all([threading.Thread(target=lambda: (lock.__enter__(), got.append(1), lock.__exit__()))])
    assert got == [1]


def test_a_stranger_cannot_end_a_turn():
    lock = FairLock()
    with pytest.raises(RuntimeError, match="the thread that has it"):
        lock.__exit__()


def test_two_engines_of_a_device_take_turns_batch_by_batch():
    """A run of large batches lets each batch of the other in between: the calls never overlap."""
    spec = StageSpec(
        "probe", (TensorSpec("x", (1,), torch.float32),), (TensorSpec("y", (1,), torch.float32),)
    )
    inside, calls, turn = [], [], device_turn("cpu:0")

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
