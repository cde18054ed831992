"""Options of every command that builds avatars or renders, and what they mean."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .common import model_root, parse_size_option


def model_options() -> argparse.ArgumentParser:
    """Return the options that choose the weights."""
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument(
        "--checkpoint",
        default="embedded",
        help="embedded, musetalk-1.5, musetalk-1.0 or a folder of weights; of ditto embedded or ditto (default: embedded)",
    )
    p.add_argument("--precision", default="fp32", help="fp32, fp16 or fp8 (default: fp32)")
    return p


def engine_choice() -> argparse.ArgumentParser:
    """Return the option that chooses the engine."""
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument(
        "--engine",
        default="musetalk",
        choices=("musetalk", "ditto"),
        help="musetalk moves the mouth, ditto the whole head (default: musetalk)",
    )
    return p


def engine_options() -> argparse.ArgumentParser:
    """Return the options that choose what runs the networks."""
    from ..nodes.core.engine_backends import AUTO, BACKEND_CHOICES

    p = argparse.ArgumentParser(add_help=False)
    p.add_argument(
        "--backend",
        default=AUTO,
        help=f"{', '.join(BACKEND_CHOICES)} (default: auto, the fastest that is ready; a name starts there and builds it)",
    )
    p.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:1 (default: auto, CUDA where there is any)"
    )
    return p


def device_of(args: argparse.Namespace) -> str:
    """Return the torch device that --device means. ValueError if it is not there."""
    import torch

    if args.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as e:  # AssertionError: torch without CUDA
        reason = str(e).partition("\n")[0]
        raise ValueError(f"device {args.device!r} cannot be used ({reason}); use auto or cpu") from e
    return args.device


def build_options() -> argparse.ArgumentParser:
    """Return the options that say how a source becomes an avatar."""
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument(
        "--box",
        help="face box x1,y1,x2,y2 in pixels of the source, instead of detection (--box=-5,... if it starts below 0)",
    )
    p.add_argument(
        "--face", default="largest", help="largest, a number from the left, or x,y (default: largest)"
    )
    p.add_argument("--detector", default="light", help="light or exact (default: light)")
    p.add_argument("--cycle", default="auto", help="auto, loop, pingpong or still (default: auto)")
    p.add_argument(
        "--max-frames", type=int, default=50, help="frames used, 0 for all up to 1500 (default: 50)"
    )
    p.add_argument(
        "--background", help="colour under transparent parts: name, #rrggbb or r,g,b (default: black)"
    )
    p.add_argument(
        "--missing", help="frames without a face: passthrough, hold or error (default: passthrough)"
    )
    p.add_argument("--preset", help="1.5 or 1.0: crop and mask as MuseTalk's own scripts")
    p.add_argument(
        "--mask", help="mouth, lower face, jaw, raw or neck (default: mouth; embedded model: lower face)"
    )
    p.add_argument(
        "--margin", type=int, help="pixels added below a found chin (default: 10; musetalk-1.0: 0)"
    )
    p.add_argument("--bbox-shift", type=int, help="pixels the nose point is moved down (default: 0)")
    p.add_argument("--cheeks", metavar="L,R", help="half widths of mask jaw in 512ths (default: 90,90)")
    p.add_argument("--expand", type=float, help="side of the crop over the box's longer side (default: 1.5)")
    p.add_argument(
        "--blur", type=float, help="feather of jaw, raw, neck as a share of the side (default: 0.1)"
    )
    p.add_argument(
        "--crop-scale", type=float, help="ditto: side of the crop over the landmarks' extent (default: 2.3)"
    )
    p.add_argument(
        "--crop-shift",
        metavar="X,Y",
        help="ditto: of the crop's centre along and down the face, in sides (default: 0,-0.125)",
    )
    p.add_argument("--upright", action="store_true", help="ditto: do not turn the crop with the head")
    p.add_argument(
        "--smoothing", type=int, help="ditto: frames the poses of a clip are averaged over, odd (default: 13)"
    )
    return p


def given_build_options(args: argparse.Namespace) -> list[str]:
    """Return the build options that were given another value than their default, as written on the command line."""
    plain = vars(build_options().parse_args([]))
    return ["--" + name.replace("_", "-") for name, value in plain.items() if getattr(args, name) != value]


def search_roots(args: argparse.Namespace) -> list[Path]:
    """Return the folders where weights may lie: --models first, then those of a ComfyUI in $COMFYUI_DIR."""
    from ..nodes.core import models

    own = [model_root(args)]
    if comfy := os.environ.get("COMFYUI_DIR"):
        own.append(Path(comfy).expanduser() / "models" / "talkinghead")
    return models.search_roots(*own)


def model_of(args: argparse.Namespace):
    """Return the handle of --checkpoint, --precision and, where the command has them, --engine and --backend."""
    if getattr(args, "engine", "musetalk") == "ditto":
        from ..nodes.ditto.handle import DittoModel as Model
    else:
        from ..nodes.musetalk.handle import MuseTalkModel as Model
    backend = getattr(args, "backend", "auto")
    return Model(args.checkpoint, args.precision, tuple(search_roots(args)), backend)


def plan_of(args: argparse.Namespace, model):
    """Return the plan of the build options for the model's engine; `args` may also have fps and size."""
    from ..nodes.avatars.engines import maker_of
    from ..nodes.core.faces import parse_choice
    from ..nodes.core.images import parse_box
    from ..nodes.core.timeline import parse_fps

    fps = getattr(args, "source_fps", None)
    return maker_of(model).plan(
        fps=parse_fps(fps) if fps else None,
        size=parse_size_option(args.size),
        max_frames=args.max_frames,
        cycle=args.cycle,
        boxes=(parse_box(args.box),) if args.box else None,
        face=parse_choice(args.face),
        options=_avatar_options(args, model),
    )


def tools_of(args: argparse.Namespace, plan, model):
    """Return the face tools of --detector, or None where the box is given."""
    if plan.boxes:
        return None
    from ..nodes.avatars.engines import maker_of

    return maker_of(model).open_tools(args.detector, search_roots(args), plan)


_MUSETALK_OPTIONS = ("preset", "mask", "margin", "bbox_shift", "cheeks", "expand", "blur")
_DITTO_OPTIONS = ("crop_scale", "crop_shift", "upright", "smoothing")


def _avatar_options(args: argparse.Namespace, model):
    others = _MUSETALK_OPTIONS if model.engine == "ditto" else _DITTO_OPTIONS
    if given := [name for name in given_build_options(args) if name[2:].replace("-", "_") in others]:
        raise ValueError(f"{', '.join(given)} does nothing for --engine {model.engine}; leave it out")
    return _ditto_options(args) if model.engine == "ditto" else _musetalk_options(args, model)


def _ditto_options(args: argparse.Namespace):
    from ..nodes.ditto.avatar_options import DittoAvatarOptions

    given = {"crop_scale": args.crop_scale, "smoothing": args.smoothing}
    given |= {
        "missing": args.missing,
        "background": args.background,
        "rotate": False if args.upright else None,
    }
    if args.crop_shift:
        try:
            given["shift_x"], given["shift_y"] = (float(v) for v in args.crop_shift.split(","))
        except ValueError:
            raise ValueError(
                f"--crop-shift {args.crop_shift!r} is not X,Y; write for example 0,-0.125"
            ) from None
    return DittoAvatarOptions(**{k: v for k, v in given.items() if v is not None})


def _musetalk_options(args: argparse.Namespace, model):
    from dataclasses import replace

    from ..nodes.musetalk.options import AvatarOptions

    base = AvatarOptions.upstream(args.preset) if args.preset else AvatarOptions.default_for(model.version)
    given = {
        "mask": args.mask,
        "extra_margin": args.margin,
        "bbox_shift": args.bbox_shift,
        "expand": args.expand,
        "blur": args.blur,
        "missing": args.missing,
        "background": args.background,
    }
    if args.cheeks:
        try:
            given["cheek_left"], given["cheek_right"] = (int(v) for v in args.cheeks.split(","))
        except ValueError:
            raise ValueError(f"--cheeks {args.cheeks!r} is not L,R; write for example 90,90") from None
    return replace(base, **{k: v for k, v in given.items() if v is not None})
