"""Every Triton kernel beside its meaning in torch: on a card, or on the CPU by Triton's own interpreter.

Run as a program it does the latter in a process of its own, for TRITON_INTERPRET must be set before the import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

CANNOT = 77
"""Exit code: no interpreter here; the reason is on stdout."""


def close(name: str, got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape, f"{name}: {got.shape} instead of {wanted.shape}"
    assert got.dtype == wanted.dtype, f"{name}: {got.dtype} instead of {wanted.dtype}"
    got, wanted = got.float().cpu(), wanted.float().cpu()
    assert got.isfinite().all(), f"{name}: not everything was written"
    error, size = float((got - wanted).abs().max()), float(wanted.abs().max())
    assert error <= tolerance * max(size, 1.0), f"{name}: off by {error} of {size}"


def pairs(
    kernels, device: str, dtype: torch.dtype, height: int, width: int, channels: int
) -> Iterator[tuple]:
    """Yield (name, by the kernel, by torch) of every step, on random rows of this shape."""
    from talkinghead.nodes.core.rows import Grid, LinearWeight, Norm, TorchOps

    torch.manual_seed(height * channels)
    reference, grid = TorchOps(), Grid(2, height, width)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(device, dtype)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(device)

    def both(name: str, *arguments):
        got, wanted = (getattr(ops, name)(*arguments) for ops in (kernels, reference))
        for part, (a, b) in enumerate(zip(flat(got), flat(wanted), strict=True)):
            yield f"{name} {part} {height}x{width}x{channels}", a, b

    x, y = random(grid.rows, channels) + 3, random(grid.rows, channels)
    norm, bias = Norm(floats(channels), floats(channels), 4, 1e-6), floats(channels)
    sums = reference.sums(x, grid)
    yield from both("sums", x, grid)
    yield from both("scale_shift", sums, norm, bias, grid)
    scale, shift = reference.scale_shift(sums, norm, bias, grid)
    yield from both("apply", x, scale, shift, grid, True)
    yield from both("apply", x, scale, shift, grid, False)
    if device != "cpu":
        yield from both("apply", x, scale, shift, grid, True, 0.05)
        yield from both("quantise", x, 0.05)
    yield from both("add", x, bias, y, grid)
    yield from both("concat", x, random(grid.rows, 2 * channels), grid)
    phases = random(2, height // 2 + 1, width // 2 + 1, 4, channels)
    yield from both("shuffle", phases, bias, grid)
    weight = torch.zeros(channels, 32)
    weight[:, :27] = torch.randn(channels, 27) / 20
    last = (weight.to(device, dtype), floats(3), grid)
    yield from both("last_conv", x, scale, shift, *last, False)
    for name, a, b in both("last_conv", x, scale, shift, *last, True):
        # A rounding that falls the other way is one level.
        yield name + " pixels", a.float() / 255, b.float() / 255
    wide = random(7, 2 * channels)
    yield from both("geglu", wide)
    layer = nn.LayerNorm(channels).to(device, dtype).requires_grad_(False)
    yield from both("add_norm", x, y, layer)
    yield from both("add_norm", x, None, layer)
    if device != "cpu":
        yield from both("add_norm", x, y, layer, 0.05)
        if channels % 16 == 0:
            wide = LinearWeight.of(random(32, channels), random(32)).quantised(0.05)
            yield from both("linear", reference.quantise(x, 0.05), wide)


def flat(result) -> list[torch.Tensor]:
    parts = result if isinstance(result, tuple) else (result,)
    out = []
    for part in parts:
        if part is None:
            continue
        out += [part] if isinstance(part, torch.Tensor) else [part.mean, part.m2]
    return out


def check_kernels(device: str, dtype: torch.dtype, shapes: list[tuple[int, int, int]]) -> int:
    from talkinghead.nodes.core.kernel_ops import TritonOps

    kernels, done = TritonOps(torch.device(device)), 0
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    for shape in shapes:
        for name, got, wanted in pairs(kernels, device, dtype, *shape):
            # Sums of squares grow with the rows: relative to themselves.
            # A rounding to e4m3 that falls the other way is an eighth of the number.
            coarse = got.dtype == torch.float8_e4m3fn
            close(name, got, wanted, 0.13 if coarse else 5e-3 if "pixels" in name else tolerance)
            done += 1
    return done


CONVOLUTIONS = ((2, 256, 256, 128, 128), (3, 6, 128, 128, 192), (1, 128, 128, 512, 256))
"""Batch, height, width, channels in and out."""


def check_convolutions(device: str, dtype: torch.dtype) -> int:
    """The e4m3 convolutions beside torch's on the same stored numbers; statistics merged over each picture."""
    from talkinghead.nodes.core.kernel_ops import TritonOps
    from talkinghead.nodes.core.rows import ConvWeight, Grid, TorchOps

    torch.manual_seed(0)
    kernels, reference, done = TritonOps(torch.device(device)), TorchOps(), 0
    # Fast accumulation of e4m3 products keeps about 14 bits; bf16 stores 8.
    tolerance = 1e-2 if dtype == torch.float16 else 2e-2
    for batch, height, width, inputs, outputs in CONVOLUTIONS:
        grid, step = Grid(batch, height, width), 4 / 448
        x = kernels.quantise(torch.randn(grid.rows, inputs).to(device, dtype), step)
        weight = (torch.randn(outputs, inputs, 3, 3) / (9 * inputs) ** 0.5).to(device, dtype)
        plain, twice = (make(weight).quantised(step) for make in (ConvWeight.of, ConvWeight.doubling_of))
        bias, skip = torch.randn(outputs).to(device), torch.randn(grid.rows, outputs).to(device, dtype)
        for name, given in (
            ("conv_sums", (x, plain, grid)),
            ("conv_add", (x, plain, bias, skip, grid)),
            ("conv_double", (x, twice, bias, grid)),
        ):
            assert kernels._own(given[1], grid) is not None, f"{name} {grid}: the kernel does not take it"
            (got, sums), (wanted, right) = (getattr(ops, name)(*given) for ops in (kernels, reference))
            close(f"{name} {grid}", got, wanted, tolerance)
            for what, a, b in zip(("mean", "spread"), merged(sums), merged(right), strict=True):
                close(f"{name} {grid} {what}", a, b, tolerance)
            done += 3
    return done


def merged(sums) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each picture's channels; every tile covers 128 rows here."""
    mean = sums.mean.mean(1)
    return mean, (sums.m2.sum(1) / 128 + (sums.mean - mean[:, None]).square().sum(1)) / sums.mean.shape[1]


def scene(count: int = 5):
    """Frames, boxes (one leaves the frame), crops, masks and generated crops, smooth enough to tell errors apart."""
    import cv2

    from talkinghead.nodes.core.blend import crop_geometry, lower_face_mask

    rng = np.random.default_rng(3)
    noise = [rng.integers(0, 256, (96, 120, 3), dtype=np.uint8) for _ in range(4)]
    frames = [cv2.GaussianBlur(picture, (0, 0), 2) for picture in noise]
    boxes = [(20, 10, 71, 70), (33, 21, 90, 88), (-7, 30, 50, 101), (80, 5, 127, 60)]
    crops = [crop_geometry(box) for box in boxes]
    masks = [lower_face_mask(crop) for crop in crops]
    faces = [
        cv2.GaussianBlur(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), (0, 0), 1) for _ in range(count)
    ]
    return frames, boxes, crops, masks, np.stack(faces)


def check_composite(device: str) -> None:
    from talkinghead.nodes.core import device_composite

    *parts, faces = scene()
    plates = device_composite.make_plates(*parts, "bt709").to(device)
    index = torch.tensor([0, 1, 2, 3, 1], device=device)
    usable = torch.tensor([True, True, True, True, False], device=device)
    given = torch.from_numpy(faces).to(device), plates, index, usable
    got, wanted = device_composite._blend_triton(*given).int(), device_composite._blend_torch(*given).int()
    assert (got - wanted).abs().max() <= 1
    assert (got != wanted).float().mean() < 1e-3
    assert torch.equal(got[4], plates.nv12[1].int())


if __name__ == "__main__":
    try:
        import triton  # noqa: F401
    except ImportError:
        print("the triton package is not installed")
        sys.exit(CANNOT)
    from triton.runtime.errors import InterpreterError

    try:
        print(check_kernels("cpu", torch.float16, [(4, 4, 24)]), "comparisons")
        check_composite("cpu")
    except InterpreterError as e:
        if "0-dimensional" in str(e):
            print(f"this Triton's interpreter does not work with NumPy {np.__version__}")
            sys.exit(CANNOT)
        raise
