"""The command line: whatever a node does, without a server.

Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

DEMO_TEXT = "Good evening. I was made on this very computer, and every word you hear moves my lips."
DEMO_AVATAR = "demo_loop"


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
        print("stopped; nothing was left behind", file=sys.stderr)
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
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--models", metavar="DIR", help="models folder (avatars live in DIR/avatars)")
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")

    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--fps", default="25", help="N, N/D or 29.97, 23.976, 59.94 (default 25)")
    out.add_argument("--size", metavar="WxH", help="size of the video (default: the avatar's)")
    out.add_argument("--codec", default="auto", help="auto, h264_nvenc or libx264")
    out.add_argument("--quality", default="balanced", help="draft, balanced or high")
    out.add_argument("--batch", type=int, default=8, help="frames the network runs at once (default 8)")

    speech = argparse.ArgumentParser(add_help=False)
    speech.add_argument("--voice", help="a voice of `talkinghead speak --list` (default: piper: joe)")
    speech.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 times the usual pace")
    speech.add_argument("--seed", type=int, default=0)

    demo = commands.add_parser("demo", parents=[common, out, speech], help="a presenter speaks a sentence")
    demo.add_argument("--text", default=DEMO_TEXT)
    demo.add_argument("--avatar", default=DEMO_AVATAR)
    demo.add_argument("--out", type=Path, default=Path("out/demo.mp4"))
    demo.set_defaults(run=_render, audio=None, box=None)

    render = commands.add_parser("render", parents=[common, out, speech], help="make a video from speech")
    render.add_argument(
        "--avatar", required=True, help="a demo, the id of a built avatar, or a picture or clip"
    )
    what = render.add_mutually_exclusive_group(required=True)
    what.add_argument("--audio", type=Path, help="wav, flac, mp3, m4a, ... of any rate and channel count")
    what.add_argument("--text", help="text to speak (needs the tts extra)")
    render.add_argument("--out", type=Path, required=True)
    render.add_argument("--box", help="face box x1,y1,x2,y2 in pixels of the picture or clip itself")
    render.set_defaults(run=_render)

    speak = commands.add_parser("speak", parents=[common, speech], help="text to a sound file")
    speak.add_argument("--text")
    speak.add_argument("--out", type=Path, help="a .wav or .flac file")
    speak.add_argument("--list", action="store_true", help="list the voices")
    speak.set_defaults(run=_speak)

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
    build.set_defaults(run=_avatar_build)
    listing = avatar.add_parser("list", parents=[common], help="list the avatars")
    listing.set_defaults(run=_avatar_list)
    verify = avatar.add_parser("verify", parents=[common], help="hash every file of avatars")
    verify.add_argument("ids", nargs="*", help="which (default: all)")
    verify.set_defaults(run=_avatar_verify)

    parity = commands.add_parser("parity", help="compare the networks and stages with reference tensors")
    parity.add_argument("directory", type=Path, help="a folder of the form of tests/golden/musetalk")
    parity.add_argument("--dtype", default="fp32", choices=("fp32", "fp16", "bf16"))
    parity.add_argument("--device", default="cpu")
    parity.set_defaults(run=_parity)
    return p


def _render(args: argparse.Namespace) -> int:
    from .nodes.core.frames import RunContext
    from .nodes.core.images import resized
    from .nodes.core.timeline import parse_fps
    from .nodes.core.video_write import WriteOptions, write_video
    from .nodes.musetalk.handle import MuseTalkModel
    from .nodes.musetalk.render import CompositeStream, CropStream
    from .nodes.musetalk.speech import Speech

    fps, size = parse_fps(args.fps), _size(args.size)
    options = WriteOptions(codec=args.codec, quality=args.quality)
    ctx = RunContext(progress=_progress(args))
    model = MuseTalkModel()
    with ExitStack() as stack:
        avatar = _avatar(args, ctx, model, size, stack)
        audio = _audio(args, ctx)
        crops = CropStream(model, avatar, Speech(model, audio, fps), args.batch)
        frames = CompositeStream(crops, avatar)
        if size and size != avatar.info.size:
            frames = resized(frames, *size)
        began = time.perf_counter()
        result = write_video(frames, args.out, ctx, audio, options)
        seconds = time.perf_counter() - began
    facts = {
        "path": str(result.path.resolve()),
        "size": f"{result.width}x{result.height}",
        "fps": args.fps,
        "frames": result.n_frames,
        "duration_s": round(float(result.duration), 3),
        "speed_x_realtime": round(float(result.duration) / seconds, 2),
        "frames_per_second": round(result.n_frames / seconds, 1),
        "peak_memory_mb": _peak_memory_mb(),
        "report": ctx.report.as_dict(),
    }
    _print(args, facts)
    return 0


def _avatar(args, ctx, model, size, stack: ExitStack):
    """Return the packet --avatar means; one made from a file lives until `stack` closes."""
    from .nodes.core.packet import PacketError
    from .nodes.musetalk.presenters import demo_presenters, resolve_avatar

    file = Path(args.avatar)
    if args.avatar in demo_presenters() or not file.is_file():
        if args.box:
            raise ValueError(f"--box goes with a picture or clip; {args.avatar!r} is no file")
        try:
            return resolve_avatar(ctx, args.avatar, _roots(args))
        except PacketError as e:
            looks_like_file = file.suffix or len(file.parts) > 1
            raise ValueError(f"no file {args.avatar!r}" if looks_like_file else str(e)) from None
    if not args.box:
        raise ValueError(
            f"--box is needed with {file.name}: give the face as x1,y1,x2,y2 in pixels, half height at the nose"
        )
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="talkinghead-")))
    return _build(ctx, model, file, root, "once", args.box, size, None, "pingpong", 50)


def _build(ctx, model, file, root, avatar_id, box, size, fps, cycle, max_frames):
    from .nodes.core.images import cover_box, parse_box
    from .nodes.musetalk.bake import build_avatar
    from .nodes.musetalk.source import read_source

    source = read_source(file, fps, size, max_frames, ctx)
    height, width = source.frames.shape[1:3]
    boxes = [cover_box(parse_box(box), source.size, (width, height))] * len(source.frames)
    return build_avatar(ctx, model, source.frames, boxes, root, avatar_id, source.fps, cycle, source.record)


def _audio(args, ctx):
    if args.audio:
        from .nodes.core.audio import open_audio

        return open_audio(args.audio)
    return _spoken(args, ctx)


def _spoken(args, ctx):
    from .nodes.tts.engines import JOE, default_voice, speak

    # The recording is for the demo's own words only: another text must be spoken or refused.
    voice = args.voice or (default_voice() if args.text == DEMO_TEXT else JOE)
    with ctx.report.timed("speech synthesis"):
        return speak(args.text, voice, args.speed, args.seed, ctx.report, [_model_root(args) / "tts"])


def _speak(args: argparse.Namespace) -> int:
    from .nodes.core.frames import RunContext
    from .nodes.tts.engines import list_voices

    if args.list:
        _print(args, {"voices": list_voices([_model_root(args) / "tts"])})
        return 0
    if not args.text or not args.out:
        raise ValueError("speak needs --text and --out (or --list)")
    if args.out.suffix.lower() not in (".wav", ".flac") or args.out.is_dir():
        raise ValueError(f"--out {str(args.out)!r} must be a file ending in .wav or .flac")
    import soundfile

    audio = _spoken(args, RunContext())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    part = args.out.with_name(f".part-{os.getpid()}{args.out.suffix}")
    try:
        soundfile.write(part, audio.samples.T, audio.sample_rate)
        os.replace(part, args.out)
    finally:
        part.unlink(missing_ok=True)
    _print(args, {"path": str(args.out.resolve()), "duration_s": round(float(audio.seconds), 3)})
    return 0


def _avatar_build(args: argparse.Namespace) -> int:
    from .nodes.core.frames import RunContext
    from .nodes.core.timeline import parse_fps
    from .nodes.musetalk.handle import MuseTalkModel
    from .nodes.musetalk.presenters import check_new_id

    check_new_id(args.id)
    if not args.source.is_file():
        raise ValueError(f"no file {str(args.source)!r}")
    fps = parse_fps(args.fps) if args.fps else None
    packet = _build(
        RunContext(progress=_progress(args)), MuseTalkModel(), args.source, _roots(args)[0], args.id,
        args.box, _size(args.size), fps, args.cycle, args.max_frames,
    )  # fmt: skip
    _print(args, _packet_facts(packet))
    return 0


def _avatar_list(args: argparse.Namespace) -> int:
    from .nodes.core.packet import PacketError, list_packets, open_packet
    from .nodes.musetalk.presenters import demo_presenters

    rows, bad = [], []
    for path in list_packets(_roots(args)):
        try:
            rows.append(_packet_facts(open_packet(path)))
        except PacketError as e:
            bad.append(str(e))
    if args.json:
        _print(args, {"avatars": rows, "damaged": bad, "demos": list(demo_presenters())})
        return 0
    for row in rows:
        print("{id:24} {engine:9} {size:>10} {fps:>6} fps {frames:5} frames  {cycle}".format(**row))
    for message in bad:
        print(f"damaged: {message}")
    print(f"demos, built on first use: {', '.join(demo_presenters())}")
    return 0


def _avatar_verify(args: argparse.Namespace) -> int:
    from .nodes.core.packet import PacketError, find_packet, list_packets, verify_packet

    roots = _roots(args)
    paths = [find_packet(i, roots) for i in args.ids] if args.ids else list_packets(roots)
    results = {}
    for path in paths:
        try:
            verify_packet(path)
            results[path.name] = "ok"
        except PacketError as e:
            results[path.name] = str(e)
    _print(args, results if results or args.json else {"avatars": "none built yet"})
    return 1 if any(v != "ok" for v in results.values()) else 0


def _parity(args: argparse.Namespace) -> int:
    from .nodes.musetalk.parity import run_parity

    return 1 if run_parity(args.directory, args.device, args.dtype).failed else 0


def _packet_facts(packet) -> dict:
    from .nodes.core.timeline import fps_text

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


def _model_root(args: argparse.Namespace) -> Path:
    from .nodes.core.models import cli_model_root

    return cli_model_root(args.models)


def _roots(args: argparse.Namespace) -> list[Path]:
    return [_model_root(args) / "avatars"]


def _size(text: str | None) -> tuple[int, int] | None:
    from .nodes.core.images import parse_size

    return parse_size(text) if text else None


def _progress(args: argparse.Namespace):
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


def _peak_memory_mb() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))


def _print(args: argparse.Namespace, facts: dict) -> None:
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
