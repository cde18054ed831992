"""What Ditto's benches run: modules of a size, the frame they are put into, and the motion with what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core.engine import EngineOptions, StageEngine, open_engine
from ..core.engine_shelf import StageMaker
from ..core.packet_schema import CROP_SIDE
from .audio2motion import MotionSampler, MotionStream, WindowScheme
from .bench_baseline import Scene
from .condition import Condition, FaceShape
from .config import OFFICIAL, DittoConfig
from .crop import FaceBox, crop_matrices
from .lmdm import LMDMConfig
from .model import EMBEDDED_DIR, HUBERT_WIDTH, DittoModelConfig, DittoModules, load_modules
from .motion_engine import MotionEngines
from .motion_measure import StepAgreement, step_agreement
from .networks import HALF_PARTS
from .putback import from_face
from .schedule import DEFAULT_STEPS, MotionNoise
from .speech_encoder import SpeechEncoderConfig

SIZES = ("embedded", "full")
MOTION_FRAMES = 165
"""6.6 s, as the articles' figure for the motion has it."""

RANDOM = DittoModelConfig("random", OFFICIAL, LMDMConfig(), SpeechEncoderConfig(width=HUBERT_WIDTH))
"""The official sizes. HuBERT exists only as a file: a small encoder that gives rows as wide is in its place, and what HuBERT
costs is in no figure."""


def made_modules(
    size: str, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 0
) -> DittoModules:
    """The embedded model, or the official sizes with random weights ("full"), on `device`; the same for one seed."""
    if size == "embedded":
        return load_modules(EMBEDDED_DIR, dtype).to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        modules = DittoModules(RANDOM)
    if dtype != torch.float32:
        for part in HALF_PARTS:
            # Those that a file would hold: grids are float32 always.
            for value in getattr(modules.nets, part).state_dict(keep_vars=True).values():
                if value.is_floating_point():
                    value.data = value.data.to(dtype)
    return modules.eval().requires_grad_(False)


def crop_of(frame: tuple[int, int]) -> np.ndarray:
    """From the crop to a frame of this width and height, (3, 3): a face a third as wide, the crop 2.3 times that."""
    width, height = frame
    side = 2.3 * (min(width, height) // 3)
    return crop_matrices(FaceBox((width / 2, height / 2.5), (side, side), 0.05), CROP_SIDE).c2o


def scene_of(config: DittoConfig, frame: tuple[int, int], seed: int = 0) -> Scene:
    """A noise frame of width x height with a face in it."""
    rng, (width, height), warp = np.random.default_rng(seed), frame, config.warp
    points = 0.3 * rng.standard_normal((1, warp.n_keypoints, 3)).astype(np.float32)
    cells = warp.volume_depth, warp.volume_size, warp.volume_size
    return Scene(
        rng.integers(0, 256, (height, width, 3), dtype=np.uint8),
        from_face(crop_of(frame), config.render_size),
        rng.standard_normal((1, warp.volume_channels, *cells)).astype(np.float32),
        points,
        points + 0.05 * rng.standard_normal(points.shape).astype(np.float32),
    )


def motion_calls(modules: DittoModules, device: torch.device) -> dict[str, Callable[[], object] | str]:
    """Return by backend what makes MOTION_FRAMES frames of motion in DEFAULT_STEPS steps, or why it cannot."""
    calls: dict[str, Callable[[], object] | str] = {"eager": partial(_motion, modules, modules.lmdm, device)}
    if device.type != "cuda":
        calls["cuda graph"] = f"needs a CUDA device, this is {device.type}"
        return calls

    def opened(stage: StageMaker) -> StageEngine:
        return open_engine(*stage(modules.lmdm, device), EngineOptions("cuda graph", 1), device)

    calls["cuda graph"] = partial(_motion, modules, MotionEngines(opened, device), device)
    return calls


def _motion(modules: DittoModules, network, device: torch.device) -> Tensor:
    condition, source, speech = _conditions(modules.config)
    noise = MotionNoise(0, DEFAULT_STEPS, 1.0, (WindowScheme().window, source.numel()))
    stream = MotionStream(MotionSampler(network, noise), condition, WindowScheme(), source)
    return torch.cat([stream.feed(speech), stream.finish()])


def motion_agreement(modules: DittoModules, seed: int = 0) -> StepAgreement:
    """4 steps against 50 of the same noise; of random weights it says nothing about trained ones."""
    condition, source, speech = _conditions(modules.config)
    return step_agreement(modules.lmdm, condition, source, speech, seed=seed)


def _conditions(config: DittoModelConfig) -> tuple[Condition, Tensor, Tensor]:
    """Eyes and key points of a still, its motion vector, and rows of speech: random, the same in every call."""
    generator = torch.Generator().manual_seed(1)
    flat = 3 * config.nets.motion.n_keypoints

    def normal(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    face = FaceShape(normal(1, 2), normal(1, 6), normal(flat))
    return Condition(face), normal(config.lmdm.motion_dim), normal(MOTION_FRAMES, config.speech_width)
