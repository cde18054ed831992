"""TensorRT without TensorRT: a recording double (tests/fake_tensorrt.py) checks names, pointers, order and errors."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fake_tensorrt import FakeTensorRt, plan_tensors

from talkinghead.nodes.core import tensorrt_engine
from talkinghead.nodes.core.engine_cache import EngineCache
from talkinghead.nodes.core.engine_spec import (
    EngineIdentity,
    EngineSkipped,
    RunnerRequest,
    StageSpec,
    TensorSpec,
)
from talkinghead.nodes.core.export import ExportForm, OnnxGraph
from talkinghead.nodes.core.report import Report
from talkinghead.nodes.core.tensorrt_build import (
    PlanOptions,
    Profile,
    build_plan,
    import_tensorrt,
    write_whole,
)
from talkinghead.nodes.core.tensorrt_engine import (
    PlanRefused,
    TensorRtRunner,
    check_engine,
    load_plan,
    open_tensorrt,
)

SPEC = StageSpec(
    "toy",
    inputs=(
        TensorSpec("latents", (8, 4, 4), torch.float16),
        TensorSpec("tokens", (5, 16), torch.float16),
    ),
    outputs=(TensorSpec("images", (3, 8, 8), torch.float16), TensorSpec("score", (), torch.float32)),
)
BATCH = 4
STREAM = SimpleNamespace(cuda_stream=0xBEEF)


@pytest.fixture
def fake(monkeypatch):
    fake = FakeTensorRt().install(monkeypatch)
    fake.tensors = plan_tensors(SPEC)
    return fake


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "toy.onnx"
    path.write_bytes(b"graph")
    facts = {
        "name": "toy",
        "precision": "float16",
        "batch": [1, 32],
        "seconds": 1.0,
        "files": {"toy.onnx": {"size": 5, "sha256": "ab"}},
    }
    return OnnxGraph(path, facts)


def buffers(spec=SPEC, batch=BATCH):
    return {t.name: torch.zeros((batch, *t.shape), dtype=t.dtype) for t in spec.inputs}


def built(graph, tmp_path, options=None):
    path = tmp_path / "toy.plan"
    return path, build_plan(graph, SPEC, path, options or PlanOptions(Profile(1, 4, 8)))


def runner_of(fake, graph, tmp_path, **kwargs):
    path, _ = built(graph, tmp_path)
    rt = import_tensorrt()
    engine = load_plan(rt, path)
    form = ExportForm(torch.nn.Identity(), SPEC, kwargs.pop("finish", None))
    arguments = {"inputs": buffers(), "stream": STREAM, **kwargs}
    return TensorRtRunner(rt, engine, SPEC, form=form, **arguments)


def test_build_makes_a_strongly_typed_network_and_writes_plan_and_facts(fake, graph, tmp_path):
    path, facts = built(graph, tmp_path, PlanOptions(Profile(1, 4, 8), workspace_mib=100, level=4))
    calls = fake.calls
    assert calls.of("create_network") == [(1 << fake.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED,)]
    assert calls.of("parse_from_file") == [(str(graph.path), True)]
    assert calls.of("set_memory_pool_limit") == [("WORKSPACE", 100 << 20)]
    assert ("clear_flag", "WEIGHT_STREAMING") in calls
    assert ("clear_flag", "TF32") in calls
    assert not calls.of("set_flag")
    assert calls.of("set_shape") == [
        ("latents", (1, 8, 4, 4), (4, 8, 4, 4), (8, 8, 4, 4)),
        ("tokens", (1, 5, 16), (4, 5, 16), (8, 5, 16)),
    ]
    assert fake.config.builder_optimization_level == 4
    assert fake.config.hardware_compatibility_level is None
    order = calls.names()
    assert order.index("parse_from_file") < order.index("set_shape") < order.index("build_serialized_network")
    assert path.stat().st_size == facts["bytes"]
    assert facts["tensorrt"] == "10.15.1"
    assert facts["profile"]["tokens"] == [[1, 5, 16], [4, 5, 16], [8, 5, 16]]
    assert facts["flags"]["strongly_typed"]
    assert not facts["flags"]["weight_streaming"]
    assert facts["onnx"] == {"toy.onnx": "ab"}
    assert [p.name for p in tmp_path.iterdir() if ".part" in p.name] == []


def test_eleven_has_no_precision_flags_and_needs_no_network_flag(monkeypatch, graph, tmp_path):
    lacks = ("WEIGHT_STREAMING", "TF32")
    fake = FakeTensorRt("11.4.1", strongly_typed_flag=False, precision_flags=False, lacks=lacks).install(
        monkeypatch
    )
    fake.tensors = plan_tensors(SPEC)
    _, facts = built(graph, tmp_path)
    assert fake.calls.of("create_network") == [(0,)]
    assert fake.calls.of("clear_flag") == [("VERSION_COMPATIBLE",)]
    assert facts["tensorrt"] == "11.4.1"


def test_a_version_without_strong_typing_is_refused(monkeypatch, graph, tmp_path):
    FakeTensorRt("8.6.1", strongly_typed_flag=False).install(monkeypatch)
    with pytest.raises(ValueError, match=r"8\.6\.1.*10\.15"):
        built(graph, tmp_path)


def test_compatibility_options_become_flags_and_facts(fake, graph, tmp_path):
    options = PlanOptions(Profile.static(4), hardware="ampere and newer", version_compatible=True, tf32=True)
    _, facts = built(graph, tmp_path, options)
    assert sorted(fake.calls.of("set_flag")) == [("TF32",), ("VERSION_COMPATIBLE",)]
    assert fake.config.hardware_compatibility_level.name == "AMPERE_PLUS"
    assert facts["flags"]["hardware"] == "ampere and newer"
    assert facts["flags"]["version_compatible"] is True
    same = replace(options, hardware="same capability")
    built(graph, tmp_path, same)
    assert fake.config.hardware_compatibility_level.name == "SAME_COMPUTE_CAPABILITY"


def test_an_option_this_version_lacks_is_named(monkeypatch, graph, tmp_path):
    fake = FakeTensorRt(lacks=("VERSION_COMPATIBLE",)).install(monkeypatch)
    with pytest.raises(ValueError, match="VERSION_COMPATIBLE"):
        built(graph, tmp_path, PlanOptions(Profile.static(4), version_compatible=True))
    del fake.module.HardwareCompatibilityLevel
    with pytest.raises(ValueError, match="ampere and newer"):
        built(graph, tmp_path, PlanOptions(Profile.static(4), hardware="ampere and newer"))
    assert not (tmp_path / "toy.plan").exists()


def test_timing_cache_is_kept_and_a_foreign_one_replaced(fake, graph, tmp_path):
    cache = tmp_path / "deep" / "timing"
    options = PlanOptions(Profile.static(4), timing_cache=cache)
    built(graph, tmp_path, options)
    assert cache.read_bytes() == b"+timed"
    fake.good_caches = {b"", b"+timed"}
    built(graph, tmp_path, options)
    assert cache.read_bytes() == b"+timed+timed"
    cache.write_bytes(b"of another card")
    fake.calls.clear()
    built(graph, tmp_path, options)
    assert fake.calls.of("set_timing_cache") == [(b"of another card", False), (b"", False)]
    assert cache.read_bytes() == b"+timed"


def test_what_the_parser_says_is_in_the_message(fake, graph, tmp_path):
    fake.parse_errors = ["node 7: GridSample is not supported", "node 9: so is Foo"]
    with pytest.raises(RuntimeError, match=r"10\.15\.1.*toy\.onnx.*GridSample.*Foo"):
        built(graph, tmp_path)
    assert not fake.calls.of("build_serialized_network")


def test_a_failed_build_says_why_and_keeps_the_old_plan(fake, graph, tmp_path):
    path, _ = built(graph, tmp_path)
    before = path.read_bytes()
    fake.builds = False
    with pytest.raises(RuntimeError, match="could not find any implementation"):
        built(graph, tmp_path)
    assert path.read_bytes() == before
    fake.builds, fake.profile_index = True, -1
    with pytest.raises(RuntimeError, match="refuses the profile"):
        built(graph, tmp_path)


def test_a_profile_outside_of_the_graph_is_refused(fake, graph, tmp_path):
    with pytest.raises(ValueError, match=r"1\.\.32.*1 to 64"):
        built(graph, tmp_path, PlanOptions(Profile(1, 8, 64)))
    assert fake.calls == []


def test_progress_sees_the_steps_and_can_stop_the_build(fake, graph, tmp_path):
    fake.build_steps, seen = 3, []
    build_plan(
        graph, SPEC, tmp_path / "a.plan", PlanOptions(Profile.static(4)), lambda *step: seen.append(step)
    )
    assert seen == [("tactics", 1, 3), ("tactics", 2, 3), ("tactics", 3, 3)]

    class InterruptProcessingException(Exception):
        pass

    def stop(phase, done, total):
        if done == 2:
            raise InterruptProcessingException

    with pytest.raises(InterruptProcessingException):
        build_plan(graph, SPEC, tmp_path / "b.plan", PlanOptions(Profile.static(4)), stop)
    assert not (tmp_path / "b.plan").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Profile(2, 1, 8), "2, 1, 8"),
        (lambda: Profile(0, 1, 8), "0, 1, 8"),
        (lambda: PlanOptions(Profile.static(1), level=6), "level 6"),
        (lambda: PlanOptions(Profile.static(1), hardware="all"), "'all'.*ampere"),
        (lambda: PlanOptions(Profile.static(1), workspace_mib=0), "workspace_mib 0"),
    ],
)
def test_impossible_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_write_whole_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "x" / "plan"
    assert write_whole(path, bytearray(b"first")) == 5
    with pytest.raises(TypeError):
        write_whole(path, object())
    assert path.read_bytes() == b"first"
    assert [p.name for p in path.parent.iterdir()] == ["plan"]


def test_missing_and_stub_packages_say_what_to_install(monkeypatch, fake):
    del fake.module.Builder
    with pytest.raises(ImportError, match="stub"):
        import_tensorrt()
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(ImportError, match="pip install tensorrt"):
        import_tensorrt()


@pytest.mark.parametrize("reverse", [False, True])
def test_buffers_are_bound_by_name_whatever_the_plans_order(fake, graph, tmp_path, reverse):
    fake.tensors = plan_tensors(SPEC, reverse)
    inputs = buffers()
    runner = runner_of(fake, graph, tmp_path, inputs=inputs)
    outputs = runner()
    pointers = dict(fake.calls.of("set_tensor_address"))
    assert pointers == {name: value.data_ptr() for name, value in {**inputs, **outputs}.items()}
    assert dict(fake.calls.of("set_input_shape")) == {n: tuple(v.shape) for n, v in inputs.items()}
    assert outputs["images"].shape == (BATCH, 3, 8, 8)
    assert outputs["images"].dtype == torch.float16
    assert outputs["score"].shape == (BATCH,)
    assert outputs["score"].dtype == torch.float32
    assert fake.calls.of("execute_async_v3") == [(STREAM.cuda_stream,)]
    names = fake.calls.names()
    assert max(i for i, n in enumerate(names) if n == "set_input_shape") < names.index("set_tensor_address")
    assert names[-1] == "execute_async_v3"


def test_outputs_are_allocated_once_and_nothing_is_bound_again(fake, graph, tmp_path):
    runner = runner_of(fake, graph, tmp_path)
    first = {name: value.data_ptr() for name, value in runner().items()}
    fake.calls.clear()
    assert {name: value.data_ptr() for name, value in runner().items()} == first
    assert fake.calls.names() == ["execute_async_v3"]
    runner.close()
    assert runner._context is None
    assert runner._engine is None


def test_finish_makes_the_stages_outputs(fake, graph, tmp_path):
    runner = runner_of(
        fake, graph, tmp_path, finish=lambda out: {"finite": out["images"].isfinite().flatten(1).all(1)}
    )
    assert runner()["finite"].shape == (BATCH,)


@pytest.mark.parametrize("stream", [None, SimpleNamespace(cuda_stream=0)])
def test_the_default_stream_is_refused(fake, graph, tmp_path, stream):
    with pytest.raises(ValueError, match="stream of its own"):
        runner_of(fake, graph, tmp_path, stream=stream)
    assert not fake.calls.of("create_execution_context")


def test_a_batch_outside_of_the_profile_is_refused_before_anything_is_queued(fake, graph, tmp_path):
    with pytest.raises(ValueError, match=r"latents \(9, 8, 4, 4\).*1 to 8"):
        runner_of(fake, graph, tmp_path, inputs=buffers(batch=9))
    assert not fake.calls.of("set_input_shape")
    assert not fake.calls.of("execute_async_v3")


def test_a_plan_of_another_graph_is_refused(fake, graph, tmp_path):
    path, _ = built(graph, tmp_path)
    rt = import_tensorrt()
    engine = load_plan(rt, path)
    shapes = {name: tuple(value.shape) for name, value in buffers().items()}
    check_engine(rt, engine, SPEC, shapes)
    renamed = replace(SPEC, outputs=(replace(SPEC.outputs[0], name="crops"), SPEC.outputs[1]))
    with pytest.raises(ValueError, match="outputs images, score, the stage crops, score"):
        check_engine(rt, engine, renamed, shapes)
    wider = replace(SPEC, inputs=(replace(SPEC.inputs[0], dtype=torch.float32), SPEC.inputs[1]))
    with pytest.raises(ValueError, match=r"latents as .*HALF.*float32|latents as 1.*float32"):
        check_engine(rt, engine, wider, shapes)
    # an input that became an output is another graph as well
    swapped = replace(SPEC, inputs=SPEC.inputs[:1], outputs=(*SPEC.outputs, SPEC.inputs[1]))
    with pytest.raises(ValueError, match="inputs latents, tokens, the stage latents"):
        check_engine(rt, engine, swapped, {"latents": shapes["latents"]})


def test_refusals_of_the_context_carry_tensorrts_words(fake, graph, tmp_path):
    fake.runs = False
    with pytest.raises(RuntimeError, match="illegal memory access"):
        runner_of(fake, graph, tmp_path)()
    fake.takes_addresses = False
    with pytest.raises(ValueError, match="buffer of latents"):
        runner_of(fake, graph, tmp_path)
    fake.takes_shapes = False
    with pytest.raises(ValueError, match="refuses latents"):
        runner_of(fake, graph, tmp_path)
    fake.takes_shapes = fake.takes_addresses = True
    fake.unknown_shapes = ["tokens"]
    with pytest.raises(ValueError, match="lacks shapes of tokens"):
        runner_of(fake, graph, tmp_path)
    fake.has_memory = False
    with pytest.raises(EngineSkipped, match="3 MiB"):
        runner_of(fake, graph, tmp_path)


def test_a_buffer_that_is_not_contiguous_is_refused(fake, graph, tmp_path):
    inputs = buffers()
    inputs["tokens"] = torch.zeros((BATCH, 16, 5), dtype=torch.float16).transpose(1, 2)
    with pytest.raises(ValueError, match="tokens must be contiguous"):
        runner_of(fake, graph, tmp_path, inputs=inputs)


def test_a_plan_of_another_version_or_of_rubbish_says_both_versions(fake, graph, tmp_path, monkeypatch):
    path, _ = built(graph, tmp_path)
    FakeTensorRt("11.4.1").install(monkeypatch)
    made = {"tensorrt": "10.15.1", "sm": "sm_75"}
    with pytest.raises(
        PlanRefused, match=r"10\.15\.1 on sm_75; TensorRT 11\.4\.1 here.*engine build.*not compatible"
    ):
        load_plan(import_tensorrt(), path, made)
    path.write_bytes(bytes(range(64)))
    with pytest.raises(PlanRefused, match="of unknown version on an unknown card"):
        load_plan(import_tensorrt(), path)


def test_only_version_compatible_plans_may_run_their_own_code(fake, graph, tmp_path):
    path, facts = built(graph, tmp_path)
    load_plan(import_tensorrt(), path, facts)
    assert not fake.runtime.engine_host_code_allowed
    load_plan(import_tensorrt(), path, {"flags": {"version_compatible": True}})
    assert fake.runtime.engine_host_code_allowed


class Toy(torch.nn.Module):
    """A stage with a form of its own: bytes are made of what the plan gives."""

    def export_form(self):
        return ExportForm(self, SPEC, lambda out: {"bytes": out["images"].to(torch.uint8)})


STAGE = StageSpec("toy stage", SPEC.inputs, (TensorSpec("bytes", (3, 8, 8), torch.uint8),))


@pytest.fixture
def request_of(fake, graph, tmp_path, monkeypatch):
    """Return a function: changes -> a RunnerRequest as on a CUDA machine, its buffers on the CPU."""
    machine = {"gpu": "H200", "driver": "580.1", "tensorrt": "10.15.1", "sm": "sm_90"}
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for name in ("engine_cache", "tensorrt_engine"):
        module = __import__(f"talkinghead.nodes.core.{name}", fromlist=["x"])
        monkeypatch.setattr(module, "machine_facts", lambda device: dict(machine))
    exported = []

    def export(module, spec, path, batch, *args, **kwargs):
        exported.append((spec.name, str(batch)))
        path.write_bytes(b"graph")
        return OnnxGraph(path, {**graph.facts, "batch": [batch.low, batch.high]})

    monkeypatch.setattr(tensorrt_engine, "export_onnx", export)

    def make(**changes):
        given = {
            "spec": STAGE,
            "function": Toy(),
            "inputs": buffers(),
            "batch": BATCH,
            "device": torch.device("cuda"),
            "stream": STREAM,
            "cache": tmp_path / "engines",
            "identity": EngineIdentity("fp16", {"a": 1}, lambda: "weights-1"),
            "may_build": True,
            "report": Report(),
            **changes,
        }
        return RunnerRequest(**given)

    make.machine, make.exported = machine, exported
    return make


def test_open_builds_once_and_loads_from_the_cache_afterwards(fake, request_of):
    runner = open_tensorrt(request_of())
    assert request_of.exported == [("toy", "4")]
    assert list(runner()) == ["bytes"]
    assert runner.cached in EngineCache(request_of().cache).names()
    assert runner.memory_bytes > 3 << 20
    fake.calls.clear()
    again = open_tensorrt(request_of(may_build=False))
    assert again.cached == runner.cached
    assert not fake.calls.of("build_serialized_network")
    files = sorted(p.name for p in request_of().cache.iterdir())
    assert files == ["tensorrt.timing", f"{runner.cached}.json", f"{runner.cached}.plan"]


@pytest.mark.parametrize(("what", "value"), [("tensorrt", "11.4.1"), ("gpu", "A100"), ("driver", "590.2")])
def test_another_machine_needs_a_build_and_is_told_both_values(fake, request_of, what, value):
    open_tensorrt(request_of())
    before = request_of.machine[what]
    request_of.machine[what] = value
    request = request_of(may_build=False)
    with pytest.raises(EngineSkipped, match="not built yet"):
        open_tensorrt(request)
    assert any(f"{what} {before} instead of {value}" in text for text in request.report.warnings)


def test_other_weights_need_a_build(fake, request_of):
    open_tensorrt(request_of())
    with pytest.raises(EngineSkipped, match="not built yet"):
        open_tensorrt(
            request_of(may_build=False, identity=EngineIdentity("fp16", {"a": 1}, lambda: "weights-2"))
        )


def test_a_plan_that_does_not_load_is_set_aside_and_built_again(fake, request_of):
    name = open_tensorrt(request_of()).cached
    plan = request_of().cache / f"{name}.plan"
    plan.write_bytes(bytes(plan.stat().st_size))  # same size: only loading finds out
    request = request_of()
    assert open_tensorrt(request).cached == name
    assert (plan.parent / f"{name}.plan.bad").is_file()
    assert any("set aside" in text for text in request.report.warnings)


def test_a_failed_build_leaves_nothing(fake, request_of):
    fake.builds = False
    with pytest.raises(RuntimeError, match="could not find any implementation"):
        open_tensorrt(request_of())
    left = [p.name for p in request_of().cache.iterdir()]
    assert left == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": torch.device("cpu")}, "CUDA device"),
        ({"cache": None}, "no folder"),
        ({"may_build": False}, "not built yet"),
    ],
)
def test_reasons_to_skip(fake, request_of, changes, reason):
    with pytest.raises(EngineSkipped, match=reason):
        open_tensorrt(request_of(**changes))
    assert not fake.calls.of("build_serialized_network")


def test_without_tensorrt_the_reason_names_both_packages(request_of, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(EngineSkipped, match=r"pip install tensorrt.*9\.0"):
        open_tensorrt(request_of())
