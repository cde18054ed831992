"""TensorRT plans from ONNX files, for TensorRT 10.15 and 11: strongly typed, so the precision is the graph's own.

TensorRT is imported where it is used. What differs between its versions is asked for by name (`getattr`), never
deduced from a version. A plan runs on the TensorRT version and GPU model that built it, unless an option says so.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .export import OnnxGraph

if TYPE_CHECKING:
    from .engine_spec import StageSpec

INSTALL = "pip install tensorrt"
HARDWARE = {
    "this": None,
    "same capability": "SAME_COMPUTE_CAPABILITY",
    "ampere and newer": "AMPERE_PLUS",
}
"""Which GPUs a plan runs on, and TensorRT's name for it. Wider ones run slower."""
_ERRORS_KEPT = 4
_ERROR_CHARS = 300


@dataclass(frozen=True)
class Profile:
    """Batch sizes of a plan: the range it takes and the one it is tuned for."""

    low: int
    tuned: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.tuned <= self.high:
            raise ValueError(
                f"profile {self.low}, {self.tuned}, {self.high} is impossible: give 1 <= low <= tuned <= high"
            )

    @classmethod
    def static(cls, batch: int) -> Profile:
        return cls(batch, batch, batch)

    def shapes(self, spec: StageSpec) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Input name -> (lowest, tuned, highest) shape, batch first."""
        return {
            t.name: tuple((batch, *t.shape) for batch in (self.low, self.tuned, self.high))
            for t in spec.inputs
        }


@dataclass(frozen=True)
class PlanOptions:
    """How to build.

    profile: batch sizes. workspace_mib: scratch memory that kernels may use, None for all there is. level: 0..5, how
    long to look for faster kernels. hardware: of HARDWARE. version_compatible: run on later TensorRT versions of the
    same major one (the plan then carries a runtime, and loading it runs code from the file). tf32: let float32 graphs
    round to 10 bits. timing_cache: file that makes the next build of the same kernels quick.
    Weight streaming is always off: it copies weights to the card in every call.
    """

    profile: Profile
    workspace_mib: int | None = None
    level: int = 3
    hardware: str = "this"
    version_compatible: bool = False
    tf32: bool = False
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.hardware not in HARDWARE:
            raise ValueError(f"hardware {self.hardware!r} is unknown; use one of {', '.join(HARDWARE)}")
        if not 0 <= self.level <= 5:
            raise ValueError(f"level {self.level} is outside 0..5; 3 is TensorRT's own default")
        if self.workspace_mib is not None and self.workspace_mib < 1:
            raise ValueError(f"workspace_mib {self.workspace_mib} must be 1 or more, or None for no limit")

    def flags(self) -> dict[str, Any]:
        """What the sidecar says of how the plan was built."""
        return {
            "strongly_typed": True,
            "weight_streaming": False,
            "version_compatible": self.version_compatible,
            "hardware": self.hardware,
            "tf32": self.tf32,
            "level": self.level,
            "workspace_mib": self.workspace_mib,
        }


@dataclass
class TensorRt:
    """The imported module with a logger that keeps its last error lines; it must outlive what is made with it."""

    module: Any
    logger: Any
    errors: list[str] = field(default_factory=list)

    @property
    def version(self) -> str:
        return str(getattr(self.module, "__version__", "unknown"))

    def why(self) -> str:
        """What TensorRT logged as errors since the last call, for the end of a message."""
        text = "; ".join(self.errors[-_ERRORS_KEPT:])
        self.errors.clear()
        return f" TensorRT says: {text}" if text else ""


def import_tensorrt() -> TensorRt:
    """Import TensorRT and make its logger. ImportError says what to install."""
    try:
        import tensorrt as trt
    except ImportError as error:
        raise ImportError(f"TensorRT is not installed ({error}): {INSTALL}") from error
    if not hasattr(trt, "Builder"):  # PyPI's stub installs without the libraries
        raise ImportError(f"the tensorrt package here is a stub without its libraries: {INSTALL}")
    errors: list[str] = []

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # bindings without it crash at the first message

        def log(self, severity: Any, message: str) -> None:
            if getattr(severity, "name", str(severity)) in ("ERROR", "INTERNAL_ERROR"):
                errors.append(message.strip()[:_ERROR_CHARS])
                del errors[: -4 * _ERRORS_KEPT]

    return TensorRt(trt, Log(), errors)


def build_plan(
    graph: OnnxGraph,
    spec: StageSpec,
    path: Path,
    options: PlanOptions,
    progress: Callable[[str, int, int], None] | None = None,
    tensorrt: TensorRt | None = None,
) -> dict[str, Any]:
    """Build a plan and write it, whole or not at all.

    Args:
        graph: with the names of `spec`; its batch range must hold the profile's.
        spec: names and shapes of the inputs.
        path: the plan file.
        options: profile, compatibility, memory.
        progress: (phase, steps done, steps); raise in it to stop the build.
        tensorrt: default a new import.

    Returns:
        facts for the sidecar: `tensorrt` (version), `profile`, `flags`, `onnx` (SHA-256 by file), `seconds`, `bytes`.

    Raises:
        ImportError: no TensorRT.
        ValueError: a profile outside the graph's batches, or an option this TensorRT does not have.
        RuntimeError: TensorRT cannot parse or build the graph; the message has its words.
    """
    profile = options.profile
    if profile.low not in graph.batch or profile.high not in graph.batch:
        raise ValueError(
            f"{graph.path.name} takes batches {graph.batch}, not the {profile.low} to {profile.high} of the profile: "
            f"export it with a wider --batch"
        )
    rt = tensorrt or import_tensorrt()
    trt, began = rt.module, time.perf_counter()
    builder = trt.Builder(rt.logger)
    network = builder.create_network(_network_flags(rt))
    parser = trt.OnnxParser(network, rt.logger)
    if not parser.parse_from_file(str(graph.path)):  # a path: the weights lie beside the file
        said = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise RuntimeError(
            f"TensorRT {rt.version} cannot read {graph.path.name}: {'; '.join(said)}.{rt.why()}"
        )
    config = builder.create_builder_config()
    _set_options(rt, config, options)
    _set_profile(rt, builder, config, profile.shapes(spec))
    cache = _load_timing_cache(config, options.timing_cache)
    monitor = _watch(rt, config, progress)
    plan = builder.build_serialized_network(network, config)
    if monitor is not None and monitor.stopped is not None:
        raise monitor.stopped
    if plan is None:
        raise RuntimeError(f"TensorRT {rt.version} could not build {graph.path.name}.{rt.why()}")
    size = write_whole(path, plan)
    if cache is not None:
        write_whole(options.timing_cache, cache.serialize())
    return {
        "tensorrt": rt.version,
        "profile": {name: [list(shape) for shape in three] for name, three in profile.shapes(spec).items()},
        "flags": options.flags(),
        "onnx": graph.identity,
        "seconds": round(time.perf_counter() - began, 1),
        "bytes": size,
    }


def write_whole(path: Path, data: Any) -> int:
    """Write a buffer to `path` in one step and return its size. OSError leaves what was there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("wb") as file:
            size = file.write(memoryview(data))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return size


def _network_flags(rt: TensorRt) -> int:
    """STRONGLY_TYPED where it is a choice (10), 0 where every network is (11)."""
    flags = getattr(rt.module, "NetworkDefinitionCreationFlag", None)
    typed = getattr(flags, "STRONGLY_TYPED", None)
    if typed is not None:
        return 1 << int(typed)
    if hasattr(getattr(rt.module, "BuilderFlag", None), "FP16"):
        raise ValueError(
            f"TensorRT {rt.version} has precision flags but no strongly typed networks: install 10.15 or newer"
        )
    return 0


def _set_options(rt: TensorRt, config: Any, options: PlanOptions) -> None:
    trt = rt.module
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib << 20)
    if hasattr(config, "builder_optimization_level"):
        config.builder_optimization_level = options.level
    for name, wanted in (
        ("WEIGHT_STREAMING", False),
        ("TF32", options.tf32),  # on by default in TensorRT
        ("VERSION_COMPATIBLE", options.version_compatible),
    ):
        flag = getattr(trt.BuilderFlag, name, None)
        if flag is not None:
            (config.set_flag if wanted else config.clear_flag)(flag)
        elif wanted:
            raise ValueError(f"TensorRT {rt.version} has no {name}: build without that option")
    level = HARDWARE[options.hardware]
    if level is not None:
        known = getattr(getattr(trt, "HardwareCompatibilityLevel", None), level, None)
        if known is None:
            raise ValueError(
                f"TensorRT {rt.version} has no hardware compatibility {options.hardware!r}: build with 'this'"
            )
        config.hardware_compatibility_level = known


def _set_profile(rt: TensorRt, builder: Any, config: Any, shapes: Mapping[str, tuple]) -> None:
    profile = builder.create_optimization_profile()
    for name, (low, tuned, high) in shapes.items():
        profile.set_shape(name, low, tuned, high)
    if config.add_optimization_profile(profile) < 0:
        raise RuntimeError(f"TensorRT {rt.version} refuses the profile {dict(shapes)}.{rt.why()}")


def _load_timing_cache(config: Any, path: Path | None) -> Any:
    """The timing cache of `path`, or a fresh one if it is missing, damaged or of another TensorRT or GPU."""
    if path is None:
        return None
    path = Path(path)
    for blob in ([path.read_bytes()] if path.is_file() else []) + [b""]:
        cache = config.create_timing_cache(blob)
        if cache is not None and config.set_timing_cache(
            cache, False
        ):  # False: refuse those of other machines
            return cache
    return None


def _watch(rt: TensorRt, config: Any, progress: Callable[[str, int, int], None] | None) -> Any:
    """Tell `progress` of the build's steps. What it raises stops the build and is `stopped` of the returned monitor."""
    base = getattr(rt.module, "IProgressMonitor", None)
    if progress is None or base is None or not hasattr(config, "progress_monitor"):
        return None

    class Monitor(base):
        def __init__(self) -> None:
            base.__init__(self)
            self.stopped: BaseException | None = None
            self.steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            if self.stopped is None:
                try:
                    progress(phase_name, step + 1, self.steps.get(phase_name, 0))
                except BaseException as error:  # must not pass through TensorRT's threads
                    self.stopped = error
            return self.stopped is None

        def phase_finish(self, phase_name: str) -> None:
            self.steps.pop(phase_name, None)

    monitor = Monitor()
    config.progress_monitor = monitor
    return monitor
