"""LMDM through the engine: the same numbers, and engines that were closed are opened again."""

from __future__ import annotations

import pytest
import torch
from ditto_motion_parts import SPEECH_WIDTH, TINY, run_stream, speech, tiny_condition, tiny_lmdm

from talkinghead.nodes.core.engine import EngineOptions, open_engine
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.ditto.audio2motion import MotionSampler, MotionStream, WindowScheme
from talkinghead.nodes.ditto.motion_engine import (
    CONDITION,
    STEP,
    MotionEngines,
    WindowSampler,
    condition_stage,
    step_stage,
    window_stage,
)
from talkinghead.nodes.ditto.motion_measure import step_agreement
from talkinghead.nodes.ditto.schedule import MotionNoise

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def net():
    return tiny_lmdm()


def motion(network, n_rows: int = 90, scheme: WindowScheme | None = None) -> torch.Tensor:
    scheme = scheme or WindowScheme()
    silence = torch.zeros(scheme.warm_up, SPEECH_WIDTH) if scheme.online else None
    noise = MotionNoise(2, 3, 1.0, (TINY.window, TINY.motion_dim))
    source = torch.zeros(TINY.motion_dim)
    stream = MotionStream(MotionSampler(network, noise), tiny_condition(), scheme, source, silence)
    return run_stream(stream, speech(n_rows), 5)


def test_engines_give_the_networks_numbers(net):
    opened, report = [], Report()

    def open_stage(stage):
        opened.append(stage)
        return open_engine(*stage(net, CPU), EngineOptions(batch=1), CPU, report)

    engines = MotionEngines(open_stage, CPU)
    assert torch.equal(motion(engines), motion(net))
    assert torch.equal(motion(engines, 20, WindowScheme.live()), motion(net, 20, WindowScheme.live()))
    assert opened == [condition_stage, step_stage]
    assert report.facts[f"{STEP} engine"] == report.facts[f"{CONDITION} engine"] == "eager, batch 1, on cpu"


def test_a_closed_engine_is_opened_again(net):
    opened = []

    def open_stage(stage):
        opened.append(open_engine(*stage(net, CPU), EngineOptions(batch=1), CPU))
        return opened[-1]

    engines = MotionEngines(open_stage, CPU)
    wanted = motion(engines)
    for engine in opened:
        engine.close()
    assert torch.equal(motion(engines), wanted)
    assert len(opened) == 4


def test_rows_of_a_stage_stand_alone(net):
    """A batch of four different windows against one at a time; the tail is padded."""
    for maker in (condition_stage, step_stage):
        spec, function = maker(net, CPU)
        given = spec.sample(5, CPU, seed=3)
        batched = open_engine(spec, function, EngineOptions(batch=4), CPU)(**given)
        for row in range(5):
            alone = function(**{name: value[row : row + 1] for name, value in given.items()})
            for name, value in alone.items():
                assert torch.allclose(batched[name][row], value[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stage", [condition_stage, step_stage])
def test_stages_export(net, stage):
    """A graph with a free batch: the batch of the example is not in it."""
    spec, function = stage(net, CPU)
    example = spec.sample(2, CPU, seed=4)
    batch = torch.export.Dim("batch", min=1, max=8)
    graph = torch.export.export(
        function, (), example, dynamic_shapes={name: {0: batch} for name in example}, strict=False
    ).module()
    given = spec.sample(3, CPU, seed=5)
    for name, value in function(**given).items():
        assert torch.allclose(graph(**given)[name], value, atol=1e-5)


def test_few_steps_against_many(net):
    """From the same starts: a count against itself is the same, and the measure is symmetrical."""
    source = torch.linspace(-1, 1, TINY.motion_dim)

    def agreement(few: int, many: int, seed: int = 1):
        return step_agreement(net, tiny_condition(), source, speech(90), few, many, seed)

    same = agreement(4, 4)
    assert (same.cosine, same.mse) == (pytest.approx(1), 0)
    one, other = agreement(2, 30), agreement(30, 2)
    assert (one.cosine, one.mse) == (pytest.approx(other.cosine), other.mse)
    assert one.mse > 0
    assert agreement(2, 30, seed=2).mse != one.mse
    assert str(one) == f"2 steps against 30: cosine {one.cosine:.4f}, MSE {one.mse:.3g}"


@pytest.mark.parametrize(("steps", "eta"), [(2, 1.0), (4, 1.0), (5, 0.5), (3, 0.0)])
def test_a_window_in_one_call_is_the_same_window(net, steps, eta):
    source, cond = torch.linspace(-1, 1, TINY.motion_dim)[None], speech(TINY.window)
    cond = tiny_condition().rows(cond, 0)[None]

    def noise() -> MotionNoise:
        return MotionNoise(4, steps, eta, (TINY.window, TINY.motion_dim))

    plain, stage = MotionSampler(net, noise()), window_stage(steps, eta)
    whole = WindowSampler(lambda: open_engine(*stage(net, CPU), EngineOptions(batch=1), CPU), noise(), CPU)
    fast, noises = stage(net, CPU)[1].fast_form()[0], noise()
    drawn = torch.stack(noises.of_steps, 1) if eta else None
    for _ in range(2):  # each window has a start of its own
        wanted = plain(source, cond)
        assert torch.equal(whole(source, cond), wanted)
        with torch.inference_mode():
            made = fast(cond=cond, cond_frame=source, start=noises.start(), noises=drawn)["motion"]
        assert (made - wanted).norm() <= 1e-5 * wanted.norm()


def test_the_stage_of_a_window_is_one_object_for_its_steps():
    assert window_stage(4, 1.0) is window_stage(4, 1.0)
    assert window_stage(4, 1.0) is not window_stage(4, 0.0)
