"""Building the engine of a model ahead of its first use, and how like fp32 its results are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from .engine_cache import EngineCache
from .engine_spec import compare
from .stage_runner import PreciseHandle, exact_twin

if TYPE_CHECKING:
    from .engine import StageEngine
    from .engine_shelf import StageMaker
    from .frames import RunContext

PARITY_ROWS_SEED = 1


def build_engine(
    ctx: RunContext,
    model: PreciseHandle,
    stage: StageMaker,
    batch: int,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, object]:
    """Build, or find built, the engine of `model.backend` (auto: the best one), and measure it against fp32.

    Args:
        stage: of the model; it gives uint8 crops.

    Returns:
        backend, batch, parity, memory, and the names under which it is kept on disk.

    Raises:
        ValueError: the backend that was asked for by name cannot be had; the message says why.
    """
    tell = progress or (lambda done, total: None)
    tell(0, 2)
    engine = ctx.engine(model, stage, batch, build=True)
    tell(1, 2)
    if model.backend not in ("auto", engine.backend):
        why = engine.skipped.get(model.backend, "unknown")
        raise ValueError(f"backend {model.backend} cannot be built here: {why}")
    facts: dict[str, object] = {"backend": engine.backend, "batch": engine.batch}
    facts["memory_mb"] = engine.memory_bytes >> 20
    ctx.check_cancelled()
    facts["parity"] = measure_parity(ctx, model, stage, engine)
    tell(2, 2)
    if engine.cached:
        facts["name"] = ", ".join(engine.cached)
        cache = EngineCache(ctx.engine_cache)
        for name in engine.cached:
            cache.update(name, parity=facts["parity"], memory_bytes=engine.memory_bytes)
    return facts


def measure_parity(
    ctx: RunContext, model: PreciseHandle, stage: StageMaker, engine: StageEngine
) -> dict[str, float]:
    """Compare an engine with fp32 torch on the same seeded inputs, one row each another, one batch.

    Returns:
        cosine and psnr_db over the uint8 crops, and rows.
    """
    given = engine.spec.sample(engine.batch, ctx.device, PARITY_ROWS_SEED)
    got = engine(**given)["crops"].cpu()
    reference = ctx.load(exact_twin(model))
    _, function = stage(reference, torch.device(ctx.device))
    wanted = []
    with torch.inference_mode(), full_fp32():
        for row in range(engine.batch):
            rows = {k: v[row : row + 1].float() for k, v in given.items()}
            wanted.append(function(**rows)["crops"].cpu())
    likeness = compare(got, torch.cat(wanted))
    decibel = min(likeness.psnr_db, 999.0)  # JSON has no infinity
    return {"cosine": round(likeness.cosine, 7), "psnr_db": round(decibel, 2), "rows": engine.batch}


@contextmanager
def full_fp32() -> Iterator[None]:
    """Without TF32, which cuDNN takes for float32 convolutions by default: 10 bits of mantissa, as fp16."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before
