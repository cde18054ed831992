"""ONNX files of networks: written whole or not at all, with their weights beside them and facts in a sidecar.

`<name>.onnx` holds the graph, `<name>.onnx.data` the weights, `<name>.onnx.json` sizes, hashes and what made it.
The sidecar is written last: without one that fits, the other two are leftovers. Inputs and outputs keep the dtype
of the pipeline; the first axis is the batch, fixed or a range.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .engine_spec import first_line
from .packet_read import file_sha256

if TYPE_CHECKING:
    from .engine_spec import StageSpec, TensorSpec

FORMAT = "talkinghead-onnx"
VERSION = 1
OPSET = 18
"""TensorRT-RTX refuses opset 23's Attention; the dynamo exporter writes nothing below 18."""
OPSETS = (18, 20)
MAX_BATCH = 64
SCRATCH = ".part-export-"
STALE_SECONDS = 24 * 3600
INSTALL = "pip install onnx onnxscript"


@dataclass(frozen=True)
class BatchRange:
    """Batch sizes a graph takes, `low` to `high`; equal ones are a fixed (static) batch."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_BATCH:
            raise ValueError(
                f"batch {self} is impossible: give 1 <= first <= last <= {MAX_BATCH}, as 8 or 1..32"
            )

    def __str__(self) -> str:
        return str(self.low) if self.fixed else f"{self.low}..{self.high}"

    def __contains__(self, batch: int) -> bool:
        return self.low <= batch <= self.high

    @property
    def fixed(self) -> bool:
        return self.low == self.high

    @classmethod
    def parse(cls, text: str) -> BatchRange:
        """ "8" -> a fixed batch of 8, "1..32" -> a range. ValueError for anything else."""
        found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.strip())
        if not found:
            raise ValueError(f"batch {text!r} is no number and no range: write 8 or 1..32")
        low = int(found[1])
        return cls(low, int(found[2] or low))


@dataclass(frozen=True)
class OnnxGraph:
    """An exported graph: its file and the facts of its sidecar."""

    path: Path
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def batch(self) -> BatchRange:
        return BatchRange(*self.facts["batch"])

    @property
    def precision(self) -> str:
        return self.facts["precision"]

    @property
    def identity(self) -> dict[str, str]:
        """SHA-256 of graph and weights, by file name: what an engine built from this depends on."""
        return {name: file["sha256"] for name, file in self.facts["files"].items()}


@dataclass(frozen=True)
class ExportForm:
    """A stage as an engine file holds it.

    module: takes the inputs of `spec` in their order and returns its outputs in theirs. finish: makes the stage's own
    outputs, by name, of the file's (what engines lack: bytes, flags), with torch; None where they are the same.
    """

    module: nn.Module
    spec: StageSpec
    finish: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True)
class ExportParts:
    """A stage of which engine files hold parts, with torch between them.

    run: called with the parts by the names of their specs, and the stage's inputs by name; returns the stage's outputs. A
    part takes the inputs of its spec in their order and returns its outputs in theirs, valid until it is called again.
    """

    forms: tuple[ExportForm, ...]
    run: Callable[[Mapping[str, Callable[..., Any]], Mapping[str, Tensor]], Mapping[str, Tensor]]


def export_parts(function: Callable[..., Mapping[str, Tensor]]) -> ExportParts | None:
    """The parts that an engine stage's `export_parts()` gives; None for one that a single file can hold."""
    own = getattr(function, "export_parts", None)
    return None if own is None else own()


def export_form(spec: StageSpec, function: Callable[..., Mapping[str, Tensor]]) -> ExportForm:
    """The form of an engine stage: what its `export_form()` gives if it has one, else the function as it is."""
    own = getattr(function, "export_form", None)
    return own() if own is not None else ExportForm(_ByPosition(spec, function), spec)


class _ByPosition(nn.Module):
    def __init__(self, spec: StageSpec, function: Callable[..., Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.spec, self.function = spec, function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = {tensor.name: value for tensor, value in zip(self.spec.inputs, inputs, strict=True)}
        outputs = self.function(**named)
        return tuple(outputs[tensor.name] for tensor in self.spec.outputs)


def cpu_copy(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """The module on the CPU, in `dtype` if given: itself if it is that already, else a copy without a detour through
    the card's memory."""
    tensors = [*module.parameters(), *module.buffers()]
    fits = all(
        t.device.type == "cpu" and (dtype is None or not t.is_floating_point() or t.dtype == dtype)
        for t in tensors
    )
    if fits:
        return module
    memo: dict[int, Any] = {}
    for tensor in tensors:
        moved = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None, copy=True)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(moved, requires_grad=False) if is_parameter else moved
    return copy.deepcopy(module, memo)


def sidecar_of(path: Path) -> Path:
    return Path(path).with_name(Path(path).name + ".json")


def export_onnx(
    module: nn.Module,
    spec: StageSpec,
    path: Path,
    batch: BatchRange,
    opset: int = OPSET,
    facts: Mapping[str, Any] | None = None,
) -> OnnxGraph:
    """Write `module` as ONNX.

    Args:
        module: takes the inputs of `spec` in their order, returns its outputs (a tensor, or a tuple of them).
        spec: names, shapes without the batch, dtypes.
        path: the `.onnx` file; it and its neighbours are replaced.
        batch: fixed or a range.
        opset: 18 to 20.
        facts: what else the sidecar should say (model, its hash, precision).

    Raises:
        ImportError: no onnx or onnxscript.
        ValueError: another suffix or opset, or a module whose outputs are not those of `spec`, or that works for
            one batch size only.
        OSError: the disk is full.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"{path.name} must end in .onnx: other programs go by the name")
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise ValueError(
            f"opset {opset} is outside {OPSETS[0]}..{OPSETS[1]}; {OPSET} suits TensorRT 10 and 11"
        )
    onnx = _import_onnx()
    began = time.perf_counter()
    # Engines are opened in inference mode, whose tensors exporting cannot trace.
    with torch.inference_mode(False), torch.no_grad():
        module = cpu_copy(module).eval()
        _check_outputs(module, spec, batch)
        program = _onnx_program(module, spec, batch, opset)
    with scratch_folder(path.parent) as work:
        # The graph names its data file, so both are written under their final names.
        program.save(str(work / path.name), external_data=True)
        model = onnx.load(str(work / path.name), load_external_data=False)
        _check_graph(model, spec, batch)
        _strip_traces(model)
        onnx.save(model, str(work / path.name))
        full = {
            "format": FORMAT,
            "version": VERSION,
            "name": spec.name,
            "precision": str(spec.inputs[0].dtype).removeprefix("torch."),
            **(facts or {}),
            "batch": [batch.low, batch.high],
            "opset": opset,
            "inputs": [_facts_of(tensor) for tensor in spec.inputs],
            "outputs": [_facts_of(tensor) for tensor in spec.outputs],
            "nodes": len(model.graph.node),
            "operators": dict(sorted(Counter(node.op_type for node in model.graph.node).items())),
            "made_with": _versions(),
            "seconds": round(time.perf_counter() - began, 1),
            "files": {
                file.name: {"size": file.stat().st_size, "sha256": file_sha256(file)}
                for file in sorted(work.iterdir())
            },
        }
        _move_into_place(work, path, full)
    return OnnxGraph(path, full)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder in `parent` (made if missing) for the time of the block; those of runs that died a day ago go too."""
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(SCRATCH + "*"):
        if time.time() - old.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    work = parent / f"{SCRATCH}{uuid.uuid4().hex}"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def open_onnx(path: Path, verify: bool = False) -> OnnxGraph:
    """Read an exported graph's sidecar and check that its files are there and whole.

    Args:
        path: the `.onnx` file.
        verify: hash the files too (1.7 GB take seconds); else their sizes are compared.

    Raises:
        ValueError: no sidecar, one of another format, or a file that is missing, cut or changed; says which.
    """
    path = Path(path)
    side = sidecar_of(path)
    again = "export it again with: talkinghead export"
    try:
        facts = json.loads(side.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} has no sidecar {side.name}: it is not ours or not whole; {again}") from None
    except ValueError as error:
        raise ValueError(f"{side} is not valid JSON ({error}); {again}") from error
    if not isinstance(facts, dict) or (facts.get("format"), facts.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{side} is not a {FORMAT} file of version {VERSION}; {again}")
    for name, file in facts["files"].items():
        there = path.with_name(name)
        size = there.stat().st_size if there.is_file() else None
        if size != file["size"]:
            found = "is missing" if size is None else f"has {size} bytes instead of {file['size']}"
            raise ValueError(f"{there} {found}; {again}")
        if verify and file_sha256(there) != file["sha256"]:
            raise ValueError(f"{there} has changed since it was exported (SHA-256 differs); {again}")
    return OnnxGraph(path, facts)


def add_facts(graph: OnnxGraph, **facts: Any) -> OnnxGraph:
    """Write more facts (parity figures) into the sidecar of `graph` and return it with them."""
    full = {**graph.facts, **facts}
    _write_json(sidecar_of(graph.path), full)
    return OnnxGraph(graph.path, full)


def outputs_by_name(spec: StageSpec, result: Any) -> dict[str, Tensor]:
    """What a module returned, by the names of `spec`. ValueError if their number differs."""
    values = (result,) if isinstance(result, Tensor) else tuple(result)
    if len(values) != len(spec.outputs):
        raise ValueError(f"{spec.name} returned {len(values)} tensors, its spec names {len(spec.outputs)}")
    return {tensor.name: value for tensor, value in zip(spec.outputs, values, strict=True)}


def _onnx_program(module: nn.Module, spec: StageSpec, batch: BatchRange, opset: int):
    # Exporting specialises on an example of 1, so a range is shown 2 of them; static ones show their own size.
    example = spec.sample(batch.low if batch.fixed else 2, "cpu")
    axis = {} if batch.fixed else {0: torch.export.Dim("batch", min=batch.low, max=batch.high)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations; nothing a user could act on
        try:
            # In two steps: given the module, torch.onnx.export falls back to a FIXED batch without a word when
            # the code freezes it.
            program = torch.export.export(
                module, tuple(example.values()), dynamic_shapes=_axes(module, spec, axis), strict=False
            )
        except torch._dynamo.exc.UserError as error:
            advice = "" if batch.fixed else " Give a fixed batch."
            raise ValueError(
                f"{spec.name} cannot be exported for batch {batch}: {first_line(error)}{advice}"
            ) from error
        return torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=[tensor.name for tensor in spec.inputs],
            output_names=[tensor.name for tensor in spec.outputs],
            dynamic_shapes=None if batch.fixed else _axes(module, spec, {0: "batch"}),
        )


def _axes(module: nn.Module, spec: StageSpec, axis: Mapping[int, Any]) -> tuple:
    """`axis` for every input, as torch wants it: one more level where they are `*inputs`."""
    axes = tuple(dict(axis) for _ in spec.inputs)
    return (axes,) if isinstance(module, _ByPosition) else axes


def _check_outputs(module: nn.Module, spec: StageSpec, batch: BatchRange) -> None:
    """Run the module on fake tensors, so that a spec that lies is found before minutes of exporting."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    rows = max(batch.low, 2) if not batch.fixed else batch.low
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        inputs = [torch.empty((rows, *t.shape), dtype=t.dtype) for t in spec.inputs]
        outputs = outputs_by_name(spec, module(*inputs))
    for tensor in spec.outputs:
        got = outputs[tensor.name]
        if (tuple(got.shape), got.dtype) != ((rows, *tensor.shape), tensor.dtype):
            raise ValueError(
                f"{spec.name} gives {tensor.name} as {got.dtype} {tuple(got.shape)}, its spec says {tensor.dtype} "
                f"{(rows, *tensor.shape)}: use the spec that belongs to this module and precision"
            )


def _check_graph(model: Any, spec: StageSpec, batch: BatchRange) -> None:
    """Names, order and batch axis of the written graph."""
    for wanted, got in ((spec.inputs, model.graph.input), (spec.outputs, model.graph.output)):
        names = [value.name for value in got]
        if names != [tensor.name for tensor in wanted]:
            raise ValueError(
                f"the exporter wrote the tensors {names} for {[tensor.name for tensor in wanted]}"
            )
        for value in got:
            axis = value.type.tensor_type.shape.dim[0]
            if bool(axis.dim_param) == batch.fixed or (batch.fixed and axis.dim_value != batch.low):
                raise ValueError(
                    f"{value.name} was exported with batch {axis.dim_param or axis.dim_value}, not {batch}"
                )


def _strip_traces(model: Any) -> None:
    """Drop the exporter's notes on each node: two thirds of the file, and paths of the machine that made it."""
    del model.metadata_props[:]
    for part in (model.graph, *model.functions):
        del part.metadata_props[:]
        for node in part.node:
            del node.metadata_props[:]
            node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]


def _move_into_place(work: Path, path: Path, facts: Mapping[str, Any]) -> None:
    sidecar_of(path).unlink(missing_ok=True)
    path.with_name(path.name + ".data").unlink(missing_ok=True)
    for file in sorted(work.iterdir()):
        os.replace(file, path.with_name(file.name))
    _write_json(sidecar_of(path), facts)


def _write_json(path: Path, facts: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _facts_of(tensor: TensorSpec) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


def _import_onnx():
    try:
        import onnx
        import onnxscript  # noqa: F401  torch's exporter imports it and would name neither
    except ImportError as error:
        raise ImportError(f"ONNX export needs onnx and onnxscript ({error}): {INSTALL}") from error
    return onnx


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"torch": torch.__version__, **{name: version(name) for name in ("onnx", "onnxscript")}}
