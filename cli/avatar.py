"""Command avatar: build, list and verify packets."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import avatar_roots, parse_size_option, print_facts, progress_to_stderr


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    avatar = commands.add_parser("avatar", help="build, list and verify avatars").add_subparsers(
        required=True
    )
    build = avatar.add_parser("build", parents=[common], help="make an avatar from a picture or clip")
    build.add_argument("source", type=Path)
    build.add_argument("--id", required=True, help="name of the avatar")
    build.add_argument("--box", required=True, help="face box x1,y1,x2,y2 in pixels; half height at the nose")
    build.add_argument("--size", metavar="WxH", help="scale the pictures to fill this size first")
    build.add_argument("--fps", help="rate of the avatar (default: the clip's)")
    build.add_argument("--cycle", default="pingpong", choices=("loop", "pingpong"))
    build.add_argument("--max-frames", type=int, default=50)
    build.set_defaults(run=_run_build)
    listing = avatar.add_parser("list", parents=[common], help="list the avatars")
    listing.set_defaults(run=_run_list)
    verify = avatar.add_parser("verify", parents=[common], help="hash every file of avatars")
    verify.add_argument("ids", nargs="*", help="which (default: all)")
    verify.set_defaults(run=_run_verify)


def _run_build(args: argparse.Namespace) -> int:
    from ..nodes.core.frames import RunContext
    from ..nodes.core.timeline import parse_fps
    from ..nodes.musetalk.handle import MuseTalkModel
    from ..nodes.musetalk.presenters import check_new_id

    check_new_id(args.id)
    if not args.source.is_file():
        raise ValueError(f"no file {str(args.source)!r}")
    fps = parse_fps(args.fps) if args.fps else None
    packet = build_from_file(
        RunContext(progress=progress_to_stderr(args)), MuseTalkModel(), args.source, avatar_roots(args)[0], args.id,
        args.box, parse_size_option(args.size), fps, args.cycle, args.max_frames,
    )  # fmt: skip
    print_facts(args, _packet_facts(packet))
    return 0


def _run_list(args: argparse.Namespace) -> int:
    from ..nodes.core.packet import PacketError, list_packets, open_packet
    from ..nodes.musetalk.presenters import demo_presenters

    rows, bad = [], []
    for path in list_packets(avatar_roots(args)):
        try:
            rows.append(_packet_facts(open_packet(path)))
        except PacketError as e:
            bad.append(str(e))
    if args.json:
        print_facts(args, {"avatars": rows, "damaged": bad, "demos": list(demo_presenters())})
        return 0
    for row in rows:
        print("{id:24} {engine:9} {size:>10} {fps:>6} fps {frames:5} frames  {cycle}".format(**row))
    for message in bad:
        print(f"damaged: {message}")
    print(f"demos, built on first use: {', '.join(demo_presenters())}")
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


def _packet_facts(packet) -> dict:
    from ..nodes.core.timeline import fps_text

    info = packet.info
    return {
        "id": info.id,
        "engine": info.engine,
        "size": f"{info.size[0]}x{info.size[1]}",
        "fps": fps_text(info.fps),
        "frames": info.n_frames,
        "cycle": info.cycle,
        "path": str(packet.path),
    }


def build_from_file(ctx, model, file, root, avatar_id, box, size, fps, cycle, max_frames):
    from ..nodes.core.images import cover_box, parse_box
    from ..nodes.musetalk.bake import build_avatar
    from ..nodes.musetalk.source import read_source

    source = read_source(file, fps, size, max_frames, ctx)
    height, width = source.frames.shape[1:3]
    boxes = [cover_box(parse_box(box), source.size, (width, height))] * len(source.frames)
    return build_avatar(ctx, model, source.frames, boxes, root, avatar_id, source.fps, cycle, source.record)
