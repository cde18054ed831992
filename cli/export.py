"""Command export: the networks as ONNX files, each compared with torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .common import model_root, print_facts
from .options import engine_choice, model_of, model_options


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    export = commands.add_parser(
        "export", parents=[common, engine_choice(), model_options()], help="write the networks as ONNX and compare them with torch",
        description="Needs: pip install onnx onnxscript onnxruntime. The official UNet takes minutes and 2 GB of disk.",
    )  # fmt: skip
    export.add_argument(
        "--graphs",
        metavar="A,B",
        help="unet, vae_decoder, vae_encoder, whisper, musetalk (default: the first four); with --engine ditto "
        "ditto_motion, ditto_decode (default: both)",
    )
    export.add_argument("--batch", default="1..32", help="one size or a range of them (default: 1..32)")
    export.add_argument("--opset", type=int, default=18, help="18 to 20 (default: 18)")
    export.add_argument("--no-check", action="store_true", help="do not compare with torch")
    export.add_argument("--out", type=Path, metavar="DIR", help="folder (default: onnx in the models folder)")
    export.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> int:
    from ..nodes.avatars.engines import export_model
    from ..nodes.core.export import BatchRange

    batch = BatchRange.parse(args.batch)
    names = tuple(n.strip() for n in args.graphs.split(",")) if args.graphs else None
    graphs = export_model(
        model_of(args),
        args.out or model_root(args) / "onnx",
        names,
        batch=batch,
        opset=args.opset,
        check=not args.no_check,
        tell=lambda text: None if args.json else print(text, flush=True),
        progress=_live if sys.stderr.isatty() else None,
    )
    accepted = all(graph.facts["parity"]["accepted"] for graph in graphs if "parity" in graph.facts)
    if args.json:
        rows = [{"path": str(graph.path), **graph.facts} for graph in graphs]
        print_facts(args, {"accepted": accepted and not args.no_check, "graphs": rows})
    return 0 if accepted else 1


def _live(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r\033[Kcomparing: {done}/{total} passes", end=end, file=sys.stderr, flush=True)
