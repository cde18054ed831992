"""Command bench: how fast this machine is, stage by stage, and which settings suit it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .options import engine_choice


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    bench = commands.add_parser(
        "bench",
        parents=[engine_choice()],
        help="measure this machine: peaks, each stage, the whole path, beside the loop as upstream runs it",
        description="Speeds are frames per second; ratios are to the row baseline of the same run, upstream's loop, and "
        "to the fastest eager one. Random weights with --size full, so no model is needed. Without git beside the pack, "
        "set TALKINGHEAD_COMMIT to say what was measured.",
    )
    bench.add_argument(
        "--size", choices=("embedded", "full"), help="model; default full on a card, else embedded"
    )
    bench.add_argument("--device", default="auto", help="auto (a card if there is one), cpu, cuda, cuda:1")
    bench.add_argument("--precision", metavar="LIST", help="fp32, fp16, fp8, with commas")
    bench.add_argument(
        "--batches", metavar="LIST", help="batch sizes, with commas; default 8,16,32 (quick: 4,8)"
    )
    bench.add_argument(
        "--backends",
        metavar="LIST",
        help="default eager,cuda graph,fused,fused graph, of ditto eager,fast,plain graph,cuda graph,inductor; inductor and "
        "tensorrt are built first (minutes), in a folder that goes with the run",
    )
    bench.add_argument("--frame", default="1080x1920", metavar="WxH", help="size of the finished video")
    bench.add_argument(
        "--quick", action="store_true", help="fewer batches and repeats, about a minute on a CPU"
    )
    bench.add_argument(
        "--calibrate", action="store_true", help="recommend settings and project speed by stride"
    )
    bench.add_argument(
        "--overlap",
        action="store_true",
        help="measure stages ahead of each other against one after the other instead: embedded engine, 512x512, encoder "
        "and sound included",
    )
    bench.add_argument(
        "--live",
        action="store_true",
        help="measure live rendering instead: time to the first frame, steady speed by push size, memory over time",
    )
    bench.add_argument(
        "--rest",
        action="store_true",
        help="with --live: let the mouth rest in silence, by two engines instead of one",
    )
    bench.add_argument(
        "--wardrobe",
        action="store_true",
        help="measure the wardrobe's stages instead: milliseconds a frame, and the memory of 175 frames (8 GB; quick: 24 "
        "frames)",
    )
    bench.add_argument(
        "--speech",
        action="store_true",
        help="measure speech instead: text rules, voice, mastering, memory over sentences and voice files (extra tts)",
    )
    bench.add_argument("--json", metavar="FILE", type=Path, help="write everything there as JSON too")
    bench.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    import torch

    from ..nodes.core.bench import Row, row_text, table
    from ..nodes.core.bench_video import bench_splice, splice_text
    from ..nodes.core.images import parse_size
    from ..nodes.musetalk.bench import BACKENDS, BenchOptions, run_bench

    device = torch.device(
        args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    )
    card = device.type == "cuda"
    if card and not torch.cuda.is_available():
        raise ValueError(f"device {args.device!r}: torch sees no CUDA card here; use --device cpu")
    if args.rest and not args.live:
        raise ValueError("--rest goes with --live")
    for flag in ("overlap", "calibrate"):
        if args.engine == "ditto" and getattr(args, flag):
            raise ValueError(f"--{flag} is for --engine musetalk")
    if args.wardrobe:
        from .bench_wardrobe import bench_wardrobe

        _keep(args, bench_wardrobe(args))
        return 0
    if args.speech:
        from .bench_speech import bench_speech

        _keep(args, bench_speech(args))
        return 0
    if args.overlap:
        return _bench_overlap(args, device)
    if args.live:
        from .bench_live import bench_live

        precisions = _words(args.precision) or (("fp16",) if card else ("fp32",))
        return bench_live(args, device, precisions, _numbers(args.batches))
    if args.engine == "ditto":
        return _ditto(args, device)
    options = BenchOptions(
        device,
        size=args.size or ("full" if card else "embedded"),
        precisions=_words(args.precision) or (("fp16",) if card else ("fp32",)),
        batches=_numbers(args.batches) or ((4, 8) if args.quick else (8, 16, 32)),
        backends=_words(args.backends) or BACKENDS,
        frame=parse_size(args.frame),
        seconds=0.2 if args.quick else 1.0,
    )

    facts = run_bench(options, lambda row: print(row_text(row), file=sys.stderr, flush=True))
    facts["nv12"] = bench_splice(*options.frame, rounds=9 if args.quick else 25)
    known = {field: facts[field] for field in ("machine", "peaks", "parity")}
    for name, value in known["machine"].items():
        print(f"{name}: {value}")
    for name, value in known["peaks"].items():
        print(f"copy: {value} GB/s" if name == "copy_gbps" else f"matmul {name}: {value} TFLOP/s")
    for name, value in known["parity"].items():
        print(f"{name} against fp32: cosine {value['cosine']}, PSNR {value['psnr_db']} dB")
    for name, value in facts["fp8"].items():
        print(f"fp8, {name}: {value}")
    print(f"NV12 on the CPU, {splice_text(facts['nv12'])}")
    print(table([Row(**row) for row in facts["rows"]]))
    if args.calibrate:
        _print_advice(facts["advice"])
    _keep(args, facts)
    return 0


def _ditto(args: argparse.Namespace, device) -> int:
    precisions = _words(args.precision) or (("fp16",) if device.type == "cuda" else ("fp32",))
    from .bench_ditto import bench_ditto

    _keep(args, bench_ditto(args, device, precisions, _numbers(args.batches), _words(args.backends)))
    return 0


def _bench_overlap(args: argparse.Namespace, device) -> int:
    from ..nodes.musetalk.bench_overlap import OverlapOptions, OverlapRow, overlap_table, run_overlap

    if args.size == "full":
        raise ValueError("--overlap runs the embedded engine; leave --size out")
    card = device.type == "cuda"

    def show(row: OverlapRow) -> None:
        print(f"torch threads {row.threads}: ratio {row.ratio}", file=sys.stderr, flush=True)

    options = OverlapOptions(
        device,
        precision=(_words(args.precision) or ("fp16" if card else "fp32",))[0],
        batch=(_numbers(args.batches) or (8,))[0],
        threads=(0,) if card else (0, 1),
        seconds=4 if args.quick else 60 if card else 12,
        visits=2 if args.quick else 5,
    )
    facts = run_overlap(options, show)
    for name, value in facts["machine"].items():
        print(f"{name}: {value}")
    print(overlap_table(facts))
    _keep(args, facts)
    return 0


def _keep(args: argparse.Namespace, facts: dict) -> None:
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _print_advice(advice: dict | None) -> None:
    from ..nodes.core.bench import HEADROOM, TARGET_FPS

    if advice is None:
        print("no recommendation: no whole path could be measured")
        return
    print(
        f"recommended: backend {advice['backend']}, precision {advice['precision']}, batch {advice['batch']}"
    )
    for stride, fps in advice["fps"].items():
        every = "every frame" if stride == 1 else f"every {stride}. frame"
        print(f"stride {stride} (network on {every}): {fps:.1f} fps, {fps / 25:.1f} x real time at 25 fps")
    enough = advice["fps"][advice["stride"]] >= TARGET_FPS * HEADROOM
    what = (
        f"the smallest with {TARGET_FPS * HEADROOM:g} fps or more"
        if enough
        else "the fastest, yet with little to spare"
    )
    print(f"recommended stride: {advice['stride']}, {what} (25 fps and a quarter for encoder and sound)")


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError:
        raise ValueError(f"--batches {text!r} is no list of whole numbers; write for example 8,16") from None
