"""The command line: whatever a node does, without a server.

Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from . import avatar, bench, engine, export, models, parity, render, speak, wardrobe
from .common import common_options


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(argv)
    if "torch" not in sys.modules:
        # Encoder and network share the cores. Spinning OpenMP threads then wait for each other: on two busy
        # cores a frame took 870 ms instead of 97.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            if number := getattr(signal, name, None):
                signal.signal(number, lambda signum, _: sys.exit(128 + signum))
    except ValueError:
        pass  # not the main thread: a test or an embedding program handles its own signals
    for stream in (sys.stdout, sys.stderr):
        # A path the terminal cannot show must not fail a video that is done.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone; the work is done. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stopped; no unfinished file was left behind", file=sys.stderr)
        return 130
    except (ValueError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except (RuntimeError, ImportError, MemoryError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="talkinghead", description="Speech in, a talking presenter out.")
    commands = p.add_subparsers(required=True, metavar="COMMAND")
    common = common_options()
    for module in (render, speak, avatar, wardrobe, engine, bench, parity, models, export):
        module.add_commands(commands, common)
    return p
