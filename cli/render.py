"""Commands demo and render."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .common import avatar_roots, model_root, parse_size_option, print_facts, progress_to_stderr
from .motion import check_motion_options, motion_of, motion_options
from .options import (
    build_options,
    device_of,
    engine_choice,
    engine_options,
    given_build_options,
    model_of,
    model_options,
    plan_of,
    tools_of,
)
from .speech import DEMO_TEXT, sound_of, speech_options, text_options

DEMO_AVATARS = {"musetalk": "demo_loop", "ditto": "demo"}
"""Of Ditto a still: a clip would keep its own head."""
_TOLD = (
    "language",
    "changed",
    "after mastering",
    "stride mix",
    "key frames",
    "frames at rest",
    "viseme cache",
)
"""Facts of the run's report that are shown without --json too."""


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--fps", default="25", help="N, N/D or 29.97, 23.976, 59.94 (default 25)")
    out.add_argument("--size", metavar="WxH", help="size of the video (default: the avatar's)")
    out.add_argument(
        "--codec",
        default="auto",
        help="auto, h264_nvenc, libx264, hevc_nvenc, libx265, av1_nvenc or libsvtav1",
    )
    out.add_argument("--quality", default="balanced", help="draft, balanced or high")
    out.add_argument("--double-fps", action="store_true", help="twice the frame rate, by optical flow")
    out.add_argument("--seam", default="feather", help="feather, none or colour match (default feather)")
    out.add_argument("--batch", type=int, default=8, help="frames the network runs at once (default 8)")

    out.add_argument(
        "--cadence",
        help="dense, 2, 3 or adaptive: how often the network draws; the mouth rests in silence "
        "(default: every frame drawn, no rest)",
    )
    out.add_argument("--no-rest", action="store_true", help="with --cadence: draw silence like any sound")
    out.add_argument(
        "--rms-threshold",
        type=float,
        help="with --cadence: loudness that is speech, RMS of full scale 1 (default: 0.008)",
    )
    out.add_argument(
        "--flux-threshold",
        type=float,
        help="with --cadence adaptive: change of loudness that makes a frame be drawn (default: 0.0035)",
    )
    out.add_argument(
        "--viseme-cache",
        type=int,
        default=0,
        metavar="MB",
        help="show mouths again instead of decoding nearly the same once more; 64 holds over 1000 (default 0: off)",
    )

    how = [
        common,
        engine_choice(),
        model_options(),
        engine_options(),
        build_options(),
        motion_options(),
        out,
        speech_options(),
    ]
    demo = commands.add_parser("demo", parents=how, help="a presenter speaks a sentence")
    text_options(demo.add_mutually_exclusive_group(), DEMO_TEXT)
    demo.add_argument("--avatar", help="default: demo_loop; of ditto demo, a still")
    demo.add_argument("--out", type=Path, default=Path("out/demo.mp4"))
    demo.set_defaults(run=_render, audio=None)

    render = commands.add_parser("render", parents=how, help="make a video from speech")
    render.add_argument(
        "--avatar", required=True, help="a demo, the id of a built avatar, or a picture or clip"
    )
    what = render.add_mutually_exclusive_group(required=True)
    what.add_argument("--audio", type=Path, help="wav, flac, mp3, m4a, ... of any rate and channel count")
    text_options(what)
    render.add_argument("--out", type=Path, required=True)
    render.set_defaults(run=_render)


def _render(args: argparse.Namespace) -> int:
    from ..nodes.avatars.composite import composite_stream
    from ..nodes.core.cadence import Cadence
    from ..nodes.core.frames import RunContext
    from ..nodes.core.images import resized
    from ..nodes.core.timeline import fps_text, parse_fps
    from ..nodes.core.video_write import WriteOptions, write_video

    check_motion_options(args)
    args.avatar = args.avatar or DEMO_AVATARS[args.engine]
    fps, size = parse_fps(args.fps), parse_size_option(args.size)
    cadence_options = _cadence_options(args)
    options = WriteOptions(codec=args.codec, quality=args.quality)
    ctx = RunContext(
        device_of(args), progress=progress_to_stderr(args), engine_cache=model_root(args) / "engines"
    )
    model = model_of(args)
    avatar = _avatar(args, ctx, model)
    audio = sound_of(args, ctx)
    cadence = Cadence(audio, fps, cadence_options) if cadence_options else None
    crops = _crops(args, model, avatar, audio, fps, cadence)
    frames = composite_stream(crops, avatar, seam_mode=args.seam)
    if size and size != avatar.info.size:
        frames = resized(frames, *size)
    if args.double_fps:
        from ..nodes.core.double_fps import DoubledStream

        frames = DoubledStream(frames)
    began = time.perf_counter()
    result = write_video(frames, args.out, ctx, audio, options)
    seconds = time.perf_counter() - began
    facts = {
        "path": str(result.path.resolve()),
        "size": f"{result.width}x{result.height}",
        "fps": fps_text(result.fps) if args.double_fps else args.fps,
        "frames": result.n_frames,
        "duration_s": round(float(result.duration), 3),
        "speed_x_realtime": round(float(result.duration) / seconds, 2),
        "frames_per_second": round(result.n_frames / seconds, 1),
        "peak_memory_mb": _peak_memory_mb(),
        **{name: ctx.report.facts[name] for name in _TOLD if name in ctx.report.facts},
        "report": ctx.report.as_dict(),
    }
    print_facts(args, facts)
    return 0


def _crops(args, model, avatar, audio, fps, cadence):
    """Return the stream of drawn faces."""
    from ..nodes.avatars.engines import hear

    speech = hear(model, audio, fps)
    if model.engine == "ditto":
        from ..nodes.ditto.render import DittoCropStream

        motion = motion_of(args, avatar, speech)
        return DittoCropStream(model, avatar, motion, args.batch, cadence, args.memory or "auto")
    from ..nodes.musetalk.render import CropStream

    return CropStream(model, avatar, speech, args.batch, cadence)


def _cadence_options(args: argparse.Namespace):
    """Return the CadenceOptions that --cadence or --viseme-cache ask for, else None. ValueError for strays."""
    from ..nodes.core.cadence import CadenceOptions

    given = {
        "rms_threshold": args.rms_threshold,
        "flux_threshold": args.flux_threshold,
        "rest": False if args.no_rest else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if args.cadence is not None:
        return CadenceOptions(args.cadence, **given, viseme_cache_mb=args.viseme_cache)
    if given:
        raise ValueError(
            "--no-rest, --rms-threshold and --flux-threshold go with --cadence, such as --cadence dense"
        )
    if args.viseme_cache:
        return CadenceOptions("dense", rest=False, viseme_cache_mb=args.viseme_cache)
    return None


def _avatar(args, ctx, model):
    """Return the packet --avatar means. A picture, clip or folder is built on first use and kept, named by its content."""
    from ..nodes.avatars.engines import maker_of
    from ..nodes.avatars.names import demo_ids, demo_meant
    from ..nodes.avatars.presenters import resolve_avatar
    from ..nodes.core.packet import PacketError

    file, roots = Path(args.avatar), avatar_roots(args)
    is_id = args.avatar in demo_ids() or (file.is_dir() and any((r / args.avatar).is_dir() for r in roots))
    if is_id or not file.exists():
        if given := given_build_options(args):
            raise ValueError(f"{', '.join(given)} goes with a picture or clip; {args.avatar!r} is no file")
        try:
            return resolve_avatar(ctx, demo_meant(args.avatar, model.engine), roots)
        except PacketError as e:
            looks_like_file = file.suffix or len(file.parts) > 1
            raise ValueError(f"no file {args.avatar!r}" if looks_like_file else str(e)) from None
    plan = plan_of(args, model)
    tools = tools_of(args, plan, model)
    return maker_of(model).make(ctx, model, plan.open(file), plan, tools, roots[0])[0]


def _peak_memory_mb() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))
