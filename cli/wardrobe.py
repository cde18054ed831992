"""Command wardrobe: the crop for a sampler, and its result back into the clip with the hands untouched, from files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from .common import print_facts, progress_to_stderr


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    wardrobe = commands.add_parser("wardrobe", help="new clothes: the crop for a sampler, and the way back")
    steps = wardrobe.add_subparsers(required=True, metavar="STEP")
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument("clip", type=Path, help="the clip, of any size and rate")
    files.add_argument(
        "--mask", type=Path, required=True, help="a video of what is painted: white, one frame a frame"
    )
    files.add_argument("--occluders", type=Path, help="a video of what lies on it and stays: hands, hair")
    files.add_argument(
        "--grow",
        type=int,
        default=8,
        metavar="PX",
        help="px the mask grows first: at least the feather, or the old hem shows (default 8)",
    )
    files.add_argument(
        "--threshold", type=float, default=0.5, help="brightness that is inside, 0 to 1 (default 0.5)"
    )
    files.add_argument(
        "--align", type=int, default=32, metavar="PX", help="size is a multiple of it (default 32)"
    )
    files.add_argument(
        "--pad", type=float, default=0.12, metavar="SHARE", help="room round the mask (default 0.12)"
    )
    files.add_argument(
        "--tracked", action="store_true", help="a box that moves where it must (default: one box)"
    )
    files.add_argument(
        "--frame-rule", default="none", help="17k+5 (H3), 4k+1 (Wan), 8k+1 (LTX) or none (default)"
    )
    files.add_argument("--on-bad-length", default="error", help="error, trim or repeat_last (default error)")
    files.add_argument(
        "--codec", default="auto", help="as for render, or ffv1: lossless, a .mkv without sound"
    )
    files.add_argument("--out", type=Path, required=True)
    files.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    crop = steps.add_parser("crop", parents=[files], help="cut the box out, for a sampler")
    crop.add_argument(
        "--mask-out", type=Path, metavar="MKV", help="also the paint mask of the crop, gray FFV1"
    )
    crop.set_defaults(run=_crop)
    back = steps.add_parser(
        "composite", parents=[files], help="put the repainted crop into the clip, and measure it"
    )
    back.add_argument(
        "--generated", type=Path, required=True, help="the crop repainted; same options as for crop"
    )
    back.add_argument(
        "--feather", type=int, default=4, metavar="PX", help="px from the outline to full paint (default 4)"
    )
    back.add_argument(
        "--seam",
        default="none",
        help="none (default); context_gain, where the crop's border was not drawn anew; reinhard_lab, poisson: faces",
    )
    back.add_argument(
        "--matte",
        default="colour_line",
        help="edge of the occluders: hard, soft or colour_line, which takes the old colour out of it (default)",
    )
    back.add_argument(
        "--band",
        type=int,
        default=4,
        metavar="PX",
        help="px that soft and colour_line may change, at least the feather (default 4)",
    )
    back.add_argument(
        "--on-blocky", default="error", help="a mask that looks like a sampler's: error, warn or ignore"
    )
    back.add_argument(
        "--loop", action="store_true", help="also measure the step from the last frame to the first"
    )
    back.add_argument("--quality", default="high", help="draft, balanced or high (default high)")
    back.set_defaults(run=_composite)


class _Film(NamedTuple):
    path: Path
    width: int
    height: int
    fps: object
    n_frames: int


def _check(args: argparse.Namespace) -> None:
    """Raise ValueError before any work: for words that are no option, and for a file to be written that is one of those read
    or the other one written."""
    from ..nodes.wardrobe import limits
    from ..nodes.wardrobe.checks import check_choice

    words = (
        ("on_bad_length", "BAD_LENGTHS"),
        ("seam", "SEAM_MODES"),
        ("matte", "MATTES"),
        ("on_blocky", "BLOCKY_MODES"),
    )
    for name, options in words:
        if hasattr(args, name):
            check_choice(
                "wardrobe", f"--{name.replace('_', '-')}", getattr(args, name), getattr(limits, options)
            )
    if args.codec == "ffv1" and args.out.suffix.lower() != ".mkv":
        raise ValueError(f"--codec ffv1 writes a .mkv, not {args.out.name}")
    names = ("clip", "--mask", "--occluders", "--generated")
    given = {name: getattr(args, name.removeprefix("--"), None) for name in names}
    wanted = {"--out": args.out, "--mask-out": getattr(args, "mask_out", None)}
    for option, path in wanted.items():
        for name, other in [*given.items(), ("--out", args.out if option == "--mask-out" else None)]:
            if path and other and _same(path, other):
                raise ValueError(
                    f"{option} {path} is the file of {name}; it would be overwritten, choose another name"
                )


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _prepare(args: argparse.Namespace):
    """Return (ctx, the clip as a stream, its crop, paint mask of the crop, occluders of the crop or None)."""
    _check(args)
    import torch

    from ..nodes.core.frames import RunContext
    from ..nodes.core.video_read import VideoStream
    from ..nodes.wardrobe.crop import cut_mask, subject_crop
    from ..nodes.wardrobe.mask_file import read_mask_video
    from ..nodes.wardrobe.masks import subtract_occluders
    from ..nodes.wardrobe.plan import BoxRules

    ctx, clip = RunContext(), VideoStream(args.clip)
    size = (clip.info.n_frames, clip.info.height, clip.info.width)
    mask = read_mask_video(args.mask, size, args.threshold, ctx)
    rules = BoxRules(args.align, args.pad)
    mode = "tracked" if args.tracked else "static"
    crop = subject_crop(clip, mask, rules, mode, args.frame_rule, args.on_bad_length, ctx=ctx)
    del mask  # 8 MB a frame at 1080x1920; from here on only the crop's
    for note in crop.notes:
        ctx.warn(note)
    hands = None
    if args.occluders:
        hands = cut_mask(read_mask_video(args.occluders, size, args.threshold, ctx), crop.stitch)
    none = torch.zeros_like(crop.mask[:1])
    done = subtract_occluders(crop.mask, none if hands is None else hands, args.grow, ctx=ctx)
    return ctx, clip, crop, done.paint, hands


def _facts(args: argparse.Namespace, ctx, crop, result) -> dict:
    from ..nodes.core.timeline import fps_text

    width, height = crop.stitch.size
    x, y = (int(v) for v in crop.stitch.boxes[0, :2])
    return {
        "path": str(result.path.resolve()),
        "size": f"{result.width}x{result.height}",
        "fps": fps_text(result.fps),
        "frames": result.n_frames,
        "crop": f"{crop.stitch.frames} frames of {width}x{height}, the first at {x},{y}",
        "report": ctx.report.as_dict(),
    }


def _write(args: argparse.Namespace, ctx, clip, frames, options):
    """Write the film, with the clip's sound unless lossless; the only pass that is long enough to show its progress."""
    from ..nodes.core.audio import open_audio
    from ..nodes.core.frames import RunContext
    from ..nodes.core.video_write import write_video
    from ..nodes.wardrobe.mask_file import write_lossless

    shown = RunContext(progress=progress_to_stderr(args), report=ctx.report)
    if args.codec == "ffv1":
        write_lossless(args.out, frames, shown)
        info = frames.info
        return _Film(args.out, info.width, info.height, info.fps, info.n_frames)
    sound = open_audio(args.clip) if clip.probe.has_audio else None
    made = write_video(frames, args.out, shown, sound, options)
    return _Film(made.path, made.width, made.height, made.fps, made.n_frames)


def _options(args: argparse.Namespace, quality: str):
    from ..nodes.core.video_write import WriteOptions

    return WriteOptions("auto" if args.codec == "ffv1" else args.codec, quality)


def _generated(path: Path, crop, ctx):
    """Return the repainted crop, IMAGE; ValueError that names the file unless it is of the crop's size and length."""
    import torch

    from ..nodes.core.images import image_batch
    from ..nodes.core.video_read import VideoStream

    stream = VideoStream(path)
    info, (width, height), frames = stream.info, crop.stitch.size, crop.stitch.frames
    if (info.n_frames, info.width, info.height) != (frames, width, height):
        raise ValueError(
            f"--generated {path} has {info.n_frames} frames of {info.width}x{info.height}; the crop has {frames} of "
            f"{width}x{height} (same options as for crop?)"
        )
    return torch.cat([image_batch(chunk.frames) for chunk in stream.chunks(ctx, 8)])


def _crop(args: argparse.Namespace) -> int:
    from ..nodes.core.frames import TensorStream
    from ..nodes.core.images import rgb_frames
    from ..nodes.wardrobe.mask_file import write_mask_video

    ctx, clip, crop, paint, _ = _prepare(args)
    frames = TensorStream(rgb_frames(crop.images), clip.info.fps)
    result = _write(args, ctx, clip, frames, _options(args, "high"))
    facts = _facts(args, ctx, crop, result)
    if args.mask_out:
        write_mask_video(args.mask_out, paint, clip.info.fps, ctx)
        facts = {"path": facts.pop("path"), "mask": str(args.mask_out.resolve()), **facts}
    print_facts(args, facts)
    return 0


def _composite(args: argparse.Namespace) -> int:
    from ..nodes.wardrobe.composite import composite
    from ..nodes.wardrobe.masks import pixel_mask
    from ..nodes.wardrobe.measure import measure
    from ..nodes.wardrobe.repaste import repaste
    from ..nodes.wardrobe.seam import seam_blend

    ctx, clip, crop, paint, hands = _prepare(args)
    generated = _generated(args.generated, crop, ctx)
    alpha = pixel_mask(paint, args.feather, ctx=ctx, stitch=crop.stitch, occluders=hands)
    if args.grow < args.feather:
        ctx.warn(f"grow {args.grow} is less than feather {args.feather}: the old garment shows at its hem")
    generated = seam_blend(generated, crop.images, alpha, args.seam, ctx=ctx)
    made = composite(clip, generated, crop.stitch, alpha, args.on_blocky, None, ctx)
    if hands is not None:
        made = repaste(made, clip, hands, crop.stitch, generated, args.matte, args.band, ctx)
    result = _write(args, ctx, clip, made, _options(args, args.quality))
    found, _ = measure(clip, made, alpha, crop.stitch, hands, args.loop, ctx)
    facts = _facts(args, ctx, crop, result)
    shown = {
        k: round(v, 3) if isinstance(v, float) else v for k, v in found.as_dict().items() if v is not None
    }
    print_facts(
        args, {**{k: v for k, v in facts.items() if k != "report"}, **shown, "report": facts["report"]}
    )
    return 0
