"""Ditto's rendering as engine stages: one for torch backends, and the parts that engine files can hold.

`ditto` is volume and key points to face in one function. TensorRT and ONNX below opset 20 lack 5-D grid_sample, so
for them it is four steps: gather and sample with torch, `ditto_motion` and `ditto_decode` as graphs between.
Volumes, maps and faces have the dtype of the weights; key points, ways and deformations are float32.

Pictures leave the stage as uint8, rounded. Upstream keeps floats until the put-back; there they are warped, blended and cut off
to whole levels, so a rounded face moves a frame by one level at most, up or down alike, and every consumer of the stream
has the same face: RGB, NV12, and whoever looks at the crops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..core.engine_spec import EngineSkipped, StageFunction, StageSpec, TensorSpec
from ..core.export import ExportForm, ExportParts
from .fast import FastNets
from .model import DittoModules
from .networks import DittoNets
from .warp import sample_volume

STAGE = "ditto"
GRAPHS = ("ditto_motion", "ditto_decode")
"""The convolutions of a frame; what is left between them is grid_sample."""


class FaceStage(nn.Module):
    """volume (B, C, D, h, w), kp_source and kp_driving (B, K, 3) -> crops uint8 (B, S, S, 3), finite bool (B,).

    A crop with values that are no numbers has 0 or the end of the range there.
    """

    def __init__(self, nets: DittoNets) -> None:
        super().__init__()
        self.nets = nets

    def forward(self, volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> dict[str, Tensor]:
        return as_crops(self.nets.decoder(self.nets.warp(volume, kp_source, kp_driving)))

    def fast_form(self) -> tuple[StageFunction | None, str | None]:
        """The same on folded and joined weights, for the cuda graph backend; see `fast.py`. Never refused."""
        fast = FastNets(self.nets)

        def stage(volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> dict[str, Tensor]:
            return as_crops(fast(volume, kp_source, kp_driving))

        return stage, None

    def export_form(self) -> ExportForm:
        """There is none: raises EngineSkipped."""
        raise EngineSkipped(
            f"5-D grid_sample has no layer there; {' and '.join(GRAPHS)} hold what engines can do of a frame"
        )

    def export_parts(self) -> ExportParts:
        """The two graphs that TensorRT gets, with the sampling between them by torch."""

        def run(parts: Mapping[str, Callable], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return render_by_parts(self.nets, *(parts[name] for name in GRAPHS), **inputs)

        return ExportParts(tuple(exportable(self.nets, name) for name in GRAPHS), run)


class MotionGraph(nn.Module):
    """maps (B, M, D, h, w), ways (B, K + 1, 3) -> deformation (B, D, h, w, 3), occlusion (B, 1, h, w)."""

    def __init__(self, nets: DittoNets) -> None:
        super().__init__()
        self.dense = nets.warp.dense_motion_network

    def forward(self, maps: Tensor, ways: Tensor) -> tuple[Tensor, Tensor]:
        return self.dense.estimate(maps, ways)


class DecodeGraph(nn.Module):
    """warped (B, C, D, h, w), occlusion (B, 1, h, w) -> faces (B, 3, S, S), not checked."""

    def __init__(self, nets: DittoNets) -> None:
        super().__init__()
        self.warp, self.decoder = nets.warp, nets.decoder

    def forward(self, warped: Tensor, occlusion: Tensor) -> Tensor:
        return self.decoder(self.warp.project(warped, occlusion))


def as_crops(faces: Tensor) -> dict[str, Tensor]:
    """Return faces (B, 3, S, S) in 0..1 as crops, halves rounded to even, and whether all values of each were numbers."""
    finite = faces.isfinite().flatten(1).all(1)
    levels = faces.float().nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
    return {"crops": levels.permute(0, 2, 3, 1).contiguous(), "finite": finite}


def ditto_stage(modules: DittoModules, device: torch.device) -> tuple[StageSpec, FaceStage]:
    """Return what an engine needs of the model's picture networks, which lie on `device`."""
    return ditto_spec(modules.nets), FaceStage(modules.nets)


def ditto_spec(nets: DittoNets) -> StageSpec:
    """Names, shapes and dtypes of the stage for the config and precision of `nets`."""
    tensors = _tensors(nets)
    inputs = (tensors["volume"], tensors["kp_source"], tensors["kp_driving"])
    side = nets.config.render_size
    crops = TensorSpec("crops", (side, side, 3), torch.uint8)
    return StageSpec(STAGE, inputs, (crops, TensorSpec("finite", (), torch.bool)))


def exportable(nets: DittoNets, name: str) -> ExportForm:
    """One of GRAPHS of these networks, sharing their weights. ValueError for another name."""
    made: dict[str, tuple[Callable[[DittoNets], nn.Module], tuple[str, ...], tuple[str, ...]]] = {
        "ditto_motion": (MotionGraph, ("maps", "ways"), ("deformation", "occlusion")),
        "ditto_decode": (DecodeGraph, ("warped", "occlusion"), ("faces",)),
    }
    if name not in made:
        raise ValueError(f"graph {name!r} is unknown; there are {', '.join(GRAPHS)}")
    make, inputs, outputs = made[name]
    tensors = _tensors(nets)
    spec = StageSpec(name, tuple(tensors[n] for n in inputs), tuple(tensors[n] for n in outputs))
    return ExportForm(make(nets).eval().requires_grad_(False), spec)


def render_by_parts(
    nets: DittoNets,
    motion: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    decode: Callable[[Tensor, Tensor], Tensor],
    volume: Tensor,
    kp_source: Tensor,
    kp_driving: Tensor,
) -> dict[str, Tensor]:
    """The stage `ditto` with its convolutions done by others: `motion` and `decode` behave as GRAPHS say."""
    maps, ways = nets.warp.dense_motion_network.gather(volume, kp_driving, kp_source)
    deformation, occlusion = motion(maps, ways)
    return as_crops(decode(sample_volume(volume, deformation), occlusion))


def _tensors(nets: DittoNets) -> dict[str, TensorSpec]:
    cfg, dtype = nets.config.warp, nets.weights_dtype
    cells = (cfg.volume_depth, cfg.volume_size, cfg.volume_size)
    side = nets.config.render_size
    shapes = {
        "volume": (cfg.volume_channels, *cells),
        "warped": (cfg.volume_channels, *cells),
        "maps": (cfg.hourglass_in, *cells),
        "occlusion": (1, *cells[1:]),
        "faces": (3, side, side),
    }
    exact = {
        "kp_source": (cfg.n_keypoints, 3),
        "kp_driving": (cfg.n_keypoints, 3),
        "ways": (cfg.n_motions, 3),
        "deformation": (*cells, 3),
    }
    return {
        **{name: TensorSpec(name, shape, dtype) for name, shape in shapes.items()},
        **{name: TensorSpec(name, shape, torch.float32) for name, shape in exact.items()},
    }
