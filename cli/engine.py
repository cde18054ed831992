"""Command engine: what runs the networks on this machine; build, list, check, delete."""

from __future__ import annotations

import argparse

from .common import model_root, print_facts
from .options import device_of, engine_choice, engine_options, model_of, model_options


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    engine = commands.add_parser("engine", help="build, list, check and delete engines").add_subparsers(
        required=True
    )
    how = [common, engine_choice(), model_options(), engine_options()]
    build = engine.add_parser(
        "build",
        parents=how,
        help="build the engine of a model, measured against fp32; minutes the first time",
    )
    build.add_argument(
        "--batch", type=int, default=8, help="frames of one pass; render with the same (default 8)"
    )
    build.set_defaults(run=_run_build)
    listing = engine.add_parser("list", parents=[common], help="what is built, for which machine")
    listing.set_defaults(run=_run_list, device="auto", hashes=False)
    verify = engine.add_parser("verify", parents=[common], help="the same, with every file read and checked")
    verify.set_defaults(run=_run_list, device="auto", hashes=True)
    clear = engine.add_parser("clear", parents=[common], help="delete built engines")
    clear.add_argument(
        "names", nargs="*", metavar="NAME", help="which, as `engine list` names them (default: all)"
    )
    clear.set_defaults(run=_run_clear)


def _run_build(args: argparse.Namespace) -> int:
    from ..nodes.avatars.engines import build_engine
    from ..nodes.core.frames import RunContext

    ctx = RunContext(device_of(args), engine_cache=model_root(args) / "engines")
    facts = build_engine(ctx, model_of(args), args.batch)
    if not args.json:
        for name, value in ctx.report.facts.items():
            print(f"{name}: {value}")
    print_facts(args, {**facts, "report": ctx.report.as_dict()})
    return 0


def _run_list(args: argparse.Namespace) -> int:
    import torch

    from ..nodes.core.engine_report import describe_engines, row_text

    folder = model_root(args) / "engines"
    rows = describe_engines(folder, torch.device(device_of(args)), args.hashes)
    if args.json:
        print_facts(args, {"engines": str(folder), "built": rows})
    else:
        print("\n".join(map(row_text, rows)) or f"no built engines in {folder}")
    return 1 if any(row["state"].startswith("damaged") for row in rows) and args.hashes else 0


def _run_clear(args: argparse.Namespace) -> int:
    from ..nodes.core.engine_cache import EngineCache

    deleted, size = EngineCache(model_root(args) / "engines").clear(args.names or None)
    print_facts(args, {"deleted": deleted, "bytes": size})
    return 0
