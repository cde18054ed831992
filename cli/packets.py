"""Command avatar, on packets that are there: list, verify, preview, clear; import of legacy ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import avatar_roots, print_facts
from .options import search_roots


def add_actions(actions, common: argparse.ArgumentParser) -> None:
    listing = actions.add_parser("list", parents=[common], help="list the avatars")
    listing.set_defaults(run=_run_list)
    verify = actions.add_parser("verify", parents=[common], help="hash every file of avatars")
    verify.add_argument("ids", nargs="*", help="which (default: all)")
    verify.set_defaults(run=_run_verify)
    preview = actions.add_parser("preview", parents=[common], help="a picture with box, mask and landmarks")
    preview.add_argument("id")
    preview.add_argument("--frame", type=int, default=0)
    preview.add_argument("--out", type=Path, required=True, help="a .png file")
    preview.set_defaults(run=_run_preview)
    clear = actions.add_parser("clear", parents=[common], help="remove avatars")
    which = clear.add_mutually_exclusive_group(required=True)
    which.add_argument("ids", nargs="*", default=[], help="which")
    which.add_argument("--auto", action="store_true", help="those named by their content, made just in time")
    which.add_argument("--all", action="store_true", help="every one in the first avatars folder")
    clear.set_defaults(run=_run_clear)
    legacy = actions.add_parser(
        "import", parents=[common], help="take over a legacy or upstream avatar folder"
    )
    legacy.add_argument("folder", type=Path)
    legacy.add_argument("--id", required=True, help="name of the avatar")
    legacy.add_argument("--frames", type=Path, help="picture, clip or folder, where the packet has no frames")
    legacy.add_argument(
        "--fps", help="rate of the avatar (default: what the folder or --frames says, else 25)"
    )
    legacy.set_defaults(run=_run_import)


def packet_facts(packet) -> dict:
    """Return what a listing says of a packet."""
    from ..nodes.core.packet import PREVIEW, packet_size
    from ..nodes.core.timeline import fps_text

    info, thumbnail = packet.info, packet.path / PREVIEW
    return {
        "id": info.id,
        "engine": info.engine,
        "size": f"{info.size[0]}x{info.size[1]}",
        "fps": fps_text(info.fps),
        "frames": info.n_frames,
        "cycle": info.cycle,
        "megabytes": round(packet_size(packet) / 2**20, 1),
        "source": info.source.get("name"),
        "thumbnail": str(thumbnail) if thumbnail.is_file() else None,
        "path": str(packet.path),
    }


def write_png(path: Path, picture) -> None:
    """Write uint8 (H,W,3) RGB; the bytes go through Python, so that paths in any script work."""
    import cv2

    if path.suffix.lower() != ".png":
        raise ValueError(f"--out {str(path)!r} must end in .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", picture[..., ::-1])[1].tobytes())


def _run_list(args: argparse.Namespace) -> int:
    from ..nodes.avatars.names import demo_ids
    from ..nodes.core.packet import PacketError, list_packets, open_packet

    rows, bad = [], []
    for path in list_packets(avatar_roots(args)):
        try:
            rows.append(packet_facts(open_packet(path)))
        except PacketError as e:
            bad.append(str(e))
    if args.json:
        print_facts(args, {"avatars": rows, "damaged": bad, "demos": list(demo_ids())})
        return 0
    for row in rows:
        print(
            "{id:24} {engine:9} {size:>10} {fps:>6} fps {frames:5} frames  {cycle:8} {megabytes:8.1f} MB".format(
                **row
            )
        )
    for message in bad:
        print(f"damaged: {message}")
    print(f"demos, built on first use: {', '.join(demo_ids())}")
    return 0


def _run_verify(args: argparse.Namespace) -> int:
    from ..nodes.core.packet import PacketError, find_packet, list_packets, verify_packet

    roots = avatar_roots(args)
    paths = [find_packet(i, roots) for i in args.ids] if args.ids else list_packets(roots)
    results = {}
    for path in paths:
        try:
            verify_packet(path)
            results[path.name] = "ok"
        except PacketError as e:
            results[path.name] = str(e)
    print_facts(args, results if results or args.json else {"avatars": "none built yet"})
    return 1 if any(v != "ok" for v in results.values()) else 0


def _run_preview(args: argparse.Namespace) -> int:
    from ..nodes.avatars.presenters import resolve_avatar
    from ..nodes.avatars.preview import avatar_overlay
    from ..nodes.core.frames import RunContext

    avatar = resolve_avatar(RunContext(), args.id, avatar_roots(args))
    write_png(args.out, avatar_overlay(avatar, args.frame)[0])
    print_facts(args, {"path": str(args.out.resolve())})
    return 0


def _run_clear(args: argparse.Namespace) -> int:
    from ..nodes.avatars.names import AUTO_ID
    from ..nodes.core.packet import delete_packet, find_packet, list_packets

    roots = avatar_roots(args)
    if args.ids:
        paths = [find_packet(i, roots) for i in args.ids]
    else:
        paths = [p for p in list_packets(roots[:1]) if args.all or AUTO_ID.fullmatch(p.name)]
    removed, kept = [], []
    for path in paths:
        try:
            delete_packet(path)
            removed.append(path.name)
        except (ValueError, OSError) as e:
            kept.append(str(e))
    print_facts(args, {"removed": removed, **({"not removed": kept} if kept else {})})
    return 1 if kept else 0


def _run_import(args: argparse.Namespace) -> int:
    from ..nodes.avatars.names import check_new_id
    from ..nodes.avatars.take_over import take_over
    from ..nodes.core.timeline import parse_fps

    check_new_id(args.id)
    fps = parse_fps(args.fps) if args.fps else None
    packet, notes = take_over(
        args.folder, avatar_roots(args)[0], args.id, args.frames, fps, search_roots(args)
    )
    facts = {**packet_facts(packet), "report": {"warnings": list(notes)}}
    print_facts(args, facts)
    return 0
