"""What the commands share: folders, progress, output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def common_options() -> argparse.ArgumentParser:
    """Return the options of every command that reads models or avatars."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--models", metavar="DIR", help="models folder (avatars live in DIR/avatars)")
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return common


def model_root(args: argparse.Namespace) -> Path:
    from ..nodes.core.models import cli_model_root

    return cli_model_root(args.models)


def avatar_roots(args: argparse.Namespace) -> list[Path]:
    return [model_root(args) / "avatars"]


def parse_size_option(text: str | None) -> tuple[int, int] | None:
    from ..nodes.core.images import parse_size

    return parse_size(text) if text else None


def progress_to_stderr(args: argparse.Namespace):
    """Return a progress callback that writes to stderr: a live line on a terminal, else every tenth."""
    live, last = sys.stderr.isatty(), [-1]

    def show(done: int, total: int) -> None:
        tenth = 10 * done // total
        if live:
            end = "\n" if done >= total else ""
            print(f"\r{done}/{total} frames", end=end, file=sys.stderr, flush=True)
        elif not args.json and tenth != last[0]:
            last[0] = tenth
            print(f"{done}/{total} frames", file=sys.stderr, flush=True)

    return show


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """Give a file beside `out` to write to, which takes the place of `out` when the block ends well.

    ValueError at once where nothing can be written: before the work, not after it.
    """
    part = out.with_name(f".part-{os.getpid()}{out.suffix}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as e:
        raise ValueError(f"{str(out)!r} cannot be written ({e.strerror or e}); choose another place") from e
    try:
        yield part
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def print_facts(args: argparse.Namespace, facts: dict) -> None:
    if args.json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        if name == "report":
            for warning in value["warnings"]:
                print(f"warning: {warning}")
        elif isinstance(value, list):
            print(f"{name}: " + ", ".join(map(str, value)))
        else:
            print(f"{name}: {value}")
