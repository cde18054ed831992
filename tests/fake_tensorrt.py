"""A double of the `tensorrt` module that records every call. It stands for TensorRT 10.15 or 11 by what it lacks.

It proves call order, names, pointers and error paths, nothing about speed or numbers: no kernel runs.
"""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType


class Calls(list):
    """(name, *arguments) of every call, in order."""

    def names(self) -> list[str]:
        return [call[0] for call in self]

    def of(self, name: str) -> list[tuple]:
        return [call[1:] for call in self if call[0] == name]


class _Parsed:
    def __init__(self, text: str) -> None:
        self._text = text

    def desc(self) -> str:
        return self._text


class _Profile:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.shapes: dict[str, tuple] = {}

    def set_shape(self, name, low, tuned, high) -> None:
        self._calls.append(("set_shape", name, low, tuned, high))
        self.shapes[name] = (low, tuned, high)


class _TimingCache:
    def __init__(self, blob: bytes) -> None:
        self.blob = blob

    def serialize(self) -> bytes:
        return self.blob + b"+timed"


class _Config:
    def __init__(self, fake: FakeTensorRt) -> None:
        self._fake = fake
        self.builder_optimization_level = None
        self.hardware_compatibility_level = None
        self.progress_monitor = None
        self.profile: _Profile | None = None

    def set_flag(self, flag) -> None:
        self._fake.calls.append(("set_flag", flag.name))

    def clear_flag(self, flag) -> None:
        self._fake.calls.append(("clear_flag", flag.name))

    def set_memory_pool_limit(self, pool, size) -> None:
        self._fake.calls.append(("set_memory_pool_limit", pool.name, size))

    def add_optimization_profile(self, profile) -> int:
        self.profile = profile
        return self._fake.profile_index

    def create_timing_cache(self, blob: bytes):
        self._fake.calls.append(("create_timing_cache", blob))
        return _TimingCache(blob)

    def set_timing_cache(self, cache, ignore_mismatch) -> bool:
        self._fake.calls.append(("set_timing_cache", cache.blob, ignore_mismatch))
        return cache.blob in self._fake.good_caches


class _Engine:
    """Inputs and outputs as the plan lists them; `order` is the plan's, not the caller's."""

    device_memory_size_v2 = 3 << 20

    def __init__(self, fake: FakeTensorRt, plan: dict) -> None:
        self._fake, self.plan = fake, plan
        self._tensors = {t["name"]: t for t in plan["tensors"]}

    @property
    def num_io_tensors(self) -> int:
        return len(self.plan["tensors"])

    def get_tensor_name(self, index: int) -> str:
        return self.plan["tensors"][index]["name"]

    def get_tensor_mode(self, name: str):
        return self._fake.module.TensorIOMode[self._tensors[name]["mode"]]

    def get_tensor_dtype(self, name: str):
        return self._fake.module.DataType[self._tensors[name]["dtype"]]

    def get_tensor_profile_shape(self, name: str, profile: int):
        assert profile == 0
        return [list(shape) for shape in self.plan["profile"][name]]

    def create_execution_context(self):
        self._fake.calls.append(("create_execution_context",))
        return _Context(self._fake, self) if self._fake.has_memory else None


class _Context:
    def __init__(self, fake: FakeTensorRt, engine: _Engine) -> None:
        self._fake, self._engine = fake, engine
        self._rows = 0

    def set_input_shape(self, name: str, shape) -> bool:
        self._fake.calls.append(("set_input_shape", name, tuple(shape)))
        self._rows = shape[0]
        return self._fake.takes_shapes

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        self._fake.calls.append(("set_tensor_address", name, pointer))
        return self._fake.takes_addresses

    def get_tensor_shape(self, name: str):
        return (self._rows, *self._engine._tensors[name]["shape"])

    def infer_shapes(self) -> list[str]:
        return list(self._fake.unknown_shapes)

    def execute_async_v3(self, stream: int) -> bool:
        self._fake.calls.append(("execute_async_v3", stream))
        if not self._fake.runs:
            self._fake.say("ERROR", "an illegal memory access was encountered")
        return self._fake.runs


class FakeTensorRt:
    """Makes the module (`module`), records in `calls`; attributes decide what fails.

    Args:
        version: what `__version__` says.
        strongly_typed_flag: NetworkDefinitionCreationFlag.STRONGLY_TYPED exists (10; gone or ignored later).
        precision_flags: BuilderFlag.FP16 exists (10).
        lacks: names of BuilderFlag that this version does not have.
    """

    def __init__(self, version="10.15.1", strongly_typed_flag=True, precision_flags=True, lacks=()) -> None:
        self.calls = Calls()
        self.good_caches = {b""}
        self.profile_index = 0
        self.parse_errors: list[str] = []
        self.builds = self.has_memory = self.takes_shapes = self.takes_addresses = self.runs = True
        self.unknown_shapes: list[str] = []
        self.build_steps = 0
        self.tensors: list[dict] = []
        self._loggers: list = []
        self.module = self._make(version, strongly_typed_flag, precision_flags, lacks)

    def install(self, monkeypatch) -> FakeTensorRt:
        monkeypatch.setitem(sys.modules, "tensorrt", self.module)
        return self

    def say(self, severity: str, message: str) -> None:
        for logger in self._loggers:
            logger.log(self.module.ILogger.Severity[severity], message)

    def _make(self, version, strongly_typed_flag, precision_flags, lacks) -> ModuleType:
        fake, trt = self, ModuleType("tensorrt")
        flags = ["TF32", "VERSION_COMPATIBLE", "WEIGHT_STREAMING", *(["FP16"] if precision_flags else [])]
        trt.BuilderFlag = IntEnum("BuilderFlag", [f for f in flags if f not in lacks], start=0)
        network_flags = ["EXPLICIT_BATCH", *(["STRONGLY_TYPED"] if strongly_typed_flag else [])]
        trt.NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", network_flags, start=0)
        trt.MemoryPoolType = IntEnum("MemoryPoolType", ["WORKSPACE"])
        trt.HardwareCompatibilityLevel = IntEnum(
            "HardwareCompatibilityLevel", ["NONE", "AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY"], start=0
        )
        trt.TensorIOMode = IntEnum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"], start=0)
        trt.DataType = IntEnum("DataType", ["FLOAT", "HALF", "INT32", "UINT8", "BOOL"], start=0)

        class ILogger:
            Severity = IntEnum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO"], start=0)

            def __init__(self) -> None:
                fake._loggers.append(self)

        class Builder:
            def __init__(self, logger) -> None:
                fake.calls.append(("Builder", isinstance(logger, ILogger)))

            def create_network(self, flags=0):
                fake.calls.append(("create_network", flags))
                return "network"

            def create_builder_config(self):
                return _Config(fake)

            def create_optimization_profile(self):
                return _Profile(fake.calls)

            def build_serialized_network(self, network, config):
                fake.calls.append(("build_serialized_network", network))
                fake.config = config
                monitor = config.progress_monitor
                if monitor is not None:
                    monitor.phase_start("tactics", None, fake.build_steps)
                    if not all(monitor.step_complete("tactics", i) for i in range(fake.build_steps)):
                        return None
                    monitor.phase_finish("tactics")
                if not fake.builds:
                    fake.say("ERROR", "could not find any implementation for node X")
                    return None
                plan = {"version": version, "tensors": fake.tensors, "profile": config.profile.shapes}
                return bytearray(json.dumps(plan).encode())

        class OnnxParser:
            def __init__(self, network, logger) -> None:
                self.num_errors = len(fake.parse_errors)

            def parse_from_file(self, path: str) -> bool:
                fake.calls.append(("parse_from_file", path, Path(path).is_file()))
                return not fake.parse_errors

            def get_error(self, index: int):
                return _Parsed(fake.parse_errors[index])

        class Runtime:
            engine_host_code_allowed = False

            def __init__(self, logger) -> None:
                fake.runtime = self

            def deserialize_cuda_engine(self, plan: bytes):
                fake.calls.append(("deserialize_cuda_engine", len(plan)))
                try:
                    read = json.loads(plan)
                except ValueError:
                    read = {"version": "none"}
                if read["version"] != version:
                    fake.say("ERROR", "the engine plan file is not compatible with this version of TensorRT")
                    return None
                return _Engine(fake, read)

        class IProgressMonitor:
            pass

        trt.__version__ = version
        trt.ILogger, trt.Builder, trt.OnnxParser = ILogger, Builder, OnnxParser
        trt.Runtime, trt.IProgressMonitor = Runtime, IProgressMonitor
        return trt


def plan_tensors(spec, reverse: bool = False) -> list[dict]:
    """The tensors of a plan for `spec`; `reverse` lists outputs first and everything backwards."""
    names = {"float32": "FLOAT", "float16": "HALF", "uint8": "UINT8", "bool": "BOOL"}
    tensors = [
        {
            "name": t.name,
            "mode": mode,
            "dtype": names[str(t.dtype).removeprefix("torch.")],
            "shape": list(t.shape),
        }
        for mode, group in (("INPUT", spec.inputs), ("OUTPUT", spec.outputs))
        for t in group
    ]
    return tensors[::-1] if reverse else tensors
