"""`talkinghead bench --engine ditto`: warp and decode, put-back, motion and the whole path, beside upstream's loop."""

from __future__ import annotations

import argparse
import sys


def bench_ditto(
    args: argparse.Namespace,
    device,
    precisions: tuple[str, ...],
    batches: tuple[int, ...],
    backends: tuple[str, ...],
) -> dict[str, object]:
    """Run and print the bench on torch `device`; empty batches or backends are the default. Return its facts."""
    from ..nodes.core.bench import Row, row_text, table
    from ..nodes.core.images import parse_size
    from ..nodes.ditto.bench import BACKENDS, BenchOptions, run_bench

    card = device.type == "cuda"
    options = BenchOptions(
        device,
        size=args.size or ("full" if card else "embedded"),
        precisions=precisions,
        batches=batches or ((1, 2) if args.quick else (1, 8)),
        backends=backends or ((*BACKENDS, "inductor") if card else BACKENDS),
        frame=parse_size(args.frame),
        seconds=0.2 if args.quick else 1.0,
    )
    facts = run_bench(options, lambda row: print(row_text(row), file=sys.stderr, flush=True))
    for name, value in facts["machine"].items():
        print(f"{name}: {value}")
    for name, value in facts["peaks"].items():
        print(f"copy: {value} GB/s" if name == "copy_gbps" else f"matmul {name}: {value} TFLOP/s")
    for name, value in facts["parity"].items():
        print(f"{name} against fp32: cosine {value['cosine']}, PSNR {value['psnr_db']} dB")
    print(f"arithmetic of a frame: {facts['gflop']} GFLOP")
    found = facts["agreement"]
    print(
        f"{found['few']} steps of the motion against {found['many']}: cosine {found['cosine']}, MSE {found['mse']}"
    )
    print(table([Row(**row) for row in facts["rows"]]))
    return facts
