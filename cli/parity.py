"""Command parity: networks and stages against reference tensors."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    parity = commands.add_parser("parity", help="compare the networks and stages with reference tensors")
    parity.add_argument(
        "directory", type=Path, help="a folder of the form of tests/golden/musetalk or tests/golden/ditto"
    )
    parity.add_argument("--dtype", default="fp32", choices=("fp32", "fp16", "bf16"))
    parity.add_argument("--device", default="cpu")
    parity.set_defaults(run=_parity)


def _parity(args: argparse.Namespace) -> int:
    from ..nodes.core.parity_run import kind_of, run_goldens
    from ..nodes.ditto.parity import KIND as DITTO
    from ..nodes.musetalk.parity import KIND as MUSETALK

    kind = kind_of(args.directory, (MUSETALK, DITTO))
    return 1 if run_goldens(kind, args.directory, args.device, args.dtype).failed else 0
