"""An engine that is closed by others is opened again by whoever calls it."""

from __future__ import annotations

import pytest
import torch
from engine_stubs import SPEC, rows, stub_stage

from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.engine_reopen import ReopeningEngine
from talkinghead.nodes.core.frames import RunCancelled


def opener(made):
    def open_stub():
        made.append(open_engine(SPEC, stub_stage, EngineOptions("eager", 4), "cpu"))
        return made[-1]

    return open_stub


def test_a_closed_engine_is_opened_again_and_gives_the_same():
    made, asked, given = [], [], rows(3)
    engine = ReopeningEngine(opener(made), lambda: asked.append(len(made)))
    wanted = engine(**given)
    made[0].close()
    got = engine(**given)
    assert torch.equal(got["total"], wanted["total"])
    assert engine.engine is made[1]
    assert (len(made), asked) == (2, [1])


def test_the_dtype_is_the_engines():
    made, given = [], rows(3)
    engine = ReopeningEngine(opener(made))
    got = engine(**{k: v.double() for k, v in given.items()})
    assert torch.equal(got["total"], engine(**given)["total"])


def test_a_stop_is_heard_before_it_opens_again():
    made = []

    def stop():
        raise RunCancelled("stopped")

    engine = ReopeningEngine(opener(made), stop)
    made[0].close()
    with pytest.raises(RunCancelled):
        engine(**rows(3))
    assert len(made) == 1
