"""Command avatar: build one or a fleet, look before building."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from . import packets
from .common import avatar_roots, print_facts, progress_to_stderr
from .options import build_options, engine_choice, model_of, model_options, plan_of, tools_of


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    avatar = commands.add_parser("avatar", help="build, list, verify, import and remove avatars")
    actions = avatar.add_subparsers(required=True, metavar="ACTION")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--size", metavar="WxH", help="scale the pictures to fill this size first")
    shared.add_argument(
        "--fps", dest="source_fps", help="rate of the avatar (default: the clip's; 25 for pictures)"
    )
    how = [common, engine_choice(), model_options(), build_options(), shared]

    build = actions.add_parser("build", parents=how, help="from a picture, a folder of pictures or a clip")
    build.add_argument("source", type=Path)
    build.add_argument("--id", help="name of the avatar (default: named by its content)")
    build.add_argument("--rebuild", action="store_true", help="build even if one of this content is there")
    build.set_defaults(run=_run_build)

    fleet = actions.add_parser("fleet", parents=how, help="one avatar for every picture and clip in a folder")
    fleet.add_argument("folder", type=Path)
    fleet.add_argument("--specific", help="only these names, with commas between")
    fleet.add_argument("--rebuild", action="store_true", help="build those that are there as well")
    fleet.add_argument("--report", type=Path, help="also write the report as JSON into this file")
    fleet.set_defaults(run=_run_fleet)

    check = actions.add_parser("check", parents=how, help="preflight: say what a build would do")
    check.add_argument("source", type=Path)
    check.add_argument("--audio", type=Path, help="speech, to see how long the video will be")
    check.add_argument("--out", type=Path, help="write a picture with the face box into this .png")
    check.set_defaults(run=_run_check)
    packets.add_actions(actions, common)


def _run_build(args: argparse.Namespace) -> int:
    from ..nodes.avatars.engines import maker_of
    from ..nodes.avatars.names import check_new_id
    from ..nodes.core.frames import RunContext

    if args.id is not None:
        check_new_id(args.id)
    ctx, model = RunContext(progress=progress_to_stderr(args)), model_of(args)
    plan = plan_of(args, model)
    source = plan.open(args.source)
    tools = tools_of(args, plan, model)
    make, root = maker_of(model).make, avatar_roots(args)[0]
    packet, new = make(ctx, model, source, plan, tools, root, args.id, args.rebuild)
    facts = {
        **packets.packet_facts(packet),
        "state": "built" if new else "kept",
        "report": ctx.report.as_dict(),
    }
    print_facts(args, facts)
    return 0


def _run_fleet(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from ..nodes.avatars.engines import maker_of
    from ..nodes.avatars.fleet import build_fleet, fleet_sources, split_names
    from ..nodes.core.frames import RunContext

    if args.report and (args.report.is_dir() or not args.report.resolve().parent.is_dir()):
        raise ValueError(f"--report {str(args.report)!r} must be a file in a folder that is there")
    names = split_names(args.specific) if args.specific is not None else []
    model, sources = model_of(args), fleet_sources(args.folder, names)
    plan = plan_of(args, model)
    tools, root, make = tools_of(args, plan, model), avatar_roots(args)[0], maker_of(model).make

    def build(ctx, avatar_id, path):
        return make(ctx, model, plan.open(path), plan, tools, root, avatar_id, args.rebuild)

    each = None if args.json else lambda item: print(item.line(), flush=True)
    report = build_fleet(RunContext(), sources, build, each)
    facts = {"summary": report.summary(), "items": [asdict(i) for i in report.items]}
    if args.report:
        part = args.report.with_name(f".part-{os.getpid()}.json")
        part.write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")
        os.replace(part, args.report)
    print(json.dumps(facts) if args.json else report.summary())
    return 1 if report.failed else 0


def _run_check(args: argparse.Namespace) -> int:
    from ..nodes.avatars.engines import maker_of
    from ..nodes.core.audio import open_audio
    from ..nodes.core.frames import RunContext

    model = model_of(args)
    plan = plan_of(args, model)
    audio = open_audio(args.audio) if args.audio else None
    tools = tools_of(args, plan, model)
    found = maker_of(model).preflight(RunContext(), args.source, model, plan, tools, audio)
    if args.out:
        packets.write_png(args.out, found.picture)
    if args.json:
        print_facts(args, {"facts": list(found.facts), "problems": list(found.problems), "box": found.box})
    else:
        print(found.text())
    return 1 if found.stops else 0
