"""Options of Ditto's motion, and what they mean."""

from __future__ import annotations

import argparse


def motion_options() -> argparse.ArgumentParser:
    """Return the options that say how Ditto moves the head."""
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument("--steps", type=int, help="ditto: steps of the motion diffusion, 2 to 50 (default: 4)")
    p.add_argument("--motion-seed", type=int, help="ditto: another number, another movement (default: 0)")
    p.add_argument("--eta", type=float, help="ditto: 1 as upstream, 0 deterministic (default: 1)")
    p.add_argument(
        "--emotion",
        help='ditto: such as happy, "happy 0.7, surprise 0.3" or "0 s neutral; 2.5 s happy" (default: neutral)',
    )
    p.add_argument("--smooth", type=int, metavar="FRAMES", help="ditto: smooth the head's pose, such as 5")
    p.add_argument("--head", type=float, help="ditto: how far the head moves, 0 to 2 (default: 1)")
    p.add_argument("--gaze", metavar="X,Y", help="ditto: degrees the eyes turn right and up (--gaze=-5,0)")
    p.add_argument("--blink", help="ditto: as made, off or timed (default: as made)")
    p.add_argument("--blinks-per-minute", type=float, help="ditto: with --blink timed (default: 15)")
    p.add_argument(
        "--brows", type=float, help="ditto: how far the voice moves the brows, 0 to 2 (default: 0)"
    )
    p.add_argument("--squint", type=float, help="ditto: how far stress narrows the eyes, 0 to 2 (default: 0)")
    p.add_argument("--memory", help="ditto: where feature volumes lie: auto, device or host (default: auto)")
    return p


def check_motion_options(args: argparse.Namespace) -> None:
    """Raise ValueError where an option of motion is given and the engine is not Ditto."""
    names = vars(motion_options().parse_args([]))
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
    if given and args.engine != "ditto":
        raise ValueError(f"{', '.join(given)} goes with --engine ditto; MuseTalk moves the mouth only")


def motion_of(args: argparse.Namespace, avatar, speech):
    """Return the Motion that the options ask for."""
    from ..nodes.ditto.motion_plan import Motion, MotionOptions

    options = {"steps": args.steps, "eta": args.eta, "seed": args.motion_seed, "emotion": args.emotion}
    motion = Motion(speech.model, avatar, speech, MotionOptions(**_given(options)))
    if args.smooth is not None:
        motion = motion.with_smoothing(args.smooth)
    return motion.with_edits(_edits(args))


def _edits(args: argparse.Namespace):
    from ..nodes.ditto.motion_edit import MotionEdits

    given = {
        "head": args.head,
        "blink": args.blink,
        "blinks_per_minute": args.blinks_per_minute,
        "blink_seed": args.motion_seed,
        "brow_raise": args.brows,
        "brow_furrow": args.brows,
        "squint": args.squint,
    }
    if args.gaze is not None:
        try:
            given["gaze_x"], given["gaze_y"] = (float(v) for v in args.gaze.split(","))
        except ValueError:
            raise ValueError(f"--gaze {args.gaze!r} is not X,Y in degrees; write for example 5,0") from None
    return MotionEdits(**_given(given))


def _given(values: dict) -> dict:
    return {name: value for name, value in values.items() if value is not None}
