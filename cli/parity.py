"""Command parity: networks and stages against reference tensors."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    parity = commands.add_parser("parity", help="compare the networks and stages with reference tensors")
    parity.add_argument("directory", type=Path, help="a folder of the form of tests/golden/musetalk")
    parity.add_argument("--dtype", default="fp32", choices=("fp32", "fp16", "bf16"))
    parity.add_argument("--device", default="cpu")
    parity.set_defaults(run=_parity)


def _parity(args: argparse.Namespace) -> int:
    from ..nodes.musetalk.parity import run_parity

    return 1 if run_parity(args.directory, args.device, args.dtype).failed else 0
