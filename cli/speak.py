"""Command speak: a text to a sound file, or to the words that are said."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .common import model_root, print_facts, whole_file
from .speech import read_text, sound_of, speech_options, text_options, text_rules

if TYPE_CHECKING:
    from ..nodes.core.frames import RunContext


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    speak = commands.add_parser("speak", parents=[common, speech_options()], help="text to a sound file")
    what = speak.add_mutually_exclusive_group()
    text_options(what)
    what.add_argument(
        "--audio", type=Path, metavar="FILE", help="with --master or --rate: a sound instead of a text"
    )
    speak.add_argument("--out", type=Path, help="a .wav or .flac file")
    speak.add_argument(
        "--text-out",
        metavar="FILE",
        help="with --normalize: the words that are said, there or, for -, on standard output; without --out nothing is "
        "spoken",
    )
    speak.add_argument("--list", action="store_true", help="list the voices")
    speak.set_defaults(run=_speak)


def _speak(args: argparse.Namespace) -> int:
    from ..nodes.core.frames import RunContext
    from ..nodes.tts.engines import list_voices

    if args.list:
        print_facts(args, {"voices": list_voices([model_root(args) / "tts"])})
        return 0
    if not (args.text or args.text_file or args.audio) or not (args.out or args.text_out):
        raise ValueError("speak needs --text, --text-file or --audio, and --out or --text-out (or --list)")
    if args.audio and args.master is None and args.rate is None:
        raise ValueError("--audio goes with --master or --rate: nothing else changes a sound")
    if args.out and (args.out.suffix.lower() not in (".wav", ".flac") or args.out.is_dir()):
        raise ValueError(f"--out {str(args.out)!r} must be a file ending in .wav or .flac")
    if args.text_out and (args.normalize is None or args.audio):
        raise ValueError("--text-out goes with a text and --normalize: nothing else changes the text")
    ctx, facts = RunContext(), {}
    read_text(args, ctx.report)
    if args.text_out:
        _write_text(args, ctx)
    if args.out:
        facts = _write_sound(args, ctx)
    if args.text_out != "-":
        print_facts(args, {**facts, **ctx.report.facts, "report": ctx.report.as_dict()})
    return 0


def _write_text(args: argparse.Namespace, ctx: RunContext) -> None:
    """Write the words of the script, and take the language they are in for its voice too."""
    from ..nodes.tts.text import normalize_text

    done = normalize_text(args.text, args.normalize, report=ctx.report, **text_rules(args))
    if args.normalize == "auto":
        args.normalize = done.language
    if args.text_out == "-":
        print(done.text)
        print(ctx.report.text(), file=sys.stderr)
        return
    if args.show_changes and not args.out:
        ctx.report.fact("changed", done.diff())
    out = Path(args.text_out)
    with whole_file(out) as part:
        part.write_text(done.text + "\n", encoding="utf-8")
    ctx.report.fact("text", str(out.resolve()))


def _write_sound(args: argparse.Namespace, ctx: RunContext) -> dict[str, object]:
    import soundfile

    with whole_file(args.out) as part:
        audio = sound_of(args, ctx)
        try:
            soundfile.write(part, audio.samples.T, audio.sample_rate)
        except soundfile.SoundFileError as e:
            raise ValueError(f"{str(args.out)!r} could not be written whole ({e}); is the disk full?") from e
    return {"path": str(args.out.resolve()), "duration_s": round(float(audio.seconds), 3)}
