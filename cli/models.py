"""Command models: what weights there are, fetch them, check them."""

from __future__ import annotations

import argparse
import sys

from .common import model_root, print_facts
from .options import search_roots


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    models = commands.add_parser("models", help="list, fetch and check model weights").add_subparsers(
        required=True
    )
    listing = models.add_parser("list", parents=[common], help="what there is and what is missing")
    listing.set_defaults(run=_run_list)
    download = models.add_parser(
        "download", parents=[common], help="fetch bundles, resumed and checked",
        description="HF_TOKEN is your hub token, HF_ENDPOINT a mirror, HF_HUB_OFFLINE=1 the same as --offline.",
    )  # fmt: skip
    download.add_argument("bundles", nargs="+", metavar="BUNDLE", help="names as `models list` shows them")
    download.add_argument("--offline", action="store_true", help="use no network; say what to put where")
    download.add_argument(
        "--overwrite", action="store_true", help="fetch over a file that is there and wrong"
    )
    download.set_defaults(run=_run_download)
    verify = models.add_parser("verify", parents=[common], help="hash every file that is there")
    verify.add_argument("bundles", nargs="*", metavar="BUNDLE", help="which (default: all)")
    verify.set_defaults(run=_run_verify)


def _run_list(args: argparse.Namespace) -> int:
    from ..nodes.core.download import place_of, state_of
    from ..nodes.core.model_catalog import BUNDLES, size_text, total_text
    from ..nodes.core.models import find_file, packaged_model

    root = model_root(args)
    rows = []
    for bundle in BUNDLES.values():
        for file in bundle.files:
            state, path = state_of(file, root), place_of(file, root)
            if state == "missing" and (elsewhere := find_file([file.destination], search_roots(args))):
                state, path = "found", elsewhere
            elif state == "missing" and (packaged := packaged_model(file.name)):
                state, path = "in package", packaged
            rows.append(
                {
                    "bundle": bundle.name, "file": file.name, "size": file.size, "state": state, "path": str(path),
                    "licence": file.licence,
                }
            )  # fmt: skip
    if args.json:
        print_facts(args, {"models": str(root), "files": rows})
        return 0
    name_width = max(len(row["file"]) for row in rows)
    for bundle in BUNDLES.values():
        print(f"{bundle.name}: {bundle.purpose} ({total_text(bundle.files)})")
        for row in (row for row in rows if row["bundle"] == bundle.name):
            size = size_text(row["size"])
            print(f"  {row['file']:{name_width}} {size:>12}  {row['state']:10}  {row['path']}")
    print("fetch with: talkinghead models download BUNDLE")
    return 0


def _run_download(args: argparse.Namespace) -> int:
    from ..nodes.core.download import download
    from ..nodes.core.model_catalog import find_bundles

    root = model_root(args)
    files = dict.fromkeys(file for bundle in find_bundles(args.bundles) for file in bundle.files)
    rows = []
    for file in files:
        progress = _progress(args, file.name)
        try:
            done = download(file, root, progress, overwrite=args.overwrite, offline=args.offline or None)
        except KeyboardInterrupt:
            print("\nstopped; what was fetched is kept, the same command goes on from there", file=sys.stderr)
            return 130
        rows.append({"path": str(done.path), "fetched": done.fetched, "check": done.check})
        if not args.json:
            what = "fetched" if done.fetched else "already there"
            print(f"{done.path}: {what}, {done.check} holds", flush=True)
    if args.json:
        print_facts(args, {"files": rows})
    return 0


def _run_verify(args: argparse.Namespace) -> int:
    from ..nodes.core.download import Expected, fault_of, place_of
    from ..nodes.core.model_catalog import find_bundles

    root, results = model_root(args), {}
    files = dict.fromkeys(file for bundle in find_bundles(args.bundles) for file in bundle.files)
    for file in files:
        path = place_of(file, root)
        expected = Expected(file.size, file.sha256)
        if not path.is_file():
            if args.bundles:
                results[file.destination] = "missing"
            continue
        fault = fault_of(path, expected)
        unchecked = "there; nothing is known to check it by"
        good = "ok" if file.sha256 else unchecked
        results[file.destination] = fault or good
    print_facts(args, results if results or args.json else {"models": f"none in {root}"})
    return 1 if any(not text.startswith(("ok", "there")) for text in results.values()) else 0


def _progress(args: argparse.Namespace, name: str):
    """Bytes as a live line on a terminal, else every tenth as a line."""
    from ..nodes.core.model_catalog import size_text

    live, last = sys.stderr.isatty(), [-1]

    def show(done: int, total: int | None) -> None:
        if args.json and not live:
            return
        tenth = 10 * done // total if total else -1
        text = f"{name}: {size_text(done)}" + (f" of {size_text(total)}" if total else "")
        if live:
            print(f"\r\033[K{text}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif tenth != last[0]:
            last[0] = tenth
            print(text, file=sys.stderr, flush=True)

    return show
